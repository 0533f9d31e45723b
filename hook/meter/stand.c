/*
 * Work that stands: what a stream was given behind a wait that is not over (an upload, a host function, a word). It is
 * in flight and does not run, so the device can be another share's meanwhile. The launch behind such a wait leaves an
 * edge there (ADR 29), and that tells when it is over.
 */
#include "hook/gate/guest.h"

/* The keeper looks instead of waiting: while it waits in the driver, it could not give the turn back. */
static bool is_over(const struct sp_marker *marker) {
  const struct sp_driver *driver = sp_driver();
  if (!driver->cuEventQuery || sp_load(&marker->lane->dead))
    return true;
  if (driver->cuCtxSetCurrent)
    driver->cuCtxSetCurrent(marker->lane->context); /* drivers may refuse an event of another context */
  return driver->cuEventQuery(marker->event) != CUDA_ERROR_NOT_READY;
}

static const struct sp_marker *marker_at(const struct sp_device *device, uint32_t place) {
  return &device->queue[place % SP_MARKERS_MAX];
}

bool sp_stands_first(const struct sp_device *device) {
  const struct sp_marker *marker = marker_at(device, device->queue_head);
  return marker->awaits && !is_over(marker);
}

bool sp_stands(struct sp_device *device) {
  uint32_t tail = __atomic_load_n(&device->queue_tail, __ATOMIC_ACQUIRE), look = ++device->looks;
  if (device->queue_head == tail || sp_lanes_unmarked(device))
    return false;
  for (uint32_t place = device->queue_head; place != tail; place++) {
    const struct sp_marker *marker = marker_at(device, place);
    if (marker->lane->looked == look)
      continue; /* behind the first of its lane */
    marker->lane->looked = look;
    if (!marker->awaits || is_over(marker))
      return false;
  }
  return true;
}
