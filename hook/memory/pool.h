/*
 * Pools: stream-ordered allocations and executable graphs get their memory from them.
 *
 * A pool takes the device's memory, and not the single allocation: it grows by chunks, keeps what is freed, and returns
 * it at a time of its own choice. So a pool is charged with what it has reserved, which the driver tells after every
 * allocation. Before an allocation, the most that the pool may grow by is reserved.
 */
#ifndef SHAREPOD_MEMORY_POOL_H
#define SHAREPOD_MEMORY_POOL_H

#include "hook/memory/charge.h"

struct sp_pool; /* never freed */

/* The entry of a driver's pool; the handle NULL names the graphs' pool. Returns NULL if the driver cannot tell what its
 * pools hold, or if the table is full: then allocations are charged one by one. */
struct sp_pool *sp_pool_of(int device_ordinal, CUmemoryPool handle);
/* Never charge this pool: it is of host memory, or another process is charged for it. */
void sp_pool_unpaid(CUmemoryPool handle);
bool sp_pool_is_unpaid(const struct sp_pool *pool);
/* Ask what the pool holds and correct its charge. Called after a trim, or a change of its release threshold. */
void sp_pool_refresh(CUmemoryPool handle);
/* Ask what each pool of the device holds and correct its charge: the graphs' pool has no handle to name it. */
void sp_pools_refresh_graphs(int device_ordinal);
/* Called before the driver is told to destroy the pool, and if it refuses. */
void sp_pool_closing(CUmemoryPool handle);
void sp_pool_stays(CUmemoryPool handle);
/* The driver has destroyed the pool, except for memory that is still allocated. */
void sp_pool_destroyed(CUmemoryPool handle);

/* An allocation under way. */
struct sp_growth {
  struct sp_pool *pool;
  uint64_t bytes;    /* the allocation's size; 0 for a graph */
  uint64_t reserved; /* by how many bytes the pool may grow for it */
};

/* Reserve for an allocation. False: over the cap, nothing has changed. */
bool sp_pool_begin(struct sp_growth *growth, struct sp_pool *pool, uint64_t bytes);
/* Reserve for a graph, without counting on memory that the pool keeps: another graph may be using it. */
bool sp_pool_begin_whole(struct sp_growth *growth, struct sp_pool *pool, uint64_t bytes);
/* The driver has allocated: correct the charge to what the pool holds now. False: it has grown past the cap; the caller
 * must free the allocation, then call sp_pool_undone. */
bool sp_pool_grown(struct sp_growth *growth);
/* The allocation was not made: end its reservation. If `allocated`, it was made, and freed again because sp_pool_grown
 * refused it: then the pools return what they do not use. */
void sp_pool_undone(const struct sp_growth *growth, bool allocated);
int sp_pool_device(const struct sp_pool *pool);

#endif
