/*
 * Wrappers of the functions that create and destroy: the driver's initialisation, contexts, streams and captures. The
 * gate has events in streams, and the account has addresses in contexts, so both must be told of an end: the gate
 * before it, while its events are still valid; the account after it, because only a context that is really gone has
 * freed its memory.
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include <errno.h>

#include "hook/calls/visible.h"
#include "hook/gate/gate.h"
#include "hook/interpose/driver.h"
#include "hook/interpose/intercept.h"
#include "hook/memory/charge.h"

/* The program initialises the driver: the process attaches to its share. It fails if the policy is `closed` and the
 * process cannot be attached. */
SP_WRAPPER(cuInit, (unsigned int flags), (flags)) {
  CUresult result;
  char *visible = sp_visible_begin();
  SP_CALL(result, real(flags));
  sp_visible_end(visible);
  if (result == CUDA_SUCCESS) {
    int saved_errno = errno;
    bool usable = sp_attach();
    errno = saved_errno;
    if (!usable) {
      return CUDA_ERROR_SYSTEM_NOT_READY;
    }
  } else {
    sp_attach_failed(result);
  }
  return result;
}

/* The agent is told if the program asks for a device that the driver does not have. */
SP_WRAPPER(cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal)) {
  CUresult result;
  SP_CALL(result, real(device, ordinal));
  if (result == CUDA_ERROR_INVALID_DEVICE) {
    sp_share_no_device(ordinal);
  }
  return result;
}

/* The thread's device and its cached stream states belong to the current context, as the default streams do. */
#define CONTEXT_CHANGE(name, parameters, arguments)                                                                    \
  SP_WRAPPER(name, parameters, arguments) {                                                                            \
    CUresult result;                                                                                                   \
    SP_CALL(result, real arguments);                                                                                   \
    sp_gate_context_changed();                                                                                         \
    return result;                                                                                                     \
  }
CONTEXT_CHANGE(cuCtxSetCurrent, (CUcontext context), (context))
CONTEXT_CHANGE(cuCtxPushCurrent, (CUcontext context), (context))
CONTEXT_CHANGE(cuCtxPushCurrent_v2, (CUcontext context), (context))
CONTEXT_CHANGE(cuCtxPopCurrent, (CUcontext * context), (context))
CONTEXT_CHANGE(cuCtxPopCurrent_v2, (CUcontext * context), (context))

/* The driver was asked to make a context, and has returned `result`. `bytes` were reserved for it before: keep them as
 * the context's charge, or release them if it was not made; 0: nothing was reserved. If the context has a charge
 * already (another thread has made the same primary context), this one replaces it. */
static void conclude_context(CUresult result, CUdevice device, CUcontext context, uint64_t bytes) {
  if (result == CUDA_ERROR_INVALID_DEVICE) {
    sp_share_no_device(device);
  } else if (result == CUDA_ERROR_DEVICE_UNAVAILABLE) {
    sp_share_kept_out(result);
  }
  if (bytes == 0) {
    return;
  }
  if (result != CUDA_SUCCESS) {
    sp_memory_rollback(device, bytes);
    return;
  }
  sp_slot_context_memory(device, (int64_t)bytes);
  struct sp_location place = {.context = (uint64_t)(uintptr_t)context, .device = device};
  struct sp_allocation made = sp_allocation_of(SP_MEMORY_CONTEXT, place.context, bytes, &place);
  sp_memory_commit(&made);
}

/* Before the driver makes a context, the memory that contexts take by the agent's word is reserved (0: the agent does
 * not know). The call's parameters must have the names `device` and `context`. */
#define CONTEXT_CREATE(name, parameters, arguments)                                                                    \
  SP_WRAPPER(name, parameters, arguments) {                                                                            \
    uint64_t bytes = sp_share_context_bytes(device);                                                                   \
    CUresult result;                                                                                                   \
    if (sp_share_refuses(device)) {                                                                                    \
      return CUDA_ERROR_INVALID_DEVICE;                                                                                \
    }                                                                                                                  \
    if (bytes != 0 && !sp_memory_reserve(device, bytes)) {                                                             \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                                                 \
    }                                                                                                                  \
    SP_CALL(result, real arguments);                                                                                   \
    conclude_context(result, device, result == CUDA_SUCCESS ? *context : NULL, bytes);                                 \
    sp_gate_context_changed();                                                                                         \
    return result;                                                                                                     \
  }
CONTEXT_CREATE(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), (context, flags, device))
CONTEXT_CREATE(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), (context, flags, device))
CONTEXT_CREATE(cuCtxCreate_v3, (CUcontext * context, void *affinities, int count, unsigned int flags, CUdevice device),
               (context, affinities, count, flags, device))
CONTEXT_CREATE(cuCtxCreate_v4, (CUcontext * context, void *parameters, unsigned int flags, CUdevice device),
               (context, parameters, flags, device))
CONTEXT_CREATE(cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), (context, flags, device))
CONTEXT_CREATE(cuGLCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), (context, flags, device))
CONTEXT_CREATE(cuVDPAUCtxCreate,
               (CUcontext * context, unsigned int flags, CUdevice device, uint32_t display, void *find),
               (context, flags, device, display, find))
CONTEXT_CREATE(cuVDPAUCtxCreate_v2,
               (CUcontext * context, unsigned int flags, CUdevice device, uint32_t display, void *find),
               (context, flags, device, display, find))

/* Does the device's primary context exist at this moment? False also if the driver cannot tell. */
static bool primary_is_active(CUdevice device) {
  const struct sp_driver *driver = sp_driver();
  unsigned int flags;
  int active = 0;
  return driver->cuDevicePrimaryCtxGetState != NULL &&
         driver->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

/* How often the program itself has retained each primary context. References of libraries are not known, so a release
 * counts as the last one if it may be. A release that certainly is not the last must not wait for the device. */
#define RETAINS 128 /* devices */

static uint32_t retains[RETAINS];

/* Count a successful retain of the device's primary context. */
static void count_retain(CUdevice device) {
  if (device >= 0 && device < RETAINS) {
    sp_add(&retains[device], 1);
  }
}

/* A retain makes the primary context if it does not exist: then memory for it is reserved, as in CONTEXT_CREATE. */
SP_WRAPPER(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device)) {
  uint64_t bytes = primary_is_active(device) ? 0 : sp_share_context_bytes(device);
  CUresult result;
  if (sp_share_refuses(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (bytes != 0 && !sp_memory_reserve(device, bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  SP_CALL(result, real(context, device));
  conclude_context(result, device, result == CUDA_SUCCESS ? *context : NULL, bytes);
  if (result == CUDA_SUCCESS) {
    count_retain(device);
  }
  return result;
}

/* The driver has destroyed the context: tell the gate and the account that it and what was in it are gone. */
static void context_gone(CUcontext context) {
  sp_gate_context_gone(context);
  sp_memory_forget_context(context);
  sp_locations_changed();
  sp_pools_context_gone();
}

/* The gate is told before the call, while its events in the context are valid, and the account after it. */
#define CONTEXT_END(name)                                                                                              \
  SP_WRAPPER(name, (CUcontext context), (context)) {                                                                   \
    CUresult result;                                                                                                   \
    sp_outermost_begin();                                                                                              \
    if (context != NULL) {                                                                                             \
      sp_gate_forget_context(context);                                                                                 \
    }                                                                                                                  \
    result = real(context);                                                                                            \
    sp_outermost_end();                                                                                                \
    if (result == CUDA_SUCCESS) {                                                                                      \
      context_gone(context);                                                                                           \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
CONTEXT_END(cuCtxDestroy)
CONTEXT_END(cuCtxDestroy_v2)
CONTEXT_END(cuCtxDetach)

/* A green context holds a reference to the primary context, which owns its memory: the account is told when that ends.
 */
SP_WRAPPER(cuGreenCtxDestroy, (CUgreenCtx green), (green)) {
  const struct sp_driver *driver = sp_driver();
  CUcontext context = NULL;
  CUresult result;
  sp_outermost_begin();
  if (green != NULL && driver->cuCtxFromGreenCtx != NULL &&
      driver->cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS) {
    sp_gate_forget_context(context);
  }
  result = real(green);
  sp_outermost_end();
  if (result == CUDA_SUCCESS && context != NULL) {
    sp_gate_context_gone(context);
  }
  return result;
}

/* The handle of a device's primary context; NULL: there is none. Only a retain returns it, so the context is retained
 * and released again. */
static CUcontext primary_context(CUdevice device) {
  const struct sp_driver *driver = sp_driver();
  CUcontext context = NULL;
  if (!primary_is_active(device) || driver->cuDevicePrimaryCtxRetain == NULL ||
      driver->cuDevicePrimaryCtxRelease == NULL || driver->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) {
    return NULL;
  }
  driver->cuDevicePrimaryCtxRelease(device);
  return context;
}

/* Count a release of the primary context, or a `reset`, which ends all references. True: the call may destroy the
 * context, so the gate must forget it before. If the context stays after all, the gate learns it again; the account is
 * told only of a context that is gone. */
static bool may_be_last(CUdevice device, bool reset) {
  if (device < 0 || device >= RETAINS) {
    return true;
  }
  uint32_t held = sp_load(&retains[device]);
  while (held != 0 && !sp_compare_exchange(&retains[device], &held, reset ? 0 : held - 1)) {
  }
  return reset || held <= 1;
}

/* Release or `reset` of a primary context, which is destroyed with its last reference. `context` is read before the
 * call: after it the handle cannot be found out. */
#define PRIMARY_END(name, reset)                                                                                       \
  SP_WRAPPER(name, (CUdevice device), (device)) {                                                                      \
    CUcontext context = primary_context(device);                                                                       \
    CUresult result;                                                                                                   \
    sp_outermost_begin();                                                                                              \
    if (may_be_last(device, reset) && context != NULL) {                                                               \
      sp_gate_forget_context(context);                                                                                 \
    }                                                                                                                  \
    result = real(device);                                                                                             \
    sp_outermost_end();                                                                                                \
    if (result == CUDA_SUCCESS && context != NULL && !primary_is_active(device)) {                                     \
      context_gone(context);                                                                                           \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
PRIMARY_END(cuDevicePrimaryCtxRelease, false)
PRIMARY_END(cuDevicePrimaryCtxRelease_v2, false)
PRIMARY_END(cuDevicePrimaryCtxReset, true)
PRIMARY_END(cuDevicePrimaryCtxReset_v2, true)

/* The gate is told before the call: it records a last marker in the stream. */
#define STREAM_END(name)                                                                                               \
  SP_WRAPPER(name, (CUstream stream), (stream)) {                                                                      \
    CUresult result;                                                                                                   \
    sp_outermost_begin();                                                                                              \
    sp_gate_forget_stream(stream);                                                                                     \
    result = real(stream);                                                                                             \
    sp_outermost_end();                                                                                                \
    return result;                                                                                                     \
  }
STREAM_END(cuStreamDestroy)
STREAM_END(cuStreamDestroy_v2)

/* The gate is told of a capture before it begins, so that no marker is recorded in between. */
#define CAPTURE(stream, per_thread, call)                                                                              \
  do {                                                                                                                 \
    CUresult result;                                                                                                   \
    sp_outermost_begin();                                                                                              \
    sp_gate_capture_begin((stream), (per_thread));                                                                     \
    result = (call);                                                                                                   \
    sp_outermost_end();                                                                                                \
    if (result != CUDA_SUCCESS) {                                                                                      \
      sp_gate_capture_end((stream), (per_thread));                                                                     \
    }                                                                                                                  \
    return result;                                                                                                     \
  } while (0)

SP_WRAPPER(cuStreamBeginCapture, (CUstream stream), (stream)) {
  CAPTURE(stream, false, real(stream));
}

SP_WRAPPER(cuStreamBeginCapture_ptsz, (CUstream stream), (stream)) {
  CAPTURE(stream, true, real(stream));
}

SP_WRAPPER(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode)) {
  CAPTURE(stream, false, real(stream, mode));
}

SP_WRAPPER(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), (stream, mode)) {
  CAPTURE(stream, true, real(stream, mode));
}

#define CAPTURE_TO_GRAPH(name, per_thread)                                                                             \
  SP_WRAPPER(name,                                                                                                     \
             (CUstream stream, CUgraph graph, const void *dependencies, const void *edges, size_t count, int mode),    \
             (stream, graph, dependencies, edges, count, mode)) {                                                      \
    CAPTURE(stream, per_thread, real(stream, graph, dependencies, edges, count, mode));                                \
  }
CAPTURE_TO_GRAPH(cuStreamBeginCaptureToGraph, false)
CAPTURE_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz, true)

#define RECAPTURE(name, per_thread)                                                                                    \
  SP_WRAPPER(name, (CUstream stream, int mode, CUgraph graph, void *callback, void *user_data),                        \
             (stream, mode, graph, callback, user_data)) {                                                             \
    CAPTURE(stream, per_thread, real(stream, mode, graph, callback, user_data));                                       \
  }
RECAPTURE(cuStreamBeginRecaptureToGraph, false)
RECAPTURE(cuStreamBeginRecaptureToGraph_ptsz, true)

/* Has the capture ended? `result`: of cuStreamEndCapture. Some failures end it, too. After others (the wrong thread,
 * the wrong stream, no capture) nothing has changed. */
static bool capture_ended(CUresult result) {
  switch (result) {
  case CUDA_SUCCESS:
  case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
  case CUDA_ERROR_STREAM_CAPTURE_MERGE:
  case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
  case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    return true;
  default:
    return false;
  }
}

#define END_CAPTURE(name, per_thread)                                                                                  \
  SP_WRAPPER(name, (CUstream stream, CUgraph * graph), (stream, graph)) {                                              \
    CUresult result;                                                                                                   \
    SP_CALL(result, real(stream, graph));                                                                              \
    if (capture_ended(result)) {                                                                                       \
      sp_gate_capture_end(stream, (per_thread));                                                                       \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
END_CAPTURE(cuStreamEndCapture, false)
END_CAPTURE(cuStreamEndCapture_ptsz, true)
