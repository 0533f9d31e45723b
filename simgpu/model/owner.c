/* Process numbers, and pids across pid namespaces: see owner.h. */
#define _GNU_SOURCE
#include "simgpu/model/owner.h"

#include "simgpu/model/state.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define INITIAL_NAMESPACE 0xeffffffcu /* of pids: PID_NS_INIT_INO of linux/nsfs.h */

/* The pid namespace of this process, by the inode that identifies it; 0: it is not known. */
uint32_t sg_pid_namespace(void) {
  struct stat info;
  return stat("/proc/self/ns/pid", &info) ? 0 : (uint32_t)info.st_ino;
}

/* --- <state file>.pids ------------------------------------------------------------------------------------------- */

/*
 * Find the descriptor that this process has of the file; -1: it has none.
 *
 * A process loses its record locks when it closes any descriptor of the file. So it opens at most one descriptor, and
 * never closes it. Both libraries contain this code, and each finds the descriptor that the other has opened. The
 * state's lock keeps two threads from opening one at the same time.
 */
static int find_descriptor(const struct stat *file) {
  DIR *own = opendir("/proc/self/fd");
  int found = -1;
  for (struct dirent *entry; own && found < 0 && (entry = readdir(own));) {
    struct stat info;
    int fd = atoi(entry->d_name); /* 0 for "." and "..": never ours, as a program has 0 open */
    if (!fstat(fd, &info) && info.st_ino == file->st_ino && info.st_dev == file->st_dev)
      found = fd;
  }
  if (own)
    closedir(own);
  return found;
}

/* Open the file, and with `make` create it if it does not exist. Returns the descriptor, or -1. */
static int open_new(const char *path, bool make) {
  int low = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (low < 0 && make) {
    low = open(path, O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
    if (low >= 0)
      fchmod(low, 0666); /* whatever the umask: programs of every user need the file */
  }
  /* A high number, as for the state file: programs close the low ones that they know of. Closing the low one drops no
   * lock, because this process has none yet. */
  int high = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, 512);
  if (high >= 0)
    close(low);
  return high >= 0 ? high : low;
}

/* With the lock: the one descriptor of <state file>.pids in this process. With `make` the file is created if it does
 * not exist. -1: there is none. */
static int descriptor(struct sg_state *state, bool make) {
  char path[sizeof state->path + 8];
  struct stat info;
  if (state->pids_fd >= 0)
    return state->pids_fd;
  snprintf(path, sizeof path, "%s.pids", state->path);
  if (!stat(path, &info))
    state->pids_fd = find_descriptor(&info);
  else if (!make)
    return -1;
  if (state->pids_fd < 0)
    state->pids_fd = open_new(path, make);
  return state->pids_fd;
}

/* The lock that an owner holds while it lives: on one byte of <state file>.pids, by the owner's id. The byte's number
 * includes the state file's inode: processes that still use a removed state file lock other bytes. */
static struct flock lock_of(const struct sg_state *state, const struct sg_owner *owner) {
  uint64_t byte = (state->file << 32 | owner->id) & INT64_MAX;
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
}

/* --- owners ------------------------------------------------------------------------------------------------------ */

/* With the state's lock: this process as an owner. The first call gives it its id. Outside the initial namespace it
 * also takes the process's lock. If that fails, the namespace counts as not known, and other processes cannot find out
 * the pid. */
const struct sg_owner *sg_owner_own(struct sg_state *state) {
  struct sg_owner *own = &state->owner;
  if (own->id)
    return own;
  *own = (struct sg_owner){++state->shared->last_owner, getpid(), state->pid_namespace};
  if (own->pid_namespace != INITIAL_NAMESPACE) {
    struct flock lock = lock_of(state, own);
    if (fcntl(descriptor(state, true), F_SETLK, &lock))
      own->pid_namespace = 0;
  }
  return own;
}

/* The pid of an owner in the namespace of this process, or SG_UNSEEN or SG_GONE. A process of the same namespace has
 * its own pid here. A process of the initial namespace has no pid in any other. For the rest the kernel tells which
 * pid, in the reader's namespace, holds the owner's lock. */
int32_t sg_seen_pid(struct sg_state *state, const struct sg_owner *owner) {
  if (owner->id == state->owner.id || (owner->pid_namespace && owner->pid_namespace == state->pid_namespace))
    return owner->pid;
  if (!owner->pid_namespace || owner->pid_namespace == INITIAL_NAMESPACE)
    return SG_UNSEEN;
  struct flock lock = lock_of(state, owner);
  if (fcntl(descriptor(state, false), F_GETLK, &lock))
    return SG_UNSEEN;
  return lock.l_type == F_UNLCK ? SG_GONE : (int32_t)lock.l_pid; /* 0: the holder has no pid here */
}

/* The pid of an owner here or, if it has none here or has ended, in its own namespace. */
int32_t sg_pid_of(struct sg_state *state, const struct sg_owner *owner) {
  int32_t pid = sg_seen_pid(state, owner);
  return pid > 0 ? pid : owner->pid;
}
