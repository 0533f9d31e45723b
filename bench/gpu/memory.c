/*
 * The memory cap, by every kind of allocation; plain allocations only, and nothing is ever oversubscribed: what is past
 * the cap is far below what the device has.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "probe.h"

#define ROW_BYTES   65536u   /* of an array: its height must stay below 65,536 rows */
#define BLOCK_BYTES 2097152u /* the granularity of cuMemCreate */

struct allocation {
  unsigned long long value;
  void *array;
};

static void *stream;

static int take_linear(struct allocation *it, size_t bytes) {
  return driver.cuMemAlloc(&it->value, bytes);
}
static int give_linear(struct allocation *it) {
  return driver.cuMemFree(it->value);
}
static int take_managed(struct allocation *it, size_t bytes) {
  return TRY(cuMemAllocManaged, &it->value, bytes, ATTACH_GLOBAL);
}
/* One row, so that its pitch is its size up to the driver's rounding. */
static int take_pitched(struct allocation *it, size_t bytes) {
  size_t pitch = 0;
  return TRY(cuMemAllocPitch, &it->value, &pitch, bytes, 1, 4);
}
static int take_async(struct allocation *it, size_t bytes) {
  return TRY(cuMemAllocAsync, &it->value, bytes, stream);
}
static int take_pool(struct allocation *it, size_t bytes) {
  void *pool = NULL;
  int result = TRY(cuDeviceGetDefaultMemPool, &pool, 0);
  return result ? result : TRY(cuMemAllocFromPoolAsync, &it->value, bytes, pool, stream);
}
static int give_async(struct allocation *it) {
  int result = TRY(cuMemFreeAsync, it->value, stream);
  return result ? result : driver.cuStreamSynchronize(stream);
}
static int take_array(struct allocation *it, size_t bytes) {
  struct array_descriptor descriptor = {.width = ROW_BYTES, .height = bytes / ROW_BYTES, .format = 1, .channels = 1};
  return TRY(cuArrayCreate, &it->array, &descriptor);
}
static int give_array(struct allocation *it) {
  return TRY(cuArrayDestroy, it->array);
}
static int take_block(struct allocation *it, size_t bytes) {
  struct allocation_property property = {.type = 1, .location_type = 1};
  return TRY(cuMemCreate, &it->value, bytes, &property, 0);
}
static int give_block(struct allocation *it) {
  return TRY(cuMemRelease, it->value);
}

static const struct kind {
  const char *name;
  int (*take)(struct allocation *, size_t);
  int (*give)(struct allocation *);
  size_t step; /* the least difference in size that the kind knows */
} kinds[] = {
    {"linear", take_linear, give_linear, 1},
    {"pitched", take_pitched, give_linear, 1},
    {"managed", take_managed, give_linear, 1},
    {"stream-ordered", take_async, give_async, 1},
    {"from a pool", take_pool, give_async, 1},
    {"array", take_array, give_array, ROW_BYTES},
    {"physical block", take_block, give_block, BLOCK_BYTES},
};

static size_t free_bytes(void) {
  size_t free_now = 0, total = 0;
  CALL(cuMemGetInfo, &free_now, &total);
  return free_now;
}

/* One step more than is free must be refused and change nothing; all that is free must be given; then not a step more.
 */
static const char *fill(const struct kind *kind) {
  struct allocation whole = {0}, more = {0};
  size_t available = free_bytes() / kind->step * kind->step;
  if (available > options.bytes)
    return "more is free than the cap";
  int result = kind->take(&more, available + kind->step);
  if (result == SUCCESS) {
    kind->give(&more);
    return "more than the cap was given";
  }
  if (result != ERROR_OUT_OF_MEMORY)
    return result == ERROR_NOT_SUPPORTED ? "not supported" : error_name(result);
  if (free_bytes() / kind->step * kind->step != available)
    return "a refused allocation changed what is free";
  result = kind->take(&whole, available);
  if (result != SUCCESS)
    return "what is free could not be allocated";
  result = kind->take(&more, kind->step);
  if (result == SUCCESS)
    kind->give(&more);
  if (kind->give(&whole) != SUCCESS)
    return "it could not be freed";
  if (result != ERROR_OUT_OF_MEMORY)
    return "more was given when the cap was full";
  return free_bytes() / kind->step * kind->step == available ? NULL : "memory was lost";
}

void run_memory(void) {
  CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  await_start();
  size_t before = free_bytes();
  const char *faults[sizeof kinds / sizeof *kinds] = {0};
  uint64_t rounds = options.count ? options.count : 1;
  for (uint64_t round = 0; round < rounds; round++)
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
      if (!faults[i])
        faults[i] = fill(&kinds[i]);
  begin_result(0, 0);
  printf(", \"free_bytes\": %zu, \"lost_bytes\": %lld, \"rounds\": %" PRIu64 ", \"kinds\": {", before,
         (long long)before - (long long)free_bytes(), rounds);
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    printf("%s\"%s\": \"%s\"", i ? ", " : "", kinds[i].name, faults[i] ? faults[i] : "exact");
  putchar('}');
}
