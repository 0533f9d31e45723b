#define _GNU_SOURCE
#include "process.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 512

/* All memory that the driver knows, by address; guarded by its own lock, which nests inside every other. */
static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static size_t block_count, block_room;

/* With map_lock: the first block above `address`. */
static size_t above(uintptr_t address) {
  size_t low = 0, high = block_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (blocks[middle].address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

bool find_block(uintptr_t address, struct block *block) {
  pthread_mutex_lock(&map_lock);
  size_t at = above(address);
  bool found = at && address < blocks[at - 1].address + blocks[at - 1].bytes;
  if (found)
    *block = blocks[at - 1];
  pthread_mutex_unlock(&map_lock);
  return found;
}

static bool add_block(struct block block) {
  pthread_mutex_lock(&map_lock);
  if (block_count == block_room) {
    size_t room = block_room ? 2 * block_room : 256;
    struct block *grown = realloc(blocks, room * sizeof *grown);
    if (grown) {
      blocks = grown;
      block_room = room;
    }
  }
  bool fits = block_count < block_room;
  if (fits) {
    size_t at = above(block.address);
    memmove(&blocks[at + 1], &blocks[at], (block_count - at) * sizeof block);
    block.id = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED);
    blocks[at] = block;
    block_count++;
  }
  pthread_mutex_unlock(&map_lock);
  return fits;
}

/* Remove the block that starts at `address`. */
static bool take_block(uintptr_t address, struct block *block) {
  pthread_mutex_lock(&map_lock);
  size_t at = above(address);
  bool found = at && blocks[at - 1].address == address;
  if (found) {
    *block = blocks[at - 1];
    memmove(&blocks[at - 1], &blocks[at], (block_count - at) * sizeof *block);
    block_count--;
  }
  pthread_mutex_unlock(&map_lock);
  return found;
}

/* The device's capacity first: it is shared with every other process. */
static CUresult charge(struct context *context, uint64_t bytes) {
  struct sg_shared *shared = process.state.shared;
  uint64_t total = shared->devices[context->device].memory_total_bytes;
  sg_lock_advanced(&process.state);
  if (sg_memory_used(shared, context->device) + bytes > total)
    sg_reap(&process.state);
  bool fits = bytes <= total && sg_memory_used(shared, context->device) + bytes <= total;
  if (fits)
    shared_of(context)->memory_bytes += bytes;
  sg_unlock(&process.state);
  return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void refund(struct context *context, uint64_t bytes) {
  if (context->slot == SG_NONE)
    return;
  sg_lock(&process.state);
  shared_of(context)->memory_bytes -= bytes;
  sg_unlock(&process.state);
}

/* Device memory is address space of this process: copies move bytes, untouched pages take no RAM. */
static CUresult allocate(struct context *context, size_t bytes, uint32_t kind, uint32_t flags, void **out) {
  if (!out || !bytes)
    return CUDA_ERROR_INVALID_VALUE;
  bool device = kind != MEMORY_HOST;
  CUresult result = device ? charge(context, bytes) : CUDA_SUCCESS;
  if (result)
    return result;
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct block block = {.address = (uintptr_t)at,
                        .bytes = bytes,
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

static void release(const struct block *block) {
  if (!block->registered)
    munmap((void *)block->address, block->bytes);
  if (block->context)
    refund(block->context, block->bytes);
}

void free_blocks_of(struct context *context) {
  struct block block;
  for (size_t n = 0;;) {
    pthread_mutex_lock(&map_lock);
    while (n < block_count && blocks[n].context != context)
      n++;
    uintptr_t address = n < block_count ? blocks[n].address : 0;
    pthread_mutex_unlock(&map_lock);
    if (!address)
      return;
    if (take_block(address, &block))
      release(&block);
  }
}

static CUresult enter_unsafe(struct context **context) {
  CUresult result = enter(context);
  return result ? result : unsafe_call();
}

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
  return allocate_device(out, bytes, MEMORY_DEVICE, 0);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
  return allocate_device(out, bytes, MEMORY_UNIFIED, flags);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  if (!pitch || (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  *pitch = (width + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return allocate_device(out, *pitch * height, MEMORY_DEVICE, 0);
}

/* As the real one, it waits for the device: work in flight may use the memory. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  struct context *context;
  struct block block;
  CUresult result = enter_unsafe(&context);
  if (result || !address)
    return result;
  if (!find_block(address, &block) || block.address != address || block.kind == MEMORY_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  if (block.context->slot != SG_NONE)
    result = wait_context(block.context);
  if (!result && take_block(address, &block))
    release(&block);
  return result;
}

/* Stream-ordered: the address is good at once; capacity comes back when the stream gets there, so a free waits. */
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream handle) {
  struct context *context;
  struct stream *stream;
  void *at;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (result)
    return result;
  if (is_capturing(stream))
    return not_supported("cuMemAllocAsync while capturing");
  result = out ? allocate(stream->context, bytes, MEMORY_DEVICE, 0, &at) : CUDA_ERROR_INVALID_VALUE;
  if (!result)
    *out = (uintptr_t)at;
  return result;
}

static void free_later(void *address) {
  struct block block;
  if (take_block((uintptr_t)address, &block))
    release(&block);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  struct context *context;
  struct stream *stream;
  struct block block;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (result)
    return result;
  if (!find_block(address, &block) || block.address != address || block.kind == MEMORY_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  struct effect effect = {.kind = EFFECT_CALL, .call = free_later, .data = (void *)(uintptr_t)address};
  return issue(stream, (struct sg_item){.kind = SG_WRITE}, &effect, NULL);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream) {
  return cuMemAllocAsync(out, bytes, stream ? stream : STREAM_PER_THREAD);
}
EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return cuMemFreeAsync(address, stream ? stream : STREAM_PER_THREAD);
}

/* --- host memory ------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  struct context *context;
  CUresult result = enter_unsafe(&context);
  return result ? result : flags & ~7u ? CUDA_ERROR_INVALID_VALUE : allocate(context, bytes, MEMORY_HOST, flags, out);
}
EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes) {
  return cuMemHostAlloc(out, bytes, 0);
}

EXPORT CUresult cuMemFreeHost(void *address) {
  struct context *context;
  struct block block;
  CUresult result = enter_unsafe(&context);
  if (result)
    return result;
  if (!find_block((uintptr_t)address, &block) || block.address != (uintptr_t)address || block.kind != MEMORY_HOST ||
      block.registered)
    return CUDA_ERROR_INVALID_VALUE;
  result = wait_context(context);
  if (!result && take_block((uintptr_t)address, &block))
    release(&block);
  return result;
}

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
                         .kind = MEMORY_HOST,
                         .flags = flags,
                         .registered = true};
  return add_block(block) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemHostUnregister(void *address) {
  struct context *context;
  struct block block;
  CUresult result = enter_unsafe(&context);
  if (result)
    return result;
  if (!find_block((uintptr_t)address, &block) || !block.registered || block.address != (uintptr_t)address)
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
  if (!find_block((uintptr_t)address, &block) || block.kind != MEMORY_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  *out = (uintptr_t)address;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *out, void *address) {
  struct block block;
  if (!out || !find_block((uintptr_t)address, &block) || block.kind != MEMORY_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  *out = block.flags;
  return CUDA_SUCCESS;
}

/* --- questions --------------------------------------------------------------------------------------------------- */

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

/* The calls of CUDA 2.0 take 32-bit sizes and addresses, which nothing here can honour. */
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
