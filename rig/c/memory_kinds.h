/*
 * memory_kinds: every way in which a program takes device memory, and how it gives it back. The benches fill a share's
 * cap by each kind with a title. The agent's tests take all kinds by name. A take_ function allocates `bytes` and notes
 * in `it` what its give_ function needs to free them; both return the driver's result.
 */
#ifndef SHAREPOD_RIG_MEMORY_KINDS_H
#define SHAREPOD_RIG_MEMORY_KINDS_H

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client.h"

#define ROW_BYTES         65536u      /* of an array: a real device has less than 65,536 rows */
#define LAYER_BYTES       262144u     /* of an array of three dimensions: a real device has up to 16,384 layers */
#define GRAIN_BYTES       (2u << 20)  /* physical memory comes in multiples of this */
#define POOL_BYTES        (32u << 20) /* a pool grows by this */
#define FILE_DESCRIPTOR   1           /* a type of handle */
#define RELEASE_THRESHOLD 4           /* an attribute of a pool */
#define ALLOCATION        10          /* a type of node */
#define UPLOAD            2u          /* a flag of an instantiation */

struct array_v1 { /* of CUDA 2, as is the next */
  unsigned width, height;
  int format;
  unsigned channels;
};
struct array_3d_v1 {
  unsigned width, height, depth;
  int format;
  unsigned channels, flags;
};
struct node { /* CUgraphNodeParams */
  int type, reserved[3];
  struct allocation_node allocation;
  unsigned char rest[232 - sizeof(struct allocation_node)];
  unsigned long long end;
};
_Static_assert(sizeof(struct node) == 256, "CUDA 12.2 ABI");

/* clang-format off */
/* Variants that cuGetProcAddress does not pick: their name here, the driver's symbol, their arguments. */
#define VARIANTS(row)                                                                                                  \
  row(array_create_v1, "cuArrayCreate", (void **, const struct array_v1 *))                                            \
  row(array_3d_create_v1, "cuArray3DCreate", (void **, const struct array_3d_v1 *))                                    \
  row(alloc_async_ptsz, "cuMemAllocAsync_ptsz", (device_pointer *, size_t, void *))                                    \
  row(alloc_from_pool_ptsz, "cuMemAllocFromPoolAsync_ptsz", (device_pointer *, size_t, void *, void *))                \
  row(free_async_ptsz, "cuMemFreeAsync_ptsz", (device_pointer, void *))                                                \
  row(synchronize_ptsz, "cuStreamSynchronize_ptsz", (void *))                                                          \
  row(add_node, "cuGraphAddNode", (void **, void *, const void *, size_t, struct node *))                              \
  row(add_node_v2, "cuGraphAddNode_v2", (void **, void *, const void *, const void *, size_t, struct node *))          \
  row(instantiate_v1, "cuGraphInstantiate", (void **, void *, void **, char *, size_t))                                \
  row(instantiate_v2, "cuGraphInstantiate_v2", (void **, void *, void **, char *, size_t))
/* clang-format on */
#define VARIANT(name, symbol, arguments) static int(*name) arguments;
VARIANTS(VARIANT)

struct allocation {
  const struct kind *kind;
  device_pointer pointer;
  unsigned long long physical;
  void *object; /* an array, a pool, an executable graph, external memory, or the host's */
  size_t bytes;
  int descriptor;
};
struct kind {
  const char *name, *title; /* no title: only for tests */
  size_t step;              /* the least difference in size that the kind can have */
  int (*take)(struct allocation *, size_t);
  int (*give)(struct allocation *);
  int place, number; /* the location of the memory (its type and id), or which variant: see the functions */
};

static void *kind_stream;

/* Find the variants, and make the stream of the kinds. A context is current. */
static inline void open_kinds(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
#define ONE_VARIANT(name, symbol, arguments) *(void **)&name = dlsym(library, symbol);
  VARIANTS(ONE_VARIANT)
  CALL(cuStreamCreate, &kind_stream, STREAM_NON_BLOCKING);
}
/* How many steps it takes to hold the bytes. */
static inline size_t steps(size_t bytes, size_t step) {
  return (bytes + step - 1) / step;
}

/* ---- linear ---- */

static int take_linear(struct allocation *it, size_t bytes) {
  return TRY(cuMemAlloc, &it->pointer, bytes);
}
static int give_linear(struct allocation *it) {
  return cuMemFree(it->pointer);
}
static int take_managed(struct allocation *it, size_t bytes) {
  return TRY(cuMemAllocManaged, &it->pointer, bytes, ATTACH_GLOBAL);
}
/* The driver makes rows of 1,000 bytes longer, to its pitch. */
static int take_pitched(struct allocation *it, size_t bytes) {
  size_t pitch = 0;
  return TRY(cuMemAllocPitch, &it->pointer, &pitch, 1000, steps(bytes, 1024), 4);
}
static int take_host(struct allocation *it, size_t bytes) {
  return TRY(cuMemHostAlloc, &it->object, bytes, HOST_PORTABLE_MAPPED);
}
static int give_host(struct allocation *it) {
  return TRY(cuMemFreeHost, it->object);
}

/* ---- arrays ---- */

static int take_array(struct allocation *it, size_t bytes) {
  struct array_descriptor rows = {ROW_BYTES, steps(bytes, ROW_BYTES), 1, 1};
  return TRY(cuArrayCreate, &it->object, &rows);
}
static int take_array_3d(struct allocation *it, size_t bytes) {
  struct array_3d_descriptor layers = {1024, 64, steps(bytes, LAYER_BYTES), 0x20, 1, 0};
  return TRY(cuArray3DCreate, &it->object, &layers);
}
static int take_array_v1(struct allocation *it, size_t bytes) {
  struct array_v1 rows = {ROW_BYTES, (unsigned)steps(bytes, ROW_BYTES), 1, 1};
  return TRY(array_create_v1, &it->object, &rows);
}
static int take_array_3d_v1(struct allocation *it, size_t bytes) {
  struct array_3d_v1 layers = {1024, 64, (unsigned)steps(bytes, LAYER_BYTES), 0x20, 1, 0};
  return TRY(array_3d_create_v1, &it->object, &layers);
}
static int give_array(struct allocation *it) {
  return TRY(cuArrayDestroy, it->object);
}
/* A mipmap of `number` levels. The size of more than one level is never a round number. */
static int take_mipmap(struct allocation *it, size_t bytes) {
  struct array_3d_descriptor rows = {ROW_BYTES / 4, steps(bytes, ROW_BYTES), 0, 1, 4, 0};
  return TRY(cuMipmappedArrayCreate, &it->object, &rows, (unsigned)it->kind->number);
}
static int give_mipmap(struct allocation *it) {
  return TRY(cuMipmappedArrayDestroy, it->object);
}

/* ---- in the order of a stream ---- */

static int take_ordered(struct allocation *it, size_t bytes) {
  return TRY(cuMemAllocAsync, &it->pointer, bytes, kind_stream);
}
static int take_default_pool(struct allocation *it, size_t bytes) {
  void *pool = NULL;
  int result = TRY(cuDeviceGetDefaultMemPool, &pool, 0);
  return result ? result : TRY(cuMemAllocFromPoolAsync, &it->pointer, bytes, pool, kind_stream);
}
static int give_ordered(struct allocation *it) {
  int result = TRY(cuMemFreeAsync, it->pointer, kind_stream);
  return result ? result : cuStreamSynchronize(kind_stream);
}
/* The same in the thread's own default stream. */
static int take_ordered_ptsz(struct allocation *it, size_t bytes) {
  return TRY(alloc_async_ptsz, &it->pointer, bytes, NULL);
}
static int take_default_pool_ptsz(struct allocation *it, size_t bytes) {
  void *pool = NULL;
  int result = TRY(cuDeviceGetDefaultMemPool, &pool, 0);
  return result ? result : TRY(alloc_from_pool_ptsz, &it->pointer, bytes, pool, NULL);
}
static int give_ordered_ptsz(struct allocation *it) {
  int result = TRY(free_async_ptsz, it->pointer, NULL);
  return result ? result : TRY(synchronize_ptsz, NULL);
}
/* A pool that keeps freed memory until it is trimmed. */
static int take_pool(struct allocation *it, size_t bytes) {
  struct pool_properties properties = {
      .type = 1, .handles = FILE_DESCRIPTOR, .location = {it->kind->place, it->kind->number}};
  unsigned long long everything = ~0ull;
  int result = TRY(cuMemPoolCreate, &it->object, &properties);
  if (result)
    return result;
  result = TRY(cuMemPoolSetAttribute, it->object, RELEASE_THRESHOLD, &everything);
  if (!result)
    result = TRY(cuMemAllocFromPoolAsync, &it->pointer, bytes, it->object, kind_stream);
  if (result)
    cuMemPoolDestroy(it->object);
  return result;
}
static int give_pool(struct allocation *it) {
  int result = give_ordered(it);
  if (!result)
    result = TRY(cuMemPoolTrimTo, it->object, 0);
  return result ? result : TRY(cuMemPoolDestroy, it->object);
}

/* ---- physical ---- */

/* Create memory at a location: `place` is its type and `number` its id, as in a kind. */
static int create_physical(unsigned long long *physical, size_t bytes, int handles, int place, int number) {
  struct allocation_property property = {.type = 1, .handles = handles, .location = {place, number}};
  return TRY(cuMemCreate, physical, bytes, &property, 0);
}
static int map_physical(struct allocation *it) {
  int result = TRY(cuMemAddressReserve, &it->pointer, it->bytes, 0, 0, 0);
  return result ? result : TRY(cuMemMap, it->pointer, it->bytes, 0, it->physical, 0);
}
static int unmap_physical(struct allocation *it) {
  int result = TRY(cuMemUnmap, it->pointer, it->bytes);
  return result ? result : TRY(cuMemAddressFree, it->pointer, it->bytes);
}
static int give_handle(struct allocation *it) {
  return TRY(cuMemRelease, it->physical);
}
/* The memory is mapped; its handle outlives the mapping. */
static int take_physical(struct allocation *it, size_t bytes) {
  it->bytes = steps(bytes, GRAIN_BYTES) * GRAIN_BYTES;
  int result = create_physical(&it->physical, it->bytes, FILE_DESCRIPTOR, 1, 0);
  return result ? result : map_physical(it);
}
static int give_physical(struct allocation *it) {
  int result = unmap_physical(it);
  return result ? result : give_handle(it);
}
/* As expandable segments do: the handle is released while the memory is mapped. */
static int take_released(struct allocation *it, size_t bytes) {
  int result = take_physical(it, bytes);
  return result ? result : give_handle(it);
}
/* The handle is taken back from the address: it then holds the memory without a mapping. */
static int take_retained(struct allocation *it, size_t bytes) {
  int result = take_released(it, bytes);
  if (!result)
    result = TRY(cuMemRetainAllocationHandle, &it->physical, (void *)(uintptr_t)(it->pointer + it->bytes / 2));
  return result ? result : unmap_physical(it);
}
/* Many allocations of GRAIN_BYTES, mapped one after another, and unmapped at once. */
static int take_segments(struct allocation *it, size_t bytes) {
  size_t taken = 0;
  int result = SUCCESS;
  it->bytes = bytes / GRAIN_BYTES * GRAIN_BYTES;
  CALL(cuMemAddressReserve, &it->pointer, it->bytes, 0, 0, 0);
  for (; !result && taken < it->bytes; taken += result ? 0 : GRAIN_BYTES) {
    result = create_physical(&it->physical, GRAIN_BYTES, FILE_DESCRIPTOR, 1, 0);
    if (result)
      break;
    result = cuMemMap(it->pointer + taken, GRAIN_BYTES, 0, it->physical, 0);
    cuMemRelease(it->physical);
  }
  if (result && taken)
    cuMemUnmap(it->pointer, taken);
  if (result)
    cuMemAddressFree(it->pointer, it->bytes);
  return result;
}
/* Memory that is not mapped, at the location of the kind. */
static int take_unmapped(struct allocation *it, size_t bytes) {
  return create_physical(&it->physical, bytes, 0, it->kind->place, it->kind->number);
}

/* ---- external ---- */

static int import_external(struct allocation *it, int descriptor, size_t bytes) {
  struct external_memory memory = {.type = FILE_DESCRIPTOR, .descriptor = dup(descriptor), .bytes = bytes};
  int result = TRY(cuImportExternalMemory, &it->object, &memory);
  if (result)
    close(memory.descriptor);  /* still ours */
  it->descriptor = descriptor; /* the driver has a duplicate */
  it->bytes = bytes;
  return result;
}
static int take_external(struct allocation *it, size_t bytes) {
  int descriptor = memfd_create("external", 0);
  if (descriptor < 0 || ftruncate(descriptor, (off_t)bytes))
    die("no file for external memory");
  int result = import_external(it, descriptor, bytes);
  if (result)
    close(descriptor);
  return result;
}
static int give_external(struct allocation *it) {
  return TRY(cuDestroyExternalMemory, it->object);
}

/* ---- graphs that allocate: `place` is the way to make the graph, `number` the way to make it executable ---- */

enum { BY_ITS_FUNCTION, CAPTURED, GENERIC, GENERIC_V2, ELSEWHERE };
enum { WITH_FLAGS, WITH_PARAMS, WITH_LOG, WITH_LOG_V2, UPLOADED, UPLOADED_AT_ONCE };

/* Make a graph that allocates. The caller destroys *graph if it is set, also after an error. */
static int make_graph(struct allocation *it, size_t bytes, void **graph) {
  int place = it->kind->place, result = SUCCESS;
  void *added = NULL;
  struct node node = {
      .type = ALLOCATION,
      .allocation = {.properties = {.type = 1, .location = {1, /* device */ place == ELSEWHERE}}, .bytes = bytes},
  };
  if (place == CAPTURED) {
    CALL(cuStreamBeginCapture, kind_stream, 0);
    result = TRY(cuMemAllocAsync, &it->pointer, bytes, kind_stream);
    int ended = TRY(cuStreamEndCapture, kind_stream, graph);
    return result ? result : ended;
  }
  result = TRY(cuGraphCreate, graph, 0);
  if (result)
    return result;
  if (place == GENERIC)
    result = TRY(add_node, &added, *graph, NULL, 0, &node);
  else if (place == GENERIC_V2)
    result = TRY(add_node_v2, &added, *graph, NULL, NULL, 0, &node);
  else
    result = TRY(cuGraphAddMemAllocNode, &added, *graph, NULL, 0, &node.allocation);
  it->pointer = node.allocation.address;
  return result;
}
static int make_executable(struct allocation *it, void *graph) {
  struct instantiation how = {.flags = 0};
  switch (it->kind->number) {
  case UPLOADED_AT_ONCE:
    how.flags = UPLOAD;
    how.stream = kind_stream;
    return TRY(cuGraphInstantiateWithParams, &it->object, graph, &how);
  case WITH_PARAMS:
    return TRY(cuGraphInstantiateWithParams, &it->object, graph, &how);
  case WITH_LOG:
    return TRY(instantiate_v1, &it->object, graph, NULL, NULL, 0);
  case WITH_LOG_V2:
    return TRY(instantiate_v2, &it->object, graph, NULL, NULL, 0);
  default:
    return TRY(cuGraphInstantiateWithFlags, &it->object, graph, 0);
  }
}

/* A graph takes its memory when it is launched or uploaded. */
static int take_graph(struct allocation *it, size_t bytes) {
  void *graph = NULL;
  int result = make_graph(it, bytes, &graph);
  if (!result)
    result = make_executable(it, graph);
  if (graph)
    cuGraphDestroy(graph);
  if (!result && it->kind->number == UPLOADED)
    result = TRY(cuGraphUpload, it->object, kind_stream);
  else if (!result && it->kind->number != UPLOADED_AT_ONCE)
    result = TRY(cuGraphLaunch, it->object, kind_stream);
  if (result && it->object)
    cuGraphExecDestroy(it->object);
  return result;
}
static int give_graph(struct allocation *it) {
  bool launched = it->kind->number < UPLOADED; /* else it never ran, and there is no allocation to free */
  int result = launched ? give_ordered(it) : cuStreamSynchronize(kind_stream);
  if (!result)
    result = TRY(cuGraphExecDestroy, it->object);
  return result ? result : TRY(cuDeviceGraphMemTrim, it->kind->place == ELSEWHERE);
}

/* ---- all of them ---- */

static const struct kind kinds[] = {
    {"linear", "linear", 1, take_linear, give_linear, 0, 0},
    {"managed", "managed", 1, take_managed, give_linear, 0, 0},
    {"pitched", "pitched", 1024, take_pitched, give_linear, 0, 0},
    {"array", "array", ROW_BYTES, take_array, give_array, 0, 0},
    {"array_3d", "array of three dimensions", LAYER_BYTES, take_array_3d, give_array, 0, 0},
    {"array_v1", NULL, ROW_BYTES, take_array_v1, give_array, 0, 0},
    {"array_3d_v1", NULL, LAYER_BYTES, take_array_3d_v1, give_array, 0, 0},
    {"mipmap_flat", "mipmapped array", ROW_BYTES, take_mipmap, give_mipmap, 0, 1},
    {"mipmap", NULL, ROW_BYTES, take_mipmap, give_mipmap, 0, 4},
    {"stream_ordered", "stream-ordered", POOL_BYTES, take_ordered, give_ordered, 0, 0},
    {"stream_ordered_ptsz", NULL, POOL_BYTES, take_ordered_ptsz, give_ordered_ptsz, 0, 0},
    {"default_pool", NULL, POOL_BYTES, take_default_pool, give_ordered, 0, 0},
    {"default_pool_ptsz", NULL, POOL_BYTES, take_default_pool_ptsz, give_ordered_ptsz, 0, 0},
    {"pool", "from a pool", POOL_BYTES, take_pool, give_pool, 1, 0},
    {"physical", NULL, GRAIN_BYTES, take_physical, give_physical, 0, 0},
    {"released", "physical, mapped", GRAIN_BYTES, take_released, unmap_physical, 0, 0},
    {"retained", NULL, GRAIN_BYTES, take_retained, give_handle, 0, 0},
    {"segments", NULL, GRAIN_BYTES, take_segments, unmap_physical, 0, 0},
    {"external", NULL, 1, take_external, give_external, 0, 0},
    {"graph_node", "graph node", GRAIN_BYTES, take_graph, give_graph, BY_ITS_FUNCTION, WITH_FLAGS},
    {"graph_elsewhere", NULL, GRAIN_BYTES, take_graph, give_graph, ELSEWHERE, WITH_FLAGS},
    {"graph_captured", NULL, GRAIN_BYTES, take_graph, give_graph, CAPTURED, WITH_FLAGS},
    {"graph_generic", NULL, GRAIN_BYTES, take_graph, give_graph, GENERIC, WITH_FLAGS},
    {"graph_generic_v2", NULL, GRAIN_BYTES, take_graph, give_graph, GENERIC_V2, WITH_FLAGS},
    {"graph_uploaded", NULL, GRAIN_BYTES, take_graph, give_graph, BY_ITS_FUNCTION, UPLOADED},
    {"graph_uploaded_at_once", NULL, GRAIN_BYTES, take_graph, give_graph, BY_ITS_FUNCTION, UPLOADED_AT_ONCE},
    {"graph_with_params", NULL, GRAIN_BYTES, take_graph, give_graph, BY_ITS_FUNCTION, WITH_PARAMS},
    {"graph_with_log", NULL, GRAIN_BYTES, take_graph, give_graph, BY_ITS_FUNCTION, WITH_LOG},
    {"graph_with_log_v2", NULL, GRAIN_BYTES, take_graph, give_graph, BY_ITS_FUNCTION, WITH_LOG_V2},
    {"host", NULL, 1, take_host, give_host, 0, 0},
    {"physical_elsewhere", NULL, GRAIN_BYTES, take_unmapped, give_handle, 1, 1},
    {"physical_of_host", NULL, GRAIN_BYTES, take_unmapped, give_handle, 2, 0},
    {"physical_of_node", NULL, GRAIN_BYTES, take_unmapped, give_handle, 3, 0},
    {"physical_near", NULL, GRAIN_BYTES, take_unmapped, give_handle, 4, 0},
    {"pool_elsewhere", NULL, POOL_BYTES, take_pool, give_pool, 1, 1},
    {"pool_of_node", NULL, POOL_BYTES, take_pool, give_pool, 3, 0},
};
#define KINDS (sizeof kinds / sizeof *kinds)

static inline int take_kind(struct allocation *it, const struct kind *kind, size_t bytes) {
  *it = (struct allocation){.kind = kind};
  return kind->take(it, bytes);
}
static inline size_t free_bytes(void) {
  size_t free_now = 0, total = 0;
  CALL(cuMemGetInfo, &free_now, &total);
  return free_now;
}

/* Try a kind at the cap. One byte more than is free must be refused, and must change nothing. All that is free, rounded
 * down to the kind's step, must be given; then not one byte more. Returns NULL, or what was otherwise. */
static inline const char *fill_kind(const struct kind *kind, size_t cap_bytes) {
  struct allocation whole, more;
  size_t available = free_bytes();
  if (available > cap_bytes)
    return "more is free than the cap";
  int result = take_kind(&more, kind, available + 1);
  if (result == SUCCESS) {
    kind->give(&more);
    return "more than the cap was given";
  }
  if (result != ERROR_OUT_OF_MEMORY)
    return result == ERROR_NOT_SUPPORTED ? "not supported" : error_name(result);
  if (free_bytes() != available)
    return "a refused allocation changed what is free";
  result = take_kind(&whole, kind, available - available % kind->step);
  if (result == ERROR_NOT_SUPPORTED)
    return "not supported";
  if (result != SUCCESS)
    return available < kind->step ? "less is free than it takes at least" : "what is free could not be allocated";
  size_t left = free_bytes();
  result = take_kind(&more, kind, left + 1);
  if (result == SUCCESS)
    kind->give(&more);
  if (kind->give(&whole) != SUCCESS)
    return "it could not be freed";
  if (left != available % kind->step)
    return "what is left is not what was free less what was given";
  if (result != ERROR_OUT_OF_MEMORY)
    return "a byte was given past the cap";
  return free_bytes() == available ? NULL : "memory was lost";
}

/* Fill the cap by every kind with a title, `rounds` times, and print the result after what `begin` (or NULL) prints. */
static inline void fill_kinds(uint64_t rounds, size_t cap_bytes, void (*begin)(void)) {
  size_t before = free_bytes();
  const char *faults[KINDS] = {0}, *comma = "";
  for (uint64_t round = 0; round < rounds; round++)
    for (size_t i = 0; i < KINDS; i++)
      if (kinds[i].title && !faults[i])
        faults[i] = fill_kind(&kinds[i], cap_bytes);
  if (begin)
    begin();
  printf(", \"free_bytes\": %zu, \"lost_bytes\": %lld, \"rounds\": %" PRIu64 ", \"kinds\": {", before,
         (long long)before - (long long)free_bytes(), rounds);
  for (size_t i = 0; i < KINDS; i++)
    if (kinds[i].title) {
      printf("%s\"%s\": \"%s\"", comma, kinds[i].title, faults[i] ? faults[i] : "exact");
      comma = ", ";
    }
  putchar('}');
}

#endif
