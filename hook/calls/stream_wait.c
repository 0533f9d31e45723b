/*
 * Wrappers of calls that make a stream wait for something else than the device: a host function, a word in memory, an
 * event that may belong to another device or process. The calls go to the driver unchanged. The gate takes note, so
 * that the wait is not billed as device time.
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include "hook/gate/gate.h"
#include "hook/interpose/intercept.h"

/* The wrapper of one of these functions: before the call the gate is told that the stream (its parameter `stream`) will
 * wait, and for what (`awaited`). */
#define AWAITS(name, per_thread, awaited, parameters, arguments)                                                       \
  SP_WRAPPER(name, parameters, arguments) {                                                                            \
    CUresult result;                                                                                                   \
    sp_outermost_begin();                                                                                              \
    sp_gate_awaiting(stream, (per_thread), (awaited));                                                                 \
    result = real arguments;                                                                                           \
    sp_outermost_end();                                                                                                \
    return result;                                                                                                     \
  }

/* A function of the program that the stream calls on the host. */
#define HOST_FUNCTION(name, per_thread, parameters, arguments)                                                         \
  AWAITS(name, per_thread, SP_AWAITS_HOST, parameters, arguments)
HOST_FUNCTION(cuLaunchHostFunc, false, (CUstream stream, CUhostFn call, void *data), (stream, call, data))
HOST_FUNCTION(cuLaunchHostFunc_ptsz, true, (CUstream stream, CUhostFn call, void *data), (stream, call, data))
HOST_FUNCTION(cuLaunchHostFunc_v2, false, (CUstream stream, CUhostFn call, void *data, unsigned int mode),
              (stream, call, data, mode))
HOST_FUNCTION(cuLaunchHostFunc_v2_ptsz, true, (CUstream stream, CUhostFn call, void *data, unsigned int mode),
              (stream, call, data, mode))
HOST_FUNCTION(cuStreamAddCallback, false, (CUstream stream, CUstreamCallback call, void *data, unsigned int flags),
              (stream, call, data, flags))
HOST_FUNCTION(cuStreamAddCallback_ptsz, true, (CUstream stream, CUstreamCallback call, void *data, unsigned int flags),
              (stream, call, data, flags))

/* The stream waits until a word in memory has a value. */
#define WORD(name, value_type, per_thread)                                                                             \
  AWAITS(name, per_thread, SP_AWAITS_HOST,                                                                             \
         (CUstream stream, CUdeviceptr address, value_type value, unsigned int flags),                                 \
         (stream, address, value, flags))
WORD(cuStreamWaitValue32, uint32_t, false)
WORD(cuStreamWaitValue32_ptsz, uint32_t, true)
WORD(cuStreamWaitValue32_v2, uint32_t, false)
WORD(cuStreamWaitValue32_v2_ptsz, uint32_t, true)
WORD(cuStreamWaitValue64, uint64_t, false)
WORD(cuStreamWaitValue64_ptsz, uint64_t, true)
WORD(cuStreamWaitValue64_v2, uint64_t, false)
WORD(cuStreamWaitValue64_v2_ptsz, uint64_t, true)

/* A batch of operations on words counts as a wait even if it only writes: the gate does not read the operations. */
#define WORDS(name, per_thread)                                                                                        \
  AWAITS(name, per_thread, SP_AWAITS_HOST,                                                                             \
         (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations, unsigned int flags),              \
         (stream, count, operations, flags))
WORDS(cuStreamBatchMemOp, false)
WORDS(cuStreamBatchMemOp_ptsz, true)
WORDS(cuStreamBatchMemOp_v2, false)
WORDS(cuStreamBatchMemOp_v2_ptsz, true)

/* The stream waits for an event. sp_gate_awaiting ignores that in a process with one device that has made no stream
 * wait for the host. */
#define EVENT(name, per_thread)                                                                                        \
  AWAITS(name, per_thread, SP_AWAITS_EVENT, (CUstream stream, CUevent event, unsigned int flags),                      \
         (stream, event, flags))
EVENT(cuStreamWaitEvent, false)
EVENT(cuStreamWaitEvent_ptsz, true)
