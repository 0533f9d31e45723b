/*
 * Stream states: the state of each stream, from its first launch to the end of its context. Launched work is pending
 * until a marker, a timing event, is recorded behind it (record.c). The keeper, the device's helper thread, then waits
 * for the marker; until it has finished, the marker is outstanding. Some functions here have markers recorded in
 * several streams: at the end of a turn, before the program waits, and before a stream or its context is destroyed.
 */
#define _GNU_SOURCE
#include <string.h>

#include "hook/gate/process.h"
#include "region/uncancelled.h"

#define CLOSED_MAX     8u       /* at most 8 markers, or an eighth of the budget, wait for the keeper's next look */
#define CLOSED_KICK_NS 1000000u /* the keeper is woken for one at most this often: a wake-up costs time */

static struct sp_stream_state states[SP_STREAMS_MAX];
static uint32_t state_count;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the creation and forgetting of states */

/* Is it one of the driver's names for default streams: NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD? */
static bool default_stream(const void *stream) {
  return (uintptr_t)stream <= 2;
}

/* Does the handle name the calling thread's own stream? `per_thread`: in this call NULL does. */
static bool own_stream(const void *stream, bool per_thread) {
  return stream == CU_STREAM_PER_THREAD || (per_thread && stream == NULL);
}

/* Is it the state of the stream with this handle? `owner`: for a thread's own stream, the index of the thread's record
 * + 1; else 0. A handle names one stream, whatever the context; but each context has default streams of its own. */
static bool state_matches(const struct sp_stream_state *state, const struct sp_device *device, const void *stream,
                          bool per_thread, uint32_t owner, const void *context) {
  if (!sp_load_acquire(&state->live))
    return false;
  if (state->device != device || state->owner_thread != owner)
    return false;
  if (owner)
    return state->context == context;
  if (state->stream != stream)
    return false;
  return !default_stream(stream) || (state->context == context && state->per_thread == per_thread);
}

/* Forget the events of a dead context: they were destroyed with it. */
static void drop_events(struct sp_stream_state *state) {
  memset(state->events, 0, sizeof state->events);
  state->start_event = NULL;
}

/* A state to use for a stream of the context, new or left by a stream that is gone; NULL: none is free. A state of
 * another living context is not free: its events belong to that context, and the keeper's clock may hold one. The
 * caller holds table_lock. */
static struct sp_stream_state *free_state(const void *context) {
  for (uint32_t index = 0; index < SP_STREAMS_MAX; index++) {
    struct sp_stream_state *state = &states[index];
    if (index < state_count && (state->live || state->outstanding || sp_load(&state->pending_ns) ||
                                (state->context != context && !state->dead)))
      continue;
    if (index >= state_count) {
      if (pthread_mutex_init(&state->lock, NULL))
        return NULL;
      sp_store_release(&state_count, index + 1);
    }
    return state;
  }
  return NULL;
}

/* Are there as many states as there may be? Then a new stream gets one only when another stream's is free. */
bool sp_streams_full(void) {
  return sp_load_acquire(&state_count) == SP_STREAMS_MAX;
}

/* Find a stream's own context and that context's device, where its work runs and its events are made. On entry *context
 * and *device are the current ones. If the driver does not tell, they stay, which is right for the default streams.
 * *device becomes NULL if the share does not hold the device. */
static void find_home(void *stream, CUcontext *context, struct sp_device **device) {
  const struct sp_driver *driver = sp_driver();
  CUcontext own = NULL, current = *context;
  if (default_stream(stream) || !driver->cuStreamGetCtx || driver->cuStreamGetCtx(stream, &own) || !own ||
      own == current)
    return;
  *context = own;
  if (sp_this_process.single_device || !sp_context_enter(own))
    return;
  struct sp_device *found = sp_device_current();
  sp_context_leave();
  *device = found;
}

/* The state of the stream, made at its first use. `device`: of the current context; `thread`: the calling one;
 * `per_thread`: NULL means its own stream. NULL: no state is free, or the share does not hold the stream's device. May
 * take table_lock. */
struct sp_stream_state *sp_stream_find(struct sp_device *device, struct sp_thread *thread, void *stream,
                                       bool per_thread) {
  SP_UNCANCELLED;
  if (stream == CU_STREAM_LEGACY) { /* one name for the legacy stream: NULL, unless that is the thread's own */
    stream = per_thread ? stream : NULL;
  }
  uint32_t owner = own_stream(stream, per_thread) ? sp_thread_index(thread) + 1 : 0;
  CUcontext context = NULL;
  const struct sp_driver *driver = sp_driver();
  if (!driver->cuCtxGetCurrent || driver->cuCtxGetCurrent(&context))
    return NULL;
  find_home(stream, &context, &device);
  if (!device)
    return NULL; /* the share does not hold this device */
  uint32_t count = sp_load_acquire(&state_count);
  for (uint32_t index = 0; index < count; index++)
    if (state_matches(&states[index], device, stream, per_thread, owner, context))
      return &states[index];
  pthread_mutex_lock(&table_lock);
  struct sp_stream_state *state = NULL;
  for (uint32_t index = 0; index < state_count && !state; index++) /* another thread may have made it meanwhile */
    if (state_matches(&states[index], device, stream, per_thread, owner, context))
      state = &states[index];
  if (!state && (state = free_state(context))) {
    if (state->dead)
      drop_events(state);
    sp_store(&state->device, device); /* the keeper scans states that are being set up, too */
    state->context = context;
    state->stream = stream;
    state->per_thread = per_thread;
    state->owner_thread = owner;
    state->scale = 0;
    state->edged_ns = 0;
    state->foreign = false;
    state->pieces = 0;
    sp_store(&state->pieces_done, 0);
    sp_store(&state->batch_profile, NULL);
    sp_store(&state->batch_mixed, false);
    sp_store(&state->batch_guessed, false);
    sp_store(&state->awaits, false);
    sp_store(&state->batch_launches, 0);
    sp_store(&state->captures, 0);
    sp_store(&state->dead, false);
    sp_store_release(&state->live, true);
  }
  pthread_mutex_unlock(&table_lock);
  return state;
}

/* The state of the stream with this handle, in any context. NULL: there is none, or it is a default stream, which has
 * the same handle in every context. The callers count the open captures of a stream, as they end when it is destroyed;
 * a program cannot destroy a default stream. */
struct sp_stream_state *sp_stream_of_handle(const void *stream) {
  uint32_t count = sp_load_acquire(&state_count);
  for (uint32_t index = 0; index < count && !default_stream(stream); index++)
    if (sp_load_acquire(&states[index].live) && states[index].stream == stream)
      return &states[index];
  return NULL;
}

/* Has any stream of the device work that has not ended, as far as is known? */
bool sp_streams_pending(const struct sp_device *device) {
  uint32_t count = sp_load_acquire(&state_count);
  for (uint32_t index = 0; index < count; index++) {
    const struct sp_stream_state *state = &states[index];
    if (sp_load(&state->device) != device || sp_load(&state->dead))
      continue;
    /* In this order, because a thread that records a marker moves the work from the first counter to the second. */
    if (sp_load_acquire(&state->pending_ns) || sp_load_acquire(&state->outstanding))
      return true;
  }
  return false;
}

/* Has any stream of the device unmarked work, and no marker of its own in the queue? */
bool sp_streams_unmarked(const struct sp_device *device) {
  uint32_t count = sp_load_acquire(&state_count);
  for (uint32_t index = 0; index < count; index++)
    if (sp_load(&states[index].device) == device && !sp_load(&states[index].dead) &&
        sp_load_acquire(&states[index].pending_ns) && !sp_load_acquire(&states[index].outstanding))
      return true;
  return false;
}

/* Does any stream without a marker in the queue have unmarked work that began to be launched longer ago than twice its
 * predicted time? Then that work probably runs with pauses, and the keeper marks it, so that the pauses are seen. */
bool sp_streams_sparse(const struct sp_device *device, uint64_t now_ns) {
  uint32_t count = sp_load_acquire(&state_count);
  for (uint32_t index = 0; index < count; index++) {
    const struct sp_stream_state *state = &states[index];
    uint64_t pending_ns = sp_load(&state->pending_ns);
    if (pending_ns && sp_load(&state->device) == device && !sp_load(&state->dead) && !sp_load(&state->outstanding) &&
        now_ns > sp_load(&state->batch_began_ns) + 2 * pending_ns)
      return true;
  }
  return false;
}

/* Record a marker behind all pending work of the device, and wake the keeper. `context`: only in the streams of this
 * context, which is current; NULL: in all, and then the current context changes, so only a keeper may ask for that.
 * `recorder`: which thread the caller is. */
void sp_streams_mark_all(struct sp_device *device, void *context, enum sp_recorder recorder) {
  const struct sp_driver *driver = sp_driver();
  uint32_t count = sp_load_acquire(&state_count);
  for (uint32_t index = 0; index < count; index++) {
    struct sp_stream_state *state = &states[index];
    if (sp_load(&state->device) != device || !sp_load(&state->pending_ns) || sp_load(&state->dead))
      continue;
    if (context && state->context != context)
      continue;
    if (!context && driver->cuCtxSetCurrent)
      driver->cuCtxSetCurrent(state->context); /* an event is created in the current context */
    if (sp_stream_mark_by(state, recorder, false))
      sp_keeper_kick(device);
  }
}

/* Has the stream pending work of this device and context, and may the calling thread record a marker there? `owner`:
 * the index of the thread's record + 1. Another thread's own stream could be reached only through the legacy stream,
 * for which all other streams would wait. */
static bool may_mark(struct sp_stream_state *state, const struct sp_device *device, const void *context,
                     uint32_t owner) {
  return sp_load(&state->pending_ns) && sp_load(&state->device) == device && sp_load_acquire(&state->live) &&
         (void *)state->context == context && (!state->owner_thread || state->owner_thread == owner);
}

/* Has the thread seen the end of all work in the stream, by waiting for an event behind it? Then no marker is needed.
 * False also while idle time counts: then a marker is needed, so that the keeper learns at once that the work has
 * ended. The driver is asked only if the thread has launched nothing since that wait. */
bool sp_stream_over(const struct sp_stream_state *state, const struct sp_thread *thread) {
  const struct sp_device *device = state->device;
  if (thread->event_launches != thread->launches[device->index] + 1 || state->owner_thread ||
      sp_grant_flags(device->grant) & (SP_GRANT_CONTENDED | SP_GRANT_LIMITED) || !sp_driver()->cuStreamQuery)
    return false;
  SP_UNCANCELLED;
  return sp_driver()->cuStreamQuery(state->stream) == CUDA_SUCCESS;
}

/* Before a synchronising call: record a marker behind the pending work of each stream that it waits for and into which
 * this thread may record. Wake the keeper if its next look would be too late. `sync` and `stream` say what the call
 * waits for. thread->closed becomes the place in the queue + 1 of the marker that has ended when the call returns; 0:
 * none. */
void sp_streams_close(struct sp_device *device, struct sp_thread *thread, void *stream, bool per_thread,
                      enum sp_sync sync) {
  const struct sp_driver *driver = sp_driver();
  uint32_t count = sp_load_acquire(&state_count), owner = sp_thread_index(thread) + 1, most = 0;
  CUcontext context = NULL;
  bool own = own_stream(stream, per_thread), marked = false;
  CUstream handle = default_stream(stream) ? NULL : stream;
  thread->closed = 0;
  for (uint32_t index = 0; index < count; index++) {
    struct sp_stream_state *state = &states[index];
    if (!sp_load(&state->pending_ns))
      continue;
    if (!context && (!driver->cuCtxGetCurrent || driver->cuCtxGetCurrent(&context) || !context))
      return;
    if (!may_mark(state, device, context, owner))
      continue;
    if (sync == SP_SYNC_STREAM && !(own ? state->owner_thread != 0 : default_stream(stream) || state->stream == stream))
      continue; /* another stream; the legacy stream waits for all streams */
    if (sync == SP_SYNC_EVENT && sp_load(&state->outstanding))
      continue; /* the stream seems to go on: it will be marked in its time */
    if (sp_stream_over(state, thread))
      continue;
    uint32_t place = sp_stream_mark_by(state, SP_BY_CALLER, false);
    if (!place)
      continue;
    marked = true;
    /* Only these markers have certainly ended when the call returns. */
    if (sync == SP_SYNC_CONTEXT || (sync == SP_SYNC_STREAM && (own || state->stream == handle)))
      thread->closed = place;
    most = sp_load(&state->outstanding) > most ? sp_load(&state->outstanding) : most; /* markers of one stream */
  }
  if (!marked)
    return;
  uint64_t now_ns = sp_now_ns();
  /* The keeper's next look is soon enough if no idle time counts, and few markers and little work have piled up. */
  if (most < CLOSED_MAX && !(sp_grant_flags(device->grant) & (SP_GRANT_CONTENDED | SP_GRANT_LIMITED)) &&
      now_ns - sp_load(&device->closed_ns) < CLOSED_KICK_NS &&
      sp_device_in_flight(device) < sp_grant_budget_ns(device->grant) / CLOSED_MAX)
    return;
  sp_store(&device->closed_ns, now_ns);
  sp_keeper_kick(device);
}

/* The synchronising call has returned: note that the thread saw the end of the marker in thread->closed now, unless the
 * keeper has taken it out of the queue already. After a wait for an event also note the thread's launches, for
 * sp_stream_over. Takes queue_lock. */
void sp_streams_closed(struct sp_device *device, struct sp_thread *thread, enum sp_sync sync) {
  if (sync == SP_SYNC_EVENT)
    thread->event_launches = thread->launches[device->index] + 1;
  uint32_t place = thread->closed - 1;
  if (!thread->closed)
    return;
  uint64_t now_ns = sp_now_ns();
  pthread_mutex_lock(&device->queue_lock);
  if (device->queue_tail - place <= device->queue_tail - device->queue_head) /* the keeper has not come to it yet */
    sp_store(&device->seen_ns[place % SP_MARKERS_MAX], now_ns);
  pthread_mutex_unlock(&device->queue_lock);
  thread->closed = 0;
}

/* Before the stream's context goes: wait, for 100 ms at most, until the keeper is not inside the driver for a marker of
 * this stream. */
static void await_keeper(const struct sp_stream_state *state) {
  for (int look = 0; look < SP_LOOKS_MAX; look++) {
    if (sp_load_acquire(&state->device->waiting_state) != state)
      return;
    sp_sleep_ns(SP_LOOK_NS);
  }
}

/* Wait, for 100 ms at most, until the keeper has seen the end of the stream's work. */
static void await_work(const struct sp_stream_state *state) {
  for (int look = 0; look < SP_LOOKS_MAX && sp_load_acquire(&state->outstanding); look++)
    sp_sleep_ns(SP_LOOK_NS);
}

/* Record a last marker behind the stream's work. While all its events are in use, wait, for 100 ms at most. */
static void mark_last(struct sp_stream_state *state) {
  for (int look = 0; look < SP_LOOKS_MAX && sp_load(&state->pending_ns) && !sp_stream_mark(state, false, false);
       look++) {
    if (!sp_load(&state->outstanding))
      return; /* an event is free, so the driver has refused */
    sp_sleep_ns(SP_LOOK_NS);
  }
}

/* Take the lock, but wait for 100 ms at most: its holder may be waiting in the driver for room in the stream. False: it
 * was not taken. */
static bool lock_for_a_while(pthread_mutex_t *lock) {
  for (int look = 0; look < SP_LOOKS_MAX; look++) {
    if (!pthread_mutex_trylock(lock))
      return true;
    sp_sleep_ns(SP_LOOK_NS);
  }
  return false;
}

/* A stream (`context` is NULL) or a context (`stream` is NULL) is about to be destroyed: record last markers and forget
 * the states. The waits for other threads are bounded. Takes the locks of the states and table_lock. */
void sp_streams_forget(void *stream, void *context) {
  const struct sp_driver *driver = sp_driver();
  CUcontext current = NULL;
  if (context && driver->cuCtxGetCurrent)
    driver->cuCtxGetCurrent(&current);
  uint32_t count = sp_load_acquire(&state_count);
  for (uint32_t index = 0; index < count; index++) {
    struct sp_stream_state *state = &states[index];
    /* If a context goes, states of destroyed streams count, too: the keeper may still wait for their last marker. */
    if (context ? (void *)state->context != context || sp_load(&state->dead) : !state->live || state->stream != stream)
      continue; /* it is not meant */
    if (!context && default_stream(state->stream))
      continue; /* a program cannot destroy it */
    /* A marker needs an existing stream, and the stream's context must be current to create an event. */
    if (state->live && (!context || current == context))
      mark_last(state);
    if (context)
      await_work(state); /* the driver waits, too: work that runs on is on the device, so the turn is not drained */
    /* A marker that a thread is just recording must be in the stream before the stream is destroyed. */
    bool locked = lock_for_a_while(&state->lock);
    pthread_mutex_lock(&table_lock);
    sp_store_release(&state->live, false);
    /* Before the waits below: the context may go on meanwhile, and launches into its streams need new states. */
    sp_add_full(&sp_this_process.stream_generation, 1);
    if (context)
      sp_store_full(&state->dead, true); /* pairs with wait_for_marker in keeper.c */
    /* Work that could not be marked counts as passed, because its end will never be known. */
    if (sp_exchange(&state->pending_ns, 0))
      sp_add(&state->device->passed, sp_load(&state->batch_launches));
    /* A capture ends with its stream. But a context may stay after all (the release of a primary one), and so may its
     * captures: if it does go, sp_streams_gone ends them. */
    if (!context)
      sp_captures_end_with(state);
    pthread_mutex_unlock(&table_lock);
    if (locked)
      pthread_mutex_unlock(&state->lock);
    if (context) {
      await_keeper(state);
      /* Another context may get the same handle. */
      sp_store_release(&state->device->stale, true);
    }
  }
}

/* A context is really gone, and so are the captures that were open in its streams: they count no more. */
void sp_streams_gone(const void *context) {
  pthread_mutex_lock(&table_lock);
  for (uint32_t index = 0; index < state_count; index++)
    if (states[index].context == context && sp_load(&states[index].dead))
      sp_captures_end_with(&states[index]);
  pthread_mutex_unlock(&table_lock);
}
