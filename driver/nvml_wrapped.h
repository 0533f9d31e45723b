/* The rows of nvml.def that the hook wraps, for the macro NVML_WRAPPED that stands before this, undefined after. */
#define NVML(name)
#include "nvml.def"
#undef NVML_WRAPPED
#undef NVML
