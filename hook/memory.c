/*
 * Allocation, free and the questions about memory: what the program asks of the driver, charged to its share.
 * Over the cap the driver is not called at all: nothing is half done. A device that cannot be told (no current
 * context) is left to the driver, which refuses.
 */
#include "memory.h"

#include <errno.h>

#include "driver.h"
#include "intercept.h"

#define SP_NO_DEVICE (-1)
#define SP_PITCH     512u /* what the driver rounds rows up to; the difference is settled when its answer is known */

static int current_device(void) {
  const struct sp_driver *driver = sp_driver();
  CUdevice device;
  return driver->cuCtxGetDevice != NULL && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : SP_NO_DEVICE;
}

static void *current_context(void) {
  const struct sp_driver *driver = sp_driver();
  CUcontext context = NULL;
  return driver->cuCtxGetCurrent != NULL && driver->cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

/* Inside a capture a stream-ordered call makes a graph node and obtains nothing: it is not charged here. */
static bool is_capturing(CUstream stream, bool per_thread) {
  const struct sp_driver *driver = sp_driver();
  CUresult (*ask)(CUstream, int *) = per_thread ? driver->cuStreamIsCapturing_ptsz : driver->cuStreamIsCapturing;
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ask != NULL && (ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

static int stream_device(CUstream stream) {
  const struct sp_driver *driver = sp_driver();
  CUcontext context = NULL;
  if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
      driver->cuStreamGetCtx == NULL || driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
      context == current_context() || driver->cuCtxPushCurrent(context) != CUDA_SUCCESS) {
    return current_device();
  }
  int device = current_device();
  driver->cuCtxPopCurrent(&context);
  return device;
}

static uint64_t times(uint64_t left, uint64_t right) {
  uint64_t product;
  return __builtin_mul_overflow(left, right, &product) ? UINT64_MAX : product;
}

static uint64_t pitched(uint64_t width) {
  return width > UINT64_MAX - SP_PITCH ? width : (width + SP_PITCH - 1) / SP_PITCH * SP_PITCH;
}

/* The account may call the kernel; the program's errno is its own. */

static bool reserve(int device, uint64_t bytes) {
  int saved_errno = errno;
  bool granted = device == SP_NO_DEVICE || sp_memory_reserve(device, bytes) == 0;
  errno = saved_errno;
  return granted;
}

/* The driver has answered: keep the charge or give it back. */
static void conclude(CUresult result, int device, uint64_t address, uint64_t bytes, void *context) {
  if (device == SP_NO_DEVICE) {
    return;
  }
  int saved_errno = errno;
  if (result == CUDA_SUCCESS) {
    sp_memory_commit(device, address, bytes, context);
  } else {
    sp_memory_rollback(device, bytes);
  }
  errno = saved_errno;
}

#define CHARGED(device, bytes, context, call)                                                                          \
  do {                                                                                                                 \
    int charged_device = (device);                                                                                     \
    uint64_t charged_bytes = (bytes);                                                                                  \
    CUresult result;                                                                                                   \
    if (!reserve(charged_device, charged_bytes)) {                                                                     \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                                                 \
    }                                                                                                                  \
    SP_CALL(result, (call));                                                                                           \
    conclude(result, charged_device, result == CUDA_SUCCESS ? *address : 0, charged_bytes, (context));                 \
    return result;                                                                                                     \
  } while (0)

#define LINEAR(name, address_type, size)                                                                               \
  SP_WRAPPER(name, (address_type * address, size bytes), (address, bytes)) {                                           \
    CHARGED(current_device(), bytes, current_context(), real(address, bytes));                                         \
  }
LINEAR(cuMemAlloc, CUdeviceptr_v1, unsigned int)
LINEAR(cuMemAlloc_v2, CUdeviceptr, size_t)

SP_WRAPPER(cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned int flags), (address, bytes, flags)) {
  CHARGED(current_device(), bytes, current_context(), real(address, bytes, flags));
}

/* Bring the charge to what the driver really took. False: the rest does not fit under the cap. */
static bool resize(int device, uint64_t charged, uint64_t taken) {
  int saved_errno = errno;
  bool granted = device == SP_NO_DEVICE || sp_memory_resize(device, charged, taken) == 0;
  errno = saved_errno;
  return granted;
}

#define PITCHED(name, address_type, size, free_row)                                                                    \
  SP_WRAPPER(name, (address_type * address, size * pitch, size width, size height, unsigned int element),              \
             (address, pitch, width, height, element)) {                                                               \
    int device = current_device();                                                                                     \
    uint64_t charged = times(pitched(width), height);                                                                  \
    CUresult result;                                                                                                   \
    if (!reserve(device, charged)) {                                                                                   \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                                                 \
    }                                                                                                                  \
    SP_CALL(result, real(address, pitch, width, height, element));                                                     \
    uint64_t taken = result == CUDA_SUCCESS ? times(*pitch, height) : charged;                                         \
    if (!resize(device, charged, taken)) {                                                                             \
      CUresult (*give_back)(address_type) = (CUresult (*)(address_type))sp_real_of(free_row);                          \
      if (give_back != NULL) {                                                                                         \
        give_back(*address);                                                                                           \
      }                                                                                                                \
      result = CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
      taken = charged;                                                                                                 \
    }                                                                                                                  \
    conclude(result, device, result == CUDA_SUCCESS ? *address : 0, taken, current_context());                         \
    return result;                                                                                                     \
  }
PITCHED(cuMemAllocPitch, CUdeviceptr_v1, unsigned int, SP_ROW_cuMemFree)
PITCHED(cuMemAllocPitch_v2, CUdeviceptr, size_t, SP_ROW_cuMemFree_v2)

/* Stream-ordered memory belongs to a pool of the device and outlives contexts. */
#define STREAM_ORDERED(name, per_thread)                                                                               \
  SP_WRAPPER(name, (CUdeviceptr * address, size_t bytes, CUstream stream), (address, bytes, stream)) {                 \
    if (is_capturing(stream, per_thread)) {                                                                            \
      return real(address, bytes, stream);                                                                             \
    }                                                                                                                  \
    CHARGED(stream_device(stream), bytes, NULL, real(address, bytes, stream));                                         \
  }
STREAM_ORDERED(cuMemAllocAsync, false)
STREAM_ORDERED(cuMemAllocAsync_ptsz, true)

/* A pool may be of another device than the stream, and the driver does not tell before it has allocated: if so the
 * charge moves, or the memory goes back. */
static CUresult move_charge(int charged_device, CUdeviceptr address, uint64_t bytes, CUstream stream, bool per_thread) {
  const struct sp_driver *driver = sp_driver();
  CUresult (*give_back)(CUdeviceptr, CUstream) = per_thread ? driver->cuMemFreeAsync_ptsz : driver->cuMemFreeAsync;
  int device = charged_device;
  if (charged_device == SP_NO_DEVICE || driver->cuPointerGetAttribute == NULL || give_back == NULL ||
      driver->cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) != CUDA_SUCCESS ||
      device == charged_device) {
    conclude(CUDA_SUCCESS, charged_device, address, bytes, NULL);
    return CUDA_SUCCESS;
  }
  conclude(CUDA_ERROR_OUT_OF_MEMORY, charged_device, 0, bytes, NULL);
  if (!reserve(device, bytes)) {
    give_back(address, stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  conclude(CUDA_SUCCESS, device, address, bytes, NULL);
  return CUDA_SUCCESS;
}

#define FROM_POOL(name, per_thread)                                                                                    \
  SP_WRAPPER(name, (CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream),                          \
             (address, bytes, pool, stream)) {                                                                         \
    if (is_capturing(stream, per_thread)) {                                                                            \
      return real(address, bytes, pool, stream);                                                                       \
    }                                                                                                                  \
    int device = stream_device(stream);                                                                                \
    CUresult result;                                                                                                   \
    if (!reserve(device, bytes)) {                                                                                     \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                                                 \
    }                                                                                                                  \
    SP_CALL(result, real(address, bytes, pool, stream));                                                               \
    if (result == CUDA_SUCCESS) {                                                                                      \
      return move_charge(device, *address, bytes, stream, per_thread);                                                 \
    }                                                                                                                  \
    conclude(result, device, 0, bytes, NULL);                                                                          \
    return result;                                                                                                     \
  }
FROM_POOL(cuMemAllocFromPoolAsync, false)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, true)

#define FREED(address, call)                                                                                           \
  do {                                                                                                                 \
    struct sp_allocation taken;                                                                                        \
    CUresult result;                                                                                                   \
    bool ours = sp_memory_take((address), &taken);                                                                     \
    SP_CALL(result, (call));                                                                                           \
    if (ours && result == CUDA_SUCCESS) {                                                                              \
      sp_memory_settle(&taken);                                                                                        \
    } else if (ours) {                                                                                                 \
      sp_memory_restore(&taken);                                                                                       \
    }                                                                                                                  \
    return result;                                                                                                     \
  } while (0)

SP_WRAPPER(cuMemFree, (CUdeviceptr_v1 address), (address)) {
  FREED(address, real(address));
}

SP_WRAPPER(cuMemFree_v2, (CUdeviceptr address), (address)) {
  FREED(address, real(address));
}

#define FREE_ASYNC(name, per_thread)                                                                                   \
  SP_WRAPPER(name, (CUdeviceptr address, CUstream stream), (address, stream)) {                                        \
    if (is_capturing(stream, per_thread)) {                                                                            \
      return real(address, stream);                                                                                    \
    }                                                                                                                  \
    FREED(address, real(address, stream));                                                                             \
  }
FREE_ASYNC(cuMemFreeAsync, false)
FREE_ASYNC(cuMemFreeAsync_ptsz, true)

#define INFO(name, size)                                                                                               \
  SP_WRAPPER(name, (size * free_bytes, size * total_bytes), (free_bytes, total_bytes)) {                               \
    CUresult result;                                                                                                   \
    SP_CALL(result, real(free_bytes, total_bytes));                                                                    \
    int device = result == CUDA_SUCCESS ? current_device() : SP_NO_DEVICE;                                             \
    if (device != SP_NO_DEVICE && free_bytes != NULL && total_bytes != NULL) {                                         \
      uint64_t seen_free = *free_bytes;                                                                                \
      uint64_t seen_total = *total_bytes;                                                                              \
      sp_memory_view(device, &seen_free, &seen_total);                                                                 \
      *free_bytes = (size)seen_free; /* only ever lowered: it fits */                                                  \
      *total_bytes = (size)seen_total;                                                                                 \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
INFO(cuMemGetInfo, unsigned int)
INFO(cuMemGetInfo_v2, size_t)

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
