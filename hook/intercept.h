/*
 * The frame of every wrapper.
 *
 * A wrapped symbol is two functions around one body:
 *   name            exported; what linked programs and RTLD_DEFAULT find. It goes on to what the program would have
 *                   found without the hook: the next definition in search order, be it the driver's or a tool's.
 *   sp_wrap_name    handed out where the program was about to get the address of the driver's own export. It goes on
 *                   to the driver.
 * A tool behind us may come back through the second while we are inside the first, and a driver may call its own
 * exports: sp_inside lets the outermost call of a thread alone do the accounting.
 */
#ifndef SHAREPOD_INTERCEPT_H
#define SHAREPOD_INTERCEPT_H

#include <stdbool.h>
#include <stddef.h>

#include "../driver/cuda.h"

#pragma GCC visibility push(hidden)

enum sp_row {
#define WRAPPED(name, since, class, action, subject, reason) SP_ROW_##name,
#include "../driver/wrapped.h"
  SP_ROW_COUNT
};

extern void *sp_real[SP_ROW_COUNT]; /* the driver's own exports; NULL until it is loaded */
extern void *sp_next[SP_ROW_COUNT]; /* what the exported name goes on to; NULL until first used */
extern _Thread_local bool sp_inside __attribute__((tls_model("initial-exec")));

/* The slow halves of the two lookups below; `caller` is an address in the code that calls. errno survives. */
void *sp_find_real(enum sp_row row);
void *sp_find_next(enum sp_row row, const void *caller);

/* The wrapper to hand out instead of `address`, or `address` when it is not a wrapped export of the driver. */
void *sp_wrapper_of(void *address);

/* The answer of a wrapper that has nothing to go on to: the program found our name, but no driver is loaded, or it
 * lacks the function. errno survives. */
CUresult sp_unavailable(enum sp_row row);

#pragma GCC visibility pop

static inline void *sp_real_of(enum sp_row row) {
  void *function = __atomic_load_n(&sp_real[row], __ATOMIC_RELAXED);
  return __builtin_expect(function != NULL, 1) ? function : sp_find_real(row);
}

static inline void *sp_next_of(enum sp_row row, const void *caller) {
  void *function = __atomic_load_n(&sp_next[row], __ATOMIC_RELAXED);
  return __builtin_expect(function != NULL, 1) ? function : sp_find_next(row, caller);
}

#define SP_EXPORT    __attribute__((visibility("default")))
#define SP_BARE(...) __VA_ARGS__

/*
 * SP_WRAPPER(cuEventSynchronize, (CUevent event), (event)) { body; `real` is the function to call }
 * Inside the body the driver is called through SP_CALL, which marks the thread as inside.
 */
#define SP_WRAPPER(name, parameters, arguments)                                                                        \
  typedef CUresult name##_function parameters;                                                                         \
  static inline CUresult around_##name(name##_function *real, SP_BARE parameters);                                     \
  SP_EXPORT CUresult name parameters;                                                                                  \
  CUresult sp_wrap_##name parameters;                                                                                  \
  CUresult name parameters {                                                                                           \
    name##_function *real = (name##_function *)sp_next_of(SP_ROW_##name, __builtin_return_address(0));                 \
    if (real == NULL) {                                                                                                \
      return sp_unavailable(SP_ROW_##name);                                                                            \
    }                                                                                                                  \
    return sp_inside ? real arguments : around_##name(real, SP_BARE arguments);                                        \
  }                                                                                                                    \
  CUresult sp_wrap_##name parameters {                                                                                 \
    name##_function *real = (name##_function *)sp_real_of(SP_ROW_##name);                                              \
    if (real == NULL) {                                                                                                \
      return sp_unavailable(SP_ROW_##name);                                                                            \
    }                                                                                                                  \
    return sp_inside ? real arguments : around_##name(real, SP_BARE arguments);                                        \
  }                                                                                                                    \
  static inline CUresult around_##name(name##_function *real, SP_BARE parameters)

/* The same for a function without parameters. */
#define SP_WRAPPER_VOID(name)                                                                                          \
  typedef CUresult name##_function(void);                                                                              \
  static inline CUresult around_##name(name##_function *real);                                                         \
  SP_EXPORT CUresult name(void);                                                                                       \
  CUresult sp_wrap_##name(void);                                                                                       \
  CUresult name(void) {                                                                                                \
    name##_function *real = (name##_function *)sp_next_of(SP_ROW_##name, __builtin_return_address(0));                 \
    return real == NULL ? sp_unavailable(SP_ROW_##name) : sp_inside ? real() : around_##name(real);                    \
  }                                                                                                                    \
  CUresult sp_wrap_##name(void) {                                                                                      \
    name##_function *real = (name##_function *)sp_real_of(SP_ROW_##name);                                              \
    return real == NULL ? sp_unavailable(SP_ROW_##name) : sp_inside ? real() : around_##name(real);                    \
  }                                                                                                                    \
  static inline CUresult around_##name(name##_function *real)

#define SP_CALL(result, call)                                                                                          \
  do {                                                                                                                 \
    sp_inside = true;                                                                                                  \
    (result) = (call);                                                                                                 \
    sp_inside = false;                                                                                                 \
  } while (0)

#endif
