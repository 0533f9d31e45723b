/* The frame of every wrapper of NVML's functions: SP_WRAPPER of intercept.h for the other library. */
#ifndef SHAREPOD_NVML_WRAPPER_H
#define SHAREPOD_NVML_WRAPPER_H

#include "hook/interpose/intercept.h"
#include "hook/nvml/nvml.h"

/* NVML_WRAPPER(name, (parameters), (arguments)) { body; `real` is the function to call, through SP_CALL } */
#define NVML_WRAPPER(name, parameters, arguments)                                                                      \
  typedef int name##_function parameters;                                                                              \
  static int around_##name(name##_function *real, SP_BARE parameters);                                                 \
  SP_EXPORT int name parameters;                                                                                       \
  int sp_wrap_##name parameters __attribute__((visibility("hidden")));                                                 \
  int name parameters {                                                                                                \
    name##_function *real = (name##_function *)sp_nvml_next(SP_NVML_##name);                                           \
    return real == NULL                             ? sp_nvml_unavailable()                                            \
           : sp_inside(__builtin_return_address(0)) ? real arguments                                                   \
                                                    : around_##name(real, SP_BARE arguments);                          \
  }                                                                                                                    \
  int sp_wrap_##name parameters {                                                                                      \
    name##_function *real = (name##_function *)sp_nvml_real(SP_NVML_##name);                                           \
    return real == NULL                             ? sp_nvml_unavailable()                                            \
           : sp_inside(__builtin_return_address(0)) ? real arguments                                                   \
                                                    : around_##name(real, SP_BARE arguments);                          \
  }                                                                                                                    \
  static int around_##name(name##_function *real, SP_BARE parameters)

#endif
