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

/* Make a file of `bytes` bytes in memory, of which only written pages take memory. Return its descriptor, or -1. The
 * descriptor is a high number, because some programs close all low ones. */
int memory_file(const char *name, uint64_t bytes) {
  int low = (int)syscall(SYS_memfd_create, name, 1u /* MFD_CLOEXEC */); /* glibc has a function only since 2.27 */
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

/* Take `bytes` bytes of the arena, the common file of all memory that has no file of its own. Return the descriptor, or
 * -1. No offset is given out twice: the file is sparse, and long enough. */
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

/* Map bytes of a file at `at`, over what is mapped there; anywhere if `at` is NULL. Returns NULL if it failed. */
void *file_map(void *at, int fd, uint64_t offset, uint64_t bytes) {
  int flags = MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED : 0);
  void *address = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
  return address == MAP_FAILED ? NULL : address;
}

/* --- the page behind an exported file's bytes, which describes it ------------------------------------------------ */

/* Make a file of `bytes` bytes, with a page behind them that describes it to other processes. Return its descriptor, or
 * -1. */
int exported_file(const char *name, uint64_t bytes, const struct exported *exported) {
  int fd = memory_file(name, bytes + PAGE);
  if (fd >= 0 && !exported_write(fd, exported)) {
    close(fd);
    return -1;
  }
  return fd;
}

/* Write the description behind the bytes. False: it failed. */
bool exported_write(int fd, const struct exported *exported) {
  return pwrite(fd, exported, sizeof *exported, (off_t)exported->bytes) == (ssize_t)sizeof *exported;
}

/* Read the description at the end of a file. False: it has none, or is of another kind. */
bool exported_read(int fd, enum exported_kind kind, struct exported *exported) {
  struct stat info;
  return !fstat(fd, &info) && info.st_size > PAGE &&
         pread(fd, exported, sizeof *exported, info.st_size - PAGE) == (ssize_t)sizeof *exported &&
         exported->magic == EXPORTED_MAGIC && exported->kind == kind &&
         exported->bytes == (uint64_t)info.st_size - PAGE && exported->device < SG_MAX_DEVICES;
}
