/*
 * The real driver, for the hook's own calls.
 *
 * The pointers come from the handle of the loaded libcuda.so.1 itself, never from a wrapper and never from another
 * interposer, so a call through them is not gated, not counted and cannot recurse into the hook.
 */
#ifndef SHAREPOD_DRIVER_H
#define SHAREPOD_DRIVER_H

#include <stddef.h>

#include "cuda_abi.h"

/* X(field, symbol, symbol of an older driver or the same one again, parameters) */
#define SP_DRIVER_FUNCTIONS(X)                                                                                         \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", "cuCtxGetCurrent", (CUcontext *))                                              \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", "cuCtxSetCurrent", (CUcontext))                                                \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", "cuCtxPushCurrent", (CUcontext))                                          \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", "cuCtxPopCurrent", (CUcontext *))                                           \
  X(cuCtxGetDevice, "cuCtxGetDevice", "cuCtxGetDevice", (CUdevice *))                                                  \
  X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", "cuCtxGetStreamPriorityRange", (int *, int *))         \
  X(cuDriverGetVersion, "cuDriverGetVersion", "cuDriverGetVersion", (int *))                                           \
  X(cuDeviceGet, "cuDeviceGet", "cuDeviceGet", (CUdevice *, int))                                                      \
  X(cuDeviceGetCount, "cuDeviceGetCount", "cuDeviceGetCount", (int *))                                                 \
  X(cuDeviceGetUuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid", (CUuuid *, CUdevice))                                    \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", "cuDeviceGetAttribute", (int *, int, CUdevice))                      \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))         \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", (CUdevice))                \
  X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState",                            \
    (CUdevice, unsigned int *, int *))                                                                                 \
  X(cuEventCreate, "cuEventCreate", "cuEventCreate", (CUevent *, unsigned int))                                        \
  X(cuEventRecord, "cuEventRecord", "cuEventRecord", (CUevent, CUstream))                                              \
  X(cuEventRecord_ptsz, "cuEventRecord_ptsz", "cuEventRecord_ptsz", (CUevent, CUstream))                               \
  X(cuEventSynchronize, "cuEventSynchronize", "cuEventSynchronize", (CUevent))                                         \
  X(cuEventQuery, "cuEventQuery", "cuEventQuery", (CUevent))                                                           \
  X(cuEventElapsedTime, "cuEventElapsedTime_v2", "cuEventElapsedTime", (float *, CUevent, CUevent))                    \
  X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", "cuStreamCreateWithPriority",                            \
    (CUstream *, unsigned int, int))                                                                                   \
  X(cuStreamDestroy, "cuStreamDestroy_v2", "cuStreamDestroy", (CUstream))                                              \
  X(cuStreamQuery, "cuStreamQuery", "cuStreamQuery", (CUstream))                                                       \
  X(cuStreamSynchronize, "cuStreamSynchronize", "cuStreamSynchronize", (CUstream))                                     \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", "cuStreamWaitEvent", (CUstream, CUevent, unsigned int))                    \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", "cuStreamIsCapturing", (CUstream, int *))                              \
  X(cuStreamIsCapturing_ptsz, "cuStreamIsCapturing_ptsz", "cuStreamIsCapturing_ptsz", (CUstream, int *))               \
  X(cuStreamGetCtx, "cuStreamGetCtx", "cuStreamGetCtx", (CUstream, CUcontext *))                                       \
  X(cuStreamGetCtx_ptsz, "cuStreamGetCtx_ptsz", "cuStreamGetCtx_ptsz", (CUstream, CUcontext *))                        \
  X(cuStreamWriteValue32, "cuStreamWriteValue32_v2", "cuStreamWriteValue32",                                           \
    (CUstream, CUdeviceptr, uint32_t, unsigned int))                                                                   \
  X(cuStreamWriteValue32_ptsz, "cuStreamWriteValue32_v2_ptsz", "cuStreamWriteValue32_ptsz",                            \
    (CUstream, CUdeviceptr, uint32_t, unsigned int))                                                                   \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode",       \
    (int *))                                                                                                           \
  X(cuMemAlloc, "cuMemAlloc_v2", "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                             \
  X(cuMemFree, "cuMemFree_v2", "cuMemFree_v2", (CUdeviceptr))                                                          \
  X(cuMemFreeAsync, "cuMemFreeAsync", "cuMemFreeAsync", (CUdeviceptr, CUstream))                                       \
  X(cuMemFreeAsync_ptsz, "cuMemFreeAsync_ptsz", "cuMemFreeAsync_ptsz", (CUdeviceptr, CUstream))                        \
  X(cuMemGetInfo, "cuMemGetInfo_v2", "cuMemGetInfo_v2", (size_t *, size_t *))                                          \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", "cuDeviceTotalMem_v2", (size_t *, CUdevice))                              \
  X(cuMemHostAlloc, "cuMemHostAlloc", "cuMemHostAlloc", (void **, size_t, unsigned int))                               \
  X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", "cuMemHostGetDevicePointer_v2",                         \
    (CUdeviceptr *, void *, unsigned int))                                                                             \
  X(cuMemFreeHost, "cuMemFreeHost", "cuMemFreeHost", (void *))                                                         \
  X(cuPointerGetAttribute, "cuPointerGetAttribute", "cuPointerGetAttribute", (void *, int, CUdeviceptr))

struct sp_driver {
#define SP_FIELD(field, symbol, older, parameters) CUresult(*field) parameters;
  SP_DRIVER_FUNCTIONS(SP_FIELD)
#undef SP_FIELD
};

/* Never NULL. A member is NULL while no libcuda.so.1 is loaded, and when the driver lacks the symbol. Valid as soon as
 * any wrapper runs, whatever route the program took to it. Takes no lock; after the first success one acquire load. */
const struct sp_driver *sp_driver(void);

#endif
