/*
 * When did it finish? The keeper wakes some microseconds after a marker has; the marker's own timestamp is exact but
 * on the device's clock. Elapsed times between consecutive markers make a device time scale; the smallest difference
 * between host and device seen in the last one to two seconds is the mapping (a wake-up can be late, never early).
 */
#include "guest.h"

#define WINDOW_NS 1000000000u

void sp_clock_finish(struct sp_device *device, const struct sp_marker *marker) {
  const struct sp_driver *driver = sp_driver();
  struct sp_clock *clock = &device->clock;
  uint64_t now_ns = sp_now_ns();
  uint64_t looked_ns = device->progressed_ns;
  sp_store(&device->progressed_ns, now_ns);
  float elapsed_ms = 0;
  if (__atomic_exchange_n(&clock->stale, false, __ATOMIC_ACQUIRE))
    clock->event = NULL;
  bool chained = clock->event && clock->context == marker->lane->context && driver->cuEventElapsedTime &&
                 driver->cuEventElapsedTime(&elapsed_ms, clock->event, marker->event) == CUDA_SUCCESS;
  clock->context = marker->lane->context;
  clock->event = marker->event;
  if (!chained) { /* the first one, or another context: start the scale anew */
    clock->device_ns = 0;
    clock->offset_ns[0] = clock->offset_ns[1] = (int64_t)now_ns;
    clock->window_ns = now_ns;
    sp_store(&device->finished_ns, now_ns); /* app threads read it to learn their pauses */
    sp_store(&device->began_ns, now_ns);
    return;
  }
  clock->device_ns += (int64_t)((double)elapsed_ms * 1e6 + 0.5); /* rounded: thousands of these are added up */
  int64_t offset_ns = (int64_t)now_ns - clock->device_ns;
  if (now_ns - clock->window_ns > WINDOW_NS) {
    clock->offset_ns[1] = clock->offset_ns[0];
    clock->offset_ns[0] = offset_ns;
    clock->window_ns = now_ns;
  } else if (offset_ns < clock->offset_ns[0]) {
    clock->offset_ns[0] = offset_ns;
  }
  int64_t smallest = clock->offset_ns[0] < clock->offset_ns[1] ? clock->offset_ns[0] : clock->offset_ns[1];
  uint64_t finished_ns = (uint64_t)(clock->device_ns + smallest);
  /* Between the last two looks, whatever the mapping says. */
  if (finished_ns < looked_ns)
    finished_ns = looked_ns;
  if (finished_ns > now_ns)
    finished_ns = now_ns;
  sp_store(&device->finished_ns, finished_ns);
  sp_store(&device->began_ns, finished_ns);
}
