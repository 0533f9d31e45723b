/* Turns of contexts on their devices, and the speed of their work meanwhile. A lane is the queue of one stream, and its
 * head is the item that runs or is next. */
#include "simgpu/model/slice.h"

#include "simgpu/model/model.h"

/* Whether the context in this slot has work that needs its device and may run now, at the head of any lane. SG_NONE has
 * none. */
static bool runnable(struct sg_shared *shared, uint32_t slot) {
  struct sg_context *context = &shared->contexts[slot];
  if (slot == SG_NONE || !sg_bit(shared->active, slot))
    return false;
  SG_EACH(lane, context->active, SG_MAX_LANES) {
    const struct sg_item *item = sg_head_of(context, &context->lanes[lane]);
    if (sg_takes_device(item) && (item->phase == SG_READY || item->phase == SG_RUNNING))
      return true;
  }
  return false;
}

/* The next context after `slot`, round robin, with work for this device; `slot` itself comes last. SG_NONE: there is
 * none. */
static uint32_t next_runnable(struct sg_shared *shared, uint32_t device, uint32_t slot) {
  uint32_t from = slot == SG_NONE ? 0 : slot + 1;
  for (int pass = 0; pass < 2; pass++, from = 0)
    for (uint32_t n = sg_next_bit(shared->active, from, SG_MAX_CONTEXTS); n < SG_MAX_CONTEXTS;
         n = sg_next_bit(shared->active, n + 1, SG_MAX_CONTEXTS))
      if (shared->contexts[n].device == device && runnable(shared, n))
        return n;
  return SG_NONE;
}

/* Until when the device stays with a context that has run empty: for drain_stay_us after its last work, and
 * intrusion_us longer if it ran only commands in this turn (records, writes, small copies). In any case no longer than
 * until its slice ends. */
static uint64_t stays_until(const struct sg_profile *profile, const struct sg_device *device) {
  uint64_t stay_ns = device->worked_ns + (uint64_t)profile->drain_stay_us * SG_US;
  if (device->busy_ns == device->hold_busy_ns)
    stay_ns += (uint64_t)profile->intrusion_us * SG_US;
  return stay_ns < device->slice_end_ns ? stay_ns : device->slice_end_ns;
}

/* Give the device to the next context if the slice of the current one is over, or if the current one has run empty and
 * its stay is over. A switch takes time in which nothing runs; the first context of a device gets it at once. */
void sg_dispatch(struct sg_shared *shared, uint32_t index) {
  struct sg_device *device = &shared->devices[index];
  const struct sg_profile *profile = &shared->model.profile;
  uint64_t now_ns = shared->now_ns, slice_ns = (uint64_t)profile->slice_us * SG_US;
  if (device->switch_until_ns > now_ns)
    return;
  /* A slot goes to another context when its own has ended: the id tells. */
  bool same = device->current != SG_NONE && shared->contexts[device->current].id == device->current_id;
  bool busy = same && shared->contexts[device->current].device == index && runnable(shared, device->current);
  /* At its slice's end the context was alone, or a switch was under way: it got another slice. */
  if (busy && now_ns > device->slice_end_ns)
    device->slice_end_ns += (now_ns - device->slice_end_ns + slice_ns - 1) / slice_ns * slice_ns;
  if (now_ns < (busy ? device->slice_end_ns : stays_until(profile, device)))
    return;
  uint32_t next = next_runnable(shared, index, device->current);
  if (next == SG_NONE)
    return;
  uint64_t cost_ns = 0;
  if (!same || next != device->current) {
    bool first = device->current == SG_NONE; /* no context has to be saved */
    cost_ns = first ? 0 : SG_US * (uint64_t)(busy ? profile->switch_us : profile->drain_switch_us);
    device->switches += !first;
    device->hold_busy_ns = device->busy_ns;
    device->worked_ns = now_ns + cost_ns;
  }
  device->current = next;
  device->current_id = shared->contexts[next].id;
  device->switch_until_ns = now_ns + cost_ns;
  device->slice_end_ns = now_ns + cost_ns + slice_ns;
}

/* Whether the context that has the device can work on it now: the switch to it is over, and it has work for the
 * device. */
static bool holds(struct sg_shared *shared, uint32_t index) {
  struct sg_device *device = &shared->devices[index];
  return device->current != SG_NONE && device->switch_until_ns <= shared->now_ns &&
         shared->contexts[device->current].id == device->current_id &&
         shared->contexts[device->current].device == index && runnable(shared, device->current);
}

/* The smaller one of two times or durations. */
static uint64_t earlier(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* The factor by which a context's work on SMs takes longer than alone, in parts of SG_ALL_SMS. It is SG_ALL_SMS, a
 * factor of 1, for work that fits on the SMs together, and if streams do not share them (streams_share_sms). 0: nothing
 * runs on an SM. */
static uint64_t crowding(struct sg_shared *shared, struct sg_context *context) {
  const struct sg_profile *profile = &shared->model.profile;
  uint64_t demand = 0, runs = 0;
  SG_EACH(lane, context->active, SG_MAX_LANES) {
    const struct sg_item *item = sg_head_of(context, &context->lanes[lane]);
    if (item->demand && item->phase >= SG_READY) {
      demand += item->demand;
      runs++;
    }
  }
  if (!runs || !profile->streams_share_sms || demand < SG_ALL_SMS)
    return runs ? SG_ALL_SMS : 0;
  return runs == 1 ? SG_ALL_SMS : demand * (100 + (uint64_t)profile->interference_percent) / 100;
}

/* The factor by which an item takes longer than alone, in parts of SG_ALL_SMS. `crowd` is what crowding() says. Work
 * that runs on no SM is not slowed by others. */
static uint64_t slowdown_of(const struct sg_item *item, uint64_t crowd) {
  return item->demand ? crowd : SG_ALL_SMS;
}

/* How long the rest of an item takes at this slowdown. One nanosecond of left_ns is `slowdown` parts of work, and each
 * nanosecond of the clock does SG_ALL_SMS parts. `item->part`: the parts done that do not yet make a whole nanosecond
 * of left_ns. */
static uint64_t time_for(const struct sg_item *item, uint64_t slowdown) {
  uint64_t work = item->left_ns * slowdown;
  return work > item->part ? (work - item->part + SG_ALL_SMS - 1) / SG_ALL_SMS : 1;
}

/* The earliest of: a launch latency is over, an item completes, a switch is over, a slice or a stay ends while another
 * context has work for the device. */
uint64_t sg_next_change(struct sg_shared *shared) {
  uint64_t now_ns = shared->now_ns, next = SG_NEVER;
  SG_EACH(slot, shared->active, SG_MAX_CONTEXTS) {
    struct sg_context *context = &shared->contexts[slot];
    struct sg_device *device = &shared->devices[context->device];
    bool running = device->current == slot && holds(shared, context->device);
    uint64_t crowd = running ? crowding(shared, context) : 0;
    SG_EACH(lane, context->active, SG_MAX_LANES) {
      const struct sg_item *item = sg_head_of(context, &context->lanes[lane]);
      if (item->ready_ns > now_ns)
        next = earlier(next, item->ready_ns);
      else if (item->kind == SG_COPY && item->phase == SG_RUNNING && !sg_takes_device(item))
        next = earlier(next, item->started_ns + item->left_ns);
      else if (running && sg_takes_device(item) && item->phase >= SG_READY && !sg_spins(item))
        next = earlier(next, now_ns + ((item->flags & SG_RELEASED) ? 1 : time_for(item, slowdown_of(item, crowd))));
    }
  }
  for (uint32_t n = 0; n < shared->device_count; n++) {
    struct sg_device *device = &shared->devices[n];
    uint32_t successor = next_runnable(shared, n, device->current);
    if (device->switch_until_ns > now_ns)
      next = earlier(next, device->switch_until_ns);
    else if (successor != SG_NONE && successor != device->current)
      next = earlier(next, holds(shared, n) ? device->slice_end_ns : stays_until(&shared->model.profile, device));
  }
  return next > now_ns ? next : now_ns + 1;
}

/* Add the time between two instants to a history. A span that is too old loses its entry to a new one. */
static void add_busy(struct sg_history *history, uint64_t from_ns, uint64_t to_ns) {
  while (from_ns < to_ns) {
    uint64_t stamp = from_ns / SG_BUCKET_NS, end_ns = earlier(to_ns, (stamp + 1) * SG_BUCKET_NS);
    uint32_t n = (uint32_t)(stamp % SG_BUCKETS);
    if (history->stamp[n] != stamp) {
      history->stamp[n] = stamp;
      history->busy_ns[n] = 0;
    }
    history->busy_ns[n] += end_ns - from_ns;
    from_ns = end_ns;
  }
}

/* Let time pass to `to_ns`. In the contexts that hold their devices, the heads of the lanes start or go on. None of
 * them completes before that instant, because the caller stops at the next change. */
void sg_run(struct sg_shared *shared, uint64_t to_ns) {
  uint64_t from_ns = shared->now_ns, step_ns = to_ns - from_ns;
  for (uint32_t n = 0; n < shared->device_count; n++) {
    if (!holds(shared, n))
      continue;
    struct sg_device *device = &shared->devices[n];
    struct sg_context *context = &shared->contexts[device->current];
    uint64_t crowd = crowding(shared, context);
    device->worked_ns = to_ns;
    SG_EACH(lane, context->active, SG_MAX_LANES) {
      struct sg_item *item = sg_head_of(context, &context->lanes[lane]);
      if (!sg_takes_device(item) || item->phase < SG_READY)
        continue;
      if (item->phase == SG_READY) {
        item->started_ns = from_ns;
        item->phase = SG_RUNNING;
      }
      item->busy_ns += step_ns;
      if (item->flags & SG_SPIN) /* it has no end that is known */
        continue;
      uint64_t work = step_ns * SG_ALL_SMS + item->part, slowdown = slowdown_of(item, crowd);
      item->left_ns -= earlier(work / slowdown, item->left_ns);
      item->part = work % slowdown;
    }
    if (!crowd) /* only commands ran: the device does not count as busy */
      continue;
    context->busy_ns += step_ns;
    device->busy_ns += step_ns;
    add_busy(&context->history, from_ns, to_ns);
    add_busy(&device->history, from_ns, to_ns);
  }
  shared->now_ns = to_ns;
}
