/*
 * What the simulated libnvidia-ml exports: the rows of nvml.def. Each of them is a weak function here, which says that
 * it is not supported; where another file has a model of it, that one is linked instead. Therefore this file may see no
 * prototypes of them.
 */
#include "simgpu/nvml/nvml.h"

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
