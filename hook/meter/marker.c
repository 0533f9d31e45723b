/*
 * What a finished marker tells: when the device had that work, and how long a unit takes.
 *
 * An event's time is when the work before it had ended, unless it was recorded behind work that had ended already. When
 * that work began to run is not known: an event in front would be stamped before the launch arrives, which short work
 * is shorter than. So a stream's span is as long as its work is predicted to be, but within what is certain: it ran
 * neither before it was launched nor before the stream's work before it had ended, and once all of it had been
 * launched it ran until its end. A wrong prediction errs by no more than the launching took, and a queue that never
 * ran empty is never taken for idle. Only the first work of a turn may have waited for another share's after it was
 * launched: there a length that is known exactly is believed, as far as such a wait can be long.
 */
#include "hook/gate/guest.h"

#define LATE_NS     15000     /* an event that is stamped so soon after its recording was behind ended work */
#define LOOSE_NS    50000     /* the mapping of the clocks may be wrong by that, unless it is tight */
#define LATENCY_NS  20000     /* a launch that takes longer to arrive has waited for something */
#define SPARSE_NS   500000    /* work that was launched over a longer time may have had pauses anywhere in it */
#define STRETCH_NS  20000000u /* of work says how long it takes on the average */
#define UNEVEN      (SP_STRETCH * 3 / 2)
#define STRETCH_MAX (SP_STRETCH * 64)
#define PUT_OFF_NS  50000   /* what a unit takes varies by less */
#define STOOD_NS    1000000 /* one long wait must not hide the short ones for ever */
#define SLICE_NS    2000000 /* the device is a context's for no longer while another one has work */
#define AWAIT_NS    1000000 /* so long the first work of a turn may have waited for another share's */

/* What is known of the work before a marker, on the device's scale. */
struct sp_bounds {
  int64_t from_ns;  /* it began no earlier, as a rule … */
  int64_t least_ns; /* … and certainly not before this */
  int64_t end_ns;
  int64_t rest_ns; /* at its end it had run for so long at least */
  bool empty;      /* its first launch found the stream empty */
  bool late;       /* it had ended before: the marker was recorded too late to tell when */
  bool dense;      /* the stream has not run empty since the end before: it took exactly so long */
};

/* Is its length known? */
static bool is_exact(const struct sp_marker *marker) {
  return marker->unit && !marker->stretch && sp_unit_exact(marker->unit);
}

/* Else, is the shortest known that such work ever took? */
static bool is_seen(const struct sp_marker *marker) {
  return marker->unit && !marker->stretch && !marker->guessed;
}

static int64_t within(int64_t value, int64_t least, int64_t most) {
  return value < least ? least : value > most ? most : value;
}

static struct sp_bounds bounds_of(const struct sp_device *device, const struct sp_marker *marker) {
  const struct sp_clock *clock = &device->clock;
  const struct sp_lane *lane = marker->lane;
  bool exact = is_exact(marker);
  int64_t first_ns = (int64_t)marker->first_ns - clock->guess_ns;
  int64_t recorded_ns = (int64_t)marker->recorded_ns - clock->low_ns;
  struct sp_bounds bounds = {
      .from_ns = sp_clock_arrived_ns(clock, marker->first_ns), .end_ns = clock->device_ns, .empty = true};
  bounds.least_ns = exact ? (int64_t)marker->first_ns - sp_clock_most_ns(clock) : first_ns;
  if (lane->scale == clock->scale) {
    bounds.dense = clock->sure && recorded_ns + (clock->tight ? 0 : LOOSE_NS) <= lane->ended_ns;
    int64_t free_ns = lane->ended_ns + clock->event_ns;
    if (lane->ended_ns >= first_ns) {
      bounds.from_ns = bounds.least_ns = free_ns;
      bounds.empty = false;
    } else if (bounds.least_ns < free_ns) {
      bounds.least_ns = free_ns;
    }
  }
  int64_t least_ns = clock->started ? clock->start_ns : INT64_MIN;
  bounds.least_ns = within(bounds.least_ns, least_ns, bounds.end_ns);
  bounds.from_ns = within(bounds.from_ns, bounds.least_ns, bounds.end_ns);
  if (recorded_ns < bounds.end_ns)
    bounds.rest_ns = bounds.end_ns - recorded_ns;
  bounds.late = clock->tight && bounds.rest_ns < LATE_NS;
  return bounds;
}

/* Add the work to the device's spans. Returns what that adds to its idle time. */
static int64_t add(struct sp_spans *spans, const struct sp_bounds *bounds, int64_t work_ns) {
  int64_t from_ns = bounds->from_ns, end_ns = bounds->end_ns, launched_ns = end_ns - bounds->rest_ns;
  if (work_ns <= bounds->rest_ns) /* longer than we thought, or it waited for others */
    return sp_spans_add(spans, from_ns, end_ns);
  if (bounds->late) /* at once, as far as we know */
    return sp_spans_add(spans, from_ns, within(from_ns + work_ns, from_ns, end_ns));
  if (launched_ns - from_ns > SPARSE_NS && work_ns < end_ns - from_ns) /* now and then it ran */
    return sp_spans_add(spans, launched_ns, end_ns) +
           sp_spans_fill(spans, from_ns, launched_ns, work_ns - bounds->rest_ns);
  return sp_spans_add(spans, within(end_ns - work_ns, bounds->least_ns, end_ns), end_ns);
}

/* A turn may be granted before its predecessor's work is done, and its first work waits for that. Where the length of
 * our first launch is known exactly, so is when it began; until then the device was another's for all of our streams.
 * More launches may have waited for other streams between them. */
static void await_device(struct sp_device *device, const struct sp_marker *marker, struct sp_bounds *bounds,
                         bool fresh) {
  bool exact = is_exact(marker);
  int64_t began_ns = bounds->end_ns - (int64_t)marker->work_ns;
  if (began_ns > bounds->from_ns + AWAIT_NS)
    began_ns = bounds->from_ns + AWAIT_NS;
  if (fresh)
    device->ours_ns =
        exact && marker->launches == 1 && sp_grant_flags(device->grant) & SP_GRANT_CONTENDED ? began_ns : INT64_MIN;
  else if (exact && began_ns < device->ours_ns)
    device->ours_ns = began_ns;
  if (bounds->from_ns >= device->ours_ns || bounds->end_ns <= device->ours_ns)
    return;
  bounds->from_ns = bounds->least_ns = device->ours_ns;
  bounds->empty = false; /* it arrived long before */
}

/* Work that stood while the turn was another share's has run beside that one's until `back_ns`, when the next turn of
 * ours began. Where its length is known, the other's slices in between are not taken for its own. But it may have taken
 * longer, as a kernel that spins does: beside one other share it had half of the time, but for a slice. */
static void account_beside(struct sp_device *device, const struct sp_marker *marker, struct sp_bounds *bounds,
                           int64_t back_ns) {
  struct sp_spans *spans = &device->spans;
  int64_t work_ns = (int64_t)marker->work_ns, end_ns = within(bounds->end_ns, INT64_MIN, back_ns);
  int64_t span_ns = bounds->end_ns - bounds->from_ns, least_ns = span_ns / 2 - SLICE_NS;
  if (is_seen(marker) && work_ns < span_ns)
    bounds->from_ns = bounds->least_ns = bounds->end_ns - (work_ns < least_ns ? least_ns : work_ns);
  if (bounds->from_ns < end_ns) {
    int64_t until_ns = spans->until_ns, idle_ns = sp_spans_add(spans, bounds->from_ns, end_ns);
    device->beside_ns += (uint64_t)(spans->until_ns - until_ns - idle_ns);
    sp_store(&device->slot->beside_until_us, (uint32_t)((uint64_t)(end_ns + device->clock.guess_ns) / 1000));
    __atomic_store_n(&device->slot->beside_ns, device->beside_ns, __ATOMIC_RELEASE);
  }
  bounds->from_ns = within(bounds->from_ns, end_ns, bounds->end_ns);
  bounds->least_ns = within(bounds->least_ns, end_ns, bounds->end_ns);
  bounds->rest_ns = within(bounds->rest_ns, 0, bounds->end_ns - bounds->from_ns);
  bounds->empty = false;
}

/* Work whose length is known exactly has taken longer: the device was another share's in between, or changed to that
 * and back. The arbiter knows whether one had work on it then. */
static void account_put_off(struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  int64_t put_off_ns = bounds->end_ns - bounds->from_ns - (int64_t)marker->work_ns;
  if (!device->clock.sure || bounds->late || !is_exact(marker) || device->sole != marker->lane ||
      put_off_ns < PUT_OFF_NS)
    return;
  device->put_off_ns += (uint64_t)put_off_ns;
  sp_store(&device->slot->put_off_us, (uint32_t)(device->put_off_ns / 1000));
}

static void account(struct sp_device *device, const struct sp_marker *marker, struct sp_bounds bounds) {
  struct sp_clock *clock = &device->clock;
  uint64_t fresh_ns = __atomic_exchange_n(&device->fresh_ns, 0, __ATOMIC_ACQUIRE);
  bool aside = __atomic_load_n(&device->aside, __ATOMIC_ACQUIRE); /* first: back_ns is set before it ends */
  uint64_t back_ns = __atomic_load_n(&device->back_ns, __ATOMIC_ACQUIRE);
  int64_t idle_ns = 0;
  if (fresh_ns) {
    sp_spans_begin(&device->spans, (int64_t)fresh_ns - clock->guess_ns);
  } else if (device->scale == 0) {
    sp_spans_begin(&device->spans, bounds.end_ns);
    device->ours_ns = INT64_MIN;
  } else if (device->scale != clock->scale) { /* another context's: the host's clock is common to both */
    sp_spans_shift(&device->spans, device->told_guess_ns - clock->guess_ns);
    if (device->ours_ns != INT64_MIN)
      device->ours_ns += device->told_guess_ns - clock->guess_ns;
  } else {
    /* The end is told on the host's clock, and moves with the mapping: edges alone have moved it, too. */
    idle_ns = clock->guess_ns - device->told_guess_ns;
  }
  device->told_guess_ns = clock->guess_ns;
  device->scale = clock->scale;
  if (aside || back_ns) {
    int64_t at_ns = aside ? bounds.end_ns : (int64_t)back_ns - clock->guess_ns;
    account_beside(device, marker, &bounds, at_ns);
    idle_ns = 0;
    device->ours_ns = INT64_MIN;
    /* What ended before is followed by more that did, maybe: the turn's own work begins with the first that did not. */
    if (!aside && bounds.end_ns > at_ns) {
      sp_spans_begin(&device->spans, at_ns);
      __atomic_compare_exchange_n(&device->back_ns, &back_ns, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
  } else {
    await_device(device, marker, &bounds, fresh_ns != 0);
    account_put_off(device, marker, &bounds);
  }
  idle_ns += add(&device->spans, &bounds, (int64_t)marker->work_ns);
  __atomic_fetch_add(&device->starved_ns, idle_ns, __ATOMIC_RELAXED);
  uint64_t ended_ns = (uint64_t)(device->spans.until_ns + clock->guess_ns), finished_ns = sp_load(&device->finished_ns);
  sp_store(&device->ended_ns, ended_ns < finished_ns ? ended_ns : finished_ns);
}

/* Where the length of what an empty stream was given is known exactly, so is when it began. A turn's first work may
 * have waited for another share's. */
static void learn_arrival(struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  struct sp_clock *clock = &device->clock;
  int64_t began_ns = bounds->end_ns - (int64_t)marker->work_ns, latency_ns = began_ns - bounds->from_ns;
  if (bounds->empty && !bounds->late && clock->sure && !sp_load(&device->fresh_ns) && is_exact(marker) &&
      !marker->foreign && !marker->lane->foreign && latency_ns > -LATENCY_NS && latency_ns < LATENCY_NS)
    sp_clock_learn_arrival(clock, marker->first_ns, began_ns);
}

/* A launch that was being made while the keeper recorded a marker was before it and is counted behind it: between
 * such edges it is not known how many there were. */
static void learn_unit(struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  if (marker->foreign || marker->lane->foreign)
    return;
  sp_unit_learn(marker->unit, marker->version, marker->launches, (uint64_t)(bounds->end_ns - bounds->least_ns),
                bounds->dense && marker->alone);
  uint64_t unit_ns = sp_device_predicts(device, sp_load(&marker->unit->predicted_ns));
  uint64_t longest_ns = device->longest_ns - device->longest_ns / 1024; /* "lately": what is gone is forgotten */
  sp_store(&device->longest_ns, unit_ns > longest_ns ? unit_ns : longest_ns);
}

/* Has any other lane work in flight? */
static bool others(const struct sp_device *device, const struct sp_lane *lane) {
  uint32_t tail = __atomic_load_n(&device->queue_tail, __ATOMIC_ACQUIRE);
  for (uint32_t place = device->queue_head; place != tail; place++)
    if (device->queue[place % SP_MARKERS_MAX].lane != lane)
      return true;
  return sp_lanes_unmarked(device);
}

/* A unit that takes as long as its data says is predicted from its short ones. Too much of it would be in flight, so
 * predictions are stretched by what the work of a lane takes on the average, in comparison with what was predicted of
 * it. Only of a lane that has the device by itself: beside another one a kernel may spin until that one's has run, and
 * then must not hold it back. */
static void learn_stretch(struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  const struct sp_lane *lane = marker->lane;
  bool sole = device->sole == lane,
       ours = lane->ended_ns + device->clock.guess_ns > (int64_t)sp_load(&device->entry_ns);
  device->sole = others(device, lane) ? NULL : lane;
  if (!sole || !device->sole || !ours || !marker->unit || marker->guessed)
    return;
  uint64_t thought_ns = marker->work_ns * SP_STRETCH / (SP_STRETCH + marker->stretch);
  uint64_t took_ns = (uint64_t)(bounds->end_ns - (bounds->dense ? lane->ended_ns : bounds->least_ns));
  bool longer = took_ns > sp_device_predicts(device, thought_ns);
  /* A stretch may be so long that only one unit is in flight, and then the stream runs empty each time. All that is
   * known of such a unit is that it took no longer than since its launch, which can show that the stretch is too long.
   */
  if (!bounds->dense && (longer || marker->work_ns < sp_grant_budget_ns(device->grant)))
    return;
  /* Sooner longer than shorter: too little in flight costs less than a late drain. */
  uint64_t window_ns = longer ? STRETCH_NS / 4 : STRETCH_NS;
  uint64_t rest = took_ns < window_ns ? SP_STRETCH - took_ns * SP_STRETCH / window_ns : 0;
  device->took_ns = device->took_ns * rest / SP_STRETCH + took_ns;
  device->thought_ns = device->thought_ns * rest / SP_STRETCH + thought_ns;
  uint64_t stretch = device->thought_ns ? device->took_ns * SP_STRETCH / device->thought_ns : 0;
  if (stretch < UNEVEN)
    stretch = SP_STRETCH;
  sp_store(&device->stretch, (uint32_t)(stretch < STRETCH_MAX ? stretch : STRETCH_MAX) - SP_STRETCH);
}

/* Had the work before the marker ended when it was recorded, by what is known of its length? */
static bool had_ended(const struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  int64_t recorded_ns = (int64_t)marker->recorded_ns - device->clock.guess_ns;
  return is_seen(marker) && bounds->from_ns + (int64_t)marker->work_ns <= recorded_ns;
}

/* What the record of an event into an empty stream takes to be stamped. So long a launch takes to begin, at least. */
static void learn_record(struct sp_clock *clock, int64_t took_ns) {
  clock->record_ns += (took_ns - clock->record_ns) / 8;
}

/* An event without work before it. Behind another one it tells what an event takes on the device, which is no work. */
static void learn_edge(struct sp_device *device, const struct sp_marker *marker) {
  struct sp_clock *clock = &device->clock;
  const struct sp_lane *lane = marker->lane;
  int64_t recorded_ns = (int64_t)marker->recorded_ns - clock->guess_ns, took_ns = clock->device_ns - recorded_ns;
  if (!clock->tight || lane->scale != clock->scale)
    return;
  if (recorded_ns > lane->ended_ns && took_ns >= 0 && took_ns < LATE_NS)
    learn_record(clock, took_ns);
  took_ns = clock->device_ns - lane->ended_ns;
  if (recorded_ns < lane->ended_ns && marker->pieces == sp_load(&lane->pieces_done) + 1 && took_ns < SP_EVENT_NS)
    clock->event_ns = clock->event_ns ? clock->event_ns + (took_ns - clock->event_ns) / 8 : took_ns;
}

static void learn_wait(struct sp_device *device, const struct sp_marker *marker) {
  int64_t over_ns = device->clock.device_ns + device->clock.guess_ns;
  uint64_t stood_ns = (uint64_t)within(over_ns - (int64_t)marker->recorded_ns, 0, STOOD_NS);
  device->stood_ns += stood_ns / 4 - device->stood_ns / 4;
}

void sp_marker_finish(struct sp_device *device, bool waited, bool blocked) {
  struct sp_marker marker = device->queue[device->queue_head % SP_MARKERS_MAX];
  struct sp_lane *lane = marker.lane;
  if (waited && !sp_load(&lane->dead)) {
    sp_clock_finish(device, &marker, blocked);
    if (marker.launches) { /* else it is an edge alone */
      struct sp_bounds bounds = bounds_of(device, &marker);
      if (sp_load(&device->aside) || sp_load(&device->back_ns))
        bounds.dense = false; /* others may have run in between */
      learn_arrival(device, &marker, &bounds);
      if (bounds.late && had_ended(device, &marker, &bounds))
        learn_record(&device->clock, bounds.rest_ns);
      account(device, &marker, bounds);
      learn_stretch(device, &marker, &bounds);
      if (marker.unit)
        learn_unit(device, &marker, &bounds);
    }
    if (marker.awaits)
      learn_wait(device, &marker);
    else if (!marker.launches)
      learn_edge(device, &marker);
    lane->ended_ns = device->clock.device_ns;
    lane->scale = device->clock.scale;
    lane->foreign = marker.foreign;
  }
  sp_store(&lane->pieces_done, marker.pieces);
  pthread_mutex_lock(&device->queue_lock);
  __atomic_store_n(&device->queue_head, device->queue_head + 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&device->queue_lock);
  __atomic_fetch_sub(&lane->outstanding, 1, __ATOMIC_ACQ_REL);
  __atomic_fetch_add(&device->completed_ns, marker.work_ns, __ATOMIC_ACQ_REL);
}
