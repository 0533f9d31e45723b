/*
 * Evaluates a finished marker, an event that was recorded behind work in a stream: when did the device run that work,
 * and how long does a unit (the work of one launch) take? Only the keeper, the device's helper thread, runs this.
 *
 * Times are on a scale of the device's clock (clock.c) unless they say otherwise. Work that stands is behind a wait of
 * its stream (for the host, a word, an event) and does not run. An edge is a marker that a thread records just before a
 * launch. The account of a turn is its spans: when the device had work of ours (busy_intervals.c).
 *
 * An event's time is the end of the work in front of it, unless it was recorded after that end. The beginning of the
 * work is not known: an event in front of it would be stamped before the launch arrives, and short work takes less time
 * than that. So the span of the work is as long as the work is predicted to be, but within certain bounds. It ran
 * neither before it was launched nor before the end of the stream's earlier work. Once all of it had been launched, it
 * ran until its end. So a wrong prediction errs by no more than the launching took, and a queue that never ran empty
 * never counts as idle. Only the first work of a turn may have waited after its launch, for another share's work: there
 * an exactly known length is believed, but only for a wait of up to AWAIT_NS.
 */
#include "hook/gate/process.h"

#define LATE_NS     15000  /* an event that is stamped this soon after its recording was recorded behind ended work */
#define LOOSE_NS    50000  /* the mapping of the clocks may be wrong by this, unless it is tight */
#define LATENCY_NS  20000  /* a launch that takes longer to arrive has waited for something */
#define SPARSE_NS   500000 /* work that was launched over a longer time than this may have pauses anywhere in it */
#define STRETCH_NS  20000000u            /* the stretch is an average over about this much work */
#define UNEVEN      (SP_STRETCH * 3 / 2) /* a smaller ratio is no stretch */
#define STRETCH_MAX (SP_STRETCH * 64)
#define PUT_OFF_NS  50000   /* the length of a unit varies by less than this */
#define STOOD_NS    1000000 /* so that one long wait does not hide the short ones for ever */
#define SLICE_NS    2000000 /* a context has the device for at most this long while another one has work */
#define AWAIT_NS    1000000 /* the first work of a turn waits for another share's work for at most this */

/* What is known of the work in front of a marker, on the device's scale. */
struct sp_bounds {
  int64_t from_ns;     /* it usually began no earlier than this … */
  int64_t earliest_ns; /* … and certainly not before this */
  int64_t end_ns;
  int64_t ran_ns; /* the time from its last launch to its end: it ran for at least this long */
  bool empty;     /* its first launch found the stream empty */
  bool late;      /* the marker was recorded after its end, and does not show when that was */
  bool dense;     /* the stream has not run empty since the last end: so the length is exact */
};

/* Is marker->work_ns the length of the work exactly? It is if all of it is of one unit that was measured alone, and
 * predictions are not stretched. */
static bool is_exact(const struct sp_marker *marker) {
  return marker->profile && !marker->stretch && sp_profile_is_exact(marker->profile);
}

/* Was marker->work_ns measured? Then it is about the shortest time that such work has taken, but may not be its exact
 * length. */
static bool is_learned(const struct sp_marker *marker) {
  return marker->profile && !marker->stretch && !marker->guessed;
}

/* The value, or the end of the range from `least` to `most` that is nearest to it. */
static int64_t clamp(int64_t value, int64_t least, int64_t most) {
  return value < least ? least : value > most ? most : value;
}

/* What is known of the work in front of a marker that has just finished. clock->device_ns is its end (sp_clock_finish);
 * state->ended_ns still is the end of the stream's marker before. */
static struct sp_bounds bounds_of(const struct sp_device *device, const struct sp_marker *marker) {
  const struct sp_clock *clock = &device->clock;
  const struct sp_stream_state *state = marker->state;
  bool exact = is_exact(marker);
  /* Two times of the host's clock, on the device's scale. A recorded_ns by the lower bound of the mapping (low_ns) is
   * rather too late: the work should not seem to have run for longer than it did. */
  int64_t first_ns = (int64_t)marker->first_ns - clock->guess_ns;
  int64_t recorded_ns = (int64_t)marker->recorded_ns - clock->low_ns;
  struct sp_bounds bounds = {
      .from_ns = sp_clock_arrived_ns(clock, marker->first_ns), .end_ns = clock->device_ns, .empty = true};
  /* Its launch: by the guess, or, for an exact length, by the bound that is certain. */
  bounds.earliest_ns = exact ? (int64_t)marker->first_ns - sp_clock_upper_ns(clock) : first_ns;
  if (state->scale == clock->scale) { /* state->ended_ns is on this scale, so it can be compared */
    /* Had all of it been launched when the earlier work ended? */
    bounds.dense = clock->sure && recorded_ns + (clock->tight ? 0 : LOOSE_NS) <= state->ended_ns;
    int64_t free_ns = state->ended_ns + clock->event_ns; /* the earlier marker takes time on the device, too */
    if (state->ended_ns >= first_ns) {                   /* its first launch found earlier work in the stream */
      bounds.from_ns = bounds.earliest_ns = free_ns;
      bounds.empty = false;
    } else if (bounds.earliest_ns < free_ns) {
      bounds.earliest_ns = free_ns;
    }
  }
  int64_t turn_began_ns = clock->started ? clock->start_ns : INT64_MIN;
  bounds.earliest_ns = clamp(bounds.earliest_ns, turn_began_ns, bounds.end_ns);
  bounds.from_ns = clamp(bounds.from_ns, bounds.earliest_ns, bounds.end_ns);
  if (recorded_ns < bounds.end_ns)
    bounds.ran_ns = bounds.end_ns - recorded_ns;
  bounds.late = clock->tight && bounds.ran_ns < LATE_NS;
  return bounds;
}

/* Add the span of the work to the account; `work_ns`: its predicted length. Returns by how much the turn's idle time
 * grows; negative: it shrinks. */
static int64_t add_span(struct sp_busy_intervals *busy, const struct sp_bounds *bounds, int64_t work_ns) {
  int64_t from_ns = bounds->from_ns, end_ns = bounds->end_ns, launched_ns = end_ns - bounds->ran_ns;
  if (work_ns <= bounds->ran_ns) /* it took longer than predicted, or it waited for other work */
    return sp_busy_add(busy, from_ns, end_ns);
  if (bounds->late) /* it ran at once, as far as is known */
    return sp_busy_add(busy, from_ns, clamp(from_ns + work_ns, from_ns, end_ns));
  if (launched_ns - from_ns > SPARSE_NS && work_ns < end_ns - from_ns) /* it ran with pauses */
    return sp_busy_add(busy, launched_ns, end_ns) + sp_busy_fill(busy, from_ns, launched_ns, work_ns - bounds->ran_ns);
  return sp_busy_add(busy, clamp(end_ns - work_ns, bounds->earliest_ns, end_ns), end_ns);
}

/* A turn may be granted before its predecessor's work has ended. Then its first work waits, and no work of ours began
 * before device->ours_ns (INT64_MIN: not known): move the bounds there. It is when our first launch began, which is
 * known if the launch's length is known exactly. Only a single launch shows it: several may have waited for other
 * streams in between. `fresh`: this is the first work since the turn was entered with an empty device. */
static void begin_as_ours(struct sp_device *device, const struct sp_marker *marker, struct sp_bounds *bounds,
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
  bounds->from_ns = bounds->earliest_ns = device->ours_ns;
  bounds->empty = false; /* its launch arrived long before */
}

/* Account work that stood behind a wait. What of it ran before `back_ns`, when our next turn began, ran beside another
 * share's turn: that time is reported in the slot, and what ran later stays in `bounds`. If the work's length is known,
 * the other share's slices in between do not count as its own. But it may have taken longer, like a kernel that spins:
 * beside one other share it had half of the time, give or take a slice. */
static void account_beside(struct sp_device *device, const struct sp_marker *marker, struct sp_bounds *bounds,
                           int64_t back_ns) {
  struct sp_busy_intervals *busy = &device->busy;
  int64_t work_ns = (int64_t)marker->work_ns, end_ns = clamp(bounds->end_ns, INT64_MIN, back_ns);
  int64_t span_ns = bounds->end_ns - bounds->from_ns, half_ns = span_ns / 2 - SLICE_NS;
  if (is_learned(marker) && work_ns < span_ns)
    bounds->from_ns = bounds->earliest_ns = bounds->end_ns - (work_ns < half_ns ? half_ns : work_ns);
  if (bounds->from_ns < end_ns) {
    int64_t until_ns = busy->until_ns, idle_ns = sp_busy_add(busy, bounds->from_ns, end_ns);
    device->beside_ns += (uint64_t)(busy->until_ns - until_ns - idle_ns); /* what the union has grown by */
    sp_store(&device->slot->beside_until_us, (uint32_t)((uint64_t)(end_ns + device->clock.guess_ns) / 1000));
    sp_store_release(&device->slot->beside_ns, device->beside_ns);
  }
  bounds->from_ns = clamp(bounds->from_ns, end_ns, bounds->end_ns);
  bounds->earliest_ns = clamp(bounds->earliest_ns, end_ns, bounds->end_ns);
  bounds->ran_ns = clamp(bounds->ran_ns, 0, bounds->end_ns - bounds->from_ns);
  bounds->empty = false;
}

/* If the work's length is known exactly, report by how much longer it has taken: for that time the device ran another
 * share's work, or changed to it and back. The arbiter knows whether another share had work then. */
static void account_put_off(struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  int64_t put_off_ns = bounds->end_ns - bounds->from_ns - (int64_t)marker->work_ns;
  if (!device->clock.sure || bounds->late || !is_exact(marker) || device->sole != marker->state ||
      put_off_ns < PUT_OFF_NS)
    return;
  device->put_off_ns += (uint64_t)put_off_ns;
  sp_store(&device->slot->put_off_us, (uint32_t)(device->put_off_ns / 1000));
}

/* Add finished work to the account: its span, the idle time in front of it, and what ran beside other shares' turns
 * (`aside`, back_ns: struct sp_device). A change of the idle time is left in device->starved_ns for the next report,
 * and the end of the work in device->ended_ns. */
static void account(struct sp_device *device, const struct sp_marker *marker, struct sp_bounds bounds) {
  struct sp_clock *clock = &device->clock;
  uint64_t fresh_ns = sp_exchange(&device->fresh_ns, 0);
  bool aside = sp_load_acquire(&device->aside); /* read before back_ns, which is set before `aside` ends */
  uint64_t back_ns = sp_load_acquire(&device->back_ns);
  int64_t idle_ns = 0;
  if (fresh_ns) { /* the account begins when the turn was entered */
    sp_busy_begin(&device->busy, (int64_t)fresh_ns - clock->guess_ns);
  } else if (device->scale == 0) { /* nothing is known of the time before this end */
    sp_busy_begin(&device->busy, bounds.end_ns);
    device->ours_ns = INT64_MIN;
  } else if (device->scale != clock->scale) {
    /* The spans are on another context's scale: the host's clock connects the two. */
    sp_busy_shift(&device->busy, device->told_guess_ns - clock->guess_ns);
    if (device->ours_ns != INT64_MIN)
      device->ours_ns += device->told_guess_ns - clock->guess_ns;
  } else {
    /* Ends are reported on the host's clock. An edge may have moved the mapping, and with it the last reported end. */
    idle_ns = clock->guess_ns - device->told_guess_ns;
  }
  device->told_guess_ns = clock->guess_ns;
  device->scale = clock->scale;
  if (aside || back_ns) {
    int64_t beside_until_ns = aside ? bounds.end_ns : (int64_t)back_ns - clock->guess_ns;
    account_beside(device, marker, &bounds, beside_until_ns);
    idle_ns = 0; /* outside a turn no time counts as idle */
    device->ours_ns = INT64_MIN;
    /* Other work that ended before back_ns may follow: the turn's own work begins with the first that did not. */
    if (!aside && bounds.end_ns > beside_until_ns) {
      sp_busy_begin(&device->busy, beside_until_ns);
      sp_compare_exchange(&device->back_ns, &back_ns, 0);
    }
  } else {
    begin_as_ours(device, marker, &bounds, fresh_ns != 0);
    account_put_off(device, marker, &bounds);
  }
  idle_ns += add_span(&device->busy, &bounds, (int64_t)marker->work_ns);
  sp_add(&device->starved_ns, idle_ns);
  uint64_t ended_ns = (uint64_t)(device->busy.until_ns + clock->guess_ns), finished_ns = sp_load(&device->finished_ns);
  sp_store(&device->ended_ns, ended_ns < finished_ns ? ended_ns : finished_ns);
}

/* Learn how long a launch takes to arrive, for the clock: if the length of work in an empty stream is known exactly, so
 * is its beginning. A turn's first work is left out, because it may have waited for another share's. */
static void learn_arrival(struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  struct sp_clock *clock = &device->clock;
  int64_t began_ns = bounds->end_ns - (int64_t)marker->work_ns, latency_ns = began_ns - bounds->from_ns;
  if (bounds->empty && !bounds->late && clock->sure && !sp_load(&device->fresh_ns) && is_exact(marker) &&
      !marker->foreign && !marker->state->foreign && latency_ns > -LATENCY_NS && latency_ns < LATENCY_NS)
    sp_clock_learn_arrival(clock, marker->first_ns, began_ns);
}

/* All work of the marker is of one unit: learn its length, and keep the length of the longest unit. Nothing is learned
 * if another thread than the launching one recorded a marker at either end. A launch that was under way meanwhile may
 * be in front of that marker but counted behind it, so the number of launches in between is not known. */
static void learn_unit(struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  if (marker->foreign || marker->state->foreign)
    return;
  sp_profile_learn(marker->profile, marker->version, marker->launches, (uint64_t)(bounds->end_ns - bounds->earliest_ns),
                   /* exact */ bounds->dense && marker->alone);
  uint64_t unit_ns = sp_device_predicts(device, sp_load(&marker->profile->predicted_ns));
  uint64_t longest_ns = device->longest_ns -
                        device->longest_ns / 1024; /* decays, so that units which do not come any more are forgotten */
  sp_store(&device->longest_ns, unit_ns > longest_ns ? unit_ns : longest_ns);
}

/* Does any stream of the device but this one have work in flight? */
static bool others_in_flight(const struct sp_device *device, const struct sp_stream_state *state) {
  uint32_t tail = sp_load_acquire(&device->queue_tail);
  for (uint32_t place = device->queue_head; place != tail; place++)
    if (device->queue[place % SP_MARKERS_MAX].state != state)
      return true;
  return sp_streams_unmarked(device);
}

/* If a unit's length depends on its data, its prediction comes from its short runs, so too much of it would be in
 * flight. So predictions are stretched (device->stretch): by the average ratio of the time that a stream's work took to
 * the time that was predicted. Only a stream that has the device to itself counts (device->sole): beside another stream
 * a kernel may spin until the other's kernel has run, and a stretch from that would hold that kernel back. */
static void learn_stretch(struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  const struct sp_stream_state *state = marker->state;
  /* Did the stream have the device to itself at its last marker, and was that in this turn? */
  bool was_sole = device->sole == state,
       in_turn = state->ended_ns + device->clock.guess_ns > (int64_t)sp_load(&device->entry_ns);
  device->sole = others_in_flight(device, state) ? NULL : state;
  if (!was_sole || !device->sole || !in_turn || !marker->profile || marker->guessed)
    return;
  uint64_t unstretched_ns = marker->work_ns * SP_STRETCH / (SP_STRETCH + marker->stretch);
  uint64_t took_ns = (uint64_t)(bounds->end_ns - (bounds->dense ? state->ended_ns : bounds->earliest_ns));
  bool longer = took_ns > sp_device_predicts(device, unstretched_ns);
  /* With a long stretch only one unit is in flight, and the stream runs empty after each. Such a unit took at most the
   * time since its launch; this bound can still show that the stretch is too long. */
  if (!bounds->dense && (longer || marker->work_ns < sp_grant_budget_ns(device->grant)))
    return;
  /* It grows faster than it shrinks: too little work in flight costs less than a late drain. */
  uint64_t window_ns = longer ? STRETCH_NS / 4 : STRETCH_NS;
  uint64_t kept = took_ns < window_ns ? SP_STRETCH - took_ns * SP_STRETCH / window_ns : 0; /* 256ths of the sums */
  /* Both sums decay, so their ratio is an average over recent work. */
  device->took_ns = device->took_ns * kept / SP_STRETCH + took_ns;
  device->unstretched_ns = device->unstretched_ns * kept / SP_STRETCH + unstretched_ns;
  uint64_t stretch = device->unstretched_ns ? device->took_ns * SP_STRETCH / device->unstretched_ns : 0;
  if (stretch < UNEVEN)
    stretch = SP_STRETCH;
  sp_store(&device->stretch, (uint32_t)(stretch < STRETCH_MAX ? stretch : STRETCH_MAX) - SP_STRETCH);
}

/* Had the work in front of the marker ended before the marker was recorded, judged by the work's known length? */
static bool had_ended(const struct sp_device *device, const struct sp_marker *marker, const struct sp_bounds *bounds) {
  int64_t recorded_ns = (int64_t)marker->recorded_ns - device->clock.guess_ns;
  return is_learned(marker) && bounds->from_ns + (int64_t)marker->work_ns <= recorded_ns;
}

/* Learn that an event in an empty stream was stamped `took_ns` after its record, as a moving average. A launch takes at
 * least as long to begin. */
static void learn_record(struct sp_clock *clock, int64_t took_ns) {
  clock->record_ns += (took_ns - clock->record_ns) / 8;
}

/* Learn from a marker without work in front of it, as edges can be. In an empty stream it shows how long a record takes
 * to be stamped. Directly behind another marker it shows how long an event takes on the device, which is not work. */
static void learn_edge(struct sp_device *device, const struct sp_marker *marker) {
  struct sp_clock *clock = &device->clock;
  const struct sp_stream_state *state = marker->state;
  int64_t recorded_ns = (int64_t)marker->recorded_ns - clock->guess_ns, took_ns = clock->device_ns - recorded_ns;
  if (!clock->tight || state->scale != clock->scale)
    return;
  if (recorded_ns > state->ended_ns && took_ns >= 0 && took_ns < LATE_NS)
    learn_record(clock, took_ns);
  took_ns = clock->device_ns - state->ended_ns;
  if (recorded_ns < state->ended_ns && marker->pieces == sp_load(&state->pieces_done) + 1 && took_ns < SP_EVENT_NS)
    clock->event_ns = clock->event_ns ? clock->event_ns + (took_ns - clock->event_ns) / 8 : took_ns;
}

/* The marker is an edge behind a wait, and shows when that wait was over. Learn how long work stands behind waits, as a
 * moving average. */
static void learn_wait(struct sp_device *device, const struct sp_marker *marker) {
  int64_t over_ns = device->clock.device_ns + device->clock.guess_ns;
  uint64_t stood_ns = (uint64_t)clamp(over_ns - (int64_t)marker->recorded_ns, 0, STOOD_NS);
  device->stood_ns += stood_ns / 4 - device->stood_ns / 4;
}

/* The keeper is through with the marker at the queue's head: learn from it, and take it out. `waited`: its event has
 * ended, else nothing is learned. `blocked`: it had not ended when the wait began. Takes queue_lock. */
void sp_marker_finish(struct sp_device *device, bool waited, bool blocked) {
  struct sp_marker marker = device->queue[device->queue_head % SP_MARKERS_MAX];
  struct sp_stream_state *state = marker.state;
  if (waited && !sp_load(&state->dead)) {
    sp_clock_finish(device, &marker, blocked);
    if (marker.launches) { /* if there are none, it is an edge alone */
      struct sp_bounds bounds = bounds_of(device, &marker);
      if (sp_load(&device->aside) || sp_load(&device->back_ns))
        bounds.dense = false; /* work of other streams may have run in between */
      learn_arrival(device, &marker, &bounds);
      if (bounds.late && had_ended(device, &marker, &bounds))
        learn_record(&device->clock, bounds.ran_ns);
      account(device, &marker, bounds);
      learn_stretch(device, &marker, &bounds);
      if (marker.profile)
        learn_unit(device, &marker, &bounds);
    }
    if (marker.awaits)
      learn_wait(device, &marker);
    else if (!marker.launches)
      learn_edge(device, &marker);
    state->ended_ns = device->clock.device_ns;
    state->scale = device->clock.scale;
    state->foreign = marker.foreign;
  }
  sp_store(&state->pieces_done, marker.pieces);
  pthread_mutex_lock(&device->queue_lock);
  sp_store_release(&device->queue_head, device->queue_head + 1);
  pthread_mutex_unlock(&device->queue_lock);
  sp_sub_full(&state->outstanding, 1);
  sp_add_full(&device->completed_ns, marker.work_ns);
}
