/* Contexts: making, ending, the stack of each thread, primary contexts. CUDA's documentation tells what the exported
 * functions do; a comment at one tells only what is special here. */
#include "simgpu/api/process.h"

#include <stdlib.h>
#include <string.h>

#define STACK_MAX 64

/* Each thread has its own stack of contexts; the top one is current. */
static __thread struct {
  struct context *stack[STACK_MAX];
  uint32_t depth;
} thread;

/* The top of the thread's stack. NULL: the stack is empty, or that context has ended. */
struct context *current_context(void) {
  struct context *context = thread.depth ? thread.stack[thread.depth - 1] : NULL;
  return context && context->handle.type == CONTEXT_HANDLE && context->slot != SG_NONE ? context : NULL;
}

/* Why the context cannot be used: it has ended, or it has a sticky error. CUDA_SUCCESS: it is healthy. */
CUresult context_error(const struct context *context) {
  if (context->slot == SG_NONE) /* another thread has ended it */
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return (CUresult)shared_of(context)->lost_error;
}

#define EXCLUSIVE_PROCESS 3 /* the compute mode in which one process at a time has contexts on a device */

/* With the state locked: does the device's compute mode keep this process out, because another one is in? */
static bool is_kept_out(uint32_t index) {
  struct sg_state *state = &process.state;
  if (state->shared->devices[index].compute_mode != EXCLUSIVE_PROCESS)
    return false;
  sg_reap(state); /* a dead process keeps no other one out */
  for (uint32_t slot = 0; slot < SG_MAX_CONTEXTS; slot++)
    if (sg_bit(state->shared->alive, slot) && !sg_bit(state->own, slot) &&
        state->shared->contexts[slot].device == index)
      return true;
  return false;
}

/* With process.lock: give the context a slot in the shared state, its legacy stream and an entry in process.contexts.
 * It fails if the device is lost, lets no other process in, or has no room for the memory that a context takes. */
static CUresult activate(struct context *context) {
  struct sg_state *state = &process.state;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  sg_lock_advanced(state);
  struct sg_device *device = &state->shared->devices[context->device];
  if (device->lost_error) {
    result = (CUresult)device->lost_error;
  } else if (is_kept_out(context->device)) {
    result = CUDA_ERROR_DEVICE_UNAVAILABLE;
  } else if (fits_context(context->device)) {
    context->slot = sg_context_create(state, context->device);
    if (context->slot == SG_NONE) {
      sg_reap(state); /* dead processes may hold the slots */
      context->slot = sg_context_create(state, context->device);
    }
    if (context->slot != SG_NONE) {
      struct sg_lane *legacy = &state->shared->contexts[context->slot].lanes[0];
      legacy->used = SG_LANE_USED;
      legacy->blocking = 1;
      result = CUDA_SUCCESS;
    }
  }
  sg_unlock(state);
  if (result)
    return result;
  context->legacy = (struct stream){.handle.type = STREAM_HANDLE, .context = context, .id = ++process.next_id};
  context->next = process.contexts;
  process.contexts = context;
  memset(context->limits, 0, sizeof context->limits);
  context->limits[0] = 1024;    /* CU_LIMIT_STACK_SIZE */
  context->limits[1] = 1048576; /* CU_LIMIT_PRINTF_FIFO_SIZE */
  context->limits[2] = 8388608; /* CU_LIMIT_MALLOC_HEAP_SIZE */
  return CUDA_SUCCESS;
}

/* With process.lock: end the context. It loses its work, its memory and its slot at once; unfinished work is dropped.
 * Its handle stays, for the caller to free or to activate again. */
static void deactivate(struct context *context) {
  capture_forget(&context->legacy);
  sg_lock_advanced(&process.state);
  uint32_t slot = context->slot;
  sg_drop_work(process.state.shared, slot);
  sg_context_drop(&process.state, slot);
  context->slot = SG_NONE;
  sg_unlock(&process.state);
  drop_thread_streams(context);
  pools_forget(context);
  free_blocks_of(context);
  graph_memory_forget(context);
  for (struct context **link = &process.contexts; *link; link = &(*link)->next)
    if (*link == context) {
      *link = context->next;
      break;
    }
}

/* The index in the state of the device with this ordinal. */
static CUresult device_index(CUdevice ordinal, uint32_t *index) {
  CUresult result = ready();
  if (result)
    return result;
  if (ordinal < 0 || (uint32_t)ordinal >= process.device_count)
    return CUDA_ERROR_INVALID_DEVICE;
  *index = process.devices[ordinal];
  return CUDA_SUCCESS;
}

/* Make a context current in this thread. CUDA_ERROR_OUT_OF_MEMORY: the thread's stack of contexts is full. */
static CUresult push(struct context *context) {
  if (thread.depth == STACK_MAX)
    return CUDA_ERROR_OUT_OF_MEMORY;
  thread.stack[thread.depth++] = context;
  return CUDA_SUCCESS;
}

/* Make a context and make it current in this thread. It fails as `activate` does. */
EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice ordinal) {
  uint32_t index;
  CUresult result = device_index(ordinal, &index);
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  struct context *context = handle_new(CONTEXT_HANDLE, sizeof *context);
  if (!context)
    return CUDA_ERROR_OUT_OF_MEMORY;
  context->device = index;
  context->flags = flags;
  context->slot = SG_NONE;
  pthread_mutex_lock(&process.lock);
  result = activate(context);
  pthread_mutex_unlock(&process.lock);
  if (result) {
    handle_free(context);
    return result;
  }
  *out = context;
  return push(context);
}

EXPORT CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice ordinal) {
  return cuCtxCreate_v2(out, flags, ordinal);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice ordinal) {
  return affinity || count ? not_supported("cuCtxCreate_v3 with execution affinity")
                           : cuCtxCreate_v2(out, flags, ordinal);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice ordinal) {
  return params ? not_supported("cuCtxCreate_v4 with parameters") : cuCtxCreate_v2(out, flags, ordinal);
}

/* Work of the context that has not ended is dropped. Only this thread's stack loses the context, and only at its
 * top. A primary context cannot be destroyed. */
EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
  CUresult result = ready();
  if (result)
    return result;
  if (!is_handle(context, CONTEXT_HANDLE))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (context->primary)
    return CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_lock(&process.lock);
  deactivate(context);
  pthread_mutex_unlock(&process.lock);
  if (thread.depth && thread.stack[thread.depth - 1] == context)
    thread.depth--;
  handle_free(context);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxDestroy(CUcontext context) {
  return cuCtxDestroy_v2(context);
}

/* A context has one user, the thread that made it: cuCtxAttach, which adds users, is not simulated. */
EXPORT CUresult cuCtxDetach(CUcontext context) {
  bool current = thread.depth && thread.stack[thread.depth - 1] == context;
  return current ? cuCtxDestroy_v2(context) : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  CUresult result = ready();
  if (result)
    return result;
  return is_handle(context, CONTEXT_HANDLE) ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}
EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
  return cuCtxPushCurrent_v2(context);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out) {
  CUresult result = ready();
  if (result || !thread.depth)
    return result ? result : CUDA_ERROR_INVALID_CONTEXT;
  thread.depth--;
  if (out)
    *out = thread.stack[thread.depth];
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPopCurrent(CUcontext *out) {
  return cuCtxPopCurrent_v2(out);
}

/* Replace the top of the thread's stack; NULL only takes it off. */
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  CUresult result = ready();
  if (result)
    return result;
  if (context && !is_handle(context, CONTEXT_HANDLE))
    return CUDA_ERROR_INVALID_CONTEXT;
  thread.depth -= thread.depth > 0;
  return context ? push(context) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *out) {
  CUresult result = ready();
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *out = thread.depth ? thread.stack[thread.depth - 1] : NULL;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *ordinal) {
  struct context *context = current_context();
  CUresult result = ready();
  if (result || !context || !ordinal)
    return result ? result : context ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
  return device_ordinal(context->device, ordinal);
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *ordinal, CUcontext context) {
  if (!context)
    return cuCtxGetDevice(ordinal);
  return is_handle(context, CONTEXT_HANDLE) && ordinal ? device_ordinal(context->device, ordinal)
                                                       : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxSynchronize(void) {
  struct context *context;
  CUresult result = enter(&context);
  return result ? result : wait_context(context);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (!context)
    return cuCtxSynchronize();
  CUresult result = ready();
  if (result)
    return result;
  return is_handle(context, CONTEXT_HANDLE) && context->slot != SG_NONE ? wait_context(context)
                                                                        : CUDA_ERROR_INVALID_CONTEXT;
}

/* --- primary contexts -------------------------------------------------------------------------------------------- */

/* The handle of a device's primary context is made once and stays for good. The context gets a slot in the state
 * again whenever it is retained without having one. */
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal) {
  uint32_t index;
  CUresult result = device_index(ordinal, &index);
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&process.lock);
  struct context *context = process.primary[index];
  if (!context) {
    context = handle_new(CONTEXT_HANDLE, sizeof *context);
    if (context) {
      context->device = index;
      context->primary = true;
      context->slot = SG_NONE;
      process.primary[index] = context;
    }
  }
  result = !context ? CUDA_ERROR_OUT_OF_MEMORY : context->slot == SG_NONE ? activate(context) : context_error(context);
  if (!result) {
    context->retained++;
    *out = context;
  }
  pthread_mutex_unlock(&process.lock);
  return result;
}

/* Drop a reference to the device's primary context, or all references (`all`: a reset). The context ends with its last
 * reference. If it is not active, a release fails and a reset succeeds. */
static CUresult primary_release(CUdevice ordinal, bool all) {
  uint32_t index;
  CUresult result = device_index(ordinal, &index);
  if (result)
    return result;
  pthread_mutex_lock(&process.lock);
  struct context *context = process.primary[index];
  if (!context || context->slot == SG_NONE) {
    result = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  } else if (all || --context->retained == 0) {
    context->retained = 0;
    deactivate(context);
  }
  pthread_mutex_unlock(&process.lock);
  return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  return primary_release(ordinal, /* all */ false);
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
  return primary_release(ordinal, /* all */ false);
}
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  return primary_release(ordinal, /* all */ true);
}
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
  return primary_release(ordinal, /* all */ true);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active) {
  uint32_t index;
  CUresult result = device_index(ordinal, &index);
  if (result || !flags || !active)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  struct context *context = process.primary[index];
  *active = context && context->slot != SG_NONE;
  *flags = context ? context->flags : 0;
  return CUDA_SUCCESS;
}

/* Only the device is checked. The flags, which choose how a thread waits, are not stored: here it always sleeps. */
static CUresult primary_flags(CUdevice ordinal, unsigned flags) {
  uint32_t index;
  (void)flags;
  return device_index(ordinal, &index);
}
EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  return primary_flags(ordinal, flags);
}
EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned flags) {
  return primary_flags(ordinal, flags);
}
