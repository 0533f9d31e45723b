/* Memory pools: chunks, their free spans, allocations, and frees in streams. */
#define _GNU_SOURCE
#include "simgpu/memory/pool.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT      512u
#define CHUNK          (32ull << 20) /* a pool grows by multiples of this, also when less is left on the device */
#define FILE_BYTES     (1ull << 50)  /* of a pool's file, which is sparse */
#define ALLOCATION_MAX (1ull << 48)  /* more than the address space of a process */

pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools; /* pools that have chunks or may get some */

/* The first multiple of `to` that is not below `bytes`. */
static uint64_t round_up(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

/* Make a pool and add it to the list. With `handle_types` it has a file, which other processes can map. NULL: it
 * failed. */
struct pool *pool_new(uint32_t device, int location, int handle_types, uint64_t max_bytes) {
  struct pool *pool = handle_new(POOL_HANDLE, sizeof *pool);
  if (!pool)
    return NULL;
  pool->device = device;
  pool->location = location;
  pool->handle_types = handle_types;
  pool->max_bytes = max_bytes;
  pool->fd = -1;
  for (int n = 0; n < 3; n++)
    pool->reuse[n] = 1;
  if (device != SG_NONE)
    pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  struct exported exported = {.magic = EXPORTED_MAGIC,
                              .kind = EXPORTED_POOL,
                              .device = device == SG_NONE ? 0 : device,
                              .bytes = FILE_BYTES,
                              .location = location,
                              .max_bytes = max_bytes};
  if (handle_types) {
    pool->fd = exported_file("simgpu-pool", FILE_BYTES, &exported);
    if (pool->fd < 0) {
      handle_free(pool);
      return NULL;
    }
  }
  pthread_mutex_lock(&pools_lock);
  pool->next = pools;
  pools = pool;
  pthread_mutex_unlock(&pools_lock);
  return pool;
}

/* --- chunks ------------------------------------------------------------------------------------------------------ */

/* With the lock: add a free chunk to a pool, mapped at `offset` of the pool's file if it has one; NULL: it failed. The
 * chunk is not charged. */
struct chunk *pool_chunk(struct pool *pool, uint64_t offset, uint64_t bytes) {
  struct chunk *chunk = calloc(1, sizeof *chunk);
  struct span *span = calloc(1, sizeof *span);
  void *at = pool->fd >= 0
                 ? file_map(NULL, pool->fd, offset, bytes)
                 : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!chunk || !span || !at || at == MAP_FAILED) {
    if (at && at != MAP_FAILED)
      munmap(at, bytes);
    free(chunk);
    free(span);
    return NULL;
  }
  span->bytes = bytes;
  *chunk = (struct chunk){.pool = pool, .address = (uintptr_t)at, .bytes = bytes, .offset = offset, .free = span};
  struct chunk **link = &pool->chunks;
  while (*link)
    link = &(*link)->next;
  *link = chunk;
  return chunk;
}

/* With the lock: end the chunk in *link, and take it off the list. An imported chunk counts for its exporter, so it is
 * only unmapped. */
static void drop_chunk(struct chunk **link) {
  struct chunk *chunk = *link;
  struct pool *pool = chunk->pool;
  *link = chunk->next;
  munmap((void *)chunk->address, chunk->bytes);
  if (!pool->imported) {
    if (pool->fd >= 0)
      file_forget(pool->fd, chunk->offset, chunk->bytes);
    pool->reserved -= chunk->bytes;
    if (pool->device != SG_NONE)
      refund_process(pool->device, SG_POOLS, chunk->bytes);
  }
  for (struct span *span = chunk->free; span;) {
    struct span *next = span->next;
    free(span);
    span = next;
  }
  free(chunk);
}

/* With the lock: drop unused chunks while more than `keep` bytes are reserved. Return the bytes given back. */
uint64_t pool_trim(struct pool *pool, uint64_t keep) {
  uint64_t before = pool->reserved;
  for (struct chunk **link = &pool->chunks; *link && pool->reserved > keep;)
    if ((*link)->used)
      link = &(*link)->next;
    else
      drop_chunk(link);
  return before - pool->reserved;
}

/* With the lock: end the pool if it is destroyed and no allocation is left. The caller does not use it afterwards. */
void pool_end(struct pool *pool) {
  if (!pool->destroyed || pool->used)
    return;
  while (pool->chunks)
    drop_chunk(&pool->chunks);
  for (struct pool **link = &pools; *link; link = &(*link)->next)
    if (*link == pool) {
      *link = pool->next;
      break;
    }
  if (pool->fd >= 0)
    close(pool->fd);
  pool->handle.type = POOL_HANDLE; /* destroying it took the type away */
  handle_free(pool);
}

/* With the lock: give all unused chunks of the device's pools back. False: there were none. */
static bool trim_device(uint32_t device) {
  uint64_t given = 0;
  for (struct pool *pool = pools; pool; pool = pool->next)
    if (pool->device == device && !pool->imported)
      given += pool_trim(pool, 0);
  return given;
}

/* Give all unused chunks of the device's pools back. False: there were none. */
bool pools_give_back(uint32_t device) {
  pthread_mutex_lock(&pools_lock);
  bool given = trim_device(device);
  pthread_mutex_unlock(&pools_lock);
  return given;
}

/* A stream, an event or a context was waited for. CUDA then shrinks a pool to its release threshold. */
void pools_synchronized(void) {
  pthread_mutex_lock(&pools_lock);
  for (struct pool *pool = pools; pool; pool = pool->next)
    if (!pool->imported)
      pool_trim(pool, pool->threshold);
  pthread_mutex_unlock(&pools_lock);
}

/* With the lock: add a chunk of `bytes` bytes and charge it; NULL: it does not fit, in the pool or on the device. */
static struct chunk *grow_by(struct pool *pool, uint64_t bytes) {
  bool counted = pool->device != SG_NONE;
  if (pool->max_bytes && pool->reserved + bytes > pool->max_bytes)
    return NULL;
  if (counted && !try_charge(pool->device, SG_POOLS, bytes))
    return NULL;
  struct chunk *chunk = pool_chunk(pool, pool->file_end, bytes);
  if (!chunk) {
    if (counted)
      refund_process(pool->device, SG_POOLS, bytes);
    return NULL;
  }
  pool->file_end += pool->fd >= 0 ? bytes : 0;
  pool->reserved += bytes;
  pool->reserved_high = pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
  return chunk;
}

/* With the lock: add a chunk that holds `bytes` bytes. While it does not fit, the device's pools give back what they do
 * not use. NULL: it does not fit even then. */
static struct chunk *grow(struct pool *pool, uint64_t bytes) {
  struct chunk *chunk;
  do {
    chunk = grow_by(pool, round_up(bytes, CHUNK));
  } while (!chunk && pool->device != SG_NONE && trim_device(pool->device));
  return chunk;
}

/* --- parts of chunks --------------------------------------------------------------------------------------------- */

/* Take the front of the first free span that is long enough. False: none is. */
static bool take_span(struct chunk *chunk, uint64_t bytes, uint64_t *offset) {
  for (struct span **link = &chunk->free; *link; link = &(*link)->next) {
    struct span *span = *link;
    if (span->bytes < bytes)
      continue;
    *offset = span->offset;
    span->offset += bytes;
    span->bytes -= bytes;
    chunk->used += bytes;
    if (!span->bytes) {
      *link = span->next;
      free(span);
    }
    return true;
  }
  return false;
}

/* Add a free span, joined with the ones that it touches: no two spans of the list are adjacent. */
static void add_span(struct chunk *chunk, uint64_t offset, uint64_t bytes) {
  struct span **link = &chunk->free, *before = NULL;
  while (*link && (*link)->offset < offset) {
    before = *link;
    link = &before->next;
  }
  struct span *after = *link;
  if (before && before->offset + before->bytes == offset) {
    before->bytes += bytes;
    if (after && before->offset + before->bytes == after->offset) {
      before->bytes += after->bytes;
      before->next = after->next;
      free(after);
    }
  } else if (after && offset + bytes == after->offset) {
    after->offset = offset;
    after->bytes += bytes;
  } else if ((*link = malloc(sizeof **link))) {
    **link = (struct span){.offset = offset, .bytes = bytes, .next = after};
  } else { /* no memory to record the span: it stays unused until the chunk goes */
    *link = after;
  }
}

/* With the lock: free a part of a chunk. A destroyed pool, with its chunks, ends when its last part is freed. Only the
 * exporter of an imported chunk knows its free spans, so none is added here. */
static void free_span(struct chunk *chunk, uint64_t offset, uint64_t bytes) {
  struct pool *pool = chunk->pool;
  chunk->used -= bytes;
  pool->used -= bytes;
  if (!pool->imported)
    add_span(chunk, offset, bytes);
  pool_end(pool);
}

/* With the lock: take memory that this stream freed, although the stream has not reached the free yet: its later work
 * does not overtake its earlier work. NULL: there is none that is long enough. */
static struct chunk *take_pending(struct pool *pool, uint64_t bytes, const struct stream *stream, uint64_t *offset) {
  for (struct pending **link = &pool->pending; *link; link = &(*link)->next) {
    struct pending *pending = *link;
    struct chunk *chunk = pending->chunk;
    if (pending->context != stream->context || pending->lane != stream->lane || pending->bytes < bytes)
      continue;
    *offset = pending->offset;
    pending->offset += bytes;
    pending->bytes -= bytes;
    if (!pending->bytes) {
      *link = pending->next;
      pending->chunk = NULL;
    }
    return chunk;
  }
  return NULL;
}

/* With the lock: take `bytes` bytes of the pool, from a new chunk if no old one has room. NULL: they do not fit. */
static struct chunk *take(struct pool *pool, uint64_t bytes, const struct stream *stream, uint64_t *offset) {
  struct chunk *chunk = take_pending(pool, bytes, stream, offset);
  if (chunk)
    return chunk; /* a pending free still counts as used */
  for (chunk = pool->chunks; chunk; chunk = chunk->next)
    if (take_span(chunk, bytes, offset))
      break;
  if (!chunk && (chunk = grow(pool, bytes)))
    take_span(chunk, bytes, offset);
  if (chunk) {
    pool->used += bytes;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
  }
  return chunk;
}

/* Allocate from a pool, in the order of a stream. Only the exporter of an imported pool allocates from it. */
CUresult pool_allocate(struct pool *pool, size_t bytes, const struct stream *stream, CUdeviceptr *out) {
  if (!bytes || !out || pool->imported)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > ALLOCATION_MAX)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t offset, length = round_up(bytes, ALIGNMENT);
  pthread_mutex_lock(&pools_lock);
  struct chunk *chunk = take(pool, length, stream, &offset);
  if (chunk) {
    struct block block = {.address = chunk->address + offset,
                          .bytes = bytes,
                          .device = pool->device == SG_NONE ? stream->context->device : pool->device,
                          .kind = pool->device == SG_NONE ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                          .source = BLOCK_POOL,
                          .in_file = pool->fd >= 0,
                          .owner = chunk};
    if (add_block(block)) {
      *out = block.address;
      result = CUDA_SUCCESS;
    } else {
      free_span(chunk, offset, length);
    }
  }
  pthread_mutex_unlock(&pools_lock);
  return result;
}

/* With the lock: add an allocation of the exporter. It has chosen the span, so this process only counts what is used.
 * False: there is no memory. */
bool pool_import(struct chunk *chunk, uint64_t offset, size_t bytes) {
  struct pool *pool = chunk->pool;
  struct block block = {.address = chunk->address + offset,
                        .bytes = bytes,
                        .device = pool->device == SG_NONE ? 0 : pool->device,
                        .kind = pool->device == SG_NONE ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                        .source = BLOCK_POOL,
                        .in_file = true,
                        .owner = chunk};
  if (!add_block(block))
    return false;
  chunk->used += round_up(bytes, ALIGNMENT);
  pool->used += round_up(bytes, ALIGNMENT);
  return true;
}

/* Free memory of a pool at once. The block has been taken off the map. */
void pool_release(const struct block *block) {
  struct chunk *chunk = block->owner;
  pthread_mutex_lock(&pools_lock);
  free_span(chunk, block->address - chunk->address, round_up(block->bytes, ALIGNMENT));
  pthread_mutex_unlock(&pools_lock);
}

/* The pool of a block; NULL: it is in none. */
struct pool *pool_of(const struct block *block) {
  return block->source == BLOCK_POOL ? ((struct chunk *)block->owner)->pool : NULL;
}

/* --- frees in streams -------------------------------------------------------------------------------------------- */

/* Note that a pool's memory is freed in a stream; NULL: there is no memory. The caller sees to it that
 * pool_got_there runs when the stream reaches the free. */
struct pending *pool_pend(const struct block *block, const struct stream *stream) {
  struct pending *pending = malloc(sizeof *pending);
  struct chunk *chunk = block->owner;
  if (!pending)
    return NULL;
  pthread_mutex_lock(&pools_lock);
  *pending = (struct pending){.chunk = chunk,
                              .offset = block->address - chunk->address,
                              .bytes = round_up(block->bytes, ALIGNMENT),
                              .context = stream->context,
                              .lane = stream->lane,
                              .next = chunk->pool->pending};
  chunk->pool->pending = pending;
  pthread_mutex_unlock(&pools_lock);
  return pending;
}

/* With the lock: carry out a pending free: free what later allocations have not taken of it. The record itself stays,
 * off its pool's list. */
static void free_pending(struct pending *pending) {
  struct chunk *chunk = pending->chunk;
  for (struct pending **link = &chunk->pool->pending; *link; link = &(*link)->next)
    if (*link == pending) {
      *link = pending->next;
      break;
    }
  pending->chunk = NULL;
  free_span(chunk, pending->offset, pending->bytes);
}

/* The stream has reached the free, or never will: free the memory and the record. */
void pool_got_there(void *data) {
  struct pending *pending = data;
  pthread_mutex_lock(&pools_lock);
  if (pending->chunk)
    free_pending(pending);
  pthread_mutex_unlock(&pools_lock);
  free(pending);
}

/* A context has ended: free what its streams would have freed. The records themselves stay, because another thread may
 * be about to call pool_got_there with one. */
void pools_forget(const struct context *context) {
  pthread_mutex_lock(&pools_lock);
  for (struct pool *pool = pools, *next; pool; pool = next) {
    next = pool->next; /* the pool may end here */
    for (struct pending *pending = pool->pending, *after; pending; pending = after) {
      after = pending->next;
      if (pending->context == context)
        free_pending(pending);
    }
  }
  pthread_mutex_unlock(&pools_lock);
}
