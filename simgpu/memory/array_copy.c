/* Copies of contiguous bytes to and from arrays. Offsets count the array's bytes row by row. CUDA's documentation
 * tells what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/api/process.h"

/* The address of bytes inside an array. 0: there is no such array, or some of the bytes lie outside. */
static CUdeviceptr at(CUarray array, size_t offset, size_t bytes) {
  struct extent extent;
  if (!find_array(array, &extent))
    return 0;
  size_t all = extent.pitch * extent.height * extent.depth;
  return offset <= all && bytes <= all - offset ? extent.address + offset : 0;
}

/* The body of the copying calls. It refuses an address of 0, which `at` returns for bytes that are in no array. */
static CUresult copy(CUstream stream, CUdeviceptr dst, CUdeviceptr src, size_t bytes, bool blocking) {
  return dst && src ? transfer(stream, flat(dst, src, bytes), blocking) : CUDA_ERROR_INVALID_VALUE;
}

#define HOST(p)       ((CUdeviceptr)(uintptr_t)(p))
#define PER_THREAD(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

/* A copying call: its blocking form, its stream form, and both for the per-thread default stream. `dst` and `src` are
 * the addresses of the bytes. */
#define COPY(name, parameters, dst, src)                                                                               \
  EXPORT CUresult name##_v2 parameters {                                                                               \
    return copy(NULL, dst, src, bytes, true);                                                                          \
  }                                                                                                                    \
  EXPORT CUresult name##_v2_ptds parameters {                                                                          \
    return copy(CU_STREAM_PER_THREAD, dst, src, bytes, true);                                                          \
  }
#define COPY_ASYNC(name, dst, src, ...)                                                                                \
  EXPORT CUresult name##_v2(__VA_ARGS__, CUstream stream) {                                                            \
    return copy(stream, dst, src, bytes, false);                                                                       \
  }                                                                                                                    \
  EXPORT CUresult name##_v2_ptsz(__VA_ARGS__, CUstream stream) {                                                       \
    return copy(PER_THREAD(stream), dst, src, bytes, false);                                                           \
  }

COPY(cuMemcpyAtoH, (void *to, CUarray from, size_t offset, size_t bytes), HOST(to), at(from, offset, bytes))
COPY(cuMemcpyHtoA, (CUarray to, size_t offset, const void *from, size_t bytes), at(to, offset, bytes), HOST(from))
COPY(cuMemcpyAtoD, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes), to, at(from, offset, bytes))
COPY(cuMemcpyDtoA, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes), at(to, offset, bytes), from)
COPY(cuMemcpyAtoA, (CUarray to, size_t to_offset, CUarray from, size_t offset, size_t bytes), at(to, to_offset, bytes),
     at(from, offset, bytes))
COPY_ASYNC(cuMemcpyAtoHAsync, HOST(to), at(from, offset, bytes), void *to, CUarray from, size_t offset, size_t bytes)
COPY_ASYNC(cuMemcpyHtoAAsync, at(to, offset, bytes), HOST(from), CUarray to, size_t offset, const void *from,
           size_t bytes)

/* CUDA 2: sizes of 32 bits. The calls with a device address have 32-bit addresses as well, and are not simulated. */
EXPORT CUresult cuMemcpyAtoH(void *to, CUarray from, unsigned offset, unsigned bytes) {
  return cuMemcpyAtoH_v2(to, from, offset, bytes);
}
EXPORT CUresult cuMemcpyHtoA(CUarray to, unsigned offset, const void *from, unsigned bytes) {
  return cuMemcpyHtoA_v2(to, offset, from, bytes);
}
EXPORT CUresult cuMemcpyAtoA(CUarray to, unsigned to_offset, CUarray from, unsigned offset, unsigned bytes) {
  return cuMemcpyAtoA_v2(to, to_offset, from, offset, bytes);
}
EXPORT CUresult cuMemcpyAtoHAsync(void *to, CUarray from, unsigned offset, unsigned bytes, CUstream stream) {
  return cuMemcpyAtoHAsync_v2(to, from, offset, bytes, stream);
}
EXPORT CUresult cuMemcpyHtoAAsync(CUarray to, unsigned offset, const void *from, unsigned bytes, CUstream stream) {
  return cuMemcpyHtoAAsync_v2(to, offset, from, bytes, stream);
}
