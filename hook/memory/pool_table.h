/*
 * The table of pools, for pool.c alone. A pool's entry keeps what the driver last said that the pool holds.
 *
 * The driver is asked without the table's lock, so answers may come in another order than the questions. Questions are
 * numbered when they are asked: the answer to a later one is at least as new.
 */
#ifndef SHAREPOD_MEMORY_POOL_TABLE_H
#define SHAREPOD_MEMORY_POOL_TABLE_H

#include "hook/memory/graph.h"

#define SP_POOLS_MAX 512u

/* SP_POOL_DESTROYED: by the program, but its charge has not ended. SP_POOL_UNPAID: never charged. */
enum sp_pool_state { SP_POOL_FREE, SP_POOL_OPEN, SP_POOL_DESTROYED, SP_POOL_UNPAID };

struct sp_pool {
  CUmemoryPool handle; /* NULL: the pool of graphs */
  uint32_t state;
  int device;
  uint64_t charged;   /* what it held when the driver was last asked */
  uint64_t in_flight; /* bytes reserved for allocations under way: by that it may grow */
  uint32_t under_way; /* the number of allocations under way */
  uint64_t live;      /* the sum of its allocations */
  uint64_t grain;     /* it grows by multiples of this */
  uint64_t answered;  /* the number of the question to which `charged` is the answer */
  uint32_t asking;    /* the number of questions and trims under way */
  bool closing;       /* the program is destroying it: the driver is asked no more */
};

struct sp_pools {
  pthread_mutex_t lock; /* guards the rest; the driver is not called under it */
  uint64_t questions;   /* how many have been asked */
  uint32_t count;
  struct sp_pool pools[SP_POOLS_MAX];
};

/* Lock the pools. NULL: there are none, or with `create` no memory for them. */
struct sp_pools *sp_pools_lock(bool create);
void sp_pools_unlock(struct sp_pools *pools);
bool sp_pools_exist(void);

/* The entry of a living pool, or NULL. The graphs have a pool without a handle on each device. */
struct sp_pool *sp_pools_find(struct sp_pools *pools, int device_ordinal, CUmemoryPool handle);
/* Add an entry; NULL: there is no room. */
struct sp_pool *sp_pools_add(struct sp_pools *pools, struct sp_pool entry);

/* How much memory a pool has reserved on the device; the handle NULL names the graphs' pool. False: the driver does not
 * tell. */
bool sp_pools_ask_driver(int device_ordinal, CUmemoryPool handle, uint64_t *bytes);

/* What came of a question. LATER: one that was asked later has been answered, and `charged` is the newer value. */
enum sp_answer { SP_ANSWER_UNTOLD, SP_ANSWER_TOLD, SP_ANSWER_LATER };

/* Ask how much memory an open pool has reserved. The caller holds the lock; it is let go meanwhile, because the
 * driver's answer may wait for a call of another thread. A caller that uses the answer sets `answered` to the
 * question's number. */
enum sp_answer sp_pools_ask(struct sp_pools *pools, struct sp_pool *pool, uint64_t *bytes, uint64_t *question);

#endif
