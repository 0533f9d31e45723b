/* Devices: count, names, attributes, peer access, and settings of the current context. CUDA's documentation tells
 * what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/api/process.h"
#include "simgpu/api/symbols.h"
#include "simgpu/config/settings.h"

#include <stdio.h>
#include <string.h>

/* The version is a setting, so that a program may find an older or a newer driver. DRIVER_VERSION is the default. */
EXPORT CUresult cuDriverGetVersion(int *version) {
  if (!version)
    return CUDA_ERROR_INVALID_VALUE;
  *version = (int)sg_setting("SIMGPU_DRIVER_VERSION", DRIVER_VERSION);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
  CUresult result = ready();
  if (result || !count)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *count = (int)process.device_count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal) {
  CUresult result = ready();
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (ordinal < 0 || (uint32_t)ordinal >= process.device_count)
    return CUDA_ERROR_INVALID_DEVICE;
  *out = ordinal;
  return CUDA_SUCCESS;
}

/* The device with this ordinal, which cuDeviceGet checks. */
static CUresult find_device(CUdevice ordinal, const struct sg_device **device) {
  CUdevice same;
  CUresult result = cuDeviceGet(&same, ordinal);
  if (!result)
    *device = &process.state.shared->devices[process.devices[ordinal]];
  return result;
}

/* Declare `device`, the one with this ordinal. If there is none, or `out` is false, return an error from the call. */
#define FIND_DEVICE(ordinal, out)                                                                                      \
  const struct sg_device *device;                                                                                      \
  CUresult result = find_device(ordinal, &device);                                                                     \
  if (result || !(out))                                                                                                \
  return result ? result : CUDA_ERROR_INVALID_VALUE

EXPORT CUresult cuDeviceGetName(char *out, int bytes, CUdevice ordinal) {
  FIND_DEVICE(ordinal, out && bytes > 0);
  snprintf(out, (size_t)bytes, "%s", device->name);
  return CUDA_SUCCESS;
}

/* For a MIG instance: the UUID of the instance. */
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice ordinal) {
  FIND_DEVICE(ordinal, out);
  memcpy(out, device->uuid, sizeof device->uuid);
  return CUDA_SUCCESS;
}
/* This call is older than MIG: for an instance it returns the UUID of the GPU. */
EXPORT CUresult cuDeviceGetUuid(CUuuid *out, CUdevice ordinal) {
  FIND_DEVICE(ordinal, out);
  if (device->parent != SG_NONE)
    device = &process.state.shared->devices[device->parent];
  memcpy(out, device->uuid, sizeof device->uuid);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice ordinal) {
  FIND_DEVICE(ordinal, out);
  *out = device->memory_total_bytes;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal) {
  FIND_DEVICE(ordinal, major && minor);
  *major = (int)device->major;
  *minor = (int)device->minor;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *out, int bytes, CUdevice ordinal) {
  FIND_DEVICE(ordinal, out && bytes > 0);
  snprintf(out, (size_t)bytes, "%04X:%02X:%02X.0", device->pci_domain, device->pci_bus, device->pci_device);
  return CUDA_SUCCESS;
}

/* The text is "domain:bus:slot", or "bus:slot" in domain 0, in hexadecimal. All simulated GPUs have domain 0 and slot
 * 0. */
EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *text) {
  CUresult result = ready();
  unsigned domain = 0, bus, slot;
  if (result || !out || !text ||
      (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 && (domain = 0, sscanf(text, "%x:%x", &bus, &slot)) != 2))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < process.device_count; n++)
    if (process.state.shared->devices[process.devices[n]].pci_bus == bus && !domain && !slot) {
      *out = (CUdevice)n;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_DEVICE;
}

/* The value of a CUdevice_attribute, named by its suffix in cuda.h; 0: absent, unsupported or unlimited. */
static int attribute_of(const struct sg_device *device, int attribute) {
  bool small = device->major == 7 || (device->major == 8 && device->minor); /* T4, A10, L4 against A100 and later */
  switch (attribute) {
  case 1:   /* MAX_THREADS_PER_BLOCK */
  case 2:   /* MAX_BLOCK_DIM_X */
  case 3:   /* MAX_BLOCK_DIM_Y */
  case 111: /* RESERVED_SHARED_MEMORY_PER_BLOCK */
    return 1024;
  case 4: /* MAX_BLOCK_DIM_Z */
    return 64;
  case 5:  /* MAX_GRID_DIM_X */
  case 11: /* MAX_PITCH */
    return 2147483647;
  case 6: /* MAX_GRID_DIM_Y */
  case 7: /* MAX_GRID_DIM_Z */
    return 65535;
  case 8: /* MAX_SHARED_MEMORY_PER_BLOCK */
    return 49152;
  case 9:  /* TOTAL_CONSTANT_MEMORY */
  case 12: /* MAX_REGISTERS_PER_BLOCK */
  case 82: /* MAX_REGISTERS_PER_MULTIPROCESSOR */
  case 23: /* MAXIMUM_TEXTURE2D_HEIGHT */
    return 65536;
  case 10: /* WARP_SIZE */
  case 51: /* TEXTURE_PITCH_ALIGNMENT */
    return 32;
  case 13:
    return (int)device->clock_khz;
  case 14: /* TEXTURE_ALIGNMENT */
  case 30: /* SURFACE_ALIGNMENT */
    return 512;
  case 16:
    return (int)device->sm_count;
  case 20:
    return (int)device->compute_mode;
  case 21: /* MAXIMUM_TEXTURE1D_WIDTH */
  case 22: /* MAXIMUM_TEXTURE2D_WIDTH */
    return 131072;
  case 24: /* MAXIMUM_TEXTURE3D_WIDTH */
  case 25: /* MAXIMUM_TEXTURE3D_HEIGHT */
  case 26: /* MAXIMUM_TEXTURE3D_DEPTH */
    return 16384;
  case 27: /* MAXIMUM_TEXTURE2D_LAYERED_WIDTH */
  case 28: /* MAXIMUM_TEXTURE2D_LAYERED_HEIGHT */
    return 32768;
  case 29: /* MAXIMUM_TEXTURE2D_LAYERED_LAYERS */
    return 2048;
  case 33:
    return (int)device->pci_bus;
  case 34:
    return (int)device->pci_device;
  case 36:
    return (int)device->memory_clock_khz;
  case 37:
    return (int)device->bus_bits;
  case 38:
    return (int)device->l2_bytes;
  case 39: /* MAX_THREADS_PER_MULTIPROCESSOR */
    return device->major == 7 ? 1024 : small ? 1536 : 2048;
  case 40: /* ASYNC_ENGINE_COUNT */
    return 3;
  case 50:
    return (int)device->pci_domain;
  case 75:
    return (int)device->major;
  case 76:
    return (int)device->minor;
  case 81: /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
    return device->major == 9 ? 233472 : small ? 102400 : 167936;
  case 87: /* SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO */
    return small ? 64 : 2;
  case 97: /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    return device->major == 9 ? 232448 : small ? 101376 : 166912;
  case 106: /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    return small ? 16 : 32;
  case 120: /* CLUSTER_LAUNCH */
    return device->major >= 9;
  case 126: /* MEM_SYNC_DOMAIN_COUNT */
    return device->major >= 9 ? 4 : 1;
  case 134: /* HOST_NUMA_ID */
    return -1;
  case 139:
    return (int)device->pci_id;
  case 15:  /* GPU_OVERLAP */
  case 19:  /* CAN_MAP_HOST_MEMORY */
  case 31:  /* CONCURRENT_KERNELS */
  case 32:  /* ECC_ENABLED */
  case 41:  /* UNIFIED_ADDRESSING */
  case 43:  /* MAXIMUM_TEXTURE1D_LAYERED_LAYERS */
  case 78:  /* STREAM_PRIORITIES_SUPPORTED */
  case 79:  /* GLOBAL_L1_CACHE_SUPPORTED */
  case 80:  /* LOCAL_L1_CACHE_SUPPORTED */
  case 83:  /* MANAGED_MEMORY */
  case 90:  /* COMPUTE_PREEMPTION_SUPPORTED */
  case 91:  /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
  case 92:  /* CAN_USE_STREAM_MEM_OPS_V1 */
  case 93:  /* CAN_USE_64_BIT_STREAM_MEM_OPS_V1 */
  case 94:  /* CAN_USE_STREAM_WAIT_VALUE_NOR_V1 */
  case 95:  /* COOPERATIVE_LAUNCH */
  case 99:  /* HOST_REGISTER_SUPPORTED */
  case 102: /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
  case 103: /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
  case 112: /* SPARSE_CUDA_ARRAY_SUPPORTED */
  case 115: /* MEMORY_POOLS_SUPPORTED */
  case 119: /* MEMPOOL_SUPPORTED_HANDLE_TYPES */
  case 121: /* DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED */
  case 122: /* CAN_USE_64_BIT_STREAM_MEM_OPS */
  case 123: /* CAN_USE_STREAM_WAIT_VALUE_NOR */
  case 129: /* UNIFIED_FUNCTION_POINTERS */
    return 1;
  default:
    return 0;
  }
}

EXPORT CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice ordinal) {
  FIND_DEVICE(ordinal, out && attribute > 0);
  *out = attribute_of(device, attribute);
  return CUDA_SUCCESS;
}

typedef struct {
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], sharedMemPerBlock, totalConstantMemory, SIMDWidth, memPitch,
      regsPerBlock, clockRate, textureAlign;
} CUdevprop;

/* An older call: some of the figures that attribute_of has. */
EXPORT CUresult cuDeviceGetProperties(CUdevprop *out, CUdevice ordinal) {
  FIND_DEVICE(ordinal, out);
  *out = (CUdevprop){.maxThreadsPerBlock = 1024,
                     .maxThreadsDim = {1024, 1024, 64},
                     .maxGridSize = {2147483647, 65535, 65535},
                     .sharedMemPerBlock = 49152,
                     .totalConstantMemory = 65536,
                     .SIMDWidth = 32,
                     .memPitch = 2147483647,
                     .regsPerBlock = 65536,
                     .clockRate = (int)device->clock_khz,
                     .textureAlign = 512};
  return CUDA_SUCCESS;
}

/* Any two different devices are peers: all memory lies in the address space of the process. */
EXPORT CUresult cuDeviceCanAccessPeer(int *out, CUdevice ordinal, CUdevice peer) {
  FIND_DEVICE(ordinal, out);
  result = find_device(peer, &device);
  *out = !result && ordinal != peer;
  return result;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *out, int attribute, CUdevice ordinal, CUdevice peer) {
  FIND_DEVICE(ordinal, out && ordinal != peer);
  *out = attribute == 2 || attribute == 3; /* CUdevice_P2PAttribute: access, native atomics */
  return find_device(peer, &device);
}

EXPORT CUresult cuDeviceGetExecAffinitySupport(int *out, int type, CUdevice ordinal) {
  FIND_DEVICE(ordinal, out);
  (void)type;
  *out = 0;
  return CUDA_SUCCESS;
}

/* Memory of every device lies in this process's address space anyway: peer access only has to be asked for. */
EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  struct context *context;
  CUresult result = enter(&context);
  return result                             ? result
         : !is_handle(peer, CONTEXT_HANDLE) ? CUDA_ERROR_INVALID_CONTEXT
         : flags                            ? CUDA_ERROR_INVALID_VALUE
                                            : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  struct context *context;
  CUresult result = enter(&context);
  return result ? result : is_handle(peer, CONTEXT_HANDLE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* --- settings of the current context ----------------------------------------------------------------------------- */

EXPORT CUresult cuCtxGetFlags(unsigned *out) {
  struct context *context;
  CUresult result = enter(&context);
  if (!result)
    *out = context->flags;
  return result;
}

EXPORT CUresult cuCtxSetFlags(unsigned flags) {
  struct context *context;
  CUresult result = enter(&context);
  if (!result)
    context->flags = flags;
  return result;
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *out) {
  CUresult result = ready();
  context = context ? context : current_context();
  if (result || !out || !is_handle(context, CONTEXT_HANDLE) || context->slot == SG_NONE)
    return result ? result : CUDA_ERROR_INVALID_CONTEXT;
  *out = shared_of(context)->id;
  return CUDA_SUCCESS;
}

/* 3020 for every context, whatever `context` is. */
EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
  CUresult result = ready();
  (void)context;
  if (result || !version)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *version = 3020;
  return CUDA_SUCCESS;
}

/* Limits are only stored: see `activate` for their first values. */
EXPORT CUresult cuCtxGetLimit(size_t *out, int limit) {
  struct context *context;
  CUresult result = enter(&context);
  if (result || !out || limit < 0 || limit >= CONTEXT_LIMITS)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *out = context->limits[limit];
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
  struct context *context;
  CUresult result = enter(&context);
  if (result || limit < 0 || limit >= CONTEXT_LIMITS)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  struct context *context;
  CUresult result = enter(&context);
  if (least)
    *least = 0;
  if (greatest)
    *greatest = GREATEST_PRIORITY;
  return result;
}

EXPORT CUresult cuCtxGetCacheConfig(int *out) {
  struct context *context;
  CUresult result = enter(&context);
  if (!result)
    *out = 0;
  return result;
}

/* There are no caches: the setting is dropped. */
EXPORT CUresult cuCtxSetCacheConfig(int config) {
  struct context *context;
  (void)config;
  return enter(&context);
}

EXPORT CUresult cuProfilerStart(void) {
  return ready();
}

EXPORT CUresult cuProfilerStop(void) {
  return ready();
}
