/* Copies and sets: their cost on the device, their checks, and their many entry points. The model gets an item with
 * the cost. Its effect says which bytes the process itself moves once the model has passed the item. CUDA's
 * documentation tells what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/api/process.h"

#include <stdlib.h>
#include <string.h>

#define OVERHEAD_NS  1000  /* of any copy or set, on the device */
#define STAGED_BYTES 65536 /* pageable memory up to this size is copied aside, so that the call may return at once */

/* Whether the address is in memory of a device that the driver knows, managed memory included. The memory's block is
 * written to `block`. */
static bool on_device(const void *address, struct block *block) {
  return find_block((uintptr_t)address, block) && block->kind != CU_MEMORYTYPE_HOST;
}

/* Whether a copy can reach an address. It cannot if the address is reserved and nothing is mapped there, or if no
 * access to the memory was given yet. Plain host memory is reachable. */
static bool reachable(const void *address) {
  struct block block;
  return address && (find_block((uintptr_t)address, &block) ? !block.no_access : !is_reserved((uintptr_t)address));
}

/* How long a copy or a set takes: OVERHEAD_NS and the time for its bytes. */
uint64_t copy_ns(uint64_t bytes, uint64_t bytes_per_s) {
  return OVERHEAD_NS + (uint64_t)((double)bytes * 1e9 / (double)bytes_per_s);
}

/* The item for a copy or a set; the caller adds the name for the log. A set and a copy inside the device take device
 * time, and such a copy moves its bytes twice: it reads and writes them. A copy to or from the host runs on a copy
 * engine. */
struct sg_item copy_item(const struct context *context, const struct effect *effect) {
  const struct sg_shared *shared = process.state.shared;
  const struct sg_device *device = &shared->devices[context->device];
  uint64_t bytes = effect->width * effect->height * effect->depth;
  struct block block;
  if (effect->kind == EFFECT_SET)
    return (struct sg_item){.kind = SG_MEMSET,
                            .flags = SG_LOGGED,
                            .name = SG_NONE,
                            .demand = SG_ALL_SMS,
                            .duration_ns = copy_ns(bytes, device->bandwidth_bytes_per_s),
                            .watch = effect->value ? (uintptr_t)effect->dst : 0,
                            .watch_bytes = bytes};
  bool inward = on_device(effect->dst, &block), inside = inward && on_device(effect->src, &block);
  return (struct sg_item){
      .kind = inside ? SG_COPY_DEVICE : SG_COPY,
      .flags = (uint16_t)((inside ? SG_LOGGED : 0) | (inward ? SG_INWARD : 0)),
      .name = SG_NONE,
      .demand = inside ? SG_ALL_SMS : 0,
      .duration_ns = inside ? copy_ns(2 * bytes, device->bandwidth_bytes_per_s)
                            : copy_ns(bytes, (uint64_t)shared->model.profile.pcie_mb_s * 1000000),
  };
}

/* Issue one copy or set to a stream. `blocking`: wait for a copy between host and device. Memory that the driver does
 * not know (pageable memory) may be changed or read by the program as soon as the call returns. So a call with such
 * memory waits, too, or copies a small source aside first. */
CUresult transfer(CUstream handle, struct effect effect, bool blocking) {
  struct context *context;
  struct stream *stream;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (!result && blocking)
    result = unsafe_call();
  if (result)
    return result;
  size_t bytes = effect.width * effect.height * effect.depth;
  if (!bytes)
    return CUDA_SUCCESS;
  if (!reachable(effect.dst) || (effect.kind == EFFECT_COPY && !reachable(effect.src)))
    return CUDA_ERROR_INVALID_VALUE;
  struct sg_item item = copy_item(stream->context, &effect);
  sg_lock(&process.state);
  item.name = sg_intern(process.state.shared, effect.kind == EFFECT_SET ? "memset" : "memcpy");
  sg_unlock(&process.state);
  struct block block;
  bool source_pageable = effect.kind == EFFECT_COPY && !find_block((uintptr_t)effect.src, &block);
  bool target_pageable = !find_block((uintptr_t)effect.dst, &block);
  bool wait = item.kind == SG_COPY && (blocking || target_pageable);
  void *staging = NULL;
  if (!wait && source_pageable && !is_capturing(stream)) {
    staging = bytes <= STAGED_BYTES && effect.height * effect.depth == 1 ? malloc(bytes) : NULL;
    wait = !staging;
    if (staging) {
      effect.src = effect.staging = memcpy(staging, effect.src, bytes);
      item.flags |= SG_INLINE;
    }
  }
  uint64_t count;
  result = issue(stream, item, &effect, &count);
  if (result)
    free(staging);
  return result || !wait || !count ? result : wait_lane(stream->context, stream->lane, count);
}

/* A copy of contiguous bytes. */
struct effect flat(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return (struct effect){.kind = EFFECT_COPY,
                         .dst = (void *)(uintptr_t)dst,
                         .src = (const void *)(uintptr_t)src,
                         .width = bytes,
                         .height = 1,
                         .depth = 1};
}

/* A set of `height` rows of `width` elements to a value. `element`: the bytes of one element. */
static struct effect filled(CUdeviceptr dst, uint64_t value, uint32_t element, size_t width, size_t height,
                            size_t pitch) {
  return (struct effect){.kind = EFFECT_SET,
                         .element = element,
                         .value = value,
                         .dst = (void *)(uintptr_t)dst,
                         .width = width * element,
                         .height = height,
                         .depth = 1,
                         .dst_pitch = pitch};
}

#define HOST(p)       ((CUdeviceptr)(uintptr_t)(p))
#define PER_THREAD(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

/* A copying call: its blocking form, its stream form, and both for the per-thread default stream. `what` is the
 * effect. */
#define COPY(name, parameters, what)                                                                                   \
  EXPORT CUresult name parameters {                                                                                    \
    return transfer(NULL, what, /* blocking */ true);                                                                  \
  }                                                                                                                    \
  EXPORT CUresult name##_ptds parameters {                                                                             \
    return transfer(CU_STREAM_PER_THREAD, what, /* blocking */ true);                                                  \
  }
#define COPY_ASYNC(name, what, ...)                                                                                    \
  EXPORT CUresult name(__VA_ARGS__, CUstream stream) {                                                                 \
    return transfer(stream, what, /* blocking */ false);                                                               \
  }                                                                                                                    \
  EXPORT CUresult name##_ptsz(__VA_ARGS__, CUstream stream) {                                                          \
    return transfer(PER_THREAD(stream), what, /* blocking */ false);                                                   \
  }

COPY(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), flat(dst, src, bytes))
COPY(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t bytes), flat(dst, HOST(src), bytes))
COPY(cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t bytes), flat(HOST(dst), src, bytes))
COPY(cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), flat(dst, src, bytes))
COPY_ASYNC(cuMemcpyAsync, flat(dst, src, bytes), CUdeviceptr dst, CUdeviceptr src, size_t bytes)
COPY_ASYNC(cuMemcpyHtoDAsync_v2, flat(dst, HOST(src), bytes), CUdeviceptr dst, const void *src, size_t bytes)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, flat(HOST(dst), src, bytes), void *dst, CUdeviceptr src, size_t bytes)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, flat(dst, src, bytes), CUdeviceptr dst, CUdeviceptr src, size_t bytes)
COPY(cuMemcpyPeer, (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes),
     ((void)to, (void)from, flat(dst, src, bytes)))
COPY_ASYNC(cuMemcpyPeerAsync, ((void)to, (void)from, flat(dst, src, bytes)), CUdeviceptr dst, CUcontext to,
           CUdeviceptr src, CUcontext from, size_t bytes)

COPY(cuMemsetD8_v2, (CUdeviceptr dst, unsigned char value, size_t n), filled(dst, value, 1, n, 1, 0))
COPY(cuMemsetD16_v2, (CUdeviceptr dst, unsigned short value, size_t n), filled(dst, value, 2, n, 1, 0))
COPY(cuMemsetD32_v2, (CUdeviceptr dst, unsigned value, size_t n), filled(dst, value, 4, n, 1, 0))
COPY(cuMemsetD2D8_v2, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height),
     filled(dst, value, 1, width, height, pitch))
COPY(cuMemsetD2D16_v2, (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height),
     filled(dst, value, 2, width, height, pitch))
COPY(cuMemsetD2D32_v2, (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height),
     filled(dst, value, 4, width, height, pitch))
COPY_ASYNC(cuMemsetD8Async, filled(dst, value, 1, n, 1, 0), CUdeviceptr dst, unsigned char value, size_t n)
COPY_ASYNC(cuMemsetD16Async, filled(dst, value, 2, n, 1, 0), CUdeviceptr dst, unsigned short value, size_t n)
COPY_ASYNC(cuMemsetD32Async, filled(dst, value, 4, n, 1, 0), CUdeviceptr dst, unsigned value, size_t n)
COPY_ASYNC(cuMemsetD2D8Async, filled(dst, value, 1, width, height, pitch), CUdeviceptr dst, size_t pitch,
           unsigned char value, size_t width, size_t height)
COPY_ASYNC(cuMemsetD2D16Async, filled(dst, value, 2, width, height, pitch), CUdeviceptr dst, size_t pitch,
           unsigned short value, size_t width, size_t height)
COPY_ASYNC(cuMemsetD2D32Async, filled(dst, value, 4, width, height, pitch), CUdeviceptr dst, size_t pitch,
           unsigned value, size_t width, size_t height)

/* --- two and three dimensions ------------------------------------------------------------------------------------ */

/* One end of a copy of a box. */
struct end {
  uintptr_t address;   /* of the memory's first byte; the box's position is added later */
  size_t pitch, slice; /* bytes from a row to the next, and from a plane to the next */
};

/* Describe the end of a copy that is an array. `at`: where the box begins in it (x in bytes, y, z). False: there is no
 * such array, or the box does not lie inside it. */
static bool in_array(CUarray array, const size_t *at, const CUDA_MEMCPY3D *box, struct end *end) {
  struct extent extent;
  if (!find_array(array, &extent) || at[0] + box->WidthInBytes > extent.pitch || at[1] + box->Height > extent.height ||
      at[2] + box->Depth > extent.depth)
    return false;
  *end = (struct end){extent.address, extent.pitch, extent.pitch * extent.height};
  return true;
}

/* Read a 3D copy into an effect. An array has pitches of its own; for other memory the call tells them. */
CUresult boxed(const CUDA_MEMCPY3D *box, struct effect *effect) {
  if (!box)
    return CUDA_ERROR_INVALID_VALUE;
  const size_t from[] = {box->srcXInBytes, box->srcY, box->srcZ}, to[] = {box->dstXInBytes, box->dstY, box->dstZ};
  struct end src = {box->srcMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)box->srcHost : (uintptr_t)box->srcDevice,
                    box->srcPitch, box->srcPitch * box->srcHeight};
  struct end dst = {box->dstMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)box->dstHost : (uintptr_t)box->dstDevice,
                    box->dstPitch, box->dstPitch * box->dstHeight};
  if (box->srcMemoryType == CU_MEMORYTYPE_ARRAY && !in_array(box->srcArray, from, box, &src))
    return CUDA_ERROR_INVALID_VALUE;
  if (box->dstMemoryType == CU_MEMORYTYPE_ARRAY && !in_array(box->dstArray, to, box, &dst))
    return CUDA_ERROR_INVALID_VALUE;
  if (!src.address || !dst.address)
    return CUDA_ERROR_INVALID_VALUE;
  *effect = (struct effect){
      .kind = EFFECT_COPY,
      .src = (const void *)(src.address + from[2] * src.slice + from[1] * src.pitch + from[0]),
      .dst = (void *)(dst.address + to[2] * dst.slice + to[1] * dst.pitch + to[0]),
      .width = box->WidthInBytes,
      .height = box->Height,
      .depth = box->Depth,
      .src_pitch = src.pitch,
      .dst_pitch = dst.pitch,
      .src_slice = src.slice,
      .dst_slice = dst.slice,
  };
  return CUDA_SUCCESS;
}

/* The body of the 3D copies. */
static CUresult copy_box(const CUDA_MEMCPY3D *box, CUstream stream, bool blocking) {
  struct effect effect;
  CUresult result = boxed(box, &effect);
  return result ? result : transfer(stream, effect, blocking);
}

/* The body of the 2D copies: a box with a depth of 1. */
static CUresult copy_rectangle(const CUDA_MEMCPY2D *flat_box, CUstream stream, bool blocking) {
  if (!flat_box)
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D box = {
      .srcXInBytes = flat_box->srcXInBytes,
      .srcY = flat_box->srcY,
      .srcMemoryType = flat_box->srcMemoryType,
      .srcHost = flat_box->srcHost,
      .srcDevice = flat_box->srcDevice,
      .srcArray = flat_box->srcArray,
      .srcPitch = flat_box->srcPitch,
      .dstXInBytes = flat_box->dstXInBytes,
      .dstY = flat_box->dstY,
      .dstMemoryType = flat_box->dstMemoryType,
      .dstHost = flat_box->dstHost,
      .dstDevice = flat_box->dstDevice,
      .dstArray = flat_box->dstArray,
      .dstPitch = flat_box->dstPitch,
      .WidthInBytes = flat_box->WidthInBytes,
      .Height = flat_box->Height,
      .Depth = 1,
  };
  return copy_box(&box, stream, blocking);
}

/* The forms of a 2D or 3D copy: blocking and in a stream, each also for the per-thread default stream. */
#define BOX(name, type, function)                                                                                      \
  EXPORT CUresult name##_v2(const type *box) {                                                                         \
    return function(box, NULL, /* blocking */ true);                                                                   \
  }                                                                                                                    \
  EXPORT CUresult name##_v2_ptds(const type *box) {                                                                    \
    return function(box, CU_STREAM_PER_THREAD, true);                                                                  \
  }                                                                                                                    \
  EXPORT CUresult name##Async_v2(const type *box, CUstream stream) {                                                   \
    return function(box, stream, /* blocking */ false);                                                                \
  }                                                                                                                    \
  EXPORT CUresult name##Async_v2_ptsz(const type *box, CUstream stream) {                                              \
    return function(box, PER_THREAD(stream), false);                                                                   \
  }
BOX(cuMemcpy2D, CUDA_MEMCPY2D, copy_rectangle)
BOX(cuMemcpy3D, CUDA_MEMCPY3D, copy_box)
EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *box) {
  return copy_rectangle(box, NULL, true);
}
EXPORT CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *box) {
  return copy_rectangle(box, CU_STREAM_PER_THREAD, true);
}

/* A copy between devices names two contexts. They are not needed: the addresses alone tell the devices. */
EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D *box) {
  return copy_box(box, NULL, true);
}
EXPORT CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D *box) {
  return copy_box(box, CU_STREAM_PER_THREAD, true);
}
EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *box, CUstream stream) {
  return copy_box(box, stream, false);
}
EXPORT CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D *box, CUstream stream) {
  return copy_box(box, PER_THREAD(stream), false);
}
