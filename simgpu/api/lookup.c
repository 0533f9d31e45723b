/* Lookups by a program: functions by name, and the private tables of NVIDIA's runtime. CUDA's documentation tells
 * what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/api/process.h"
#include "simgpu/api/symbols.h"

#include <string.h>

#define PER_THREAD_DEFAULT_STREAM 2u /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; CUDA 7 brought such streams */

/* `version` is the CUDA version that the program was built for. *status, if asked for, tells why nothing was found. */
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
  if (!name || !*name || !out || flags > PER_THREAD_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;
  int (*function)(void);
  enum lookup lookup = find_symbol(name, version, flags == PER_THREAD_DEFAULT_STREAM && version >= 7000, &function);
  memcpy(out, &function, sizeof function);
  if (status)
    *status = (int)lookup;
  return lookup == SYMBOL_FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

/* No table is known here, so the validity check of NVIDIA's runtime gets no answer. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  (void)id;
  if (table)
    *table = NULL;
  return not_supported("cuGetExportTable");
}
