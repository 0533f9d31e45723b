/* Pools that other processes use: a pool goes out as a file descriptor, its allocations as places in that file.
 * CUDA's documentation tells what the exported functions do; a comment at one tells only what is special here. */
#define _GNU_SOURCE
#include "simgpu/memory/pool.h"

#include <fcntl.h>
#include <unistd.h>

/* The descriptor is a copy, which the caller closes. */
EXPORT CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags) {
  CUresult result = ready();
  if (result || !out || flags || !is_handle(pool, POOL_HANDLE) || pool->imported ||
      type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      !(pool->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  int fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  *(int *)out = fd;
  return CUDA_SUCCESS;
}

/* The caller keeps its descriptor. */
EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type,
                                                   unsigned long long flags) {
  CUresult result = ready();
  struct exported exported;
  if (result || !out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      !exported_read((int)(intptr_t)handle, EXPORTED_POOL, &exported))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  bool host = exported.location != CU_MEM_LOCATION_TYPE_DEVICE;
  struct pool *pool = pool_new(host ? SG_NONE : exported.device, exported.location, 0, exported.max_bytes);
  if (!pool)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pool->imported = true;
  pool->fd = fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 512);
  *out = pool;
  return CUDA_SUCCESS;
}

/* Tell where the allocation's chunk lies in the pool's file, and where the allocation lies in the chunk. */
EXPORT CUresult cuMemPoolExportPointer(export_data_t *out, CUdeviceptr address) {
  CUresult result = ready();
  struct block block;
  if (result || !out || !find_block(address, &block) || block.source != BLOCK_POOL || block.address != address)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  const struct chunk *chunk = block.owner;
  if (chunk->pool->fd < 0 || chunk->pool->imported)
    return CUDA_ERROR_INVALID_VALUE;
  *out = (export_data_t){.chunk = chunk->offset,
                         .chunk_bytes = chunk->bytes,
                         .offset = block.address - chunk->address,
                         .bytes = block.bytes};
  return CUDA_SUCCESS;
}

/* With the lock: the exporter's chunk. It is mapped here as a whole when its first allocation is imported. NULL: it
 * cannot be mapped. */
static struct chunk *chunk_at(struct pool *pool, const export_data_t *data) {
  struct chunk *chunk = pool->chunks;
  while (chunk && chunk->offset != data->chunk)
    chunk = chunk->next;
  return chunk ? chunk : pool_chunk(pool, data->chunk, data->chunk_bytes);
}

/* Make an allocation of the exporter usable here. Its bytes stay on the exporter's account. */
EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, export_data_t *data) {
  CUresult result = ready();
  if (result || !out || !data || !is_handle(pool, POOL_HANDLE) || !pool->imported || !data->bytes ||
      data->offset + data->bytes > data->chunk_bytes || data->bytes > data->chunk_bytes)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  struct block there;
  pthread_mutex_lock(&pools_lock);
  struct chunk *chunk = chunk_at(pool, data);
  result = chunk ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED;
  if (!result && find_block(chunk->address + data->offset, &there))
    result = CUDA_ERROR_INVALID_VALUE; /* imported already */
  if (!result && !pool_import(chunk, data->offset, data->bytes))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  if (!result)
    *out = chunk->address + data->offset;
  pthread_mutex_unlock(&pools_lock);
  return result;
}
