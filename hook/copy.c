/*
 * Copies from device memory to device memory: they run on the device like a memset and pass the gate. A copy from or to
 * host memory goes to the driver untouched; where a call serves both, what it copies decides.
 */
#include "driver.h"
#include "gated.h"

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

/* Whether memory of this kind, at this address if the kind does not tell, is a device's. The question is allowed while
 * any stream is capturing. */
static bool on_device(unsigned int memory_type, CUdeviceptr address) {
  const struct sp_driver *driver = sp_driver();
  if (memory_type == CU_MEMORYTYPE_UNIFIED && driver->cuPointerGetAttribute != NULL &&
      driver->cuPointerGetAttribute(&memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS) {
    return false; /* host memory that the driver does not know */
  }
  return memory_type == CU_MEMORYTYPE_DEVICE || memory_type == CU_MEMORYTYPE_ARRAY;
}

/* Gate a call if `inside`, a question that costs something and is asked only where there is a gate. */
#define GATED_IF(inside, stream, per_thread, key, call)                                                                \
  do {                                                                                                                 \
    if (!sp_gate_attached() || !(inside)) {                                                                            \
      return call;                                                                                                     \
    }                                                                                                                  \
    GATED(stream, per_thread, key, call);                                                                              \
  } while (0)

#define BOTH_UNIFIED (on_device(CU_MEMORYTYPE_UNIFIED, target) && on_device(CU_MEMORYTYPE_UNIFIED, source))

#define UNIFIED(name, per_thread)                                                                                      \
  SP_WRAPPER(name, (CUdeviceptr target, CUdeviceptr source, size_t bytes), (target, source, bytes)) {                  \
    GATED_IF(BOTH_UNIFIED, NULL, per_thread, KEY_OF(bytes), real(target, source, bytes));                              \
  }
UNIFIED(cuMemcpy, false)
UNIFIED(cuMemcpy_ptds, true)

#define UNIFIED_ASYNC(name, per_thread)                                                                                \
  SP_WRAPPER(name, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream),                            \
             (target, source, bytes, stream)) {                                                                        \
    GATED_IF(BOTH_UNIFIED, stream, per_thread, KEY_OF(bytes), real(target, source, bytes, stream));                    \
  }
UNIFIED_ASYNC(cuMemcpyAsync, false)
UNIFIED_ASYNC(cuMemcpyAsync_ptsz, true)

/* Between devices: metered on the current one, whose stream does the copy. */
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

#define BOTH_IN_BOX                                                                                                    \
  (box != NULL && on_device(box->dstMemoryType, box->dstDevice) && on_device(box->srcMemoryType, box->srcDevice))
#define AREA   ((uint64_t)box->WidthInBytes * box->Height)
#define VOLUME (AREA * box->Depth)

#define BOX(name, type, bytes, per_thread)                                                                             \
  SP_WRAPPER(name, (const type *box), (box)) {                                                                         \
    GATED_IF(BOTH_IN_BOX, NULL, per_thread, KEY_OF(bytes), real(box));                                                 \
  }
#define BOX_ASYNC(name, type, bytes, per_thread)                                                                       \
  SP_WRAPPER(name, (const type *box, CUstream stream), (box, stream)) {                                                \
    GATED_IF(BOTH_IN_BOX, stream, per_thread, KEY_OF(bytes), real(box, stream));                                       \
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
