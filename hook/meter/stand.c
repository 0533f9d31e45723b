/*
 * Finds work that stands: work in a stream behind a wait that is not over (an upload, a host function, a word). It is
 * in flight but does not run, so another share can have the device meanwhile. The launch behind such a wait records an
 * edge in front of itself (ADR 29), which tells when the wait is over.
 */
#include "hook/gate/process.h"

/* Is the wait in front of this marker, an edge, over? The keeper asks instead of waiting in the driver, where it could
 * not return the turn. True also if the driver cannot tell. The marker's context becomes current. */
static bool is_over(const struct sp_marker *marker) {
  const struct sp_driver *driver = sp_driver();
  if (!driver->cuEventQuery || sp_load(&marker->state->dead))
    return true;
  if (driver->cuCtxSetCurrent)
    driver->cuCtxSetCurrent(marker->state->context); /* a driver may refuse an event of another context */
  return driver->cuEventQuery(marker->event) != CUDA_ERROR_NOT_READY;
}

/* The marker at this place; the queue is a ring. */
static const struct sp_marker *marker_at(const struct sp_device *device, uint32_t place) {
  return &device->queue[place % SP_MARKERS_MAX];
}

/* Does the oldest marker stand behind a wait that is not over? The queue has one. May change the current context. */
bool sp_stands_first(const struct sp_device *device) {
  const struct sp_marker *marker = marker_at(device, device->queue_head);
  return marker->awaits && !is_over(marker);
}

/* Does all work in flight stand? The first marker of each stream decides. False also if there is no marker, or if a
 * stream has work but no marker. May change the current context. Asks the driver, so no lock may be held. */
bool sp_stands(struct sp_device *device) {
  uint32_t tail = sp_load_acquire(&device->queue_tail), look = ++device->looks;
  if (device->queue_head == tail || sp_streams_unmarked(device))
    return false;
  for (uint32_t place = device->queue_head; place != tail; place++) {
    const struct sp_marker *marker = marker_at(device, place);
    if (marker->state->looked == look)
      continue; /* it is behind the first marker of its stream */
    marker->state->looked = look;
    if (!marker->awaits || is_over(marker))
      return false;
  }
  return true;
}
