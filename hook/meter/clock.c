/*
 * When did it finish? The keeper wakes some microseconds after a marker has; the marker's own timestamp is exact but
 * on the device's clock. Elapsed times between consecutive markers make a device time scale. The smallest difference
 * between host and device that wake-ups saw in the last one to two seconds bounds the mapping from above (a wake-up can
 * be late, never early): work is said to have finished then, never too early. The largest difference that the recording
 * of an event saw bounds it from below (no event is stamped before it is recorded; behind an empty stream it is at
 * once): where it saw such a stream and the two are near each other, that is the better guess of when it ended, for the
 * account alone.
 *
 * The driver tells elapsed times between events of one context alone. So each context has a scale of its own, and the
 * host's clock joins them.
 *
 * A launch takes some microseconds to arrive, and the guess is as far off: what was seen where the length of the work
 * is known exactly tells both together, and so when other work can have begun.
 */
#include <string.h>

#include "hook/gate/guest.h"

#define WINDOW_NS 1000000000u
#define EARLY_NS  2000    /* what the bounds of the clocks are wrong by at most */
#define TIGHT_NS  100000u /* an event recorded on an idle device is stamped at once: so near it is believed */

bool sp_clock_elapsed_ns(CUevent from, CUevent to, int64_t *ns) {
  const struct sp_driver *driver = sp_driver();
  float elapsed_ms = 0;
  if (!from || !driver->cuEventElapsedTime || driver->cuEventElapsedTime(&elapsed_ms, from, to) != CUDA_SUCCESS)
    return false;
  *ns = (int64_t)((double)elapsed_ms * 1e6 + 0.5); /* rounded: thousands of these are added up */
  return true;
}

/* The mapping of the device's clock to the host's, host - device: at most `offset_ns`, as a wake-up saw it; at least
 * `least_ns`, as the recording of an event saw it. Each is certain when it is seen, so an older one that contradicts it
 * gives way. */
static void learn(struct sp_clock *clock, int64_t offset_ns, uint64_t now_ns) {
  if (now_ns - clock->window_ns > WINDOW_NS) {
    clock->offset_ns[1] = clock->offset_ns[0];
    clock->least_ns[1] = clock->least_ns[0];
    clock->waits[1] = clock->waits[0];
    clock->offset_ns[0] = offset_ns;
    clock->least_ns[0] = INT64_MIN;
    clock->idle[1] = clock->idle[0];
    clock->waits[0] = clock->idle[0] = false;
    clock->window_ns = now_ns;
  } else if (offset_ns < clock->offset_ns[0]) {
    clock->offset_ns[0] = offset_ns;
  }
  for (int second = 0; second < 2; second++)
    if (clock->least_ns[second] > offset_ns) /* the clocks have drifted apart since */
      clock->least_ns[second] = offset_ns;
}

int64_t sp_clock_most_ns(const struct sp_clock *clock) {
  return clock->offset_ns[0] < clock->offset_ns[1] ? clock->offset_ns[0] : clock->offset_ns[1];
}

static int64_t least(const struct sp_clock *clock) {
  return clock->least_ns[0] > clock->least_ns[1] ? clock->least_ns[0] : clock->least_ns[1];
}

/* At `host_ns` the device's clock showed `device_ns`, or more; about as much if the stream was `idle`. */
static void learn_least(struct sp_clock *clock, uint64_t host_ns, int64_t device_ns, bool idle) {
  clock->idle[0] |= idle;
  int64_t least_ns = (int64_t)host_ns - device_ns;
  if (least_ns > clock->least_ns[0])
    clock->least_ns[0] = least_ns;
  for (int second = 0; second < 2; second++)
    if (clock->offset_ns[second] < least_ns)
      clock->offset_ns[second] = least_ns;
}

/* An edge alone that is stamped well after what its stream was given before: nothing ran there when it was recorded. */
static bool was_idle(const struct sp_clock *clock, const struct sp_marker *marker) {
  const struct sp_lane *lane = marker->lane;
  return !marker->launches && !marker->awaits &&
         (lane->scale != clock->scale || clock->device_ns - lane->ended_ns > SP_EVENT_NS);
}

static bool knows_arrival(const struct sp_clock *clock, uint64_t launched_ns) {
  return clock->arrival_seen_ns && (int64_t)(launched_ns - clock->arrival_seen_ns) < (int64_t)(2 * WINDOW_NS);
}

int64_t sp_clock_arrived_ns(const struct sp_clock *clock, uint64_t launched_ns) {
  int64_t arrival_ns = knows_arrival(clock, launched_ns) ? clock->arrival_ns : clock->guess_ns - clock->record_ns;
  return (int64_t)launched_ns - arrival_ns;
}

void sp_clock_learn_arrival(struct sp_clock *clock, uint64_t launched_ns, int64_t began_ns) {
  int64_t arrival_ns = (int64_t)launched_ns - began_ns, most_ns = sp_clock_most_ns(clock);
  if (arrival_ns > most_ns + EARLY_NS)
    return; /* before the launch: beside other streams the work took longer than is known of it */
  if (knows_arrival(clock, launched_ns)) { /* a longer way may have had a wait in it */
    int64_t change_ns = arrival_ns - clock->arrival_ns;
    arrival_ns = clock->arrival_ns + change_ns / (change_ns > 0 ? 8 : 32);
  }
  clock->arrival_ns = arrival_ns < most_ns ? arrival_ns : most_ns;
  clock->arrival_seen_ns = launched_ns;
}

/* Another context's work has ended: its clock is the present one from now on. What an event and its record take is
 * known of the device, so a new clock knows it too. */
static void take_up(struct sp_device *device, CUcontext context) {
  struct sp_clock before = device->clock;
  uint32_t place = device->changes++ % SP_CLOCKS_MAX;
  for (uint32_t index = 0; index < SP_CLOCKS_MAX; index++)
    if (device->clocks[index].context == context)
      place = index;
  device->clock = device->clocks[place];
  device->clocks[place] = before;
  if (device->clock.context != context)
    device->clock = (struct sp_clock){.context = context, .event_ns = before.event_ns, .record_ns = before.record_ns};
}

void sp_clock_finish(struct sp_device *device, const struct sp_marker *marker, bool blocked) {
  struct sp_clock *clock = &device->clock;
  uint64_t now_ns = sp_now_ns(), seen_ns = sp_load(&device->seen_ns[device->queue_head % SP_MARKERS_MAX]),
           before_ns = sp_load(&device->finished_ns);
  int64_t span_ns = 0, start_ns = 0;
  struct sp_lane *start = __atomic_exchange_n(&device->start_lane, NULL, __ATOMIC_ACQUIRE);
  if (__atomic_exchange_n(&device->stale, false, __ATOMIC_ACQUIRE)) {
    memset(device->clocks, 0, sizeof device->clocks);
    clock->event = NULL;
    device->scale = 0; /* what was in flight has no end that is known */
  }
  if (clock->context != marker->lane->context)
    take_up(device, marker->lane->context);
  bool chained = clock->event && sp_clock_elapsed_ns(clock->event, marker->event, &span_ns);
  clock->event = marker->event;
  if (chained) {
    clock->device_ns += span_ns;
    /* The program may have seen it first. */
    learn(clock, (int64_t)(seen_ns ? seen_ns : now_ns) - clock->device_ns, now_ns);
    clock->waits[0] |= blocked || seen_ns;
  } else { /* the first one: begin a scale */
    clock->scale = ++device->scales;
    clock->device_ns = clock->latest_ns = 0;
    clock->offset_ns[0] = clock->offset_ns[1] = (int64_t)now_ns;
    clock->least_ns[0] = clock->least_ns[1] = INT64_MIN;
    clock->arrival_seen_ns = 0;
    clock->waits[0] = clock->waits[1] = clock->idle[0] = clock->idle[1] = false;
    clock->window_ns = now_ns;
    before_ns = 0;
  }
  learn_least(clock, marker->recorded_ns, clock->device_ns, was_idle(clock, marker));
  clock->started = start && !sp_load(&start->dead) && start->context == clock->context &&
                   sp_clock_elapsed_ns(start->start_event, marker->event, &start_ns) && start_ns >= 0;
  clock->start_ns = clock->device_ns - start_ns;
  if (clock->started)
    learn_least(clock, start->start_ns, clock->start_ns, start->start_idle);
  if (clock->device_ns > clock->latest_ns)
    clock->latest_ns = clock->device_ns;
  int64_t most_ns = sp_clock_most_ns(clock), least_ns = least(clock);
  bool near = least_ns > most_ns - TIGHT_NS;
  clock->tight = near && (clock->idle[0] || clock->idle[1]);
  clock->sure = clock->tight || clock->waits[0] || clock->waits[1];
  clock->low_ns = near && least_ns < most_ns ? least_ns : most_ns;
  clock->guess_ns = clock->tight ? clock->low_ns : most_ns;
  uint64_t finished_ns = (uint64_t)(clock->latest_ns + most_ns);
  if (finished_ns < before_ns) /* work ends in the order of its markers, whatever the mapping says */
    finished_ns = before_ns;
  if (finished_ns > now_ns)
    finished_ns = now_ns;
  sp_store(&device->finished_ns, finished_ns); /* app threads read it to learn their pauses */
  sp_store(&device->began_ns, finished_ns);
  uint64_t entry_ns = sp_load(&device->entry_ns);
  /* Launched in this turn; what ran on from an earlier one has ended too, for its markers come before. */
  bool ours = marker->launches && marker->first_ns >= entry_ns;
  if (clock->started || (ours && sp_load(&device->slot->first_ended_ns) < entry_ns))
    sp_store(&device->slot->first_ended_ns, finished_ns);
}
