/* Memory with a file behind it: for memory that processes share or that is mapped at several addresses. */
#define _GNU_SOURCE
#include "simgpu/api/process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARENA_BYTES (1ll << 56)
#define PAGE        4096u

/* Make a file in memory of `bytes` bytes; only written pages take memory. The descriptor is a high number, away from
 * programs that close the descriptors they know of. A direct system call: glibc has a function for it only since 2.27.
 */
int memory_file(const char *name, uint64_t bytes) {
  int low = (int)syscall(SYS_memfd_create, name, 1u /* MFD_CLOEXEC */);
  if (low < 0)
    return -1;
  int high = fcntl(low, F_DUPFD_CLOEXEC, 512);
  if (high >= 0)
    close(low);
  int fd = high < 0 ? low : high;
  if (!ftruncate(fd, (off_t)bytes))
    return fd;
  close(fd);
  return -1;
}

/* Take a place in the common file, for all memory that is not exported alone. Places are never used twice: the file is
 * sparse, and long enough. */
int arena_take(uint64_t bytes, uint64_t *offset) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static uint64_t next; /* guarded by lock */
  static int fd = -1;
  pthread_mutex_lock(&lock);
  if (fd < 0)
    fd = memory_file("simgpu", ARENA_BYTES);
  *offset = next;
  next += (bytes + PAGE - 1) / PAGE * PAGE;
  pthread_mutex_unlock(&lock);
  return fd;
}

/* Free pages of a file: from now on they read as zero in every process that has mapped them. */
void file_forget(int fd, uint64_t offset, uint64_t bytes) {
  if (bytes)
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

void *file_map(void *at, int fd, uint64_t offset, uint64_t bytes) {
  int flags = MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED : 0);
  void *address = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
  return address == MAP_FAILED ? NULL : address;
}

/* --- the page behind an exported file's bytes, which describes it --------------------------------------------------
 */

int exported_file(const char *name, uint64_t bytes, const struct exported *exported) {
  int fd = memory_file(name, bytes + PAGE);
  if (fd >= 0 && !exported_write(fd, exported)) {
    close(fd);
    return -1;
  }
  return fd;
}

bool exported_write(int fd, const struct exported *exported) {
  return pwrite(fd, exported, sizeof *exported, (off_t)exported->bytes) == (ssize_t)sizeof *exported;
}

bool exported_read(int fd, enum exported_kind kind, struct exported *exported) {
  struct stat info;
  return !fstat(fd, &info) && info.st_size > PAGE &&
         pread(fd, exported, sizeof *exported, info.st_size - PAGE) == (ssize_t)sizeof *exported &&
         exported->magic == EXPORTED_MAGIC && exported->kind == kind &&
         exported->bytes == (uint64_t)info.st_size - PAGE && exported->device < SG_MAX_DEVICES;
}
