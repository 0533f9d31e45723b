#include "model.h"

#include <string.h>

static struct sg_item *head_of(struct sg_context *context, const struct sg_lane *lane) {
  return lane->head == SG_NONE ? NULL : &context->items[lane->head];
}

/* --- items and events ------------------------------------------------------------------------------------------- */

struct sg_item *sg_item_new(struct sg_context *context) {
  uint32_t index = context->free_item;
  if (index != SG_NONE)
    context->free_item = context->items[index].next;
  else if (context->fresh_item < SG_MAX_ITEMS)
    index = context->fresh_item++;
  else
    return NULL;
  struct sg_item *item = &context->items[index];
  memset(item, 0, sizeof *item);
  item->next = item->next_effect = SG_NONE;
  return item;
}

void sg_item_free(struct sg_context *context, struct sg_item *item) {
  item->phase = SG_VACANT;
  item->next = context->free_item;
  context->free_item = (uint32_t)(item - context->items);
}

uint32_t sg_event_new(struct sg_context *context) {
  uint32_t index = context->free_event;
  if (index != SG_NONE)
    context->free_event = context->events[index].next_free;
  else if (context->fresh_event < SG_MAX_EVENTS)
    index = context->fresh_event++;
  return index;
}

void sg_event_free(struct sg_context *context, uint32_t event) {
  context->events[event].next_free = context->free_event;
  context->free_event = event;
}

/* The link into the lane comes last: a writer that dies before it has changed nothing. */
void sg_submit(struct sg_shared *shared, uint32_t slot, uint32_t lane_index, struct sg_item *item, uint64_t now_ns) {
  struct sg_context *context = &shared->contexts[slot];
  struct sg_lane *lane = &context->lanes[lane_index];
  uint32_t index = (uint32_t)(item - context->items);
  bool effect = item->flags & SG_EFFECT || item->kind == SG_HOST;
  item->lane = lane_index;
  item->order = ++context->order;
  item->submitted_ns = now_ns;
  item->ready_ns = now_ns + (sg_takes_device(item) || item->kind == SG_COPY ? shared->model.latency_ns : 0);
  item->left_ns = item->duration_ns ? item->duration_ns : 1;
  lane->submitted_ns += item->duration_ns;
  item->mark_ns = lane->submitted_ns;
  lane->appended++;
  if (item->kind == SG_RECORD) {
    struct sg_event *event = &context->events[item->name];
    item->seq = ++event->recorded;
    event->lane = lane_index;
    event->mark_ns = item->mark_ns;
  }
  item->phase = SG_QUEUED;
  if (effect) {
    if (lane->effect_head == SG_NONE)
      lane->effect_head = index;
    else
      context->items[lane->effect_tail].next_effect = index;
    lane->effect_tail = index;
  }
  __atomic_store_n(lane->head == SG_NONE ? &lane->head : &context->items[lane->tail].next, index, __ATOMIC_RELEASE);
  lane->tail = index;
  lane->pending++;
  lane->blockers += sg_is_blocker(item);
  sg_set(context->active, lane_index);
  sg_set(shared->active, slot);
  if (now_ns < shared->blocked_until_ns)
    sg_kick(shared);
}

void sg_effect_push(struct sg_context *context, uint32_t index) {
  context->items[index].next_effect = SG_NONE;
  if (context->effects_head == SG_NONE)
    context->effects_head = index;
  else
    context->items[context->effects_tail].next_effect = index;
  context->effects_tail = index;
}

struct sg_item *sg_effect_take(struct sg_context *context) {
  uint32_t index = context->effects_head;
  if (index == SG_NONE)
    return NULL;
  struct sg_item *item = &context->items[index];
  context->effects_head = item->next_effect;
  if (item->kind != SG_HOST)
    item->phase = SG_TAKEN;
  return item;
}

/* --- completion -------------------------------------------------------------------------------------------------- */

void sg_release(struct sg_shared *shared, uint32_t slot, struct sg_item *item) {
  (void)slot;
  item->flags |= SG_RELEASED;
  sg_kick(shared);
}

/* Is this what the head waits for? Of a memset only that it is not zero is known: a watch is left to the owner. */
static bool releases(const struct sg_item *write, const struct sg_item *head) {
  if (sg_watches(head))
    return write->kind == SG_WRITE && head->watch == write->watch && head->watch_bytes <= write->watch_bytes &&
           sg_satisfied(head, write->seq);
  return sg_spins(head) && head->phase >= SG_READY && (write->kind == SG_MEMSET || write->seq) &&
         head->watch + 4 > write->watch && head->watch < write->watch + write->watch_bytes;
}

/* A write has become visible on the device: spin kernels and watches of the same process see it. Device addresses are
 * the process's own, so other processes' are not concerned. */
static void release_watchers(struct sg_shared *shared, uint32_t owner, const struct sg_item *write) {
  for
    SG_EACH(slot, shared->active, SG_MAX_CONTEXTS) {
      struct sg_context *context = &shared->contexts[slot];
      if (context->owner.id != owner)
        continue;
    for
      SG_EACH(index, context->active, SG_MAX_LANES) {
        struct sg_item *item = head_of(context, &context->lanes[index]);
        if (item && releases(write, item))
          sg_release(shared, slot, item);
      }
    }
}

static void log_item(struct sg_state *state, const struct sg_context *context, const struct sg_item *item) {
  struct sg_shared *shared = state->shared;
  if (!state->log || !(item->flags & SG_LOGGED))
    return;
  state->log[shared->logged % shared->model.log_records] = (struct sg_log_record){
      .context = context->id,
      .device = context->device,
      .owner = context->owner,
      .name = item->name,
      .stream = context->lanes[item->lane].handle,
      .submitted_ns = item->submitted_ns,
      .started_ns = item->started_ns,
      .ended_ns = shared->now_ns,
      .busy_ns = item->busy_ns,
  };
  shared->logged++;
}

/* Take the head off its lane. `phase` goes first: repair then knows a completed head from a pending one. */
static void pop(struct sg_shared *shared, uint32_t slot, struct sg_lane *lane, struct sg_item *item) {
  struct sg_context *context = &shared->contexts[slot];
  bool effect = item->flags & SG_EFFECT;
  item->phase = SG_FINISHED;
  if (effect)
    lane->effect_head = item->next_effect;
  lane->done_ns += item->duration_ns;
  lane->completed++;
  lane->pending--;
  lane->blockers -= sg_is_blocker(item);
  __atomic_store_n(&lane->head, item->next, __ATOMIC_RELEASE);
  if (lane->head == SG_NONE) {
    sg_clear(context->active, (uint32_t)(lane - context->lanes));
    if (lane->used == 2)
      lane->used = 0;
    if (sg_next_bit(context->active, 0, SG_MAX_LANES) == SG_MAX_LANES)
      sg_clear(shared->active, slot);
  }
  if (effect)
    sg_effect_push(context, (uint32_t)(item - context->items));
  else
    sg_item_free(context, item);
}

static void complete(struct sg_state *state, uint32_t slot, struct sg_lane *lane, struct sg_item *item) {
  struct sg_shared *shared = state->shared;
  struct sg_context *context = &shared->contexts[slot];
  if (item->kind == SG_RECORD) {
    struct sg_event *event = &context->events[item->name];
    if (item->seq > event->completed) {
      event->completed_ns = shared->now_ns;
      event->completed = item->seq;
    }
  }
  if ((item->kind == SG_WRITE || item->kind == SG_MEMSET) && item->watch)
    release_watchers(shared, context->owner.id, item);
  log_item(state, context, item);
  pop(shared, slot, lane, item);
}

void sg_host_returned(struct sg_shared *shared, uint32_t slot, struct sg_item *item, uint64_t now_ns) {
  (void)now_ns;
  if (item->phase != SG_CALLING)
    return; /* the context's work was dropped meanwhile */
  pop(shared, slot, &shared->contexts[slot].lanes[item->lane], item);
  sg_kick(shared);
}

/* --- one step ---------------------------------------------------------------------------------------------------- */

/* May the head of this lane start, as far as the legacy stream's rule goes? */
static bool in_order(struct sg_context *context, uint32_t index, const struct sg_item *item) {
  const struct sg_lane *lane = &context->lanes[index];
  if (index == 0) {
    for
      SG_EACH(other, context->active, SG_MAX_LANES)
    if (other && context->lanes[other].blocking && head_of(context, &context->lanes[other])->order < item->order)
      return false;
    return true;
  }
  if (!lane->blocking || !sg_bit(context->active, 0))
    return true;
  return head_of(context, &context->lanes[0])->order > item->order;
}

static bool wait_over(struct sg_shared *shared, const struct sg_item *item) {
  return shared->contexts[item->peer].events[item->name].completed >= item->seq;
}

/* Bring the head of a lane forward without letting time pass; true when something changed. */
static bool settle_lane(struct sg_state *state, uint32_t slot, uint32_t index) {
  struct sg_shared *shared = state->shared;
  struct sg_context *context = &shared->contexts[slot];
  struct sg_lane *lane = &context->lanes[index];
  struct sg_item *item = head_of(context, lane);
  if (!item)
    return false;
  if (item->phase == SG_QUEUED) {
    if (item->ready_ns > shared->now_ns || !in_order(context, index, item))
      return false;
    if (sg_takes_device(item)) {
      item->phase = SG_READY;
    } else if (item->kind == SG_COPY) {
      item->phase = SG_RUNNING;
      item->started_ns = shared->now_ns;
    } else if (item->kind == SG_HOST) {
      item->phase = SG_CALLING;
      lane->effect_head = item->next_effect;
      sg_effect_push(context, lane->head);
    } else if (item->kind == SG_WATCH) {
      item->phase = SG_RUNNING; /* the owner looks at the word from now on */
    } else if (item->kind != SG_WAIT || wait_over(shared, item)) {
      complete(state, slot, lane, item);
    } else {
      return false;
    }
    return true;
  }
  if (item->phase != SG_RUNNING)
    return false;
  bool over = item->kind == SG_COPY ? shared->now_ns >= item->started_ns + item->left_ns
                                    : item->left_ns == 0 || (item->flags & SG_RELEASED);
  if (over)
    complete(state, slot, lane, item);
  return over;
}

static void settle(struct sg_state *state) {
  struct sg_shared *shared = state->shared;
  for (bool again = true; again;) {
    again = false;
    for
      SG_EACH(slot, shared->active, SG_MAX_CONTEXTS)
      for
        SG_EACH(lane, shared->contexts[slot].active, SG_MAX_LANES)
      while (settle_lane(state, slot, lane))
        again = true;
  }
}

static bool runnable(struct sg_shared *shared, uint32_t slot) {
  struct sg_context *context = &shared->contexts[slot];
  if (slot == SG_NONE || !sg_bit(shared->active, slot))
    return false;
  for
    SG_EACH(lane, context->active, SG_MAX_LANES) {
      const struct sg_item *item = head_of(context, &context->lanes[lane]);
      if (sg_takes_device(item) && (item->phase == SG_READY || item->phase == SG_RUNNING))
        return true;
    }
  return false;
}

/* The next context after `slot`, round robin, that has work for this device; `slot` itself comes last. */
static uint32_t next_runnable(struct sg_shared *shared, uint32_t device, uint32_t slot) {
  uint32_t from = slot == SG_NONE ? 0 : slot + 1;
  for (int pass = 0; pass < 2; pass++, from = 0)
    for (uint32_t n = sg_next_bit(shared->active, from, SG_MAX_CONTEXTS); n < SG_MAX_CONTEXTS;
         n = sg_next_bit(shared->active, n + 1, SG_MAX_CONTEXTS))
      if (shared->contexts[n].device == device && runnable(shared, n))
        return n;
  return SG_NONE;
}

/* Who holds the device from now on? */
static void dispatch(struct sg_shared *shared, uint32_t index) {
  struct sg_device *device = &shared->devices[index];
  const struct sg_model *model = &shared->model;
  uint64_t now_ns = shared->now_ns;
  if (device->switch_until_ns > now_ns)
    return;
  bool same = device->current != SG_NONE && shared->contexts[device->current].id == device->current_id;
  bool busy = same && shared->contexts[device->current].device == index && runnable(shared, device->current);
  /* Alone at the slice's end, or that had been a change: it got another one. */
  if (busy && now_ns > device->slice_end_ns)
    device->slice_end_ns += (now_ns - device->slice_end_ns + model->slice_ns - 1) / model->slice_ns * model->slice_ns;
  if (busy && now_ns < device->slice_end_ns)
    return;
  uint32_t next = next_runnable(shared, index, device->current);
  if (next == SG_NONE)
    return;
  uint64_t cost_ns = 0;
  if (!same || next != device->current) {
    bool first = device->current == SG_NONE; /* nothing to save */
    cost_ns = first ? 0 : busy ? model->switch_ns : model->drain_switch_ns;
    device->switches += !first;
  }
  device->current = next;
  device->current_id = shared->contexts[next].id;
  device->switch_until_ns = now_ns + cost_ns;
  device->slice_end_ns = now_ns + cost_ns + model->slice_ns;
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

/* The next instant at which anything changes, SG_NEVER if nothing will. */
static uint64_t next_change(struct sg_shared *shared) {
  uint64_t now_ns = shared->now_ns, next = SG_NEVER;
  for
    SG_EACH(slot, shared->active, SG_MAX_CONTEXTS) {
      struct sg_context *context = &shared->contexts[slot];
      struct sg_device *device = &shared->devices[context->device];
      bool running = device->current == slot && holds(shared, context->device);
    for
      SG_EACH(lane, context->active, SG_MAX_LANES) {
        const struct sg_item *item = head_of(context, &context->lanes[lane]);
        if (item->ready_ns > now_ns)
          next = earlier(next, item->ready_ns);
        else if (item->kind == SG_COPY && item->phase == SG_RUNNING)
          next = earlier(next, item->started_ns + item->left_ns);
        else if (running && sg_takes_device(item) && item->phase >= SG_READY && !sg_spins(item))
          next = earlier(next, now_ns + ((item->flags & SG_RELEASED) ? 1 : item->left_ns));
      }
    }
  for (uint32_t n = 0; n < shared->device_count; n++) {
    struct sg_device *device = &shared->devices[n];
    if (device->switch_until_ns > now_ns)
      next = earlier(next, device->switch_until_ns);
    else if (holds(shared, n) && next_runnable(shared, n, device->current) != device->current)
      next = earlier(next, device->slice_end_ns);
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

/* Let the contexts that hold their device work until `to_ns`, an instant before which nothing changes. */
static void run(struct sg_shared *shared, uint64_t to_ns) {
  uint64_t from_ns = shared->now_ns, step_ns = to_ns - from_ns;
  for (uint32_t n = 0; n < shared->device_count; n++) {
    if (!holds(shared, n))
      continue;
    struct sg_device *device = &shared->devices[n];
    struct sg_context *context = &shared->contexts[device->current];
    for
      SG_EACH(lane, context->active, SG_MAX_LANES) {
        struct sg_item *item = head_of(context, &context->lanes[lane]);
        if (!sg_takes_device(item) || item->phase < SG_READY)
          continue;
        if (item->phase == SG_READY) {
          item->started_ns = from_ns;
          item->phase = SG_RUNNING;
        }
        item->busy_ns += step_ns;
        if (!(item->flags & SG_SPIN))
          item->left_ns -= earlier(step_ns, item->left_ns);
      }
    context->busy_ns += step_ns;
    device->busy_ns += step_ns;
    account(&context->history, from_ns, to_ns);
    account(&device->history, from_ns, to_ns);
  }
  shared->now_ns = to_ns;
}

void sg_advance(struct sg_state *state, uint64_t now_ns) {
  struct sg_shared *shared = state->shared;
  for (;;) {
    if (sg_next_bit(shared->active, 0, SG_MAX_CONTEXTS) == SG_MAX_CONTEXTS) {
      if (now_ns > shared->now_ns)
        shared->now_ns = now_ns;
      return;
    }
    settle(state);
    for (uint32_t n = 0; n < shared->device_count; n++)
      dispatch(shared, n);
    if (shared->now_ns >= now_ns)
      return;
    run(shared, earlier(now_ns, next_change(shared)));
  }
}
