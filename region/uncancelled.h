/*
 * Makes our code no cancellation point. If a thread of the program were cancelled while it holds a lock of ours, or has
 * announced itself, all other threads would wait for ever. So while the hook waits, opens, writes, or calls the driver
 * for itself, cancellation is put off. The program's own call into the driver stays a cancellation point if it was one.
 */
#ifndef SHAREPOD_UNCANCELLED_H
#define SHAREPOD_UNCANCELLED_H

#include <pthread.h>

/* Set the thread's cancellation state to what sp_cancel_disable has returned. Runs when the block of SP_UNCANCELLED is
 * left. */
static inline void sp_cancel_restore(const int *state) {
  int ours;
  pthread_setcancelstate(*state, &ours);
}

/* Put off cancellation of the calling thread. Returns the state before. */
static inline int sp_cancel_disable(void) {
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  return state;
}

/* Put off cancellation until the end of the block. */
#define SP_UNCANCELLED __attribute__((cleanup(sp_cancel_restore))) int sp_cancel_state = sp_cancel_disable()

#endif
