/* Linear memory that another process maps: it moves into the arena's file, and the handle tells its place there.
 * CUDA's documentation tells what the exported functions do; a comment at one tells only what is special here. */
#define _GNU_SOURCE
#include "simgpu/api/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define IPC_MAGIC 0x63706975706773ull
#define PAGE      4096u
#define STEP      (4096u * PAGE) /* bytes examined in one go */

/* What a handle holds: where other processes find the bytes, in a file that the owner has open. */
struct place {
  uint64_t magic;
  struct sg_owner owner;
  int32_t fd;                 /* the owner's descriptor */
  uint64_t file;              /* inode: the descriptor's number may mean another file by now */
  uint64_t offset, bytes, id; /* id: of the block */
  uint32_t device, reserved;
};
_Static_assert(sizeof(struct place) <= sizeof(CUipcMemHandle), "cuda.h");

/* The memory that this process has opened; guarded by lock. */
struct opened {
  struct place place;
  uintptr_t address;
  uint64_t block; /* id of its block: the end of the context may have removed it */
  uint32_t references;
  struct opened *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *opened;

/* Copy memory into a file. Only touched pages are copied: the others read as zero there anyway. False: it failed. */
static bool copy_touched(const char *from, uint64_t bytes, int fd, uint64_t offset) {
  for (uint64_t at = 0; at < bytes; at += STEP) {
    unsigned char resident[STEP / PAGE];
    uint64_t length = bytes - at < STEP ? bytes - at : STEP;
    if (mincore((void *)(uintptr_t)(from + at), length, resident))
      return false;
    for (uint64_t n = 0; n * PAGE < length; n++)
      if (resident[n] & 1 && pwrite(fd, from + at + n * PAGE, PAGE, (off_t)(offset + at + n * PAGE)) != PAGE)
        return false;
  }
  return true;
}

/* Move the bytes of a block into the arena, where other processes can map them. Its address stays. The caller holds
 * back effects on memory, so that none writes to the block meanwhile. False: it failed. */
static bool move_to_file(struct block *block) {
  uint64_t offset;
  int fd = arena_take(block->bytes, &offset);
  if (fd < 0 || !copy_touched((const char *)block->address, block->bytes, fd, offset) ||
      !file_map((void *)block->address, fd, offset, block->bytes))
    return false;
  block->in_file = true;
  block->fd = fd;
  block->offset = offset;
  change_block(block);
  return true;
}

/* The first handle of a block moves its bytes into the arena. Effects on memory wait meanwhile: what they write could
 * get lost. `lock` keeps a second thread from moving the block again. */
EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
  struct context *context;
  struct block block;
  struct stat info;
  CUresult result = enter(&context);
  if (result)
    return result;
  hold_effects(true);
  pthread_mutex_lock(&lock);
  if (!out || !find_block(address, &block) || block.address != address || block.source != BLOCK_LINEAR || block.graph ||
      block.kind != CU_MEMORYTYPE_DEVICE)
    result = CUDA_ERROR_INVALID_VALUE;
  else if ((!block.in_file && !move_to_file(&block)) || fstat(block.fd, &info))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_unlock(&lock);
  hold_effects(false);
  if (result)
    return result;
  struct place place = {.magic = IPC_MAGIC,
                        .owner = process.state.owner, /* known: the process has a context */
                        .fd = block.fd,
                        .file = info.st_ino,
                        .offset = block.offset,
                        .bytes = block.bytes,
                        .id = block.id,
                        .device = block.device};
  memset(out, 0, sizeof *out);
  memcpy(out, &place, sizeof place);
  return CUDA_SUCCESS;
}

/* Map memory of another process, through its descriptor in /proc. NULL: the process has ended or is not seen here, or
 * the descriptor's number means another file by now. */
static void *map(const struct place *place) {
  char path[64];
  struct stat info;
  sg_lock(&process.state);
  int32_t pid = sg_seen_pid(&process.state, &place->owner);
  sg_unlock(&process.state);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, place->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return NULL;
  void *at = fstat(fd, &info) || info.st_ino != place->file ? NULL : file_map(NULL, fd, place->offset, place->bytes);
  close(fd);
  return at;
}

/* With the lock: the entry of a place, or if `place` is NULL of an address. NULL: there is none. Entries with a block
 * that no longer exists are freed on the way. */
static struct opened *find_opened(const struct place *place, uintptr_t address) {
  struct block block;
  for (struct opened **link = &opened; *link;) {
    struct opened *entry = *link;
    if (!find_block(entry->address, &block) || block.id != entry->block) {
      *link = entry->next;
      free(entry);
      continue;
    }
    if (place ? !memcmp(&entry->place, place, sizeof *place) : entry->address == address)
      return entry;
    link = &entry->next;
  }
  return NULL;
}

/* With the lock: map a place that has no entry yet, as a block of the context, and make its entry. */
static CUresult open_new(const struct place *place, struct context *context, CUdeviceptr *out) {
  struct opened *entry = calloc(1, sizeof *entry);
  void *at = entry ? map(place) : NULL;
  struct block block = {.address = (uintptr_t)at,
                        .bytes = place->bytes,
                        .context = context,
                        .device = place->device,
                        .kind = CU_MEMORYTYPE_DEVICE,
                        .source = BLOCK_IPC,
                        .in_file = true};
  if (!at || !add_block(block) || !find_block(block.address, &block)) {
    if (at)
      munmap(at, place->bytes);
    free(entry);
    return at ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE;
  }
  *entry =
      (struct opened){.place = *place, .address = block.address, .block = block.id, .references = 1, .next = opened};
  opened = entry;
  *out = block.address;
  return CUDA_SUCCESS;
}

/* The memory already counts, on the exporter's account. The exporter may not open it, as with the real driver. */
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) {
  struct context *context;
  struct place place;
  CUresult result = enter(&context);
  memcpy(&place, &handle, sizeof place);
  if (result || !out || flags > 1) /* 1: CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (place.magic != IPC_MAGIC || place.device >= process.state.shared->device_count)
    return CUDA_ERROR_INVALID_HANDLE;
  if (place.owner.id == process.state.owner.id)
    return CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_lock(&lock);
  struct opened *entry = find_opened(&place, 0);
  if (entry) {
    entry->references++;
    *out = entry->address;
  } else {
    result = open_new(&place, context, out);
  }
  pthread_mutex_unlock(&lock);
  return result;
}
EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) {
  return cuIpcOpenMemHandle_v2(out, handle, flags);
}

/* Wait for the work of the current context. With the last reference the memory is unmapped. */
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  struct context *context;
  struct block block;
  CUresult result = enter(&context);
  if (!result)
    result = wait_context(context);
  if (result)
    return result;
  pthread_mutex_lock(&lock);
  struct opened *entry = find_opened(NULL, address);
  if (!entry)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (!--entry->references && take_block(address, &block))
    release_block(&block); /* the next walk of the list removes the entry */
  pthread_mutex_unlock(&lock);
  return result;
}
