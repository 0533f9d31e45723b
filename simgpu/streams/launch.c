/* Launches of kernels. CUDA's documentation tells what the exported functions do; a comment at one tells only what is
 * special here. */
#include "simgpu/api/process.h"

/* The address of the kernel's first parameter, however the parameters were passed; NULL: it has none. */
static const void *first_parameter(const struct launch *launch) {
  if (launch->params)
    return launch->params[0];
  for (void **option = launch->extra; option && *option; option += 2)
    if ((uintptr_t)*option == 1) /* CU_LAUNCH_PARAM_BUFFER_POINTER */
      return option[1];
  return NULL;
}

/* The item for one launch. A kernel takes the time that its name tells, or its first parameter, or it spins until a
 * word is not zero (get_function). Any other kernel takes wave_ns for each wave: a wave is one block on each SM. An
 * error: the grid or the block is impossible. */
CUresult launch_item(const struct context *context, const struct launch *launch, struct sg_item *item) {
  const struct sg_shared *shared = process.state.shared;
  uint64_t sm_count = shared->devices[context->device].sm_count, blocks = 1, threads = 1;
  for (int n = 0; n < 3; n++) {
    blocks *= launch->grid[n];
    threads *= launch->block[n];
  }
  if (!blocks || !threads || threads > BLOCK_THREADS)
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t demand = blocks < sm_count ? (blocks * SG_ALL_SMS + sm_count - 1) / sm_count : SG_ALL_SMS;
  *item = (struct sg_item){
      .kind = SG_KERNEL, .flags = SG_LOGGED, .name = launch->function->shared_name, .demand = (uint32_t)demand};
  if (launch->function->faulty)
    item->flags |= SG_FAULT;
  const void *first = first_parameter(launch);
  if (launch->function->varies) {
    item->duration_ns = first ? *(const uint32_t *)first : 0;
    return CUDA_SUCCESS;
  }
  if (!launch->function->spin) {
    uint64_t fixed_ns = launch->function->fixed_ns;
    item->duration_ns =
        fixed_ns ? fixed_ns : (blocks + sm_count - 1) / sm_count * (uint64_t)shared->model.profile.wave_ns;
    return CUDA_SUCCESS;
  }
  /* A spin for a word outside the driver's memory ends at once (`watch` is 0): the program could free that word. */
  struct block block;
  uint64_t watch = first ? *(const uint64_t *)first : 0;
  item->flags |= SG_SPIN;
  item->watch = find_block(watch, &block) && watch + SPIN_WORD_BYTES <= block.address + block.bytes ? watch : 0;
  return CUDA_SUCCESS;
}

/* Launch a kernel into a stream, or into the stream's capture. */
static CUresult launch_kernel(CUstream handle, const struct launch *launch) {
  uint64_t entry_ns = sg_now();
  struct context *context;
  struct stream *stream;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (result)
    return result;
  if (!find_function(launch->function))
    return CUDA_ERROR_INVALID_HANDLE;
  struct sg_item item;
  result = launch_item(stream->context, launch, &item);
  if (result)
    return result;
  burn(entry_ns, process.settings.launch_cost_ns);
  result = legacy_conflict(stream);
  if (result)
    return result;
  if (is_capturing(stream))
    return capture_kernel(stream, launch, &item);
  /* A spin's empty effect makes the owner poll its word until it is over. */
  struct effect empty = {.kind = EFFECT_LIST};
  return submit(stream, item, item.flags & SG_SPIN ? &empty : NULL, NULL);
}

#define PER_THREAD(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
  (void)shared;
  return launch_kernel(stream, &(struct launch){function, {gx, gy, gz}, {bx, by, bz}, params, extra});
}
EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                    unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params,
                                    void **extra) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, PER_THREAD(stream), params, extra);
}

/* A cooperative launch is like any other: kernels compute nothing, so their blocks need not meet. */
EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                          unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, NULL);
}
EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                               unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                               void **params) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, PER_THREAD(stream), params, NULL);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  if (!config)
    return CUDA_ERROR_INVALID_VALUE;
  return launch_kernel(config->hStream, &(struct launch){function,
                                                         {config->gridDimX, config->gridDimY, config->gridDimZ},
                                                         {config->blockDimX, config->blockDimY, config->blockDimZ},
                                                         params,
                                                         extra});
}
EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  if (!config)
    return CUDA_ERROR_INVALID_VALUE;
  CUlaunchConfig own = *config;
  own.hStream = PER_THREAD(config->hStream);
  return cuLaunchKernelEx(&own, function, params, extra);
}

typedef struct {
  CUfunction function;
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  CUstream hStream;
  void **kernelParams;
} CUDA_LAUNCH_PARAMS;

/* Launch one kernel after the other. The first failure ends the list. */
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags) {
  CUresult result = list && flags <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  for (unsigned n = 0; !result && n < count; n++)
    result = cuLaunchKernel(list[n].function, list[n].gridDimX, list[n].gridDimY, list[n].gridDimZ, list[n].blockDimX,
                            list[n].blockDimY, list[n].blockDimZ, list[n].sharedMemBytes, list[n].hStream,
                            list[n].kernelParams, NULL);
  return result;
}

/* --- the launches of CUDA 2: the shape is set on the function beforehand ----------------------------------------- */

EXPORT CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
  if (!find_function(function) || x <= 0 || y <= 0 || z <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  function->block[0] = (unsigned)x;
  function->block[1] = (unsigned)y;
  function->block[2] = (unsigned)z;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncSetSharedSize(CUfunction function, unsigned bytes) {
  (void)bytes;
  return find_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; /* shared memory is not simulated */
}
EXPORT CUresult cuParamSetSize(CUfunction function, unsigned bytes) {
  return cuFuncSetSharedSize(function, bytes); /* only checks the function */
}
EXPORT CUresult cuParamSeti(CUfunction function, int offset, unsigned value) {
  (void)offset;
  return cuFuncSetSharedSize(function, value); /* only checks the function */
}
EXPORT CUresult cuParamSetf(CUfunction function, int offset, float value) {
  (void)offset, (void)value;
  return cuFuncSetSharedSize(function, 0); /* only checks the function */
}
EXPORT CUresult cuParamSetv(CUfunction function, int offset, void *value, unsigned bytes) {
  (void)offset, (void)value;
  return cuFuncSetSharedSize(function, bytes); /* only checks the function */
}

/* Launch with the block that cuFuncSetBlockShape has set, and without parameters. */
EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  if (!find_function(function))
    return CUDA_ERROR_INVALID_HANDLE;
  if (width <= 0 || height <= 0 || !function->block[0])
    return CUDA_ERROR_INVALID_VALUE;
  return cuLaunchKernel(function, (unsigned)width, (unsigned)height, 1, function->block[0], function->block[1],
                        function->block[2], 0, stream, NULL, NULL);
}
EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height) {
  return cuLaunchGridAsync(function, width, height, NULL);
}
EXPORT CUresult cuLaunch(CUfunction function) {
  return cuLaunchGrid(function, 1, 1);
}
