/* Macros for the wrappers that allocate or free device memory. */
#ifndef SHAREPOD_MEMORY_CHARGE_H
#define SHAREPOD_MEMORY_CHARGE_H

#include "hook/gate/gate.h"
#include "hook/interpose/driver.h"
#include "hook/interpose/intercept.h"
#include "hook/memory/memory.h"

/* The device and context in which an allocation of the calling thread is made. */
struct sp_location {
  uint64_t context;
  int device;
};

/* memory/location.c */
struct sp_location sp_location_current(void);
/* The device of the stream, where its allocations are made. */
int sp_device_of_stream(CUstream stream);
/* Is the stream capturing? Then a stream-ordered call makes a graph node, and allocates nothing. */
bool sp_location_captures(CUstream stream, bool per_thread);
/* A context is gone: its handle may be given out again for another device. */
void sp_locations_changed(void);

/* The product; UINT64_MAX if it is larger. */
static inline uint64_t sp_times(uint64_t left, uint64_t right) {
  uint64_t product;
  return __builtin_mul_overflow(left, right, &product) ? UINT64_MAX : product;
}

/* A row for an allocation at `location`, which the caller commits. */
static inline struct sp_allocation sp_allocation_of(enum sp_memory_kind kind, uint64_t key, uint64_t bytes,
                                                    const struct sp_location *location) {
  return (struct sp_allocation){.key = key,
                                .bytes = bytes,
                                .owner = location->context,
                                .device_ordinal = (int16_t)location->device,
                                .kind = (uint16_t)kind};
}

/* The error that the program gets for an immediate allocation over the cap. A driver checks for open captures before it
 * checks for memory: if a capture forbids the call, it returns that error and invalidates the capture. So while one is
 * open we ask the driver for more memory than any device has (2^62 bytes), and return its error. Stream-ordered calls,
 * and calls that make memory without an address, are allowed in captures and do not need this. */
static inline CUresult sp_memory_refusal(void) {
  const struct sp_driver *driver = sp_driver();
  CUdeviceptr none;
  if (!sp_gate_captures() || driver->cuMemAlloc == NULL) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = driver->cuMemAlloc(&none, (size_t)1 << 62);
  return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* The body of a wrapper that allocates: reserve `size` bytes, make `call`, and keep the charge under `key`, an
 * expression that is right after the call. Over the cap the call is not made. Returns from the wrapper. */
#define CHARGED(memory_kind, size, key, call)                                                                          \
  do {                                                                                                                 \
    struct sp_location location = sp_location_current();                                                               \
    uint64_t charged = (size);                                                                                         \
    CUresult result;                                                                                                   \
    if (!sp_memory_reserve(location.device, charged)) {                                                                \
      return (memory_kind) == SP_MEMORY_IMPORT ? CUDA_ERROR_OUT_OF_MEMORY : sp_memory_refusal();                       \
    }                                                                                                                  \
    SP_CALL(result, (call));                                                                                           \
    if (result == CUDA_SUCCESS) {                                                                                      \
      struct sp_allocation made = sp_allocation_of((memory_kind), (uint64_t)(key), charged, &location);                \
      sp_memory_commit(&made);                                                                                         \
    } else {                                                                                                           \
      sp_memory_rollback(location.device, charged);                                                                    \
    }                                                                                                                  \
    return result;                                                                                                     \
  } while (0)

/* The body of a wrapper that frees: free by `call`, and end the charge under `key`. `waits`: in the call the driver
 * waits for work, so pools may hold less afterwards. Returns from the wrapper. */
#define FREED(memory_kind, key, waits, call)                                                                           \
  do {                                                                                                                 \
    struct sp_allocation taken;                                                                                        \
    CUresult result;                                                                                                   \
    bool ours = sp_memory_take((memory_kind), (uint64_t)(key), &taken);                                                \
    SP_CALL(result, (call));                                                                                           \
    if (ours && result == CUDA_SUCCESS) {                                                                              \
      sp_memory_uncharge(&taken);                                                                                      \
    } else if (ours) {                                                                                                 \
      sp_memory_restore(&taken);                                                                                       \
    }                                                                                                                  \
    if (waits) {                                                                                                       \
      sp_pools_look();                                                                                                 \
    }                                                                                                                  \
    return result;                                                                                                     \
  } while (0)

#endif
