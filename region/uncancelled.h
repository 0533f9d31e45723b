/*
 * The hook is no cancellation point. A thread of the program that is cancelled while it holds a lock of ours, or has
 * announced itself, would leave everybody else waiting; so where the hook waits, opens, writes, or calls the driver for
 * itself, cancellation is put off until it is done. The program's own call into the driver stays what it was.
 */
#ifndef SHAREPOD_UNCANCELLED_H
#define SHAREPOD_UNCANCELLED_H

#include <pthread.h>

static inline void sp_cancel_restore(const int *state) {
  int ours;
  pthread_setcancelstate(*state, &ours);
}

static inline int sp_cancel_disable(void) {
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  return state;
}

/* Until the end of the block. */
#define SP_UNCANCELLED __attribute__((cleanup(sp_cancel_restore))) int sp_cancel_state = sp_cancel_disable()

#endif
