/*
 * The model of the devices, in virtual time: pure functions of the shared state, no clock, no system call.
 *
 * Contexts of all processes take turns on their device, round robin and work conserving. A turn is a slice of slice_us
 * of execution, then switch_us are lost; a context that runs empty is left at the cost of drain_switch_us. While a
 * context holds its device, its streams run side by side: at full rate if their kernels fit on the SMs together, else
 * they share the SMs. Copies to and from the host run on copy engines beside the turns. Records and word writes take no
 * SM, but they are commands of the context's channel, so they too can need the turn (SG_TURN). A stream is a FIFO. The
 * legacy stream (lane 0) and blocking streams wait for each other in submission order.
 */
#ifndef SIMGPU_MODEL_H
#define SIMGPU_MODEL_H

#include "simgpu/model/state.h"

#define SPIN_WORD_BYTES 4 /* of the word that a spin kernel waits for */

/* Whether an item needs its context to hold the device. The others run beside the turns. */
static inline bool sg_takes_device(const struct sg_item *item) {
  return item->flags & SG_TURN;
}
/* Whether an item's duration is unknown when it is submitted, or is no time of the device (a host copy). */
static inline bool sg_is_blocker(const struct sg_item *item) {
  return item->kind == SG_WAIT || item->kind == SG_HOST || item->kind == SG_WATCH || item->kind == SG_COPY ||
         (item->flags & SG_SPIN);
}
/* A spin kernel that was not released: as far as we know, its word is still zero. */
static inline bool sg_spins(const struct sg_item *item) {
  return (item->flags & (SG_SPIN | SG_RELEASED)) == SG_SPIN;
}

/* The head of a lane: the item that runs or is next; NULL: the lane is empty. */
static inline struct sg_item *sg_head_of(struct sg_context *context, const struct sg_lane *lane) {
  return lane->head == SG_NONE ? NULL : &context->items[lane->head];
}

/* A watch at the head of its lane; as far as we know, its word does not have the value yet. */
static inline bool sg_watches(const struct sg_item *item) {
  return item->kind == SG_WATCH && item->phase == SG_RUNNING && !(item->flags & SG_RELEASED);
}
/* Whether the word has the value that the watch waits for, by the watch's own comparison. */
static inline bool sg_satisfied(const struct sg_item *watch, uint64_t word) {
  bool wide = watch->watch_bytes == 8;
  uint64_t ahead = word - watch->seq, mask = wide ? UINT64_MAX : UINT32_MAX;
  switch (watch->peer) {
  case SG_AT_LEAST: /* counters may wrap */
    return wide ? (int64_t)ahead >= 0 : (int32_t)(uint32_t)ahead >= 0;
  case SG_EQUAL:
    return !(ahead & mask);
  case SG_ANY_BIT:
    return word & watch->seq & mask;
  default: /* SG_NEITHER */
    return ~(word | watch->seq) & mask;
  }
}

/* Run the model to `now_ns`. All functions here need the lock. */
void sg_advance(struct sg_state *state, uint64_t now_ns);

/* A fresh item, in no lane yet; NULL: the context has none left. The caller fills in the item and then calls sg_submit,
 * which appends it to a lane of the context in `slot`. The model does not see the item before that. */
struct sg_item *sg_item_new(struct sg_context *context);
void sg_submit(struct sg_shared *shared, uint32_t slot, uint32_t lane, struct sg_item *item, uint64_t now_ns);

/* The earliest time at which the item with the mark `mark_ns` in this lane could be complete. A lower bound: work that
 * arrives later only delays it. SG_NEVER when nothing that is known now can complete it. */
uint64_t sg_bound(struct sg_shared *shared, uint32_t slot, uint32_t lane, uint64_t mark_ns);
/* The same for the first piece of work in the context that its owner must act on; SG_NEVER: there is none. */
uint64_t sg_effect_bound(struct sg_shared *shared, uint32_t slot);

void sg_effect_push(struct sg_context *context, uint32_t item);
/* Take the oldest item from that list; NULL: it is empty. The item stays valid until sg_item_free; a host function's
 * until sg_host_returned. */
struct sg_item *sg_effect_take(struct sg_context *context);
void sg_item_free(struct sg_context *context, struct sg_item *item);
/* A host function has returned: free its item, and let its stream go on. */
void sg_host_returned(struct sg_shared *shared, uint32_t slot, struct sg_item *item);
/* The word of a spin kernel has become non-zero, or the word of a watch has got its value. */
void sg_release(struct sg_shared *shared, struct sg_item *item);

/* Forget all pending work of a context; its events count as complete. Effects are dropped. */
void sg_drop_work(struct sg_shared *shared, uint32_t slot);
/* Rebuild every derived field after a process died inside a change, with the lock. */
void sg_repair(struct sg_shared *shared);

/* Take an event slot of the context; SG_NONE: it has none left. */
uint32_t sg_event_new(struct sg_context *context);
void sg_event_free(struct sg_context *context, uint32_t event);

#endif
