/* Lanes: the state of each stream, from its first launch to the end of its context. */
#define _GNU_SOURCE
#include <string.h>

#include "hook/gate/guest.h"
#include "region/uncancelled.h"

#define CLOSED_MAX     8u       /* at most this many markers behind ended work wait for the keeper's next look */
#define CLOSED_KICK_NS 1000000u /* the keeper is woken for one at most this often: a wake-up costs time */

static struct sp_lane lanes[SP_LANES_MAX];
static uint32_t lane_count;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the creation and forgetting of lanes */

static bool default_stream(const void *stream) {
  return (uintptr_t)stream <= 2;
}

static bool own_stream(const void *stream, bool per_thread) {
  return stream == CU_STREAM_PER_THREAD || (per_thread && stream == NULL);
}

static bool lane_matches(const struct sp_lane *lane, const struct sp_device *device, const void *stream,
                         bool per_thread, uint32_t owner, const void *context) {
  if (!__atomic_load_n(&lane->live, __ATOMIC_ACQUIRE))
    return false;
  if (lane->device != device || lane->owner_thread != owner)
    return false;
  if (owner)
    return lane->context == context;
  if (lane->stream != stream)
    return false;
  return !default_stream(stream) || (lane->context == context && lane->per_thread == per_thread);
}

/* Drop the events of a dead context: they were destroyed with it. */
static void drop_events(struct sp_lane *lane) {
  memset(lane->events, 0, sizeof lane->events);
  lane->start_event = NULL;
}

/* A lane to use for a stream of the context. A lane of another living context cannot be taken: its events belong to
 * that context, and the keeper's clock may hold one. */
static struct sp_lane *free_lane(const void *context) {
  for (uint32_t index = 0; index < SP_LANES_MAX; index++) {
    struct sp_lane *lane = &lanes[index];
    if (index < lane_count &&
        (lane->live || lane->outstanding || sp_load(&lane->pending_ns) || (lane->context != context && !lane->dead)))
      continue;
    if (index >= lane_count) {
      if (pthread_mutex_init(&lane->lock, NULL))
        return NULL;
      __atomic_store_n(&lane_count, index + 1, __ATOMIC_RELEASE);
    }
    return lane;
  }
  return NULL;
}

/* Find a stream's own context and that context's device, where its work runs and its events are made. They may differ
 * from the current ones. If the driver does not tell, the arguments stay, which is right for the default streams. */
static void find_home(void *stream, CUcontext *context, struct sp_device **device) {
  const struct sp_driver *driver = sp_driver();
  CUcontext own = NULL, current = *context;
  if (default_stream(stream) || !driver->cuStreamGetCtx || driver->cuStreamGetCtx(stream, &own) || !own ||
      own == current)
    return;
  *context = own;
  if (sp_guest.single_device || !sp_context_enter(own))
    return;
  struct sp_device *found = sp_device_current();
  sp_context_leave();
  *device = found;
}

struct sp_lane *sp_lane_find(struct sp_device *device, struct sp_thread *thread, void *stream, bool per_thread) {
  SP_UNCANCELLED;
  if (stream == CU_STREAM_LEGACY) { /* both names of the legacy stream have the same lane */
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
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++)
    if (lane_matches(&lanes[index], device, stream, per_thread, owner, context))
      return &lanes[index];
  pthread_mutex_lock(&table_lock);
  struct sp_lane *lane = NULL;
  for (uint32_t index = 0; index < lane_count && !lane; index++) /* another thread may have made it meanwhile */
    if (lane_matches(&lanes[index], device, stream, per_thread, owner, context))
      lane = &lanes[index];
  if (!lane && (lane = free_lane(context))) {
    if (lane->dead)
      drop_events(lane);
    sp_store(&lane->device, device); /* the keeper scans lanes that are being set up, too */
    lane->context = context;
    lane->stream = stream;
    lane->per_thread = per_thread;
    lane->owner_thread = owner;
    lane->scale = 0;
    lane->edged_ns = 0;
    lane->foreign = false;
    lane->pieces = 0;
    sp_store(&lane->pieces_done, 0);
    sp_store(&lane->batch_unit, NULL);
    sp_store(&lane->batch_mixed, false);
    sp_store(&lane->batch_guessed, false);
    sp_store(&lane->awaits, false);
    sp_store(&lane->batch_launches, 0);
    sp_store(&lane->captures, 0);
    sp_store(&lane->dead, false);
    __atomic_store_n(&lane->live, true, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&table_lock);
  return lane;
}

/* The lane of a stream handle, in any context; NULL for the default streams, which outlive every capture. */
struct sp_lane *sp_lane_of_handle(const void *stream) {
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count && !default_stream(stream); index++)
    if (__atomic_load_n(&lanes[index].live, __ATOMIC_ACQUIRE) && lanes[index].stream == stream)
      return &lanes[index];
  return NULL;
}

bool sp_lanes_pending(const struct sp_device *device) {
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++) {
    const struct sp_lane *lane = &lanes[index];
    if (sp_load(&lane->device) != device || sp_load(&lane->dead))
      continue;
    /* In this order, because a thread that records a marker moves the work from the first counter to the second. */
    if (__atomic_load_n(&lane->pending_ns, __ATOMIC_ACQUIRE) || __atomic_load_n(&lane->outstanding, __ATOMIC_ACQUIRE))
      return true;
  }
  return false;
}

bool sp_lanes_unmarked(const struct sp_device *device) {
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++)
    if (sp_load(&lanes[index].device) == device && !sp_load(&lanes[index].dead) &&
        __atomic_load_n(&lanes[index].pending_ns, __ATOMIC_ACQUIRE) &&
        !__atomic_load_n(&lanes[index].outstanding, __ATOMIC_ACQUIRE))
      return true;
  return false;
}

bool sp_lanes_sparse(const struct sp_device *device, uint64_t now_ns) {
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++) {
    const struct sp_lane *lane = &lanes[index];
    uint64_t pending_ns = sp_load(&lane->pending_ns);
    if (pending_ns && sp_load(&lane->device) == device && !sp_load(&lane->dead) && !sp_load(&lane->outstanding) &&
        now_ns > sp_load(&lane->batch_ns) + 2 * pending_ns)
      return true;
  }
  return false;
}

void sp_lanes_mark_all(struct sp_device *device, void *context, enum sp_recorder recorder) {
  const struct sp_driver *driver = sp_driver();
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++) {
    struct sp_lane *lane = &lanes[index];
    if (sp_load(&lane->device) != device || !sp_load(&lane->pending_ns) || sp_load(&lane->dead))
      continue;
    if (context && lane->context != context)
      continue;
    if (!context && driver->cuCtxSetCurrent)
      driver->cuCtxSetCurrent(lane->context); /* an event is created in the current context */
    if (sp_lane_mark_by(lane, recorder, false))
      sp_keeper_kick(device);
  }
}

/* May a marker be recorded into the lane? Another thread's own stream could be reached only through the legacy stream,
 * for which all other streams would wait. */
static bool closes(struct sp_lane *lane, const struct sp_device *device, const void *context, uint32_t owner) {
  return sp_load(&lane->pending_ns) && sp_load(&lane->device) == device &&
         __atomic_load_n(&lane->live, __ATOMIC_ACQUIRE) && (void *)lane->context == context &&
         (!lane->owner_thread || lane->owner_thread == owner);
}

bool sp_lane_over(const struct sp_lane *lane, const struct sp_thread *thread) {
  const struct sp_device *device = lane->device;
  return thread->event_launches == thread->launches[device->index] + 1 && !lane->owner_thread &&
         !(sp_grant_flags(device->grant) & (SP_GRANT_CONTENDED | SP_GRANT_LIMITED)) && sp_driver()->cuStreamQuery &&
         sp_driver()->cuStreamQuery(lane->stream) == CUDA_SUCCESS;
}

void sp_lanes_close(struct sp_device *device, struct sp_thread *thread, void *stream, bool per_thread,
                    enum sp_sync sync) {
  SP_UNCANCELLED;
  const struct sp_driver *driver = sp_driver();
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE), owner = sp_thread_index(thread) + 1, most = 0;
  CUcontext context = NULL;
  bool own = own_stream(stream, per_thread), marked = false;
  thread->closed = 0;
  for (uint32_t index = 0; index < count; index++) {
    struct sp_lane *lane = &lanes[index];
    if (!sp_load(&lane->pending_ns))
      continue;
    if (!context && (!driver->cuCtxGetCurrent || driver->cuCtxGetCurrent(&context) || !context))
      return;
    if (!closes(lane, device, context, owner))
      continue;
    if (sync == SP_SYNC_STREAM && !(own ? lane->owner_thread != 0 : default_stream(stream) || lane->stream == stream))
      continue;
    if (sync == SP_SYNC_EVENT && sp_load(&lane->outstanding))
      continue; /* the stream seems to go on: it will be marked in its time */
    if (sp_lane_over(lane, thread))
      continue;
    uint32_t place = sp_lane_mark_by(lane, SP_BY_CALLER, false);
    if (!place)
      continue;
    marked = true;
    bool all = sync == SP_SYNC_CONTEXT, this = own || lane->stream == (default_stream(stream) ? NULL : stream);
    if (all || (sync == SP_SYNC_STREAM && this))
      thread->closed = place;
    most = sp_load(&lane->outstanding) > most ? sp_load(&lane->outstanding) : most;
  }
  if (!marked)
    return;
  uint64_t now_ns = sp_now_ns();
  if (most < CLOSED_MAX && !(sp_grant_flags(device->grant) & (SP_GRANT_CONTENDED | SP_GRANT_LIMITED)) &&
      now_ns - sp_load(&device->closed_ns) < CLOSED_KICK_NS &&
      sp_device_in_flight(device) < sp_grant_budget_ns(device->grant) / CLOSED_MAX)
    return;
  sp_store(&device->closed_ns, now_ns);
  sp_keeper_kick(device);
}

void sp_lanes_closed(struct sp_device *device, struct sp_thread *thread, enum sp_sync sync) {
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

/* Wait, for 100 ms at most, until the keeper is not inside the driver for this lane. */
static void await_keeper(const struct sp_lane *lane) {
  for (int look = 0; look < 2000; look++) {
    if (__atomic_load_n(&lane->device->waiting_lane, __ATOMIC_ACQUIRE) != lane)
      return;
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  }
}

/* Wait, for 100 ms at most, until the keeper has seen the end of the lane's work. */
static void await_work(const struct sp_lane *lane) {
  for (int look = 0; look < 2000 && __atomic_load_n(&lane->outstanding, __ATOMIC_ACQUIRE); look++)
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Record a last marker behind the lane's work. While all its events are in use, wait, for 100 ms at most. */
static void mark_last(struct sp_lane *lane) {
  for (int look = 0; look < 2000 && sp_load(&lane->pending_ns) && !sp_lane_mark(lane, false, false); look++) {
    if (!sp_load(&lane->outstanding))
      return; /* an event is free, so the driver has refused */
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  }
}

/* Take the lock, but wait for 100 ms at most: its holder may be waiting in the driver for room in the stream. */
static bool lock_for_a_while(pthread_mutex_t *lock) {
  for (int look = 0; look < 2000; look++) {
    if (!pthread_mutex_trylock(lock))
      return true;
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  }
  return false;
}

void sp_lanes_forget(void *stream, void *context) {
  SP_UNCANCELLED;
  const struct sp_driver *driver = sp_driver();
  CUcontext current = NULL;
  if (context && driver->cuCtxGetCurrent)
    driver->cuCtxGetCurrent(&current);
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++) {
    struct sp_lane *lane = &lanes[index];
    /* If a context goes, lanes of destroyed streams count, too: the keeper may still wait for their last marker. */
    if (context ? (void *)lane->context != context || sp_load(&lane->dead) : !lane->live || lane->stream != stream)
      continue;
    if (!context && default_stream(lane->stream))
      continue;
    /* A marker needs an existing stream, and the lane's context must be current to create an event. */
    if (lane->live && (!context || current == context))
      mark_last(lane);
    if (context)
      await_work(lane); /* the driver waits, too: work that runs on is on the device, so the turn is not drained */
    /* A marker that a thread is just recording must be in the stream before the stream is destroyed. */
    bool locked = lock_for_a_while(&lane->lock);
    pthread_mutex_lock(&table_lock);
    __atomic_store_n(&lane->live, false, __ATOMIC_RELEASE);
    /* Before the waits below: the context may go on meanwhile, and launches into its streams need new lanes. */
    __atomic_fetch_add(&sp_guest.lane_generation, 1, __ATOMIC_ACQ_REL);
    if (context)
      __atomic_store_n(&lane->dead, true, __ATOMIC_SEQ_CST); /* pairs with wait_for_marker in keeper.c */
    /* Work that could not be marked counts as passed, because its end will never be known. */
    if (__atomic_exchange_n(&lane->pending_ns, 0, __ATOMIC_ACQ_REL))
      __atomic_fetch_add(&lane->device->passed, sp_load(&lane->batch_launches), __ATOMIC_RELAXED);
    /* A capture ends with its stream. But a context may stay after all (the release of a primary one), and so may its
     * captures: if it does go, sp_lanes_gone ends them. */
    if (!context)
      sp_captures_end_with(lane);
    pthread_mutex_unlock(&table_lock);
    if (locked)
      pthread_mutex_unlock(&lane->lock);
    if (context) {
      await_keeper(lane);
      /* Another context may get the same handle. */
      __atomic_store_n(&lane->device->stale, true, __ATOMIC_RELEASE);
    }
  }
}

void sp_lanes_gone(const void *context) {
  pthread_mutex_lock(&table_lock);
  for (uint32_t index = 0; index < lane_count; index++)
    if (lanes[index].context == context && sp_load(&lanes[index].dead))
      sp_captures_end_with(&lanes[index]);
  pthread_mutex_unlock(&table_lock);
}
