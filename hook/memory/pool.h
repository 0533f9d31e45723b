/*
 * Pools: what stream-ordered allocations come from, and what executable graphs allocate from.
 *
 * The device's memory is taken by the pool, not by the allocation: a pool grows by chunks of its own size, keeps what
 * is freed, and gives it back when it likes. So a pool is charged with what it has reserved, as the driver tells
 * after every allocation. Before one, what it may grow by is reserved.
 */
#ifndef SHAREPOD_MEMORY_POOL_H
#define SHAREPOD_MEMORY_POOL_H

#include "hook/memory/charge.h"

struct sp_pool; /* of this process, never freed */

/* The entry of a pool of the driver's; a graph's pool is named by NULL. NULL: the driver cannot tell what its pools
 * hold, or the table is full; then allocations are charged one by one. */
struct sp_pool *sp_pool_of(int device_ordinal, CUmemoryPool handle);
/* A pool of host memory, or of another process that pays for it: never charged here. */
void sp_pool_unpaid(CUmemoryPool handle);
bool sp_pool_is_unpaid(const struct sp_pool *pool);
/* Ask what it holds and correct its charge: after a trim or another threshold. */
void sp_pool_refresh(CUmemoryPool handle);
void sp_pools_refresh_graphs(int device_ordinal);
/* The driver has destroyed it, but for what is still allocated. */
void sp_pool_destroyed(CUmemoryPool handle);

/* One allocation on its way. */
struct sp_growth {
  struct sp_pool *pool;
  uint64_t bytes;  /* of the allocation */
  uint64_t growth; /* reserved for what the pool may grow by */
};

/* False: over the cap, nothing changed. */
bool sp_pool_begin(struct sp_growth *growth, struct sp_pool *pool, uint64_t bytes);
/* The same for a graph: whatever the pool keeps may be in use by another one. */
bool sp_pool_begin_whole(struct sp_growth *growth, struct sp_pool *pool, uint64_t bytes);
/* The driver has allocated: settle with what the pool holds now. False: it grew past the cap; the allocation has to go
 * back, and then sp_pool_undone has to be called. */
bool sp_pool_grown(struct sp_growth *growth);
void sp_pool_undone(const struct sp_growth *growth, bool allocated);
int sp_pool_device(const struct sp_pool *pool);

#endif
