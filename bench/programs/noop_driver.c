/*
 * noop_driver: a libcuda.so.1 that does nothing and returns at once. With it the cost of a launch is the hook's alone.
 *
 * It has one device, with the UUID of NOOP_UUID (32 hexadecimal digits), so that a share of a simulated device covers
 * it. All work is complete when the call returns. Events are always done, 20 ns apart.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define STREAMS_MAX 64u /* at a time */

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500 };

typedef unsigned long long device_pointer;

static char context, module, function, event, streams[STREAMS_MAX]; /* their addresses are the handles */

/* Calls that only succeed, with any arguments: in Linux' C calling conventions the caller cleans up. */
#define ROW_SUCCEED(name)                                                                                              \
  EXPORT int name(void);                                                                                               \
  int name(void) {                                                                                                     \
    return SUCCESS;                                                                                                    \
  }
ROW_SUCCEED(cuInit)
ROW_SUCCEED(cuCtxSetCurrent)
ROW_SUCCEED(cuCtxPushCurrent_v2)
ROW_SUCCEED(cuDevicePrimaryCtxRelease_v2)
ROW_SUCCEED(cuStreamDestroy_v2)
ROW_SUCCEED(cuStreamQuery)
ROW_SUCCEED(cuStreamSynchronize)
ROW_SUCCEED(cuStreamWaitEvent)
ROW_SUCCEED(cuEventRecord)
ROW_SUCCEED(cuEventSynchronize)
ROW_SUCCEED(cuEventQuery)
ROW_SUCCEED(cuEventDestroy_v2)
ROW_SUCCEED(cuLaunchKernel)
ROW_SUCCEED(cuMemFree_v2)
ROW_SUCCEED(cuThreadExchangeStreamCaptureMode)

/* Calls that return one handle or number through their first argument. */
#define ROW_GIVE(name, type, value)                                                                                    \
  EXPORT int name(type *out);                                                                                          \
  int name(type *out) {                                                                                                \
    *out = (type)(value);                                                                                              \
    return SUCCESS;                                                                                                    \
  }
ROW_GIVE(cuDriverGetVersion, int, 12000)
ROW_GIVE(cuDeviceGetCount, int, 1)
ROW_GIVE(cuDeviceGet, int, 0)
ROW_GIVE(cuCtxGetDevice, int, 0)
ROW_GIVE(cuCtxGetCurrent, void *, &context)
ROW_GIVE(cuCtxPopCurrent_v2, void *, &context)
ROW_GIVE(cuDevicePrimaryCtxRetain, void *, &context)
ROW_GIVE(cuModuleLoadData, void *, &module)
ROW_GIVE(cuModuleGetFunction, void *, &function)
ROW_GIVE(cuEventCreate, void *, &event)
ROW_GIVE(cuEventElapsedTime, float, 20e-6)

EXPORT int cuStreamCreate(void **out, unsigned flags);
int cuStreamCreate(void **out, unsigned flags) {
  static uint32_t count;
  (void)flags;
  *out = &streams[count++ % STREAMS_MAX];
  return SUCCESS;
}

EXPORT int cuStreamIsCapturing(void *handle, int *status);
int cuStreamIsCapturing(void *handle, int *status) {
  (void)handle;
  *status = 0;
  return SUCCESS;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char uuid[16], int device);
int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
  const char *text = getenv("NOOP_UUID");
  if (device || !text || strlen(text) != 32)
    return INVALID_VALUE;
  for (int i = 0; i < 16; i++) {
    unsigned byte = 0;
    sscanf(text + 2 * i, "%2x", &byte);
    uuid[i] = (unsigned char)byte;
  }
  return SUCCESS;
}

/* Return distinct addresses of 512 bytes each. */
EXPORT int cuMemAlloc_v2(device_pointer *out, size_t bytes);
int cuMemAlloc_v2(device_pointer *out, size_t bytes) {
  static device_pointer next = 0x7f0000000000u;
  (void)bytes;
  *out = next += 512;
  return SUCCESS;
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = *total_bytes = (size_t)1 << 30;
  return SUCCESS;
}

/* Prefer the form _v2 of a function, whatever the version. */
EXPORT int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status);
int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status) {
  char newest[128];
  (void)version, (void)flags;
  snprintf(newest, sizeof newest, "%s_v2", name);
  void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *address = dlsym(self, newest);
  if (!*address)
    *address = dlsym(self, name);
  if (status)
    *status = *address ? 0 : 1;
  return *address ? SUCCESS : NOT_FOUND;
}
