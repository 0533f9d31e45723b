/*
 * Lanes: what a stream has in flight, and the markers that tell when it is done.
 *
 * A marker is a timing event recorded behind the work. One mechanism gives both answers that the gate needs: progress
 * (the keeper waits for the marker and wakes the gate) and durations (elapsed device time between two markers of a
 * lane). Launching threads record markers and never query or wait for one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "guest.h"

#define ALONE_SLACK_NS 200000u /* the mapping of the two clocks is coarser than an elapsed time */

static struct sp_lane lanes[SP_LANES_MAX];
static uint32_t lane_count;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; /* creation and forgetting of lanes */

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

/* The events of a dead context went with it. */
static void drop_events(struct sp_lane *lane) {
  memset(lane->events, 0, sizeof lane->events);
  lane->start_event = lane->last_event = NULL;
  lane->next_event = 0;
}

/* A lane of a living context stays with it: its events are that context's, and the keeper's clock may hold one. */
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

struct sp_lane *sp_lane_find(struct sp_device *device, struct sp_thread *thread, void *stream, bool per_thread) {
  if (stream == CU_STREAM_LEGACY) { /* one lane for both names of the legacy stream */
    stream = per_thread ? stream : NULL;
  }
  uint32_t owner = own_stream(stream, per_thread) ? sp_thread_index(thread) + 1 : 0;
  CUcontext context = NULL;
  const struct sp_driver *driver = sp_driver();
  if (!driver->cuCtxGetCurrent || driver->cuCtxGetCurrent(&context))
    return NULL;
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++)
    if (lane_matches(&lanes[index], device, stream, per_thread, owner, context))
      return &lanes[index];
  pthread_mutex_lock(&table_lock);
  struct sp_lane *lane = NULL;
  for (uint32_t index = 0; index < lane_count && !lane; index++) /* another thread may have been faster */
    if (lane_matches(&lanes[index], device, stream, per_thread, owner, context))
      lane = &lanes[index];
  if (!lane && (lane = free_lane(context))) {
    if (lane->dead)
      drop_events(lane);
    sp_store(&lane->device, device); /* the keeper scans lanes that are being set up */
    lane->context = context;
    lane->stream = stream;
    lane->per_thread = per_thread;
    lane->owner_thread = owner;
    sp_store(&lane->batch_unit, NULL);
    sp_store(&lane->batch_mixed, false);
    sp_store(&lane->batch_launches, 0);
    sp_store(&lane->captures, 0);
    sp_store(&lane->dead, false);
    __atomic_store_n(&lane->live, true, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&table_lock);
  return lane;
}

bool sp_lane_capturing(void *stream, bool per_thread) {
  const struct sp_driver *driver = sp_driver();
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = CUDA_SUCCESS;
  if (per_thread && driver->cuStreamIsCapturing_ptsz)
    result = driver->cuStreamIsCapturing_ptsz(stream, &status);
  else if (driver->cuStreamIsCapturing)
    result = driver->cuStreamIsCapturing(stream, &status);
  /* 906: the legacy stream while a capture that it would join is open. Any touch would invalidate it. */
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool decrement(uint32_t *count) {
  uint32_t before = sp_load(count);
  while (before &&
         !__atomic_compare_exchange_n(count, &before, before - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
  return before != 0;
}

/* The lane of a handle, of whatever context; NULL for the default streams, which outlive every capture. */
static struct sp_lane *lane_of_handle(const void *stream) {
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count && !default_stream(stream); index++)
    if (__atomic_load_n(&lanes[index].live, __ATOMIC_ACQUIRE) && lanes[index].stream == stream)
      return &lanes[index];
  return NULL;
}

void sp_lanes_capture_begin(void *stream) {
  struct sp_lane *lane = lane_of_handle(stream);
  __atomic_fetch_add(&sp_guest.captures, 1, __ATOMIC_SEQ_CST);
  if (lane)
    __atomic_fetch_add(&lane->captures, 1, __ATOMIC_RELAXED);
}

void sp_lanes_capture_end(void *stream) {
  struct sp_lane *lane = lane_of_handle(stream);
  if (lane)
    decrement(&lane->captures);
  decrement(&sp_guest.captures);
}

/* Record into the lane's stream; from another thread, a thread's own stream is reached through the legacy stream,
 * which waits for it. */
static CUresult record(const struct sp_lane *lane, CUevent event) {
  const struct sp_driver *driver = sp_driver();
  void *stream = lane->stream;
  bool per_thread = lane->per_thread;
  struct sp_thread *self = lane->owner_thread ? sp_thread_self() : NULL;
  if (lane->owner_thread && (!self || sp_thread_index(self) + 1 != lane->owner_thread)) {
    stream = CU_STREAM_LEGACY;
    per_thread = false;
  }
  if (sp_load(&sp_guest.captures) && sp_lane_capturing(stream, per_thread))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (per_thread && driver->cuEventRecord_ptsz)
    return driver->cuEventRecord_ptsz(event, stream);
  return driver->cuEventRecord(event, stream);
}

bool sp_lane_mark(struct sp_lane *lane) {
  const struct sp_driver *driver = sp_driver();
  if (!driver->cuEventCreate || !driver->cuEventRecord)
    return false;
  if (pthread_mutex_trylock(&lane->lock))
    return false; /* somebody is marking it at this moment */
  struct sp_device *device = lane->device;
  bool marked = false;
  CUevent *event = &lane->events[lane->next_event];
  /* Two events stay out of reuse: the left edge of the oldest span and the one to come. */
  if (lane->live && !lane->dead && sp_load(&lane->outstanding) < SP_LANE_EVENTS - 2 &&
      (*event || driver->cuEventCreate(event, CU_EVENT_BLOCKING_SYNC) == CUDA_SUCCESS)) {
    struct sp_marker marker = {.lane = lane, .event = *event};
    marker.follows = lane->last_event && sp_load(&lane->outstanding) > 0; /* not counting this one */
    marker.unit = sp_load(&lane->batch_mixed) ? NULL : sp_load(&lane->batch_unit);
    marker.launches = sp_load(&lane->batch_launches);
    /* Work is always seen somewhere: the count goes up before the pending work vanishes into the marker (pairs with
     * sp_lanes_pending), and `marked` before the event can finish. */
    __atomic_fetch_add(&lane->outstanding, 1, __ATOMIC_ACQ_REL);
    marker.work_ns = __atomic_exchange_n(&lane->pending_ns, 0, __ATOMIC_ACQ_REL);
    sp_store(&lane->batch_unit, NULL);
    sp_store(&lane->batch_mixed, false);
    sp_store(&lane->batch_launches, 0);
    __atomic_fetch_add(&device->marked_ns, marker.work_ns, __ATOMIC_ACQ_REL);
    marker.recorded_ns = sp_now_ns();
    pthread_mutex_lock(&device->queue_lock);
    bool room = device->queue_tail - device->queue_head < SP_MARKERS_MAX;
    if (room && record(lane, *event) == CUDA_SUCCESS) {
      device->queue[device->queue_tail % SP_MARKERS_MAX] = marker;
      __atomic_store_n(&device->queue_tail, device->queue_tail + 1, __ATOMIC_RELEASE);
      lane->last_event = *event;
      lane->next_event = (lane->next_event + 1) % SP_LANE_EVENTS;
      marked = true;
    }
    pthread_mutex_unlock(&device->queue_lock);
    if (!marked) { /* back, in the opposite order */
      __atomic_fetch_add(&lane->pending_ns, marker.work_ns, __ATOMIC_ACQ_REL);
      __atomic_fetch_sub(&device->marked_ns, marker.work_ns, __ATOMIC_ACQ_REL);
      __atomic_fetch_sub(&lane->outstanding, 1, __ATOMIC_ACQ_REL);
    }
  }
  pthread_mutex_unlock(&lane->lock);
  if (marked)
    sp_keeper_kick(device);
  return marked;
}

void sp_lane_start(struct sp_lane *lane) {
  const struct sp_driver *driver = sp_driver();
  struct sp_device *device = lane->device;
  __atomic_store_n(&device->start_lane, NULL, __ATOMIC_RELEASE);
  if (!driver->cuEventCreate || !driver->cuEventRecord || pthread_mutex_trylock(&lane->lock))
    return;
  lane->start_ns = sp_now_ns();
  if (lane->live && !lane->dead &&
      (lane->start_event || driver->cuEventCreate(&lane->start_event, CU_EVENT_BLOCKING_SYNC) == CUDA_SUCCESS) &&
      record(lane, lane->start_event) == CUDA_SUCCESS)
    __atomic_store_n(&device->start_lane, lane, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lane->lock);
}

bool sp_lanes_pending(const struct sp_device *device) {
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++) {
    const struct sp_lane *lane = &lanes[index];
    if (sp_load(&lane->device) != device || sp_load(&lane->dead))
      continue;
    /* In this order: a thread that is marking moves the work from the first to the second. */
    if (__atomic_load_n(&lane->pending_ns, __ATOMIC_ACQUIRE) || __atomic_load_n(&lane->outstanding, __ATOMIC_ACQUIRE))
      return true;
  }
  return false;
}

void sp_lanes_mark_all(struct sp_device *device) {
  const struct sp_driver *driver = sp_driver();
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++) {
    struct sp_lane *lane = &lanes[index];
    if (sp_load(&lane->device) != device || !sp_load(&lane->pending_ns) || sp_load(&lane->dead))
      continue;
    if (driver->cuCtxSetCurrent)
      driver->cuCtxSetCurrent(lane->context); /* creating an event needs it */
    sp_lane_mark(lane);
  }
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

/* The last chance of the lane's work to be marked: wait, for 100 ms at most, while every event is behind work. */
static void mark_last(struct sp_lane *lane) {
  for (int look = 0; look < 2000 && sp_load(&lane->pending_ns) && !sp_lane_mark(lane); look++) {
    if (!sp_load(&lane->outstanding))
      return; /* not for want of an event: the driver refuses */
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  }
}

void sp_lanes_forget(void *stream, void *context) {
  const struct sp_driver *driver = sp_driver();
  CUcontext current = NULL;
  if (context && driver->cuCtxGetCurrent)
    driver->cuCtxGetCurrent(&current);
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++) {
    struct sp_lane *lane = &lanes[index];
    /* Of a context also those whose stream is gone already: the keeper may still wait for their last marker. */
    if (context ? (void *)lane->context != context || sp_load(&lane->dead) : !lane->live || lane->stream != stream)
      continue;
    if (!context && default_stream(lane->stream))
      continue;
    /* An event is made in the current context, and recorded into a stream that is there. */
    if (lane->live && (!context || current == context))
      mark_last(lane);
    if (context)
      await_work(lane); /* as the driver will: what runs on is on the device, and the turn is not drained */
    pthread_mutex_lock(&table_lock);
    pthread_mutex_lock(&lane->lock); /* a marker that is being recorded is in the stream before the stream goes */
    __atomic_store_n(&lane->live, false, __ATOMIC_RELEASE);
    if (context)
      __atomic_store_n(&lane->dead, true, __ATOMIC_SEQ_CST); /* pairs with wait_for_marker in keeper.c */
    sp_store(&lane->pending_ns, 0); /* what could not be marked: nothing will tell when it ends */
    /* A capture ends with its stream. A context may stay after all (a release of a primary one), and its captures. */
    while (!context && decrement(&lane->captures))
      decrement(&sp_guest.captures);
    pthread_mutex_unlock(&lane->lock);
    pthread_mutex_unlock(&table_lock);
    if (context) {
      await_keeper(lane);
      /* Another context may get the same address. */
      __atomic_store_n(&lane->device->clock.stale, true, __ATOMIC_RELEASE);
    }
  }
  __atomic_fetch_add(&sp_guest.lane_generation, 1, __ATOMIC_ACQ_REL);
}

/* Does another lane of the device have work that has not been seen to end? */
static bool others_run(const struct sp_lane *lane) {
  uint32_t count = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
  for (uint32_t index = 0; index < count; index++) {
    const struct sp_lane *other = &lanes[index];
    if (other == lane || sp_load(&other->device) != lane->device || sp_load(&other->dead))
      continue;
    if (__atomic_load_n(&other->pending_ns, __ATOMIC_ACQUIRE) || __atomic_load_n(&other->outstanding, __ATOMIC_ACQUIRE))
      return true;
  }
  return false;
}

/* How long the device had none of our work before the marker that finished last, since `began_ns`: until the turn's
 * start event; and after that, or after the marker before, where its span is longer than its work is predicted to be,
 * but only until all of that had been launched: a wrong prediction errs by no more than the launching took. */
static uint64_t starved_ns(struct sp_device *device, const struct sp_marker *marker, uint64_t began_ns) {
  uint64_t ended_ns = sp_load(&device->ended_ns), span_ns = device->clock.span_ns, before_ns = 0;
  if (device->clock.started) {
    device->joint.span_ns = device->joint.work_ns = 0;
    if (ended_ns > began_ns + span_ns)
      before_ns = ended_ns - began_ns - span_ns;
    began_ns += before_ns;
  }
  if (!device->joint.work_ns)
    device->joint.began_ns = began_ns;
  device->joint.span_ns += span_ns;
  device->joint.work_ns += marker->work_ns;
  if (others_run(marker->lane))
    return before_ns; /* asked again when the last of them ends */
  uint64_t work_ns = device->joint.work_ns;
  span_ns = device->joint.span_ns;
  began_ns = device->joint.began_ns;
  device->joint.span_ns = device->joint.work_ns = 0;
  if (span_ns <= work_ns || marker->recorded_ns <= began_ns)
    return before_ns;
  uint64_t idle_ns = span_ns - work_ns, launching_ns = marker->recorded_ns - began_ns;
  return before_ns + (idle_ns < launching_ns ? idle_ns : launching_ns);
}

void sp_marker_finish(struct sp_device *device, bool waited) {
  struct sp_marker marker = device->queue[device->queue_head % SP_MARKERS_MAX];
  struct sp_lane *lane = marker.lane;
  uint64_t began_ns = sp_load(&device->began_ns);
  bool alone = !device->joint.work_ns; /* of no other lane since the device was empty */
  if (waited && !sp_load(&lane->dead)) {
    sp_clock_finish(device, &marker);
    __atomic_fetch_add(&device->starved_ns, starved_ns(device, &marker, began_ns), __ATOMIC_RELAXED);
  }
  /* Work that stood alone has no left edge, but it took no longer than since the device was empty: a unit once measured
   * beside another share's work is not believed to be long for ever. */
  uint64_t since_ns = device->finished_ns > began_ns ? device->finished_ns - began_ns : 0;
  if (waited && alone && !device->joint.work_ns && !marker.follows && marker.unit &&
      since_ns + ALONE_SLACK_NS < marker.work_ns)
    sp_unit_learn(marker.unit, marker.launches, since_ns);
  if (waited && marker.follows && marker.unit && !sp_load(&lane->dead)) {
    /* The event before this one in the ring is the left edge; it is not reused while this marker is outstanding. */
    CUevent left = NULL;
    for (uint32_t index = 0; index < SP_LANE_EVENTS && !left; index++)
      if (lane->events[index] == marker.event)
        left = lane->events[(index + SP_LANE_EVENTS - 1) % SP_LANE_EVENTS];
    int64_t elapsed_ns = 0;
    if (sp_clock_elapsed_ns(left, marker.event, &elapsed_ns) && elapsed_ns >= 0) {
      sp_unit_learn(marker.unit, marker.launches, (uint64_t)elapsed_ns);
      uint64_t unit_ns = sp_load(&marker.unit->predicted_ns);
      uint64_t longest_ns = device->longest_ns - device->longest_ns / 1024; /* "lately": what is gone is forgotten */
      sp_store(&device->longest_ns, unit_ns > longest_ns ? unit_ns : longest_ns);
    }
  }
  pthread_mutex_lock(&device->queue_lock);
  __atomic_store_n(&device->queue_head, device->queue_head + 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&device->queue_lock);
  __atomic_fetch_sub(&lane->outstanding, 1, __ATOMIC_ACQ_REL);
  __atomic_fetch_add(&device->completed_ns, marker.work_ns, __ATOMIC_ACQ_REL);
}
