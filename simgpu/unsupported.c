/* Real calls that are not simulated: present, so that a client sees CUDA_ERROR_NOT_SUPPORTED and the log says which. */
#include "process.h"

#define X(name)                                                                                                        \
  EXPORT CUresult name(void);                                                                                          \
  EXPORT CUresult name(void) {                                                                                         \
    return not_supported(#name);                                                                                       \
  }
#include "unsupported.def"
#undef X

/* Private tables of NVIDIA's own runtime; its validity check finds no answer here. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id);
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  (void)id;
  if (table)
    *table = NULL;
  return not_supported("cuGetExportTable");
}
EXPORT CUresult cuProfilerStart(void) {
  return ready();
}
EXPORT CUresult cuProfilerStop(void) {
  return ready();
}
