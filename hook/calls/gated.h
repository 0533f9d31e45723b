/* Macros for wrappers that pass the gate, and for wrappers of copies that do not. launch.c, copy.c and sync.c use them.
 */
#ifndef SHAREPOD_GATED_H
#define SHAREPOD_GATED_H

#include "hook/gate/gate.h"
#include "hook/interpose/intercept.h"

/* The class of a size: its top three bits, the others 0. Sizes of one class take about the same time. */
static inline uint64_t size_class(uint64_t bytes) {
  if (bytes < 8) {
    return bytes;
  }
  int low_bits = 61 - __builtin_clzll(bytes);
  return bytes >> low_bits << low_bits;
}

/* The body of a wrapper that is gated: pass the gate for a launch of the unit `key` into `stream`, make it by `call`,
 * tell the gate its result, and return that from the wrapper. `per_thread`: stream 0 is the calling thread's own. */
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

/* The body of a wrapper of a copy from or to host memory: never gated, and counted (`way`, `bytes`) once the driver has
 * accepted it. Later work in its stream waits for it. Returns from the wrapper. */
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

/* The unit's key of a copy or memset of `bytes`. It has no function handle: the address of the driver's function serves
 * as one. */
#define KEY_OF(bytes) sp_work_key((const void *)real, size_class(bytes), 0)

#endif
