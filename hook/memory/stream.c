/*
 * Wrappers for stream-ordered memory: allocations from pools, and the pools themselves. Such memory belongs to a device
 * and outlives contexts. A pool is charged for all that it holds (pool.h). In a capturing stream a call adds a node to
 * a graph and allocates nothing.
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include "hook/memory/graph.h"

/* The device's current pool, which serves allocations that name no pool; NULL: not known. */
static CUmemoryPool current_pool(int device) {
  const struct sp_driver *driver = sp_driver();
  CUmemoryPool pool = NULL;
  return device != SP_NO_DEVICE && driver->cuDeviceGetMemPool != NULL &&
                 driver->cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS
             ? pool
             : NULL;
}

/* An allocation to be made by the driver. One of the two functions is set: the one that the program has called. */
struct request {
  CUresult (*from_current)(CUdeviceptr *, size_t, CUstream);
  CUresult (*from_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
  CUdeviceptr *address;
  size_t bytes;
  CUmemoryPool pool;
  CUstream stream;
  bool per_thread;
};

/* Make the allocation by the driver's function that the program has called. */
static CUresult call_driver(const struct request *request) {
  CUresult result;
  if (request->from_pool != NULL) {
    SP_CALL(result, request->from_pool(request->address, request->bytes, request->pool, request->stream));
  } else {
    SP_CALL(result, request->from_current(request->address, request->bytes, request->stream));
  }
  return result;
}

/* Free the allocation again, in the stream's order: the program will not get it. */
static void give_back(const struct request *request) {
  const struct sp_driver *driver = sp_driver();
  CUresult (*free_async)(CUdeviceptr, CUstream) =
      request->per_thread && driver->cuMemFreeAsync_ptsz != NULL ? driver->cuMemFreeAsync_ptsz : driver->cuMemFreeAsync;
  if (free_async != NULL) {
    free_async(*request->address, request->stream);
  }
}

/* Make the allocation, and charge its size to the device: the driver does not tell what its pools hold. Returns what
 * the program gets. */
static CUresult allocate_bytes(const struct request *request, int device) {
  if (!sp_memory_reserve(device, request->bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = call_driver(request);
  if (result != CUDA_SUCCESS) {
    sp_memory_rollback(device, request->bytes);
    return result;
  }
  struct sp_location nowhere = {.device = device};
  struct sp_allocation made = sp_allocation_of(SP_MEMORY_ADDRESS, *request->address, request->bytes, &nowhere);
  sp_memory_commit(&made);
  return result;
}

/* Make the allocation from the pool `handle` and charge that pool. If the driver does not tell what the pool holds,
 * charge the stream's `device` with the size. Returns what the program gets: the driver's result, or that there is no
 * memory if it is over the cap. */
static CUresult allocate_from_pool(const struct request *request, int device, CUmemoryPool handle) {
  if (request->bytes == 0) {
    return call_driver(request); /* an empty allocation holds nothing, and all such may have the same address */
  }
  struct sp_pool *pool = handle != NULL ? sp_pool_of(device, handle) : NULL;
  if (pool == NULL) {
    return allocate_bytes(request, device);
  }
  if (sp_pool_is_unpaid(pool)) {
    return call_driver(request);
  }
  /* Two tries. The first counts on memory that the pool keeps. If that is too fragmented, the pool grows past the cap:
   * the allocation is freed again, and the pools return what they do not use. Then the second try reserves anew. */
  for (int attempt = 0; attempt < 2; attempt++) {
    struct sp_growth growth;
    if (!sp_pool_begin(&growth, pool, request->bytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = call_driver(request);
    if (result != CUDA_SUCCESS) {
      sp_pool_undone(&growth, /* allocated */ false);
      return result;
    }
    if (sp_pool_grown(&growth)) {
      struct sp_allocation made = {.key = *request->address,
                                   .bytes = request->bytes,
                                   .owner = (uint64_t)(uintptr_t)pool,
                                   .device_ordinal = (int16_t)sp_pool_device(pool),
                                   .kind = SP_MEMORY_POOLED};
      sp_memory_commit(&made);
      return result;
    }
    give_back(request);
    sp_pool_undone(&growth, /* allocated */ true);
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Allocations from the device's current pool. `own_stream`: stream 0 is the calling thread's own. */
#define STREAM_ORDERED(name, own_stream)                                                                               \
  SP_WRAPPER(name, (CUdeviceptr * address, size_t bytes, CUstream stream), (address, bytes, stream)) {                 \
    struct request request = {                                                                                         \
        .from_current = real, .address = address, .bytes = bytes, .stream = stream, .per_thread = own_stream};         \
    if (sp_location_captures(stream, own_stream)) {                                                                    \
      sp_graphs_allocate();                                                                                            \
      return call_driver(&request);                                                                                    \
    }                                                                                                                  \
    int device = sp_device_of_stream(stream);                                                                          \
    return allocate_from_pool(&request, device, current_pool(device));                                                 \
  }
STREAM_ORDERED(cuMemAllocAsync, false)
STREAM_ORDERED(cuMemAllocAsync_ptsz, true)

/* Allocations from a pool that the program names. It may be on another device than the stream, or on none. A pool of
 * unknown origin counts as the stream's device's. */
#define FROM_POOL(name, own_stream)                                                                                    \
  SP_WRAPPER(name, (CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream),                          \
             (address, bytes, pool, stream)) {                                                                         \
    struct request request = {.from_pool = real,                                                                       \
                              .address = address,                                                                      \
                              .bytes = bytes,                                                                          \
                              .pool = pool,                                                                            \
                              .stream = stream,                                                                        \
                              .per_thread = own_stream};                                                               \
    if (sp_location_captures(stream, own_stream)) {                                                                    \
      sp_graphs_allocate();                                                                                            \
      return call_driver(&request);                                                                                    \
    }                                                                                                                  \
    return allocate_from_pool(&request, sp_device_of_stream(stream), pool);                                            \
  }
FROM_POOL(cuMemAllocFromPoolAsync, false)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, true)

/* Frees in a stream's order. The pool may keep the memory: the driver does not wait, so the pools are not asked. */
#define FREE_ASYNC(name, per_thread)                                                                                   \
  SP_WRAPPER(name, (CUdeviceptr address, CUstream stream), (address, stream)) {                                        \
    if (sp_location_captures(stream, per_thread)) {                                                                    \
      return real(address, stream);                                                                                    \
    }                                                                                                                  \
    FREED(SP_MEMORY_ADDRESS, address, /* waits */ false, real(address, stream));                                       \
  }
FREE_ASYNC(cuMemFreeAsync, false)
FREE_ASYNC(cuMemFreeAsync_ptsz, true)

/* The program gets a pool with its memory at `location`: a pool on a device gets an entry, one on the host is never
 * charged. Managed memory may lie on no particular device: then nothing is noted. */
static void note_pool_location(CUmemoryPool pool, const CUmemLocation *location) {
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    sp_pool_of(location->id, pool);
  } else if (location->type >= CU_MEM_LOCATION_TYPE_HOST && location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) {
    sp_pool_unpaid(pool);
  }
}

/* A function that gives the program a pool, in *pool. */
#define GIVES_POOL(name, parameters, arguments, location)                                                              \
  SP_WRAPPER(name, parameters, arguments) {                                                                            \
    CUresult result;                                                                                                   \
    SP_CALL(result, real arguments);                                                                                   \
    if (result == CUDA_SUCCESS) {                                                                                      \
      note_pool_location(*pool, location);                                                                             \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
#define ON_DEVICE(device) (&(CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device})
GIVES_POOL(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *props), (pool, props), &props->location)
GIVES_POOL(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device), (pool, device), ON_DEVICE(device))
GIVES_POOL(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device), (pool, device), ON_DEVICE(device))
GIVES_POOL(cuMemGetDefaultMemPool, (CUmemoryPool * pool, CUmemLocation *at, int type), (pool, at, type), at)
GIVES_POOL(cuMemGetMemPool, (CUmemoryPool * pool, CUmemLocation *at, int type), (pool, at, type), at)

/* The driver frees the pool's handle in the call: before it, no question about the pool may be under way. */
SP_WRAPPER(cuMemPoolDestroy, (CUmemoryPool pool), (pool)) {
  sp_pool_closing(pool);
  CUresult result;
  SP_CALL(result, real(pool));
  if (result == CUDA_SUCCESS) {
    sp_pool_destroyed(pool);
  } else {
    sp_pool_stays(pool);
  }
  return result;
}

/* After a trim the pool may hold less. */
SP_WRAPPER(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep_bytes), (pool, keep_bytes)) {
  CUresult result;
  SP_CALL(result, real(pool, keep_bytes));
  sp_pool_refresh(pool);
  return result;
}

/* With a lower release threshold the pool may hold less. */
SP_WRAPPER(cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value), (pool, attribute, value)) {
  CUresult result;
  SP_CALL(result, real(pool, attribute, value));
  sp_pool_refresh(pool);
  return result;
}

/* The pool of another process, which is charged for it. */
SP_WRAPPER(cuMemPoolImportFromShareableHandle,
           (CUmemoryPool * pool, void *handle, int handle_type, unsigned long long flags),
           (pool, handle, handle_type, flags)) {
  CUresult result;
  SP_CALL(result, real(pool, handle, handle_type, flags));
  if (result == CUDA_SUCCESS) {
    sp_pool_unpaid(*pool);
  }
  return result;
}
