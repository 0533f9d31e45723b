/* Pools as objects: which one a device uses, making them, their attributes, which devices may use their memory.
 * CUDA's documentation tells what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/memory/pool.h"

#include <string.h>

/* By device, the last entry for the host. A default (standard) pool is made at its first use. */
static struct pool *standard[SG_MAX_DEVICES + 1], *current[SG_MAX_DEVICES + 1];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; /* guards both tables; is taken before pools_lock */

/* With table_lock: the default pool of a device, or of the host (index SG_MAX_DEVICES). NULL: it cannot be made. */
static struct pool *standard_pool(uint32_t index) {
  bool host = index == SG_MAX_DEVICES;
  if (!standard[index]) {
    standard[index] =
        pool_new(host ? SG_NONE : index, host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    if (standard[index])
      standard[index]->standard = true;
  }
  return standard[index];
}

/* The default pool of a device or the host if `by_default`, else the current one, which a program may have set. NULL:
 * it cannot be made. */
static struct pool *pool_at(uint32_t index, bool by_default) {
  pthread_mutex_lock(&table_lock);
  struct pool *pool = current[index] && !by_default ? current[index] : standard_pool(index);
  pthread_mutex_unlock(&table_lock);
  return pool;
}

/* The pool for allocations on a device that name no pool. NULL: it cannot be made. */
struct pool *pool_current(uint32_t device) {
  return pool_at(device, /* by_default */ false);
}

/* The index of a location in the tables. */
static CUresult index_of(const CUmemLocation *location, uint32_t *index) {
  CUresult result = ready();
  if (result || !location)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  return location_place(location, index);
}

/* The body of the calls that return a pool: the default one of the location if `by_default`, else the current one. */
static CUresult get_pool(CUmemoryPool *out, const CUmemLocation *location, int type, bool by_default) {
  uint32_t index;
  CUresult result = index_of(location, &index);
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return not_supported("pools of managed memory");
  *out = pool_at(index, by_default);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The body of the calls that make a pool the current one of its location. */
static CUresult set_pool(const CUmemLocation *location, CUmemoryPool pool) {
  uint32_t index;
  CUresult result = index_of(location, &index);
  if (result)
    return result;
  uint32_t device = index == SG_MAX_DEVICES ? SG_NONE : index;
  if (!is_handle(pool, POOL_HANDLE) || pool->device != device || pool->imported)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&table_lock);
  current[index] = pool;
  pthread_mutex_unlock(&table_lock);
  return CUDA_SUCCESS;
}

#define ON_DEVICE(ordinal) (&(CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, ordinal})

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal) {
  return get_pool(out, ON_DEVICE(ordinal), CU_MEM_ALLOCATION_TYPE_PINNED, /* by_default */ true);
}
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal) {
  return get_pool(out, ON_DEVICE(ordinal), CU_MEM_ALLOCATION_TYPE_PINNED, /* by_default */ false);
}
EXPORT CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
  return set_pool(ON_DEVICE(ordinal), pool);
}
EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
  return get_pool(out, location, type, /* by_default */ true);
}
EXPORT CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
  return get_pool(out, location, type, /* by_default */ false);
}
EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
  return type == CU_MEM_ALLOCATION_TYPE_PINNED ? set_pool(location, pool) : not_supported("pools of managed memory");
}

/* A new pool has no chunk, so nothing is charged yet. */
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
  uint32_t index;
  CUresult result = index_of(props ? &props->location : NULL, &index);
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ? not_supported("pools of managed memory")
                                                              : CUDA_ERROR_INVALID_VALUE;
  if (props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return not_supported("pools with handles other than file descriptors");
  *out = pool_new(index == SG_MAX_DEVICES ? SG_NONE : index, props->location.type, props->handleTypes, props->maxSize);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Existing allocations stay valid and keep the pool alive. New ones are refused. */
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result = ready();
  if (result || !is_handle(pool, POOL_HANDLE) || pool->standard)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&table_lock);
  for (uint32_t n = 0; n <= SG_MAX_DEVICES; n++)
    if (current[n] == pool)
      current[n] = NULL;
  pthread_mutex_unlock(&table_lock);
  pthread_mutex_lock(&pools_lock);
  pool->destroyed = true;
  pool->handle.type = 0;
  pool_trim(pool, 0);
  pool_end(pool);
  pthread_mutex_unlock(&pools_lock);
  return CUDA_SUCCESS;
}

/* It gives memory back as a free does, and NVIDIA does not say that this is safe while a capture is open: so it is
 * refused then. */
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  CUresult result = ready();
  if (result || !is_handle(pool, POOL_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  result = unsafe_call();
  if (result)
    return result;
  run_effects(); /* frees that the device has passed count */
  pthread_mutex_lock(&pools_lock);
  if (!pool->imported)
    pool_trim(pool, keep);
  pthread_mutex_unlock(&pools_lock);
  return CUDA_SUCCESS;
}

/* --- attributes -------------------------------------------------------------------------------------------------- */

enum { /* CUmemPool_attribute */
       POOL_REUSE_FIRST = 1,
       POOL_REUSE_LAST = 3,
       POOL_RELEASE_THRESHOLD,
       POOL_RESERVED,
       POOL_RESERVED_HIGH,
       POOL_USED,
       POOL_USED_HIGH,
       POOL_ALLOCATION_TYPE, /* this and the rest: CUDA 13 */
       POOL_HANDLE_TYPES,
       POOL_LOCATION_ID,
       POOL_LOCATION_TYPE,
       POOL_MAX_BYTES,
       POOL_HW_DECOMPRESS,
};

/* The pool's field with a 64-bit attribute; NULL: the attribute is of another kind. */
static uint64_t *wide(struct pool *pool, int attribute) {
  switch (attribute) {
  case POOL_RELEASE_THRESHOLD:
    return &pool->threshold;
  case POOL_RESERVED:
    return &pool->reserved;
  case POOL_RESERVED_HIGH:
    return &pool->reserved_high;
  case POOL_USED:
    return &pool->used;
  case POOL_USED_HIGH:
    return &pool->used_high;
  case POOL_MAX_BYTES:
    return &pool->max_bytes;
  default:
    return NULL;
  }
}

/* Write an attribute that is an int. False: the attribute is of another kind, or unknown. */
static bool narrow(const struct pool *pool, int attribute, int *out) {
  CUdevice ordinal = 0;
  if (attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST)
    *out = pool->reuse[attribute - POOL_REUSE_FIRST];
  else if (attribute == POOL_ALLOCATION_TYPE)
    *out = CU_MEM_ALLOCATION_TYPE_PINNED;
  else if (attribute == POOL_HANDLE_TYPES)
    *out = pool->handle_types;
  else if (attribute == POOL_LOCATION_ID)
    *out = pool->device != SG_NONE && !device_ordinal(pool->device, &ordinal) ? ordinal : 0;
  else if (attribute == POOL_LOCATION_TYPE)
    *out = pool->location;
  else if (attribute == POOL_HW_DECOMPRESS)
    *out = 0;
  else
    return false;
  return true;
}

/* Frees that the device has passed are applied before, so that they count. */
EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *out) {
  CUresult result = ready();
  if (result || !is_handle(pool, POOL_HANDLE) || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  run_effects();
  pthread_mutex_lock(&pools_lock);
  const uint64_t *value = wide(pool, attribute);
  if (value)
    memcpy(out, value, sizeof *value);
  else if (!narrow(pool, attribute, out))
    result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_unlock(&pools_lock);
  return result;
}

/* The high-water marks can only be reset to the present use. */
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
  CUresult result = ready();
  if (result || !is_handle(pool, POOL_HANDLE) || !value)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  run_effects();
  pthread_mutex_lock(&pools_lock);
  if (attribute == POOL_RELEASE_THRESHOLD)
    memcpy(&pool->threshold, value, sizeof pool->threshold);
  else if (attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST)
    pool->reuse[attribute - POOL_REUSE_FIRST] = *(int *)value != 0;
  else if (attribute == POOL_RESERVED_HIGH && !*(uint64_t *)value)
    pool->reserved_high = pool->reserved;
  else if (attribute == POOL_USED_HIGH && !*(uint64_t *)value)
    pool->used_high = pool->used;
  else
    result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_unlock(&pools_lock);
  return result;
}

/* --- access: only stored, since every device reaches all memory here --------------------------------------------- */

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *accesses, size_t count) {
  CUresult result = ready();
  if (result || !is_handle(pool, POOL_HANDLE) || (count && !accesses))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  for (size_t n = 0; !result && n < count; n++) {
    uint32_t index;
    result = index_of(&accesses[n].location, &index);
    if (result || index == SG_MAX_DEVICES)
      continue;
    if (index == pool->device && accesses[n].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_DEVICE; /* a device can always access its own memory */
    pool->access[index] = (unsigned)accesses[n].flags;
  }
  return result;
}

EXPORT CUresult cuMemPoolGetAccess(int *out, CUmemoryPool pool, CUmemLocation *location) {
  uint32_t index;
  CUresult result = index_of(location, &index);
  if (result || !out || !is_handle(pool, POOL_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *out = index == SG_MAX_DEVICES
             ? (pool->device == SG_NONE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE)
             : (int)pool->access[index];
  return CUDA_SUCCESS;
}
