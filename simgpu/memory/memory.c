/* Linear, pitched, managed and host memory, and the queries about it. CUDA's documentation tells what the exported
 * functions do; a comment at one tells only what is special here. */
#define _GNU_SOURCE
#include "simgpu/api/process.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT      512
#define HOST_ALL_FLAGS 7u /* of cuMemHostAlloc: portable, mapped for the device, write-combined */

/* Allocate memory of a kind (CU_MEMORYTYPE_...). All but host memory is charged to the context. Device memory, too, is
 * address space of this process: copies move bytes, and untouched pages take no RAM. */
static CUresult allocate(struct context *context, size_t bytes, uint32_t kind, uint32_t flags, void **out) {
  if (!out || !bytes)
    return CUDA_ERROR_INVALID_VALUE;
  bool device = kind != CU_MEMORYTYPE_HOST;
  CUresult result = device ? charge(context, bytes) : CUDA_SUCCESS;
  if (result)
    return result;
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct block block = {.address = (uintptr_t)at,
                        .bytes = bytes,
                        .charged = device ? bytes : 0,
                        .context = device ? context : NULL,
                        .device = context->device,
                        .kind = kind,
                        .flags = flags};
  if (at == MAP_FAILED || !add_block(block)) {
    if (at != MAP_FAILED)
      munmap(at, bytes);
    if (device)
      refund(context, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = at;
  return CUDA_SUCCESS;
}

/* Free the memory of a block that was taken off the map, and refund its charge. Registered memory stays, as it is the
 * program's own. */
void release_block(const struct block *block) {
  if (block->source == BLOCK_POOL) {
    pool_release(block);
    return;
  }
  if (block->source != BLOCK_REGISTERED)
    munmap((void *)(block->address - block->lead), block->lead + block->bytes);
  if (block->in_file && block->source == BLOCK_LINEAR)
    file_forget(block->fd, block->offset, block->bytes);
  if (block->charged)
    refund(block->context, block->charged);
}

/* Free all blocks of a context, which has ended. */
void free_blocks_of(struct context *context) {
  struct block block = {0};
  while (next_block_of(context, block.address, &block))
    if (take_block(block.address, &block))
      release_block(&block);
}

/* Begin a call that may synchronise. If an open capture forbids such calls, it is invalidated, and the call is refused.
 */
static CUresult enter_unsafe(struct context **context) {
  CUresult result = enter(context);
  return result ? result : unsafe_call();
}

/* The body of the calls that allocate device or managed memory, in the current context. */
static CUresult allocate_device(CUdeviceptr *out, size_t bytes, uint32_t kind, uint32_t flags) {
  struct context *context;
  void *at;
  CUresult result = enter_unsafe(&context);
  if (!result)
    result = out ? allocate(context, bytes, kind, flags, &at) : CUDA_ERROR_INVALID_VALUE;
  if (!result)
    *out = (uintptr_t)at;
  return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  return allocate_device(out, bytes, CU_MEMORYTYPE_DEVICE, 0);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
  return allocate_device(out, bytes, CU_MEMORYTYPE_UNIFIED, flags);
}

/* The pitch is the width, rounded up to ALIGNMENT. */
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  if (!pitch || (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  *pitch = (width + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return allocate_device(out, *pitch * height, CU_MEMORYTYPE_DEVICE, 0);
}

/* Whether cuMemFree frees the block: not host memory, and not memory that another call frees. */
static bool is_freed_by_address(const struct block *block) {
  bool plain = block->source == BLOCK_LINEAR || block->source == BLOCK_EXTERNAL;
  return block->source == BLOCK_POOL || (plain && block->kind != CU_MEMORYTYPE_HOST);
}

/* Like the real driver it waits for the device: work in flight may use the memory. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  struct context *context;
  struct block block;
  CUresult result = enter_unsafe(&context);
  if (result || !address)
    return result;
  if (!find_block(address, &block) || block.address != address || !is_freed_by_address(&block))
    return CUDA_ERROR_INVALID_VALUE;
  if (block.graph)
    return graph_memory_free(block.graph, context);
  struct context *used_in = block.context ? block.context : context;
  if (used_in->slot != SG_NONE)
    result = wait_context(used_in);
  if (!result && take_block(address, &block))
    release_block(&block);
  return result;
}

/* --- host memory ------------------------------------------------------------------------------------------------- */

/* Pinned memory is memory of the process with a block: no device counts it. */
EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  struct context *context;
  CUresult result = enter_unsafe(&context);
  return result                    ? result
         : flags & ~HOST_ALL_FLAGS ? CUDA_ERROR_INVALID_VALUE
                                   : allocate(context, bytes, CU_MEMORYTYPE_HOST, flags, out);
}
EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes) {
  return cuMemHostAlloc(out, bytes, 0);
}

/* Wait for the work of the current context, which may use the memory, then free it. */
EXPORT CUresult cuMemFreeHost(void *address) {
  struct context *context;
  struct block block;
  CUresult result = enter_unsafe(&context);
  if (result)
    return result;
  if (!find_block((uintptr_t)address, &block) || block.address != (uintptr_t)address ||
      block.kind != CU_MEMORYTYPE_HOST || block.source != BLOCK_LINEAR)
    return CUDA_ERROR_INVALID_VALUE;
  result = wait_context(context);
  if (!result && take_block((uintptr_t)address, &block))
    release_block(&block);
  return result;
}

/* Only a block is added, which makes the memory pinned memory. Its bytes stay the program's. */
EXPORT CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
  struct context *context;
  struct block block;
  CUresult result = enter_unsafe(&context);
  if (result || !address || !bytes)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (find_block((uintptr_t)address, &block))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  block = (struct block){.address = (uintptr_t)address,
                         .bytes = bytes,
                         .device = context->device,
                         .kind = CU_MEMORYTYPE_HOST,
                         .flags = flags,
                         .source = BLOCK_REGISTERED};
  return add_block(block) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemHostUnregister(void *address) {
  struct context *context;
  struct block block;
  CUresult result = enter_unsafe(&context);
  if (result)
    return result;
  if (!find_block((uintptr_t)address, &block) || block.source != BLOCK_REGISTERED ||
      block.address != (uintptr_t)address)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  take_block((uintptr_t)address, &block);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned flags) {
  struct context *context;
  struct block block;
  CUresult result = enter(&context);
  if (result || !out || flags)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (!find_block((uintptr_t)address, &block) || block.kind != CU_MEMORYTYPE_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  *out = (uintptr_t)address;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *out, void *address) {
  struct block block;
  if (!out || !find_block((uintptr_t)address, &block) || block.kind != CU_MEMORYTYPE_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  *out = block.flags;
  return CUDA_SUCCESS;
}

/* --- questions --------------------------------------------------------------------------------------------------- */

/* Memory of dead processes counts as free. */
EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  struct context *context;
  CUresult result = enter(&context);
  if (result || !free_bytes || !total_bytes)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  sg_lock_advanced(&process.state);
  sg_reap(&process.state);
  *total_bytes = process.state.shared->devices[context->device].memory_total_bytes;
  *free_bytes = *total_bytes - sg_memory_used(process.state.shared, context->device);
  sg_unlock(&process.state);
  return CUDA_SUCCESS;
}

/* The calls of CUDA 2.0 take 32-bit sizes and addresses, which a 64-bit process cannot use. */
EXPORT CUresult cuMemAlloc(unsigned *out, unsigned bytes) {
  (void)out, (void)bytes;
  return not_supported("cuMemAlloc of CUDA 2");
}
EXPORT CUresult cuMemFree(unsigned address) {
  (void)address;
  return not_supported("cuMemFree of CUDA 2");
}
EXPORT CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes) {
  (void)free_bytes, (void)total_bytes;
  return not_supported("cuMemGetInfo of CUDA 2");
}
