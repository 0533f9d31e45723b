/*
 * A stand-in for the CUDA runtime, where NVIDIA's refuses the driver: it stands on the driver as that one does. It
 * links nothing, opens the driver by its name, asks cuGetProcAddress for every other function, and asks for those of
 * the per-thread default stream when it is built for them (-DPER_THREAD).
 */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#define VERSION 12000
#ifdef PER_THREAD
#define FLAGS 2ull
#else
#define FLAGS 0ull
#endif

typedef unsigned long long address_t;
#define FUNCTIONS(X)                                                                                                   \
  X(cuInit, (unsigned int))                                                                                            \
  X(cuDeviceGet, (int *, int))                                                                                         \
  X(cuDevicePrimaryCtxRetain, (void **, int))                                                                          \
  X(cuCtxSetCurrent, (void *))                                                                                         \
  X(cuCtxGetCurrent, (void **))                                                                                        \
  X(cuCtxSynchronize, (void))                                                                                          \
  X(cuModuleLoadData, (void **, const void *))                                                                         \
  X(cuModuleGetFunction, (void **, void *, const char *))                                                              \
  X(cuModuleUnload, (void *))                                                                                          \
  X(cuLaunchKernel,                                                                                                    \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cudaStream_t, void **, void **))    \
  X(cuMemAlloc, (address_t *, size_t))                                                                                 \
  X(cuMemFree, (address_t))                                                                                            \
  X(cuMemGetInfo, (size_t *, size_t *))                                                                                \
  X(cuMemcpy, (address_t, address_t, size_t))                                                                          \
  X(cuMemcpyHtoD, (address_t, const void *, size_t))                                                                   \
  X(cuMemcpyDtoH, (void *, address_t, size_t))                                                                         \
  X(cuMemcpyDtoD, (address_t, address_t, size_t))                                                                      \
  X(cuMemcpyAsync, (address_t, address_t, size_t, cudaStream_t))                                                       \
  X(cuMemsetD8Async, (address_t, unsigned char, size_t, cudaStream_t))                                                 \
  X(cuStreamCreate, (cudaStream_t *, unsigned int))                                                                    \
  X(cuStreamSynchronize, (cudaStream_t))                                                                               \
  X(cuStreamDestroy, (cudaStream_t))                                                                                   \
  X(cuEventCreate, (cudaEvent_t *, unsigned int))                                                                      \
  X(cuEventRecord, (cudaEvent_t, cudaStream_t))                                                                        \
  X(cuEventSynchronize, (cudaEvent_t))                                                                                 \
  X(cuEventElapsedTime, (float *, cudaEvent_t, cudaEvent_t))                                                           \
  X(cuEventDestroy, (cudaEvent_t))

static struct {
#define FIELD(name, parameters) cudaError_t(*name) parameters;
  FUNCTIONS(FIELD)
#undef FIELD
} driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t started;
static void *context;

static void start(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  cudaError_t (*ask)(const char *, void **, int, unsigned long long, int *) = NULL;
  if (library != NULL) {
    *(void **)&ask = dlsym(library, "cuGetProcAddress_v2");
  }
  int status = 0, device = 0;
  started = ask == NULL ? 35 : cudaSuccess; /* cudaErrorInsufficientDriver */
#define ASK(name, parameters)                                                                                          \
  if (started == cudaSuccess) {                                                                                        \
    started = ask(#name, (void **)&driver.name, VERSION, FLAGS, &status);                                              \
  }
  FUNCTIONS(ASK)
#undef ASK
  if (started == cudaSuccess) {
    started = driver.cuInit(0);
  }
  if (started == cudaSuccess) {
    started = driver.cuDeviceGet(&device, 0);
  }
  if (started == cudaSuccess) {
    started = driver.cuDevicePrimaryCtxRetain(&context, device);
  }
}

/* Every call begins so: the runtime starts at the first, and the primary context is current in any thread. */
static cudaError_t enter(void) {
  pthread_once(&once, start);
  void *current = NULL;
  if (started == cudaSuccess && driver.cuCtxGetCurrent(&current) == cudaSuccess && current == NULL) {
    return driver.cuCtxSetCurrent(context);
  }
  return started;
}

#define CALL(name, ...)                                                                                                \
  do {                                                                                                                 \
    cudaError_t entered = enter();                                                                                     \
    return entered != cudaSuccess ? entered : driver.name(__VA_ARGS__);                                                \
  } while (0)

cudaError_t cudaMalloc(void **address, size_t bytes) {
  CALL(cuMemAlloc, (address_t *)address, bytes);
}
cudaError_t cudaFree(void *address) {
  CALL(cuMemFree, (address_t)address);
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  CALL(cuMemGetInfo, free, total);
}
cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind) {
  switch (kind) {
  case cudaMemcpyHostToDevice:
    CALL(cuMemcpyHtoD, (address_t)target, source, bytes);
  case cudaMemcpyDeviceToHost:
    CALL(cuMemcpyDtoH, target, (address_t)source, bytes);
  case cudaMemcpyDeviceToDevice:
    CALL(cuMemcpyDtoD, (address_t)target, (address_t)source, bytes);
  default:
    CALL(cuMemcpy, (address_t)target, (address_t)source, bytes);
  }
}
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  (void)kind; /* the addresses tell */
  CALL(cuMemcpyAsync, (address_t)target, (address_t)source, bytes, stream);
}
cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
  CALL(cuMemsetD8Async, (address_t)target, (unsigned char)value, bytes, stream);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  CALL(cuStreamCreate, stream, 0);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CALL(cuStreamSynchronize, stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  CALL(cuStreamDestroy, stream);
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
  CALL(cuEventCreate, event, 0);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CALL(cuEventRecord, event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CALL(cuEventSynchronize, event);
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  CALL(cuEventElapsedTime, milliseconds, begin, end);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  CALL(cuEventDestroy, event);
}
cudaError_t cudaDeviceSynchronize(void) {
  CALL(cuCtxSynchronize, );
}

/* ---- device code in the program: registered by constructors, before any call; loaded when it is first launched */

struct wrapper {
  int magic, version;
  const void *image;
  void *reserved;
};
struct binary {
  const void *image;
  void *module;
};
struct kernel {
  const void *stub;
  const char *name;
  struct binary *binary;
  void *function;
};
static struct kernel kernels[64];
static size_t kernel_count;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

void **__cudaRegisterFatBinary(void *wrapper) {
  struct binary *binary = calloc(1, sizeof(*binary));
  binary->image = ((struct wrapper *)wrapper)->image;
  return (void **)binary;
}

void __cudaRegisterFatBinaryEnd(void **handle) {
  (void)handle;
}

void __cudaUnregisterFatBinary(void **handle) {
  struct binary *binary = (struct binary *)handle;
  if (binary->module != NULL) {
    driver.cuModuleUnload(binary->module);
  }
  free(binary);
}

void __cudaRegisterFunction(void **handle, const char *stub, char *name, const char *same_name, int thread_limit,
                            void *tid, void *bid, void *block, void *grid, int *warp) {
  (void)same_name, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
  if (kernel_count < sizeof(kernels) / sizeof(*kernels)) {
    kernels[kernel_count++] = (struct kernel){stub, name, (struct binary *)handle, NULL};
  }
}

static cudaError_t load(struct kernel *kernel) {
  pthread_mutex_lock(&loading);
  cudaError_t result = cudaSuccess;
  if (kernel->binary->module == NULL) {
    result = driver.cuModuleLoadData(&kernel->binary->module, kernel->binary->image);
  }
  if (result == cudaSuccess && kernel->function == NULL) {
    result = driver.cuModuleGetFunction(&kernel->function, kernel->binary->module, kernel->name);
  }
  pthread_mutex_unlock(&loading);
  return result;
}

cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  struct kernel *kernel = kernels;
  while (kernel < kernels + kernel_count && kernel->stub != stub) {
    kernel++;
  }
  cudaError_t result = kernel < kernels + kernel_count ? enter() : cudaErrorInvalidDeviceFunction;
  if (result == cudaSuccess) {
    result = load(kernel);
  }
  if (result == cudaSuccess) {
    result = driver.cuLaunchKernel(kernel->function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                   (unsigned int)shared_bytes, stream, arguments, NULL);
  }
  return result;
}

/* ---- f<<<grid, block, shared, stream>>>(...): pushed by the caller, popped by the stub that it then calls */

static _Thread_local struct {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
} configuration;

unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  configuration.grid = grid;
  configuration.block = block;
  configuration.shared_bytes = shared_bytes;
  configuration.stream = stream;
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_bytes = configuration.shared_bytes;
  *(cudaStream_t *)stream = configuration.stream;
  return cudaSuccess;
}
