/* The table of pools, and the questions to the driver about what they hold. */
#include "hook/memory/pool_table.h"

#include "region/uncancelled.h"

static void *shared_pools;

struct sp_pools *sp_pools_lock(bool create) {
  struct sp_pools *pools = create ? sp_map_wiped(&shared_pools, sizeof *pools)
                                  : __atomic_load_n((struct sp_pools **)&shared_pools, __ATOMIC_ACQUIRE);
  if (pools != NULL) {
    pthread_mutex_lock(&pools->lock);
  }
  return pools;
}

bool sp_pools_exist(void) {
  return __atomic_load_n((struct sp_pools **)&shared_pools, __ATOMIC_ACQUIRE) != NULL;
}

void sp_pools_unlock(struct sp_pools *pools) {
  pthread_mutex_unlock(&pools->lock);
}

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

enum sp_answer sp_pools_ask(struct sp_pools *pools, struct sp_pool *pool, uint64_t *bytes, uint64_t *number) {
  if (pool->closing) {
    return SP_ANSWER_UNTOLD;
  }
  SP_UNCANCELLED; /* a question that never ends would keep the pool from being destroyed */
  CUmemoryPool handle = pool->handle;
  int device_ordinal = pool->device;
  *number = ++pools->questions;
  pool->asking++;
  pthread_mutex_unlock(&pools->lock);
  bool told = sp_pools_ask_driver(device_ordinal, handle, bytes);
  pthread_mutex_lock(&pools->lock);
  pool->asking--;
  if (!told || pool->state != SP_POOL_OPEN) {
    return SP_ANSWER_UNTOLD;
  }
  return pool->answered > *number ? SP_ANSWER_LATER : SP_ANSWER_TOLD;
}

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
