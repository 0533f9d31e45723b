/* The rows of nvml.def that the hook wraps. Define the macro NVML_WRAPPED before including this; it is undefined after.
 */
#define NVML(name)
#include "nvml.def"
#undef NVML_WRAPPED
#undef NVML
