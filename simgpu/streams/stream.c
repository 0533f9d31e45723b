/* Streams: making and ending them, per-thread default streams, and giving them work. A lane is the queue of one
 * stream in the shared model. CUDA's documentation tells what the exported functions do; a comment at one tells only
 * what is special here. */
#include "simgpu/api/process.h"

#include <stdlib.h>

#define THREAD_STREAMS 16

/* This thread's per-thread default streams, one for each context that it used one in. */
static __thread struct stream *thread_streams[THREAD_STREAMS];
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

/* Make a stream with a lane of its own. CUDA_ERROR_OUT_OF_MEMORY: also when the context has no lane left. */
static CUresult stream_open(struct context *context, unsigned flags, int priority, struct stream **out) {
  struct stream *stream = handle_new(STREAM_HANDLE, sizeof *stream);
  if (!stream)
    return CUDA_ERROR_OUT_OF_MEMORY;
  struct sg_context *shared = shared_of(context);
  uint32_t lane = 1;
  sg_lock(&process.state);
  while (lane < SG_MAX_LANES && shared->lanes[lane].used)
    lane++;
  if (lane < SG_MAX_LANES) {
    shared->lanes[lane].used = SG_LANE_USED;
    shared->lanes[lane].blocking = !(flags & CU_STREAM_NON_BLOCKING);
    shared->lanes[lane].handle = (uintptr_t)stream;
  }
  sg_unlock(&process.state);
  if (lane == SG_MAX_LANES) {
    handle_free(stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  stream->context = context;
  stream->lane = lane;
  stream->flags = flags;
  stream->priority = priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority > 0 ? 0 : priority;
  stream->id = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED);
  *out = stream;
  return CUDA_SUCCESS;
}

/* End a stream. Its pending work goes on; when that is done, the lane is free again. */
static void stream_close(struct stream *stream) {
  capture_forget(stream);
  if (stream->context->slot != SG_NONE) {
    sg_lock(&process.state);
    struct sg_lane *lane = &shared_of(stream->context)->lanes[stream->lane];
    lane->used = lane->head == SG_NONE ? SG_LANE_FREE : SG_LANE_CLOSING;
    sg_unlock(&process.state);
  }
  handle_free(stream);
}

/* A thread ends: end its per-thread default streams. In a forked child nothing happens, because it shares nothing with
 * the driver. */
static void thread_exit(void *unused) {
  (void)unused;
  for (int n = 0; n < THREAD_STREAMS; n++)
    if (thread_streams[n] && !process.forked)
      stream_close(thread_streams[n]);
}

/* The key exists for its destructor, which the C library calls when a thread ends. */
static void make_key(void) {
  pthread_key_create(&thread_key, thread_exit);
}

/* A context is ending: end this thread's stream in it. Other threads keep theirs. */
void drop_thread_streams(struct context *context) {
  for (int n = 0; n < THREAD_STREAMS; n++)
    if (thread_streams[n] && thread_streams[n]->context == context) {
      handle_free(thread_streams[n]);
      thread_streams[n] = NULL;
    }
}

/* This thread's per-thread default stream in the context, made if there is none. A thread has THREAD_STREAMS at
 * most. */
static CUresult thread_stream(struct context *context, struct stream **stream) {
  int vacant = -1;
  pthread_once(&thread_once, make_key);
  for (int n = 0; n < THREAD_STREAMS; n++) {
    if (thread_streams[n] && thread_streams[n]->context == context) {
      *stream = thread_streams[n];
      return CUDA_SUCCESS;
    }
    if (!thread_streams[n])
      vacant = n;
  }
  if (vacant < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = stream_open(context, /* flags */ 0, /* priority */ 0, stream);
  if (!result) {
    thread_streams[vacant] = *stream;
    pthread_setspecific(thread_key, thread_streams); /* any value but NULL: then thread_exit is called */
  }
  return result;
}

/* The stream behind a handle; NULL and CU_STREAM_LEGACY mean the legacy stream of `context`. An error: the stream was
 * destroyed, or its context cannot be used. */
CUresult find_stream(CUstream handle, struct context *context, struct stream **stream) {
  if (!handle || handle == CU_STREAM_LEGACY) {
    *stream = &context->legacy;
    return CUDA_SUCCESS;
  }
  if (handle == CU_STREAM_PER_THREAD)
    return thread_stream(context, stream);
  if (!is_handle(handle, STREAM_HANDLE) || handle->context->slot == SG_NONE)
    return CUDA_ERROR_INVALID_HANDLE;
  *stream = handle;
  return context_error(handle->context);
}

/* --- work -------------------------------------------------------------------------------------------------------- */

/* Give one item to the device, with a copy of its effect. On success the effect's `staging` belongs to the copy. If the
 * queue is full, wait. *count (`count` may be NULL) becomes the number that wait_lane needs to wait for this item. */
CUresult submit(struct stream *stream, struct sg_item what, const struct effect *effect, uint64_t *count) {
  struct effect *copy = effect ? effect_copy_of(effect) : NULL;
  if (effect && !copy)
    return CUDA_ERROR_OUT_OF_MEMORY;
  struct sg_item *item;
  sg_lock(&process.state);
  CUresult result = take_item(stream->context, stream->lane, &item);
  if (!result) {
    what.next = what.next_effect = SG_NONE;
    what.effect = (uintptr_t)copy;
    what.flags = (uint16_t)(what.flags | (copy && what.kind != SG_HOST ? SG_EFFECT : 0));
    *item = what;
    if (copy)
      __atomic_fetch_add(&process.effects, 1, __ATOMIC_RELAXED);
    sg_submit(process.state.shared, stream->context->slot, stream->lane, item, sg_now());
    if (copy)
      effect_submitted(stream->context, stream->lane);
    if (count)
      *count = shared_of(stream->context)->lanes[stream->lane].appended;
  }
  sg_unlock(&process.state);
  if (result && copy)
    effect_undo_copy(copy);
  return result;
}

/* Give one item to the stream: into its capture if it has one (then *count is 0), else to the device. */
CUresult issue(struct stream *stream, struct sg_item what, const struct effect *effect, uint64_t *count) {
  if (count)
    *count = 0;
  CUresult result = legacy_conflict(stream);
  if (result)
    return result;
  return is_capturing(stream) ? capture_add(stream, &what, effect) : submit(stream, what, effect, count);
}

/* Wait for all work that the stream has now. */
static CUresult wait_stream(struct stream *stream) {
  return wait_lane(stream->context, stream->lane, shared_of(stream->context)->lanes[stream->lane].appended);
}

/* Wait for all work that the context has now. On success its effects have been applied. An open capture may forbid the
 * call. */
CUresult wait_context(struct context *context) {
  CUresult result = capture_sync(context, NULL);
  if (!result)
    result = unsafe_call();
  for (uint32_t lane = 0; !result && lane < SG_MAX_LANES; lane++) {
    const struct sg_lane *shared = &shared_of(context)->lanes[lane];
    if (shared->head != SG_NONE)
      result = wait_lane(context, lane, shared->appended);
  }
  if (!result)
    run_effects();
  pools_synchronized();
  return result ? result : context_error(context);
}

/* --- calls ------------------------------------------------------------------------------------------------------- */

/* The priority is cut to the range and stored. The model does not use it. */
EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
  struct context *context;
  CUresult result = enter(&context);
  if (result)
    return result;
  if (!out || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  return stream_open(context, flags, priority, out);
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags) {
  return cuStreamCreateWithPriority(out, flags, 0);
}

/* Pending work goes on. The legacy stream cannot be destroyed. */
EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  struct context *context;
  CUresult result = enter(&context);
  if (result)
    return result;
  if (!is_handle(stream, STREAM_HANDLE) || !stream->lane)
    return CUDA_ERROR_INVALID_HANDLE;
  stream_close(stream);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamDestroy(CUstream stream) {
  return cuStreamDestroy_v2(stream);
}

/* Begin a call on a stream: declare its `context`, `stream` and `result`. An error is returned from the call. */
#define FIND_STREAM(handle)                                                                                            \
  struct context *context;                                                                                             \
  struct stream *stream;                                                                                               \
  CUresult result = enter(&context);                                                                                   \
  if (!result)                                                                                                         \
    result = find_stream(handle, context, &stream);                                                                    \
  if (result)                                                                                                          \
  return result

/* Wait for all work that the stream has now. An open capture may forbid that. */
EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  FIND_STREAM(handle);
  result = capture_sync(stream->context, stream);
  if (!result)
    result = legacy_conflict(stream);
  if (!result)
    result = unsafe_call();
  if (!result)
    result = wait_stream(stream);
  if (!result)
    pools_synchronized();
  return result;
}

/* Whether the stream has no work left. An open capture may forbid the question. */
EXPORT CUresult cuStreamQuery(CUstream handle) {
  uint64_t entry_ns = sg_now();
  FIND_STREAM(handle);
  burn(entry_ns, process.settings.query_cost_ns);
  result = capture_sync(stream->context, stream);
  if (!result)
    result = legacy_conflict(stream);
  if (!result)
    result = unsafe_call();
  if (result)
    return result;
  sg_lock_advanced(&process.state);
  bool empty = shared_of(stream->context)->lanes[stream->lane].head == SG_NONE;
  sg_unlock(&process.state);
  run_effects();
  return empty ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority) {
  FIND_STREAM(handle);
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  FIND_STREAM(handle);
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
  FIND_STREAM(handle);
  *id = stream->id;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *out) {
  FIND_STREAM(handle);
  *out = stream->context;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *out, void **green) {
  if (green)
    *green = NULL;
  return cuStreamGetCtx(handle, out);
}

EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice *ordinal) {
  FIND_STREAM(handle);
  return device_ordinal(stream->context->device, ordinal);
}

/* The function runs in the driver's own thread: see host_function.c. */
EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn call, void *data) {
  FIND_STREAM(handle);
  if (!call)
    return CUDA_ERROR_INVALID_VALUE;
  struct effect effect = {.kind = EFFECT_CALL, .call = call, .data = data};
  return issue(stream, (struct sg_item){.kind = SG_HOST}, &effect, NULL);
}

/* A callback runs as a host function does, but cannot be captured. */
EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *data, unsigned flags) {
  FIND_STREAM(handle);
  if (!callback || flags)
    return CUDA_ERROR_INVALID_VALUE;
  result = capture_sync(stream->context, stream); /* no callback in a capture */
  struct effect effect = {.kind = EFFECT_CALLBACK, .callback = callback, .stream = handle, .data = data};
  return result ? result : issue(stream, (struct sg_item){.kind = SG_HOST}, &effect, NULL);
}
