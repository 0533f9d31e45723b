/* Real calls that are not simulated: present, so that a client sees CUDA_ERROR_NOT_SUPPORTED and the log says which. */
#include "process.h"

#define NOT_SIMULATED(name)                                                                                            \
  EXPORT CUresult name(void);                                                                                          \
  EXPORT CUresult name(void) {                                                                                         \
    return not_supported(#name);                                                                                       \
  }

NOT_SIMULATED(cuArrayCreate_v2)
NOT_SIMULATED(cuArray3DCreate_v2)
NOT_SIMULATED(cuArrayDestroy)
NOT_SIMULATED(cuMipmappedArrayCreate)
NOT_SIMULATED(cuMipmappedArrayDestroy)
NOT_SIMULATED(cuTexObjectCreate)
NOT_SIMULATED(cuTexObjectDestroy)
NOT_SIMULATED(cuSurfObjectCreate)
NOT_SIMULATED(cuSurfObjectDestroy)
NOT_SIMULATED(cuMemPoolCreate)
NOT_SIMULATED(cuMemPoolDestroy)
NOT_SIMULATED(cuMemPoolTrimTo)
NOT_SIMULATED(cuMemPoolSetAttribute)
NOT_SIMULATED(cuMemPoolGetAttribute)
NOT_SIMULATED(cuMemPoolSetAccess)
NOT_SIMULATED(cuMemPoolGetAccess)
NOT_SIMULATED(cuMemAllocFromPoolAsync)
NOT_SIMULATED(cuMemAllocFromPoolAsync_ptsz)
NOT_SIMULATED(cuDeviceGetDefaultMemPool)
NOT_SIMULATED(cuDeviceGetMemPool)
NOT_SIMULATED(cuDeviceSetMemPool)
NOT_SIMULATED(cuMemAddressReserve)
NOT_SIMULATED(cuMemAddressFree)
NOT_SIMULATED(cuMemCreate)
NOT_SIMULATED(cuMemRelease)
NOT_SIMULATED(cuMemMap)
NOT_SIMULATED(cuMemUnmap)
NOT_SIMULATED(cuMemSetAccess)
NOT_SIMULATED(cuMemGetAccess)
NOT_SIMULATED(cuMemExportToShareableHandle)
NOT_SIMULATED(cuMemImportFromShareableHandle)
NOT_SIMULATED(cuMemGetAllocationGranularity)
NOT_SIMULATED(cuMemRetainAllocationHandle)
NOT_SIMULATED(cuIpcGetMemHandle)
NOT_SIMULATED(cuIpcOpenMemHandle_v2)
NOT_SIMULATED(cuIpcCloseMemHandle)
NOT_SIMULATED(cuIpcGetEventHandle)
NOT_SIMULATED(cuIpcOpenEventHandle)
NOT_SIMULATED(cuStreamWaitValue32_v2)
NOT_SIMULATED(cuStreamWaitValue64_v2)
NOT_SIMULATED(cuStreamBatchMemOp_v2)
NOT_SIMULATED(cuStreamAttachMemAsync)
NOT_SIMULATED(cuStreamAttachMemAsync_ptsz)
NOT_SIMULATED(cuStreamBeginCaptureToGraph)
NOT_SIMULATED(cuGraphAddMemAllocNode)
NOT_SIMULATED(cuGraphAddMemFreeNode)
NOT_SIMULATED(cuGraphAddChildGraphNode)
NOT_SIMULATED(cuGraphAddEventRecordNode)
NOT_SIMULATED(cuGraphAddEventWaitNode)
NOT_SIMULATED(cuMemPrefetchAsync)
NOT_SIMULATED(cuMemPrefetchAsync_ptsz)
NOT_SIMULATED(cuMemAdvise)
NOT_SIMULATED(cuMulticastCreate)
NOT_SIMULATED(cuGreenCtxCreate)

/* Private tables of NVIDIA's own runtime; its validity check finds no answer here. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id);
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  (void)id;
  if (table)
    *table = NULL;
  return not_supported("cuGetExportTable");
}
EXPORT CUresult cuProfilerStart(void) {
  return ready();
}
EXPORT CUresult cuProfilerStop(void) {
  return ready();
}
