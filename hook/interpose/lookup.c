/* Wrappers of both forms of cuGetProcAddress, by which a program asks the driver for the address of a function. The
 * driver answers first; if its answer is wrapped, the program gets the wrapper. Version, flags and status pass through
 * unchanged. */
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
