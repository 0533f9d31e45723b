/* Memory of another API, imported as a file descriptor. It counts from its import on. CUDA's documentation tells what
 * the exported functions do; a comment at one tells only what is special here. */
#define _GNU_SOURCE
#include "simgpu/memory/array.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPAQUE_FD 1 /* CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD */
#define PAGE      4096u

struct external {
  struct handle handle;
  uint32_t device;
  int fd;
  uint64_t bytes;
};

/* The driver owns the descriptor from here on, unless the call fails. */
EXPORT CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
  struct context *context;
  struct stat info;
  CUresult result = enter(&context);
  if (result || !out || !desc || !desc->size)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (desc->type != OPAQUE_FD)
    return not_supported("external memory that is no opaque file descriptor");
  if (fstat(desc->handle.fd, &info) || info.st_size < 0 || (uint64_t)info.st_size < desc->size)
    return CUDA_ERROR_INVALID_VALUE;
  result = charge_process(context->device, SG_EXTERNAL, desc->size);
  if (result)
    return result;
  struct external *external = handle_new(EXTERNAL_HANDLE, sizeof *external);
  int fd = external ? fcntl(desc->handle.fd, F_DUPFD_CLOEXEC, 512) : -1;
  if (fd < 0) {
    if (external)
      handle_free(external);
    refund_process(context->device, SG_EXTERNAL, desc->size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  close(desc->handle.fd);
  external->device = context->device;
  external->fd = fd;
  external->bytes = desc->size;
  *out = external;
  return CUDA_SUCCESS;
}

/* Buffers and arrays that were mapped from it stay mapped, but no longer count. */
EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory external) {
  CUresult result = ready();
  if (result || !is_handle(external, EXTERNAL_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_HANDLE;
  close(external->fd);
  refund_process(external->device, SG_EXTERNAL, external->bytes);
  handle_free(external);
  return CUDA_SUCCESS;
}

/* Whether these bytes lie in the external memory. A range of 0 bytes does not. */
static bool inside(const struct external *external, uint64_t offset, uint64_t bytes) {
  return bytes && bytes <= external->bytes && offset <= external->bytes - bytes;
}

/* Map a part of the memory as a block of the current context. It is not charged again. A mapping begins with a page,
 * so up to a page in front of the part (`lead`) is mapped, too. */
EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory external,
                                                const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc) {
  struct context *context;
  CUresult result = enter(&context);
  if (result || !is_handle(external, EXTERNAL_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_HANDLE;
  if (!out || !desc || desc->flags || !inside(external, desc->offset, desc->size))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t lead = desc->offset % PAGE;
  char *at = file_map(NULL, external->fd, desc->offset - lead, desc->size + lead);
  struct block block = {.address = (uintptr_t)at + lead,
                        .bytes = desc->size,
                        .lead = lead,
                        .context = context,
                        .device = external->device,
                        .kind = CU_MEMORYTYPE_DEVICE,
                        .source = BLOCK_EXTERNAL,
                        .in_file = true};
  if (!at || !add_block(block)) {
    if (at)
      munmap(at, desc->size + lead);
    return CUDA_ERROR_MAP_FAILED;
  }
  *out = block.address;
  return CUDA_SUCCESS;
}

/* Make a mipmap of a part of the memory. It is not charged again. */
EXPORT CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *out, CUexternalMemory external,
                                                        const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc) {
  struct context *context;
  CUresult result = enter(&context);
  if (result || !is_handle(external, EXTERNAL_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_HANDLE;
  if (!out || !desc || desc->numLevels < 1 || desc->numLevels > MIPMAP_LEVELS ||
      !inside(external, desc->offset, mipmap_bytes(&desc->arrayDesc, desc->numLevels)))
    return CUDA_ERROR_INVALID_VALUE;
  return mipmap_new(context, &desc->arrayDesc, desc->numLevels, external->fd, desc->offset, out);
}
