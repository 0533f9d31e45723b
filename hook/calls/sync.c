/*
 * Wrappers of calls that return when work is done. They are never gated: the work that they wait for has passed the
 * gate. Before such a call a marker, an event, is recorded behind the launched work, so that the time of its end
 * becomes known. The call's success tells the gate that the caller's work has drained: then a turn can be returned
 * early.
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include "hook/gate/gate.h"
#include "hook/interpose/intercept.h"
#include "hook/memory/memory.h"

/* The body of a wrapper of `call`, which waits for `what` (enum sp_sync). On success do `then` (a statement), tell the
 * gate, and look at the memory pools, which may have shrunk. Returns from the wrapper. */
#define SYNCED_THEN(stream, per_thread, what, call, then)                                                              \
  do {                                                                                                                 \
    CUresult result;                                                                                                   \
    sp_outermost_begin();                                                                                              \
    sp_gate_syncing((stream), (per_thread), (what));                                                                   \
    result = (call);                                                                                                   \
    sp_outermost_end();                                                                                                \
    if (result == CUDA_SUCCESS) {                                                                                      \
      then;                                                                                                            \
      sp_gate_synced(what);                                                                                            \
      sp_pools_look();                                                                                                 \
    }                                                                                                                  \
    return result;                                                                                                     \
  } while (0)
#define SYNCED(stream, per_thread, what, call) SYNCED_THEN(stream, per_thread, what, call, (void)0)

SP_WRAPPER_VOID(cuCtxSynchronize) {
  SYNCED(NULL, false, SP_SYNC_CONTEXT, real());
}

SP_WRAPPER(cuCtxSynchronize_v2, (CUcontext context), (context)) {
  SYNCED(NULL, false, SP_SYNC_CONTEXT, real(context));
}

SP_WRAPPER(cuStreamSynchronize, (CUstream stream), (stream)) {
  SYNCED(stream, false, SP_SYNC_STREAM, real(stream));
}

SP_WRAPPER(cuStreamSynchronize_ptsz, (CUstream stream), (stream)) {
  SYNCED(stream, true, SP_SYNC_STREAM, real(stream));
}

SP_WRAPPER(cuEventSynchronize, (CUevent event), (event)) {
  SYNCED(NULL, false, SP_SYNC_EVENT, real(event));
}

/* Copies that return when they are done: they wait for the earlier work in the legacy stream. */
#define TO_HOST(name, address, size)                                                                                   \
  SP_WRAPPER(name, (void *target, address source, size bytes), (target, source, bytes)) {                              \
    SYNCED_THEN(NULL, false, SP_SYNC_BEFORE, real(target, source, bytes),                                              \
                sp_copied(NULL, false, SP_TO_HOST, bytes, 1));                                                         \
  }
TO_HOST(cuMemcpyDtoH, CUdeviceptr_v1, unsigned int)
TO_HOST(cuMemcpyDtoH_v2, CUdeviceptr, size_t)
TO_HOST(cuMemcpyDtoH_v2_ptds, CUdeviceptr, size_t)

#define TO_DEVICE(name, address, size)                                                                                 \
  SP_WRAPPER(name, (address target, const void *source, size bytes), (target, source, bytes)) {                        \
    SYNCED_THEN(NULL, false, SP_SYNC_BEFORE, real(target, source, bytes),                                              \
                sp_copied(NULL, false, SP_TO_DEVICE, bytes, 1));                                                       \
  }
TO_DEVICE(cuMemcpyHtoD, CUdeviceptr_v1, unsigned int)
TO_DEVICE(cuMemcpyHtoD_v2, CUdeviceptr, size_t)
TO_DEVICE(cuMemcpyHtoD_v2_ptds, CUdeviceptr, size_t)
