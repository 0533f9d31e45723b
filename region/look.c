/* Reads a region for a process that asks about its share but has no slot in it, as nvidia-smi does in a container. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "region/region.h"
#include "region/uncancelled.h"

/* Copy the first `bytes` of the file `name` in `directory`, a descriptor, into new memory. MAP_FAILED: *error says why,
 * and is -EPROTO if the file is too short. A mapping would not do, because the process that asks has no guard. */
static void *read_whole(int directory, const char *name, size_t bytes, int *error) {
  int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) {
    *error = -errno;
    return MAP_FAILED;
  }
  void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *error = copy == MAP_FAILED ? -errno : 0;
  if (!*error && pread(fd, copy, bytes, 0) != (ssize_t)bytes) {
    munmap(copy, bytes);
    copy = MAP_FAILED;
    *error = -EPROTO;
  }
  close(fd);
  return copy;
}

/* Copy the region in the directory `path` into `region`, which gets no slot and no descriptors. sp_region_unlook frees
 * the copies. 0, or -errno: nothing was kept. */
int sp_region_look(struct sp_region *region, const char *path) {
  SP_UNCANCELLED;
  memset(region, 0, sizeof *region);
  region->slots_fd = region->doorbell_fd = -1;
  int directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC); /* other users may pass through it, but not read it */
  if (directory < 0)
    return -errno;
  int error;
  void *slots = MAP_FAILED, *terms = read_whole(directory, SP_TERMS_FILE, SP_TERMS_BYTES, &error);
  if (!error)
    error = sp_header_check(terms);
  if (!error)
    slots = read_whole(directory, SP_SLOTS_FILE, SP_SLOTS_BYTES, &error);
  close(directory);
  if (error) {
    if (terms != MAP_FAILED)
      munmap(terms, SP_TERMS_BYTES);
    return error;
  }
  region->header = terms;
  region->grants = (const struct sp_grant *)((const char *)terms + sizeof(struct sp_header));
  region->claims = slots;
  region->slots = (struct sp_slot *)((char *)slots + sizeof(struct sp_slots_header));
  return 0;
}

/* Free the copies that a successful sp_region_look has made. */
void sp_region_unlook(struct sp_region *region) {
  munmap((void *)(uintptr_t)region->header, SP_TERMS_BYTES);
  munmap(region->claims, SP_SLOTS_BYTES);
}
