/*
 * The parts that MIG cuts a GPU into: the profiles of its model, its GPU instances and their compute instances.
 *
 * Each GPU instance has one compute instance of the same size. nvml/mig.c has what a MIG device reports as a device.
 *
 * NVML's documentation tells what the exported functions do; a comment at one tells only what is special here.
 */
#include "simgpu/nvml/nvml.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define PROFILES         18u /* NVML_GPU_INSTANCE_PROFILE_COUNT */
#define COMPUTE_PROFILES 9u  /* NVML_COMPUTE_INSTANCE_PROFILE_COUNT */
#define ENGINE_PROFILES  1u  /* NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT: all are shared */
#define MIB              1048576u

typedef struct nvml_handle *nvmlGpuInstance_t, *nvmlComputeInstance_t;

/* Begin a call about an instance, with a handle of one of nvml's tables. Every success needs nvml_leave. */
static nvmlReturn_t enter_instance(const struct nvml_handle *handle, const struct nvml_handle *table,
                                   const struct sg_device **instance) {
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  for (uint32_t n = 0; n < nvml.state.shared->device_count; n++)
    if (handle == &table[n]) {
      *instance = &nvml.state.shared->devices[n];
      return NVML_SUCCESS;
    }
  nvml_leave(NVML_SUCCESS);
  return NVML_ERROR_INVALID_ARGUMENT;
}

/* NVML's number of the compute profile with that many slices. */
static uint32_t compute_profile(uint32_t slices) {
  return slices == 7 ? 4 : slices - 1;
}

/* --- instances ---------------------------------------------------------------------------------------------------- */

struct placement {
  unsigned int start, size;
};
struct gpu_instance_info {
  nvmlDevice_t device;
  unsigned int id, profile_id;
  struct placement placement;
};
struct compute_instance_info {
  nvmlDevice_t device;
  nvmlGpuInstance_t gpu_instance;
  unsigned int id, profile_id;
  struct placement placement;
};

/* Only a GPU in MIG mode has instances; `id` is the number of one, counted from 1. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned int id,
                                                      nvmlGpuInstance_t *instance) {
  const struct sg_device *gpu;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &gpu);
  if (result)
    return result;
  if (!gpu->mig)
    return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
  for (uint32_t n = 0; instance && n < nvml.state.shared->device_count; n++) {
    const struct sg_device *device = &nvml.state.shared->devices[n];
    if (device->parent == nvml_place(gpu) && nvml_gpu_instance(device) == id) {
      *instance = &nvml.gpu_instances[n];
      return nvml_leave(NVML_SUCCESS);
    }
  }
  return nvml_leave(instance ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT);
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, struct gpu_instance_info *info) {
  const struct sg_device *instance;
  nvmlReturn_t result = enter_instance(handle, nvml.gpu_instances, &instance);
  if (result)
    return result;
  if (!info)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  const struct sg_mig_profile *profile = sg_mig_profile_of(instance);
  *info = (struct gpu_instance_info){&nvml.handles[instance->parent],
                                     nvml_gpu_instance(instance),
                                     profile->id,
                                     {instance->start, profile->memory_slices}};
  return nvml_leave(NVML_SUCCESS);
}

/* The only compute instance has id 0. */
NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned int id,
                                                               nvmlComputeInstance_t *compute) {
  const struct sg_device *instance;
  nvmlReturn_t result = enter_instance(handle, nvml.gpu_instances, &instance);
  if (result)
    return result;
  if (!compute)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  if (id != nvml_compute_instance(instance))
    return nvml_leave(NVML_ERROR_NOT_FOUND);
  *compute = &nvml.compute_instances[nvml_place(instance)];
  return nvml_leave(NVML_SUCCESS);
}

/* The body of the calls that tell of a compute instance. `size`: bytes of the caller's layout; the older layout is a
 * prefix of the newer one. */
static nvmlReturn_t tell_compute_instance(nvmlComputeInstance_t handle, struct compute_instance_info *info,
                                          size_t size) {
  const struct sg_device *instance;
  nvmlReturn_t result = enter_instance(handle, nvml.compute_instances, &instance);
  if (result)
    return result;
  if (!info)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  uint32_t slices = sg_mig_profile_of(instance)->compute_slices;
  struct compute_instance_info whole = {&nvml.handles[instance->parent],
                                        &nvml.gpu_instances[nvml_place(instance)],
                                        nvml_compute_instance(instance),
                                        compute_profile(slices),
                                        {0, slices}};
  memcpy(info, &whole, size);
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle,
                                                       struct compute_instance_info *info) {
  return tell_compute_instance(handle, info, sizeof *info);
}
NVML_EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t handle, struct compute_instance_info *info) {
  return tell_compute_instance(handle, info, offsetof(struct compute_instance_info, placement));
}

struct attributes {
  unsigned int sms, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
  unsigned long long memory_mib;
};

/* The body of the calls that tell attributes, which only instances have. `size`: bytes of the caller's layout; the
 * older layout is a prefix of the newer one. */
static nvmlReturn_t tell_attributes(nvmlDevice_t handle, struct attributes *attributes, size_t size) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_KNOWN, &device);
  if (result)
    return result;
  if (!attributes)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  if (device->parent == SG_NONE)
    return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
  const struct sg_mig_profile *profile = sg_mig_profile_of(device);
  struct attributes whole = {.sms = device->sm_count,
                             .copy_engines = profile->copy_engines,
                             .decoders = profile->decoders,
                             .jpegs = profile->jpegs,
                             .ofas = profile->ofas,
                             .gpu_slices = profile->compute_slices,
                             .compute_slices = profile->compute_slices,
                             .memory_mib = device->memory_total_bytes / MIB};
  memcpy(attributes, &whole, size);
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, struct attributes *attributes) {
  return tell_attributes(handle, attributes, sizeof *attributes);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t handle, struct attributes *attributes) {
  return tell_attributes(handle, attributes, offsetof(struct attributes, memory_mib));
}

/* --- profiles ----------------------------------------------------------------------------------------------------- */

struct gpu_profile_v2 {
  unsigned int version;
  unsigned int id, peer_access, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
  unsigned long long memory_mib;
  char name[96];
};
#define GPU_PROFILE_V2 (sizeof(struct gpu_profile_v2) | 2u << 24)
struct gpu_profile_v1 {
  unsigned int from_id_on[10];
  unsigned long long memory_mib;
};

/* Begin a call about a profile of a GPU, which need not be in MIG mode. `number` is NVML's, not the GPU's id of the
 * profile. Every success needs nvml_leave. */
static nvmlReturn_t enter_profile(nvmlDevice_t handle, uint32_t number, const struct sg_device **gpu,
                                  const struct sg_mig_profile **profile) {
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, gpu);
  if (result)
    return result;
  *profile = sg_mig_profile_numbered(*gpu, number);
  if (*profile)
    return NVML_SUCCESS;
  return nvml_leave(number < PROFILES ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
}

/* The body of the calls that tell a profile of GPU instances; `info` is not NULL. */
static nvmlReturn_t gpu_profile(nvmlDevice_t handle, uint32_t number, struct gpu_profile_v2 *info) {
  const struct sg_device *gpu;
  const struct sg_mig_profile *profile;
  nvmlReturn_t result = enter_profile(handle, number, &gpu, &profile);
  if (result)
    return result;
  *info = (struct gpu_profile_v2){.version = GPU_PROFILE_V2,
                                  .id = profile->id,
                                  .slices = profile->compute_slices,
                                  .instances = sg_mig_profile_last_start(profile) / profile->memory_slices + 1,
                                  .sms = profile->sm_count,
                                  .copy_engines = profile->copy_engines,
                                  .decoders = profile->decoders,
                                  .jpegs = profile->jpegs,
                                  .ofas = profile->ofas,
                                  .memory_mib = sg_mig_profile_memory_mib(gpu, profile)};
  snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned int profile,
                                                              struct gpu_profile_v2 *info) {
  return info && info->version == GPU_PROFILE_V2 ? gpu_profile(handle, profile, info) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned int profile,
                                                             struct gpu_profile_v1 *info) {
  struct gpu_profile_v2 newer;
  nvmlReturn_t result = info ? gpu_profile(handle, profile, &newer) : NVML_ERROR_INVALID_ARGUMENT;
  if (result)
    return result;
  memcpy(info->from_id_on, &newer.id, sizeof info->from_id_on);
  info->memory_mib = newer.memory_mib;
  return NVML_SUCCESS;
}

/* `id` is the GPU's id of the profile, not NVML's number. Without an array only the count is returned. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t handle, unsigned int id,
                                                                       struct placement *placements,
                                                                       unsigned int *count) {
  const struct sg_device *gpu;
  const struct sg_mig_profile *profile = NULL;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &gpu);
  if (result)
    return result;
  for (uint32_t number = 0; number < PROFILES && (!profile || profile->id != id); number++)
    profile = sg_mig_profile_numbered(gpu, number);
  if (!profile || profile->id != id)
    return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
  if (!count)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *count = sg_mig_profile_last_start(profile) / profile->memory_slices + 1;
  for (uint32_t n = 0; placements && n < *count; n++)
    placements[n] = (struct placement){n * profile->memory_slices, profile->memory_slices};
  return nvml_leave(NVML_SUCCESS);
}

struct compute_profile_v2 {
  unsigned int version;
  unsigned int id, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
  char name[96];
};
#define COMPUTE_PROFILE_V2 (sizeof(struct compute_profile_v2) | 2u << 24)

/* The body of the calls that tell a profile of compute instances; `info` is not NULL. A part of an instance has as many
 * SMs a slice as the smallest instance. The whole also has the SMs left over. */
static nvmlReturn_t compute_profile_info(nvmlGpuInstance_t handle, uint32_t number, uint32_t engines,
                                         struct compute_profile_v2 *info) {
  const struct sg_device *instance;
  nvmlReturn_t result = enter_instance(handle, nvml.gpu_instances, &instance);
  if (result)
    return result;
  if (number >= COMPUTE_PROFILES || engines >= ENGINE_PROFILES)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  const struct sg_mig_profile *profile = sg_mig_profile_of(instance);
  uint32_t slices = number == compute_profile(7) ? 7 : number + 1, all_slices = profile->compute_slices;
  if (slices > all_slices || number > compute_profile(7) || (slices == 3 && all_slices == 4)) /* MIG has no 3c.4g */
    return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
  *info = (struct compute_profile_v2){.version = COMPUTE_PROFILE_V2,
                                      .id = number,
                                      .slices = slices,
                                      .instances = all_slices / slices,
                                      .sms = slices * sg_mig_profile_numbered(instance, 0)->sm_count,
                                      .copy_engines = profile->copy_engines,
                                      .decoders = profile->decoders,
                                      .jpegs = profile->jpegs,
                                      .ofas = profile->ofas};
  if (slices == all_slices)
    info->sms = profile->sm_count;
  char part[8] = "";
  if (slices < all_slices)
    snprintf(part, sizeof part, "%uc.", slices);
  snprintf(info->name, sizeof info->name, "MIG %s%s", part, profile->name);
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned int profile,
                                                                       unsigned int engines,
                                                                       struct compute_profile_v2 *info) {
  return info && info->version == COMPUTE_PROFILE_V2 ? compute_profile_info(handle, profile, engines, info)
                                                     : NVML_ERROR_INVALID_ARGUMENT;
}

/* The older layout is the part between the version and the name. */
NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned int profile,
                                                                      unsigned int engines, void *info) {
  struct compute_profile_v2 newer;
  nvmlReturn_t result = info ? compute_profile_info(handle, profile, engines, &newer) : NVML_ERROR_INVALID_ARGUMENT;
  if (!result)
    memcpy(info, &newer.id, offsetof(struct compute_profile_v2, name) - offsetof(struct compute_profile_v2, id));
  return result;
}
