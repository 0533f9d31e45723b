/* The memory of pools: the share is charged for what a pool holds, as the driver reports it. */
#include "hook/memory/graph.h"

#include <errno.h>

/* Pools grow by multiples of GRAIN_BYTES: measured on an H200 with the driver of CUDA 13.0. A pool that has grown by
 * another step is assumed to grow by LEAST_BYTES, the granularity of physical memory. */
#define POOLS_MAX   512u
#define GRAIN_BYTES (32u << 20)
#define LEAST_BYTES (2u << 20)

/* DESTROYED: by the program, but its charge has not ended. UNPAID: never charged. */
enum state { FREE_ENTRY, OPEN, DESTROYED, UNPAID };

struct sp_pool {
  CUmemoryPool handle; /* NULL: the pool of graphs */
  uint32_t state;
  int device;
  uint64_t charged;   /* what it held when the driver was last asked */
  uint64_t in_flight; /* reserved for allocations under way */
  uint32_t under_way; /* the number of allocations under way */
  uint64_t live;      /* the sum of its allocations */
  uint64_t grain;     /* it grows by multiples of this */
};

struct pools {
  pthread_mutex_t lock; /* guards the rest; no call that may wait is made under it */
  uint32_t count;
  struct sp_pool pools[POOLS_MAX];
};

static void *shared_pools;
static uint32_t dirty; /* a pool may hold more than its allocations, and may return that at any synchronise */

/* Lock the pools. NULL: there are none, or with `create` no memory for them. */
static struct pools *lock_pools(bool create) {
  struct pools *pools = create ? sp_map_wiped(&shared_pools, sizeof *pools)
                               : __atomic_load_n((struct pools **)&shared_pools, __ATOMIC_ACQUIRE);
  if (pools != NULL) {
    pthread_mutex_lock(&pools->lock);
  }
  return pools;
}

static void unlock_pools(struct pools *pools) {
  pthread_mutex_unlock(&pools->lock);
}

/* How much memory the pool has reserved on the device. False: the driver does not tell. */
static bool ask(const struct sp_pool *pool, uint64_t *bytes) {
  const struct sp_driver *driver = sp_driver();
  *bytes = 0;
  if (pool->handle == NULL) {
    return driver->cuDeviceGetGraphMemAttribute != NULL &&
           driver->cuDeviceGetGraphMemAttribute(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes) ==
               CUDA_SUCCESS;
  }
  return driver->cuMemPoolGetAttribute != NULL &&
         driver->cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

/* The entry of a living pool, or NULL. The graphs have a pool without a handle on each device. */
static struct sp_pool *find(struct pools *pools, int device_ordinal, CUmemoryPool handle) {
  for (uint32_t index = 0; index < pools->count; index++) {
    struct sp_pool *pool = &pools->pools[index];
    if (pool->state != FREE_ENTRY && pool->state != DESTROYED && pool->handle == handle &&
        (handle != NULL || pool->device == device_ordinal)) {
      return pool;
    }
  }
  return NULL;
}

/* Add an entry; NULL: there is no room. */
static struct sp_pool *add(struct pools *pools, struct sp_pool entry) {
  uint32_t index = 0;
  while (index < pools->count && pools->pools[index].state != FREE_ENTRY) {
    index++;
  }
  if (index == POOLS_MAX) {
    return NULL;
  }
  pools->count += index == pools->count;
  pools->pools[index] = entry;
  return &pools->pools[index];
}

/* The entry of a pool, added if it is new; `handle` NULL: the pool of graphs. NULL: the driver does not tell what its
 * pools hold, or there is no room. */
struct sp_pool *sp_pool_of(int device_ordinal, CUmemoryPool handle) {
  struct pools *pools = lock_pools(true);
  if (pools == NULL) {
    return NULL;
  }
  struct sp_pool *pool = find(pools, device_ordinal, handle);
  struct sp_pool entry = {.handle = handle, .state = OPEN, .device = device_ordinal, .grain = GRAIN_BYTES};
  if (pool == NULL && ask(&entry, &entry.charged) && (pool = add(pools, entry)) != NULL) {
    /* Memory from before the hook was attached, or the driver's own: all of it is charged to the share. */
    sp_slot_memory(device_ordinal, (int64_t)entry.charged);
  }
  unlock_pools(pools);
  return pool;
}

bool sp_pool_is_unpaid(const struct sp_pool *pool) {
  return pool->state == UNPAID;
}

/* Note that this pool is never charged. Does nothing if it has an entry already. */
void sp_pool_unpaid(CUmemoryPool handle) {
  struct pools *pools = lock_pools(true);
  if (pools != NULL) {
    if (find(pools, SP_NO_DEVICE, handle) == NULL) {
      add(pools, (struct sp_pool){.handle = handle, .state = UNPAID, .device = SP_NO_DEVICE});
    }
    unlock_pools(pools);
  }
}

int sp_pool_device(const struct sp_pool *pool) {
  return pool->device;
}

/* Correct the charge to what the pool holds. Allocations under way have a charge of their own. True: it holds less than
 * before. */
static bool refresh(struct sp_pool *pool) {
  uint64_t now = 0, before = pool->charged; /* `now` stays 0 for a destroyed pool: the driver is not asked about it */
  if (pool->state == OPEN && !ask(pool, &now)) {
    return false;
  }
  if (pool->state == DESTROYED && pool->live != 0) {
    return false; /* it keeps its memory until its last allocation is freed */
  }
  if (now > before && pool->under_way != 0) {
    return false; /* an allocation under way will correct it */
  }
  pool->charged = now;
  if (pool->state == DESTROYED && pool->under_way == 0) {
    pool->state = FREE_ENTRY;
  }
  sp_slot_memory(pool->device, (int64_t)(now - before));
  return now < before;
}

/* Correct the charges of the pools of a device, or of all pools if `every`. Set `dirty` anew. True: a pool holds less
 * than before. */
static bool refresh_all(int device_ordinal, bool every) {
  struct pools *pools = lock_pools(false);
  bool less = false, keeps = false;
  for (uint32_t index = 0; pools != NULL && index < pools->count; index++) {
    struct sp_pool *pool = &pools->pools[index];
    if (pool->state != OPEN && pool->state != DESTROYED) {
      continue;
    }
    if (every || pool->device == device_ordinal) {
      less |= refresh(pool);
    }
    keeps |= pool->handle != NULL && pool->charged > pool->live; /* the graphs' pool shrinks only when it is trimmed */
  }
  if (pools != NULL) {
    __atomic_store_n(&dirty, keeps, __ATOMIC_RELAXED);
    unlock_pools(pools);
  }
  return less;
}

/* If some pool may hold more than its allocations, ask the driver what all pools hold. */
void sp_pools_look(void) {
  if (__builtin_expect(__atomic_load_n(&dirty, __ATOMIC_RELAXED) != 0, 0)) {
    int saved_errno = errno;
    refresh_all(0, true);
    errno = saved_errno;
  }
}

/* The pool of graphs has no handle, so all pools of its device are refreshed. */
void sp_pools_refresh_graphs(int device_ordinal) {
  refresh_all(device_ordinal, false);
}

/* Ask what this pool holds, and correct its charge. */
void sp_pool_refresh(CUmemoryPool handle) {
  struct pools *pools = lock_pools(false);
  for (uint32_t index = 0; pools != NULL && index < pools->count; index++) {
    if (pools->pools[index].state == OPEN && pools->pools[index].handle == handle) {
      refresh(&pools->pools[index]);
    }
  }
  if (pools != NULL) {
    unlock_pools(pools);
  }
}

/* The program has destroyed the pool. Its entry stays while it holds memory that is still allocated. */
void sp_pool_destroyed(CUmemoryPool handle) {
  struct pools *pools = lock_pools(false);
  for (uint32_t index = 0; pools != NULL && index < pools->count; index++) {
    struct sp_pool *pool = &pools->pools[index];
    if (pool->handle != handle || handle == NULL) {
      continue;
    }
    if (pool->state == UNPAID) {
      pool->state = FREE_ENTRY;
    } else if (pool->state == OPEN) {
      pool->state = DESTROYED;
      refresh(pool);
    }
  }
  if (pools != NULL) {
    unlock_pools(pools);
  }
}

/* Before a refusal: have the device's pools return what they do not use. True: less is charged than before. */
bool sp_pools_shrink(int device_ordinal) {
  const struct sp_driver *driver = sp_driver();
  if (__atomic_load_n((struct pools **)&shared_pools, __ATOMIC_ACQUIRE) == NULL) {
    return false;
  }
  bool less = refresh_all(device_ordinal, false);
  /* We are inside a call that the program may make while it captures: our own calls may not invalidate the capture. */
  int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool relaxed =
      driver->cuThreadExchangeStreamCaptureMode && driver->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  /* One pool after the other, without the lock: a trim may wait in the driver. */
  for (uint32_t index = 0; index < POOLS_MAX; index++) {
    struct pools *pools = lock_pools(false);
    bool ours = index < pools->count && pools->pools[index].state == OPEN &&
                pools->pools[index].device == device_ordinal && pools->pools[index].charged != 0;
    bool last = index + 1 >= pools->count;
    CUmemoryPool handle = pools->pools[index].handle;
    unlock_pools(pools);
    if (ours && handle != NULL && driver->cuMemPoolTrimTo != NULL) {
      driver->cuMemPoolTrimTo(handle, 0);
    } else if (ours && handle == NULL && driver->cuDeviceGraphMemTrim != NULL) {
      driver->cuDeviceGraphMemTrim(device_ordinal);
      sp_graphs_trimmed();
    }
    if (last) {
      break;
    }
  }
  if (relaxed) {
    driver->cuThreadExchangeStreamCaptureMode(&mode);
  }
  return refresh_all(device_ordinal, false) || less;
}

static uint64_t round_up(uint64_t bytes, uint64_t to) {
  return bytes > UINT64_MAX - to ? bytes : (bytes + to - 1) / to * to;
}

/* How much the pool grows for an allocation of `bytes`, unless its unused part is fragmented. It grows at its end. */
static uint64_t growth_for(const struct sp_pool *pool, uint64_t bytes) {
  uint64_t unused = pool->charged > pool->live ? pool->charged - pool->live : 0;
  return bytes <= unused ? 0 : round_up(bytes - unused, pool->grain);
}

/* An allocation is not under way any more; with the last one all of `in_flight` ends. Returns by how much that has
 * fallen. The caller holds the lock. */
static uint64_t leave(struct sp_pool *pool, uint64_t growth) {
  uint64_t before = pool->in_flight;
  pool->under_way--;
  pool->in_flight = pool->under_way == 0 || growth > before ? 0 : before - growth;
  return before - pool->in_flight;
}

/* Reserve what the pool may grow by. False: it does not fit under the cap, and the allocation is taken out of the
 * pool's counts again. */
static bool reserve_growth(struct sp_growth *growth) {
  struct sp_pool *pool = growth->pool;
  if (sp_memory_reserve(pool->device, growth->growth)) {
    return true;
  }
  struct pools *pools = lock_pools(false);
  pool->live -= growth->bytes;
  uint64_t less = leave(pool, growth->growth);
  unlock_pools(pools);
  sp_slot_memory(pool->device, (int64_t)(growth->growth - less)); /* its own growth in `less` was never charged */
  return false;
}

/* Reserve for an allocation what the pool may grow by. False: it does not fit under the cap, and nothing has
 * changed. */
bool sp_pool_begin(struct sp_growth *growth, struct sp_pool *pool, uint64_t bytes) {
  struct pools *pools = lock_pools(false);
  *growth = (struct sp_growth){.pool = pool, .bytes = bytes, .growth = growth_for(pool, bytes)};
  pool->live += bytes; /* so that two allocations at the same time do not count on the same unused part */
  pool->in_flight += growth->growth;
  pool->under_way++;
  unlock_pools(pools);
  return reserve_growth(growth);
}

/* Reserve for a graph what the pool may grow by: all of its bytes, because another graph may use what the pool keeps.
 * False: they do not fit under the cap, and nothing has changed. */
bool sp_pool_begin_whole(struct sp_growth *growth, struct sp_pool *pool, uint64_t bytes) {
  struct pools *pools = lock_pools(false);
  *growth = (struct sp_growth){.pool = pool, .bytes = 0, .growth = bytes};
  pool->in_flight += bytes;
  pool->under_way++;
  unlock_pools(pools);
  return reserve_growth(growth);
}

/* The driver has allocated: correct the charge to what the pool holds now. False: it has grown past the cap, and the
 * caller must free the allocation again. */
bool sp_pool_grown(struct sp_growth *growth) {
  struct sp_pool *pool = growth->pool;
  struct pools *pools = lock_pools(false);
  uint64_t now = 0, before = pool->charged + pool->in_flight;
  bool fits = true;
  if (!ask(pool, &now)) { /* the driver told before, but not now: assume that it grew by what was reserved */
    now = pool->charged + growth->growth;
  }
  leave(pool, growth->growth);
  uint64_t after = now + pool->in_flight;
  if (pool->under_way != 0 && now <= before) {
    after = before; /* several under way: which one has grown the pool depends on their order, but together they fit */
  } else if (after > before) {
    fits = sp_share_memory_try(pool->device, after - before) == 0;
    if (!fits) {
      sp_slot_memory(pool->device, (int64_t)(after - before)); /* it exists, until it is returned */
    }
  } else {
    sp_slot_memory(pool->device, -(int64_t)(before - after));
  }
  if (pool->under_way == 0 && now > pool->charged && (now - pool->charged) % pool->grain != 0) {
    pool->grain = LEAST_BYTES;
  }
  if (now > pool->live) {
    __atomic_store_n(&dirty, 1, __ATOMIC_RELAXED);
  }
  pool->charged = now;
  pool->in_flight = after - now;
  growth->growth = 0;
  unlock_pools(pools);
  return fits;
}

/* An allocation has failed: end its reservation. `allocated`: the driver had made it, sp_pool_grown refused it, and it
 * is freed again. */
void sp_pool_undone(const struct sp_growth *growth, bool allocated) {
  struct sp_pool *pool = growth->pool;
  struct pools *pools = lock_pools(false);
  pool->live -= growth->bytes < pool->live ? growth->bytes : pool->live;
  uint64_t less = allocated ? 0 : leave(pool, growth->growth);
  unlock_pools(pools);
  sp_memory_rollback(pool->device, less);
  if (allocated) {
    sp_slot_memory_refused(pool->device, growth->bytes);
    __atomic_store_n(&dirty, 1, __ATOMIC_RELAXED);
    sp_pools_shrink(pool->device);
  }
}

/* An allocation of the pool was freed. The pool may keep its memory, so the charge changes later, when the driver is
 * asked. */
void sp_pool_freed(const struct sp_allocation *taken) {
  struct sp_pool *pool = (struct sp_pool *)(uintptr_t)taken->owner;
  struct pools *pools = lock_pools(false);
  if (pools == NULL) {
    return; /* in a forked child: the pool is the parent's */
  }
  pool->live -= taken->bytes < pool->live ? taken->bytes : pool->live;
  if (pool->state == DESTROYED) {
    refresh(pool);
  }
  unlock_pools(pools);
  __atomic_store_n(&dirty, 1, __ATOMIC_RELAXED);
}
