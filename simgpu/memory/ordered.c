/* Stream-ordered memory: allocated and freed in the order of a stream. CUDA's documentation tells what the exported
 * functions do; a comment at one tells only what is special here. */
#include "simgpu/memory/pool.h"

/* The body of the calls that allocate in the order of a stream. `pool` may be NULL: then the device's current pool is
 * used. While the stream is captured, a node of the graph allocates instead. */
static CUresult allocate(CUdeviceptr *out, size_t bytes, struct pool *pool, CUstream handle) {
  struct context *context;
  struct stream *stream;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (!result)
    result = legacy_conflict(stream);
  if (result)
    return result;
  if (is_capturing(stream))
    return out && bytes ? capture_alloc(stream, bytes, out) : CUDA_ERROR_INVALID_VALUE;
  if (!bytes && out) {
    *out = 0;
    return CUDA_SUCCESS;
  }
  pool = pool ? pool : pool_current(stream->context->device);
  return pool ? pool_allocate(pool, bytes, stream, out) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The address is valid at once. The device's memory for it is the pool's, which keeps it until it is trimmed. */
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
  return allocate(out, bytes, NULL, stream);
}
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return is_handle(pool, POOL_HANDLE) ? allocate(out, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

/* Free linear memory. This is the effect of a free in a stream, so it runs once the stream has reached the free. */
static void free_later(void *address) {
  struct block block;
  if (take_block((uintptr_t)address, &block))
    release_block(&block);
}

/* Free memory of a pool in the order of a stream. The program can no longer name the block. The same stream may use the
 * memory again from here on, other streams once this stream reaches the free. */
static CUresult free_pooled(struct block *block, struct stream *stream) {
  if (!take_block(block->address, block))
    return CUDA_ERROR_INVALID_VALUE;
  struct pending *pending = pool_pend(block, stream);
  struct effect effect = {.kind = EFFECT_CALL, .call = pool_got_there, .data = pending};
  CUresult result = pending ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  if (!result)
    result = issue(stream, (struct sg_item){.kind = SG_WRITE}, &effect, NULL);
  if (result && pending)
    pool_got_there(pending); /* the context is lost: no work of its streams uses the memory any more */
  return result;
}

/* When the stream reaches the free, pool memory goes back to its pool, and linear memory is freed. In a capture a
 * node frees it instead. */
EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  struct context *context;
  struct stream *stream;
  struct block block;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (result)
    return result;
  if (!address)
    return CUDA_SUCCESS;
  bool known = find_block(address, &block) && block.address == address;
  if (!known || (block.source != BLOCK_POOL && (block.source != BLOCK_LINEAR || block.kind == CU_MEMORYTYPE_HOST)))
    return CUDA_ERROR_INVALID_VALUE;
  if (is_capturing(stream))
    return capture_free(stream, &block);
  if (block.graph)
    return graph_memory_free_async(block.graph, stream);
  if (block.source == BLOCK_POOL)
    return free_pooled(&block, stream);
  struct effect effect = {.kind = EFFECT_CALL, .call = free_later, .data = (void *)(uintptr_t)address};
  return issue(stream, (struct sg_item){.kind = SG_WRITE}, &effect, NULL);
}

#define PER_THREAD(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream) {
  return cuMemAllocAsync(out, bytes, PER_THREAD(stream));
}
EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return cuMemAllocFromPoolAsync(out, bytes, pool, PER_THREAD(stream));
}
EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return cuMemFreeAsync(address, PER_THREAD(stream));
}
