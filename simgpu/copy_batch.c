/*
 * Copies with attributes, alone and in batches. A batch is in its stream's order as a whole, its copies in none: here
 * they run one after the other. It has no form in a graph, and the legacy stream takes none.
 */
#include "array.h"

#include <stdint.h>

#define PER_THREAD(s) ((s) ? (s) : STREAM_PER_THREAD)

enum { ORDER_STREAM = 1, ORDER_DURING_CALL = 2, ORDER_ANY = 3 }; /* when a copy reads its source */
enum { OPERAND_POINTER = 1, OPERAND_ARRAY = 2 };

typedef struct {
  int order;
  int hints[4]; /* where managed memory is */
  unsigned flags;
} attributes_t;

typedef struct {
  unsigned type;
  union {
    struct {
      CUdeviceptr address;
      size_t row, layer; /* in elements; 0: without gaps */
      int hint[2];
    } pointer;
    struct {
      CUarray array;
      size_t x, y, z; /* in elements */
    } array;
  } of;
} operand_t;

typedef struct {
  operand_t src, dst;
  size_t width, height, depth; /* in elements; in bytes where neither is an array */
  int order;
  unsigned flags;
} box_t;
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray array);
_Static_assert(sizeof(attributes_t) == 24 && sizeof(operand_t) == 40 && sizeof(box_t) == 112, "CUDA 12.8 ABI");

/* What was read when the call returns needs waiting for, where the driver has not copied it aside. */
static CUresult one(CUstream stream, struct effect effect, int order) {
  if (order < ORDER_STREAM || order > ORDER_ANY)
    return CUDA_ERROR_INVALID_VALUE;
  return transfer(stream, effect, order == ORDER_DURING_CALL);
}

/* Bytes of an element, 0: they are not the same, or there is no such array. */
static size_t element_of(const box_t *box) {
  size_t found = 0;
  const operand_t *operands[] = {&box->src, &box->dst};
  for (int n = 0; n < 2; n++) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    if (operands[n]->type != OPERAND_ARRAY)
      continue;
    if (cuArray3DGetDescriptor_v2(&descriptor, operands[n]->of.array.array))
      return 0;
    size_t element = array_element(descriptor.Format, descriptor.NumChannels);
    if (found && found != element)
      return 0;
    found = element;
  }
  return found ? found : 1;
}

static CUresult boxed_copy(CUstream stream, const box_t *box) {
  size_t element = box ? element_of(box) : 0;
  if (!element)
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D copy = {.WidthInBytes = box->width * element, .Height = box->height, .Depth = box->depth};
#define SIDE(side)                                                                                                     \
  if (box->side.type == OPERAND_ARRAY) {                                                                               \
    copy.side##MemoryType = MEMORY_ARRAY;                                                                              \
    copy.side##Array = box->side.of.array.array;                                                                       \
    copy.side##XInBytes = box->side.of.array.x * element;                                                              \
    copy.side##Y = box->side.of.array.y;                                                                               \
    copy.side##Z = box->side.of.array.z;                                                                               \
  } else if (box->side.type == OPERAND_POINTER) {                                                                      \
    copy.side##MemoryType = MEMORY_DEVICE; /* or the host's: an address says which */                                  \
    copy.side##Device = box->side.of.pointer.address;                                                                  \
    copy.side##Pitch = (box->side.of.pointer.row ? box->side.of.pointer.row : box->width) * element;                   \
    copy.side##Height = box->side.of.pointer.layer ? box->side.of.pointer.layer : box->height;                         \
  } else {                                                                                                             \
    return CUDA_ERROR_INVALID_VALUE;                                                                                   \
  }
  SIDE(src)
  SIDE(dst)
#undef SIDE
  struct effect effect;
  CUresult result = boxed(&copy, &effect);
  return result ? result : one(stream, effect, box->order);
}

/* Where a batch may go; a capture that it is tried in is lost. */
static CUresult check_stream(CUstream handle) {
  struct context *context;
  struct stream *stream;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (!result && !stream->lane)
    result = CUDA_ERROR_INVALID_VALUE;
  return result ? result : capture_sync(context, stream);
}

static CUresult flat_batch(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes, size_t count,
                           const attributes_t *attributes, const size_t *firsts, size_t kinds, size_t *failed,
                           CUstream stream) {
  size_t unheard;
  failed = failed ? failed : &unheard;
  *failed = SIZE_MAX; /* no copy's fault */
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
    kind += kind + 1 < kinds && firsts[kind + 1] == n;
    result = one(stream, flat(targets[n], sources[n], sizes[n]), attributes[kind].order);
    if (result) {
      *failed = n;
      return result;
    }
  }
  return CUDA_SUCCESS;
}

static CUresult box_batch(size_t count, const box_t *boxes, size_t *failed, uint64_t flags, CUstream stream) {
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
      const attributes_t *attributes, const size_t *firsts, size_t kinds
#define FLAT_NAMES targets, sources, sizes, count, attributes, firsts, kinds

FORMS(cuMemcpyBatchAsync, (FLAT, size_t *fail, CUstream stream), flat_batch(FLAT_NAMES, fail, stream))
FORMS(cuMemcpyBatchAsync_v2, (FLAT, CUstream stream), flat_batch(FLAT_NAMES, NULL, stream))
FORMS(cuMemcpy3DBatchAsync, (size_t count, const box_t *boxes, size_t *fail, uint64_t flags, CUstream stream),
      box_batch(count, boxes, fail, flags, stream))
FORMS(cuMemcpy3DBatchAsync_v2, (size_t count, const box_t *boxes, uint64_t flags, CUstream stream),
      box_batch(count, boxes, NULL, flags, stream))
FORMS(cuMemcpyWithAttributesAsync,
      (CUdeviceptr target, CUdeviceptr source, size_t bytes, const attributes_t *attributes, CUstream stream),
      attributes ? one(stream, flat(target, source, bytes), attributes->order) : CUDA_ERROR_INVALID_VALUE)
FORMS(cuMemcpy3DWithAttributesAsync, (const box_t *box, uint64_t flags, CUstream stream),
      flags ? CUDA_ERROR_INVALID_VALUE : boxed_copy(stream, box))
