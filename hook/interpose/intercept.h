/*
 * The macros of all wrappers.
 *
 * A wrapped symbol is two functions around one body:
 *   name            exported: linked programs and RTLD_DEFAULT find it. It calls what the program would have found
 *                   without the hook: the next definition in search order, which may be the driver's or a tool's.
 *   sp_wrap_name    calls the driver itself. A program that asks the driver for an address gets this one if `name`
 *                   would call a tool; else it gets `name`, so that a function has one address however it is found,
 *                   and a patch of its code sees every call.
 * A tool behind us may call the second while we are inside the first, and a driver may call its own exports. So only
 * the outermost call of a thread does the accounting (jump.c decides which one that is).
 */
#ifndef SHAREPOD_INTERCEPT_H
#define SHAREPOD_INTERCEPT_H

#include <stdbool.h>
#include <stddef.h>

#include "driver/cuda.h"

#pragma GCC visibility push(hidden)

enum sp_row {
#define WRAPPED(name, since, class, action, subject, reason) SP_ROW_##name,
#include "driver/wrapped.h"
#include "region/order.h"
  SP_ROW_COUNT
};

extern void *sp_real[SP_ROW_COUNT]; /* the driver's own exports; NULL until the driver is loaded */
extern void *sp_next[SP_ROW_COUNT]; /* the function that the exported name calls; NULL until first used */

/* The thread's outermost call that is under way. */
struct sp_outermost {
  const void *frame;  /* the stack frame of our wrapper that makes it; NULL: none is under way */
  const void *caller; /* an address in the code that called the wrapper */
};
extern _Thread_local struct sp_outermost sp_outermost __attribute__((tls_model("initial-exec")));

/* The slow halves of the two lookups below; `caller`: an address in the calling code. Neither changes errno. */
void *sp_find_real(enum sp_row row);
void *sp_find_next(enum sp_row row, const void *caller);

/* The wrapper to return instead of `address`; `address` itself if it is not a wrapped export of the driver. */
void *sp_wrapper_of(void *address);

/* Was this call, from the code at `caller`, made inside the outermost call, and is that really under way? If it is not,
 * what it left behind is undone. */
bool sp_still_inside(const void *caller);

/* The result of a wrapper that has no function to call: the program found our name, but no driver is loaded, or the
 * driver lacks the function. Does not change errno. */
CUresult sp_unavailable(enum sp_row row);

#pragma GCC visibility pop

/* The driver's own export; NULL: there is none. */
static inline void *sp_real_of(enum sp_row row) {
  void *function = sp_load(&sp_real[row]);
  return __builtin_expect(function != NULL, 1) ? function : sp_find_real(row);
}

/* What the code at `caller` would have found for the exported name without us; NULL: nothing. */
static inline void *sp_next_of(enum sp_row row, const void *caller) {
  void *function = sp_load(&sp_next[row]);
  return __builtin_expect(function != NULL, 1) ? function : sp_find_next(row, caller);
}

/* Was this call made inside another one of the thread? If not, it is the outermost, and its caller is noted. */
static inline bool sp_inside(const void *caller) {
  if (__builtin_expect(sp_outermost.frame != NULL, 0) && sp_still_inside(caller))
    return true;
  sp_outermost.caller = caller;
  return false;
}

/* The thread's outermost call begins: from here on wrappers that are called further down the stack are inside it. */
static inline __attribute__((always_inline)) void sp_outermost_begin(void) {
  sp_outermost.frame = __builtin_frame_address(0);
}

/* The outermost call has returned. */
static inline void sp_outermost_end(void) {
  sp_outermost.frame = NULL;
}

#define SP_EXPORT    __attribute__((visibility("default")))
#define SP_BARE(...) __VA_ARGS__

/*
 * SP_WRAPPER(cuEventSynchronize, (CUevent event), (event)) { body; `real` is the function to call }
 * Inside the body the driver is called through SP_CALL, or between sp_outermost_begin and sp_outermost_end. Our own
 * code that may wait is also put between these two.
 */
#define SP_WRAPPER(name, parameters, arguments)                                                                        \
  typedef CUresult name##_function parameters;                                                                         \
  static inline CUresult around_##name(name##_function *real, SP_BARE parameters);                                     \
  SP_EXPORT CUresult name parameters;                                                                                  \
  extern CUresult sp_own_##name parameters __attribute__((alias(#name), visibility("hidden")));                        \
  CUresult sp_wrap_##name parameters;                                                                                  \
  CUresult name parameters {                                                                                           \
    name##_function *real = (name##_function *)sp_next_of(SP_ROW_##name, __builtin_return_address(0));                 \
    if (real == NULL) {                                                                                                \
      return sp_unavailable(SP_ROW_##name);                                                                            \
    }                                                                                                                  \
    return sp_inside(__builtin_return_address(0)) ? real arguments : around_##name(real, SP_BARE arguments);           \
  }                                                                                                                    \
  CUresult sp_wrap_##name parameters {                                                                                 \
    name##_function *real = (name##_function *)sp_real_of(SP_ROW_##name);                                              \
    if (real == NULL) {                                                                                                \
      return sp_unavailable(SP_ROW_##name);                                                                            \
    }                                                                                                                  \
    return sp_inside(__builtin_return_address(0)) ? real arguments : around_##name(real, SP_BARE arguments);           \
  }                                                                                                                    \
  static inline CUresult around_##name(name##_function *real, SP_BARE parameters)

/* The same for a function without parameters. */
#define SP_WRAPPER_VOID(name)                                                                                          \
  typedef CUresult name##_function(void);                                                                              \
  static inline CUresult around_##name(name##_function *real);                                                         \
  SP_EXPORT CUresult name(void);                                                                                       \
  extern CUresult sp_own_##name(void) __attribute__((alias(#name), visibility("hidden")));                             \
  CUresult sp_wrap_##name(void);                                                                                       \
  CUresult name(void) {                                                                                                \
    name##_function *real = (name##_function *)sp_next_of(SP_ROW_##name, __builtin_return_address(0));                 \
    return real == NULL                             ? sp_unavailable(SP_ROW_##name)                                    \
           : sp_inside(__builtin_return_address(0)) ? real()                                                           \
                                                    : around_##name(real);                                             \
  }                                                                                                                    \
  CUresult sp_wrap_##name(void) {                                                                                      \
    name##_function *real = (name##_function *)sp_real_of(SP_ROW_##name);                                              \
    return real == NULL                             ? sp_unavailable(SP_ROW_##name)                                    \
           : sp_inside(__builtin_return_address(0)) ? real()                                                           \
                                                    : around_##name(real);                                             \
  }                                                                                                                    \
  static inline CUresult around_##name(name##_function *real)

/* Make the outermost call: the driver's, by `call`, with its result in `result`. */
#define SP_CALL(result, call)                                                                                          \
  do {                                                                                                                 \
    sp_outermost_begin();                                                                                              \
    (result) = (call);                                                                                                 \
    sp_outermost_end();                                                                                                \
  } while (0)

#endif
