/*
 * client: the driver's functions and structures, for the C programs of benches and tests. It knows nothing of shares.
 * An error of the driver ends the program.
 */
#ifndef SHAREPOD_RIG_CLIENT_H
#define SHAREPOD_RIG_CLIENT_H

#include "program.h"

#define CUDA_VERSION           12080 /* the interface asked for; an older driver returns what it has */
#define STREAM_NON_BLOCKING    1u
#define EVENT_DEFAULT          0u
#define EVENT_BLOCKING_SYNC    1u
#define EVENT_DISABLE_TIMING   2u
#define CAPTURE_RELAXED        2
#define HOST_PORTABLE_MAPPED   3u
#define ATTACH_GLOBAL          1u
#define ATTRIBUTE_SM_COUNT     16
#define ATTRIBUTE_MODE         20 /* compute mode: 0 default, 2 prohibited, 3 exclusive */
#define ATTRIBUTE_MAJOR        75
#define ATTRIBUTE_MINOR        76
#define ATTRIBUTE_SHARED_BYTES 97 /* the shared memory that a block can ask for */
#define FUNCTION_SHARED_BYTES  8

#define SUCCESS             0
#define ERROR_OUT_OF_MEMORY 2
#define ERROR_NOT_READY     600
#define ERROR_NOT_SUPPORTED 801

/* ---- the structures of cuda.h ---- */

typedef unsigned long long device_pointer; /* CUdeviceptr */

struct uuid {
  unsigned char bytes[16];
};
struct location {
  int type; /* 1: a device; 2: the host; 3: a NUMA node of the host; 4: the thread's own node */
  int id;
};
struct allocation_property {
  int type;    /* 1: pinned */
  int handles; /* 0: none; 1: a file descriptor */
  struct location location;
  void *metadata;
  unsigned char flags[8];
};
_Static_assert(sizeof(struct allocation_property) == 32, "CUDA 10.2 ABI");
struct pool_properties {
  int type;
  int handles;
  struct location location;
  void *attributes;
  size_t most;
  unsigned char reserved[56];
};
struct array_descriptor {
  size_t width, height;
  int format; /* 1: unsigned 8-bit; 0x20: float */
  unsigned channels;
};
struct array_3d_descriptor {
  size_t width, height, depth;
  int format;
  unsigned channels, flags;
};
struct allocation_node {
  struct pool_properties properties;
  const void *access;
  size_t access_count, bytes;
  device_pointer address;
};
struct instantiation { /* CUDA_GRAPH_INSTANTIATE_PARAMS */
  unsigned long long flags;
  void *stream, *node;
  int result;
};
struct external_memory { /* CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
  int type;              /* 1: a file descriptor */
  union {
    int descriptor;
    void *words[2];
  };
  unsigned long long bytes;
  unsigned flags, reserved[16];
};
struct ipc_handle {
  unsigned char bytes[64];
};

/* ---- its functions ---- */

/* clang-format off */
/* One row per driver function: name, arguments. cuGetProcAddress picks the variant for CUDA_VERSION. A function that
 * the driver lacks is NULL. */
#define DRIVER(row)                                                                                                    \
  row(cuInit, (unsigned))                                                                                              \
  row(cuDeviceGet, (int *, int))                                                                                       \
  row(cuDevicePrimaryCtxRetain, (void **, int))                                                                        \
  row(cuCtxSetCurrent, (void *))                                                                                       \
  row(cuModuleLoadData, (void **, const void *))                                                                       \
  row(cuModuleGetFunction, (void **, void *, const char *))                                                            \
  row(cuFuncSetAttribute, (void *, int, int))                                                                          \
  row(cuStreamCreate, (void **, unsigned))                                                                             \
  row(cuStreamSynchronize, (void *))                                                                                   \
  row(cuEventCreate, (void **, unsigned))                                                                              \
  row(cuEventRecord, (void *, void *))                                                                                 \
  row(cuEventSynchronize, (void *))                                                                                    \
  row(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))\
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
  row(cuArrayDestroy, (void *))                                                                                        \
  row(cuDriverGetVersion, (int *))                                                                                     \
  row(cuDeviceGetName, (char *, int, int))                                                                             \
  row(cuDeviceGetAttribute, (int *, int, int))                                                                         \
  row(cuDeviceGetUuid, (struct uuid *, int))                                                                           \
  row(cuDeviceTotalMem, (size_t *, int))                                                                               \
  row(cuMemsetD32, (device_pointer, unsigned, size_t))                                                                 \
  row(cuCtxGetCurrent, (void **))                                                                                      \
  row(cuEventDestroy, (void *))                                                                                        \
  row(cuStreamDestroy, (void *))                                                                                       \
  row(cuStreamQuery, (void *))                                                                                         \
  row(cuGraphExecDestroy, (void *))                                                                                    \
  row(cuGraphDestroy, (void *))                                                                                        \
  row(cuMemHostGetDevicePointer, (device_pointer *, void *, unsigned))                                                 \
  row(cuDeviceGetDefaultMemPool, (void **, int))                                                                       \
  row(cuMemAllocFromPoolAsync, (device_pointer *, size_t, void *, void *))                                             \
  row(cuMemCreate, (unsigned long long *, size_t, const struct allocation_property *, unsigned long long))             \
  row(cuMemRelease, (unsigned long long))                                                                              \
  row(cuArray3DCreate, (void **, const struct array_3d_descriptor *))                                                  \
  row(cuMipmappedArrayCreate, (void **, const struct array_3d_descriptor *, unsigned))                                 \
  row(cuMipmappedArrayDestroy, (void *))                                                                               \
  row(cuMemPoolCreate, (void **, const struct pool_properties *))                                                      \
  row(cuMemAddressReserve, (device_pointer *, size_t, size_t, device_pointer, unsigned long long))                     \
  row(cuMemAddressFree, (device_pointer, size_t))                                                                      \
  row(cuMemMap, (device_pointer, size_t, size_t, unsigned long long, unsigned long long))                              \
  row(cuMemUnmap, (device_pointer, size_t))                                                                            \
  row(cuGraphCreate, (void **, unsigned))                                                                              \
  row(cuGraphAddMemAllocNode, (void **, void *, const void *, size_t, struct allocation_node *))                       \
  row(cuDeviceGraphMemTrim, (int))                                                                                     \
  row(cuIpcGetMemHandle, (struct ipc_handle *, device_pointer))                                                        \
  row(cuIpcOpenMemHandle, (device_pointer *, struct ipc_handle, unsigned))                                             \
  row(cuIpcCloseMemHandle, (device_pointer))                                                                           \
  row(cuMemExportToShareableHandle, (void *, unsigned long long, int, unsigned long long))                             \
  row(cuMemImportFromShareableHandle, (unsigned long long *, void *, int))                                             \
  row(cuMemRetainAllocationHandle, (unsigned long long *, void *))                                                     \
  row(cuMemPoolDestroy, (void *))                                                                                      \
  row(cuMemPoolTrimTo, (void *, size_t))                                                                               \
  row(cuMemPoolSetAttribute, (void *, int, void *))                                                                    \
  row(cuMemPoolExportToShareableHandle, (void *, void *, int, unsigned long long))                                     \
  row(cuMemPoolImportFromShareableHandle, (void **, void *, int, unsigned long long))                                  \
  row(cuMemPoolExportPointer, (struct ipc_handle *, device_pointer))                                                   \
  row(cuMemPoolImportPointer, (device_pointer *, void *, struct ipc_handle *))                                         \
  row(cuImportExternalMemory, (void **, const struct external_memory *))                                               \
  row(cuDestroyExternalMemory, (void *))                                                                               \
  row(cuGraphUpload, (void *, void *))                                                                                 \
  row(cuGraphInstantiateWithParams, (void **, void *, struct instantiation *))                                         \
  row(cuDevicePrimaryCtxRelease, (int))                                                                                \
  row(cuCtxCreate, (void **, void *, unsigned, int))                                                                   \
  row(cuLaunchHostFunc, (void *, void (*)(void *), void *))                                                            \
  row(cuStreamWaitValue32, (void *, device_pointer, uint32_t, unsigned))
/* clang-format on */

/* Weak, because every source file of a program may include this. */
#define DECLARE(name, arguments) __attribute__((weak, visibility("hidden"))) int(*name) arguments;
DRIVER(DECLARE)
__attribute__((weak, visibility("hidden"))) void *primary_context;

static inline const char *error_name(int result) {
  const char *name = NULL;
  if (cuGetErrorName)
    cuGetErrorName(result, &name);
  return name ? name : "unknown error";
}

/* End the program if the call has failed. */
static inline void check(int result, const char *call) {
  if (result != SUCCESS)
    die("%s returned %d (%s)", call, result, error_name(result));
}
/* Call a driver function. If it is missing or fails, the program ends with its name. */
#define CALL(name, ...) (name ? check(name(__VA_ARGS__), #name) : die("the driver lacks " #name))
/* The same, but the error is the result. */
#define TRY(name, ...) (name ? name(__VA_ARGS__) : ERROR_NOT_SUPPORTED)

/* Find the functions and call cuInit. */
static inline void load_driver(void) {
#define ONE_FUNCTION(name, arguments) FIND(name, #name);
  DRIVER(ONE_FUNCTION)
  CALL(cuInit, 0);
}

/* Make the context of open_context current in this thread, too. */
static inline void use_context(void) {
  CALL(cuCtxSetCurrent, primary_context);
}

/* Make the primary context of a device current, and keep it in primary_context. */
static inline void *open_context(int ordinal) {
  int device = 0;
  CALL(cuDeviceGet, &device, ordinal);
  CALL(cuDevicePrimaryCtxRetain, &primary_context, device);
  use_context();
  return primary_context;
}

/* Allocate a pinned host buffer of zeros, and find its address on the device. */
static inline void *mapped(size_t bytes, device_pointer *address) {
  void *memory = NULL;
  CALL(cuMemHostAlloc, &memory, bytes, HOST_PORTABLE_MAPPED);
  CALL(cuMemHostGetDevicePointer, address, memory, 0);
  memset(memory, 0, bytes);
  return memory;
}

/* ---- kernels with their duration in their name ---- */

/* Name the kernel of a duration: the simulated device reads the duration from the name, in the largest unit that
 * divides it. */
static inline void kernel_name(char *name, size_t size, uint64_t ns) {
  if (ns % 1000000 == 0)
    snprintf(name, size, "k_%" PRIu64 "ms", ns / 1000000);
  else if (ns % 1000 == 0)
    snprintf(name, size, "k_%" PRIu64 "us", ns / 1000);
  else
    snprintf(name, size, "k_%" PRIu64 "ns", ns);
}

static const char __attribute__((unused)) ptx_header[] = ".version 6.0\n"
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

/* Reading the clock keeps the driver's compiler from removing the loop. */
static const char __attribute__((unused)) ptx_kernel[] = ".visible .entry %s(.param .u64 iterations) {\n"
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

/* Load a module into the current context, with a kernel for every duration, and with `k_var` and `spin_until`. */
static inline void *load_module(const uint64_t *units_ns, size_t count) {
  size_t size = sizeof ptx_header + (count + 1) * (sizeof ptx_kernel + 64);
  char *ptx = malloc(size), name[64];
  if (!ptx)
    die("no memory for the module");
  size_t used = (size_t)snprintf(ptx, size, "%s", ptx_header);
  for (size_t i = 0; i < count; i++) {
    kernel_name(name, sizeof name, units_ns[i]);
    used += (size_t)snprintf(ptx + used, size - used, ptx_kernel, name);
  }
  snprintf(ptx + used, size - used, ptx_kernel, "k_var");
  void *module = NULL;
  CALL(cuModuleLoadData, &module, ptx);
  free(ptx);
  return module;
}

/* The kernel of a duration that load_module was given. */
static inline void *find_kernel(void *module, uint64_t unit_ns) {
  char name[64];
  void *function = NULL;
  kernel_name(name, sizeof name, unit_ns);
  CALL(cuModuleGetFunction, &function, module, name);
  return function;
}

/* Launch a kernel in blocks of one thread. Its one parameter is `argument`. */
static inline void launch_blocks(void *function, unsigned blocks, void *stream, uint64_t argument) {
  void *parameters[] = {&argument};
  CALL(cuLaunchKernel, function, blocks, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

#define FILLING_BLOCKS 1024 /* more than any device has SMs */

/* Launch blocks for every SM, as usual kernels do: two such kernels at a time share the device. */
static inline void launch_one(void *function, void *stream, uint64_t argument) {
  launch_blocks(function, FILLING_BLOCKS, stream, argument);
}

/* Launch one block: a kernel that waits for others leaves them room. */
static inline void launch_spin(void *function, void *stream, uint64_t argument) {
  launch_blocks(function, 1, stream, argument);
}

#endif
