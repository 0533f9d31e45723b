/*
 * Copies with attributes, alone and in batches. A batch as a whole keeps its stream's order; its copies have no order:
 * here they run one after the other. A batch has no form in a graph, and the legacy stream takes none.
 *
 * CUDA's documentation tells what the exported functions do; a comment at one tells only what is special here.
 */
#include "simgpu/memory/array.h"

#include <stdint.h>

#define PER_THREAD(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray array);

/* Issue one copy. `order` tells when its source may be read. If the source must be read during the call, the call waits
 * for a copy between host and device. */
static CUresult copy_one(CUstream stream, struct effect effect, int order) {
  if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
    return CUDA_ERROR_INVALID_VALUE;
  return transfer(stream, effect, order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
}

/* The bytes of an element of the arrays at the copy's ends; 1: neither end is an array. 0: their elements differ, or
 * there is no such array. */
static size_t element_of(const CUDA_MEMCPY3D_BATCH_OP *box) {
  size_t found = 0;
  const CUmemcpy3DOperand *operands[] = {&box->src, &box->dst};
  for (int n = 0; n < 2; n++) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    if (operands[n]->type != CU_MEMCPY_OPERAND_TYPE_ARRAY)
      continue;
    if (cuArray3DGetDescriptor_v2(&descriptor, operands[n]->op.array.array))
      return 0;
    size_t element = array_element(descriptor.Format, descriptor.NumChannels);
    if (found && found != element)
      return 0;
    found = element;
  }
  return found ? found : 1;
}

/* Issue one copy of a box. Its extent and offsets count elements of the arrays; without an array they count bytes. */
static CUresult boxed_copy(CUstream stream, const CUDA_MEMCPY3D_BATCH_OP *box) {
  size_t element = box ? element_of(box) : 0;
  if (!element)
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D copy = {
      .WidthInBytes = box->extent.width * element, .Height = box->extent.height, .Depth = box->extent.depth};
#define SIDE(side)                                                                                                     \
  if (box->side.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {                                                                \
    copy.side##MemoryType = CU_MEMORYTYPE_ARRAY;                                                                       \
    copy.side##Array = box->side.op.array.array;                                                                       \
    copy.side##XInBytes = box->side.op.array.offset.x * element;                                                       \
    copy.side##Y = box->side.op.array.offset.y;                                                                        \
    copy.side##Z = box->side.op.array.offset.z;                                                                        \
  } else if (box->side.type == CU_MEMCPY_OPERAND_TYPE_POINTER) {                                                       \
    copy.side##MemoryType = CU_MEMORYTYPE_DEVICE; /* or host memory: the address tells */                              \
    copy.side##Device = box->side.op.ptr.ptr;                                                                          \
    copy.side##Pitch = (box->side.op.ptr.rowLength ? box->side.op.ptr.rowLength : box->extent.width) * element;        \
    copy.side##Height = box->side.op.ptr.layerHeight ? box->side.op.ptr.layerHeight : box->extent.height;              \
  } else {                                                                                                             \
    return CUDA_ERROR_INVALID_VALUE;                                                                                   \
  }
  SIDE(src)
  SIDE(dst)
#undef SIDE
  struct effect effect;
  CUresult result = boxed(&copy, &effect);
  return result ? result : copy_one(stream, effect, box->srcAccessOrder);
}

/* Refuse a batch for the legacy stream or a capturing stream. The capture becomes invalid. */
static CUresult check_stream(CUstream handle) {
  struct context *context;
  struct stream *stream;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (!result && !stream->lane) /* the legacy stream */
    result = CUDA_ERROR_INVALID_VALUE;
  return result ? result : capture_sync(context, stream);
}

/* Issue `count` copies of contiguous bytes. There are `kinds` kinds of copies: from copy firsts[k] on they have
 * attributes[k]. *failed (`failed` may be NULL) becomes the index of the copy that failed, or SIZE_MAX. */
static CUresult flat_batch(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes, size_t count,
                           const CUmemcpyAttributes *attributes, const size_t *firsts, size_t kinds, size_t *failed,
                           CUstream stream) {
  size_t unheard; /* takes the answer for a caller that does not ask */
  failed = failed ? failed : &unheard;
  *failed = SIZE_MAX; /* no single copy is at fault */
  CUresult result = check_stream(stream);
  if (result)
    return result;
  if (!targets || !sources || !sizes || !count || !attributes || !firsts || !kinds || kinds > count || firsts[0])
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t kind = 1; kind < kinds; kind++)
    if (firsts[kind] <= firsts[kind - 1] || firsts[kind] >= count)
      return CUDA_ERROR_INVALID_VALUE;
  size_t kind = 0;
  for (size_t n = 0; n < count; n++) {
    kind += kind + 1 < kinds && firsts[kind + 1] == n; /* the next kind begins with this copy */
    result = copy_one(stream, flat(targets[n], sources[n], sizes[n]), attributes[kind].srcAccessOrder);
    if (result) {
      *failed = n;
      return result;
    }
  }
  return CUDA_SUCCESS;
}

/* Issue copies of boxes. *failed (may be NULL) becomes the index of the copy that failed, or SIZE_MAX. */
static CUresult box_batch(size_t count, const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t *failed, uint64_t flags,
                          CUstream stream) {
  size_t unheard;
  failed = failed ? failed : &unheard;
  *failed = SIZE_MAX;
  CUresult result = check_stream(stream);
  if (!result && (!count || !boxes || flags))
    result = CUDA_ERROR_INVALID_VALUE;
  for (size_t n = 0; !result && n < count; n++) {
    result = boxed_copy(stream, &boxes[n]);
    if (result)
      *failed = n;
  }
  return result;
}

/* A call, and its form for the per-thread default stream. */
#define FORMS(name, parameters, call)                                                                                  \
  EXPORT CUresult name parameters {                                                                                    \
    return call;                                                                                                       \
  }                                                                                                                    \
  EXPORT CUresult name##_ptsz parameters {                                                                             \
    stream = PER_THREAD(stream);                                                                                       \
    return call;                                                                                                       \
  }
#define FLAT                                                                                                           \
  const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes, size_t count,                           \
      const CUmemcpyAttributes *attributes, const size_t *firsts, size_t kinds
#define FLAT_NAMES targets, sources, sizes, count, attributes, firsts, kinds

FORMS(cuMemcpyBatchAsync, (FLAT, size_t *fail, CUstream stream), flat_batch(FLAT_NAMES, fail, stream))
FORMS(cuMemcpyBatchAsync_v2, (FLAT, CUstream stream), flat_batch(FLAT_NAMES, NULL, stream))
FORMS(cuMemcpy3DBatchAsync,
      (size_t count, const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t *fail, uint64_t flags, CUstream stream),
      box_batch(count, boxes, fail, flags, stream))
FORMS(cuMemcpy3DBatchAsync_v2, (size_t count, const CUDA_MEMCPY3D_BATCH_OP *boxes, uint64_t flags, CUstream stream),
      box_batch(count, boxes, NULL, flags, stream))
FORMS(cuMemcpyWithAttributesAsync,
      (CUdeviceptr target, CUdeviceptr source, size_t bytes, const CUmemcpyAttributes *attributes, CUstream stream),
      attributes ? copy_one(stream, flat(target, source, bytes), attributes->srcAccessOrder) : CUDA_ERROR_INVALID_VALUE)
FORMS(cuMemcpy3DWithAttributesAsync, (const CUDA_MEMCPY3D_BATCH_OP *box, uint64_t flags, CUstream stream),
      flags ? CUDA_ERROR_INVALID_VALUE : boxed_copy(stream, box))
