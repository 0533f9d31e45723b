/* Turns of contexts on their devices, and the speed of their work meanwhile. */
#include "simgpu/model/slice.h"

#include "simgpu/model/model.h"

static bool runnable(struct sg_shared *shared, uint32_t slot) {
  struct sg_context *context = &shared->contexts[slot];
  if (slot == SG_NONE || !sg_bit(shared->active, slot))
    return false;
  for
    SG_EACH(lane, context->active, SG_MAX_LANES) {
      const struct sg_item *item = sg_head_of(context, &context->lanes[lane]);
      if (sg_takes_device(item) && (item->phase == SG_READY || item->phase == SG_RUNNING))
        return true;
    }
  return false;
}

/* The next context after `slot`, round robin, with work for this device; `slot` itself comes last. */
static uint32_t next_runnable(struct sg_shared *shared, uint32_t device, uint32_t slot) {
  uint32_t from = slot == SG_NONE ? 0 : slot + 1;
  for (int pass = 0; pass < 2; pass++, from = 0)
    for (uint32_t n = sg_next_bit(shared->active, from, SG_MAX_CONTEXTS); n < SG_MAX_CONTEXTS;
         n = sg_next_bit(shared->active, n + 1, SG_MAX_CONTEXTS))
      if (shared->contexts[n].device == device && runnable(shared, n))
        return n;
  return SG_NONE;
}

/* Until when the device stays with a context that has run empty: drain_stay_us, plus its part of the rotation
 * (intrusion_us) if it only ran commands in this turn; at most the rest of its slice. */
static uint64_t stays_until(const struct sg_profile *profile, const struct sg_device *device) {
  uint64_t stay_ns = device->worked_ns + (uint64_t)profile->drain_stay_us * SG_US;
  if (device->busy_ns == device->hold_busy_ns)
    stay_ns += (uint64_t)profile->intrusion_us * SG_US;
  return stay_ns < device->slice_end_ns ? stay_ns : device->slice_end_ns;
}

void sg_dispatch(struct sg_shared *shared, uint32_t index) {
  struct sg_device *device = &shared->devices[index];
  const struct sg_profile *profile = &shared->model.profile;
  uint64_t now_ns = shared->now_ns, slice_ns = (uint64_t)profile->slice_us * SG_US;
  if (device->switch_until_ns > now_ns)
    return;
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

static bool holds(struct sg_shared *shared, uint32_t index) {
  struct sg_device *device = &shared->devices[index];
  return device->current != SG_NONE && device->switch_until_ns <= shared->now_ns &&
         shared->contexts[device->current].id == device->current_id &&
         shared->contexts[device->current].device == index && runnable(shared, device->current);
}

static uint64_t earlier(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* For a context that holds its device: the SMs that its running work wants, in parts of SG_ALL_SMS, and at least all of
 * them. So it is the factor by which everything takes longer than alone. 0: nothing runs on an SM. */
static uint64_t crowding(struct sg_shared *shared, struct sg_context *context) {
  const struct sg_profile *profile = &shared->model.profile;
  uint64_t demand = 0, runs = 0;
  for
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

/* Work that runs on no SM is not slowed by others. */
static uint64_t rate_of(const struct sg_item *item, uint64_t crowd) {
  return item->demand ? crowd : SG_ALL_SMS;
}

/* How long the rest of an item takes at a rate. `part` is the work already done of the next nanosecond, in parts of the
 * rate. */
static uint64_t time_for(const struct sg_item *item, uint64_t rate) {
  uint64_t work = item->left_ns * rate;
  return work > item->part ? (work - item->part + SG_ALL_SMS - 1) / SG_ALL_SMS : 1;
}

uint64_t sg_next_change(struct sg_shared *shared) {
  uint64_t now_ns = shared->now_ns, next = SG_NEVER;
  for
    SG_EACH(slot, shared->active, SG_MAX_CONTEXTS) {
      struct sg_context *context = &shared->contexts[slot];
      struct sg_device *device = &shared->devices[context->device];
      bool running = device->current == slot && holds(shared, context->device);
      uint64_t crowd = running ? crowding(shared, context) : 0;
    for
      SG_EACH(lane, context->active, SG_MAX_LANES) {
        const struct sg_item *item = sg_head_of(context, &context->lanes[lane]);
        if (item->ready_ns > now_ns)
          next = earlier(next, item->ready_ns);
        else if (item->kind == SG_COPY && item->phase == SG_RUNNING && !sg_takes_device(item))
          next = earlier(next, item->started_ns + item->left_ns);
        else if (running && sg_takes_device(item) && item->phase >= SG_READY && !sg_spins(item))
          next = earlier(next, now_ns + ((item->flags & SG_RELEASED) ? 1 : time_for(item, rate_of(item, crowd))));
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

static void account(struct sg_history *history, uint64_t from_ns, uint64_t to_ns) {
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

void sg_run(struct sg_shared *shared, uint64_t to_ns) {
  uint64_t from_ns = shared->now_ns, step_ns = to_ns - from_ns;
  for (uint32_t n = 0; n < shared->device_count; n++) {
    if (!holds(shared, n))
      continue;
    struct sg_device *device = &shared->devices[n];
    struct sg_context *context = &shared->contexts[device->current];
    uint64_t crowd = crowding(shared, context);
    device->worked_ns = to_ns;
    for
      SG_EACH(lane, context->active, SG_MAX_LANES) {
        struct sg_item *item = sg_head_of(context, &context->lanes[lane]);
        if (!sg_takes_device(item) || item->phase < SG_READY)
          continue;
        if (item->phase == SG_READY) {
          item->started_ns = from_ns;
          item->phase = SG_RUNNING;
        }
        item->busy_ns += step_ns;
        if (item->flags & SG_SPIN)
          continue;
        uint64_t work = step_ns * SG_ALL_SMS + item->part, rate = rate_of(item, crowd);
        item->left_ns -= earlier(work / rate, item->left_ns);
        item->part = work % rate;
      }
    if (!crowd)
      continue;
    context->busy_ns += step_ns;
    device->busy_ns += step_ns;
    account(&context->history, from_ns, to_ns);
    account(&device->history, from_ns, to_ns);
  }
  shared->now_ns = to_ns;
}
