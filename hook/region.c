/* The region: what hook and agent write into it, and every memory order they need: see region.h. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* the same number on every architecture since Linux 5.16 */
#endif

/* ---- memory orders, named once ---- */

static uint32_t load_acquire(const uint32_t *word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
static uint64_t load_relaxed64(const uint64_t *word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
static void store_relaxed64(uint64_t *word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
static void store_relaxed(uint32_t *word, uint32_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
static void store_release(uint32_t *word, uint32_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
static void full_fence(void) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

uint64_t sp_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static long futex(const uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, NULL, FUTEX_BITSET_MATCH_ANY);
}

static struct timespec timespec_of(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

static int path_of(char *out, const char *directory, const char *name) {
  size_t directory_length = strlen(directory), name_length = strlen(name);
  if (directory_length + name_length + 2 > PATH_MAX)
    return -ENAMETOOLONG;
  memcpy(out, directory, directory_length);
  out[directory_length] = '/';
  memcpy(out + directory_length + 1, name, name_length + 1);
  return 0;
}

static int open_in(const char *directory, const char *name, int flags) {
  char path[PATH_MAX];
  int error = path_of(path, directory, name);
  if (error)
    return error;
  int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0);
  return fd < 0 ? -errno : fd;
}

int sp_header_check(const struct sp_header *header) {
  if (header->magic != SP_MAGIC || header->abi != SP_ABI)
    return -EPROTO;
  if (header->header_size != sizeof(struct sp_header) || header->grant_size != sizeof(struct sp_grant))
    return -EPROTO;
  if (header->slot_size != sizeof(struct sp_slot) || header->slot_count != SP_SLOTS_MAX)
    return -EPROTO;
  if (header->grant_count == 0 || header->grant_count > SP_DEVICES_MAX)
    return -EPROTO;
  return 0;
}

/* ---- the tenant's side ---- */

static int lock_slot(int fd, uint32_t slot) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
  return fcntl(fd, F_SETLK, &lock) ? -errno : 0;
}

static int claim_slot(struct sp_region *region) {
  for (uint32_t index = 0; index < SP_SLOTS_MAX; index++) {
    struct sp_slot *slot = &region->slots[index];
    /* The lock comes first: whoever has it owns the slot, claimed or not by somebody who died. */
    if (lock_slot(region->slots_fd, index))
      continue;
    uint8_t *claimed = &region->claims->claimed[index];
    if (__atomic_load_n(claimed, __ATOMIC_ACQUIRE)) {
      /* A dead process's slot that the agent has not cleared yet, or a live one that lost its lock: leave both. */
      struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = (off_t)index, .l_len = 1};
      fcntl(region->slots_fd, F_SETLK, &unlock);
      continue;
    }
    memset(slot->devices, 0, sizeof slot->devices);
    memset(slot->mishaps, 0, sizeof slot->mishaps);
    slot->pid = (int32_t)getpid();
    slot->claimed_ns = sp_now_ns();
    region->slot = slot;
    region->slot_index = index;
    slot->index = index;
    __atomic_store_n(claimed, 1, __ATOMIC_RELEASE); /* pairs with the pread in sp_slots_look */
    return 0;
  }
  return -EUSERS;
}

#define LOST_WORD      1u        /* an open turn that never ends */
#define LOST_BUDGET_NS 50000000u /* as alone on the device */

/* Terms for a process that has lost its region: what they are now, all gates open, no agent. NULL: no memory. */
static void *open_terms(const void *terms) {
  char *copy = mmap(NULL, SP_TERMS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED)
    return NULL;
  memcpy(copy, terms, SP_TERMS_BYTES);
  ((struct sp_header *)(void *)copy)->heartbeat_ns = 0;
  struct sp_grant *grants = (struct sp_grant *)(void *)(copy + sizeof(struct sp_header));
  for (uint32_t index = 0; index < SP_DEVICES_MAX; index++) {
    grants[index].word = LOST_WORD;
    grants[index].flags = 0;
    grants[index].budget_ns = grants[index].pair_ns = LOST_BUDGET_NS;
    grants[index].context_bytes = 0;
    grants[index].overhead_bytes = 0;
  }
  return copy;
}

int sp_region_attach(struct sp_region *region, const char *directory) {
  memset(region, 0, sizeof *region);
  region->slots_fd = region->bell_fd = -1;
  if (strlen(directory) >= sizeof region->directory)
    return -ENAMETOOLONG;
  memcpy(region->directory, directory, strlen(directory) + 1);
  int terms_fd = open_in(directory, SP_TERMS_FILE, O_RDONLY);
  if (terms_fd < 0)
    return terms_fd;
  struct stat status;
  int error = 0;
  void *terms = MAP_FAILED, *slots = MAP_FAILED;
  if (fstat(terms_fd, &status) || status.st_size < (off_t)SP_TERMS_BYTES) {
    error = -EPROTO;
  } else {
    terms = mmap(NULL, SP_TERMS_BYTES, PROT_READ, MAP_SHARED, terms_fd, 0);
    if (terms == MAP_FAILED)
      error = -errno;
  }
  close(terms_fd);
  if (!error) {
    region->guard.start[0] = terms;
    region->guard.bytes[0] = SP_TERMS_BYTES;
    sp_guard_add(&region->guard);
    error = sp_header_check(terms);
  }
  if (!error)
    region->guard.spare = open_terms(terms);
  if (!error) {
    region->slots_fd = open_in(directory, SP_SLOTS_FILE, O_RDWR);
    if (region->slots_fd < 0)
      error = region->slots_fd;
  }
  if (!error && (fstat(region->slots_fd, &status) || status.st_size < (off_t)SP_SLOTS_BYTES))
    error = -EPROTO;
  if (!error) {
    slots = mmap(NULL, SP_SLOTS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, region->slots_fd, 0);
    if (slots == MAP_FAILED)
      error = -errno;
  }
  if (!error) {
    /* O_NONBLOCK: a full bell already says everything. ENXIO: no agent reads it now; sp_region_ring tries again. */
    region->bell_fd = open_in(directory, SP_BELL_FILE, O_WRONLY | O_NONBLOCK);
    if (region->bell_fd < 0 && region->bell_fd != -ENXIO)
      error = region->bell_fd;
  }
  if (!error) {
    region->header = terms;
    region->grants = (const struct sp_grant *)((const char *)terms + sizeof(struct sp_header));
    region->claims = slots;
    region->slots = (struct sp_slot *)((char *)slots + sizeof(struct sp_slots_header));
    region->guard.start[1] = slots;
    region->guard.bytes[1] = SP_SLOTS_BYTES;
    error = claim_slot(region);
  }
  if (!error) {
    sp_region_ring(region); /* the agent learns who we are before we launch */
    return 0;
  }
  sp_guard_drop(&region->guard);
  if (region->guard.spare)
    munmap(region->guard.spare, SP_TERMS_BYTES);
  if (slots != MAP_FAILED)
    munmap(slots, SP_SLOTS_BYTES);
  if (terms != MAP_FAILED)
    munmap(terms, SP_TERMS_BYTES);
  if (region->slots_fd >= 0)
    close(region->slots_fd);
  if (region->bell_fd >= 0)
    close(region->bell_fd);
  memset(region, 0, sizeof *region);
  region->slots_fd = region->bell_fd = -1;
  return error;
}

bool sp_region_has_pid(const struct sp_region *region, int32_t pid) {
  for (uint32_t index = 0; index < SP_SLOTS_MAX; index++)
    if (__atomic_load_n(&region->claims->claimed[index], __ATOMIC_ACQUIRE) &&
        __atomic_load_n(&region->slots[index].pid, __ATOMIC_RELAXED) == pid)
      return true;
  return false;
}

int sp_region_relock(struct sp_region *region) {
  const char *directory = region->directory;
  struct stat mapped, opened;
  /* The descriptor may be closed, or its number may be some other file by now: compare before trusting it. */
  char path[PATH_MAX];
  int error = path_of(path, directory, SP_SLOTS_FILE);
  if (error)
    return error;
  if (stat(path, &mapped))
    return -errno;
  if (fstat(region->slots_fd, &opened) || opened.st_ino != mapped.st_ino || opened.st_dev != mapped.st_dev) {
    int fd = open_in(directory, SP_SLOTS_FILE, O_RDWR);
    if (fd < 0)
      return fd;
    region->slots_fd = fd;
    int bell_fd = open_in(directory, SP_BELL_FILE, O_WRONLY | O_NONBLOCK);
    if (bell_fd >= 0)
      region->bell_fd = bell_fd;
  }
  return lock_slot(region->slots_fd, region->slot_index);
}

void sp_region_ring(struct sp_region *region) {
  int saved = errno;
  int fd = __atomic_load_n(&region->bell_fd, __ATOMIC_RELAXED);
  if (fd < 0) {
    /* No agent was reading when we attached (ENXIO): perhaps one is by now. */
    fd = open_in(region->directory, SP_BELL_FILE, O_WRONLY | O_NONBLOCK);
    int none = -1;
    if (fd >= 0 &&
        !__atomic_compare_exchange_n(&region->bell_fd, &none, fd, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      close(fd);
      fd = none;
    }
  }
  if (fd >= 0) {
    /* A FIFO without a reader (the agent is gone) raises SIGPIPE in this thread: hold it back and take it away,
     * unless the program had one pending itself. */
    static const struct timespec at_once;
    const uint8_t bell = (uint8_t)region->slot_index; /* so that the agent knows whether we are new to it */
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    /* EAGAIN: unread bells are there already, which is as good. */
    if (write(fd, &bell, 1) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
      sigtimedwait(&pipe_signal, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  errno = saved;
}

uint32_t sp_grant_word(const struct sp_grant *grant) {
  return load_acquire(&grant->word);
} /* pairs with sp_grant_open */
uint32_t sp_grant_flags(const struct sp_grant *grant) {
  return __atomic_load_n(&grant->flags, __ATOMIC_RELAXED);
}
uint64_t sp_grant_budget_ns(const struct sp_grant *grant) {
  return load_relaxed64(&grant->budget_ns);
}
uint64_t sp_grant_pair_ns(const struct sp_grant *grant) {
  return load_relaxed64(&grant->pair_ns);
}
uint64_t sp_header_heartbeat_ns(const struct sp_header *header) {
  return load_relaxed64(&header->heartbeat_ns);
}

void sp_grant_wait(const struct sp_grant *grant, uint32_t word, uint64_t timeout_ns) {
  int saved = errno;
  struct timespec deadline = timespec_of(sp_now_ns() + timeout_ns);
  futex(&grant->word, FUTEX_WAIT_BITSET, word, &deadline);
  errno = saved;
}

struct waitv {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};

void sp_grant_wait_or(const struct sp_grant *grant, uint32_t word, const uint32_t *local, uint32_t value,
                      uint64_t timeout_ns) {
  enum { SIZE_U32 = 2, PRIVATE = 128 };
  static uint32_t waitv_missing; /* 1 after the kernel or a seccomp filter refused */
  int saved = errno;
  if (!load_acquire(&waitv_missing)) {
    struct waitv waits[2] = {{.value = word, .address = (uint64_t)(uintptr_t)&grant->word, .flags = SIZE_U32},
                             {.value = value, .address = (uint64_t)(uintptr_t)local, .flags = SIZE_U32 | PRIVATE}};
    /* The kernel reads a 64-bit timespec here on every architecture. */
    struct {
      int64_t seconds, ns;
    } deadline;
    uint64_t at_ns = sp_now_ns() + timeout_ns;
    deadline.seconds = (int64_t)(at_ns / 1000000000u);
    deadline.ns = (int64_t)(at_ns % 1000000000u);
    if (syscall(SYS_futex_waitv, waits, 2, 0, &deadline, CLOCK_MONOTONIC) < 0 && (errno == ENOSYS || errno == EPERM))
      store_release(&waitv_missing, 1);
    else {
      errno = saved;
      return;
    }
  }
  if (timeout_ns > 500000)
    timeout_ns = 500000;
  if (load_acquire(&grant->word) == word) {
    struct timespec deadline = timespec_of(sp_now_ns() + timeout_ns);
    futex(local, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, value, &deadline);
  }
  errno = saved;
}

void sp_slot_wait_begin(struct sp_slot_device *slot) {
  if (__atomic_fetch_add(&slot->waiting, 1, __ATOMIC_SEQ_CST) == 0)
    store_relaxed64(&slot->waiting_since_ns, sp_now_ns());
}

bool sp_slot_wait_again(struct sp_slot_device *slot) {
  uint32_t waiting = __atomic_load_n(&slot->waiting, __ATOMIC_RELAXED);
  return (waiting == 0 || waiting > SP_WAITING_MAX) &&
         __atomic_compare_exchange_n(&slot->waiting, &waiting, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

void sp_slot_wait_end(struct sp_slot_device *slot) {
  __atomic_fetch_sub(&slot->waiting, 1, __ATOMIC_SEQ_CST);
}

void sp_region_mishap(struct sp_region *region, enum sp_mishap_kind kind, uint32_t detail) {
  if (!region->slot || region->slot->pid != (int32_t)getpid() || detail == UINT32_MAX)
    return;
  store_relaxed(&region->slot->mishaps[kind], detail + 1);
}

uint32_t sp_slot_check(const uint64_t words[7]) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (int index = 0; index < 7; index++) {
    hash = (hash ^ words[index]) * 0x9ddfea08eb382d69u;
    hash ^= hash >> 29;
  }
  return (uint32_t)(hash >> 32);
}

void sp_slot_publish(struct sp_slot_device *slot, const struct sp_report *report) {
  const uint64_t words[7] = {(uint64_t)report->drained_turn << 32 | report->held_turn,
                             report->drained_ns,
                             report->entered_ns,
                             report->residue_until_ns,
                             report->idle_ns,
                             report->launches,
                             (uint64_t)report->longest_unit_us << 32 | report->passed};
  uint32_t sequence = slot->sequence; /* one writer at a time: the caller holds the turn lock */
  store_relaxed(&slot->sequence, sequence | 1u);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  store_relaxed(&slot->check,
                sp_slot_check(words)); /* pairs with sp_slot_read: a copy of old and new fields fails it */
  store_relaxed(&slot->held_turn, report->held_turn);
  store_relaxed(&slot->drained_turn, report->drained_turn);
  store_relaxed64(&slot->drained_ns, report->drained_ns);
  store_relaxed64(&slot->entered_ns, report->entered_ns);
  store_relaxed64(&slot->residue_until_ns, report->residue_until_ns);
  store_relaxed64(&slot->idle_ns, report->idle_ns);
  store_relaxed64(&slot->launches, report->launches);
  store_relaxed(&slot->passed, report->passed);
  store_relaxed(&slot->longest_unit_us, report->longest_unit_us);
  store_release(&slot->sequence, (sequence | 1u) + 1u);
}

int sp_slot_enter(struct sp_slot_device *slot, const struct sp_report *report, const struct sp_grant *grant) {
  sp_slot_publish(slot, report);
  full_fence(); /* pairs with the fence in sp_grant_close: one of the two sees the other */
  return load_acquire(&grant->word) == report->held_turn;
}

typedef uint64_t __attribute__((may_alias, aligned(8))) eight_claims;

uint64_t sp_region_memory_used(const struct sp_region *region, uint32_t device) {
  uint64_t total = 0;
  for (uint32_t group = 0; group < SP_SLOTS_MAX; group += 8) {
    /* eight slots at a time: most shares have one process */
    uint64_t claimed =
        __atomic_load_n((const eight_claims *)(const void *)&region->claims->claimed[group], __ATOMIC_ACQUIRE);
    for (uint32_t index = group; claimed; index++, claimed >>= 8)
      if (claimed & 0xff)
        total += load_relaxed64(&region->slots[index].devices[device].memory_used_bytes);
  }
  uint64_t overhead_bytes = load_relaxed64((const uint64_t *)&region->grants[device].overhead_bytes);
  if (overhead_bytes >> 63 && total < -overhead_bytes)
    return 0;
  return total + overhead_bytes;
}

int sp_region_memory_try(struct sp_region *region, uint32_t device, uint64_t bytes, uint64_t limit_bytes) {
  uint64_t *used = &region->slot->devices[device].memory_used_bytes;
  /* Add first, then look: two processes that race both see both, so the cap is never exceeded; at worst both are
   * refused where one would have fitted, which the caller answers by one more try. */
  __atomic_fetch_add(used, bytes, __ATOMIC_SEQ_CST);
  if (limit_bytes == 0 || sp_region_memory_used(region, device) <= limit_bytes)
    return 0;
  __atomic_fetch_sub(used, bytes, __ATOMIC_SEQ_CST);
  return -1;
}

void sp_region_memory_sub(struct sp_region *region, uint32_t device, uint64_t bytes) {
  __atomic_fetch_sub(&region->slot->devices[device].memory_used_bytes, bytes, __ATOMIC_SEQ_CST);
}

/* ---- the agent's side ---- */

void sp_region_heartbeat(struct sp_region_owner *owner, uint64_t now_ns) {
  store_relaxed64(&owner->header->heartbeat_ns, now_ns);
}

void sp_grant_wake(struct sp_grant *grant) {
  futex(&grant->word, FUTEX_WAKE, INT_MAX, NULL);
}

void sp_grant_set(struct sp_grant *grant, uint64_t budget_ns, uint64_t pair_ns, uint32_t flags) {
  store_relaxed64(&grant->pair_ns, pair_ns);
  store_relaxed64(&grant->budget_ns, budget_ns);
  store_release(&grant->flags, flags);
}

void sp_grant_mend(struct sp_grant *grant, uint32_t word) {
  store_release(&grant->word, word); /* pairs with sp_grant_word, as that of sp_grant_open did */
}

void sp_grant_account(struct sp_grant *grant, uint64_t used_ns) {
  store_relaxed64(&grant->used_ns, used_ns);
}

void sp_grant_overhead(struct sp_grant *grant, uint64_t context_bytes, int64_t overhead_bytes) {
  store_relaxed64(&grant->context_bytes, context_bytes);
  store_relaxed64((uint64_t *)&grant->overhead_bytes, (uint64_t)overhead_bytes);
}

uint32_t sp_grant_open(struct sp_grant *grant, uint64_t budget_ns, uint64_t pair_ns, uint32_t flags, uint64_t now_ns) {
  uint32_t word = grant->word | 1u; /* only the arbiter writes it */
  sp_grant_set(grant, budget_ns, pair_ns, flags);
  store_relaxed64(&grant->granted_ns, now_ns);
  store_release(&grant->word, word); /* pairs with sp_grant_word: budget and flags are there when the gate is open */
  return word;
}

uint32_t sp_grant_close(struct sp_grant *grant, uint32_t flags) {
  uint32_t word = (grant->word | 1u) + 1u;
  if (word == 0)
    word = 2; /* 0 means "no turn" */
  store_release(&grant->flags, flags);
  store_release(&grant->word, word);
  full_fence(); /* pairs with sp_slot_enter */
  return word;
}
