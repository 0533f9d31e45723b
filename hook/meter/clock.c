/*
 * Computes when markers finished, on the host's clock. Only the keeper runs this. It wakes some microseconds after a
 * marker, an event behind work in a stream, has finished.
 * The marker's own timestamp is exact, but on the device's clock. Elapsed times between consecutive markers make a time
 * scale of the device. Two bounds map it to the host's clock:
 *   from above: the smallest difference (host - device) that wake-ups have seen in the last one to two seconds.
 *               A wake-up can be late, but never early. Work is reported to have finished by this bound, so never
 *               too early.
 *   from below: the largest difference that the recording of an event has seen. No event is stamped before it is
 *               recorded, and in an empty stream it is stamped at once. If such an event is among them and the two
 *               bounds are near each other, the lower bound is the better guess of when work ended. Only the
 *               account uses this guess.
 *
 * The driver tells elapsed times only between events of the same context. So each context has a scale of its own, and
 * the host's clock connects them.
 *
 * A launch takes some microseconds to arrive, and the guess is wrong by about as much. Work of exactly known length
 * shows the sum of both, and from that sum follows when other work can have begun.
 */
#include <string.h>

#include "hook/gate/process.h"

#define WINDOW_NS 1000000000u /* the bounds hold for one to two of these: clocks drift */
#define EARLY_NS  2000        /* the bounds of the clocks are wrong by at most this */
#define TIGHT_NS  100000u     /* two bounds nearer to each other than this are both believed */

/* Device time from one event to another, in *ns; negative if `to` finished first. False: the driver does not tell, or
 * `from` is NULL. */
bool sp_clock_elapsed_ns(CUevent from, CUevent to, int64_t *ns) {
  const struct sp_driver *driver = sp_driver();
  float elapsed_ms = 0;
  if (!from || !driver->cuEventElapsedTime || driver->cuEventElapsedTime(&elapsed_ms, from, to) != CUDA_SUCCESS)
    return false;
  *ns = (int64_t)((double)elapsed_ms * 1e6 + 0.5); /* rounded, because thousands of these are added up */
  return true;
}

/* Learn an upper bound of the mapping (host - device): a wake-up at the host's `now_ns` has seen the difference
 * `seen_ns`. Bounds are kept for this second and the one before. A bound is certain when it is seen, so an older lower
 * bound that contradicts it gives way. */
static void learn_upper(struct sp_clock *clock, int64_t seen_ns, uint64_t now_ns) {
  if (now_ns - clock->window_ns > WINDOW_NS) { /* a new second begins */
    clock->upper_ns[1] = clock->upper_ns[0];
    clock->lower_ns[1] = clock->lower_ns[0];
    clock->woke[1] = clock->woke[0];
    clock->upper_ns[0] = seen_ns;
    clock->lower_ns[0] = INT64_MIN;
    clock->idle[1] = clock->idle[0];
    clock->woke[0] = clock->idle[0] = false;
    clock->window_ns = now_ns;
  } else if (seen_ns < clock->upper_ns[0]) {
    clock->upper_ns[0] = seen_ns;
  }
  for (int second = 0; second < 2; second++)
    if (clock->lower_ns[second] > seen_ns) /* the clocks have drifted since */
      clock->lower_ns[second] = seen_ns;
}

/* The upper bound of (host - device): the smaller one of the last two seconds. */
int64_t sp_clock_upper_ns(const struct sp_clock *clock) {
  return clock->upper_ns[0] < clock->upper_ns[1] ? clock->upper_ns[0] : clock->upper_ns[1];
}

/* The lower bound of (host - device): the higher one of the last two seconds. */
static int64_t lower_bound_ns(const struct sp_clock *clock) {
  return clock->lower_ns[0] > clock->lower_ns[1] ? clock->lower_ns[0] : clock->lower_ns[1];
}

/* Learn a lower bound of (host - device): at the host's `host_ns` the device's clock showed `device_ns` or less; about
 * `device_ns` if the stream was `idle`. An older upper bound that contradicts it gives way. */
static void learn_lower(struct sp_clock *clock, uint64_t host_ns, int64_t device_ns, bool idle) {
  clock->idle[0] |= idle;
  int64_t seen_ns = (int64_t)host_ns - device_ns;
  if (seen_ns > clock->lower_ns[0])
    clock->lower_ns[0] = seen_ns;
  for (int second = 0; second < 2; second++)
    if (clock->upper_ns[second] < seen_ns)
      clock->upper_ns[second] = seen_ns;
}

/* Was the stream idle when this marker was recorded? Only an edge without work can tell: it was if the edge is stamped
 * well after the stream's last work. */
static bool was_idle(const struct sp_clock *clock, const struct sp_marker *marker) {
  const struct sp_stream_state *state = marker->state;
  return !marker->launches && !marker->awaits &&
         (state->scale != clock->scale || clock->device_ns - state->ended_ns > SP_EVENT_NS);
}

/* Has an arrival been learned in the two seconds before this launch? */
static bool knows_arrival(const struct sp_clock *clock, uint64_t launched_ns) {
  return clock->arrival_seen_ns && (int64_t)(launched_ns - clock->arrival_seen_ns) < (int64_t)(2 * WINDOW_NS);
}

/* When a launch into an empty stream, made at the host's `launched_ns`, begins on the device's scale. That is by the
 * usual difference of the two times if it was learned lately; else by the guess, as if it took as long as a record. */
int64_t sp_clock_arrived_ns(const struct sp_clock *clock, uint64_t launched_ns) {
  int64_t arrival_ns = knows_arrival(clock, launched_ns) ? clock->arrival_ns : clock->guess_ns - clock->record_ns;
  return (int64_t)launched_ns - arrival_ns;
}

/* A launch into an empty stream, made at the host's `launched_ns`, began at `began_ns` on the device's scale: learn the
 * usual difference of the two, as a moving average. A launch that took longer (change_ns below 0) counts for less,
 * because it may have waited for something. */
void sp_clock_learn_arrival(struct sp_clock *clock, uint64_t launched_ns, int64_t began_ns) {
  int64_t arrival_ns = (int64_t)launched_ns - began_ns, upper_ns = sp_clock_upper_ns(clock);
  if (arrival_ns > upper_ns + EARLY_NS)
    return; /* it would lie before the launch: beside other streams the work took longer than its known length */
  if (knows_arrival(clock, launched_ns)) {
    int64_t change_ns = arrival_ns - clock->arrival_ns;
    arrival_ns = clock->arrival_ns + change_ns / (change_ns > 0 ? 8 : 32);
  }
  clock->arrival_ns = arrival_ns < upper_ns ? arrival_ns : upper_ns;
  clock->arrival_seen_ns = launched_ns;
}

/* Work of another context has ended: that context's clock becomes the present one, and the present one is kept. What an
 * event and its record take is a property of the device, so it is copied to a new clock. */
static void change_clock(struct sp_device *device, CUcontext context) {
  struct sp_clock before = device->clock;
  uint32_t place = device->changes++ % SP_CLOCKS_MAX; /* the one to give up, if this context has none */
  for (uint32_t index = 0; index < SP_CLOCKS_MAX; index++)
    if (device->clocks[index].context == context)
      place = index;
  device->clock = device->clocks[place];
  device->clocks[place] = before;
  if (device->clock.context != context)
    device->clock = (struct sp_clock){.context = context, .event_ns = before.event_ns, .record_ns = before.record_ns};
}

/* The marker at the queue's head has ended: compute when, on both clocks, and bring device->clock, finished_ns,
 * began_ns and the slot's first_ended_ns up to date. `blocked`: the keeper slept until then, so its wake-up is a good
 * bound. */
void sp_clock_finish(struct sp_device *device, const struct sp_marker *marker, bool blocked) {
  struct sp_clock *clock = &device->clock;
  uint64_t now_ns = sp_now_ns(), seen_ns = sp_load(&device->seen_ns[device->queue_head % SP_MARKERS_MAX]),
           finished_before_ns = sp_load(&device->finished_ns);
  int64_t span_ns = 0, start_ns = 0;
  struct sp_stream_state *start = sp_exchange(&device->start_state, NULL);
  if (sp_exchange(&device->stale, false)) { /* a context is gone, and another one may get its handle */
    memset(device->clocks, 0, sizeof device->clocks);
    clock->event = NULL;
    device->scale = 0; /* the end of the work that was in flight cannot be known */
  }
  if (clock->context != marker->state->context)
    change_clock(device, marker->state->context);
  /* The scale goes on from the last marker, if the driver tells the time between the two. */
  bool chained = clock->event && sp_clock_elapsed_ns(clock->event, marker->event, &span_ns);
  clock->event = marker->event;
  if (chained) {
    clock->device_ns += span_ns;
    /* A thread of the program may have seen the end before the keeper. */
    learn_upper(clock, (int64_t)(seen_ns ? seen_ns : now_ns) - clock->device_ns, now_ns);
    clock->woke[0] |= blocked || seen_ns;
  } else { /* the first marker: begin a scale */
    clock->scale = ++device->scales;
    clock->device_ns = clock->latest_ns = 0;
    clock->upper_ns[0] = clock->upper_ns[1] = (int64_t)now_ns;
    clock->lower_ns[0] = clock->lower_ns[1] = INT64_MIN;
    clock->arrival_seen_ns = 0;
    clock->woke[0] = clock->woke[1] = clock->idle[0] = clock->idle[1] = false;
    clock->window_ns = now_ns;
    finished_before_ns = 0;
  }
  learn_lower(clock, marker->recorded_ns, clock->device_ns, was_idle(clock, marker));
  /* Behind a turn's start event this marker is the turn's first, and tells when the turn's work began. */
  clock->started = start && !sp_load(&start->dead) && start->context == clock->context &&
                   sp_clock_elapsed_ns(start->start_event, marker->event, &start_ns) && start_ns >= 0;
  clock->start_ns = clock->device_ns - start_ns;
  if (clock->started)
    learn_lower(clock, start->start_ns, clock->start_ns, start->start_idle);
  if (clock->device_ns > clock->latest_ns)
    clock->latest_ns = clock->device_ns;
  int64_t upper_ns = sp_clock_upper_ns(clock), lower_ns = lower_bound_ns(clock);
  bool near = lower_ns > upper_ns - TIGHT_NS; /* then both bounds are believed */
  clock->tight = near && (clock->idle[0] || clock->idle[1]);
  clock->sure = clock->tight || clock->woke[0] || clock->woke[1];
  clock->low_ns = near && lower_ns < upper_ns ? lower_ns : upper_ns;
  clock->guess_ns = clock->tight ? clock->low_ns : upper_ns;
  uint64_t finished_ns = (uint64_t)(clock->latest_ns + upper_ns);
  if (finished_ns < finished_before_ns) /* work ends in the order of its markers, even if the mapping disagrees */
    finished_ns = finished_before_ns;
  if (finished_ns > now_ns)
    finished_ns = now_ns;
  sp_store(&device->finished_ns, finished_ns); /* threads of the program read it to learn their pauses */
  sp_store(&device->began_ns, finished_ns);
  uint64_t entry_ns = sp_load(&device->entry_ns);
  /* Was the work launched in this turn? Then work of an earlier turn has ended, too, because its markers come first. */
  bool ours = marker->launches && marker->first_ns >= entry_ns;
  if (clock->started || (ours && sp_load(&device->slot->first_ended_ns) < entry_ns))
    sp_store(&device->slot->first_ended_ns, finished_ns);
}
