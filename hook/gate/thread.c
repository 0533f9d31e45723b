/* Thread records: one for each thread that launches. Its `inside` is the thread's announce: a bit for the device, set
 * while the thread is between the gate and the driver's return. A thread that ends a turn clears device->entered,
 * passes sp_barrier and then reads all announces. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hook/gate/wait.h"
#include "region/uncancelled.h"

#define SEEN_NS 1000000 /* every store reaches the other cores within this */

static struct sp_thread records[SP_THREADS_MAX];
static uint32_t record_count;                      /* records ever used: what the keeper scans */
static uint64_t departed_launches[SP_DEVICES_MAX]; /* of threads that have ended */
static pthread_key_t exit_key;
static uint32_t exit_key_made;
static pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;
static __thread struct sp_thread *self;

/* Void all stream states that the thread's cache remembers: `looks` is part of the cache's keys. */
void sp_thread_forget_streams(struct sp_thread *thread) {
  thread->looks++;
  if (thread->looks << 2 == 0) /* its 30 bits in the keys have wrapped: states of one round ago would be found again */
    memset(thread->known, 0, sizeof thread->known);
}

/* A thread has ended (pthread calls this for the key): keep its counts, undo what it left at the gate, and give its
 * record back. */
static void release_record(void *pointer) {
  struct sp_thread *thread = pointer;
  for (uint32_t device = 0; device < SP_DEVICES_MAX; device++) {
    sp_add(&departed_launches[device], thread->launches[device]);
    sp_store(&thread->launches[device], 0);
  }
  self = NULL;
  sp_record_left(thread); /* the thread may have been ended by a signal handler while it recorded, */
  sp_wait_left(thread);   /* or while it waited */
  thread->device = NULL;
  thread->patience_ns = thread->passed_ns = thread->stood_ns = 0; /* else the next thread would begin with these */
  thread->event_launches = 0;
  thread->closed = 0;
  sp_thread_forget_streams(thread);
  sp_store_release(&thread->inside, 0);
  sp_store_release(&thread->used, 0);
}

/* Run once: have release_record called when a thread ends. */
static void make_exit_key(void) {
  exit_key_made = pthread_key_create(&exit_key, release_record) == 0;
}

/* The calling thread's record, which it takes at its first call. NULL: all are taken, and the thread is not metered. */
struct sp_thread *sp_thread_self(void) {
  if (sp_likely(self != NULL))
    return self;
  int saved = errno;
  pthread_once(&exit_key_once, make_exit_key);
  for (uint32_t index = 0; index < SP_THREADS_MAX; index++) {
    uint32_t unused = 0;
    if (!sp_compare_exchange(&records[index].used, &unused, 1))
      continue;
    uint32_t count = sp_load(&record_count); /* raise it to index + 1 at least: other threads may raise it, too */
    while (count <= index && !sp_compare_exchange(&record_count, &count, index + 1)) {
    }
    self = &records[index];
    if (exit_key_made)
      pthread_setspecific(exit_key, self);
    break;
  }
  errno = saved;
  return self;
}

/* The calling thread's record; NULL: it has none, as the helper threads have none. */
struct sp_thread *sp_thread_known(void) {
  return self;
}

/* The record's index, 0 to SP_THREADS_MAX - 1. */
uint32_t sp_thread_index(const struct sp_thread *thread) {
  return (uint32_t)(thread - records);
}

/* Is any thread between the gate and the driver's return, on the device with this index? The answer is right only after
 * sp_barrier. */
bool sp_threads_inside(uint32_t device_index) {
  uint32_t count = sp_load_acquire(&record_count);
  for (uint32_t index = 0; index < count; index++)
    if (sp_load_acquire(&records[index].inside) >> device_index & 1u)
      return true;
  return false;
}

/* How many launches into the device with this index the driver has accepted, of all threads, also of those that have
 * ended. */
uint64_t sp_threads_launches(uint32_t device_index) {
  uint64_t total = sp_load(&departed_launches[device_index]);
  uint32_t count = sp_load(&record_count);
  for (uint32_t index = 0; index < count; index++)
    total += sp_load(&records[index].launches[device_index]);
  return total;
}

/* Make every thread of the process pass a full barrier. Called by the thread that ends a turn, after it has cleared
 * device->entered. */
void sp_barrier(void) {
  /* Pairs with the announce in gate.c: if we do not see a thread's announce after this, that thread sees our stores. */
  if (!sp_load(&sp_this_process.no_membarrier)) {
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0)
      return;
    /* The program has entered a sandbox that forbids membarrier. From now on each announce has its own fence. Announces
     * that were made without one reach all cores long before this wait is over. */
    sp_store_full(&sp_this_process.no_membarrier, 1);
    sp_sleep_ns(SEEN_NS);
  }
  sp_fence();
}
