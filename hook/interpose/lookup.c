/*
 * Wrappers of both forms of cuGetProcAddress. The driver answers first; version, flags and status pass through
 * unchanged.
 */
#include "hook/interpose/intercept.h"

SP_WRAPPER(cuGetProcAddress, (const char *symbol, void **address, int version, uint64_t flags),
           (symbol, address, version, flags)) {
  CUresult result = real(symbol, address, version, flags);
  if (result == CUDA_SUCCESS && address != NULL) {
    *address = sp_wrapper_of(*address);
  }
  return result;
}

SP_WRAPPER(cuGetProcAddress_v2, (const char *symbol, void **address, int version, uint64_t flags, int *status),
           (symbol, address, version, flags, status)) {
  CUresult result = real(symbol, address, version, flags, status);
  if (result == CUDA_SUCCESS && address != NULL) {
    *address = sp_wrapper_of(*address);
  }
  return result;
}
