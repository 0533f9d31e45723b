/* What the library says about one device: identity, memory, load, place in the machine. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define LOOK_BACK_NS 500000000ull /* utilisation is a mean over this time, as on real devices (1/6 to 1 s) */

/* --- handles ------------------------------------------------------------------------------------------------------ */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  if (!count)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *count = sg_gpu_count(nvml.state.shared);
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  for (uint32_t n = 0; device && n < nvml.state.shared->device_count; n++) {
    const struct sg_device *found = &nvml.state.shared->devices[n];
    if (found->parent == SG_NONE && found->number == index) {
      *device = &nvml.handles[n];
      return nvml_leave(NVML_SUCCESS);
    }
  }
  return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  if (!device || !uuid)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  for (uint32_t n = 0; n < nvml.state.shared->device_count; n++) {
    char text[64];
    nvml_uuid_text(&nvml.state.shared->devices[n], text);
    if (!strcasecmp(text, uuid)) {
      *device = &nvml.handles[n];
      return nvml_leave(NVML_SUCCESS);
    }
  }
  return nvml_leave(NVML_ERROR_NOT_FOUND);
}

/* "0000:18:00.0", with eight digits of domain, or with none. */
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
        !function) {
      *device = &nvml.handles[n];
      return nvml_leave(NVML_SUCCESS);
    }
  }
  return nvml_leave(NVML_ERROR_NOT_FOUND);
}

/* --- identity ----------------------------------------------------------------------------------------------------- */

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

uint32_t nvml_busy_percent(const struct sg_device *device) {
  uint64_t now_ns = nvml.state.shared->now_ns;
  uint64_t from_ns = now_ns > LOOK_BACK_NS ? now_ns - LOOK_BACK_NS : 0;
  uint64_t percent = (sg_history_busy(&device->history, from_ns, now_ns) * 100 + LOOK_BACK_NS / 2) / LOOK_BACK_NS;
  return percent < 100 ? (uint32_t)percent : 100;
}

uint32_t nvml_place(const struct sg_device *device) {
  return (uint32_t)(device - nvml.state.shared->devices);
}

/* Of an instance: what nvmlDeviceGetMigDeviceHandleByIndex takes. */
static uint32_t index_of(const struct sg_device *d) {
  return d->number;
}
static uint32_t zero(const struct sg_device *d) {
  return (void)d, 0;
}
static uint32_t one(const struct sg_device *d) {
  return (void)d, 1;
}
static uint32_t cores(const struct sg_device *d) {
  return d->sm_count * (d->major == 7 ? 64 : 128);
}
static uint32_t bus_width(const struct sg_device *d) {
  return d->bus_bits;
}
/* Plausible, not modelled: enough for a dashboard to move with the load. */
static uint32_t power_limit(const struct sg_device *d) {
  return 150000u + 4000u * d->sm_count;
}
static uint32_t power(const struct sg_device *d) {
  return 40000u + (power_limit(d) - 40000u) / 100u * nvml_busy_percent(d);
}
static uint32_t temperature(const struct sg_device *d) {
  return 32 + nvml_busy_percent(d) * 36 / 100;
}
/* P0 busy, P8 idle. */
static uint32_t performance_state(const struct sg_device *d) {
  return nvml_busy_percent(d) ? 0 : 8;
}
/* NVML_ARCH: Turing 6, Ampere 7, Ada 8, Hopper 9, Blackwell 10. */
static uint32_t architecture(const struct sg_device *d) {
  return d->major == 7 ? 6 : d->major > 8 ? d->major : d->minor == 9 ? 8 : 7;
}

static nvmlReturn_t number(nvmlDevice_t handle, enum nvml_need need, uint32_t *value,
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

#define NUMBER(name, need, read)                                                                                       \
  NVML_EXPORT nvmlReturn_t name(nvmlDevice_t handle, unsigned int *value) {                                            \
    return number(handle, need, value, read);                                                                          \
  }
NUMBER(nvmlDeviceGetIndex, NVML_KNOWN, index_of)
NUMBER(nvmlDeviceGetMinorNumber, NVML_BOARD, index_of)
NUMBER(nvmlDeviceGetArchitecture, NVML_KNOWN, architecture)
NUMBER(nvmlDeviceGetNumGpuCores, NVML_BOARD, cores)
NUMBER(nvmlDeviceGetMemoryBusWidth, NVML_KNOWN, bus_width)
NUMBER(nvmlDeviceGetComputeMode, NVML_BOARD, zero)    /* default: many processes */
NUMBER(nvmlDeviceGetPersistenceMode, NVML_BOARD, one) /* enabled */
NUMBER(nvmlDeviceGetPowerUsage, NVML_BOARD, power)
NUMBER(nvmlDeviceGetPowerManagementLimit, NVML_BOARD, power_limit)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, NVML_BOARD, power_limit)
NUMBER(nvmlDeviceGetPerformanceState, NVML_BOARD, performance_state)
static uint32_t is_instance(const struct sg_device *d) {
  return d->parent != SG_NONE;
}
NUMBER(nvmlDeviceIsMigDeviceHandle, NVML_KNOWN, is_instance)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned int sensor, unsigned int *celsius) {
  return sensor ? NVML_ERROR_INVALID_ARGUMENT : number(handle, NVML_BOARD, celsius, temperature);
}

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

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEM, CLOCK_VIDEO };

static nvmlReturn_t clock_mhz(nvmlDevice_t handle, unsigned int type, unsigned int *mhz) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (!mhz || type > CLOCK_VIDEO)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *mhz = (type == CLOCK_MEM ? device->memory_clock_khz : device->clock_khz) / 1000;
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz) {
  return clock_mhz(handle, type, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz) {
  return clock_mhz(handle, type, mhz);
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

static nvmlReturn_t memory_info(nvmlDevice_t handle, struct memory_v1 *memory) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LIVE, &device);
  if (result)
    return result;
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

/* --- place in the machine ----------------------------------------------------------------------------------------- */

struct pci_info {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, struct pci_info *pci) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (!pci)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *pci = (struct pci_info){
      .domain = device->pci_domain,
      .bus = device->pci_bus,
      .device = device->pci_device,
      .pci_device_id = device->pci_id,
      .pci_subsystem_id = device->pci_id,
  };
  snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
           pci->device & 0xff);
  snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff, pci->device & 0xff);
  return nvml_leave(NVML_SUCCESS);
}

enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_NODE = 40, TOPOLOGY_SYSTEM = 50 };

/* Four devices to a CPU, as in common servers; no switch joins them. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, int *level) {
  unsigned int first, second;
  nvmlReturn_t result = nvmlDeviceGetIndex(a, &first);
  if (!result)
    result = nvmlDeviceGetIndex(b, &second);
  if (result)
    return result;
  if (!level)
    return NVML_ERROR_INVALID_ARGUMENT;
  *level = first == second ? TOPOLOGY_INTERNAL : first / 4 == second / 4 ? TOPOLOGY_NODE : TOPOLOGY_SYSTEM;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link, unsigned int *active) {
  (void)link, (void)active;
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  return result ? result : nvml_leave(NVML_ERROR_NOT_SUPPORTED);
}

/* --- fields ------------------------------------------------------------------------------------------------------- */

#define FIELD_RECOVERY_ACTION 230 /* NVML_FI_DEV_GET_GPU_RECOVERY_ACTION */
enum { RECOVERY_NONE = 0, RECOVERY_RESET = 1 };

struct field_value {
  unsigned int field, scope;
  long long timestamp_us, latency_us;
  unsigned int type; /* 1 = unsigned int */
  nvmlReturn_t result;
  union {
    unsigned int number;
    unsigned long long widest;
  } value;
};

NVML_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, struct field_value *fields) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LIVE, &device);
  if (result)
    return result;
  if (count < 1 || !fields)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  for (int n = 0; n < count; n++) {
    bool known = fields[n].field == FIELD_RECOVERY_ACTION;
    fields[n].timestamp_us = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
    fields[n].latency_us = 0;
    fields[n].type = 1;
    fields[n].result = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    fields[n].value.widest = known && device->lost_error ? RECOVERY_RESET : RECOVERY_NONE;
  }
  return nvml_leave(NVML_SUCCESS);
}
