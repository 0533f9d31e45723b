/*
 * Records markers behind the work of a stream.
 *
 * A marker is a timing event behind the work. It gives both answers that the gate needs: progress (the keeper waits for
 * the marker and wakes the gate) and durations (the elapsed device time between two markers of a stream). Launching
 * threads record markers, but never query or wait for one.
 *
 * The driver may make a record wait for room in its stream. So the recording thread holds no lock then that other
 * threads wait for: the state's own lock is only tried. A signal handler may leave that wait by a jump: then
 * sp_record_left undoes the record.
 */
#include <string.h>

#include "hook/gate/process.h"
#include "region/uncancelled.h"

#define PIECES_MAX 512u /* half of what the driver's queue for a stream holds; copies and waits are not counted */

/* May the stream be full? Then the driver waits for room, so only the thread that launches there, or the keeper, may
 * record. The stream may itself wait for a thread of the program, and another recorder could be that thread. */
static bool may_be_full(const struct sp_stream_state *state) {
  return state->pieces + sp_load(&state->batch_launches) - sp_load(&state->pieces_done) > PIECES_MAX;
}

/* Reserve a place in the queue, before the driver is called: so the queue need not be locked during the call. False: it
 * is full. */
static bool reserve_place(struct sp_device *device) {
  pthread_mutex_lock(&device->queue_lock);
  bool room = device->queue_tail - device->queue_head + device->queue_kept < SP_MARKERS_MAX;
  if (room)
    device->queue_kept++;
  pthread_mutex_unlock(&device->queue_lock);
  return room;
}

/* End a reservation: the marker gets the next place of the queue. NULL: there is no marker. Returns the place + 1. */
static uint32_t use_place(struct sp_device *device, const struct sp_marker *marker) {
  pthread_mutex_lock(&device->queue_lock);
  device->queue_kept--;
  uint32_t place = device->queue_tail;
  if (marker) {
    device->queue[place % SP_MARKERS_MAX] = *marker;
    sp_store(&device->seen_ns[place % SP_MARKERS_MAX], 0);
    sp_store_release(&device->queue_tail, place + 1);
  }
  pthread_mutex_unlock(&device->queue_lock);
  return place + 1;
}

/* Move the stream's pending work into the marker. Other threads can always see the work: `outstanding` rises before
 * `pending_ns` falls (pairs with sp_streams_pending), and `marked_ns` rises before the event can finish. */
static void take_pending(struct sp_stream_state *state, struct sp_marker *marker) {
  marker->first_ns = sp_load(&state->batch_began_ns);
  marker->profile = sp_load(&state->batch_mixed) ? NULL : sp_load(&state->batch_profile);
  marker->version = sp_load(&state->batch_version);
  marker->guessed = sp_load(&state->batch_guessed);
  marker->launches = sp_load(&state->batch_launches);
  sp_add_full(&state->outstanding, 1);
  marker->work_ns = sp_exchange(&state->pending_ns, 0);
  sp_store(&state->batch_profile, NULL);
  sp_store(&state->batch_mixed, false);
  sp_store(&state->batch_guessed, false);
  sp_store(&state->batch_launches, 0);
  sp_add_full(&state->device->marked_ns, marker->work_ns);
  marker->stretch = sp_load(&state->device->stretch);
  marker->recorded_ns = sp_now_ns();
  marker->pieces = state->pieces + marker->launches + 1;
}

/* The driver has refused the marker: its work is pending again, in front of what has been launched since. The counters
 * change in the opposite order of take_pending. */
static void put_back(struct sp_stream_state *state, const struct sp_marker *marker) {
  if (sp_load(&state->batch_profile) || !marker->profile) {
    sp_store(&state->batch_mixed, true); /* nothing is learned from it, even if it is all of one unit */
  } else {
    sp_store(&state->batch_version, marker->version);
    sp_store(&state->batch_profile, marker->profile);
  }
  if (marker->guessed)
    sp_store(&state->batch_guessed, true);
  sp_store(&state->batch_began_ns, marker->first_ns);
  sp_store(&state->batch_launches, sp_load(&state->batch_launches) + marker->launches);
  sp_add_full(&state->pending_ns, marker->work_ns);
  sp_sub_full(&state->device->marked_ns, marker->work_ns);
  sp_sub_full(&state->outstanding, 1);
}

/* Give up work that will never get a marker, because its context has failed for good, or its stream was destroyed
 * unseen. It counts as finished, and as passed. */
static void give_up(struct sp_stream_state *state, const struct sp_marker *marker) {
  sp_add(&state->device->passed, marker->launches);
  sp_sub_full(&state->device->marked_ns, marker->work_ns);
  sp_sub_full(&state->outstanding, 1);
}

/* Is the driver's error permanent? Errors about captures, for want of memory, and of the call itself (not supported, or
 * an invalid value) are not. */
static bool is_final(CUresult result) {
  return result != CUDA_ERROR_OUT_OF_MEMORY && result != CUDA_ERROR_NOT_SUPPORTED &&
         result != CUDA_ERROR_INVALID_VALUE &&
         (result < CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result > CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
}

/* Record a marker; the caller has locked the state, and sp_stream_mark_by tells the parameters. `recording`: the
 * thread's note; NULL: it makes none. Returns the place in the queue + 1; 0: it was not recorded, and the work stays
 * pending, or is given up after a permanent error. */
static uint32_t mark_locked(struct sp_stream_state *state, enum sp_recorder recorder, bool edged,
                            struct sp_recording *recording) {
  const struct sp_driver *driver = sp_driver();
  struct sp_device *device = state->device;
  CUevent *event = &state->events[state->next_event];
  /* Two events stay out of reuse: the last finished, which the clock goes on from, and the one to come. */
  if (!state->live || state->dead || sp_load(&state->outstanding) >= SP_STREAM_EVENTS - 2 || !reserve_place(device))
    return 0;
  bool entered = sp_context_enter(state->context);
  CUresult result = *event ? CUDA_SUCCESS : driver->cuEventCreate(event, CU_EVENT_BLOCKING_SYNC);
  struct sp_marker marker = {
      .state = state, .event = *event, .foreign = recorder == SP_BY_OTHER || recorder == SP_BY_KEEPER};
  take_pending(state, &marker);
  marker.alone = edged && marker.launches == 1; /* it measures this launch */
  marker.awaits = recorder == SP_BY_LAUNCHER && marker.launches == 0 && sp_load(&state->awaits); /* edge of a wait */
  if (recording) {
    recording->marker = marker;
    recording->entered = entered;
  }
  if (result == CUDA_SUCCESS)
    result = sp_stream_record(state, *event, recorder == SP_BY_LAUNCHER, recording);
  if (recording && recording->undone)
    return 0; /* sp_record_left has undone all of this, and unlocked the state */
  if (entered)
    sp_context_leave();
  if (result == CUDA_SUCCESS) {
    state->pieces = marker.pieces;
    state->next_event = (state->next_event + 1) % SP_STREAM_EVENTS;
    return use_place(device, &marker);
  }
  use_place(device, NULL);
  if (is_final(result))
    give_up(state, &marker);
  else
    put_back(state, &marker);
  return 0;
}

/* Begin the thread's note of the record that it is about to make, for sp_record_left. `cancel_state`: whether the
 * thread could be cancelled before. Returns the note; NULL: `thread` is NULL, as for the keeper, which makes none. */
static struct sp_recording *begin_recording(struct sp_thread *thread, int cancel_state) {
  if (!thread)
    return NULL;
  thread->recording.cancel_state = cancel_state;
  thread->recording.undone = false;
  return &thread->recording;
}

/* The thread may have left a record by a jump, while the driver waited for room in the stream: undo what the record has
 * changed so far. Whether the event was recorded is not known: its work is pending again, and gets another marker. */
void sp_record_left(struct sp_thread *thread) {
  struct sp_recording *left = &thread->recording;
  struct sp_stream_state *state = left->state;
  int ours; /* the cancellation state during the record: not needed */
  if (!state)
    return;
  left->state = NULL;
  sp_stream_record_left();
  if (left->entered)
    sp_context_leave();
  if (left->marker.state) {
    use_place(state->device, NULL);
    if (state->live && !state->dead)
      put_back(state, &left->marker);
    else /* the stream was destroyed meanwhile: no marker will ever take its work */
      give_up(state, &left->marker);
  }
  left->undone = true; /* the call may be under way after all, where the hook took one inside it for one after it */
  pthread_mutex_unlock(&state->lock);
  pthread_setcancelstate(left->cancel_state, &ours);
}

/* Record a marker behind the stream's pending work; the keeper is not woken. `recorder`: which thread the caller is.
 * `edged`: it has recorded another marker just before its launch. Returns the marker's place in the queue + 1; 0:
 * another thread records there now, no event is free, the stream may be full, or the driver has refused. */
uint32_t sp_stream_mark_by(struct sp_stream_state *state, enum sp_recorder recorder, bool edged) {
  const struct sp_driver *driver = sp_driver();
  if (!driver->cuEventCreate || !driver->cuEventRecord)
    return 0;
  SP_UNCANCELLED;
  if (pthread_mutex_trylock(&state->lock))
    return 0; /* another thread is recording a marker at this moment */
  struct sp_thread *thread = recorder <= SP_BY_CALLER ? sp_thread_self() : sp_thread_known(); /* the keeper has none */
  struct sp_recording *recording = begin_recording(thread, sp_cancel_state);
  /* Neither the launching thread nor the keeper: it may not wait for room. */
  uint32_t place = recorder > SP_BY_LAUNCHER && recorder < SP_BY_KEEPER && may_be_full(state)
                       ? 0
                       : mark_locked(state, recorder, edged, recording);
  if (!recording || !recording->undone)
    pthread_mutex_unlock(&state->lock);
  return place;
}

/* Record a marker behind the stream's pending work and wake the keeper. `launching`: the caller launches into the
 * stream; `edged`: it has recorded another marker just before that launch. False: none was recorded. */
bool sp_stream_mark(struct sp_stream_state *state, bool launching, bool edged) {
  bool marked = sp_stream_mark_by(state, launching ? SP_BY_LAUNCHER : SP_BY_CALLER, edged) != 0;
  if (marked)
    sp_keeper_kick(state->device);
  return marked;
}

/* Record a marker as the launching thread, without waking the keeper: the time of this marker measures the work before
 * it or behind it. `edged`: the thread has recorded another marker just before its launch. False: none was recorded. */
bool sp_stream_measure(struct sp_stream_state *state, bool edged) {
  return sp_stream_mark_by(state, SP_BY_LAUNCHER, edged) != 0;
}

/* Before a turn is entered: record the event that shows when the next launch began to run. (A turn may be granted
 * before its predecessor's work has ended.) device->start_state becomes its stream, or NULL if none was recorded. */
void sp_stream_start(struct sp_stream_state *state) {
  const struct sp_driver *driver = sp_driver();
  struct sp_device *device = state->device;
  SP_UNCANCELLED;
  sp_store_release(&device->start_state, NULL);
  if (!driver->cuEventCreate || !driver->cuEventRecord || pthread_mutex_trylock(&state->lock))
    return;
  bool entered = sp_context_enter(state->context);
  struct sp_recording *recording = begin_recording(sp_thread_self(), sp_cancel_state);
  if (recording) {
    recording->marker.state = NULL; /* the event is no marker */
    recording->entered = entered;
  }
  state->start_idle = !sp_load(&state->awaits);
  state->start_ns = sp_now_ns();
  if (state->live && !state->dead &&
      (state->start_event || driver->cuEventCreate(&state->start_event, CU_EVENT_BLOCKING_SYNC) == CUDA_SUCCESS) &&
      sp_stream_record(state, state->start_event, true, recording) == CUDA_SUCCESS)
    sp_store_release(&device->start_state, state);
  if (recording && recording->undone)
    return; /* sp_record_left has unlocked the state */
  if (entered)
    sp_context_leave();
  pthread_mutex_unlock(&state->lock);
}
