/* MIG mode, and the MIG devices of a GPU; nvml/instance.c has the instances that they consist of. SIMGPU_DEVICES cuts
 * the instances, and they never change. NVML's documentation tells what the exported functions do; a comment at one
 * tells only what is special here. */
#include "simgpu/nvml/nvml.h"

#define MOST_INSTANCES 7

/* Whether GPUs of this compute capability have MIG: 8.0 (A100), and 9.0 on (Hopper and later). */
static bool has_mig(const struct sg_device *d) {
  return d->major >= 9 || (d->major == 8 && d->minor == 0);
}

/* The mode never changes, so the pending one is the present one. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (!current || !pending)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  if (!has_mig(device))
    return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
  *current = *pending = device->mig;
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_KNOWN, &device);
  if (result)
    return result;
  if (!count)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *count = has_mig(device) && device->parent == SG_NONE ? MOST_INSTANCES : 0;
  return nvml_leave(NVML_SUCCESS);
}

/* The index is the instance's number on its GPU, from 0 without gaps. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int index,
                                                             nvmlDevice_t *mig) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (!mig || index >= MOST_INSTANCES)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  for (uint32_t n = 0; n < nvml.state.shared->device_count; n++) {
    const struct sg_device *found = &nvml.state.shared->devices[n];
    if (found->parent == nvml_place(device) && found->number == index) {
      *mig = &nvml.handles[n];
      return nvml_leave(NVML_SUCCESS);
    }
  }
  return nvml_leave(has_mig(device) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *gpu) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(mig, NVML_KNOWN, &device);
  if (result)
    return result;
  if (!gpu || device->parent == SG_NONE)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *gpu = &nvml.handles[device->parent];
  return nvml_leave(NVML_SUCCESS);
}

/* The body of the calls that return an id of a MIG device. A GPU has none. */
static nvmlReturn_t instance_id(nvmlDevice_t handle, unsigned int *id, uint32_t (*read)(const struct sg_device *)) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_KNOWN, &device);
  if (result)
    return result;
  if (!id)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  if (device->parent == SG_NONE)
    return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
  *id = read(device);
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *id) {
  return instance_id(handle, id, nvml_gpu_instance);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *id) {
  return instance_id(handle, id, nvml_compute_instance);
}
