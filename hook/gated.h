/* The frame of every wrapper that passes the gate: what launch.c and copy.c share. */
#ifndef SHAREPOD_GATED_H
#define SHAREPOD_GATED_H

#include "gate.h"
#include "intercept.h"

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
    sp_gate_enter(&pass, (stream), (per_thread), (key));                                                               \
    SP_CALL(result, (call));                                                                                           \
    sp_gate_leave(&pass, result);                                                                                      \
    return result;                                                                                                     \
  } while (0)

/* Copies and memsets have no function handle: the driver's function that does them is one. */
#define KEY_OF(bytes) sp_unit_key((const void *)real, size_class(bytes), 0)

#endif
