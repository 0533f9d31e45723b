/* Names and texts of errors, from errors.def. CUDA's documentation tells what the exported functions do; a comment at
 * one tells only what is special here. */
#include "simgpu/api/abi.h"

static const struct {
  CUresult number;
  const char *name, *text;
} rows[] = {
#define X(name, number, text) {number, #name, text},
#include "simgpu/api/errors.def"
#undef X
};

/* The row of an error; -1: there is none. */
static int find(CUresult number) {
  for (int n = 0; n < (int)(sizeof rows / sizeof *rows); n++)
    if (rows[n].number == number)
      return n;
  return -1;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **out) {
  int n = find(error);
  *out = n < 0 ? NULL : rows[n].name;
  return n < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **out) {
  int n = find(error);
  *out = n < 0 ? NULL : rows[n].text;
  return n < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
