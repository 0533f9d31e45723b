/* Finds the device and context that an allocation belongs to. */
#include "hook/memory/charge.h"
#include "region/order.h"

static uint32_t generation = 1; /* rises when a context is gone */

/* The device of the current context; SP_NO_DEVICE: there is none. */
static int device_now(void) {
  const struct sp_driver *driver = sp_driver();
  CUdevice device;
  return driver->cuCtxGetDevice != NULL && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : SP_NO_DEVICE;
}

/* The thread's current context (0: none) and its device. The thread remembers the device of its last context, until
 * some context is gone: then a handle may name another context. */
struct sp_location sp_location_current(void) {
  static _Thread_local struct {
    CUcontext context;
    uint32_t generation;
    int device;
  } known __attribute__((tls_model("initial-exec")));
  const struct sp_driver *driver = sp_driver();
  uint32_t now = sp_load_acquire(&generation);
  CUcontext context = NULL;
  if (driver->cuCtxGetCurrent == NULL || driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL) {
    return (struct sp_location){.context = 0, .device = device_now()};
  }
  if (known.context != context || known.generation != now) {
    known.device = device_now();
    known.context = context;
    known.generation = now;
  }
  return (struct sp_location){.context = (uint64_t)(uintptr_t)context, .device = known.device};
}

/* A context is gone: what threads remember of devices is void. */
void sp_locations_changed(void) {
  sp_add_full(&generation, 1);
}

/* The device of the stream's own context, where its allocations are made. It is the current one for the default
 * streams, or if the driver does not tell; SP_NO_DEVICE: there is no current context. */
int sp_device_of_stream(CUstream stream) {
  const struct sp_driver *driver = sp_driver();
  CUcontext context = NULL;
  struct sp_location here = sp_location_current();
  if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
      driver->cuStreamGetCtx == NULL || driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
      (uint64_t)(uintptr_t)context == here.context || driver->cuCtxPushCurrent == NULL ||
      driver->cuCtxPopCurrent == NULL || driver->cuCtxPushCurrent(context) != CUDA_SUCCESS) {
    return here.device;
  }
  int device = device_now();
  driver->cuCtxPopCurrent(&context);
  return device;
}

/* Is the stream capturing? An error counts as yes: the legacy stream has one while a capture is open that it would
 * join. `per_thread`: stream 0 is the calling thread's own. */
bool sp_location_captures(CUstream stream, bool per_thread) {
  const struct sp_driver *driver = sp_driver();
  CUresult (*ask)(CUstream, int *) = per_thread ? driver->cuStreamIsCapturing_ptsz : driver->cuStreamIsCapturing;
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ask != NULL && (ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}
