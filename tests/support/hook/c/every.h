/* Makes the arguments for the calls of valid.def, and cleans up after the calls. */
#ifndef SHAREPOD_TEST_EVERY_H
#define SHAREPOD_TEST_EVERY_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/cuda.h"

#define SIZE   ((size_t)4 << 20)
#define LARGE  ((size_t)40 << 20) /* more than a pool grows by, so that each allocation is charged */
#define PIECE  ((size_t)4096)
#define KERNEL world.kernel, 1, 1, 1, 32, 1, 1, 0
#define BATCH  world.targets, world.sources, &world.piece, (size_t)1, &world.attributes, &world.zero, (size_t)1

/* Must be called with arguments of exactly the types of its parameters. */
typedef CUresult any_function();

static void called_back(void) {}

static struct {
  void *driver;
  CUdevice device;
  CUcontext context, made;
  CUfunction kernel;
  CUstream stream, destroyed;
  CUevent event;
  CUgraph graph, captured;
  CUgraphExec executable, made_executable;
  CUgraphNode node;
  CUgraph made_graph;
  unsigned long long threshold;
  unsigned char zeroes[256];
  unsigned long long verdict[3]; /* the result of a graph's update */
  CUarray array, made_array;
  void *mipmap;
  CUexternalMemory external;
  CUmemoryPool pool, made_pool;
  unsigned long long handle; /* a handle of memory without an address */
  CUdeviceptr reserved, allocated;
  CUdeviceptr a, b, targets[1], sources[1], held[16];
  void *host, *found;
  size_t held_count, size, total, piece, zero;
  unsigned narrow[2];
  int status;
  struct {
    int order;
    int hints[4];
    unsigned flags;
  } attributes; /* attributes of a copy */
} world;

static any_function *driver(const char *name) {
  return (any_function *)dlsym(world.driver, name);
}

static void must(CUresult result, const char *what) {
  if (result != CUDA_SUCCESS) {
    fprintf(stderr, "%s: CUDA error %d\n", what, result);
    exit(1);
  }
}
#define MUST(name, ...) must(driver(#name)(__VA_ARGS__), #name)

/* ---- arguments */

/* A wait for a word that already has its value. */
static CUstreamBatchMemOpParams *waits(void) {
  static CUstreamBatchMemOpParams operation;
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = world.a;
  return &operation;
}

static CUlaunchConfig *config(CUstream stream) {
  static CUlaunchConfig launch;
  launch = (CUlaunchConfig){1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
  return &launch;
}

typedef struct {
  CUfunction function;
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  void **kernelParams;
} CUDA_LAUNCH_PARAMS;

static CUDA_LAUNCH_PARAMS *one_device(void) {
  static CUDA_LAUNCH_PARAMS launch;
  launch = (CUDA_LAUNCH_PARAMS){world.kernel, 1, 1, 1, 32, 1, 1, 0, world.stream, NULL};
  return &launch;
}

#define BOX_OF(type, function, address, ...)                                                                           \
  static type *function(void) {                                                                                        \
    static type copy;                                                                                                  \
    copy = (type){.srcMemoryType = CU_MEMORYTYPE_DEVICE,                                                               \
                  .srcDevice = (address)world.b,                                                                       \
                  .srcPitch = 1024,                                                                                    \
                  .dstMemoryType = CU_MEMORYTYPE_DEVICE,                                                               \
                  .dstDevice = (address)world.a,                                                                       \
                  .dstPitch = 1024,                                                                                    \
                  .WidthInBytes = 512,                                                                                 \
                  .Height = 4,                                                                                         \
                  __VA_ARGS__};                                                                                        \
    return &copy;                                                                                                      \
  }
BOX_OF(CUDA_MEMCPY2D, area, CUdeviceptr, )
BOX_OF(CUDA_MEMCPY2D_v1, area_v1, CUdeviceptr_v1, )
BOX_OF(CUDA_MEMCPY3D, volume_of, CUdeviceptr, .Depth = 1, .srcHeight = 4, .dstHeight = 4)
BOX_OF(CUDA_MEMCPY3D_v1, volume_v1, CUdeviceptr_v1, .Depth = 1, .srcHeight = 4, .dstHeight = 4)

/* With this context in the fields that only copies between devices read. */
static CUDA_MEMCPY3D *volume(void) {
  CUDA_MEMCPY3D *copy = volume_of();
  copy->reserved0 = copy->reserved1 = world.context;
  return copy;
}

static CUDA_MEMCPY3D_BATCH_OP *box(void) {
  static CUDA_MEMCPY3D_BATCH_OP copy;
  copy = (CUDA_MEMCPY3D_BATCH_OP){.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = world.b},
                                  .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = world.a},
                                  .extent = {512, 4, 1},
                                  .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  return &copy;
}

static CUDA_FABRIC_COPY_BATCH_OP *fabric(void) {
  static CUDA_FABRIC_COPY_BATCH_OP copy;
  copy = (CUDA_FABRIC_COPY_BATCH_OP){.src = {.type = CU_FABRIC_COPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = world.b},
                                     .dst = {.type = CU_FABRIC_COPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = world.a},
                                     .size = PIECE};
  return &copy;
}

static CUmemDecompressParams *piece(void) {
  static CUmemDecompressParams one;
  one = (CUmemDecompressParams){PIECE, PIECE, NULL, (void *)world.b, (void *)world.a, 0, {0}};
  return &one;
}

/* Arrays of one row of 64 KiB, and of a box of that size. */
#define ARRAY_OF(function, size, ...)                                                                                  \
  static void *function(void) {                                                                                        \
    static struct {                                                                                                    \
      size sizes[sizeof((size[]){__VA_ARGS__}) / sizeof(size)];                                                        \
      unsigned format, channels, flags;                                                                                \
    } array = {{__VA_ARGS__}, 0x20, 1, 0};                                                                             \
    return &array;                                                                                                     \
  }
ARRAY_OF(flat_v1, unsigned, 16384, 1)
ARRAY_OF(flat, size_t, 16384, 1)
ARRAY_OF(deep_v1, unsigned, 16384, 1, 0)
ARRAY_OF(deep, size_t, 16384, 1, 0)

static CUmemPoolProps *pool_of_device(void) {
  static CUmemPoolProps pool = {.allocType = 1, .location = {1, 0}};
  return &pool;
}

/* The descriptor of a pool that another process could open; -1 if the driver has no pools. */
static void *shared_pool(void) {
  int descriptor = -1;
  CUmemoryPool pool = NULL;
  CUmemPoolProps props = {.allocType = 1, .handleTypes = 1, .location = {1, 0}};
  driver("cuMemPoolCreate")(&pool, &props);
  driver("cuMemPoolExportToShareableHandle")(&descriptor, pool, 1, 0ull);
  return (void *)(intptr_t)descriptor;
}

static void *allocation_node(void) {
  static CUDA_MEM_ALLOC_NODE_PARAMS node;
  node = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = SIZE};
  return &node;
}

/* For the generic calls: a node of the type that has no parameters. */
static int *empty_node(void) {
  static int node[64] = {5};
  return node;
}

static CUmemAllocationProp *memory_of_device(void) {
  static CUmemAllocationProp memory = {.type = 1, .location = {1, 0}};
  return &memory;
}

static CUdeviceptr *hold(void) {
  return &world.held[world.held_count++];
}

static CUdeviceptr allocated(void) {
  MUST(cuMemAlloc_v2, &world.allocated, SIZE);
  return world.allocated;
}

static CUmemoryPool default_pool(void) {
  driver("cuDeviceGetDefaultMemPool")(&world.pool, world.device);
  return world.pool;
}

static CUstream new_stream(void) {
  MUST(cuStreamCreate, &world.destroyed, 1);
  return world.destroyed;
}

static CUcontext new_context(void) {
  MUST(cuCtxCreate_v2, &world.made, 0, world.device);
  return world.made;
}

static CUdevice retained(void) {
  CUcontext context;
  MUST(cuDevicePrimaryCtxRetain, &context, world.device);
  return world.device;
}

static CUstream capturing(CUstream stream) {
  MUST(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  return stream;
}

/* The simulated driver may lack these calls. Their results are not checked: the call under test reports the failure. */
static CUarray new_array(void) {
  world.made_array = NULL;
  driver("cuArrayCreate_v2")(&world.made_array, flat());
  return world.made_array;
}

static void *new_mipmap(void) {
  world.mipmap = NULL;
  driver("cuMipmappedArrayCreate")(&world.mipmap, deep(), 2);
  return world.mipmap;
}

static CUmemoryPool new_pool(void) {
  world.made_pool = NULL;
  driver("cuMemPoolCreate")(&world.made_pool, pool_of_device());
  return world.made_pool;
}

static unsigned long long new_handle(void) {
  world.handle = 0;
  driver("cuMemCreate")(&world.handle, SIZE, memory_of_device(), 0ull);
  return world.handle;
}

static CUdeviceptr reserved(void) {
  world.reserved = 0;
  driver("cuMemAddressReserve")(&world.reserved, SIZE, (size_t)0, 0ull, 0ull);
  return world.reserved;
}

static CUdeviceptr mapped(void) {
  driver("cuMemMap")(reserved(), SIZE, (size_t)0, new_handle(), 0ull);
  return world.reserved;
}

/* Memory as another interface hands it over; once the driver has imported it, it owns the descriptor. */
static CUDA_EXTERNAL_MEMORY_HANDLE_DESC *external_memory(void) {
  static CUDA_EXTERNAL_MEMORY_HANDLE_DESC memory;
  int descriptor = memfd_create("external", MFD_CLOEXEC);
  must(descriptor < 0 || ftruncate(descriptor, (off_t)SIZE) != 0, "memfd_create");
  memory = (CUDA_EXTERNAL_MEMORY_HANDLE_DESC){.type = 1, .handle.fd = descriptor, .size = SIZE};
  return &memory;
}

static CUexternalMemory new_external(void) {
  MUST(cuImportExternalMemory, &world.external, external_memory());
  return world.external;
}

static CUgraph new_graph(void) {
  MUST(cuGraphCreate, &world.made_graph, 0);
  return world.made_graph;
}

static CUgraphExec new_executable(void) {
  MUST(cuGraphInstantiateWithFlags, &world.made_executable, world.graph, 0ull);
  return world.made_executable;
}

#include "change.h"

/* ---- what follows a call */

static CUresult back(CUresult result) {
  driver("cuCtxSetCurrent")(world.context);
  return result;
}

static CUresult captured(CUresult result, CUstream stream) {
  if (result == CUDA_SUCCESS) {
    MUST(cuStreamEndCapture, stream, &world.captured);
  }
  return result;
}

static CUresult freed(CUresult result) {
  if (result != CUDA_SUCCESS) {
    MUST(cuMemFree_v2, world.allocated);
  }
  return result;
}

static CUresult without_graph(CUresult result) {
  MUST(cuGraphDestroy, world.made_graph);
  return result;
}

/* Destroys what the call has made; `rest` then destroys what it was made of. */
#define UNDONE(name, rest, ...)                                                                                        \
  static CUresult name(CUresult result) {                                                                              \
    if (result == CUDA_SUCCESS) {                                                                                      \
      MUST(__VA_ARGS__);                                                                                               \
    }                                                                                                                  \
    return rest;                                                                                                       \
  }
UNDONE(without_context, back(result), cuCtxDestroy_v2, world.made)
UNDONE(released, result, cuDevicePrimaryCtxRelease_v2, world.device)
UNDONE(without_executable, result, cuGraphExecDestroy, world.made_executable)
UNDONE(without_array, result, cuArrayDestroy, world.made_array)
UNDONE(without_mipmap, result, cuMipmappedArrayDestroy, world.mipmap)
UNDONE(without_pool, result, cuMemPoolDestroy, world.made_pool)
UNDONE(without_handle, result, cuMemRelease, world.handle)
UNDONE(without_reserved, without_handle(result), cuMemAddressFree, world.reserved, SIZE)
UNDONE(unmapped, without_reserved(result), cuMemUnmap, world.reserved, SIZE)
UNDONE(without_external, result, cuDestroyExternalMemory, world.external)
/* Releases one more reference, and then what the handle was made with. */
UNDONE(not_retained, unmapped(result), cuMemRelease, world.handle)

#endif
