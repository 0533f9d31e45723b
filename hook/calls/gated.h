/* The frames of the wrappers that pass the gate, and of those of copies that do not: what launch.c, copy.c and sync.c
 * share. */
#ifndef SHAREPOD_GATED_H
#define SHAREPOD_GATED_H

#include "hook/gate/gate.h"
#include "hook/interpose/intercept.h"

/* A size as a class of sizes that take about the same time: the top three bits of it. */
static inline uint64_t size_class(uint64_t bytes) {
  if (bytes < 8) {
    return bytes;
  }
  int low = 61 - __builtin_clzll(bytes);
  return bytes >> low << low;
}

#define GATED(stream, per_thread, key, call)                                                                           \
  do {                                                                                                                 \
    struct sp_pass pass;                                                                                               \
    CUresult result;                                                                                                   \
    sp_outermost_begin();                                                                                              \
    sp_gate_enter(&pass, (stream), (per_thread), (key));                                                               \
    result = (call);                                                                                                   \
    sp_gate_leave(&pass, result);                                                                                      \
    sp_outermost_end();                                                                                                \
    return result;                                                                                                     \
  } while (0)

/* A copy of host memory: never gated, and counted once the driver has taken it. What follows it in its stream waits. */
#define COUNTED(stream, per_thread, way, bytes, call)                                                                  \
  do {                                                                                                                 \
    CUresult result;                                                                                                   \
    sp_outermost_begin();                                                                                              \
    sp_gate_awaiting((stream), (per_thread), SP_AWAITS_HOST);                                                          \
    result = (call);                                                                                                   \
    sp_outermost_end();                                                                                                \
    if (result == CUDA_SUCCESS) {                                                                                      \
      sp_copied((stream), (per_thread), (way), (bytes), 1);                                                            \
    }                                                                                                                  \
    return result;                                                                                                     \
  } while (0)

/* Copies and memsets have no function handle: the driver's function that does them is one. */
#define KEY_OF(bytes) sp_unit_key((const void *)real, size_class(bytes), 0)

#endif
