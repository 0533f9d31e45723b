/* Runs the model: items are submitted, start and complete, and time passes in steps from change to change. A lane is
 * the queue of one stream. Only its head, the item that runs or is next, can start or complete. */
#include "simgpu/model/model.h"
#include "simgpu/model/slice.h"

#include <string.h>

#define CUDA_ILLEGAL_ADDRESS 700u

/* --- items and events ------------------------------------------------------------------------------------------- */

/* Take a zeroed item of the context: one that was freed, else one that was never used. It is in no lane yet. NULL: all
 * are in use. */
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

/* Put an item back on the context's list of free ones. It must be in no lane and in no list of effects. */
void sg_item_free(struct sg_context *context, struct sg_item *item) {
  item->phase = SG_VACANT;
  item->next = context->free_item;
  context->free_item = (uint32_t)(item - context->items);
}

/* Take an event slot that was freed, else one that was never used; SG_NONE: all are in use. */
uint32_t sg_event_new(struct sg_context *context) {
  uint32_t index = context->free_event;
  if (index != SG_NONE)
    context->free_event = context->events[index].next_free;
  else if (context->fresh_event < SG_MAX_EVENTS)
    index = context->fresh_event++;
  return index;
}

/* Put an event slot back on the context's list of free ones. Its counts of records stay, so that they never go back. */
void sg_event_free(struct sg_context *context, uint32_t event) {
  context->events[event].next_free = context->free_event;
  context->free_event = event;
}

/* Whether an item only proceeds while its context holds the device. Work that takes device time does. So does a record
 * with a timestamp, because it leaves a gap in the pipeline. Other records, writes and small copies do only if the
 * hardware lets commands of a channel disturb other contexts (intrusion_us). */
static bool needs_turn(const struct sg_profile *profile, const struct sg_item *item) {
  if (item->kind <= SG_COPY_DEVICE)
    return true;
  if (item->kind == SG_RECORD && item->duration_ns)
    return true;
  return profile->intrusion_us && (item->kind == SG_RECORD || item->kind == SG_WRITE || item->flags & SG_INLINE);
}

/* Append a filled-in item to its lane, and to the lane's list of items with effects if the owner must act on it. The
 * link into the lane is written last: if the writer dies before, the item is in no lane, and repair.c corrects the
 * counters. */
void sg_submit(struct sg_shared *shared, uint32_t slot, uint32_t lane_index, struct sg_item *item, uint64_t now_ns) {
  struct sg_context *context = &shared->contexts[slot];
  struct sg_lane *lane = &context->lanes[lane_index];
  uint32_t index = (uint32_t)(item - context->items);
  bool owner_acts = item->flags & SG_EFFECT || item->kind == SG_HOST;
  item->lane = lane_index;
  item->order = ++context->order;
  item->submitted_ns = now_ns;
  if (needs_turn(&shared->model.profile, item))
    item->flags |= SG_TURN;
  bool has_latency = item->kind <= SG_COPY_DEVICE || item->kind == SG_COPY;
  item->ready_ns = now_ns + (has_latency ? (uint64_t)shared->model.profile.latency_ns : 0);
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
  if (owner_acts) {
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
  if (now_ns < shared->blocked_until_ns) /* this item may end a wait for which no end is known */
    sg_kick(shared);
}

/* Append an item to the list of what the context's owner must do: a completed item with an effect, or a host
 * function. */
void sg_effect_push(struct sg_context *context, uint32_t index) {
  context->items[index].next_effect = SG_NONE;
  if (context->effects_head == SG_NONE)
    context->effects_head = index;
  else
    context->items[context->effects_tail].next_effect = index;
  context->effects_tail = index;
}

/* Take the oldest item off the list of what the context's owner must do; NULL: the list is empty. */
struct sg_item *sg_effect_take(struct sg_context *context) {
  uint32_t index = context->effects_head;
  if (index == SG_NONE)
    return NULL;
  struct sg_item *item = &context->items[index];
  context->effects_head = item->next_effect;
  if (item->kind != SG_HOST) /* a host function stays the head of its lane until it has returned */
    item->phase = SG_TAKEN;
  return item;
}

/* --- completion -------------------------------------------------------------------------------------------------- */

/* The word of a spin kernel or a watch has its value: the item need not wait any longer. Waiters look again. */
void sg_release(struct sg_shared *shared, struct sg_item *item) {
  item->flags |= SG_RELEASED;
  sg_kick(shared);
}

/* Whether this write ends the wait of a lane's head for its word. A spin kernel waits until its word is not zero. Of a
 * memset the model only knows that its value is not zero: that ends a spin kernel, but no watch. For a watch the owner
 * looks at the word itself. */
static bool releases(const struct sg_item *write, const struct sg_item *head) {
  if (sg_watches(head))
    return write->kind == SG_WRITE && head->watch == write->watch && head->watch_bytes <= write->watch_bytes &&
           sg_satisfied(head, write->seq);
  return sg_spins(head) && head->phase >= SG_READY && (write->kind == SG_MEMSET || write->seq) &&
         head->watch + SPIN_WORD_BYTES > write->watch && head->watch < write->watch + write->watch_bytes;
}

/* A write has become visible on the device: spin kernels and watches of the same process see it. Device addresses
 * belong to one process, so those of other processes are not affected. */
static void release_watchers(struct sg_shared *shared, uint32_t owner, const struct sg_item *write) {
  SG_EACH(slot, shared->active, SG_MAX_CONTEXTS) {
    struct sg_context *context = &shared->contexts[slot];
    if (context->owner.id != owner)
      continue;
    SG_EACH(index, context->active, SG_MAX_LANES) {
      struct sg_item *item = sg_head_of(context, &context->lanes[index]);
      if (item && releases(write, item))
        sg_release(shared, item);
    }
  }
}

/* Write a completed item into the log of kernels, if there is a log and the item belongs there. In a full log it
 * replaces the oldest record. */
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

/* Take the completed head off its lane. It goes on the list of effects if it has one, else it is free. `phase` is
 * written first, so that repair can tell a completed head from a pending one. */
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
    if (lane->used == SG_LANE_CLOSING)
      lane->used = SG_LANE_FREE;
    if (sg_next_bit(context->active, 0, SG_MAX_LANES) == SG_MAX_LANES)
      sg_clear(shared->active, slot);
  }
  if (effect)
    sg_effect_push(context, (uint32_t)(item - context->items));
  else
    sg_item_free(context, item);
}

/* The head of a lane is complete: note its event, release what waits for a word that it wrote, log it, and take it off
 * the lane. If it is a faulty kernel, its context is lost. */
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
  bool faulty = item->flags & SG_FAULT;
  pop(shared, slot, lane, item);
  if (faulty) {
    context->lost_error = CUDA_ILLEGAL_ADDRESS;
    sg_drop_work(shared, slot);
    sg_kick(shared);
  }
}

/* A host function has returned: it leaves its lane and is freed, and the stream goes on. */
void sg_host_returned(struct sg_shared *shared, uint32_t slot, struct sg_item *item) {
  if (item->phase != SG_CALLING)
    return; /* the context's work was dropped meanwhile */
  pop(shared, slot, &shared->contexts[slot].lanes[item->lane], item);
  sg_kick(shared);
}

/* --- one step ---------------------------------------------------------------------------------------------------- */

/* Whether the legacy stream's rule lets the head of this lane start: the legacy stream (lane 0) and blocking streams
 * wait for what was submitted to the other before. */
static bool in_order(struct sg_context *context, uint32_t index, const struct sg_item *item) {
  const struct sg_lane *lane = &context->lanes[index];
  if (index == 0) {
    SG_EACH(other, context->active, SG_MAX_LANES) {
      if (other && context->lanes[other].blocking && sg_head_of(context, &context->lanes[other])->order < item->order)
        return false;
    }
    return true;
  }
  if (!lane->blocking || !sg_bit(context->active, 0))
    return true;
  return sg_head_of(context, &context->lanes[0])->order > item->order;
}

/* Whether the record of an event that this item waits for is complete. */
static bool wait_over(struct sg_shared *shared, const struct sg_item *item) {
  return shared->contexts[item->peer].events[item->name].completed >= item->seq;
}

/* Let the head of a lane take its next step if it can do so now: start, or complete. True: it did, so this lane and
 * others may have more to do. */
static bool settle_lane(struct sg_state *state, uint32_t slot, uint32_t index) {
  struct sg_shared *shared = state->shared;
  struct sg_context *context = &shared->contexts[slot];
  struct sg_lane *lane = &context->lanes[index];
  struct sg_item *item = sg_head_of(context, lane);
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
      item->phase = SG_RUNNING; /* the owner polls the word from now on */
    } else if (item->kind != SG_WAIT || wait_over(shared, item)) {
      complete(state, slot, lane, item);
    } else {
      return false;
    }
    return true;
  }
  if (item->phase != SG_RUNNING)
    return false;
  bool on_engine = item->kind == SG_COPY && !sg_takes_device(item); /* a copy engine: it works by the clock */
  bool over = on_engine ? shared->now_ns >= item->started_ns + item->left_ns
                        : item->left_ns == 0 || (item->flags & SG_RELEASED);
  if (over)
    complete(state, slot, lane, item);
  return over;
}

/* Start and complete, in all lanes, the items that can start or complete now. One completion may let another lane go
 * on, so all lanes are looked at again until nothing changes. */
static void settle(struct sg_state *state) {
  struct sg_shared *shared = state->shared;
  for (bool again = true; again;) {
    again = false;
    SG_EACH(slot, shared->active, SG_MAX_CONTEXTS) {
      SG_EACH(lane, shared->contexts[slot].active, SG_MAX_LANES) {
        while (settle_lane(state, slot, lane))
          again = true;
      }
    }
  }
}

/* Step by step: do what takes no time, choose the contexts that hold the devices, and let time pass until the next
 * change or `now_ns`. Without any pending work time passes at once. */
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
      sg_dispatch(shared, n);
    if (shared->now_ns >= now_ns)
      return;
    uint64_t change_ns = sg_next_change(shared);
    sg_run(shared, now_ns < change_ns ? now_ns : change_ns);
  }
}
