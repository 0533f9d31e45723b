/*
 * When did it finish? The keeper wakes some microseconds after a marker has; the marker's own timestamp is exact but
 * on the device's clock. Elapsed times between consecutive markers make a device time scale. The smallest difference
 * between host and device that wake-ups saw in the last one to two seconds bounds the mapping from above (a wake-up can
 * be late, never early): work is said to have finished then, never too early. The largest difference that recording a
 * turn's start event saw bounds it from below (a stamp can be late, too): where the two are near each other, that is
 * the better guess of when it ended, for the account alone.
 */
#include "guest.h"

#define WINDOW_NS 1000000000u
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
 * `least_ns`, as the recording of a start event saw it. */
static void learn(struct sp_clock *clock, int64_t offset_ns, uint64_t now_ns) {
  if (now_ns - clock->window_ns > WINDOW_NS) {
    clock->offset_ns[1] = clock->offset_ns[0];
    clock->least_ns[1] = clock->least_ns[0];
    clock->offset_ns[0] = offset_ns;
    clock->least_ns[0] = INT64_MIN;
    clock->window_ns = now_ns;
  } else if (offset_ns < clock->offset_ns[0]) {
    clock->offset_ns[0] = offset_ns;
  }
}

static int64_t most(const struct sp_clock *clock) {
  return clock->offset_ns[0] < clock->offset_ns[1] ? clock->offset_ns[0] : clock->offset_ns[1];
}

void sp_clock_finish(struct sp_device *device, const struct sp_marker *marker) {
  struct sp_clock *clock = &device->clock;
  uint64_t now_ns = sp_now_ns(), before_ns = sp_load(&device->finished_ns);
  int64_t span_ns = 0, start_ns = 0;
  struct sp_lane *start = __atomic_exchange_n(&device->start_lane, NULL, __ATOMIC_ACQUIRE);
  if (__atomic_exchange_n(&clock->stale, false, __ATOMIC_ACQUIRE))
    clock->event = NULL;
  bool chained = clock->event && clock->context == marker->lane->context &&
                 sp_clock_elapsed_ns(clock->event, marker->event, &span_ns);
  clock->context = marker->lane->context;
  clock->event = marker->event;
  clock->started = start && !sp_load(&start->dead) && start->context == clock->context &&
                   sp_clock_elapsed_ns(start->start_event, marker->event, &start_ns) && start_ns >= 0;
  clock->span_ns = clock->started ? (uint64_t)start_ns : 0;
  if (!chained) { /* the first one, or another context: start the scale anew */
    clock->device_ns = clock->latest_ns = 0;
    clock->offset_ns[0] = clock->offset_ns[1] = (int64_t)now_ns;
    clock->least_ns[0] = clock->least_ns[1] = INT64_MIN;
    clock->window_ns = now_ns;
    sp_store(&device->ended_ns, now_ns);
    sp_store(&device->finished_ns, now_ns); /* app threads read it to learn their pauses */
    sp_store(&device->began_ns, now_ns);
    if (clock->started)
      sp_store(&device->slot->first_ended_ns, now_ns);
    return;
  }
  clock->device_ns += span_ns;
  learn(clock, (int64_t)now_ns - clock->device_ns, now_ns);
  if (clock->started) {
    int64_t least_ns = (int64_t)start->start_ns - (clock->device_ns - start_ns);
    clock->least_ns[0] = least_ns > clock->least_ns[0] ? least_ns : clock->least_ns[0];
  }
  /* Markers of two streams may be out of order: only what lies past the latest end is new. */
  span_ns = clock->device_ns - clock->latest_ns;
  if (span_ns > 0)
    clock->latest_ns = clock->device_ns;
  if (clock->started)
    span_ns = start_ns;
  int64_t most_ns = most(clock),
          least_ns = clock->least_ns[0] > clock->least_ns[1] ? clock->least_ns[0] : clock->least_ns[1];
  uint64_t finished_ns = (uint64_t)(clock->device_ns + most_ns);
  if (finished_ns < before_ns) /* work ends in the order of its markers, whatever the mapping says */
    finished_ns = before_ns;
  if (finished_ns > now_ns)
    finished_ns = now_ns;
  bool tight = least_ns < most_ns && least_ns > most_ns - TIGHT_NS;
  uint64_t ended_ns = (uint64_t)(clock->device_ns + (tight ? least_ns : most_ns));
  sp_store(&device->ended_ns, ended_ns < finished_ns ? ended_ns : finished_ns);
  sp_store(&device->finished_ns, finished_ns);
  sp_store(&device->began_ns, finished_ns);
  if (clock->started)
    sp_store(&device->slot->first_ended_ns, finished_ns);
  clock->span_ns = span_ns > 0 ? (uint64_t)span_ns : 0; /* markers of two streams may be out of order */
}
