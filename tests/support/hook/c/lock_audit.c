/* A library that writes to the file LOCK_AUDIT each call into the driver that the hook makes under a lock for which
 * another of its threads may wait. It is loaded before both. The simulated driver takes a lock of its own in each call,
 * which is how a call is noticed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELD_MAX   8
#define LOCKS_MAX  64
#define FRAMES_MAX 24

typedef int mutex_function(pthread_mutex_t *);

enum object { ELSEWHERE, HOOK, DRIVER };

static _Atomic(pthread_mutex_t *) waited_for[LOCKS_MAX]; /* the hook's locks that a thread waits for, not only tries */
static _Thread_local pthread_mutex_t *held[HELD_MAX];
static _Thread_local int held_count;
static _Thread_local bool busy; /* a call of ours takes locks, too */

static mutex_function *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  return (mutex_function *)found;
}

static enum object object_of(const void *address) {
  Dl_info info;
  if (busy)
    return ELSEWHERE;
  busy = true;
  int found = dladdr(address, &info);
  busy = false;
  if (!found || !info.dli_fname)
    return ELSEWHERE;
  return strstr(info.dli_fname, "libsharepod") ? HOOK : strstr(info.dli_fname, "libcuda.so") ? DRIVER : ELSEWHERE;
}

static bool is_waited_for(pthread_mutex_t *mutex, bool add) {
  for (int i = 0; i < LOCKS_MAX; i++) {
    pthread_mutex_t *there = atomic_load(&waited_for[i]);
    if (there == mutex)
      return true;
    if (!there && !add)
      return false;
    if (!there && atomic_compare_exchange_strong(&waited_for[i], &there, mutex))
      return true;
    if (there == mutex)
      return true;
  }
  abort();
}

static void tell(void) {
  void *frames[FRAMES_MAX];
  busy = true;
  int file = open(getenv("LOCK_AUDIT"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || write(file, "under a lock:\n", 14) != 14)
    abort();
  backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), file);
  close(file);
  busy = false;
}

static void took(pthread_mutex_t *mutex) {
  if (held_count == HELD_MAX)
    abort();
  held[held_count++] = mutex;
}

int pthread_mutex_lock(pthread_mutex_t *mutex) {
  static mutex_function *real;
  if (!real)
    real = next("pthread_mutex_lock");
  enum object from = object_of(__builtin_return_address(0));
  for (int i = 0; from == DRIVER && i < held_count; i++)
    if (is_waited_for(held[i], false)) {
      tell();
      break;
    }
  int result = real(mutex);
  if (from == HOOK && !result) {
    is_waited_for(mutex, true);
    took(mutex);
  }
  return result;
}

int pthread_mutex_trylock(pthread_mutex_t *mutex) {
  static mutex_function *real;
  if (!real)
    real = next("pthread_mutex_trylock");
  int result = real(mutex);
  if (!result && object_of(__builtin_return_address(0)) == HOOK)
    took(mutex);
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
  static mutex_function *real;
  if (!real)
    real = next("pthread_mutex_unlock");
  for (int i = held_count - 1; i >= 0; i--)
    if (held[i] == mutex) {
      memmove(&held[i], &held[i + 1], (size_t)(--held_count - i) * sizeof *held);
      break;
    }
  return real(mutex);
}
