/*
 * Calls that return when work is done. They are never gated (what they wait for has passed the gate already); their
 * success tells the gate that the caller's work has drained, which is when a turn is given back early.
 */
#include "gate.h"
#include "intercept.h"

#define SYNCED(call)                                                                                                   \
  do {                                                                                                                 \
    CUresult result;                                                                                                   \
    SP_CALL(result, (call));                                                                                           \
    if (result == CUDA_SUCCESS) {                                                                                      \
      sp_gate_synced();                                                                                                \
    }                                                                                                                  \
    return result;                                                                                                     \
  } while (0)

SP_WRAPPER_VOID(cuCtxSynchronize) {
  SYNCED(real());
}

SP_WRAPPER(cuCtxSynchronize_v2, (CUcontext context), (context)) {
  SYNCED(real(context));
}

SP_WRAPPER(cuStreamSynchronize, (CUstream stream), (stream)) {
  SYNCED(real(stream));
}

SP_WRAPPER(cuStreamSynchronize_ptsz, (CUstream stream), (stream)) {
  SYNCED(real(stream));
}

SP_WRAPPER(cuEventSynchronize, (CUevent event), (event)) {
  SYNCED(real(event));
}

#define TO_HOST(name, address, size)                                                                                   \
  SP_WRAPPER(name, (void *target, address source, size bytes), (target, source, bytes)) {                              \
    SYNCED(real(target, source, bytes));                                                                               \
  }
TO_HOST(cuMemcpyDtoH, CUdeviceptr_v1, unsigned int)
TO_HOST(cuMemcpyDtoH_v2, CUdeviceptr, size_t)
TO_HOST(cuMemcpyDtoH_v2_ptds, CUdeviceptr, size_t)

#define TO_DEVICE(name, address, size)                                                                                 \
  SP_WRAPPER(name, (address target, const void *source, size bytes), (target, source, bytes)) {                        \
    SYNCED(real(target, source, bytes));                                                                               \
  }
TO_DEVICE(cuMemcpyHtoD, CUdeviceptr_v1, unsigned int)
TO_DEVICE(cuMemcpyHtoD_v2, CUdeviceptr, size_t)
TO_DEVICE(cuMemcpyHtoD_v2_ptds, CUdeviceptr, size_t)
