/*
 * The real driver, for the hook's own calls.
 *
 * The pointers come from the handle of the loaded libcuda.so.1 itself, never from a wrapper and never from another
 * interposer, so a call through them is not gated, not counted and cannot recurse into the hook.
 */
#ifndef SHAREPOD_DRIVER_H
#define SHAREPOD_DRIVER_H

#include <stddef.h>

#include "driver/cuda.h"

/* X(field, symbol, symbol in an older driver or the same one again, parameters) */
#define SP_DRIVER_FUNCTIONS(X)                                                                                         \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", "cuCtxGetCurrent", (CUcontext *))                                              \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", "cuCtxSetCurrent", (CUcontext))                                                \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", "cuCtxPushCurrent", (CUcontext))                                          \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", "cuCtxPopCurrent", (CUcontext *))                                           \
  X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", "cuCtxFromGreenCtx", (CUcontext *, CUgreenCtx))                            \
  X(cuCtxGetDevice, "cuCtxGetDevice", "cuCtxGetDevice", (CUdevice *))                                                  \
  X(cuDriverGetVersion, "cuDriverGetVersion", "cuDriverGetVersion", (int *))                                           \
  X(cuDeviceGet, "cuDeviceGet", "cuDeviceGet", (CUdevice *, int))                                                      \
  X(cuDeviceGetCount, "cuDeviceGetCount", "cuDeviceGetCount", (int *))                                                 \
  X(cuDeviceGetUuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid", (CUuuid *, CUdevice))                                    \
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
  X(cuStreamIsCapturing, "cuStreamIsCapturing", "cuStreamIsCapturing", (CUstream, int *))                              \
  X(cuStreamIsCapturing_ptsz, "cuStreamIsCapturing_ptsz", "cuStreamIsCapturing_ptsz", (CUstream, int *))               \
  X(cuStreamQuery, "cuStreamQuery", "cuStreamQuery", (CUstream))                                                       \
  X(cuStreamGetCtx, "cuStreamGetCtx", "cuStreamGetCtx", (CUstream, CUcontext *))                                       \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode",       \
    (int *))                                                                                                           \
  X(cuMemAlloc, "cuMemAlloc_v2", "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                             \
  X(cuMemFreeAsync, "cuMemFreeAsync", "cuMemFreeAsync", (CUdeviceptr, CUstream))                                       \
  X(cuMemFreeAsync_ptsz, "cuMemFreeAsync_ptsz", "cuMemFreeAsync_ptsz", (CUdeviceptr, CUstream))                        \
  X(cuDeviceGetMemPool, "cuDeviceGetMemPool", "cuDeviceGetMemPool", (CUmemoryPool *, CUdevice))                        \
  X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", "cuMemPoolGetAttribute", (CUmemoryPool, int, void *))              \
  X(cuMemPoolTrimTo, "cuMemPoolTrimTo", "cuMemPoolTrimTo", (CUmemoryPool, size_t))                                     \
  X(cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute", "cuDeviceGetGraphMemAttribute",                      \
    (CUdevice, int, void *))                                                                                           \
  X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", "cuDeviceGraphMemTrim", (CUdevice))                                  \
  X(cuGraphGetNodes, "cuGraphGetNodes", "cuGraphGetNodes", (CUgraph, CUgraphNode *, size_t *))                         \
  X(cuGraphNodeGetType, "cuGraphNodeGetType", "cuGraphNodeGetType", (CUgraphNode, int *))                              \
  X(cuGraphMemAllocNodeGetParams, "cuGraphMemAllocNodeGetParams", "cuGraphMemAllocNodeGetParams",                      \
    (CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *))                                                                       \
  X(cuGraphChildGraphNodeGetGraph, "cuGraphChildGraphNodeGetGraph", "cuGraphChildGraphNodeGetGraph",                   \
    (CUgraphNode, CUgraph *))                                                                                          \
  X(cuPointerGetAttribute, "cuPointerGetAttribute", "cuPointerGetAttribute", (void *, int, CUdeviceptr))

struct sp_driver {
#define SP_FIELD(field, symbol, older, parameters) CUresult(*field) parameters;
  SP_DRIVER_FUNCTIONS(SP_FIELD)
#undef SP_FIELD
};

/* Never NULL. A member is NULL while no libcuda.so.1 is loaded, or if the driver lacks the symbol. Valid as soon as any
 * wrapper runs, by whatever route the program has called it. Takes no lock; after the first success it is one acquire
 * load. */
const struct sp_driver *sp_driver(void);

#endif
