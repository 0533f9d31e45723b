/* Memory limits of cgroups: offered by drivers from r615 on, for whole GPUs, set by root alone. */
#include "nvml.h"

#include <errno.h>
#include <unistd.h>

#define FIRST_RELEASE 615

struct limits_set {
  const char *cgroup; /* its directory */
  unsigned long long soft_bytes, hard_bytes;
};
struct limits_got {
  const char *cgroup;
  unsigned long long soft_bytes, hard_bytes, used_bytes;
};

static nvmlReturn_t result_of(int error) {
  switch (error) {
  case 0:
    return NVML_SUCCESS;
  case -ENOENT:
  case -ENODATA:
    return NVML_ERROR_NOT_FOUND;
  case -ENOSPC:
    return NVML_ERROR_MEMORY;
  default:
    return NVML_ERROR_INVALID_ARGUMENT;
  }
}

static nvmlReturn_t enter(nvmlDevice_t handle, const struct sg_device **device) {
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LOAD, device); /* neither instances nor what is cut into them */
  if (!result && nvml.state.shared->model.driver_release < FIRST_RELEASE)
    result = nvml_leave(NVML_ERROR_NOT_SUPPORTED);
  return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t handle, const struct limits_set *limits) {
  const struct sg_device *device;
  nvmlReturn_t result = enter(handle, &device);
  if (result)
    return result;
  if (!limits || !limits->cgroup)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  if (geteuid())
    return nvml_leave(NVML_ERROR_NO_PERMISSION);
  return nvml_leave(result_of(
      sg_limit_set(nvml.state.shared, nvml_place(device), limits->cgroup, limits->soft_bytes, limits->hard_bytes)));
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t handle, struct limits_got *limits) {
  const struct sg_device *device;
  int error = 0;
  nvmlReturn_t result = enter(handle, &device);
  if (result)
    return result;
  if (!limits || !limits->cgroup)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  sg_reap(&nvml.state);
  const struct sg_shared *shared = nvml.state.shared;
  const struct sg_limit *found = sg_limit_at(shared, nvml_place(device), limits->cgroup, &error);
  if (found) {
    limits->soft_bytes = found->soft_bytes;
    limits->hard_bytes = found->hard_bytes;
    limits->used_bytes = sg_memory_of_cgroup(shared, nvml_place(device), found->cgroup);
  }
  return nvml_leave(result_of(error));
}
