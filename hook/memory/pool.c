/*
 * The memory of pools: the share is charged for what a pool holds, as the driver reports it. An entry of the table
 * (pool_table.h) keeps three sums of bytes: `charged`, what the pool held by the driver's last answer; `live`, its
 * allocations; and `in_flight`, what is reserved for allocations under way. The table's lock guards them; the driver is
 * not called under it. sp_pools_lock(false) is NULL if there is no table; sp_pools_lock(true) makes it first. The
 * executable graphs of a device have one more pool, which has no handle (NULL).
 */
#include "hook/memory/pool_table.h"

#include <errno.h>
#include <time.h>

#include "region/order.h"
#include "region/uncancelled.h"

/* Pools grow by multiples of GRAIN_BYTES: measured on an H200 with the driver of CUDA 13.0. A pool that has grown by
 * another step is assumed to grow by LEAST_BYTES, the granularity of physical memory. */
#define GRAIN_BYTES (32u << 20)
#define LEAST_BYTES (2u << 20)

static uint32_t dirty; /* a pool may hold more than its allocations, and may return that at any synchronise */

/* The entry of a pool, added and charged if it is new; `handle` NULL: the pool of the device's graphs. Returns NULL if
 * the driver does not tell what its pools hold, or if there is no room. */
struct sp_pool *sp_pool_of(int device_ordinal, CUmemoryPool handle) {
  struct sp_pools *pools = sp_pools_lock(true);
  if (pools == NULL) {
    return NULL;
  }
  struct sp_pool *pool = sp_pools_find(pools, device_ordinal, handle);
  if (pool == NULL) {
    struct sp_pool entry = {.handle = handle,
                            .state = SP_POOL_OPEN,
                            .device = device_ordinal,
                            .grain = GRAIN_BYTES,
                            .answered = ++pools->questions};
    sp_pools_unlock(pools);
    bool told = sp_pools_ask_driver(device_ordinal, handle, &entry.charged);
    sp_pools_lock(true);
    pool = sp_pools_find(pools, device_ordinal, handle); /* another thread may have added it meanwhile */
    if (pool == NULL && told && (pool = sp_pools_add(pools, entry)) != NULL) {
      /* Memory from before the hook was attached, or the driver's own: all of it is charged to the share. */
      sp_slot_memory(device_ordinal, (int64_t)entry.charged);
    }
  }
  sp_pools_unlock(pools);
  return pool;
}

/* Is this pool never charged? */
bool sp_pool_is_unpaid(const struct sp_pool *pool) {
  return pool->state == SP_POOL_UNPAID;
}

/* Note that this pool is never charged: it is of host memory, or another process is charged for it. Does nothing if it
 * has an entry already. */
void sp_pool_unpaid(CUmemoryPool handle) {
  struct sp_pools *pools = sp_pools_lock(true);
  if (pools != NULL) {
    if (sp_pools_find(pools, SP_NO_DEVICE, handle) == NULL) {
      sp_pools_add(pools, (struct sp_pool){.handle = handle, .state = SP_POOL_UNPAID, .device = SP_NO_DEVICE});
    }
    sp_pools_unlock(pools);
  }
}

/* The device (CUdevice) of the pool's memory, which may not be that of the stream. */
int sp_pool_device(const struct sp_pool *pool) {
  return pool->device;
}

/* Ask the driver what the pool holds, and correct its charge. What is reserved for allocations under way stays charged.
 * The caller holds the lock, which is let go while the driver is asked. */
static void refresh(struct sp_pools *pools, struct sp_pool *pool) {
  uint64_t now = 0, question = 0; /* both stay 0 for a destroyed pool: the driver is not asked about it */
  if (pool->state == SP_POOL_OPEN && sp_pools_ask(pools, pool, &now, &question) != SP_ANSWER_TOLD) {
    return;
  }
  uint64_t before = pool->charged;
  if (pool->state == SP_POOL_DESTROYED && pool->live != 0) {
    return; /* it keeps its memory until its last allocation is freed */
  }
  if (now > before && pool->under_way != 0) {
    return; /* an allocation under way will correct it */
  }
  pool->charged = now;
  pool->answered = question;
  if (pool->state == SP_POOL_DESTROYED && pool->under_way == 0) {
    pool->state = SP_POOL_FREE;
  }
  sp_slot_memory(pool->device, (int64_t)(now - before));
}

/* Correct the charges of the pools of a device, or of all pools if `every`. Set `dirty` again if any pool still holds
 * more than its allocations. */
static void refresh_all(int device_ordinal, bool every) {
  struct sp_pools *pools = sp_pools_lock(false);
  bool keeps = false;
  sp_store(&dirty, 0); /* what another thread frees during this sets it again */
  for (uint32_t index = 0; pools != NULL && index < pools->count; index++) {
    struct sp_pool *pool = &pools->pools[index];
    if (pool->state != SP_POOL_OPEN && pool->state != SP_POOL_DESTROYED) {
      continue;
    }
    if (every || pool->device == device_ordinal) {
      refresh(pools, pool);
    }
    keeps |= pool->handle != NULL && pool->charged > pool->live; /* the graphs' pool shrinks only when it is trimmed */
  }
  if (keeps) {
    sp_store(&dirty, 1);
  }
  if (pools != NULL) {
    sp_pools_unlock(pools);
  }
}

/* If some pool may hold more than its allocations, ask the driver what all pools hold, and correct the charges. Called
 * when the program has waited for work, as pools may have shrunk then, and before it is told a figure. errno stays. */
void sp_pools_look(void) {
  if (__builtin_expect(sp_load(&dirty) != 0, 0)) {
    int saved_errno = errno;
    refresh_all(0, /* every */ true);
    errno = saved_errno;
  }
}

/* A context was destroyed: ask what the graphs' pools still hold. If one has shrunk, graphs that ran in that context
 * must take their memory again when they are launched. */
void sp_pools_context_gone(void) {
  int saved_errno = errno;
  struct sp_pools *pools = sp_pools_lock(false);
  for (uint32_t index = 0; pools != NULL && index < pools->count; index++) {
    struct sp_pool *pool = &pools->pools[index];
    if (pool->state != SP_POOL_OPEN || pool->handle != NULL) {
      continue;
    }
    uint64_t before = pool->charged;
    refresh(pools, pool);
    if (pool->charged < before) {
      sp_graphs_trimmed();
    }
  }
  if (pools != NULL) {
    sp_pools_unlock(pools);
  }
  errno = saved_errno;
  sp_pools_look();
}

/* Correct the charge of the device's pool of graphs. All pools of the device are asked, because that one has no
 * handle. */
void sp_pools_refresh_graphs(int device_ordinal) {
  refresh_all(device_ordinal, /* every */ false);
}

/* Ask what this pool holds, and correct its charge. Called after a trim, or a change of the pool's attributes. */
void sp_pool_refresh(CUmemoryPool handle) {
  struct sp_pools *pools = sp_pools_lock(false);
  for (uint32_t index = 0; pools != NULL && index < pools->count; index++) {
    if (pools->pools[index].state == SP_POOL_OPEN && pools->pools[index].handle == handle) {
      refresh(pools, &pools->pools[index]);
    }
  }
  if (pools != NULL) {
    sp_pools_unlock(pools);
  }
}

/* The program is about to destroy the pool: correct its charge, and have the driver asked about it no more. Waits until
 * no question or trim of it is under way, for 100 ms at most. */
void sp_pool_closing(CUmemoryPool handle) {
  int saved_errno = errno;
  bool asking = true;
  sp_pool_refresh(handle);
  for (int look = 0; asking && look < SP_LOOKS_MAX; look++) {
    struct sp_pools *pools = sp_pools_lock(false);
    struct sp_pool *pool = pools != NULL ? sp_pools_find(pools, SP_NO_DEVICE, handle) : NULL;
    asking = pool != NULL && pool->asking != 0;
    if (pool != NULL) {
      pool->closing = true;
    }
    if (pools != NULL) {
      sp_pools_unlock(pools);
    }
    if (asking) {
      sp_sleep_ns(SP_LOOK_NS);
    }
  }
  errno = saved_errno;
}

/* The driver has refused to destroy the pool: it may be asked about it again. */
void sp_pool_stays(CUmemoryPool handle) {
  struct sp_pools *pools = sp_pools_lock(false);
  struct sp_pool *pool = pools != NULL ? sp_pools_find(pools, SP_NO_DEVICE, handle) : NULL;
  if (pool != NULL) {
    pool->closing = false;
  }
  if (pools != NULL) {
    sp_pools_unlock(pools);
  }
}

/* The program has destroyed the pool. Its entry stays, and its charge, while memory of it is still allocated. */
void sp_pool_destroyed(CUmemoryPool handle) {
  struct sp_pools *pools = sp_pools_lock(false);
  for (uint32_t index = 0; pools != NULL && index < pools->count; index++) {
    struct sp_pool *pool = &pools->pools[index];
    if (pool->handle != handle || handle == NULL) {
      continue;
    }
    if (pool->state == SP_POOL_UNPAID) {
      pool->state = SP_POOL_FREE;
    } else if (pool->state == SP_POOL_OPEN) {
      pool->state = SP_POOL_DESTROYED;
      refresh(pools, pool);
    }
  }
  if (pools != NULL) {
    sp_pools_unlock(pools);
  }
}

/* Before a refusal: have the device's pools return what they do not use, and correct their charges. `asking` of a pool
 * keeps it from being destroyed during its trim. */
void sp_pools_shrink(int device_ordinal) {
  const struct sp_driver *driver = sp_driver();
  if (!sp_pools_exist()) {
    return;
  }
  refresh_all(device_ordinal, /* every */ false);
  /* We are inside a call that the program may make while it captures: our own calls may not invalidate the capture. */
  int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool relaxed =
      driver->cuThreadExchangeStreamCaptureMode && driver->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  /* One pool after the other, without the lock: a trim may wait in the driver. */
  bool last = false;
  for (uint32_t index = 0; !last && index < SP_POOLS_MAX; index++) {
    SP_UNCANCELLED;
    struct sp_pools *pools = sp_pools_lock(false);
    struct sp_pool *pool = &pools->pools[index];
    bool trims = index < pools->count && pool->state == SP_POOL_OPEN && !pool->closing &&
                 pool->device == device_ordinal && pool->charged != 0;
    CUmemoryPool handle = pool->handle;
    last = index + 1 >= pools->count;
    pool->asking += trims;
    sp_pools_unlock(pools);
    if (trims && handle != NULL && driver->cuMemPoolTrimTo != NULL) {
      driver->cuMemPoolTrimTo(handle, 0);
    } else if (trims && handle == NULL && driver->cuDeviceGraphMemTrim != NULL) {
      driver->cuDeviceGraphMemTrim(device_ordinal);
      sp_graphs_trimmed();
    }
    if (trims) {
      sp_pools_lock(false);
      pool->asking--;
      sp_pools_unlock(pools);
    }
  }
  if (relaxed) {
    driver->cuThreadExchangeStreamCaptureMode(&mode);
  }
  refresh_all(device_ordinal, /* every */ false);
}

/* The bytes, rounded up to a multiple of `to`, unless that would overflow. */
static uint64_t round_up(uint64_t bytes, uint64_t to) {
  return bytes > UINT64_MAX - to ? bytes : (bytes + to - 1) / to * to;
}

/* By how much the pool is assumed to grow for an allocation of `bytes`. It grows at its end, so its unused part serves
 * some of these bytes, unless that part is fragmented: then sp_pool_grown finds out. */
static uint64_t growth_for(const struct sp_pool *pool, uint64_t bytes) {
  uint64_t unused = pool->charged > pool->live ? pool->charged - pool->live : 0;
  return bytes <= unused ? 0 : round_up(bytes - unused, pool->grain);
}

/* An allocation that has reserved `reserved` bytes is not under way any more; with the last one all of in_flight ends.
 * Returns by how much in_flight has fallen. The caller holds the lock. */
static uint64_t end_reservation(struct sp_pool *pool, uint64_t reserved) {
  uint64_t before = pool->in_flight;
  pool->under_way--;
  pool->in_flight = pool->under_way == 0 || reserved > before ? 0 : before - reserved;
  return before - pool->in_flight;
}

/* Charge the share with what the pool may grow by. False: it does not fit under the cap, and the allocation is taken
 * out of the pool's counts again. */
static bool reserve_growth(struct sp_growth *growth) {
  struct sp_pool *pool = growth->pool;
  if (sp_memory_reserve(pool->device, growth->reserved)) {
    return true;
  }
  struct sp_pools *pools = sp_pools_lock(false);
  pool->live -= growth->bytes;
  uint64_t ended = end_reservation(pool, growth->reserved);
  sp_pools_unlock(pools);
  /* All of `ended` loses its charge, except this reservation: it was never charged. */
  sp_slot_memory(pool->device, (int64_t)(growth->reserved - ended));
  return false;
}

/* Before an allocation of `bytes` from the pool: reserve what the pool may grow by, into *growth. False: it does not
 * fit under the cap, and nothing has changed. After the driver's call the caller calls sp_pool_grown or
 * sp_pool_undone. */
bool sp_pool_begin(struct sp_growth *growth, struct sp_pool *pool, uint64_t bytes) {
  struct sp_pools *pools = sp_pools_lock(false);
  *growth = (struct sp_growth){.pool = pool, .bytes = bytes, .reserved = growth_for(pool, bytes)};
  pool->closing = false; /* it has not been destroyed: a signal handler may have jumped out of that */
  pool->live += bytes;   /* so that two allocations at the same time do not count on the same unused part */
  pool->in_flight += growth->reserved;
  pool->under_way++;
  sp_pools_unlock(pools);
  return reserve_growth(growth);
}

/* Before a graph takes its memory: reserve all of its `bytes`, because another graph may use what the pool keeps.
 * False: they do not fit under the cap, and nothing has changed. After the driver's call the caller calls sp_pool_grown
 * or sp_pool_undone. */
bool sp_pool_begin_whole(struct sp_growth *growth, struct sp_pool *pool, uint64_t bytes) {
  struct sp_pools *pools = sp_pools_lock(false);
  *growth = (struct sp_growth){.pool = pool, .bytes = 0, .reserved = bytes};
  pool->in_flight += bytes;
  pool->under_way++;
  sp_pools_unlock(pools);
  return reserve_growth(growth);
}

/* The driver has allocated: end the reservation, and correct the charge to what the pool holds now. False: it has grown
 * past the cap, and the caller must free the allocation again, then call sp_pool_undone. */
bool sp_pool_grown(struct sp_growth *growth) {
  struct sp_pool *pool = growth->pool;
  struct sp_pools *pools = sp_pools_lock(false);
  uint64_t now = 0, question = pool->answered;
  bool fits = true;
  switch (sp_pools_ask(pools, pool, &now, &question)) {
  case SP_ANSWER_UNTOLD: /* the driver told before, but not now: assume that it grew by what was reserved */
    now = pool->charged + growth->reserved;
    question = pool->answered;
    break;
  case SP_ANSWER_LATER: /* the later question was asked when this allocation had been made, too */
    now = pool->charged;
    question = pool->answered;
    break;
  case SP_ANSWER_TOLD:
    break;
  }
  /* What the share is charged for the pool, with what is reserved, before and after. */
  uint64_t before = pool->charged + pool->in_flight;
  end_reservation(pool, growth->reserved);
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
    pool->grain = LEAST_BYTES; /* this pool grows by other steps */
  }
  if (now > pool->live) {
    sp_store(&dirty, 1);
  }
  pool->charged = now;
  pool->answered = question;
  pool->in_flight = after - now; /* more than is reserved, if the charge stays as before: the last one ends it */
  growth->reserved = 0;
  sp_pools_unlock(pools);
  return fits;
}

/* An allocation has failed: end its reservation. `allocated`: the driver had made it, sp_pool_grown refused it and
 * ended the reservation, and the memory has been freed again. Then the device's pools return what they do not use. */
void sp_pool_undone(const struct sp_growth *growth, bool allocated) {
  struct sp_pool *pool = growth->pool;
  struct sp_pools *pools = sp_pools_lock(false);
  pool->live -= growth->bytes < pool->live ? growth->bytes : pool->live;
  uint64_t ended = allocated ? 0 : end_reservation(pool, growth->reserved);
  sp_pools_unlock(pools);
  sp_memory_rollback(pool->device, ended);
  if (allocated) {
    sp_slot_memory_refused(pool->device, growth->bytes);
    sp_store(&dirty, 1);
    sp_pools_shrink(pool->device);
  }
}

/* An allocation of the pool was freed; `taken` is its row. The pool may keep its memory, so the charge changes later,
 * when the driver is asked. */
void sp_pool_freed(const struct sp_allocation *taken) {
  struct sp_pool *pool = (struct sp_pool *)(uintptr_t)taken->owner;
  struct sp_pools *pools = sp_pools_lock(false);
  if (pools == NULL) {
    return; /* in a forked child: the pool is the parent's */
  }
  pool->live -= taken->bytes < pool->live ? taken->bytes : pool->live;
  if (pool->state == SP_POOL_DESTROYED) {
    refresh(pools, pool);
  }
  sp_pools_unlock(pools);
  sp_store(&dirty, 1);
}
