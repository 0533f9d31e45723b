/* Drops work, and repairs the state that a process left behind when it died inside a change. A lane is the queue of one
 * stream. */
#include "simgpu/model/model.h"

#include <string.h>

/*
 * Rebuild the derived fields of a context. They follow from the alive bits, from each lane's chain from `head` by
 * `next`, from every item's phase, and from the list of effects. All writers in model.c keep this order: all of an item
 * is written before it is linked into its lane, and it is FINISHED before it is unlinked. So a writer that died leaves
 * at most one item in between. Items that are neither in a lane nor in the list of effects become free.
 */
static void rebuild(struct sg_shared *shared, uint32_t slot) {
  struct sg_context *context = &shared->contexts[slot];
  uint64_t reached[SG_MAX_ITEMS / 64] = {0};
  for (uint32_t index = context->effects_head; index != SG_NONE; index = context->items[index].next_effect) {
    sg_set(reached, index);
    context->effects_tail = index;
  }
  memset(context->active, 0, sizeof context->active);
  for (uint32_t n = 0; n < SG_MAX_LANES; n++) {
    struct sg_lane *lane = &context->lanes[n];
    lane->effect_head = SG_NONE;
    lane->pending = lane->blockers = 0;
    while (lane->head != SG_NONE && context->items[lane->head].phase == SG_FINISHED) /* its writer died in pop */
      lane->head = context->items[lane->head].next;
    uint64_t pending_ns = 0;
    for (uint32_t index = lane->head; index != SG_NONE; index = context->items[index].next) {
      struct sg_item *item = &context->items[index];
      bool owner_acts = item->flags & SG_EFFECT || (item->kind == SG_HOST && item->phase == SG_QUEUED);
      sg_set(reached, index);
      lane->tail = index;
      lane->pending++;
      lane->blockers += sg_is_blocker(item);
      pending_ns += item->duration_ns;
      sg_set(context->active, n);
      if (!owner_acts)
        continue;
      item->next_effect = SG_NONE;
      if (lane->effect_head == SG_NONE)
        lane->effect_head = index;
      else
        context->items[lane->effect_tail].next_effect = index;
      lane->effect_tail = index;
    }
    lane->completed = lane->appended - lane->pending;
    lane->done_ns = lane->submitted_ns - pending_ns;
    if (lane->used == SG_LANE_CLOSING && lane->head == SG_NONE)
      lane->used = SG_LANE_FREE;
  }
  context->free_item = SG_NONE;
  for (uint32_t index = 0; index < context->fresh_item; index++) {
    struct sg_item *item = &context->items[index];
    if (sg_bit(reached, index) || item->phase == SG_TAKEN) /* TAKEN: its owner frees it */
      continue;
    if (item->phase == SG_FINISHED && item->flags & SG_EFFECT)
      sg_effect_push(context, index); /* it had left its lane, but was not on the list yet */
    else
      sg_item_free(context, item);
  }
}

/* After a process died inside a change: rebuild all living contexts, and let every waiter look again. */
void sg_repair(struct sg_shared *shared) {
  memset(shared->active, 0, sizeof shared->active);
  SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS) {
    rebuild(shared, slot);
    if (sg_next_bit(shared->contexts[slot].active, 0, SG_MAX_LANES) < SG_MAX_LANES)
      sg_set(shared->active, slot);
  }
  sg_kick(shared);
}

/* Forget the pending work of a context: empty its lanes and its list of effects, let all events count as complete, and
 * rebuild the rest from that. An item that is TAKEN stays: its owner is just applying its effect. */
void sg_drop_work(struct sg_shared *shared, uint32_t slot) {
  struct sg_context *context = &shared->contexts[slot];
  for (uint32_t n = 0; n < context->fresh_event; n++)
    context->events[n].completed = context->events[n].recorded;
  for (uint32_t n = 0; n < SG_MAX_LANES; n++)
    context->lanes[n].head = SG_NONE;
  context->effects_head = SG_NONE;
  for (uint32_t n = 0; n < context->fresh_item; n++)
    if (context->items[n].phase != SG_TAKEN)
      context->items[n].phase = SG_VACANT;
  rebuild(shared, slot);
  sg_clear(shared->active, slot);
}
