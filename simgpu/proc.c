#include "abi.h"
#include "symbols.h"

#include <string.h>

enum { FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT };
#define PER_THREAD_DEFAULT_STREAM 2u

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
  int verdict = SYMBOL_NOT_FOUND;
  if (!name || !*name || !out || flags > PER_THREAD_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;
  *out = NULL;
  for (size_t n = 0; n < symbol_count; n++) {
    if (strcmp(symbols[n].name, name) != 0)
      continue;
    if (symbols[n].since <= version) {
      void (*symbol)(void) = flags == PER_THREAD_DEFAULT_STREAM && version >= 7000 ? symbols[n].own : symbols[n].symbol;
      memcpy(out, &symbol, sizeof symbol);
      verdict = FOUND;
    } else if (verdict == SYMBOL_NOT_FOUND) {
      verdict = VERSION_NOT_SUFFICIENT;
    }
  }
  if (status)
    *status = verdict;
  return verdict == FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
