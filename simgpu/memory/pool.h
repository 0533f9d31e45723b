/*
 * Memory pools: device memory in chunks, of which allocations are parts.
 *
 * A pool belongs to the process and to a device (or to the host), not to a context. The device's count has all chunks
 * of a pool, used or not.
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
  uint64_t used;          /* bytes that lie in no free span */
  struct span *free;      /* by offset, never adjacent */
  struct chunk *next;
};

/* Memory freed in a stream that has not reached the free yet: later allocations in that stream may already use it. */
struct pending {
  struct chunk *chunk; /* NULL: nothing is left to free */
  uint64_t offset, bytes;
  const struct context *context;
  uint32_t lane;
  struct pending *next;
};

/* Guarded by the lock of pool.c, except for what is set once when it is made. */
struct pool {
  struct handle handle;
  uint32_t device; /* SG_NONE: host memory */
  int location, handle_types;
  uint64_t max_bytes; /* 0: as much as there is */
  int fd;             /* -1: private memory */
  bool standard;      /* a default pool: never destroyed */
  bool imported;      /* another process's: that process counts its chunks */
  bool destroyed;     /* goes when its last allocation goes */
  uint64_t file_end;  /* places in the file are never used twice */
  /* Bytes. reserved: of all chunks. used: of allocations, pending frees included. high: the most since a reset. */
  uint64_t threshold, reserved, reserved_high, used, used_high;
  int reuse[3]; /* only stored: memory is reused by its own stream, or after its free is done */
  unsigned access[SG_MAX_DEVICES];
  struct chunk *chunks;
  struct pending *pending;
  struct pool *next;
};

extern pthread_mutex_t pools_lock;

struct pool *pool_new(uint32_t device, int location, int handle_types, uint64_t max_bytes);
struct chunk *pool_chunk(struct pool *pool, uint64_t offset, uint64_t bytes);
uint64_t pool_trim(struct pool *pool, uint64_t keep);
void pool_end(struct pool *pool);
CUresult pool_allocate(struct pool *pool, size_t bytes, const struct stream *stream, CUdeviceptr *out);
struct pool *pool_current(uint32_t device);
/* With the lock: add an allocation of another process, in its chunk that is mapped here; false: there is no memory. */
bool pool_import(struct chunk *chunk, uint64_t offset, size_t bytes);
struct pending *pool_pend(const struct block *block, const struct stream *stream);
void pool_got_there(void *pending);

#endif
