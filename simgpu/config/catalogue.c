/* The devices of the machine: SIMGPU_DEVICES, and the properties of each model and of its MIG instances. */
#include "simgpu/config/settings.h"
#include "simgpu/model/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB            1048576ull
#define COMPUTE_SLICES 7u
#define MEMORY_SLICES  8u

struct model_row {
  const char *setting, *name;
  uint64_t memory_mib;
  uint32_t sm_count, major, minor, clock_khz, memory_clock_khz, bus_bits, l2_bytes;
  uint64_t bandwidth_bytes_per_s;
  uint32_t pci_id, power_limit_w, nvlinks;
};
static const struct model_row catalogue[] = {
#include "simgpu/config/catalogue.inc"
};

static const struct sg_mig_profile profiles[] = {
#include "simgpu/config/mig.inc"
};
#define PROFILES (uint32_t)(sizeof profiles / sizeof *profiles)

/* Whether the first `length` characters of `text` are this name, all of it. */
static bool is(const char *name, const char *text, size_t length) {
  return strlen(name) == length && !strncmp(name, text, length);
}

/* Give the device its UUID: GPU-53474750-ssss-ssss-8000-0000000000mi, the same in every process and after a restart.
 * Its digits s are the seed, m is `instance` (0: a GPU; else the place of a MIG instance on its GPU, from 1), i is
 * `index`, the GPU's. */
static void name_device(struct sg_device *device, uint32_t index, uint32_t instance) {
  uint32_t seed = (uint32_t)sg_setting("SIMGPU_SEED", 0);
  const uint8_t uuid[16] = {0x53,
                            0x47,
                            0x47,
                            0x50,
                            (uint8_t)(seed >> 24),
                            (uint8_t)(seed >> 16),
                            (uint8_t)(seed >> 8),
                            (uint8_t)seed,
                            0x80,
                            0,
                            0,
                            0,
                            0,
                            0,
                            0,
                            (uint8_t)(instance << 4 | index)};
  memcpy(device->uuid, uuid, sizeof uuid);
}

/* The number of GPUs, without MIG instances. */
static uint32_t gpu_count(const struct sg_shared *shared) {
  uint32_t count = 0;
  for (uint32_t n = 0; n < shared->device_count; n++)
    count += shared->devices[n].parent == SG_NONE;
  return count;
}

/* Append a GPU of this model to the devices. NULL: the table of devices is full. */
static struct sg_device *add_gpu(struct sg_shared *shared, const struct model_row *row) {
  if (shared->device_count == SG_MAX_DEVICES)
    return NULL;
  uint32_t index = gpu_count(shared);
  struct sg_device *device = &shared->devices[shared->device_count++];
  *device = (struct sg_device){
      .sm_count = row->sm_count,
      .major = row->major,
      .minor = row->minor,
      .clock_khz = row->clock_khz,
      .memory_clock_khz = row->memory_clock_khz,
      .bus_bits = row->bus_bits,
      .l2_bytes = row->l2_bytes,
      .pci_bus = 0x10 + index * 8, /* grows with the index: visible.c counts on it */
      .pci_id = row->pci_id,
      .model = (uint32_t)(row - catalogue),
      .power_limit_mw = row->power_limit_w * 1000,
      .nvlinks = row->nvlinks,
      .memory_total_bytes = sg_setting("SIMGPU_MEMORY_MIB", row->memory_mib) * MIB,
      .bandwidth_bytes_per_s = row->bandwidth_bytes_per_s,
      .current = SG_NONE,
      .parent = SG_NONE,
      .number = index,
  };
  snprintf(device->name, sizeof device->name, "%s", row->name);
  name_device(device, index, 0);
  return device;
}

/* The memory of an instance with this profile: its slices of the GPU's memory, of which there are MEMORY_SLICES. */
uint64_t sg_mig_profile_memory_mib(const struct sg_device *gpu, const struct sg_mig_profile *profile) {
  return gpu->memory_total_bytes / MIB * profile->memory_slices / MEMORY_SLICES;
}

/* Append a MIG instance to the devices. It has its slices of the GPU to itself, so the model treats it as a device of
 * its own. `number`: its place among the instances of the GPU. False: the table of devices is full. */
static bool add_instance(struct sg_shared *shared, const struct sg_device *gpu, const char *model, uint32_t number,
                         const struct sg_mig_profile *row) {
  if (shared->device_count == SG_MAX_DEVICES)
    return false;
  struct sg_device *device = &shared->devices[shared->device_count++];
  *device = *gpu;
  device->sm_count = row->sm_count;
  device->bus_bits = gpu->bus_bits * row->memory_slices / MEMORY_SLICES;
  device->l2_bytes = gpu->l2_bytes / MEMORY_SLICES * row->memory_slices;
  device->bandwidth_bytes_per_s = gpu->bandwidth_bytes_per_s / MEMORY_SLICES * row->memory_slices;
  device->memory_total_bytes = sg_mig_profile_memory_mib(gpu, row) * MIB;
  device->mig = 0;
  device->parent = (uint32_t)(gpu - shared->devices);
  device->number = number;
  device->profile = (uint32_t)(row - profiles);
  snprintf(device->name, sizeof device->name, "%s MIG %s", model, row->name);
  name_device(device, gpu->number, number + 1);
  return true;
}

/* The highest memory slice at which an instance with this profile may start. Starts are multiples of its number of
 * memory slices, and its compute slices must fit behind the start. */
uint32_t sg_mig_profile_last_start(const struct sg_mig_profile *profile) {
  return (COMPUTE_SLICES - profile->compute_slices) / profile->memory_slices * profile->memory_slices;
}

/* Give each instance of the GPU the highest start that is free, as the real driver does. The largest instances come
 * first: then all find places if their sum fits. For that the rows of a model in mig.inc are in order of size. */
static void place_instances(struct sg_shared *shared, const struct sg_device *gpu) {
  uint32_t occupied = 0; /* bit n: memory slice n */
  for (uint32_t row = PROFILES; row--;)
    for (struct sg_device *device = shared->devices; device < shared->devices + shared->device_count; device++) {
      if (device->parent != (uint32_t)(gpu - shared->devices) || device->profile != row)
        continue;
      uint32_t size = profiles[row].memory_slices, slices = (1u << size) - 1;
      device->start = sg_mig_profile_last_start(&profiles[row]);
      while (device->start && occupied & slices << device->start)
        device->start -= size;
      occupied |= slices << device->start;
    }
}

/* Cut a GPU by the first `length` characters of `text`: "3g.40gb+4g.40gb", or "mig": MIG is on and nothing is cut.
 * Returns 0, or -EINVAL for what the hardware would refuse. */
static int cut(struct sg_shared *shared, struct sg_device *gpu, const struct model_row *model, const char *text,
               size_t length) {
  uint32_t compute = 0, memory = 0;
  bool known = false;
  for (uint32_t n = 0; n < PROFILES; n++)
    known |= !strcmp(profiles[n].setting, model->setting);
  gpu->mig = 1;
  if (known && is("mig", text, length))
    return 0;
  const char *end = text + length;
  for (uint32_t number = 0; text < end; number++) {
    size_t name_length = strcspn(text, "+,");
    const struct sg_mig_profile *row = NULL;
    for (uint32_t n = 0; n < PROFILES; n++)
      if (!strcmp(profiles[n].setting, model->setting) && is(profiles[n].name, text, name_length))
        row = &profiles[n];
    if (!row || (compute += row->compute_slices) > COMPUTE_SLICES || (memory += row->memory_slices) > MEMORY_SLICES ||
        !add_instance(shared, gpu, model->name, number, row))
      return -EINVAL;
    text += name_length + (text[name_length] == '+');
  }
  place_instances(shared, gpu);
  return compute ? 0 : -EINVAL;
}

/* Add "H100" or "H100:3g.40gb+4g.40gb", the first `length` characters of `text`. Returns 0 or -EINVAL. */
static int add_device(struct sg_shared *shared, const char *text, size_t length) {
  size_t name_length = strcspn(text, ":,");
  const struct model_row *row = NULL;
  for (size_t n = 0; n < sizeof catalogue / sizeof *catalogue; n++)
    if (is(catalogue[n].setting, text, name_length))
      row = &catalogue[n];
  struct sg_device *gpu = row ? add_gpu(shared, row) : NULL;
  if (!gpu)
    return -EINVAL;
  return name_length == length ? 0 : cut(shared, gpu, row, text + name_length + 1, length - name_length - 1);
}

/* Make the devices that SIMGPU_DEVICES names: "2xH200,1xA10", each with its MIG instances behind a colon. Returns 0,
 * or -EINVAL for a text that names none, an unknown one or too many. */
int sg_add_devices(struct sg_shared *shared, const char *text) {
  if (strlen(text) >= sizeof shared->devices_setting)
    return -EINVAL;
  shared->device_count = 0; /* an earlier maker of the file may have died in here */
  snprintf(shared->devices_setting, sizeof shared->devices_setting, "%s", text);
  while (*text) {
    char *after_count;
    unsigned long count = strtoul(text, &after_count, 10);
    if (after_count == text)
      count = 1;
    else if (*after_count == 'x')
      text = after_count + 1;
    else
      return -EINVAL;
    size_t length = strcspn(text, ",");
    for (unsigned long n = 0; n < count; n++)
      if (add_device(shared, text, length))
        return -EINVAL;
    text += length + (text[length] == ',');
  }
  return shared->device_count ? 0 : -EINVAL;
}

/* The profile of the device's model with NVML's number. NULL: the model has none with it. */
const struct sg_mig_profile *sg_mig_profile_numbered(const struct sg_device *device, uint32_t number) {
  for (uint32_t n = 0; n < PROFILES; n++)
    if (profiles[n].number == number && !strcmp(profiles[n].setting, catalogue[device->model].setting))
      return &profiles[n];
  return NULL;
}

/* The profile by which an instance was cut. */
const struct sg_mig_profile *sg_mig_profile_of(const struct sg_device *instance) {
  return &profiles[instance->profile];
}
