/*
 * Wrappers of copies. Copies from device memory to device memory run on the device like a memset, and pass the gate.
 * Copies from or to host memory are done by copy engines: they go to the driver untouched, and are counted. If a
 * function serves both, the addresses that it is given decide.
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h). Names with _ptsz and _ptds: stream 0 is the calling thread's own.
 */
#include "hook/calls/gated.h"
#include "hook/interpose/driver.h"

/* Copies within device memory: those of about the same size are one unit. `per_thread`: stream 0 is the calling
 * thread's own. */
#define COPY(name, address, size, per_thread)                                                                          \
  SP_WRAPPER(name, (address target, address source, size bytes), (target, source, bytes)) {                            \
    GATED(NULL, per_thread, KEY_OF(bytes), real(target, source, bytes));                                               \
  }
COPY(cuMemcpyDtoD, CUdeviceptr_v1, unsigned int, false)
COPY(cuMemcpyDtoD_v2, CUdeviceptr, size_t, false)
COPY(cuMemcpyDtoD_v2_ptds, CUdeviceptr, size_t, true)

#define COPY_ASYNC(name, address, size, per_thread)                                                                    \
  SP_WRAPPER(name, (address target, address source, size bytes, CUstream stream), (target, source, bytes, stream)) {   \
    GATED(stream, per_thread, KEY_OF(bytes), real(target, source, bytes, stream));                                     \
  }
COPY_ASYNC(cuMemcpyDtoDAsync, CUdeviceptr_v1, unsigned int, false)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, size_t, false)
COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, size_t, true)

/* Arrays are device memory, at whatever offset a copy begins. */
#define ARRAY_COPIES(variant, address, size, per_thread)                                                               \
  SP_WRAPPER(cuMemcpyAtoA##variant, (CUarray target, size to, CUarray source, size from, size bytes),                  \
             (target, to, source, from, bytes)) {                                                                      \
    GATED(NULL, per_thread, KEY_OF(bytes), real(target, to, source, from, bytes));                                     \
  }                                                                                                                    \
  SP_WRAPPER(cuMemcpyDtoA##variant, (CUarray target, size to, address source, size bytes),                             \
             (target, to, source, bytes)) {                                                                            \
    GATED(NULL, per_thread, KEY_OF(bytes), real(target, to, source, bytes));                                           \
  }                                                                                                                    \
  SP_WRAPPER(cuMemcpyAtoD##variant, (address target, CUarray source, size from, size bytes),                           \
             (target, source, from, bytes)) {                                                                          \
    GATED(NULL, per_thread, KEY_OF(bytes), real(target, source, from, bytes));                                         \
  }
ARRAY_COPIES(, CUdeviceptr_v1, unsigned int, false)
ARRAY_COPIES(_v2, CUdeviceptr, size_t, false)
ARRAY_COPIES(_v2_ptds, CUdeviceptr, size_t, true)

/* Is memory of this kind (CU_MEMORYTYPE_*) device memory? The kind UNIFIED does not tell: then the driver is asked
 * about the address, which is allowed even while a stream is capturing. */
static bool on_device(unsigned int memory_type, CUdeviceptr address) {
  const struct sp_driver *driver = sp_driver();
  if (memory_type == CU_MEMORYTYPE_UNIFIED && driver->cuPointerGetAttribute != NULL &&
      driver->cuPointerGetAttribute(&memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS) {
    return false; /* host memory that the driver does not know */
  }
  return memory_type == CU_MEMORYTYPE_DEVICE || memory_type == CU_MEMORYTYPE_ARRAY;
}

/* What a call copies. `inside`: at least one of its copies is within device memory, so the call is a launch. Else it
 * has the bytes and the number of its copies between host and device. */
struct haul {
  bool inside;
  uint64_t bytes[2], count[2]; /* by enum sp_way */
};

/* Add `count` copies, of `bytes` together, to the haul. `to_device`, `from_device`: is that end device memory? Copies
 * within device memory only set `inside`; those from host to host add nothing. */
static void add_copies(struct haul *haul, bool to_device, bool from_device, uint64_t bytes, uint64_t count) {
  if (to_device != from_device) {
    enum sp_way way = to_device ? SP_TO_DEVICE : SP_TO_HOST;
    haul->bytes[way] += bytes;
    haul->count[way] += count;
  }
  haul->inside |= to_device && from_device;
}

/* The haul of one copy of `bytes`; the parameters are those of add_copies. */
static struct haul haul_of_one(bool to_device, bool from_device, uint64_t bytes) {
  struct haul haul = {0};
  add_copies(&haul, to_device, from_device, bytes, 1);
  return haul;
}

/* The body of a wrapper that may copy in any direction. `what`, an expression, is the haul of the call: if it is
 * inside, `call` passes the gate, else it is made and counted. Finding the haul out costs time, so it is evaluated only
 * if the process is in a share. Returns from the wrapper. */
#define GATED_IF_INSIDE(what, stream, per_thread, key, call)                                                           \
  do {                                                                                                                 \
    if (!sp_gate_attached()) {                                                                                         \
      return call;                                                                                                     \
    }                                                                                                                  \
    const struct haul haul = (what);                                                                                   \
    if (!haul.inside) {                                                                                                \
      CUresult result;                                                                                                 \
      sp_outermost_begin();                                                                                            \
      sp_gate_awaiting((stream), (per_thread), SP_AWAITS_HOST);                                                        \
      result = (call);                                                                                                 \
      sp_outermost_end();                                                                                              \
      for (enum sp_way way = SP_TO_DEVICE; result == CUDA_SUCCESS && way <= SP_TO_HOST; way++) {                       \
        sp_copied((stream), (per_thread), way, haul.bytes[way], haul.count[way]);                                      \
      }                                                                                                                \
      return result;                                                                                                   \
    }                                                                                                                  \
    GATED(stream, per_thread, key, call);                                                                              \
  } while (0)

/* The haul of a copy between two addresses. */
#define FLAT_HAUL haul_of_one(on_device(CU_MEMORYTYPE_UNIFIED, target), on_device(CU_MEMORYTYPE_UNIFIED, source), bytes)

#define UNIFIED(name, per_thread)                                                                                      \
  SP_WRAPPER(name, (CUdeviceptr target, CUdeviceptr source, size_t bytes), (target, source, bytes)) {                  \
    GATED_IF_INSIDE(FLAT_HAUL, NULL, per_thread, KEY_OF(bytes), real(target, source, bytes));                          \
  }
UNIFIED(cuMemcpy, false)
UNIFIED(cuMemcpy_ptds, true)

#define UNIFIED_ASYNC(name, per_thread)                                                                                \
  SP_WRAPPER(name, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream),                            \
             (target, source, bytes, stream)) {                                                                        \
    GATED_IF_INSIDE(FLAT_HAUL, stream, per_thread, KEY_OF(bytes), real(target, source, bytes, stream));                \
  }
UNIFIED_ASYNC(cuMemcpyAsync, false)
UNIFIED_ASYNC(cuMemcpyAsync_ptsz, true)

/* Copies between devices are metered on the current device: the copy is made in its stream. */
#define PEER(name, per_thread)                                                                                         \
  SP_WRAPPER(name, (CUdeviceptr target, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes),               \
             (target, to, source, from, bytes)) {                                                                      \
    GATED(NULL, per_thread, KEY_OF(bytes), real(target, to, source, from, bytes));                                     \
  }
PEER(cuMemcpyPeer, false)
PEER(cuMemcpyPeer_ptds, true)

#define PEER_ASYNC(name, per_thread)                                                                                   \
  SP_WRAPPER(name,                                                                                                     \
             (CUdeviceptr target, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes, CUstream stream),    \
             (target, to, source, from, bytes, stream)) {                                                              \
    GATED(stream, per_thread, KEY_OF(bytes), real(target, to, source, from, bytes, stream));                           \
  }
PEER_ASYNC(cuMemcpyPeerAsync, false)
PEER_ASYNC(cuMemcpyPeerAsync_ptsz, true)

/* The haul of a copy of a rectangle or a box. No box is an error of the program, which the driver returns. */
#define BOX_HAUL(bytes)                                                                                                \
  (box == NULL ? (struct haul){0}                                                                                      \
               : haul_of_one(on_device(box->dstMemoryType, box->dstDevice),                                            \
                             on_device(box->srcMemoryType, box->srcDevice), bytes))
#define AREA   ((uint64_t)box->WidthInBytes * box->Height)
#define VOLUME (AREA * box->Depth)

#define BOX(name, type, bytes, per_thread)                                                                             \
  SP_WRAPPER(name, (const type *box), (box)) {                                                                         \
    GATED_IF_INSIDE(BOX_HAUL(bytes), NULL, per_thread, KEY_OF(bytes), real(box));                                      \
  }
#define BOX_ASYNC(name, type, bytes, per_thread)                                                                       \
  SP_WRAPPER(name, (const type *box, CUstream stream), (box, stream)) {                                                \
    GATED_IF_INSIDE(BOX_HAUL(bytes), stream, per_thread, KEY_OF(bytes), real(box, stream));                            \
  }
#define BOX_FAMILY(name, type, bytes)                                                                                  \
  BOX(name, type##_v1, bytes, false)                                                                                   \
  BOX(name##_v2, type, bytes, false)                                                                                   \
  BOX(name##_v2_ptds, type, bytes, true)
#define BOX_ASYNC_FAMILY(name, type, bytes)                                                                            \
  BOX_ASYNC(name, type##_v1, bytes, false)                                                                             \
  BOX_ASYNC(name##_v2, type, bytes, false)                                                                             \
  BOX_ASYNC(name##_v2_ptsz, type, bytes, true)
BOX_FAMILY(cuMemcpy2D, CUDA_MEMCPY2D, AREA)
BOX_FAMILY(cuMemcpy2DUnaligned, CUDA_MEMCPY2D, AREA)
BOX_ASYNC_FAMILY(cuMemcpy2DAsync, CUDA_MEMCPY2D, AREA)
BOX_FAMILY(cuMemcpy3D, CUDA_MEMCPY3D, VOLUME)
BOX_ASYNC_FAMILY(cuMemcpy3DAsync, CUDA_MEMCPY3D, VOLUME)
BOX(cuMemcpy3DPeer, CUDA_MEMCPY3D, VOLUME, false)
BOX(cuMemcpy3DPeer_ptds, CUDA_MEMCPY3D, VOLUME, true)
BOX_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D, VOLUME, false)
BOX_ASYNC(cuMemcpy3DPeerAsync_ptsz, CUDA_MEMCPY3D, VOLUME, true)

#define WITH_ATTRIBUTES(name, per_thread)                                                                              \
  SP_WRAPPER(name, (CUdeviceptr target, CUdeviceptr source, size_t bytes, void *attributes, CUstream stream),          \
             (target, source, bytes, attributes, stream)) {                                                            \
    GATED_IF_INSIDE(FLAT_HAUL, stream, per_thread, KEY_OF(bytes), real(target, source, bytes, attributes, stream));    \
  }
WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync, false)
WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync_ptsz, true)

/*
 * A batch passes the gate once, as one unit, if any of its copies is within a device. There may be thousands of copies,
 * and usually they are alike (the blocks of a cache, for example): so only some are examined, evenly spread.
 */
enum { ASKED_OF_A_BATCH = 32 };
#define STRIDE(count) ((count) / ASKED_OF_A_BATCH + 1)

/* The sum of `count` sizes in bytes; `sizes` NULL: 0. */
static uint64_t flat_bytes(const size_t *sizes, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; sizes != NULL && i < count; i++) {
    bytes += sizes[i];
  }
  return bytes;
}

/* How many of a batch's `count` copies the examined copy, with the index `at`, stands for: itself and those up to the
 * next examined one, or up to the end. */
static size_t stands_for(size_t at, size_t count) {
  return count - at < STRIDE(count) ? count - at : STRIDE(count);
}

/* The haul of a batch of `count` copies between addresses. Each examined copy also stands for those behind it. A copy
 * within device memory ends the search: it makes the whole batch a launch. */
static struct haul flat_haul(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes,
                             size_t count) {
  struct haul haul = {0};
  for (size_t i = 0; targets != NULL && sources != NULL && i < count && !haul.inside; i += STRIDE(count)) {
    bool to_device = on_device(CU_MEMORYTYPE_UNIFIED, targets[i]);
    bool from_device = on_device(CU_MEMORYTYPE_UNIFIED, sources[i]);
    add_copies(&haul, to_device, from_device, flat_bytes(sizes ? sizes + i : NULL, stands_for(i, count)),
               stands_for(i, count));
  }
  return haul;
}

#define FLAT_BATCH(name, per_thread)                                                                                   \
  SP_WRAPPER(name,                                                                                                     \
             (CUdeviceptr * targets, CUdeviceptr * sources, size_t *sizes, size_t count, void *attributes,             \
              size_t *indices, size_t attribute_count, CUstream stream),                                               \
             (targets, sources, sizes, count, attributes, indices, attribute_count, stream)) {                         \
    GATED_IF_INSIDE(flat_haul(targets, sources, sizes, count), stream, per_thread, KEY_OF(flat_bytes(sizes, count)),   \
                    real(targets, sources, sizes, count, attributes, indices, attribute_count, stream));               \
  }
#define FLAT_BATCH_12(name, per_thread)                                                                                \
  SP_WRAPPER(name,                                                                                                     \
             (CUdeviceptr * targets, CUdeviceptr * sources, size_t *sizes, size_t count, void *attributes,             \
              size_t *indices, size_t attribute_count, size_t *failed, CUstream stream),                               \
             (targets, sources, sizes, count, attributes, indices, attribute_count, failed, stream)) {                 \
    GATED_IF_INSIDE(flat_haul(targets, sources, sizes, count), stream, per_thread, KEY_OF(flat_bytes(sizes, count)),   \
                    real(targets, sources, sizes, count, attributes, indices, attribute_count, failed, stream));       \
  }
FLAT_BATCH_12(cuMemcpyBatchAsync, false)
FLAT_BATCH_12(cuMemcpyBatchAsync_ptsz, true)
FLAT_BATCH(cuMemcpyBatchAsync_v2, false)
FLAT_BATCH(cuMemcpyBatchAsync_v2_ptsz, true)

/* Is this end of a copy of boxes device memory? */
static bool operand_on_device(const CUmemcpy3DOperand *operand) {
  return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ||
         (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER && on_device(CU_MEMORYTYPE_UNIFIED, operand->op.ptr.ptr));
}

/* The size of `count` copies of boxes together, in bytes. With an array it is in elements, because the call does not
 * tell their size; for the class of sizes that is good enough. */
static uint64_t boxes_bytes(const CUDA_MEMCPY3D_BATCH_OP *copies, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += (uint64_t)copies[i].extent.width * copies[i].extent.height * copies[i].extent.depth;
  }
  return bytes;
}

/* The haul of a batch of `count` copies of boxes, found as in flat_haul. */
static struct haul boxes_haul(const CUDA_MEMCPY3D_BATCH_OP *copies, size_t count) {
  struct haul haul = {0};
  for (size_t i = 0; copies != NULL && i < count && !haul.inside; i += STRIDE(count)) {
    bool to_device = operand_on_device(&copies[i].dst), from_device = operand_on_device(&copies[i].src);
    add_copies(&haul, to_device, from_device, boxes_bytes(copies + i, stands_for(i, count)), stands_for(i, count));
  }
  return haul;
}

#define BOXES(name, per_thread)                                                                                        \
  SP_WRAPPER(name, (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),          \
             (count, copies, flags, stream)) {                                                                         \
    GATED_IF_INSIDE(boxes_haul(copies, count), stream, per_thread, KEY_OF(boxes_bytes(copies, count)),                 \
                    real(count, copies, flags, stream));                                                               \
  }
#define BOXES_12(name, per_thread)                                                                                     \
  SP_WRAPPER(                                                                                                          \
      name, (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags, CUstream stream), \
      (count, copies, failed, flags, stream)) {                                                                        \
    GATED_IF_INSIDE(boxes_haul(copies, count), stream, per_thread, KEY_OF(boxes_bytes(copies, count)),                 \
                    real(count, copies, failed, flags, stream));                                                       \
  }
#define BOX_WITH_ATTRIBUTES(name, per_thread)                                                                          \
  SP_WRAPPER(name, (CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream),                         \
             (copy, flags, stream)) {                                                                                  \
    GATED_IF_INSIDE(boxes_haul(copy, 1), stream, per_thread, KEY_OF(boxes_bytes(copy, 1)), real(copy, flags, stream)); \
  }
BOXES_12(cuMemcpy3DBatchAsync, false)
BOXES_12(cuMemcpy3DBatchAsync_ptsz, true)
BOXES(cuMemcpy3DBatchAsync_v2, false)
BOXES(cuMemcpy3DBatchAsync_v2_ptsz, true)
BOX_WITH_ATTRIBUTES(cuMemcpy3DWithAttributesAsync, false)
BOX_WITH_ATTRIBUTES(cuMemcpy3DWithAttributesAsync_ptsz, true)

/* Is this end of a copy over a fabric device memory? A logical endpoint is: it is memory of another device. */
static bool end_on_device(const CUfabricCpyOperand *end) {
  return end->type == CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT ||
         (end->type == CU_FABRIC_COPY_OPERAND_TYPE_POINTER && on_device(CU_MEMORYTYPE_UNIFIED, end->op.ptr.ptr));
}

/* The bytes of `count` copies over a fabric together. */
static uint64_t fabric_bytes(const CUDA_FABRIC_COPY_BATCH_OP *copies, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += copies[i].size;
  }
  return bytes;
}

/* The haul of a batch of `count` copies over a fabric, found as in flat_haul. */
static struct haul fabric_haul(const CUDA_FABRIC_COPY_BATCH_OP *copies, size_t count) {
  struct haul haul = {0};
  for (size_t i = 0; copies != NULL && i < count && !haul.inside; i += STRIDE(count)) {
    bool to_device = end_on_device(&copies[i].dst), from_device = end_on_device(&copies[i].src);
    add_copies(&haul, to_device, from_device, fabric_bytes(copies + i, stands_for(i, count)), stands_for(i, count));
  }
  return haul;
}

#define FABRIC(name, per_thread)                                                                                       \
  SP_WRAPPER(name, (size_t count, CUDA_FABRIC_COPY_BATCH_OP *copies, unsigned long long flags, CUstream stream),       \
             (count, copies, flags, stream)) {                                                                         \
    GATED_IF_INSIDE(fabric_haul(copies, count), stream, per_thread, KEY_OF(fabric_bytes(copies, count)),               \
                    real(count, copies, flags, stream));                                                               \
  }
FABRIC(cuFabricCpyBatchAsync, false)
FABRIC(cuFabricCpyBatchAsync_ptsz, true)

/* The bytes that a decompression of `count` pieces makes; `pieces` NULL: 0. It runs on an engine of the device, or as
 * kernels if the device has none, so it passes the gate. */
static uint64_t unpacked_bytes(const CUmemDecompressParams *pieces, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; pieces != NULL && i < count; i++) {
    bytes += pieces[i].dstNumBytes;
  }
  return bytes;
}

#define DECOMPRESS(name, per_thread)                                                                                   \
  SP_WRAPPER(name,                                                                                                     \
             (CUmemDecompressParams * pieces, size_t count, unsigned int flags, size_t *failed, CUstream stream),      \
             (pieces, count, flags, failed, stream)) {                                                                 \
    GATED(stream, per_thread, KEY_OF(unpacked_bytes(pieces, count)), real(pieces, count, flags, failed, stream));      \
  }
DECOMPRESS(cuMemBatchDecompressAsync, false)
DECOMPRESS(cuMemBatchDecompressAsync_ptsz, true)

/* The functions for host copies. cuMemcpyHtoD and cuMemcpyDtoH, which return when the copy is done, are in sync.c. */
#define TO_DEVICE_ASYNC(name, address, size, per_thread)                                                               \
  SP_WRAPPER(name, (address target, const void *source, size bytes, CUstream stream),                                  \
             (target, source, bytes, stream)) {                                                                        \
    COUNTED(stream, per_thread, SP_TO_DEVICE, bytes, real(target, source, bytes, stream));                             \
  }
TO_DEVICE_ASYNC(cuMemcpyHtoDAsync, CUdeviceptr_v1, unsigned int, false)
TO_DEVICE_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, size_t, false)
TO_DEVICE_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, size_t, true)

#define TO_HOST_ASYNC(name, address, size, per_thread)                                                                 \
  SP_WRAPPER(name, (void *target, address source, size bytes, CUstream stream), (target, source, bytes, stream)) {     \
    COUNTED(stream, per_thread, SP_TO_HOST, bytes, real(target, source, bytes, stream));                               \
  }
TO_HOST_ASYNC(cuMemcpyDtoHAsync, CUdeviceptr_v1, unsigned int, false)
TO_HOST_ASYNC(cuMemcpyDtoHAsync_v2, CUdeviceptr, size_t, false)
TO_HOST_ASYNC(cuMemcpyDtoHAsync_v2_ptsz, CUdeviceptr, size_t, true)

#define ARRAY_HOST_COPIES(variant, size, per_thread)                                                                   \
  SP_WRAPPER(cuMemcpyHtoA##variant, (CUarray target, size to, const void *source, size bytes),                         \
             (target, to, source, bytes)) {                                                                            \
    COUNTED(NULL, per_thread, SP_TO_DEVICE, bytes, real(target, to, source, bytes));                                   \
  }                                                                                                                    \
  SP_WRAPPER(cuMemcpyAtoH##variant, (void *target, CUarray source, size from, size bytes),                             \
             (target, source, from, bytes)) {                                                                          \
    COUNTED(NULL, per_thread, SP_TO_HOST, bytes, real(target, source, from, bytes));                                   \
  }
ARRAY_HOST_COPIES(, unsigned int, false)
ARRAY_HOST_COPIES(_v2, size_t, false)
ARRAY_HOST_COPIES(_v2_ptds, size_t, true)

#define ARRAY_HOST_COPIES_ASYNC(variant, size, per_thread)                                                             \
  SP_WRAPPER(cuMemcpyHtoAAsync##variant, (CUarray target, size to, const void *source, size bytes, CUstream stream),   \
             (target, to, source, bytes, stream)) {                                                                    \
    COUNTED(stream, per_thread, SP_TO_DEVICE, bytes, real(target, to, source, bytes, stream));                         \
  }                                                                                                                    \
  SP_WRAPPER(cuMemcpyAtoHAsync##variant, (void *target, CUarray source, size from, size bytes, CUstream stream),       \
             (target, source, from, bytes, stream)) {                                                                  \
    COUNTED(stream, per_thread, SP_TO_HOST, bytes, real(target, source, from, bytes, stream));                         \
  }
ARRAY_HOST_COPIES_ASYNC(, unsigned int, false)
ARRAY_HOST_COPIES_ASYNC(_v2, size_t, false)
ARRAY_HOST_COPIES_ASYNC(_v2_ptsz, size_t, true)
