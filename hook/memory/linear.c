/*
 * Wrappers for linear memory: its allocations, its frees, and the queries for free memory. Over the cap the driver is
 * not called, so nothing is half done. If there is no current context, the device is not known: the call goes to the
 * driver, which refuses it.
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include "hook/memory/charge.h"

#define SP_PITCH 512u /* the driver rounds rows up to about this; the charge is corrected when its pitch is known */

/* Allocations by size in bytes; `size` is the type of that parameter, unsigned int in the oldest functions. */
#define LINEAR(name, address_type, size)                                                                               \
  SP_WRAPPER(name, (address_type * address, size bytes), (address, bytes)) {                                           \
    CHARGED(SP_MEMORY_ADDRESS, bytes, *address, real(address, bytes));                                                 \
  }
LINEAR(cuMemAlloc, CUdeviceptr_v1, unsigned int)
LINEAR(cuMemAlloc_v2, CUdeviceptr, size_t)

SP_WRAPPER(cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned int flags), (address, bytes, flags)) {
  CHARGED(SP_MEMORY_ADDRESS, bytes, *address, real(address, bytes, flags));
}

/* A row's width in bytes, rounded up as the driver does. */
static uint64_t pitch_of(uint64_t width) {
  return width > UINT64_MAX - SP_PITCH ? width : (width + SP_PITCH - 1) / SP_PITCH * SP_PITCH;
}

/* Rows with a pitch that the driver chooses: an estimate is reserved, then corrected. If the true size does not fit,
 * the memory is freed again (`free_row`: the row of the table for the function that frees). */
#define PITCHED(name, address_type, size, free_row)                                                                    \
  SP_WRAPPER(name, (address_type * address, size * pitch, size width, size height, unsigned int element),              \
             (address, pitch, width, height, element)) {                                                               \
    struct sp_location location = sp_location_current();                                                               \
    uint64_t charged = sp_times(pitch_of(width), height);                                                              \
    CUresult result;                                                                                                   \
    if (!sp_memory_reserve(location.device, charged)) {                                                                \
      return sp_memory_refusal();                                                                                      \
    }                                                                                                                  \
    SP_CALL(result, real(address, pitch, width, height, element));                                                     \
    uint64_t actual = result == CUDA_SUCCESS ? sp_times(*pitch, height) : charged;                                     \
    if (result == CUDA_SUCCESS && !sp_memory_resize(location.device, charged, actual)) {                               \
      CUresult (*give_back)(address_type) = (CUresult (*)(address_type))sp_real_of(free_row);                          \
      if (give_back != NULL) {                                                                                         \
        give_back(*address);                                                                                           \
      }                                                                                                                \
      result = CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    }                                                                                                                  \
    if (result == CUDA_SUCCESS) {                                                                                      \
      struct sp_allocation made = sp_allocation_of(SP_MEMORY_ADDRESS, *address, actual, &location);                    \
      sp_memory_commit(&made);                                                                                         \
    } else {                                                                                                           \
      sp_memory_rollback(location.device, charged);                                                                    \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
PITCHED(cuMemAllocPitch, CUdeviceptr_v1, unsigned int, SP_ROW_cuMemFree)
PITCHED(cuMemAllocPitch_v2, CUdeviceptr, size_t, SP_ROW_cuMemFree_v2)

SP_WRAPPER(cuMemFree, (CUdeviceptr_v1 address), (address)) {
  FREED(SP_MEMORY_ADDRESS, address, /* waits */ true, real(address));
}

SP_WRAPPER(cuMemFree_v2, (CUdeviceptr address), (address)) {
  FREED(SP_MEMORY_ADDRESS, address, /* waits */ true, real(address));
}

/* Free and total memory of the current device: lowered to the share's view. */
#define INFO(name, size)                                                                                               \
  SP_WRAPPER(name, (size * free_bytes, size * total_bytes), (free_bytes, total_bytes)) {                               \
    CUresult result;                                                                                                   \
    SP_CALL(result, real(free_bytes, total_bytes));                                                                    \
    int device = result == CUDA_SUCCESS ? sp_location_current().device : SP_NO_DEVICE;                                 \
    if (device != SP_NO_DEVICE && free_bytes != NULL && total_bytes != NULL) {                                         \
      uint64_t seen_free = *free_bytes;                                                                                \
      uint64_t seen_total = *total_bytes;                                                                              \
      sp_pools_look();                                                                                                 \
      sp_memory_view(device, &seen_free, &seen_total);                                                                 \
      *free_bytes = (size)seen_free; /* it is only lowered, so it fits */                                              \
      *total_bytes = (size)seen_total;                                                                                 \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
INFO(cuMemGetInfo, unsigned int)
INFO(cuMemGetInfo_v2, size_t)

/* The total memory of a device: lowered to the share's cap. */
#define TOTAL(name, size)                                                                                              \
  SP_WRAPPER(name, (size * total_bytes, CUdevice device), (total_bytes, device)) {                                     \
    CUresult result;                                                                                                   \
    SP_CALL(result, real(total_bytes, device));                                                                        \
    if (result == CUDA_SUCCESS && total_bytes != NULL) {                                                               \
      uint64_t seen_total = *total_bytes;                                                                              \
      sp_memory_view(device, NULL, &seen_total);                                                                       \
      *total_bytes = (size)seen_total;                                                                                 \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
TOTAL(cuDeviceTotalMem, unsigned int)
TOTAL(cuDeviceTotalMem_v2, size_t)
