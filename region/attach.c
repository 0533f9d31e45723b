/* A process attaches to its share's region: it maps the files `terms` and `slots`, claims a slot and keeps it, and
 * rings the doorbell, a FIFO that has the agent look at the slots. A slot belongs to the process that holds the slot's
 * record lock (fcntl, one byte of `slots`). The kernel releases a process's locks on a file when the process closes any
 * descriptor of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "region/order.h"
#include "region/region.h"
#include "region/uncancelled.h"

/* Our descriptors have high numbers, if the limit allows it: programs close, count on and reuse the low ones. */
#define DESCRIPTORS_FROM 1000

/* Write the path of the file `name` in `directory` to `out`, which has room for PATH_MAX bytes. 0 or -ENAMETOOLONG. */
static int path_of(char *out, const char *directory, const char *name) {
  size_t directory_length = strlen(directory), name_length = strlen(name);
  if (directory_length + name_length + 2 > PATH_MAX)
    return -ENAMETOOLONG;
  memcpy(out, directory, directory_length);
  out[directory_length] = '/';
  memcpy(out + directory_length + 1, name, name_length + 1);
  return 0;
}

/* Open the file `name` of the region, with open's `flags`. Returns its descriptor, with a high number if possible, or
 * -errno. */
static int open_in(const char *directory, const char *name, int flags) {
  char path[PATH_MAX];
  int error = path_of(path, directory, name);
  if (error)
    return error;
  int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0);
  if (fd < 0)
    return -errno;
  int high = fcntl(fd, F_DUPFD_CLOEXEC, DESCRIPTORS_FROM);
  if (high < 0)
    return fd;
  close(fd); /* before it is locked: closing any descriptor of a file releases the process's locks on it */
  return high;
}

/* Take the slot's record lock, without waiting. `fd`: of `slots`. 0, or -errno if another process has it. */
static int lock_slot(int fd, uint32_t slot) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
  return fcntl(fd, F_SETLK, &lock) ? -errno : 0;
}

/* Release the slot's record lock. `fd`: of `slots`. */
static void unlock_slot(int fd, uint32_t slot) {
  struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
  fcntl(fd, F_SETLK, &unlock);
}

/* Before a slot is claimed: a program that replaces itself with exec keeps its pid and loses its slot's lock. Set the
 * memory accounts in the slot of this process's old image to 0. That memory is free, but the agent finds that out only
 * some seconds later, and it would count against the cap until then. */
static void leave_old_image(struct sp_region *region) {
  for (uint32_t index = 0; index < SP_SLOTS_MAX; index++) {
    struct sp_slot *slot = &region->slots[index];
    if (!sp_slot_claimed(region->claims, index) || slot->pid != (int32_t)getpid() || lock_slot(region->slots_fd, index))
      continue; /* if its lock is held, it is a process with our pid in another pid namespace */
    for (uint32_t device = 0; device < SP_DEVICES_MAX; device++) {
      sp_store(&slot->devices[device].context_bytes, 0);
      sp_store(&slot->devices[device].memory_used_bytes, 0);
    }
    unlock_slot(region->slots_fd, index);
  }
}

/* Claim the first free slot: lock it, clear it and write its head. region->slot becomes this slot. 0, or -EUSERS: none
 * is free. */
static int claim_slot(struct sp_region *region) {
  leave_old_image(region);
  for (uint32_t index = 0; index < SP_SLOTS_MAX; index++) {
    struct sp_slot *slot = &region->slots[index];
    /* The lock comes first: the process that has it owns the slot, even if a dead process has claimed the slot. */
    if (lock_slot(region->slots_fd, index))
      continue;
    if (sp_slot_claimed(region->claims, index)) {
      /* A dead process's slot that the agent has not cleared yet, or a live one that lost its lock: leave both. */
      unlock_slot(region->slots_fd, index);
      continue;
    }
    memset(slot->devices, 0, sizeof slot->devices);
    memset(slot->diagnostics, 0, sizeof slot->diagnostics);
    slot->pid = region->pid = (int32_t)getpid();
    slot->claimed_ns = sp_now_ns();
    region->slot = slot;
    region->slot_index = index;
    slot->index = index;
    sp_slot_claim(region->claims, index);
    return 0;
  }
  return -EUSERS;
}

#define LOST_WORD      1u        /* an open turn that never ends */
#define LOST_BUDGET_NS 50000000u /* as alone on the device */

/* Make the terms that guard.c puts in the place of `terms` if that file is truncated: the present ones, but with all
 * gates open, no agent, and nothing of what the agent has learned from NVML, which nobody would bring up to date. NULL:
 * there is no memory for them. */
static void *make_spare_terms(const void *terms) {
  char *copy = mmap(NULL, SP_TERMS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED)
    return NULL;
  memcpy(copy, terms, SP_TERMS_BYTES);
  ((struct sp_header *)(void *)copy)->heartbeat_ns = 0;
  struct sp_grant *grants = (struct sp_grant *)(void *)(copy + sizeof(struct sp_header));
  for (uint32_t index = 0; index < SP_DEVICES_MAX; index++) {
    grants[index].word = LOST_WORD;
    grants[index].flags = 0;
    grants[index].budget_ns = grants[index].lookahead_ns = LOST_BUDGET_NS;
    grants[index].context_bytes = 0;
    grants[index].overhead_bytes = 0;
    grants[index].spare_pages = 0;
  }
  return copy;
}

/* Map the first `bytes` of a file, with mmap's `protection`. MAP_FAILED: *error says why, and is -EPROTO if the file is
 * too short. The descriptor stays open. */
static void *map_file(int fd, size_t bytes, int protection, int *error) {
  struct stat status;
  if (fstat(fd, &status) || status.st_size < (off_t)bytes) {
    *error = -EPROTO;
    return MAP_FAILED;
  }
  void *mapped = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
  *error = mapped == MAP_FAILED ? -errno : 0;
  return mapped;
}

/* Map `terms` under a guard, check them and agree on the clock. 0 or -errno; after an error the caller calls let_go. */
static int map_terms(struct sp_region *region) {
  int error, fd = open_in(region->directory, SP_TERMS_FILE, O_RDONLY);
  if (fd < 0)
    return fd;
  void *terms = map_file(fd, SP_TERMS_BYTES, PROT_READ, &error);
  close(fd);
  if (error)
    return error;
  region->guard.start[0] = terms;
  region->guard.bytes[0] = SP_TERMS_BYTES;
  sp_guard_add(&region->guard); /* a failure is no error: the program then only lacks the guard */
  error = sp_header_check(terms);
  if (error)
    return error;
  sp_clock_agree(sp_header_heartbeat_ns(terms));
  region->guard.spare = make_spare_terms(terms);
  region->header = terms;
  region->grants = (const struct sp_grant *)((const char *)terms + sizeof(struct sp_header));
  return 0;
}

/* Map `slots`; region->guard, which map_terms has added, guards this mapping, too. 0 or -errno; after an error the
 * caller calls let_go. */
static int map_slots(struct sp_region *region) {
  int error, fd = open_in(region->directory, SP_SLOTS_FILE, O_RDWR);
  if (fd < 0)
    return fd;
  region->slots_fd = fd;
  void *slots = map_file(fd, SP_SLOTS_BYTES, PROT_READ | PROT_WRITE, &error);
  if (error)
    return error;
  region->claims = slots;
  region->slots = (struct sp_slot *)((char *)slots + sizeof(struct sp_slots_header));
  region->guard.start[1] = slots;
  region->guard.bytes[1] = SP_SLOTS_BYTES;
  return 0;
}

/* A number that tells a file from all others on this machine. */
static uint64_t file_id(const struct stat *status) {
  return (uint64_t)status->st_ino ^ (uint64_t)status->st_dev << 40;
}

/* Open the doorbell and note which file it is. Returns a descriptor, -ENXIO if no agent reads it now, -EPIPE if it is
 * no FIFO, or another -errno. O_NONBLOCK: a full FIFO already tells the agent to look. */
static int open_doorbell(struct sp_region *region) {
  int fd = open_in(region->directory, SP_DOORBELL_FILE, O_WRONLY | O_NONBLOCK);
  struct stat status;
  if (fd >= 0 && (fstat(fd, &status) || !S_ISFIFO(status.st_mode))) {
    close(fd); /* a regular file would grow with every ring, and no agent would read it */
    return -EPIPE;
  }
  if (fd >= 0)
    sp_store_release(&region->doorbell_file, file_id(&status)); /* threads may race here: all store the same value */
  return fd;
}

/* Is the descriptor still our doorbell? The program may have closed it, and opened a file with the same number. */
static bool is_doorbell(const struct sp_region *region, int fd) {
  struct stat status;
  return !fstat(fd, &status) && S_ISFIFO(status.st_mode) && file_id(&status) == sp_load_acquire(&region->doorbell_file);
}

/* Make it a region that has nothing open and nothing mapped. */
static void reset(struct sp_region *region) {
  memset(region, 0, sizeof *region);
  region->slots_fd = region->doorbell_fd = -1;
}

/* Undo an attachment that has failed half-way: unmap and close what it has. */
static void let_go(struct sp_region *region) {
  sp_guard_drop(&region->guard);
  if (region->guard.spare)
    munmap(region->guard.spare, SP_TERMS_BYTES);
  for (int part = 0; part < 2; part++)
    if (region->guard.bytes[part])
      munmap(region->guard.start[part], region->guard.bytes[part]);
  if (region->slots_fd >= 0)
    close(region->slots_fd);
  if (region->doorbell_fd >= 0)
    close(region->doorbell_fd);
  reset(region);
}

/* Write the byte `bell`, our slot's index or SP_DOORBELL_FULL, to the doorbell. If our descriptor is gone, open the
 * doorbell again and take the slot's lock again. The program gets no SIGPIPE from a FIFO without a reader, and errno
 * stays unchanged. Any thread may call it. */
static void ring(struct sp_region *region, uint8_t bell) {
  int saved = errno;
  SP_UNCANCELLED;
  int fd = sp_load_acquire(&region->doorbell_fd);
  if (fd < 0 || !is_doorbell(region, fd)) {
    /* Either no agent was reading when we attached (ENXIO), and perhaps one is by now. Or the program has closed the
     * descriptor: then the number is not ours any more, and not ours to close, and the slot's lock was lost, too. */
    int seen_fd = fd;
    if (fd >= 0 && region->slot)
      sp_region_relock(region);
    fd = open_doorbell(region);
    if (fd >= 0 && !sp_compare_exchange(&region->doorbell_fd, &seen_fd, fd)) {
      close(fd);
      fd = seen_fd; /* another thread was first: seen_fd is now its descriptor */
    }
  }
  if (fd >= 0) {
    /* A FIFO without a reader (the agent is gone) raises SIGPIPE in this thread. Block the signal and consume it,
     * unless the program had one pending itself. */
    static const struct timespec at_once;
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    /* EAGAIN: the FIFO is full of unread rings, which is as good. */
    if (write(fd, &bell, 1) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
      sigtimedwait(&pipe_signal, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  errno = saved;
}

/* Attach to the region in `directory`, and fill `region`. Only one thread may be in here. 0, or -errno: then nothing is
 * left of the attempt. -EUSERS: there is no free slot, which the agent is told. */
int sp_region_attach(struct sp_region *region, const char *directory) {
  reset(region);
  if (strlen(directory) >= sizeof region->directory)
    return -ENAMETOOLONG;
  memcpy(region->directory, directory, strlen(directory) + 1);
  int error = map_terms(region);
  if (!error)
    error = map_slots(region);
  if (!error) {
    int doorbell_fd = open_doorbell(region);
    if (doorbell_fd < 0 && doorbell_fd != -ENXIO)
      error = doorbell_fd;
    region->doorbell_fd = doorbell_fd < 0 ? -1 : doorbell_fd; /* ENXIO: the next ring tries again */
  }
  if (!error) {
    error = claim_slot(region);
    /* So the agent knows this process before its first launch, or learns that there was no slot. */
    if (!error || error == -EUSERS)
      ring(region, error ? SP_DOORBELL_FULL : (uint8_t)region->slot_index);
  }
  if (error)
    let_go(region);
  return error;
}

/* Claim our slot again after it was wiped, and restore its memory account; the caller has the slot's lock. Either the
 * file was truncated, or the agent took this process for dead: for too long the process did not hold the lock, which is
 * lost when the program closes a descriptor of the file. */
static void claim_again(struct sp_region *region) {
  struct sp_slot *slot = region->slot;
  for (uint32_t device = 0; device < SP_DEVICES_MAX; device++) {
    uint64_t memory_bytes = sp_load(&region->charged[device].memory_bytes);
    uint64_t context_bytes = sp_load(&region->charged[device].context_bytes);
    sp_store(&slot->devices[device].memory_used_bytes, memory_bytes);
    sp_store(&slot->devices[device].context_bytes, context_bytes);
  }
  slot->claimed_ns = sp_now_ns();
  slot->pid = region->pid;
  sp_slot_claim(region->claims, region->slot_index);
}

/* Take the slot's lock again, which is lost when the program closes any descriptor of the file, and repair the slot's
 * claim. Called from time to time by a keeper, and when the doorbell's descriptor is gone. 0 or -errno. `at_path`,
 * `at_fd`: the file of that name, and the one behind our descriptor. */
int sp_region_relock(struct sp_region *region) {
  if (region->pid != (int32_t)getpid())
    return -ESRCH; /* a forked child has no slot */
  const char *directory = region->directory;
  struct stat at_path, at_fd;
  /* The descriptor may be closed, or be another file by now: compare before it is trusted. */
  char path[PATH_MAX];
  int error = path_of(path, directory, SP_SLOTS_FILE);
  if (error)
    return error;
  if (stat(path, &at_path))
    return -errno;
  if (fstat(region->slots_fd, &at_fd) || at_fd.st_ino != at_path.st_ino || at_fd.st_dev != at_path.st_dev) {
    int fd = open_in(directory, SP_SLOTS_FILE, O_RDWR);
    if (fd < 0)
      return fd;
    region->slots_fd = fd; /* the old number is not closed: it may be the program's by now */
  }
  error = lock_slot(region->slots_fd, region->slot_index);
  if (!error && region->slot->pid == 0) /* the slot was wiped */
    claim_again(region);
  else if (!error) /* the program may have overwritten the claim before the agent knew this process */
    sp_slot_claim(region->claims, region->slot_index);
  return error;
}

/* Have the agent look at our slot. */
void sp_region_ring(struct sp_region *region) {
  ring(region, (uint8_t)region->slot_index); /* so the agent finds out whether this process is new */
}
