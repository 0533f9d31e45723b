/*
 * Makes our code no cancellation point. If a thread of the program were cancelled while it holds a lock of ours, or has
 * announced itself, all other threads would wait for ever. So while the hook waits, opens, writes, or calls the driver
 * for itself, cancellation is put off. The program's own call into the driver stays a cancellation point if it was one.
 */
#ifndef SHAREPOD_UNCANCELLED_H
#define SHAREPOD_UNCANCELLED_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

/* Sleep for less than a second, or until a signal comes. Unlike nanosleep it is no cancellation point, so a jump out of
 * it leaves cancellation as it was. */
static inline void sp_sleep_ns(uint64_t ns) {
  int saved = errno;
  syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = (long)ns}, NULL);
  errno = saved;
}

/* A wait for another thread of the process, which may itself wait in the driver, looks this often, and so ends after
 * 100 ms at most. */
#define SP_LOOKS_MAX 2000
#define SP_LOOK_NS   50000u

/* Put off cancellation until the end of the block. */
#define SP_UNCANCELLED __attribute__((cleanup(sp_cancel_restore))) int sp_cancel_state = sp_cancel_disable()

#endif
