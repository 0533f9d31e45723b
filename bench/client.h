/*
 * client: what the programs of this directory share as clients of the driver. They know nothing of shares. Included
 * once per program; an error of the driver ends it.
 */
#ifndef SHAREPOD_BENCH_CLIENT_H
#define SHAREPOD_BENCH_CLIENT_H

#include "program.h"

#define CUDA_VERSION         12000
#define STREAM_NON_BLOCKING  1u
#define EVENT_DEFAULT        0u
#define EVENT_DISABLE_TIMING 2u
#define CAPTURE_RELAXED      2
#define HOST_PORTABLE_MAPPED 3u
#define SUCCESS              0
#define ERROR_OUT_OF_MEMORY  2
#define ERROR_NOT_SUPPORTED  801

typedef unsigned long long device_pointer; /* CUdeviceptr */

/* CUDA_ARRAY_DESCRIPTOR */
struct array_descriptor {
  size_t width;
  size_t height;
  int format; /* 1: unsigned 8-bit */
  unsigned channels;
};

/* clang-format off */
/* One row per driver function: name, arguments. cuGetProcAddress picks the variant for CUDA_VERSION. */
#define DRIVER(row)                                                                                                    \
  row(cuInit, (unsigned))                                                                                              \
  row(cuDeviceGet, (int *, int))                                                                                       \
  row(cuDevicePrimaryCtxRetain, (void **, int))                                                                        \
  row(cuCtxSetCurrent, (void *))                                                                                       \
  row(cuModuleLoadData, (void **, const void *))                                                                       \
  row(cuModuleGetFunction, (void **, void *, const char *))                                                            \
  row(cuStreamCreate, (void **, unsigned))                                                                             \
  row(cuStreamSynchronize, (void *))                                                                                   \
  row(cuEventCreate, (void **, unsigned))                                                                              \
  row(cuEventRecord, (void *, void *))                                                                                 \
  row(cuEventSynchronize, (void *))                                                                                    \
  row(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, \
                       void **))

/* A mode that needs one of these says so; a driver may lack them. */
#define DRIVER_OPTIONAL(row)                                                                                           \
  row(cuGetErrorName, (int, const char **))                                                                            \
  row(cuEventElapsedTime, (float *, void *, void *))                                                                   \
  row(cuCtxSynchronize, (void))                                                                                        \
  row(cuStreamWaitEvent, (void *, void *, unsigned))                                                                   \
  row(cuMemcpyHtoD, (device_pointer, const void *, size_t))                                                            \
  row(cuMemcpyHtoDAsync, (device_pointer, const void *, size_t, void *))                                               \
  row(cuMemcpyDtoH, (void *, device_pointer, size_t))                                                                  \
  row(cuMemcpyDtoHAsync, (void *, device_pointer, size_t, void *))                                                     \
  row(cuMemcpyDtoDAsync, (device_pointer, device_pointer, size_t, void *))                                             \
  row(cuMemsetD8Async, (device_pointer, unsigned char, size_t, void *))                                                \
  row(cuMemFreeHost, (void *))                                                                                         \
  row(cuEventQuery, (void *))                                                                                          \
  row(cuStreamIsCapturing, (void *, int *))                                                                            \
  row(cuStreamWriteValue32, (void *, device_pointer, uint32_t, unsigned))                                              \
  row(cuStreamBeginCapture, (void *, int))                                                                             \
  row(cuStreamEndCapture, (void *, void **))                                                                           \
  row(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                              \
  row(cuGraphLaunch, (void *, void *))                                                                                 \
  row(cuMemHostAlloc, (void **, size_t, unsigned))                                                                     \
  row(cuMemsetD32Async, (device_pointer, unsigned, size_t, void *))                                                    \
  row(cuMemHostRegister, (void *, size_t, unsigned))                                                                   \
  row(cuMemGetInfo, (size_t *, size_t *))                                                                              \
  row(cuMemAlloc, (device_pointer *, size_t))                                                                          \
  row(cuMemFree, (device_pointer))                                                                                     \
  row(cuMemAllocPitch, (device_pointer *, size_t *, size_t, size_t, unsigned))                                         \
  row(cuMemAllocManaged, (device_pointer *, size_t, unsigned))                                                         \
  row(cuMemAllocAsync, (device_pointer *, size_t, void *))                                                             \
  row(cuMemFreeAsync, (device_pointer, void *))                                                                        \
  row(cuArrayCreate, (void **, const struct array_descriptor *))                                                       \
  row(cuArrayDestroy, (void *))
/* clang-format on */

#define DECLARE(name, arguments) static __attribute__((unused)) int(*name) arguments;
DRIVER(DECLARE)
DRIVER_OPTIONAL(DECLARE)

static void check(int result, const char *call) {
  if (result == SUCCESS)
    return;
  const char *name = NULL;
  if (cuGetErrorName)
    cuGetErrorName(result, &name);
  die("%s returned %d (%s)", call, result, name ? name : "?");
}
#define CALL(name, ...) (name ? check(name(__VA_ARGS__), #name) : die("the driver lacks " #name))

static void load_driver(void) {
#define ONE_REQUIRED(name, arguments) REQUIRE(name, #name);
#define ONE_OPTIONAL(name, arguments) FIND(name, #name);
  DRIVER(ONE_REQUIRED)
  DRIVER_OPTIONAL(ONE_OPTIONAL)
}

/* The kernel of a duration, named for it: the simulated device goes by the name, in the largest unit that divides it.
 */
static void kernel_name(char *name, size_t size, uint64_t ns) {
  if (ns % 1000000 == 0)
    snprintf(name, size, "k_%" PRIu64 "ms", ns / 1000000);
  else if (ns % 1000 == 0)
    snprintf(name, size, "k_%" PRIu64 "us", ns / 1000);
  else
    snprintf(name, size, "k_%" PRIu64 "ns", ns);
}

static const char ptx_header[] = ".version 6.0\n"
                                 ".target sm_70\n"
                                 ".address_size 64\n"
                                 ".visible .entry spin_until(.param .u64 word) {\n"
                                 "  .reg .pred %p;\n"
                                 "  .reg .u64 %a;\n"
                                 "  .reg .u32 %v;\n"
                                 "  ld.param.u64 %a, [word];\n"
                                 "again:\n"
                                 "  ld.volatile.global.u32 %v, [%a];\n"
                                 "  setp.eq.u32 %p, %v, 0;\n"
                                 "  @%p bra again;\n"
                                 "  ret;\n"
                                 "}\n";

/* The clock read keeps the driver's compiler from folding the loop away. */
static const char ptx_kernel[] = ".visible .entry %s(.param .u64 iterations) {\n"
                                 "  .reg .pred %%p;\n"
                                 "  .reg .u64 %%i, %%n;\n"
                                 "  .reg .u32 %%t;\n"
                                 "  ld.param.u64 %%n, [iterations];\n"
                                 "  mov.u64 %%i, 0;\n"
                                 "again:\n"
                                 "  setp.ge.u64 %%p, %%i, %%n;\n"
                                 "  @%%p bra done;\n"
                                 "  mov.u32 %%t, %%clock;\n"
                                 "  add.u64 %%i, %%i, 1;\n"
                                 "  bra again;\n"
                                 "done:\n"
                                 "  ret;\n"
                                 "}\n";

/* Load a module into the current context with a kernel for every duration and `spin_until`. */
static inline void *load_module(const uint64_t *units_ns, size_t count) {
  size_t size = sizeof ptx_header + count * (sizeof ptx_kernel + 64);
  char *ptx = malloc(size), name[64];
  if (!ptx)
    die("no memory for the module");
  size_t used = (size_t)snprintf(ptx, size, "%s", ptx_header);
  for (size_t i = 0; i < count; i++) {
    kernel_name(name, sizeof name, units_ns[i]);
    used += (size_t)snprintf(ptx + used, size - used, ptx_kernel, name);
  }
  void *module = NULL;
  CALL(cuModuleLoadData, &module, ptx);
  free(ptx);
  return module;
}

static inline void *find_kernel(void *module, uint64_t unit_ns) {
  char name[64];
  void *function = NULL;
  kernel_name(name, sizeof name, unit_ns);
  CALL(cuModuleGetFunction, &function, module, name);
  return function;
}

/* Make the primary context of a device current. */
static void *open_context(int ordinal) {
  int device = 0;
  void *context = NULL;
  CALL(cuDeviceGet, &device, ordinal);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  return context;
}

static inline void launch_one(void *function, void *stream, uint64_t argument) {
  void *parameters[] = {&argument};
  CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

#endif
