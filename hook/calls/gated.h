/* Macros for wrappers that pass the gate, and for wrappers of copies that do not. launch.c, copy.c and sync.c use them.
 */
#ifndef SHAREPOD_GATED_H
#define SHAREPOD_GATED_H

#include "hook/gate/gate.h"
#include "hook/interpose/intercept.h"

/* The class of a size: its top three bits. Sizes of one class take about the same time. */
static inline uint64_t size_class(uint64_t bytes) {
  if (bytes < 8) {
    return bytes;
  }
  int low = 61 - __builtin_clzll(bytes);
  return bytes >> low << low;
}

/* Pass the gate, make the launch by `call`, tell the gate its result, and return that from the wrapper. */
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

/* A copy of host memory: never gated, and counted once the driver has accepted it. Later work in its stream waits for
 * it.
 */
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

/* Copies and memsets have no function handle: the address of the driver's function serves as one. */
#define KEY_OF(bytes) sp_work_key((const void *)real, size_class(bytes), 0)

#endif
