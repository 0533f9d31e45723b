/* The memory account of this process: reserves charges against the share's cap (share.c), keeps them as rows of the
 * allocation table, and ends them. A device is named by its CUdevice, or is SP_NO_DEVICE, for which nothing is charged.
 * memory.h tells the order of the steps. */
#include "hook/memory/memory.h"

#include <errno.h>

/* Charge `bytes` to this process's slot. False: the share would exceed its cap. More than INT64_MAX bytes never fit. */
static bool charge(int device_ordinal, uint64_t bytes) {
  return bytes <= INT64_MAX && sp_share_memory_try(device_ordinal, bytes) == 0;
}

/* Charge an allocation of `bytes` before it is made. False: it does not fit under the cap, even after the pools have
 * returned what they do not use, or there is no memory for its row; then the allocation must not be made. errno
 * stays. */
bool sp_memory_reserve(int device_ordinal, uint64_t bytes) {
  if (device_ordinal == SP_NO_DEVICE) {
    return true;
  }
  int saved_errno = errno;
  bool granted = sp_allocations_room();
  if (granted && !charge(device_ordinal, bytes)) {
    sp_pools_shrink(device_ordinal);
    granted = charge(device_ordinal, bytes); /* another thread may have corrected the charge of a pool just before */
    if (!granted) {
      sp_slot_memory_refused(device_ordinal, bytes);
    }
  }
  errno = saved_errno;
  return granted;
}

/* The allocation was not made: end its reservation. */
void sp_memory_rollback(int device_ordinal, uint64_t bytes) {
  sp_slot_memory(device_ordinal, -(int64_t)bytes);
}

/* Change an open reservation from one size to another. False: the larger one does not fit under the cap, and nothing
 * has changed. errno stays. */
bool sp_memory_resize(int device_ordinal, uint64_t from_bytes, uint64_t to_bytes) {
  if (to_bytes <= from_bytes) {
    sp_slot_memory(device_ordinal, -(int64_t)(from_bytes - to_bytes));
    return true;
  }
  int saved_errno = errno;
  bool granted = charge(device_ordinal, to_bytes - from_bytes);
  if (!granted) {
    sp_slot_memory_refused(device_ordinal, to_bytes);
  }
  errno = saved_errno;
  return granted;
}

/* The allocation was made: keep its reservation as a row of the table. An allocation with the key 0 could never be
 * found again, so its reservation is rolled back. */
void sp_memory_commit(const struct sp_allocation *allocation) {
  if (allocation->device_ordinal == SP_NO_DEVICE) {
    return;
  }
  if (allocation->key == 0) {
    sp_memory_rollback(allocation->device_ordinal, allocation->bytes);
    return;
  }
  struct sp_allocation_table *table = sp_allocations_lock();
  if (table != NULL) {
    sp_allocations_insert(table, allocation);
    sp_allocations_unlock(table);
  }
}

/* Take the row of an allocation out of the table, into *taken, before the driver frees its memory. False: there is no
 * such row, and the memory is not charged. */
bool sp_memory_take(enum sp_memory_kind kind, uint64_t key, struct sp_allocation *taken) {
  struct sp_allocation_table *table = sp_allocations_lock();
  if (table == NULL) {
    return false;
  }
  struct sp_allocation *row = sp_allocations_find(table, kind, key);
  if (row != NULL) {
    sp_allocations_take(table, row, taken);
  }
  sp_allocations_unlock(table);
  return row != NULL;
}

/* End the charge of a row that is out of the table: its memory is gone. Memory of a pool goes back to the pool, which
 * stays charged. */
void sp_memory_uncharge(const struct sp_allocation *allocation) {
  switch ((enum sp_memory_kind)allocation->kind) {
  case SP_MEMORY_POOLED:
    sp_pool_freed(allocation);
    break;
  case SP_MEMORY_CONTEXT:
    sp_slot_context_memory(allocation->device_ordinal, -(int64_t)allocation->bytes);
    sp_slot_memory(allocation->device_ordinal, -(int64_t)allocation->bytes);
    break;
  case SP_MEMORY_ADDRESS:
  case SP_MEMORY_ARRAY:
  case SP_MEMORY_CHUNK:
  case SP_MEMORY_IMPORT:
    sp_slot_memory(allocation->device_ordinal, -(int64_t)allocation->bytes);
    break;
  case SP_MEMORY_HANDLE: /* these rows refer to memory that another row is charged for */
  case SP_MEMORY_MAPPING:
  case SP_MEMORY_GRAPH:
    break;
  }
}

/* The driver has refused to free it: put the row back, with its charge. */
void sp_memory_restore(const struct sp_allocation *taken) {
  sp_memory_commit(taken);
}

/* Does the driver free this memory when it destroys the context? Memory of pools and physical memory stay. */
static bool dies_with_context(const struct sp_allocation *row) {
  return row->kind == SP_MEMORY_ADDRESS || row->kind == SP_MEMORY_ARRAY || row->kind == SP_MEMORY_CONTEXT ||
         row->kind == SP_MEMORY_IMPORT;
}

/* End all charges of a context that the driver has destroyed; NULL: nothing is done. */
void sp_memory_forget_context(const void *context) {
  struct sp_allocation_table *table = context != NULL ? sp_allocations_lock() : NULL;
  if (table == NULL) {
    return;
  }
  for (uint64_t i = 0; i < table->row_count;) {
    struct sp_allocation *row = &table->rows[i], taken;
    if (row->key != 0 && row->owner == (uint64_t)(uintptr_t)context && dies_with_context(row)) {
      sp_allocations_take(table, row, &taken); /* may move another row into this place: look at it again */
      sp_memory_uncharge(&taken);
    } else {
      i++;
    }
  }
  sp_allocations_unlock(table);
}

/* Lower the driver's figures for the device to the share's view: the cap, and what is left of it. Either pointer may be
 * NULL. False: the share has no cap, and nothing has changed. */
bool sp_memory_view(int device_ordinal, uint64_t *free_bytes, uint64_t *total_bytes) {
  uint64_t limit = sp_share_memory_limit(device_ordinal);
  if (limit == UINT64_MAX) {
    return false;
  }
  uint64_t used = sp_share_memory_shown(device_ordinal);
  uint64_t left = limit > used ? limit - used : 0;
  if (free_bytes != NULL && *free_bytes > left) {
    *free_bytes = left;
  }
  if (total_bytes != NULL && *total_bytes > limit) {
    *total_bytes = limit;
  }
  return true;
}
