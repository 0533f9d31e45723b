/* The stream calls of programs built for per-thread default streams: stream 0 means the calling thread's own. CUDA's
 * documentation tells what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/api/abi.h"

#define OWN(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

/* The form of a call for the per-thread default stream: `names` are its arguments, with the stream replaced. */
#define WRAP(name, types, names)                                                                                       \
  CUresult name types;                                                                                                 \
  EXPORT CUresult name##_ptsz types;                                                                                   \
  EXPORT CUresult name##_ptsz types {                                                                                  \
    return name names;                                                                                                 \
  }

WRAP(cuStreamSynchronize, (CUstream s), (OWN(s)))
WRAP(cuStreamQuery, (CUstream s), (OWN(s)))
WRAP(cuStreamGetPriority, (CUstream s, int *out), (OWN(s), out))
WRAP(cuStreamGetFlags, (CUstream s, unsigned *out), (OWN(s), out))
WRAP(cuStreamGetId, (CUstream s, unsigned long long *out), (OWN(s), out))
WRAP(cuStreamGetCtx, (CUstream s, CUcontext *out), (OWN(s), out))
WRAP(cuStreamGetCtx_v2, (CUstream s, CUcontext *out, void **green), (OWN(s), out, green))
WRAP(cuStreamGetDevice, (CUstream s, CUdevice *out), (OWN(s), out))
WRAP(cuStreamWaitEvent, (CUstream s, CUevent event, unsigned flags), (OWN(s), event, flags))
WRAP(cuStreamAddCallback, (CUstream s, CUstreamCallback call, void *data, unsigned flags), (OWN(s), call, data, flags))
WRAP(cuLaunchHostFunc, (CUstream s, CUhostFn call, void *data), (OWN(s), call, data))
WRAP(cuStreamWriteValue32, (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags), (OWN(s), at, value, flags))
WRAP(cuStreamWriteValue64, (CUstream s, CUdeviceptr at, uint64_t value, unsigned flags), (OWN(s), at, value, flags))
WRAP(cuStreamWriteValue32_v2, (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags), (OWN(s), at, value, flags))
WRAP(cuStreamWriteValue64_v2, (CUstream s, CUdeviceptr at, uint64_t value, unsigned flags), (OWN(s), at, value, flags))
WRAP(cuStreamWaitValue32, (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags), (OWN(s), at, value, flags))
WRAP(cuStreamWaitValue64, (CUstream s, CUdeviceptr at, uint64_t value, unsigned flags), (OWN(s), at, value, flags))
WRAP(cuStreamWaitValue32_v2, (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags), (OWN(s), at, value, flags))
WRAP(cuStreamWaitValue64_v2, (CUstream s, CUdeviceptr at, uint64_t value, unsigned flags), (OWN(s), at, value, flags))
WRAP(cuStreamBatchMemOp, (CUstream s, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags),
     (OWN(s), count, operations, flags))
WRAP(cuStreamBatchMemOp_v2, (CUstream s, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags),
     (OWN(s), count, operations, flags))
WRAP(cuEventRecord, (CUevent event, CUstream s), (event, OWN(s)))
WRAP(cuEventRecordWithFlags, (CUevent event, CUstream s, unsigned flags), (event, OWN(s), flags))
WRAP(cuStreamBeginCapture, (CUstream s), (OWN(s)))
WRAP(cuStreamBeginCapture_v2, (CUstream s, int mode), (OWN(s), mode))
WRAP(cuStreamBeginCaptureToGraph,
     (CUstream s, CUgraph graph, CUgraphNode const *on, const CUgraphEdgeData *edges, size_t count, int mode),
     (OWN(s), graph, on, edges, count, mode))
WRAP(cuStreamEndCapture, (CUstream s, CUgraph *out), (OWN(s), out))
WRAP(cuStreamIsCapturing, (CUstream s, int *out), (OWN(s), out))
WRAP(cuStreamGetCaptureInfo, (CUstream s, int *status, uint64_t *id), (OWN(s), status, id))
WRAP(cuStreamGetCaptureInfo_v2,
     (CUstream s, int *status, uint64_t *id, CUgraph *graph, CUgraphNode const **nodes, size_t *count),
     (OWN(s), status, id, graph, nodes, count))
WRAP(cuStreamGetCaptureInfo_v3,
     (CUstream s, int *status, uint64_t *id, CUgraph *graph, CUgraphNode const **nodes, const void **edges,
      size_t *count),
     (OWN(s), status, id, graph, nodes, edges, count))
WRAP(cuStreamUpdateCaptureDependencies, (CUstream s, CUgraphNode *nodes, size_t count, unsigned flags),
     (OWN(s), nodes, count, flags))
WRAP(cuStreamUpdateCaptureDependencies_v2,
     (CUstream s, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned flags),
     (OWN(s), nodes, edges, count, flags))
