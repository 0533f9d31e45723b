/* The agent's side of a region's files: makes them for a new share, opens them again after the agent's restart, and
 * judges those that it finds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/arbiter/arbiter.h"
#include "region/region.h"

/* Write the path of a file in `directory` to `out`, which has room for PATH_MAX bytes. 0 or -ENAMETOOLONG. */
static int path_of(char *out, const char *directory, const char *name) {
  return snprintf(out, PATH_MAX, "%s/%s", directory, name) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* Open the file `name` of the region, with open's `flags`. Returns its descriptor or -errno. */
static int open_in(const char *directory, const char *name, int flags) {
  char path[PATH_MAX];
  int error = path_of(path, directory, name);
  int fd = error ? error : open(path, flags | O_CLOEXEC | O_NOFOLLOW);
  return fd < 0 && !error ? -errno : fd;
}

/* Create a file of that mode and size. Returns its descriptor, or -errno; -EEXIST: the file is there already. */
static int create_file(const char *path, mode_t mode, size_t bytes) {
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0)
    return -errno;
  /* fchmod: the mode must not depend on the umask. fallocate: a full tmpfs is an error here, not a SIGBUS later. */
  int error = fchmod(fd, mode) || fallocate(fd, 0, 0, (off_t)bytes) ? -errno : 0;
  if (error) {
    close(fd);
    return error;
  }
  return fd;
}

/* Make all three files of a region for `grant_count` devices. Returns a descriptor of `terms`, or -errno. */
static int create_files(const char *directory, uint32_t grant_count) {
  char path[PATH_MAX], fresh[PATH_MAX];
  int error = path_of(fresh, directory, SP_TERMS_FILE ".new");
  if (error)
    return error;
  int fd = create_file(fresh, 0644, SP_TERMS_BYTES);
  if (fd < 0)
    return fd;
  struct sp_header header = {.magic = SP_MAGIC,
                             .abi = SP_ABI,
                             .header_size = sizeof(struct sp_header),
                             .grant_size = sizeof(struct sp_grant),
                             .grant_count = grant_count,
                             .slot_size = sizeof(struct sp_slot),
                             .slot_count = SP_SLOTS_MAX};
  error = path_of(path, directory, SP_SLOTS_FILE);
  int slots_fd = error ? error : create_file(path, 0666, SP_SLOTS_BYTES);
  if (slots_fd >= 0)
    close(slots_fd);
  error = slots_fd < 0 ? slots_fd : path_of(path, directory, SP_DOORBELL_FILE);
  if (!error && (mkfifo(path, 0622) || chmod(path, 0622)))
    error = -errno;
  if (!error && pwrite(fd, &header, sizeof header, 0) != (ssize_t)sizeof header)
    error = -EIO;
  /* `terms` appears last, and complete: a process that finds it finds all files. */
  if (!error)
    error = path_of(path, directory, SP_TERMS_FILE);
  if (!error && rename(fresh, path))
    error = -errno;
  if (error) {
    unlink(fresh);
    close(fd);
    return error;
  }
  return fd;
}

/* Map `terms` under a guard and check them: owner->header and owner->grants are set. Closes `fd`. 0 or -errno; -EPROTO:
 * they are too short, or have another ABI or another number of devices. */
static int map_terms(struct sp_region_owner *owner, int fd, uint32_t grant_count) {
  struct stat status;
  void *terms = MAP_FAILED;
  int error = 0;
  if (fstat(fd, &status) || status.st_size < (off_t)SP_TERMS_BYTES)
    error = -EPROTO;
  else if ((terms = mmap(NULL, SP_TERMS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
    error = -errno;
  close(fd);
  if (!error) {
    owner->guard.start[0] = terms;
    owner->guard.bytes[0] = SP_TERMS_BYTES;
    sp_guard_add(&owner->guard); /* a failure is no error: the agent serves other shares, too */
    error = sp_header_check(terms);
  }
  if (!error && ((struct sp_header *)terms)->grant_count != grant_count)
    error = -EPROTO;
  if (error) {
    sp_guard_drop(&owner->guard);
    if (terms != MAP_FAILED)
      munmap(terms, SP_TERMS_BYTES);
    return error;
  }
  owner->header = terms;
  owner->grants = (struct sp_grant *)((char *)terms + sizeof(struct sp_header));
  return 0;
}

/* Open the region's `terms` if they are there (*adopted), else make all three files. Then map `terms`. 0 or -errno. */
static int adopt_or_create(struct sp_region_owner *owner, const char *directory, uint32_t grant_count, bool *adopted) {
  int fd = open_in(directory, SP_TERMS_FILE, O_RDWR);
  *adopted = fd >= 0;
  if (fd == -ENOENT)
    fd = create_files(directory, grant_count);
  return fd < 0 ? fd : map_terms(owner, fd, grant_count);
}

/* Open the region in `directory` for the agent, or make one for a share of `grant_count` devices. `owner` is filled.
 * Returns 1 when the files were there, 0 when they were made, or -errno: then nothing is open. */
int sp_region_create(struct sp_region_owner *owner, const char *directory, uint32_t grant_count) {
  memset(owner, 0, sizeof *owner);
  owner->slots_fd = owner->doorbell_fd = -1;
  if (grant_count == 0 || grant_count > SP_DEVICES_MAX)
    return -EINVAL;
  bool adopted = false;
  int error = adopt_or_create(owner, directory, grant_count, &adopted);
  if (!error) {
    /* It is read at every turn, so its access time should not be updated (only its owner may ask for that). */
    owner->slots_fd = open_in(directory, SP_SLOTS_FILE, O_RDWR | O_NOATIME);
    if (owner->slots_fd == -EPERM)
      owner->slots_fd = open_in(directory, SP_SLOTS_FILE, O_RDWR);
    if (owner->slots_fd < 0)
      error = owner->slots_fd;
  }
  if (!error) {
    /* O_RDWR: the FIFO never reports hang-up, and opening it does not wait for a writer. */
    owner->doorbell_fd = open_in(directory, SP_DOORBELL_FILE, O_RDWR | O_NONBLOCK);
    if (owner->doorbell_fd < 0)
      error = owner->doorbell_fd;
  }
  if (error) {
    sp_region_close(owner);
    return error;
  }
  return adopted ? 1 : 0;
}

/* The whole file `terms`, as read_terms copies it. */
struct terms_file {
  struct sp_header header;
  struct sp_grant grants[SP_DEVICES_MAX];
};
_Static_assert(sizeof(struct terms_file) == SP_TERMS_BYTES, "the file has nothing else");

/* Copy `terms` and check them. 0 or -errno; -EPROTO: the file is too short, or has another ABI. */
static int read_terms(const char *directory, struct terms_file *file) {
  int fd = open_in(directory, SP_TERMS_FILE, O_RDONLY);
  if (fd < 0)
    return fd;
  ssize_t got = pread(fd, file, sizeof *file, 0);
  int error = got < 0 ? -errno : got == (ssize_t)sizeof *file ? sp_header_check(&file->header) : -EPROTO;
  close(fd);
  return error;
}

/* Tell an agent that has no record of a share what its region says: of each device the terms, into `found`, which has
 * room for SP_DEVICES_MAX. Returns how many devices the share has; -errno: the region cannot be used. */
int sp_region_terms(const char *directory, struct sp_found *found) {
  struct terms_file file;
  int error = read_terms(directory, &file);
  if (error)
    return error;
  for (uint32_t index = 0; index < file.header.grant_count; index++) {
    const struct sp_grant *grant = &file.grants[index];
    found[index] = (struct sp_found){.terms = {.device = -1,
                                               .request_millipercent = grant->request_millipercent,
                                               .limit_millipercent = grant->limit_millipercent,
                                               .share_class = grant->share_class,
                                               .memory_limit_bytes = grant->memory_limit_bytes},
                                     .paused = grant->flags & SP_GRANT_PAUSED ? 1 : 0};
    memcpy(found[index].uuid, grant->uuid, SP_UUID_BYTES - 1);
  }
  return (int)file.header.grant_count;
}

/* Is the region in use? 2: a process holds a slot's lock; 1: a slot is claimed, but none is locked; 0: no slot is
 * claimed, or `slots` cannot be opened. */
int sp_region_tenants(const char *directory) {
  int fd = open_in(directory, SP_SLOTS_FILE, O_RDONLY);
  if (fd < 0)
    return 0;
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET}; /* of any slot, and of any ABI */
  bool locked = !fcntl(fd, F_GETLK, &lock) && lock.l_type != F_UNLCK;
  struct sp_slots_header header = {0};
  ssize_t got = pread(fd, &header, sizeof header, 0);
  bool claimed = got == (ssize_t)sizeof header && memchr(header.claimed, 1, sizeof header.claimed);
  close(fd);
  return locked ? 2 : claimed ? 1 : 0;
}

/* Can a hook use the region in `directory`? 0 if all three files are there and whole; else the -errno that says why
 * not. */
int sp_region_error(const char *directory) {
  struct terms_file file;
  struct stat status;
  int error = read_terms(directory, &file), fd;
  fd = error ? -1 : open_in(directory, SP_SLOTS_FILE, O_RDONLY);
  if (error || fd < 0)
    return error ? error : fd;
  if (fstat(fd, &status))
    error = -errno;
  else if (status.st_size < (off_t)SP_SLOTS_BYTES)
    error = -EPROTO;
  close(fd);
  if (error)
    return error;
  /* The doorbell is not opened: while it is open for reading, it seems that an agent reads it. */
  char bell[PATH_MAX];
  error = path_of(bell, directory, SP_DOORBELL_FILE);
  if (error)
    return error;
  if (lstat(bell, &status))
    return errno == ENOENT ? -EPIPE : -errno;
  return S_ISFIFO(status.st_mode) ? 0 : -EPIPE;
}

/* Drop, unmap and close what sp_region_create has opened. The files stay. */
void sp_region_close(struct sp_region_owner *owner) {
  sp_guard_drop(&owner->guard);
  if (owner->header)
    munmap(owner->header, SP_TERMS_BYTES);
  if (owner->slots_fd >= 0)
    close(owner->slots_fd);
  if (owner->doorbell_fd >= 0)
    close(owner->doorbell_fd);
  memset(owner, 0, sizeof *owner);
  owner->slots_fd = owner->doorbell_fd = -1;
}
