/* The shared file: made, mapped, locked; contexts, kernel names, faults. */
#define _GNU_SOURCE
#include "simgpu/model/state.h"

#include "simgpu/config/settings.h"
#include "simgpu/model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAP_NS       4000000ull
#define CREATION_BYTE 0
#define CUDA_LOST     46  /* CUDA_ERROR_DEVICE_UNAVAILABLE */
#define CUDA_ECC      214 /* CUDA_ERROR_ECC_UNCORRECTABLE */
#define MIB           1048576ull

static int64_t namespace_ns; /* how far this process's CLOCK_MONOTONIC is ahead of the machine's */

/* Set namespace_ns from the time namespace. It stays 0 if the process is in none, or the kernel does not support
 * them. */
static void find_namespace(void) {
  FILE *file = fopen("/proc/self/timens_offsets", "re");
  long long seconds, nanoseconds;
  if (file && fscanf(file, "monotonic %lld %lld", &seconds, &nanoseconds) == 2)
    namespace_ns = seconds * 1000000000 + nanoseconds;
  if (file)
    fclose(file);
}

/* The machine's time, by a direct system call: libfaketime replaces the library's function, and would stop the time for
 * all other processes. */
uint64_t sg_now(void) {
  struct timespec t;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec - (uint64_t)namespace_ns;
}

/* The same instant by the clock of this process's time namespace: the kernel takes timeouts by that clock. */
uint64_t sg_own_clock(uint64_t now_ns) {
  return now_ns + (uint64_t)namespace_ns;
}

/* Wake every thread that sleeps in the driver, in all processes, so that it looks again. */
void sg_kick(struct sg_shared *shared) {
  __atomic_fetch_add(&shared->generation, 1, __ATOMIC_RELEASE); /* pairs with the load before the wait in wait.c */
  syscall(SYS_futex, &shared->generation, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* --- making the file --------------------------------------------------------------------------------------------- */

/* Fill a zeroed mapping with the model that the settings describe. The magic is written last: if the maker dies before,
 * the file is made again. Returns 0, or -EINVAL: a setting is wrong. */
static int make(struct sg_shared *shared) {
  const char *devices = sg_setting_text("SIMGPU_DEVICES");
  shared->model = (struct sg_model){
      .context_bytes = sg_setting("SIMGPU_CONTEXT_MIB", 0) * MIB,
      .module_bytes = sg_setting("SIMGPU_MODULE_KIB", 0) * 1024,
      .log_records = sg_setting("SIMGPU_LOG_KERNELS", 0),
      .driver_release = sg_setting("SIMGPU_DRIVER_RELEASE", 580),
  };
  if (sg_profile_read(&shared->model.profile) || sg_add_devices(shared, devices ? devices : "1xH200"))
    return -EINVAL;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&shared->lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
  shared->version = SG_VERSION;
  shared->context_bytes = sizeof(struct sg_context);
  shared->total_bytes = sizeof(struct sg_shared);
  shared->made_ns = shared->now_ns = sg_now();
  __atomic_store_n(&shared->magic, SG_MAGIC, __ATOMIC_RELEASE);
  return 0;
}

/* Take or release a lock of this type on one byte of the file; `command`: F_OFD_SETLK, or F_OFD_SETLKW to wait for it.
 * Returns 0 or -errno. */
int sg_lock_byte(int fd, short type, int64_t byte, int command) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  return fcntl(fd, command, &lock) ? -errno : 0;
}

/* Map the log of kernels, and make its file if there is none. Without SIMGPU_LOG_KERNELS there is no log. Returns 0 or
 * -errno. */
static int map_log(struct sg_state *state) {
  char path[sizeof state->path + 16];
  uint64_t records = state->shared->model.log_records;
  if (!records)
    return 0;
  snprintf(path, sizeof path, "%s.kernels", state->path);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0)
    return -errno;
  size_t bytes = records * sizeof(struct sg_log_record);
  void *log = ftruncate(fd, (off_t)bytes) ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int result = log == MAP_FAILED ? -errno : 0;
  close(fd);
  if (!result)
    state->log = log;
  return result;
}

/* With the creation byte locked: map the state file. If `may_make`, fill an empty file, and make a stale one anew: it
 * was made with another SIMGPU_DEVICES, and no process has it open. Returns 0 or -errno; after an error the caller's
 * sg_close unmaps and unlocks. */
static int map_shared(struct sg_state *state, bool may_make) {
  struct stat info;
  if (fstat(state->fd, &info))
    return -errno;
  state->file = info.st_ino;
  if (info.st_size && info.st_size != (off_t)sizeof(struct sg_shared))
    return -EPROTO;
  if (!info.st_size && (!may_make || ftruncate(state->fd, sizeof(struct sg_shared))))
    return may_make ? -errno : -ENOENT;
  /* The file is sparse except for what its making writes: a full tmpfs gives an error here, not a SIGBUS. */
  if (may_make && fallocate(state->fd, 0, 0, offsetof(struct sg_shared, past)) && errno == ENOSPC)
    return -errno;
  state->shared = mmap(NULL, sizeof(struct sg_shared), PROT_READ | PROT_WRITE, MAP_SHARED, state->fd, 0);
  if (state->shared == MAP_FAILED)
    return -errno;
  struct sg_shared *shared = state->shared;
  const char *wanted = sg_setting_text("SIMGPU_DEVICES");
  /* The write lock is only granted if no process has the file open. sg_open then turns it into a read lock. */
  bool stale = may_make && shared->magic == SG_MAGIC && wanted && strcmp(wanted, shared->devices_setting) != 0 &&
               !sg_lock_byte(state->fd, F_WRLCK, SG_PRESENCE_BYTE, F_OFD_SETLK);
  if (stale && (ftruncate(state->fd, 0) || ftruncate(state->fd, sizeof(struct sg_shared))))
    return -errno;
  if (shared->magic != SG_MAGIC)
    return may_make ? make(shared) : -ENOENT;
  return shared->version == SG_VERSION && shared->context_bytes == sizeof(struct sg_context) ? 0 : -EPROTO;
}

/* Map the state file `path`, or if it is NULL the one of the settings, which is made if it does not exist. Returns 0 or
 * -errno. The creation byte stays locked until this process holds the presence byte. So no process maps a half-made
 * file, and none makes a file anew that another is about to use. */
int sg_open(struct sg_state *state, const char *path) {
  const char *named = path ? path : sg_setting_text("SIMGPU_STATE");
  bool may_make = !path;
  *state = (struct sg_state){.fd = -1, .pids_fd = -1, .pid_namespace = sg_pid_namespace(), .client = SG_NONE};
  find_namespace();
  if (named)
    snprintf(state->path, sizeof state->path, "%s", named);
  else
    snprintf(state->path, sizeof state->path, "/dev/shm/simgpu-%u", (unsigned)getuid());
  int fd = open(state->path, O_RDWR | O_CLOEXEC | (may_make ? O_CREAT : 0), 0666);
  if (fd < 0)
    return -errno;
  /* A high number, away from programs that close the descriptors they know of: the context locks depend on it. */
  state->fd = fcntl(fd, F_DUPFD_CLOEXEC, 512);
  if (state->fd < 0)
    state->fd = fd;
  else
    close(fd);
  int result = sg_lock_byte(state->fd, F_WRLCK, CREATION_BYTE, F_OFD_SETLKW);
  if (!result)
    result = map_shared(state, may_make);
  if (!result)
    result = map_log(state);
  if (!result)
    result = sg_lock_byte(state->fd, F_RDLCK, SG_PRESENCE_BYTE, F_OFD_SETLK);
  sg_lock_byte(state->fd, F_UNLCK, CREATION_BYTE, F_OFD_SETLK);
  if (result)
    sg_close(state);
  return result;
}

/* Unmap the file and close it. That releases this process's locks on it, so its contexts and its memory are lost. */
void sg_close(struct sg_state *state) {
  if (state->log)
    munmap(state->log, state->shared->model.log_records * sizeof(struct sg_log_record));
  if (state->shared && state->shared != MAP_FAILED)
    munmap(state->shared, sizeof(struct sg_shared));
  if (state->fd >= 0)
    close(state->fd);
  *state = (struct sg_state){.fd = -1, .pids_fd = -1, .client = SG_NONE};
}

/* In a forked child: drop the mapping and the descriptor. Closing the child's copy of the descriptor releases no lock,
 * because the parent's copy keeps it. */
void sg_abandon(struct sg_state *state) {
  sg_close(state);
}

/* --- lock -------------------------------------------------------------------------------------------------------- */

/* Take the lock of the shared state. If its last holder died inside a change, repair the state. */
void sg_lock(struct sg_state *state) {
  if (pthread_mutex_lock(&state->shared->lock) == EOWNERDEAD) {
    sg_repair(state->shared);
    pthread_mutex_consistent(&state->shared->lock);
  }
}

/* Release the lock of the shared state. */
void sg_unlock(struct sg_state *state) {
  pthread_mutex_unlock(&state->shared->lock);
}

/* Lock the state and advance the model to now. Every REAP_NS also drop what dead processes have left. */
void sg_lock_advanced(struct sg_state *state) {
  sg_lock(state);
  uint64_t now_ns = sg_now();
  sg_advance(state, now_ns);
  if (now_ns > state->shared->reaped_ns + REAP_NS)
    sg_reap(state);
}

/* --- contexts ---------------------------------------------------------------------------------------------------- */

/* Drop the contexts and clients of dead processes. A living owner keeps the byte 1 + slot of its context locked. */
void sg_reap(struct sg_state *state) {
  struct sg_shared *shared = state->shared;
  shared->reaped_ns = sg_now();
  SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS) {
    /* Locks of our own descriptor are not reported as another's: ask only about the other slots. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1 + (off_t)slot, .l_len = 1};
    if (sg_bit(state->own, slot) || fcntl(state->fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK)
      continue;
    sg_context_drop(state, slot);
  }
  sg_clients_reap(state);
}

/* Make a context on the device, and return its slot; SG_NONE: there is no free one. It takes the first slot with a byte
 * that can be locked: this lock shows other processes that the owner lives. The context becomes alive last. */
uint32_t sg_context_create(struct sg_state *state, uint32_t device) {
  struct sg_shared *shared = state->shared;
  for (uint32_t slot = 0; slot < SG_MAX_CONTEXTS; slot++) {
    struct sg_context *context = &shared->contexts[slot];
    if (sg_bit(shared->alive, slot) || sg_bit(state->own, slot) ||
        sg_lock_byte(state->fd, F_WRLCK, 1 + (off_t)slot, F_OFD_SETLK))
      continue;
    context->device = device;
    context->owner = *sg_owner_own(state);
    context->id = ++shared->last_id;
    context->lost_error = 0;
    context->created_ns = shared->now_ns;
    context->memory_bytes = shared->model.context_bytes;
    context->busy_ns = 0;
    memset(&context->history, 0, sizeof context->history);
    memset(context->lanes, 0, sizeof context->lanes);
    memset(context->active, 0, sizeof context->active);
    for (uint32_t n = 0; n < SG_MAX_LANES; n++)
      context->lanes[n].head = context->lanes[n].tail = context->lanes[n].effect_head = SG_NONE;
    context->free_item = context->free_event = context->effects_head = SG_NONE;
    context->fresh_item = context->fresh_event = 0; /* the events keep their numbers: a wait may still name them */
    context->state = SG_ALIVE;
    sg_set(state->own, slot);
    sg_set(shared->alive, slot);
    return slot;
  }
  return SG_NONE;
}

/* Drop a context: its work, its memory and its slot. If a process dies in this function, the context may be among the
 * past ones and still be alive. It is then dropped again, so truth.c lists each id once. */
void sg_context_drop(struct sg_state *state, uint32_t slot) {
  struct sg_shared *shared = state->shared;
  struct sg_context *context = &shared->contexts[slot];
  sg_drop_work(shared, slot);
  shared->past[shared->past_count % SG_MAX_PAST] = (struct sg_past){
      .device = context->device,
      .id = context->id,
      .owner = context->owner,
      .busy_ns = context->busy_ns,
      .ended_ns = shared->now_ns,
  };
  shared->past_count++;
  context->memory_bytes = 0;
  context->state = SG_FREE;
  sg_clear(shared->alive, slot);
  if (sg_bit(state->own, slot)) {
    sg_clear(state->own, slot);
    sg_lock_byte(state->fd, F_UNLCK, 1 + (off_t)slot, F_OFD_SETLK);
  }
  sg_kick(shared);
}

/* The index of a name in the table of kernel names; a new name is added. The last entry, "...", stands for all names
 * for which there is no room. */
uint32_t sg_intern(struct sg_shared *shared, const char *name) {
  for (uint32_t n = 0; n < shared->name_count; n++)
    if (!strncmp(shared->names[n], name, SG_NAME_BYTES - 1))
      return n;
  if (shared->name_count == SG_MAX_NAMES - 1)
    name = "...";
  else if (shared->name_count == SG_MAX_NAMES)
    return SG_MAX_NAMES - 1;
  snprintf(shared->names[shared->name_count], SG_NAME_BYTES, "%s", name);
  return shared->name_count++;
}

/* Add up what the spans have between the two instants. A span that is only partly between them counts in proportion. */
uint64_t sg_history_busy(const struct sg_history *history, uint64_t from_ns, uint64_t to_ns) {
  uint64_t busy = 0;
  for (uint32_t n = 0; n < SG_BUCKETS; n++) {
    uint64_t start_ns = history->stamp[n] * SG_BUCKET_NS, end_ns = start_ns + SG_BUCKET_NS;
    uint64_t low = start_ns > from_ns ? start_ns : from_ns, high = end_ns < to_ns ? end_ns : to_ns;
    if (low < high)
      busy += history->busy_ns[n] * (high - low) / SG_BUCKET_NS;
  }
  return busy;
}

/* --- faults ------------------------------------------------------------------------------------------------------ */

/* The error that calls return after this XID, because the device is lost. 0: the device stays usable. */
static uint32_t error_of_xid(uint32_t xid) {
  switch (xid) {
  case 48: /* double-bit ECC error */
  case 94: /* contained ECC error */
  case 95: /* uncontained ECC error */
    return CUDA_ECC;
  case 74:  /* NVLink error */
  case 79:  /* the GPU has fallen off the bus */
  case 119: /* the GPU's system processor (GSP) does not answer */
  case 120: /* the GSP has failed */
  case 140: /* unrecovered ECC error */
    return CUDA_LOST;
  default:
    return 0; /* an application's fault (13, 31, 43, 45, ...): reported, and the device goes on */
  }
}

/* The lower half of the counter of XIDs, as a futex (which has 32 bits): sg_await_xid waits for it to change. */
static const uint32_t *xid_word(const struct sg_shared *shared) {
  return (const uint32_t *)&shared->xid_seq + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* The device is lost: its contexts fail and their work is dropped. New contexts fail until sg_recover. */
static void lose(struct sg_shared *shared, uint32_t device, uint32_t error) {
  shared->devices[device].lost_error = error;
  SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS) {
    if (shared->contexts[slot].device == device) {
      shared->contexts[slot].lost_error = error;
      sg_drop_work(shared, slot);
    }
  }
}

/* Put the XID into the ring of XIDs. If it loses the device, all contexts on it fail, and those on its MIG instances
 * too. */
void sg_inject_xid(struct sg_state *state, uint32_t device, uint32_t xid) {
  struct sg_shared *shared = state->shared;
  uint32_t error = error_of_xid(xid);
  uint64_t seq = shared->xid_seq + 1;
  shared->xids[(seq - 1) % SG_MAX_XIDS] =
      (struct sg_xid){.seq = seq, .device = device, .xid = xid, .time_ns = shared->now_ns};
  __atomic_store_n(&shared->xid_seq, seq, __ATOMIC_RELEASE);
  for (uint32_t n = 0; error && n < shared->device_count; n++)
    if (n == device || shared->devices[n].parent == device)
      lose(shared, n, error);
  sg_kick(shared);
  syscall(SYS_futex, xid_word(shared), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Sleep until an XID is reported after number `seq`, or for the timeout. A signal ends the sleep early. */
void sg_await_xid(const struct sg_shared *shared, uint64_t seq, uint64_t timeout_ns) {
  struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
  syscall(SYS_futex, xid_word(shared), FUTEX_WAIT, (uint32_t)seq, &timeout, NULL, 0);
}

/* New contexts work again, on the device and its MIG instances. Those that were lost stay lost. */
void sg_recover(struct sg_state *state, uint32_t device) {
  for (uint32_t n = 0; n < state->shared->device_count; n++)
    if (n == device || state->shared->devices[n].parent == device)
      state->shared->devices[n].lost_error = 0;
  sg_kick(state->shared);
}
