/*
 * fill: an ordinary driver-API program that allocates, for the bench of the memory cap. It knows nothing of shares.
 *
 *     fill kinds [count=ROUNDS]             fill the memory that the driver says is free, to the byte, by every kind of
 *                                           allocation
 *     fill pairs [count=BATCHES] [live=N]   the host's time per allocation and free beside N live ones, in batches
 *     fill grow bytes=N every=TIME          take so much more, again and again until STOP, and keep it; what does not
 *                                           fit is asked for again
 *
 * With `wait=1` it prints "ready" when its context stands, and reads "START STOP" from stdin. The last line printed is
 * one JSON object. Exit 0, or 1 with the failing call on stderr.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "client.h"

#define ATTACH_GLOBAL   1u
#define ROW_ELEMENTS    4096u
#define GRAIN_BYTES     (2u << 20) /* what pools and physical memory come in */
#define BATCH           1000u
#define PAIR_BYTES      512u
#define TABLE_ROW_BYTES 64u /* of 32 bytes each, at least half of them free */
#define TABLE_BYTES     (1u << 20)

/* The structures of cuda.h, as far as they are needed here. */
struct location {
  int type; /* 1: a device */
  int id;
};
struct physical_properties {
  int type; /* 1: pinned */
  int handle_types;
  struct location location;
  void *win32;
  unsigned char flags[8];
};
struct pool_properties {
  int type;
  int handle_types;
  struct location location;
  void *win32;
  size_t most;
  unsigned char reserved[56];
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

/* clang-format off */
#define MEMORY(row)                                                                                                    \
  row(cuArray3DCreate, (void **, const struct array_3d_descriptor *))                                                  \
  row(cuMipmappedArrayCreate, (void **, const struct array_3d_descriptor *, unsigned))                                 \
  row(cuMipmappedArrayDestroy, (void *))                                                                               \
  row(cuMemPoolCreate, (void **, const struct pool_properties *))                                                      \
  row(cuMemAllocFromPoolAsync, (device_pointer *, size_t, void *, void *))                                             \
  row(cuMemCreate, (unsigned long long *, size_t, const struct physical_properties *, unsigned long long))             \
  row(cuMemRelease, (unsigned long long))                                                                              \
  row(cuMemAddressReserve, (device_pointer *, size_t, size_t, device_pointer, unsigned long long))                     \
  row(cuMemAddressFree, (device_pointer, size_t))                                                                      \
  row(cuMemMap, (device_pointer, size_t, size_t, unsigned long long, unsigned long long))                              \
  row(cuMemUnmap, (device_pointer, size_t))                                                                            \
  row(cuGraphCreate, (void **, unsigned))                                                                              \
  row(cuGraphDestroy, (void *))                                                                                        \
  row(cuGraphExecDestroy, (void *))                                                                                    \
  row(cuGraphAddMemAllocNode, (void **, void *, const void *, size_t, struct allocation_node *))                       \
  row(cuDeviceGraphMemTrim, (int))
/* clang-format on */
MEMORY(DECLARE)

static struct {
  uint64_t count, live, bytes, every_ns, wait;
} options = {.count = 1, .live = 100000, .bytes = 1u << 20, .every_ns = 1000000000};
static void *stream;

struct allocation {
  device_pointer pointer;
  unsigned long long physical;
  size_t bytes;
  void *array, *executable;
};

static int take_linear(struct allocation *it, size_t bytes) {
  return cuMemAlloc(&it->pointer, bytes);
}
static int give_linear(struct allocation *it) {
  return cuMemFree(it->pointer);
}

static int take_managed(struct allocation *it, size_t bytes) {
  return cuMemAllocManaged ? cuMemAllocManaged(&it->pointer, bytes, ATTACH_GLOBAL) : ERROR_NOT_SUPPORTED;
}

/* One row, so that its pitch is its size up to the driver's rounding. */
static int take_pitched(struct allocation *it, size_t bytes) {
  size_t pitch = 0;
  return cuMemAllocPitch ? cuMemAllocPitch(&it->pointer, &pitch, bytes, 1, 4) : ERROR_NOT_SUPPORTED;
}

static int take_async(struct allocation *it, size_t bytes) {
  return cuMemAllocAsync ? cuMemAllocAsync(&it->pointer, bytes, stream) : ERROR_NOT_SUPPORTED;
}
static int give_async(struct allocation *it) {
  int result = cuMemFreeAsync(it->pointer, stream);
  return result ? result : cuStreamSynchronize(stream);
}

static int take_pool(struct allocation *it, size_t bytes) {
  static void *pool;
  const struct pool_properties properties = {.type = 1, .location = {.type = 1}};
  if (!cuMemPoolCreate || !cuMemAllocFromPoolAsync)
    return ERROR_NOT_SUPPORTED;
  int result = pool ? SUCCESS : cuMemPoolCreate(&pool, &properties);
  return result ? result : cuMemAllocFromPoolAsync(&it->pointer, bytes, pool, stream);
}

static int take_array(struct allocation *it, size_t bytes) {
  struct array_descriptor descriptor = {
      .width = ROW_ELEMENTS, .format = 1, .channels = 1, .height = (bytes + ROW_ELEMENTS - 1) / ROW_ELEMENTS};
  return cuArrayCreate ? cuArrayCreate(&it->array, &descriptor) : ERROR_NOT_SUPPORTED;
}
static int give_array(struct allocation *it) {
  return cuArrayDestroy(it->array);
}

static int take_layers(struct allocation *it, size_t bytes) {
  struct array_3d_descriptor descriptor = {.width = ROW_ELEMENTS / 4,
                                           .height = 1,
                                           .depth = (bytes + ROW_ELEMENTS - 1) / ROW_ELEMENTS,
                                           .format = 0x20, /* float */
                                           .channels = 1};
  return cuArray3DCreate ? cuArray3DCreate(&it->array, &descriptor) : ERROR_NOT_SUPPORTED;
}

/* One level: more of them are never a round number. */
static int take_mipmap(struct allocation *it, size_t bytes) {
  struct array_3d_descriptor descriptor = {
      .width = ROW_ELEMENTS / 4, .height = (bytes + ROW_ELEMENTS - 1) / ROW_ELEMENTS, .format = 1, .channels = 4};
  return cuMipmappedArrayCreate ? cuMipmappedArrayCreate(&it->array, &descriptor, 1) : ERROR_NOT_SUPPORTED;
}
static int give_mipmap(struct allocation *it) {
  return cuMipmappedArrayDestroy(it->array);
}

/* As expandable segments do it: the handle goes while the memory is mapped. */
static int take_physical(struct allocation *it, size_t bytes) {
  const struct physical_properties properties = {.type = 1, .location = {.type = 1}};
  if (!cuMemCreate || !cuMemAddressReserve)
    return ERROR_NOT_SUPPORTED;
  it->bytes = (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES;
  int result = cuMemCreate(&it->physical, it->bytes, &properties, 0);
  if (result)
    return result;
  result = cuMemAddressReserve(&it->pointer, it->bytes, 0, 0, 0);
  if (!result)
    result = cuMemMap(it->pointer, it->bytes, 0, it->physical, 0);
  int released = cuMemRelease(it->physical);
  return result ? result : released;
}
static int give_physical(struct allocation *it) {
  int result = cuMemUnmap(it->pointer, it->bytes);
  return result ? result : cuMemAddressFree(it->pointer, it->bytes);
}

/* A graph that allocates: it takes its memory when it is launched, and the memory stays until it is freed. */
static int take_graph(struct allocation *it, size_t bytes) {
  struct allocation_node node = {.properties = {.type = 1, .location = {.type = 1}}, .bytes = bytes};
  void *graph = NULL, *taken = NULL;
  if (!cuGraphCreate || !cuGraphAddMemAllocNode || !cuDeviceGraphMemTrim)
    return ERROR_NOT_SUPPORTED;
  CALL(cuGraphCreate, &graph, 0);
  int result = cuGraphAddMemAllocNode(&taken, graph, NULL, 0, &node);
  if (!result)
    result = cuGraphInstantiateWithFlags(&it->executable, graph, 0);
  if (!result)
    result = cuGraphLaunch(it->executable, stream);
  it->pointer = node.address;
  cuGraphDestroy(graph);
  if (result && it->executable) {
    cuGraphExecDestroy(it->executable);
    it->executable = NULL;
  }
  return result;
}
static int give_graph(struct allocation *it) {
  int result = give_async(it);
  if (!result)
    result = cuGraphExecDestroy(it->executable);
  return result ? result : cuDeviceGraphMemTrim(0);
}

static const struct kind {
  const char *name;
  size_t grain; /* what its sizes are rounded up to, as far as they are not bytes */
  int (*take)(struct allocation *, size_t);
  int (*give)(struct allocation *);
} kinds[] = {
    {"linear", 1, take_linear, give_linear},
    {"managed", 1, take_managed, give_linear},
    {"pitched", 1, take_pitched, give_linear},
    {"array", ROW_ELEMENTS, take_array, give_array},
    {"array of three dimensions", ROW_ELEMENTS, take_layers, give_array},
    {"mipmapped array", ROW_ELEMENTS, take_mipmap, give_mipmap},
    {"stream-ordered", GRAIN_BYTES, take_async, give_async},
    {"from a pool", GRAIN_BYTES, take_pool, give_async},
    {"physical, mapped", GRAIN_BYTES, take_physical, give_physical},
    {"graph node", GRAIN_BYTES, take_graph, give_graph},
};

static size_t free_bytes(void) {
  size_t free_now = 0, total = 0;
  CALL(cuMemGetInfo, &free_now, &total);
  return free_now;
}

/* One byte more than is free must be refused and change nothing; all that is free must be given, up to the last grain;
 * then not one grain more. */
static const char *fill(const struct kind *kind) {
  struct allocation whole = {0}, more = {0};
  size_t available = free_bytes();
  int result = kind->take(&more, available + 1);
  if (result == ERROR_NOT_SUPPORTED)
    return "not supported";
  if (result != ERROR_OUT_OF_MEMORY)
    return "a byte more than is free was not refused with CUDA_ERROR_OUT_OF_MEMORY";
  if (free_bytes() != available)
    return "a refused allocation changed what is free";
  result = kind->take(&whole, available - available % kind->grain);
  if (result == ERROR_NOT_SUPPORTED)
    return "not supported";
  if (result != SUCCESS)
    return "what is free could not be allocated";
  size_t left = free_bytes();
  if (left != available % kind->grain)
    return "what is left is not what was free less what was given";
  result = kind->take(&more, left + 1);
  if (result != ERROR_OUT_OF_MEMORY)
    return "a byte was given past the cap";
  if (kind->give(&whole) != SUCCESS)
    return "free failed";
  return free_bytes() == available ? NULL : "memory was lost";
}

static void fill_kinds(void) {
  size_t before = free_bytes();
  const char *faults[sizeof kinds / sizeof *kinds] = {0};
  for (uint64_t round = 0; round < options.count; round++)
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
      if (!faults[i])
        faults[i] = fill(&kinds[i]);
  printf(", \"free_bytes\": %zu, \"lost_bytes\": %lld, \"kinds\": {", before,
         (long long)before - (long long)free_bytes());
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    printf("%s\"%s\": \"%s\"", i ? ", " : "", kinds[i].name, faults[i] ? faults[i] : "exact");
  putchar('}');
}

/* What two cache lines of a table for so many cost that are nowhere near, one after the other: any table has to read
 * one for what is freed, and one for what comes in its place. */
static void time_cold_lines(uint64_t *batch_ns) {
  size_t bytes = TABLE_BYTES;
  while (bytes < options.live * TABLE_ROW_BYTES)
    bytes *= 2;
  unsigned char *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table == MAP_FAILED)
    die("no memory");
  madvise(table, bytes, MADV_HUGEPAGE);
  memset(table, 0, bytes);
  uint64_t at = 0;
  for (uint64_t batch = 0; batch < options.count; batch++) {
    uint64_t began_ns = now_ns();
    for (uint64_t line = 0; line < 2 * BATCH; line++) {
      at = at * 6364136223846793005u + 1442695040888963407u;
      unsigned char *there = &table[(at >> 20) % bytes / 64 * 64];
      at += *there; /* the next is not looked for before this one is there */
      *there = 0;
    }
    batch_ns[batch] = now_ns() - began_ns;
  }
  munmap(table, bytes);
}

/* Beside many: allocate and free one; then free any of them and allocate another in its place, which finds nothing of
 * either in a cache. */
static void time_pairs(void) {
  device_pointer *live = allocate(options.live, sizeof *live), one;
  uint64_t *pair_ns = allocate(options.count, sizeof *pair_ns), *batch_ns = allocate(options.count, sizeof *batch_ns);
  uint64_t *cold_ns = allocate(options.count, sizeof *cold_ns);
  uint64_t at = 0;
  for (uint64_t i = 0; i < options.live; i++)
    CALL(cuMemAlloc, &live[i], PAIR_BYTES);
  for (uint64_t batch = 0; batch < options.count; batch++) {
    uint64_t began_ns = now_ns();
    for (uint64_t pair = 0; pair < BATCH; pair++) {
      CALL(cuMemAlloc, &one, PAIR_BYTES);
      CALL(cuMemFree, one);
    }
    pair_ns[batch] = now_ns() - began_ns;
  }
  for (uint64_t batch = 0; batch < options.count; batch++) {
    uint64_t began_ns = now_ns();
    for (uint64_t pair = 0; pair < BATCH; pair++) {
      at = at * 6364136223846793005u + 1442695040888963407u;
      device_pointer *any = &live[(at >> 33) % options.live];
      CALL(cuMemFree, *any);
      CALL(cuMemAlloc, any, PAIR_BYTES);
    }
    batch_ns[batch] = now_ns() - began_ns;
  }
  printf(", \"group\": %u", BATCH);
  print_list("batch_ns", pair_ns, options.count);
  print_list("any_ns", batch_ns, options.count);
  time_cold_lines(cold_ns);
  print_list("cold_ns", cold_ns, options.count);
  for (uint64_t i = 0; i < options.live; i++)
    CALL(cuMemFree, live[i]);
  free(live);
  free(pair_ns);
  free(cold_ns);
  free(batch_ns);
}

static void grow(uint64_t stop_ns) {
  uint64_t refused = 0;
  for (uint64_t due_ns = now_ns(); due_ns < stop_ns; due_ns += options.every_ns) {
    sleep_until(due_ns);
    device_pointer kept = 0;
    int result = cuMemAlloc(&kept, options.bytes);
    refused += result == ERROR_OUT_OF_MEMORY;
    if (result != ERROR_OUT_OF_MEMORY)
      check(result, "cuMemAlloc");
  }
  sleep_until(stop_ns);
  printf(", \"refused\": %" PRIu64, refused);
}

int main(int count, char **arguments) {
  const struct option known[] = {{"count", &options.count, false},
                                 {"live", &options.live, false},
                                 {"bytes", &options.bytes, false},
                                 {"every", &options.every_ns, true},
                                 {"wait", &options.wait, false}};
  const char *mode = count > 1 ? arguments[1] : "";
  bool pairs = !strcmp(mode, "pairs"), grows = !strcmp(mode, "grow");
  if (!pairs && !grows && strcmp(mode, "kinds"))
    die("usage: fill kinds|pairs|grow [option=value ...]");
  for (int i = 2; i < count; i++)
    if (parse_option(known, sizeof known / sizeof *known, arguments[i]))
      die("no option `%s`", arguments[i]);
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a bench that dies leaves no load behind */
  load_driver();
#define ONE_MEMORY(name, parameters) FIND(name, #name);
  MEMORY(ONE_MEMORY)
  CALL(cuInit, 0);
  open_context(0);
  CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  uint64_t start_ns = now_ns(), stop_ns = 0;
  if (options.wait) {
    hear_start(&start_ns, &stop_ns);
    sleep_until(start_ns);
  }
  printf("{\"pid\": %d, \"start_ns\": %" PRIu64 ", \"launches\": 0, \"work_ns\": 0", (int)getpid(), start_ns);
  if (pairs)
    time_pairs();
  else if (grows)
    grow(stop_ns);
  else
    fill_kinds();
  printf(", \"end_ns\": %" PRIu64 "}\n", now_ns());
  return 0;
}
