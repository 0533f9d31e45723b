/*
 * buffers: the memory of a trace as replay.c holds it: what is allocated now, and what copies move.
 */
#ifndef SHAREPOD_BENCH_BUFFERS_H
#define SHAREPOD_BENCH_BUFFERS_H

#include <stdatomic.h>

#include "trace.h"

#define ATTACH_GLOBAL 1u

static struct {
  device_pointer pointers[TABLE_MAX];
  size_t bytes[TABLE_MAX];
  enum memory kinds[TABLE_MAX];
  _Atomic uint64_t now, peak;
} memory;

/* What copies move: of no meaning, as large as the largest of them. */
static struct {
  void *host;
  device_pointer device, other;
} scratch;

static void account(enum memory kind, size_t bytes) {
  if (kind == HOST)
    return;
  uint64_t now = atomic_fetch_add(&memory.now, bytes) + bytes, peak = atomic_load(&memory.peak);
  while (now > peak && !atomic_compare_exchange_weak(&memory.peak, &peak, now))
    ;
}

static void take(uint64_t buffer, enum memory kind, size_t bytes, void *stream) {
  size_t pitch;
  if (memory.bytes[buffer])
    die("buffer %" PRIu64 " is allocated twice", buffer);
  switch (kind) {
  case LINEAR:
    CALL(cuMemAlloc, &memory.pointers[buffer], bytes);
    break;
  case MANAGED:
    CALL(cuMemAllocManaged, &memory.pointers[buffer], bytes, ATTACH_GLOBAL);
    break;
  case PITCHED:
    CALL(cuMemAllocPitch, &memory.pointers[buffer], &pitch, bytes, 1, 4);
    break;
  case ASYNC:
    CALL(cuMemAllocAsync, &memory.pointers[buffer], bytes, stream);
    break;
  case HOST:
    CALL(cuMemHostAlloc, (void **)&memory.pointers[buffer], bytes, HOST_PORTABLE_MAPPED);
    break;
  }
  memory.bytes[buffer] = bytes;
  memory.kinds[buffer] = kind;
  account(kind, bytes);
}

static void give(uint64_t buffer, void *stream) {
  if (!memory.bytes[buffer])
    die("buffer %" PRIu64 " is freed and was not allocated", buffer);
  if (memory.kinds[buffer] == ASYNC)
    CALL(cuMemFreeAsync, memory.pointers[buffer], stream);
  else if (memory.kinds[buffer] == HOST)
    CALL(cuMemFreeHost, (void *)(uintptr_t)memory.pointers[buffer]);
  else
    CALL(cuMemFree, memory.pointers[buffer]);
  if (memory.kinds[buffer] != HOST)
    atomic_fetch_sub(&memory.now, memory.bytes[buffer]);
  memory.bytes[buffer] = 0;
}

static void make_scratch(size_t bytes) {
  CALL(cuMemHostAlloc, &scratch.host, bytes, HOST_PORTABLE_MAPPED);
  CALL(cuMemAlloc, &scratch.device, bytes);
  CALL(cuMemAlloc, &scratch.other, bytes);
}

static void copy(enum direction direction, size_t bytes, void *stream, bool blocking) {
  if (!bytes)
    return;
  if (direction == HTOD && blocking)
    CALL(cuMemcpyHtoD, scratch.device, scratch.host, bytes);
  else if (direction == HTOD)
    CALL(cuMemcpyHtoDAsync, scratch.device, scratch.host, bytes, stream);
  else if (direction == DTOH && blocking)
    CALL(cuMemcpyDtoH, scratch.host, scratch.device, bytes);
  else if (direction == DTOH)
    CALL(cuMemcpyDtoHAsync, scratch.host, scratch.device, bytes, stream);
  else if (direction == DTOD)
    CALL(cuMemcpyDtoDAsync, scratch.other, scratch.device, bytes, stream);
  else
    CALL(cuMemsetD8Async, scratch.device, 0, bytes, stream);
}

#endif
