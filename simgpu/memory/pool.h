/*
 * Memory pools: device memory in chunks, of which allocations are parts.
 *
 * A pool belongs to the process and to a device (or to the host), not to a context. What counts on the device is its
 * chunks, whether allocations are in them or not.
 */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "simgpu/api/process.h"

struct span {
  uint64_t offset, bytes;
  struct span *next;
};

struct chunk {
  struct pool *pool;
  uintptr_t address;
  uint64_t bytes, offset; /* offset: in the pool's file */
  uint64_t used;          /* what is in no free span */
  struct span *free;      /* by offset, never adjacent */
  struct chunk *next;
};

/* Freed in a stream that has not got there yet: later allocations in that stream may have it already. */
struct pending {
  struct chunk *chunk; /* NULL: nothing is left to free */
  uint64_t offset, bytes;
  const struct context *context;
  uint32_t lane;
  struct pending *next;
};

/* Guarded by the lock of pool.c, what is set once at its making apart. */
struct pool {
  struct handle handle;
  uint32_t device; /* SG_NONE: host memory */
  int location, handle_types;
  uint64_t max_bytes; /* 0: as much as there is */
  int fd;             /* -1: private memory */
  bool standard;      /* a default pool: never destroyed */
  bool imported;      /* another process's: its chunks are not ours to count */
  bool destroyed;     /* goes when its last allocation goes */
  uint64_t file_end;  /* places in the file are never used twice */
  uint64_t threshold, reserved, reserved_high, used, used_high;
  int reuse[3]; /* kept for whoever asks: memory is used again by its own stream, or when its free is done */
  unsigned access[SG_MAX_DEVICES];
  struct chunk *chunks;
  struct pending *pending;
  struct pool *next;
};

extern pthread_mutex_t pools_lock;

struct pool *pool_new(uint32_t device, int location, int handle_types, uint64_t max_bytes);
/* With the lock: a chunk of a pool that has a file, mapped from there. */
struct chunk *pool_chunk(struct pool *pool, uint64_t offset, uint64_t bytes);
/* With the lock: give free chunks back while more than `keep` bytes are reserved. Returns what was given back. */
uint64_t pool_trim(struct pool *pool, uint64_t keep);
/* With the lock: gone, once it is destroyed and empty. */
void pool_end(struct pool *pool);
CUresult pool_allocate(struct pool *pool, size_t bytes, const struct stream *stream, CUdeviceptr *out);
/* The pool that allocations of a device come from when none is named. */
struct pool *pool_current(uint32_t device);
/* With the lock: an allocation of another process, in its chunk mapped here. */
bool pool_import(struct chunk *chunk, uint64_t offset, size_t bytes);
/* A pool's memory is freed in a stream. pool_got_there is what happens when the stream gets there. */
struct pending *pool_pend(const struct block *block, const struct stream *stream);
void pool_got_there(void *pending);

#endif
