/* What NVML reports about any device: identity, memory, load. nvml/board.c has what only a whole GPU has. NVML's
 * documentation tells what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/nvml/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define LOOK_BACK_NS 500000000ull /* utilisation is a mean over this time, as on real devices (1/6 to 1 s) */

/* --- handles ------------------------------------------------------------------------------------------------------ */

/* The number of GPUs before this place that the process may use. */
static uint32_t gpus_before(uint32_t place) {
  uint32_t count = 0;
  for (uint32_t n = 0; n < place; n++)
    count += nvml.state.shared->devices[n].parent == SG_NONE && !sg_hidden(&nvml.state, n);
  return count;
}

/* Inside a call: the number of GPUs that the process may use. */
uint32_t nvml_gpu_count(void) {
  return gpus_before(nvml.state.shared->device_count);
}

/* GPUs that the process may not use do not count, nor do MIG instances. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  if (!count)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *count = nvml_gpu_count();
  return nvml_leave(NVML_SUCCESS);
}

/* End a call that has found the device at this place, and return the handle. If the device is lost, the call fails. */
static nvmlReturn_t give_handle(uint32_t place, nvmlDevice_t *device) {
  *device = &nvml.handles[place];
  return nvml_leave(nvml_lost(&nvml.state.shared->devices[place]) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS);
}

/* The index counts the GPUs that the process may use. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  for (uint32_t n = 0; device && n < nvml.state.shared->device_count; n++) {
    const struct sg_device *found = &nvml.state.shared->devices[n];
    if (found->parent == SG_NONE && !sg_hidden(&nvml.state, n) && gpus_before(n) == index)
      return give_handle(n, device);
  }
  return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
}

/* The handle of a GPU or a MIG instance. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  if (!device || !uuid)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  for (uint32_t n = 0; n < nvml.state.shared->device_count; n++) {
    char text[64];
    nvml_uuid_text(&nvml.state.shared->devices[n], text);
    if (!strcasecmp(text, uuid) && !sg_hidden(&nvml.state, n))
      return give_handle(n, device);
  }
  return nvml_leave(NVML_ERROR_NOT_FOUND);
}

/* The place on the bus as text: "0000:18:00.0", also with eight digits of domain, or without the domain. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  unsigned int domain = 0, bus, slot, function = 0;
  if (!device || !bus_id ||
      (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3 &&
       (domain = 0, sscanf(bus_id, "%x:%x.%x", &bus, &slot, &function) < 2)))
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  for (uint32_t n = 0; n < nvml.state.shared->device_count; n++) {
    const struct sg_device *found = &nvml.state.shared->devices[n];
    if (found->parent == SG_NONE && found->pci_domain == domain && found->pci_bus == bus && found->pci_device == slot &&
        !function && !sg_hidden(&nvml.state, n))
      return give_handle(n, device);
  }
  return nvml_leave(NVML_ERROR_NOT_FOUND);
}

NVML_OLDER(nvmlDeviceGetCount, nvmlDeviceGetCount_v2)
NVML_OLDER(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2)
NVML_OLDER(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2)

/* --- identity ----------------------------------------------------------------------------------------------------- */

/* Write the device's UUID as text. `text` holds 64 bytes. */
void nvml_uuid_text(const struct sg_device *device, char *text) {
  int at = sprintf(text, device->parent == SG_NONE ? "GPU" : "MIG");
  for (int n = 0; n < 16; n++)
    at += sprintf(text + at, "%s%02x", n == 0 || n == 4 || n == 6 || n == 8 || n == 10 ? "-" : "", device->uuid[n]);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_KNOWN, &device);
  return result ? result : nvml_leave(nvml_text(name, length, device->name));
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_KNOWN, &device);
  if (result)
    return result;
  char text[64];
  nvml_uuid_text(device, text);
  return nvml_leave(nvml_text(uuid, length, text));
}

/* --- one number each ---------------------------------------------------------------------------------------------- */

/* Inside a call: the part of the last LOOK_BACK_NS in which the device was busy, in percent, rounded. */
uint32_t nvml_busy_percent(const struct sg_device *device) {
  uint64_t now_ns = nvml.state.shared->now_ns;
  uint64_t from_ns = now_ns > LOOK_BACK_NS ? now_ns - LOOK_BACK_NS : 0;
  uint64_t percent = (sg_history_busy(&device->history, from_ns, now_ns) * 100 + LOOK_BACK_NS / 2) / LOOK_BACK_NS;
  return percent < 100 ? (uint32_t)percent : 100;
}

/* Inside a call: the index of the device in the state. */
uint32_t nvml_place(const struct sg_device *device) {
  return (uint32_t)(device - nvml.state.shared->devices);
}

/* The index by which NVML finds the device: a GPU among those that the process may use, an instance on its GPU. */
static uint32_t index_of(const struct sg_device *d) {
  return d->parent == SG_NONE ? gpus_before(nvml_place(d)) : d->number;
}
/* The minor number of its node, /dev/nvidiaN. */
static uint32_t minor_number(const struct sg_device *d) {
  return d->number;
}
/* CUDA cores: 64 in each SM of capability 7.x and 8.0, else 128. */
static uint32_t cores(const struct sg_device *d) {
  return d->sm_count * (d->major == 7 || (d->major == 8 && d->minor == 0) ? 64 : 128);
}
/* The width of the memory bus in bits. */
static uint32_t bus_width(const struct sg_device *d) {
  return d->bus_bits;
}
/* NVML_ARCH: Turing 6, Ampere 7, Ada 8, Hopper 9, Blackwell 10. */
static uint32_t architecture(const struct sg_device *d) {
  return d->major == 7 ? 6 : d->major > 8 ? d->major : d->minor == 9 ? 8 : 7;
}

/* The body of the calls that return one number of a device: what `read` returns. */
nvmlReturn_t nvml_number(nvmlDevice_t handle, enum nvml_need need, uint32_t *value,
                         uint32_t (*read)(const struct sg_device *)) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, need, &device);
  if (result)
    return result;
  if (!value)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *value = read(device);
  return nvml_leave(NVML_SUCCESS);
}

NVML_NUMBER(nvmlDeviceGetIndex, NVML_KNOWN, index_of)
NVML_NUMBER(nvmlDeviceGetMinorNumber, NVML_BOARD, minor_number)
NVML_NUMBER(nvmlDeviceGetArchitecture, NVML_KNOWN, architecture)
NVML_NUMBER(nvmlDeviceGetNumGpuCores, NVML_BOARD, cores)
NVML_NUMBER(nvmlDeviceGetMemoryBusWidth, NVML_KNOWN, bus_width)
/* 1 for a MIG instance, 0 for a GPU. */
static uint32_t is_instance(const struct sg_device *d) {
  return d->parent != SG_NONE;
}
NVML_NUMBER(nvmlDeviceIsMigDeviceHandle, NVML_KNOWN, is_instance)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_KNOWN, &device);
  if (result)
    return result;
  if (!major || !minor)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *major = (int)device->major;
  *minor = (int)device->minor;
  return nvml_leave(NVML_SUCCESS);
}

/* --- memory and load ---------------------------------------------------------------------------------------------- */

struct memory_v1 {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};
#define MEMORY_V2 (sizeof(struct memory_v2) | 2u << 24)

/* The body of the calls about memory; `memory` is not NULL. What dead processes had is free again by then. */
static nvmlReturn_t memory_info(nvmlDevice_t handle, struct memory_v1 *memory) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LIVE, &device);
  if (result)
    return result;
  if (device->mute)
    return nvml_leave(NVML_ERROR_NO_PERMISSION);
  sg_reap(&nvml.state);
  uint64_t total = device->memory_total_bytes, used = 0;
  for (uint32_t n = 0; n < nvml.state.shared->device_count; n++) /* of a GPU: of all its instances */
    if (n == nvml_place(device) || nvml.state.shared->devices[n].parent == nvml_place(device))
      used += sg_memory_used(nvml.state.shared, n);
  *memory = (struct memory_v1){.total = total, .free = used < total ? total - used : 0, .used = used};
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, struct memory_v1 *memory) {
  return memory ? memory_info(handle, memory) : NVML_ERROR_INVALID_ARGUMENT;
}

/* The newer layout. The driver reserves no memory here. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, struct memory_v2 *memory) {
  if (!memory)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != MEMORY_V2)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  struct memory_v1 plain;
  nvmlReturn_t result = memory_info(handle, &plain);
  if (result)
    return result;
  *memory = (struct memory_v2){.version = MEMORY_V2, .total = plain.total, .free = plain.free, .used = plain.used};
  return NVML_SUCCESS;
}

struct utilization {
  unsigned int gpu, memory;
};

/* Means over LOOK_BACK_NS, in percent. GPUs in MIG mode and their instances have none. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, struct utilization *rates) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LOAD, &device);
  if (result)
    return result;
  if (!rates)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  rates->gpu = nvml_busy_percent(device);
  rates->memory = rates->gpu / 2; /* the model has no memory controller */
  return nvml_leave(NVML_SUCCESS);
}
