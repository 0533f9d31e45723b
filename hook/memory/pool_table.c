/* The table of pools, and the questions to the driver about what they hold. */
#include "hook/memory/pool_table.h"

#include "region/order.h"
#include "region/uncancelled.h"

static void *shared_pools;

/* Lock the table of pools. NULL: there is none yet; with `create` it is made, and NULL means that there is no memory
 * for it. */
struct sp_pools *sp_pools_lock(bool create) {
  struct sp_pools *pools =
      create ? sp_map_wiped(&shared_pools, sizeof *pools) : sp_load_acquire((struct sp_pools **)&shared_pools);
  if (pools != NULL) {
    pthread_mutex_lock(&pools->lock);
  }
  return pools;
}

/* Is there a table of pools? It is never removed. */
bool sp_pools_exist(void) {
  return sp_load_acquire((struct sp_pools **)&shared_pools) != NULL;
}

/* Unlock the table. */
void sp_pools_unlock(struct sp_pools *pools) {
  pthread_mutex_unlock(&pools->lock);
}

/* Ask the driver how many *bytes a pool has reserved on the device; `handle` NULL: the graphs' pool. False: it does not
 * tell. The caller does not hold the lock. */
bool sp_pools_ask_driver(int device_ordinal, CUmemoryPool handle, uint64_t *bytes) {
  const struct sp_driver *driver = sp_driver();
  *bytes = 0;
  if (handle == NULL) {
    return driver->cuDeviceGetGraphMemAttribute != NULL &&
           driver->cuDeviceGetGraphMemAttribute(device_ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes) ==
               CUDA_SUCCESS;
  }
  return driver->cuMemPoolGetAttribute != NULL &&
         driver->cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

/* Ask the driver how many *bytes an open pool holds. The caller holds the lock, which is let go meanwhile; pool->asking
 * keeps the pool from being destroyed and its entry from being reused. *question becomes the question's number. LATER:
 * the answer to a later question is in pool->charged already. UNTOLD: the driver does not tell, or is not asked. */
enum sp_answer sp_pools_ask(struct sp_pools *pools, struct sp_pool *pool, uint64_t *bytes, uint64_t *question) {
  if (pool->closing) {
    return SP_ANSWER_UNTOLD;
  }
  SP_UNCANCELLED; /* a question that never ends would keep the pool from being destroyed */
  CUmemoryPool handle = pool->handle;
  int device_ordinal = pool->device;
  *question = ++pools->questions;
  pool->asking++;
  pthread_mutex_unlock(&pools->lock);
  bool told = sp_pools_ask_driver(device_ordinal, handle, bytes);
  pthread_mutex_lock(&pools->lock);
  pool->asking--;
  if (!told || pool->state != SP_POOL_OPEN) {
    return SP_ANSWER_UNTOLD;
  }
  return pool->answered > *question ? SP_ANSWER_LATER : SP_ANSWER_TOLD;
}

/* The entry of a pool that is in use, or NULL. The device counts only for the pool of graphs, which has no handle. The
 * caller holds the lock. */
struct sp_pool *sp_pools_find(struct sp_pools *pools, int device_ordinal, CUmemoryPool handle) {
  for (uint32_t index = 0; index < pools->count; index++) {
    struct sp_pool *pool = &pools->pools[index];
    if (pool->state != SP_POOL_FREE && pool->state != SP_POOL_DESTROYED && pool->handle == handle &&
        (handle != NULL || pool->device == device_ordinal)) {
      return pool;
    }
  }
  return NULL;
}

/* Put the entry into a free place, or behind the last one. Returns it; NULL: there is no room. The caller holds the
 * lock. A place about which a question is under way is not free yet. */
struct sp_pool *sp_pools_add(struct sp_pools *pools, struct sp_pool entry) {
  uint32_t index = 0;
  while (index < pools->count && (pools->pools[index].state != SP_POOL_FREE || pools->pools[index].asking != 0)) {
    index++;
  }
  if (index == SP_POOLS_MAX) {
    return NULL;
  }
  pools->count += index == pools->count;
  pools->pools[index] = entry;
  return &pools->pools[index];
}
