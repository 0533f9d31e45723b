/*
 * Which devices a process sees, in which order, among those that it may use (nodes.c): by CUDA_DEVICE_ORDER and
 * CUDA_VISIBLE_DEVICES, as the real driver reads them.
 *
 * GPUs are numbered fastest first, or by PCI bus. A list of numbers, of GPU UUIDs or of MIG UUIDs picks among them. A
 * UUID may be cut short if only one device begins so. The first entry that names no device ends the list. If an entry
 * is there twice, no device is visible. A process sees at most one MIG instance, and no GPU beside it: a GPU in MIG
 * mode stands for its first instance.
 */
#include "simgpu/api/process.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct choice {
  uint32_t count;
  uint32_t devices[SG_MAX_DEVICES]; /* indices in the state */
};

/* How fast a GPU is, by which CUDA numbers GPUs: SMs times clock. */
static uint64_t speed(const struct sg_device *device) {
  return (uint64_t)device->sm_count * device->clock_khz;
}

/* Fill `gpus` with the GPUs that the process may use, in CUDA's order. The state has them in bus order, and equally
 * fast ones keep that order. */
static void number_gpus(const struct sg_shared *shared, struct choice *gpus) {
  const char *order = getenv("CUDA_DEVICE_ORDER");
  bool by_bus = order && !strcmp(order, "PCI_BUS_ID");
  for (uint32_t n = 0; n < shared->device_count; n++) {
    if (shared->devices[n].parent != SG_NONE || sg_hidden(&process.state, n))
      continue;
    uint32_t at = gpus->count++;
    while (!by_bus && at && speed(&shared->devices[gpus->devices[at - 1]]) < speed(&shared->devices[n])) {
      gpus->devices[at] = gpus->devices[at - 1];
      at--;
    }
    gpus->devices[at] = n;
  }
}

/* The only GPU, or with `instance` the only MIG instance, with a UUID that begins with the text. SG_NONE: there is
 * none, or there are several. */
static uint32_t named(const struct sg_shared *shared, bool instance, const char *text, size_t length) {
  uint32_t found = SG_NONE;
  for (uint32_t n = 0; n < shared->device_count; n++) {
    const struct sg_device *device = &shared->devices[n];
    char full[48];
    int at = snprintf(full, sizeof full, device->parent == SG_NONE ? "GPU-" : "MIG-");
    for (int byte = 0; byte < 16; byte++)
      at += snprintf(full + at, sizeof full - (size_t)at, "%s%02x",
                     byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "", device->uuid[byte]);
    if ((device->parent != SG_NONE) != instance || length > (size_t)at || strncmp(full, text, length) != 0 ||
        sg_hidden(&process.state, n))
      continue;
    if (found != SG_NONE)
      return SG_NONE;
    found = n;
  }
  return found;
}

/* The GPU with the number at the start of an entry: "1gpu2" means 1. SG_NONE: there is no number, or no such GPU. */
static uint32_t numbered(const struct choice *gpus, const char *text) {
  while (isspace((unsigned char)*text))
    text++;
  char *rest;
  long number = strtol(text, &rest, 10);
  return rest != text && number >= 0 && number < (long)gpus->count ? gpus->devices[number] : SG_NONE;
}

/* Fill `chosen` with the devices of a list, which may be none. The first entry tells the kind of all entries. */
static void choose(const struct sg_shared *shared, const struct choice *gpus, const char *list, struct choice *chosen) {
  bool gpu = !strncmp(list, "GPU-", 4), instance = !strncmp(list, "MIG-", 4);
  while (*list && chosen->count < SG_MAX_DEVICES) {
    size_t length = strcspn(list, ",");
    uint32_t device = gpu || instance ? named(shared, instance, list, length) : numbered(gpus, list);
    if (device == SG_NONE)
      return;
    for (uint32_t n = 0; n < chosen->count; n++)
      if (chosen->devices[n] == device) {
        chosen->count = 0;
        return;
      }
    chosen->devices[chosen->count++] = device;
    list += length + (list[length] == ',');
  }
}

/* The first MIG instance of a GPU. SG_NONE: it has none. */
static uint32_t first_instance(const struct sg_shared *shared, uint32_t gpu) {
  for (uint32_t n = 0; n < shared->device_count; n++)
    if (shared->devices[n].parent == gpu)
      return n;
  return SG_NONE;
}

/* Fill process.devices. The first MIG instance replaces the GPUs before it, and ends the list. */
void find_visible(void) {
  const struct sg_shared *shared = process.state.shared;
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  struct choice gpus = {0}, chosen = {0};
  number_gpus(shared, &gpus);
  if (list)
    choose(shared, &gpus, list, &chosen);
  else
    chosen = gpus;
  for (uint32_t n = 0; n < chosen.count; n++) {
    uint32_t device = chosen.devices[n];
    if (shared->devices[device].mig)
      device = first_instance(shared, device);
    if (device == SG_NONE)
      continue;
    if (shared->devices[device].parent != SG_NONE) {
      process.devices[0] = device;
      process.device_count = 1;
      return;
    }
    process.devices[process.device_count++] = device;
  }
}

/* The ordinal of the device with this index in the state. It fails if the process does not see the device. */
CUresult device_ordinal(uint32_t device, CUdevice *ordinal) {
  for (uint32_t n = 0; n < process.device_count; n++)
    if (process.devices[n] == device) {
      *ordinal = (CUdevice)n;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_DEVICE;
}

/* The index of a location in a table by device, in which the entry after the devices is for the host. */
CUresult location_place(const CUmemLocation *location, uint32_t *place) {
  *place = SG_MAX_DEVICES;
  if (location->type >= CU_MEM_LOCATION_TYPE_HOST && location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
    return CUDA_SUCCESS;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (location->id < 0 || (uint32_t)location->id >= process.device_count)
    return CUDA_ERROR_INVALID_DEVICE;
  *place = process.devices[location->id];
  return CUDA_SUCCESS;
}
