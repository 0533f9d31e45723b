/*
 * Wrappers of launches: kernels, executable graphs and memsets (copies are in copy.c). Each passes the gate, calls the
 * driver, and tells the gate the result. The gate decides what is metered: not a capturing stream, not a device outside
 * the share. A unit is what one launch runs; its length is learned under its key (sp_work_key).
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include "hook/calls/gated.h"
#include "hook/memory/graph.h"

/* The extents of a grid as one number, for the unit's key. */
static inline uint64_t pack_grid(unsigned int x, unsigned int y, unsigned int z) {
  return (uint64_t)x | (uint64_t)y << 32 | (uint64_t)z << 48; /* y and z are below 2^16 */
}

/* The extents of a block as one number, for the unit's key. */
static inline uint64_t pack_block(unsigned int x, unsigned int y, unsigned int z) {
  return (uint64_t)x | (uint64_t)y << 16 | (uint64_t)z << 32; /* x and y are at most 1024 */
}

/* A kernel: its unit is the function with its grid and block. In all families `per_thread` is true for the names _ptsz
 * and _ptds, where stream 0 is the calling thread's own. */
#define KERNEL(name, per_thread)                                                                                       \
  SP_WRAPPER(name,                                                                                                     \
             (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,       \
              unsigned int bz, unsigned int shared_bytes, CUstream stream, void **parameters, void **extra),           \
             (f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters, extra)) {                                   \
    GATED(stream, per_thread, sp_work_key(f, pack_grid(gx, gy, gz), pack_block(bx, by, bz)),                           \
          real(f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters, extra));                                   \
  }
KERNEL(cuLaunchKernel, false)
KERNEL(cuLaunchKernel_ptsz, true)

/* The same with a structure of parameters; without one the driver returns the error. */
#define KERNEL_EX(name, per_thread)                                                                                    \
  SP_WRAPPER(name, (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra),                      \
             (config, f, parameters, extra)) {                                                                         \
    if (config == NULL) {                                                                                              \
      return real(config, f, parameters, extra);                                                                       \
    }                                                                                                                  \
    GATED(config->hStream, per_thread,                                                                                 \
          sp_work_key(f, pack_grid(config->gridDimX, config->gridDimY, config->gridDimZ),                              \
                      pack_block(config->blockDimX, config->blockDimY, config->blockDimZ)),                            \
          real(config, f, parameters, extra));                                                                         \
  }
KERNEL_EX(cuLaunchKernelEx, false)
KERNEL_EX(cuLaunchKernelEx_ptsz, true)

/* A kernel of which all blocks run at the same time. */
#define COOPERATIVE(name, per_thread)                                                                                  \
  SP_WRAPPER(name,                                                                                                     \
             (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,       \
              unsigned int bz, unsigned int shared_bytes, CUstream stream, void **parameters),                         \
             (f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters)) {                                          \
    GATED(stream, per_thread, sp_work_key(f, pack_grid(gx, gy, gz), pack_block(bx, by, bz)),                           \
          real(f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters));                                          \
  }
COOPERATIVE(cuLaunchCooperativeKernel, false)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

/* One call launches a kernel on each of several devices. It waits for no turn on any of them, and counts as passed. */
SP_WRAPPER(cuLaunchCooperativeKernelMultiDevice, (void *list, unsigned int devices, unsigned int flags),
           (list, devices, flags)) {
  CUresult result;
  SP_CALL(result, real(list, devices, flags));
  if (result == CUDA_SUCCESS) {
    sp_gate_passed();
  }
  return result;
}

/* A graph's launch also reserves the memory that its allocation nodes take (memory/graph.c). Over the cap it is not
 * made. */
#define GRAPH(name, per_thread)                                                                                        \
  SP_WRAPPER(name, (CUgraphExec graph, CUstream stream), (graph, stream)) {                                            \
    struct sp_growth growth = {.pool = NULL};                                                                          \
    struct sp_pass pass;                                                                                               \
    CUresult result;                                                                                                   \
    if (sp_graphs_may_allocate() && !sp_graph_begin(graph, &growth)) {                                                 \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                                                 \
    }                                                                                                                  \
    sp_outermost_begin();                                                                                              \
    sp_gate_enter(&pass, stream, per_thread, sp_work_key(graph, 0, 0));                                                \
    result = real(graph, stream);                                                                                      \
    sp_gate_leave(&pass, result);                                                                                      \
    sp_outermost_end();                                                                                                \
    sp_graph_end(graph, &growth, result);                                                                              \
    return result;                                                                                                     \
  }
GRAPH(cuGraphLaunch, false)
GRAPH(cuGraphLaunch_ptsz, true)

/* The launch functions of CUDA 2, where the block size is part of the function's state. cuLaunch has a grid of 1. */
SP_WRAPPER(cuLaunch, (CUfunction f), (f)) {
  GATED(NULL, false, sp_work_key(f, 1, 0), real(f));
}

SP_WRAPPER(cuLaunchGrid, (CUfunction f, int width, int height), (f, width, height)) {
  GATED(NULL, false, sp_work_key(f, pack_grid((unsigned int)width, (unsigned int)height, 1), 0),
        real(f, width, height));
}

SP_WRAPPER(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), (f, width, height, stream)) {
  GATED(stream, false, sp_work_key(f, pack_grid((unsigned int)width, (unsigned int)height, 1), 0),
        real(f, width, height, stream));
}

/* Memsets: those of about the same size are one unit. */
#define SET(name, address, value_type, size, per_thread)                                                               \
  SP_WRAPPER(name, (address target, value_type value, size count), (target, value, count)) {                           \
    GATED(NULL, per_thread, KEY_OF((uint64_t)count * sizeof(value_type)), real(target, value, count));                 \
  }
#define SET_ASYNC(name, value_type, per_thread)                                                                        \
  SP_WRAPPER(name, (CUdeviceptr target, value_type value, size_t count, CUstream stream),                              \
             (target, value, count, stream)) {                                                                         \
    GATED(stream, per_thread, KEY_OF((uint64_t)count * sizeof(value_type)), real(target, value, count, stream));       \
  }
#define SET_FAMILY(width, value_type)                                                                                  \
  SET(cuMemsetD##width, CUdeviceptr_v1, value_type, unsigned int, false)                                               \
  SET(cuMemsetD##width##_v2, CUdeviceptr, value_type, size_t, false)                                                   \
  SET(cuMemsetD##width##_v2_ptds, CUdeviceptr, value_type, size_t, true)                                               \
  SET_ASYNC(cuMemsetD##width##Async, value_type, false)                                                                \
  SET_ASYNC(cuMemsetD##width##Async_ptsz, value_type, true)
SET_FAMILY(8, unsigned char)
SET_FAMILY(16, unsigned short)
SET_FAMILY(32, unsigned int)

#define SET_2D(name, address, value_type, size, per_thread)                                                            \
  SP_WRAPPER(name, (address target, size pitch, value_type value, size width, size height),                            \
             (target, pitch, value, width, height)) {                                                                  \
    GATED(NULL, per_thread, KEY_OF((uint64_t)width * height * sizeof(value_type)),                                     \
          real(target, pitch, value, width, height));                                                                  \
  }
#define SET_2D_ASYNC(name, value_type, per_thread)                                                                     \
  SP_WRAPPER(name, (CUdeviceptr target, size_t pitch, value_type value, size_t width, size_t height, CUstream stream), \
             (target, pitch, value, width, height, stream)) {                                                          \
    GATED(stream, per_thread, KEY_OF((uint64_t)width * height * sizeof(value_type)),                                   \
          real(target, pitch, value, width, height, stream));                                                          \
  }
#define SET_2D_FAMILY(width, value_type)                                                                               \
  SET_2D(cuMemsetD2D##width, CUdeviceptr_v1, value_type, unsigned int, false)                                          \
  SET_2D(cuMemsetD2D##width##_v2, CUdeviceptr, value_type, size_t, false)                                              \
  SET_2D(cuMemsetD2D##width##_v2_ptds, CUdeviceptr, value_type, size_t, true)                                          \
  SET_2D_ASYNC(cuMemsetD2D##width##Async, value_type, false)                                                           \
  SET_2D_ASYNC(cuMemsetD2D##width##Async_ptsz, value_type, true)
SET_2D_FAMILY(8, unsigned char)
SET_2D_FAMILY(16, unsigned short)
SET_2D_FAMILY(32, unsigned int)
