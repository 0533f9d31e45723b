/*
 * The driver as the probe sees it: the functions it calls, and what to do when one fails: say its name and its error,
 * and end.
 *
 * Only entry points that have been stable for years are here; a mode that needs a newer one says so.
 */
#ifndef SHAREPOD_GPU_DRIVER_H
#define SHAREPOD_GPU_DRIVER_H

#include <stddef.h>

#include "../program.h"

#define CUDA_VERSION         12080 /* the interface asked for; an older driver answers with what it has */
#define STREAM_NON_BLOCKING  1u
#define EVENT_DEFAULT        0u
#define EVENT_BLOCKING_SYNC  1u
#define EVENT_DISABLE_TIMING 2u
#define HOST_PORTABLE_MAPPED 3u
#define ATTACH_GLOBAL        1u
#define ATTRIBUTE_SM_COUNT   16
#define ATTRIBUTE_MODE       20 /* compute mode: 0 default, 2 prohibited, 3 exclusive */
#define ATTRIBUTE_MAJOR      75
#define ATTRIBUTE_MINOR      76

#define SUCCESS             0
#define ERROR_OUT_OF_MEMORY 2
#define ERROR_NOT_READY     600
#define ERROR_NOT_SUPPORTED 801
#define ERROR_NOT_PERMITTED 800
#define ERROR_CAPTURE_FIRST 900
#define ERROR_CAPTURE_LAST  908

typedef unsigned long long device_pointer; /* CUdeviceptr */

struct uuid {
  unsigned char bytes[16];
};

/* CUDA_ARRAY_DESCRIPTOR */
struct array_descriptor {
  size_t width;
  size_t height;
  int format; /* 1: unsigned 8-bit */
  unsigned channels;
};

/* CUmemAllocationProp */
struct allocation_property {
  int type;          /* 1: pinned */
  int handles;       /* 0: none */
  int location_type; /* 1: device */
  int location;
  void *metadata;
  unsigned char flags[8];
};
_Static_assert(sizeof(struct allocation_property) == 32, "CUDA 10.2 ABI");

/* clang-format off */
#define DRIVER(row)                                                                                                    \
  row(cuInit, (unsigned))                                                                                              \
  row(cuDriverGetVersion, (int *))                                                                                     \
  row(cuDeviceGet, (int *, int))                                                                                       \
  row(cuDeviceGetName, (char *, int, int))                                                                             \
  row(cuDeviceGetAttribute, (int *, int, int))                                                                         \
  row(cuDeviceGetUuid, (struct uuid *, int))                                                                           \
  row(cuDeviceTotalMem, (size_t *, int))                                                                               \
  row(cuDevicePrimaryCtxRetain, (void **, int))                                                                        \
  row(cuCtxSetCurrent, (void *))                                                                                       \
  row(cuModuleLoadData, (void **, const void *))                                                                       \
  row(cuModuleGetFunction, (void **, void *, const char *))                                                            \
  row(cuStreamCreate, (void **, unsigned))                                                                             \
  row(cuStreamSynchronize, (void *))                                                                                   \
  row(cuEventCreate, (void **, unsigned))                                                                              \
  row(cuEventRecord, (void *, void *))                                                                                 \
  row(cuEventSynchronize, (void *))                                                                                    \
  row(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,  \
                       void **))                                                                                       \
  row(cuMemAlloc, (device_pointer *, size_t))                                                                          \
  row(cuMemFree, (device_pointer))                                                                                     \
  row(cuMemGetInfo, (size_t *, size_t *))                                                                              \
  row(cuMemcpyDtoH, (void *, device_pointer, size_t))                                                                  \
  row(cuMemsetD32, (device_pointer, unsigned, size_t))

/* A mode that needs one of these says so; a driver may lack them. */
#define DRIVER_OPTIONAL(row)                                                                                           \
  row(cuGetErrorName, (int, const char **))                                                                            \
  row(cuCtxGetCurrent, (void **))                                                                                      \
  row(cuEventQuery, (void *))                                                                                          \
  row(cuEventDestroy, (void *))                                                                                        \
  row(cuEventElapsedTime, (float *, void *, void *))                                                                   \
  row(cuStreamQuery, (void *))                                                                                         \
  row(cuStreamIsCapturing, (void *, int *))                                                                            \
  row(cuStreamWriteValue32, (void *, device_pointer, uint32_t, unsigned))                                              \
  row(cuStreamBeginCapture, (void *, int))                                                                             \
  row(cuStreamEndCapture, (void *, void **))                                                                           \
  row(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                              \
  row(cuGraphLaunch, (void *, void *))                                                                                 \
  row(cuGraphExecDestroy, (void *))                                                                                    \
  row(cuGraphDestroy, (void *))                                                                                        \
  row(cuMemHostAlloc, (void **, size_t, unsigned))                                                                     \
  row(cuMemHostGetDevicePointer, (device_pointer *, void *, unsigned))                                                 \
  row(cuMemcpyHtoDAsync, (device_pointer, const void *, size_t, void *))                                               \
  row(cuMemcpyDtoDAsync, (device_pointer, device_pointer, size_t, void *))                                             \
  row(cuMemsetD32Async, (device_pointer, unsigned, size_t, void *))                                                    \
  row(cuMemAllocPitch, (device_pointer *, size_t *, size_t, size_t, unsigned))                                         \
  row(cuMemAllocManaged, (device_pointer *, size_t, unsigned))                                                         \
  row(cuMemAllocAsync, (device_pointer *, size_t, void *))                                                             \
  row(cuMemFreeAsync, (device_pointer, void *))                                                                        \
  row(cuDeviceGetDefaultMemPool, (void **, int))                                                                       \
  row(cuMemAllocFromPoolAsync, (device_pointer *, size_t, void *, void *))                                             \
  row(cuArrayCreate, (void **, const struct array_descriptor *))                                                       \
  row(cuArrayDestroy, (void *))                                                                                        \
  row(cuMemCreate, (unsigned long long *, size_t, const struct allocation_property *, unsigned long long))             \
  row(cuMemRelease, (unsigned long long))
/* clang-format on */

struct driver {
#define MEMBER(name, arguments) int(*name) arguments;
  DRIVER(MEMBER)
  DRIVER_OPTIONAL(MEMBER)
#undef MEMBER
};

extern struct driver driver;

/* Fill `driver` and call cuInit. */
void load_driver(void);
/* The primary context of device 0, made current for the calling thread. */
void open_context(void);
void use_context(void);

const char *error_name(int result);
void check(int result, const char *call);
/* Call a driver function; one that is missing or fails ends the program with its name. */
#define CALL(name, ...) (driver.name ? check(driver.name(__VA_ARGS__), #name) : die("the driver lacks " #name))
/* The same where the error is the result. */
#define TRY(name, ...) (driver.name ? driver.name(__VA_ARGS__) : ERROR_NOT_SUPPORTED)

/* A pinned host buffer, and its address on the device. */
void *mapped(size_t bytes, device_pointer *address);

#endif
