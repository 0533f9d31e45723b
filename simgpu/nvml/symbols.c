/*
 * The exports of the simulated libnvidia-ml: the rows of nvml.def. Each of them is a weak function here, which returns
 * that it is not supported. If another file models a function, that one is linked instead. So no prototypes of these
 * functions may be visible in this file.
 */
#include "simgpu/nvml/nvml.h"

/* NVML_ERROR_NOT_SUPPORTED. If NVML is not open, or fails, that error comes first, as in a real library. */
static nvmlReturn_t not_simulated(void) {
  nvmlReturn_t result = nvml_enter();
  return result == NVML_SUCCESS ? nvml_leave(NVML_ERROR_NOT_SUPPORTED) : result;
}

#define NVML_WRAPPED(name) NVML(name)
#define NVML(name)                                                                                                     \
  NVML_EXPORT __attribute__((weak)) nvmlReturn_t name(void);                                                           \
  NVML_EXPORT nvmlReturn_t name(void) {                                                                                \
    return not_simulated();                                                                                            \
  }
#include "driver/nvml.def"
