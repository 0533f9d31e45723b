/*
 * Runs host functions in a thread of the driver's own, one after the other. So a long function blocks no thread of the
 * program: only later work in its stream waits.
 */
#include "simgpu/api/process.h"

#include <signal.h>
#include <stdlib.h>

struct call {
  struct effect *effect;
  struct sg_item *item;
  uint32_t slot;
  struct call *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct call *first, **last = &first; /* guarded by the lock */
static bool started;                        /* so is this */

/* Run a host function in this thread. Then its stream goes on, and its effect is freed. */
static void make_call(const struct call *call) {
  struct sg_state *state = &process.state;
  host_function(call->effect);
  sg_lock(state);
  sg_host_returned(state->shared, call->slot, call->item);
  sg_unlock(state);
  effect_free(call->effect);
  __atomic_fetch_sub(&process.effects, 1, __ATOMIC_RELAXED);
}

/* The thread for host functions: it makes the calls in the order in which they came, and never ends. */
static void *run(void *unused) {
  (void)unused;
  pthread_mutex_lock(&lock);
  for (;;) {
    struct call *call = first;
    if (!call) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    first = call->next;
    if (!first)
      last = &first;
    pthread_mutex_unlock(&lock);
    make_call(call);
    free(call);
    pthread_mutex_lock(&lock);
  }
  return NULL;
}

/* With the lock held: start the thread if it does not run. It blocks all signals, which belong to the program. False:
 * it cannot be started. */
static bool start(void) {
  sigset_t all, before;
  pthread_t thread;
  if (started)
    return true;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  started = !pthread_create(&thread, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (started)
    pthread_detach(thread);
  return started;
}

/* Hand a host function to the thread. The effect is freed when the function has returned. */
void host_function_call(struct effect *effect, uint32_t slot, struct sg_item *item) {
  struct call call = {.effect = effect, .item = item, .slot = slot}, *queued = malloc(sizeof *queued);
  pthread_mutex_lock(&lock);
  if (queued && start()) {
    *queued = call;
    *last = queued;
    last = &queued->next;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return;
  }
  pthread_mutex_unlock(&lock);
  free(queued);
  make_call(&call); /* no thread can be started: this one runs the function */
}
