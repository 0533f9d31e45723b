/* Lower bounds on the completion of work, for callers that are about to sleep. A lane is the queue of one stream. An
 * item's mark is the work, in nanoseconds, that its lane has done when the item is complete. */
#include "simgpu/model/model.h"

#define STUCK_NS 1000000ull      /* no known event ends the stall: look again after this time, or when kicked */
#define SOON_NS  (STUCK_NS / 10) /* too little is known for a bound: look again after this time */
#define DEPTH    6               /* waits for other lanes that are followed; longer chains give a weaker bound */
#define WALK     256             /* items of a lane that are followed; a longer lane gives a weaker bound */

/* The later one of two times. */
static uint64_t later(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}
/* The earlier one of two times. */
static uint64_t earlier(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* The part of the head's duration that has passed. */
static uint64_t progress(const struct sg_shared *shared, const struct sg_item *head) {
  if (head->kind == SG_COPY && !sg_takes_device(head)) /* it runs beside the turns, by the clock */
    return head->phase == SG_RUNNING ? earlier(shared->now_ns - head->started_ns, head->duration_ns) : 0;
  return head->duration_ns > head->left_ns ? head->duration_ns - head->left_ns : 0;
}

/* How long at least a context that holds its device will keep it, if its slice does not end: as long as the lane takes
 * that has the most work for the device in front. SG_NEVER: a spin kernel holds it. 0: the context has no such work. */
static uint64_t holds_for(const struct sg_shared *shared, const struct sg_context *context) {
  uint64_t longest = 0;
  SG_EACH(index, context->active, SG_MAX_LANES) {
    const struct sg_lane *lane = &context->lanes[index];
    const struct sg_item *item = &context->items[lane->head];
    if (!sg_takes_device(item) || item->phase < SG_READY)
      continue;
    if (sg_spins(item))
      return SG_NEVER;
    uint64_t work_ns = 0;
    if (!lane->blockers)
      work_ns = lane->submitted_ns - lane->done_ns;
    else /* only the work before the first item that may stop the lane */
      for (int n = 0; n < WALK && sg_takes_device(item) && !sg_spins(item); n++) {
        work_ns += item->duration_ns;
        if (item->next == SG_NONE)
          break;
        item = &context->items[item->next];
      }
    longest = later(longest, work_ns - progress(shared, &context->items[lane->head]));
  }
  return longest;
}

/* The earliest time at which this context can have its device. A switch counts at the lower of its two costs: a bound
 * may be early, but never late. */
static uint64_t earliest_turn(const struct sg_shared *shared, uint32_t slot) {
  const struct sg_device *device = &shared->devices[shared->contexts[slot].device];
  uint64_t from = later(shared->now_ns, device->switch_until_ns);
  if (device->current == SG_NONE || device->current == slot)
    return from;
  const struct sg_context *holder = &shared->contexts[device->current];
  if (holder->id != device->current_id || !sg_bit(shared->active, device->current))
    return from;
  uint64_t hold_ns = holds_for(shared, holder);
  if (!hold_ns)
    return from;
  uint64_t cost_ns =
      SG_US * earlier((uint64_t)shared->model.profile.switch_us, (uint64_t)shared->model.profile.drain_switch_us);
  return later(from, hold_ns == SG_NEVER ? device->slice_end_ns : earlier(device->slice_end_ns, from + hold_ns)) +
         cost_ns;
}

/* The bound if nothing that is known now ends the wait: the time to look again. Until then (blocked_until_ns) each
 * submission wakes the waiters, because it may end the wait. */
static uint64_t stuck(struct sg_shared *shared) {
  shared->blocked_until_ns = later(shared->blocked_until_ns, shared->now_ns + STUCK_NS);
  return shared->now_ns + STUCK_NS;
}

/* sg_bound, for the lane `index`. The bound is the earliest start or progress of the head, and from then on the work up
 * to `mark_ns`. The head may wait for other lanes: at most `depth` such waits are followed. Beyond that the bound is a
 * short time from now. */
static uint64_t bound(struct sg_shared *shared, uint32_t slot, uint32_t index, uint64_t mark_ns, int depth) {
  struct sg_context *context = &shared->contexts[slot];
  struct sg_lane *lane = &context->lanes[index];
  uint64_t now_ns = shared->now_ns, from_ns = now_ns;
  if (lane->head == SG_NONE)
    return now_ns;
  struct sg_item *head = &context->items[lane->head];
  uint64_t done_ns = lane->done_ns + progress(shared, head);
  uint64_t left_ns = mark_ns > done_ns ? mark_ns - done_ns : 0;
  if (!depth)
    return now_ns + SOON_NS;
  if (head->phase == SG_CALLING || sg_spins(head) || sg_watches(head))
    return stuck(shared);
  if (head->phase == SG_QUEUED && head->ready_ns > now_ns) {
    from_ns = head->ready_ns;
  } else if (head->phase == SG_QUEUED && head->kind == SG_WAIT) {
    struct sg_event *event = &shared->contexts[head->peer].events[head->name];
    /* Only the newest record's place is known. For an older record look again soon. */
    if (event->completed < head->seq)
      from_ns = event->recorded == head->seq ? bound(shared, head->peer, event->lane, event->mark_ns, depth - 1)
                                             : now_ns + SOON_NS;
  } else if (head->phase == SG_QUEUED && index == 0) { /* the legacy stream waits for blocking streams */
    SG_EACH(other, context->active, SG_MAX_LANES) {
      struct sg_lane *before = &context->lanes[other];
      if (!other || !before->blocking || context->items[before->head].order > head->order)
        continue;
      bool all = context->items[before->tail].order < head->order; /* all of its work comes first; else the head */
      uint64_t until_ns = all ? before->submitted_ns : context->items[before->head].mark_ns;
      from_ns = later(from_ns, bound(shared, slot, other, until_ns, depth - 1));
    }
  } else if (head->phase == SG_QUEUED && lane->blocking && sg_bit(context->active, 0) &&
             context->items[context->lanes[0].head].order <
                 head->order) { /* a blocking stream waits for the legacy one */
    from_ns = bound(shared, slot, 0, context->items[context->lanes[0].head].mark_ns, depth - 1);
  }
  if (sg_takes_device(head))
    from_ns = later(from_ns, earliest_turn(shared, slot));
  return from_ns + left_ns;
}

/* The earliest time at which the lane can have done the work up to this mark. Later work can only delay it. */
uint64_t sg_bound(struct sg_shared *shared, uint32_t slot, uint32_t lane, uint64_t mark_ns) {
  return bound(shared, slot, lane, mark_ns, DEPTH);
}

/* The lower bound on the first effect or host function of the context; SG_NEVER: none is pending. */
uint64_t sg_effect_bound(struct sg_shared *shared, uint32_t slot) {
  struct sg_context *context = &shared->contexts[slot];
  uint64_t first = SG_NEVER;
  SG_EACH(index, context->active, SG_MAX_LANES) {
    const struct sg_lane *lane = &context->lanes[index];
    if (lane->effect_head != SG_NONE)
      first = earlier(first, bound(shared, slot, index, context->items[lane->effect_head].mark_ns, DEPTH));
  }
  return first;
}
