/* The keeper's thread: starts it, and ends the process if only keepers are left of its threads. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hook/gate/process.h"
#include "region/uncancelled.h"

#define RETRY_NS 1000000000u /* the time between two tries to start a keeper */

static uint32_t keepers; /* how many run */

/* The thread's function: be the device's keeper, and be counted meanwhile. */
static void *run(void *device) {
  sp_add(&keepers, 1);
  sp_keeper_run(device);
  sp_sub(&keepers, 1);
  return NULL;
}

/* Start the keeper's thread, detached; it inherits the blocked signals. Returns 0 or an errno. */
static int start(struct sp_device *device) {
  pthread_attr_t attributes;
  pthread_t keeper;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  /* The stack has the size that libc gives every thread: libc takes the thread-local variables of all libraries out of
   * it, and those of a program may need any size. */
  int error = pthread_create(&keeper, &attributes, run, device);
  pthread_attr_destroy(&attributes);
  return error;
}

/* Block all signals: no handler of the program runs on the keeper's thread, or jumps out of its start. Only SIGBUS is
 * open: accesses to the region raise it, and guard.c handles it. */
static void block_signals(sigset_t *before) {
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_BLOCK, &all, before);
}

/* Start the keeper if there is none, and no other thread is starting it. Returns the keeper's state, which is STARTS if
 * another thread is. The caller has blocked signals. */
static enum sp_keeper_state start_once(struct sp_device *device) {
  SP_UNCANCELLED;
  uint32_t before = SP_KEEPER_NONE;
  if (!sp_compare_exchange(&device->keeper, &before, SP_KEEPER_STARTS))
    return (enum sp_keeper_state)before;
  int error = start(device);
  if (error) {
    sp_share_no_keeper(error);
    sp_store(&device->keeper_tried_ns, sp_now_ns());
  }
  enum sp_keeper_state state = error ? SP_KEEPER_NONE : SP_KEEPER_RUNS;
  sp_store_release(&device->keeper, state);
  return state;
}

/* Start the device's keeper if there is none. False: it cannot be started now, and the launch passes unmetered; for a
 * second after a failure it is not tried again. */
bool sp_keeper_start(struct sp_device *device) {
  uint64_t tried_ns = sp_load(&device->keeper_tried_ns), now_ns = sp_now_ns();
  if (tried_ns && now_ns - tried_ns < RETRY_NS)
    return false;
  int saved_errno = errno;
  sigset_t before;
  block_signals(&before);
  enum sp_keeper_state state = start_once(device);
  pthread_sigmask(SIG_SETMASK, &before, NULL); /* a handler that runs now may jump out, and nothing is left open */
  errno = saved_errno;
  /* Another thread starts it, and may fail. In the child of a fork that thread does not exist. */
  while (state == SP_KEEPER_STARTS && sp_now_ns() - now_ns < RETRY_NS) {
    sched_yield();
    state = (enum sp_keeper_state)sp_load(&device->keeper);
  }
  return state == SP_KEEPER_RUNS;
}

/* Has the program's first thread ended by itself? The kernel keeps it as a zombie while other threads live. */
static bool first_has_ended(void) {
  char text[128];
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  ssize_t bytes = read(fd, text, sizeof text - 1);
  close(fd);
  text[bytes < 0 ? 0 : bytes] = 0;
  const char *name_end = strrchr(text, ')'); /* "PID (NAME) STATE …": the name may contain any character */
  return name_end && name_end[1] == ' ' && name_end[2] == 'Z';
}

/* How many threads the process has; UINT32_MAX: that is not known. */
static uint32_t count_threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  uint32_t count = 0;
  if (!tasks)
    return UINT32_MAX;
  while (count < UINT32_MAX - 1) {
    const struct dirent *entry = readdir(tasks);
    if (!entry)
      break;
    count += entry->d_name[0] != '.';
  }
  closedir(tasks);
  return count;
}

/* A keeper calls this from time to time: end the process if only keepers are left of its threads. libc counts them, so
 * the process would never end. */
void sp_keeper_last(void) {
  if (first_has_ended() && count_threads() <= sp_load(&keepers) + 1)
    exit(0); /* the keepers and the first are left: libc does the same when the last thread has ended */
}
