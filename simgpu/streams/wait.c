/* Waiting: for lanes, events and room, and applying the effects that become due meanwhile. A lane is the queue of one
 * stream. An effect is a change of memory that the process makes itself; it is due once the model has passed its
 * item. An item's mark is the work, in nanoseconds, that its lane has done when the item is complete. */
#define _GNU_SOURCE
#include "simgpu/api/process.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 10000000ull /* during a wait, dead processes are looked for this often */

/* Held while effects on memory are applied: one at a time, in the order of the model. Host functions run without it. */
static pthread_mutex_t effects_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread bool in_host_function;

/* With the state locked: whether an effect or a host function is due in this process. */
static bool effects_due(void) {
  SG_EACH(slot, process.state.own, SG_MAX_CONTEXTS) {
    if (process.state.shared->contexts[slot].effects_head != SG_NONE)
      return true;
  }
  return false;
}

/* Whether the word of a spin kernel or a watch has the value that ends it. A spin kernel without a word ends at
 * once. */
static bool has_its_word(const struct sg_item *item) {
  const void *at = (const void *)(uintptr_t)item->watch;
  if (item->kind != SG_WATCH)
    return !at || __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
  return sg_satisfied(item, item->watch_bytes == 8 ? __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE)
                                                   : __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE));
}

/* With the state locked: release the spin kernels and watches of this process that wait for a value which their word
 * has. While effects are due that the model has passed, a word may still have an old value, and a watch could match it
 * by mistake. So watches do not look at their words then. */
static void look_at_words(void) {
  struct sg_shared *shared = process.state.shared;
  bool stale = effects_due();
  SG_EACH(slot, process.state.own, SG_MAX_CONTEXTS) {
    struct sg_context *context = &shared->contexts[slot];
    SG_EACH(lane, context->active, SG_MAX_LANES) {
      struct sg_item *item = &context->items[context->lanes[lane].head];
      bool looks = (sg_spins(item) && item->phase >= SG_READY) || (sg_watches(item) && !stale);
      if (looks && has_its_word(item))
        sg_release(shared, item);
    }
  }
}

/* With the state locked: the next effect or host function that is due in this process, or NULL. `in_slot` becomes the
 * slot of its context. */
static struct sg_item *take_due(uint32_t *in_slot) {
  SG_EACH(slot, process.state.own, SG_MAX_CONTEXTS) {
    struct sg_item *item = sg_effect_take(&process.state.shared->contexts[slot]);
    *in_slot = slot;
    if (item)
      return item;
  }
  return NULL;
}

/* Apply all effects that are due in this process, one thread at a time and in the order of the model. Host functions go
 * to their own thread. Inside a host function nothing happens. */
void run_effects(void) {
  struct sg_state *state = &process.state;
  if (!__atomic_load_n(&process.effects, __ATOMIC_RELAXED) || in_host_function)
    return;
  pthread_mutex_lock(&effects_lock);
  for (;;) {
    uint32_t slot;
    sg_lock_advanced(state);
    look_at_words();
    struct sg_item *item = take_due(&slot);
    sg_unlock(state);
    if (!item)
      break;
    struct effect *effect = (struct effect *)(uintptr_t)item->effect;
    if (item->kind == SG_HOST) {
      pthread_mutex_unlock(&effects_lock);
      host_function_call(effect, slot, item); /* without that thread it runs here, for any time */
      pthread_mutex_lock(&effects_lock);
      continue;
    }
    effect_apply(effect);
    sg_lock(state);
    sg_item_free(&state->shared->contexts[slot], item);
    sg_unlock(state);
    effect_free(effect);
    __atomic_fetch_sub(&process.effects, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&effects_lock);
}

/* Run a host function or a callback in this thread. Until it returns, inside_host_function() is true here. */
void host_function(const struct effect *effect) {
  int cancellation;
  /* The function may run in a thread of the program: that thread must not be cancelled inside it. */
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
  in_host_function = true;
  effect_apply(effect);
  in_host_function = false;
  pthread_setcancelstate(cancellation, NULL);
}

/* Between hold_effects(true) and hold_effects(false) no effect is applied. */
void hold_effects(bool hold) {
  if (hold)
    pthread_mutex_lock(&effects_lock);
  else
    pthread_mutex_unlock(&effects_lock);
}

/* Whether this thread runs a host function: CUDA permits no call in one. */
bool inside_host_function(void) {
  return in_host_function;
}

/* Sleep until `until_ns`, or until a kick that comes after `generation` was read. */
static void sleep_until(uint64_t until_ns, uint32_t generation) {
  until_ns = sg_own_clock(until_ns);
  struct timespec t = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
  int slack = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, 1); /* else the kernel may wake the thread late */
  syscall(SYS_futex, &process.state.shared->generation, FUTEX_WAIT_BITSET, generation, &t, NULL,
          FUTEX_BITSET_MATCH_ANY);
  prctl(PR_SET_TIMERSLACK, slack);
}

/* With the state locked and advanced: unlock it, and sleep until something may matter to this process: the lane has
 * reached `mark_ns`, an effect is due, or it is time to look for dead processes. The state is unlocked at the end. */
static void sleep_for(struct context *context, uint32_t lane, uint64_t mark_ns) {
  struct sg_shared *shared = process.state.shared;
  uint64_t until_ns = sg_bound(shared, context->slot, lane, mark_ns), look_ns = shared->now_ns + LOOK_NS;
  SG_EACH(slot, process.state.own, SG_MAX_CONTEXTS) {
    uint64_t effect_ns = sg_effect_bound(shared, slot);
    until_ns = effect_ns < until_ns ? effect_ns : until_ns;
  }
  until_ns = until_ns < look_ns ? until_ns : look_ns;
  /* the earliest alarm of all sleepers */
  process.wake_ns = process.sleepers++ && process.wake_ns < until_ns ? process.wake_ns : until_ns;
  uint32_t generation = __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE); /* a kick from here on ends the sleep */
  sg_unlock(&process.state);
  sleep_until(until_ns, generation);
  sg_lock(&process.state);
  process.sleepers--;
  sg_unlock(&process.state);
}

/* With the state locked, after work with an effect has been given to the lane: wake the threads that sleep, if the
 * effect may be due before the first of them wakes (wake_ns). If wake_ns is past, that thread has left, and the others'
 * times are not known: then wake them all. */
void effect_submitted(const struct context *context, uint32_t lane) {
  struct sg_shared *shared = process.state.shared;
  if (!process.sleepers)
    return;
  uint64_t due_ns = sg_bound(shared, context->slot, lane, shared->contexts[context->slot].lanes[lane].submitted_ns);
  if (due_ns < process.wake_ns || process.wake_ns <= sg_now())
    sg_kick(shared);
}

/* Wait until *done, a counter in the shared state that only grows, is at least `count`; apply the effects that become
 * due meanwhile. `lane` and `mark_ns` tell how long to sleep: until the lane can have reached the mark. */
static CUresult wait_for(struct context *context, const uint64_t *done, uint64_t count, uint32_t lane,
                         uint64_t mark_ns) {
  for (;;) {
    sg_lock_advanced(&process.state);
    CUresult result = context_error(context);
    if (result || !sg_bit(process.state.own, context->slot)) { /* the slot is lost: there is nothing to wait for */
      sg_unlock(&process.state);
      return result;
    }
    look_at_words();
    if (!in_host_function && effects_due()) {
      sg_unlock(&process.state);
      run_effects();
      continue;
    }
    if (*done >= count)
      break;
    sleep_for(context, lane, mark_ns);
  }
  sg_unlock(&process.state);
  /* Another thread may be applying an effect that the caller waited for: let it finish. */
  if (!in_host_function && __atomic_load_n(&process.effects, __ATOMIC_RELAXED)) {
    pthread_mutex_lock(&effects_lock);
    pthread_mutex_unlock(&effects_lock);
  }
  return CUDA_SUCCESS;
}

/* Wait until the lane has completed `count` items; apply the effects that become due meanwhile. An error: the
 * context has ended or is lost. */
CUresult wait_lane(struct context *context, uint32_t lane, uint64_t count) {
  if (context->slot == SG_NONE)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  struct sg_lane *shared = &shared_of(context)->lanes[lane];
  return wait_for(context, &shared->completed, count, lane, shared->submitted_ns);
}

/* Wait until record number `seq` of an event slot is complete; apply the effects that become due meanwhile. */
CUresult wait_event(struct context *context, uint32_t event, uint64_t seq) {
  if (context->slot == SG_NONE)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  struct sg_event *shared = &shared_of(context)->events[event];
  return wait_for(context, &shared->completed, seq, shared->lane, shared->mark_ns);
}

/* With the state locked: take a free item for the lane. While there is none, or the lane's queue is full, let the model
 * go on, apply effects and sleep. Meanwhile the state is unlocked; at the end it is locked again. */
CUresult take_item(struct context *context, uint32_t lane, struct sg_item **item) {
  struct sg_context *shared = shared_of(context);
  for (bool advanced = false;; advanced = true) {
    CUresult result = context_error(context);
    if (result)
      return result;
    if (shared->lanes[lane].pending < SG_QUEUE && (*item = sg_item_new(shared)))
      return CUDA_SUCCESS;
    if (!advanced) {
      sg_advance(&process.state, sg_now());
      continue;
    }
    look_at_words();
    if (effects_due() && !in_host_function) {
      sg_unlock(&process.state);
      run_effects();
    } else {
      /* Room comes with the end of the lane's head. If it was the context's items that ran out, any of them may end
       * first: then this is a guess. */
      const struct sg_lane *full = &shared->lanes[lane];
      sleep_for(context, lane, full->head == SG_NONE ? full->done_ns : shared->items[full->head].mark_ns);
    }
    sg_lock_advanced(&process.state);
  }
}
