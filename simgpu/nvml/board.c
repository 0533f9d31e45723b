/* What NVML reports about a board: power, clocks, errors, its place on the bus, its links. NVML's documentation tells
 * what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/model/model.h"
#include "simgpu/nvml/nvml.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* --- power, clocks ------------------------------------------------------------------------------------------------ */

#define IDLE_PART         7u /* part of the power limit that an idle board draws: 100 W for an H200, 10 W for a T4 */
#define IDLE_CELSIUS      32u
#define BUSY_CELSIUS      36u  /* added at full load */
#define GDDR_IDLE_MHZ     405u /* memory clock in P8 */
#define HOPPER_IDLE_MHZ   345u /* graphics clock; and of the older architectures: */
#define AMPERE_IDLE_MHZ   210u
#define TURING_IDLE_MHZ   300u
#define HBM_BITS          4096u /* no GDDR board has such a wide bus */
#define SAMPLING_US       167000u
#define BRAND_NVIDIA      14u
#define XID_DOUBLE_BIT    48u
#define XID_CONTAINED     94u
#define XID_NOT_CONTAINED 95u

/* Whether the memory is on the package. Such a board stays in P0; the others go to P8 when they are idle. */
static bool has_hbm(const struct sg_device *d) {
  return d->bus_bits >= HBM_BITS;
}

/* A figure of a whole GPU: what `read` returns for it. In MIG mode the figures of its instances are added, each in
 * proportion to the instance's SMs. */
static uint64_t of_board(const struct sg_device *gpu, uint64_t (*read)(const struct sg_device *)) {
  uint64_t sum = read(gpu);
  for (uint32_t n = 0; gpu->mig && n < nvml.state.shared->device_count; n++) {
    const struct sg_device *device = &nvml.state.shared->devices[n];
    if (device->parent == nvml_place(gpu))
      sum += read(device) * device->sm_count / gpu->sm_count;
  }
  return sum;
}
/* The part of the recent time in which a device was busy, in percent; for of_board. */
static uint64_t percent_of(const struct sg_device *d) {
  return nvml_busy_percent(d);
}
/* The time for which a device has been busy since the state was made; for of_board. */
static uint64_t busy_ms(const struct sg_device *d) {
  return d->busy_ns / 1000000u;
}
/* The load of a whole GPU in percent. */
static uint32_t load(const struct sg_device *d) {
  return (uint32_t)of_board(d, percent_of);
}

/* In mW. */
static uint32_t power_limit(const struct sg_device *d) {
  return d->power_limit_mw;
}
/* Plausible, not modelled: from idle to the limit, in proportion to the load. The energy is its integral. */
static uint32_t power(const struct sg_device *d) {
  uint32_t idle_mw = d->power_limit_mw / IDLE_PART;
  return idle_mw + (d->power_limit_mw - idle_mw) / 100u * load(d);
}
/* Since the state was made: the idle power all the time, and the rest up to the limit while the board was busy. */
static uint64_t energy_mj(const struct sg_device *d) {
  const struct sg_shared *shared = nvml.state.shared;
  uint64_t idle_mw = d->power_limit_mw / IDLE_PART, up_ms = (shared->now_ns - shared->made_ns) / 1000000u;
  return (idle_mw * up_ms + (d->power_limit_mw - idle_mw) * of_board(d, busy_ms)) / 1000u;
}
/* In degrees Celsius. Plausible, not modelled: it rises with the load. */
static uint32_t temperature(const struct sg_device *d) {
  return IDLE_CELSIUS + load(d) * BUSY_CELSIUS / 100;
}
/* The P-state: 0 under load and always with HBM, else 8. */
static uint32_t performance_state(const struct sg_device *d) {
  return load(d) || has_hbm(d) ? 0 : 8;
}
/* The figure of a call that returns 0 for every device. */
static uint32_t zero(const struct sg_device *d) {
  return (void)d, 0;
}
/* The figure of a call that returns 1 for every device. */
static uint32_t one(const struct sg_device *d) {
  return (void)d, 1;
}
/* nvmlBrandType_t, the same for every model. */
static uint32_t brand(const struct sg_device *d) {
  return (void)d, BRAND_NVIDIA;
}
/* The generation of PCIe, by the model's compute capability. */
static uint32_t link_generation(const struct sg_device *d) {
  return d->major == 9 ? 5 : d->major == 8 ? 4 : 3;
}
/* The width of the PCIe link. */
static uint32_t lanes(const struct sg_device *d) {
  return (void)d, 16;
}
/* As Truth.set_compute_mode has set it, 0 by default. */
static uint32_t compute_mode(const struct sg_device *d) {
  return d->compute_mode;
}

NVML_NUMBER(nvmlDeviceGetBrand, NVML_KNOWN, brand)
NVML_NUMBER(nvmlDeviceGetComputeMode, NVML_BOARD, compute_mode)
NVML_NUMBER(nvmlDeviceGetPersistenceMode, NVML_BOARD, one)     /* enabled */
NVML_NUMBER(nvmlDeviceGetVirtualizationMode, NVML_BOARD, zero) /* none */
NVML_NUMBER(nvmlDeviceGetDisplayActive, NVML_BOARD, zero)
NVML_NUMBER(nvmlDeviceGetDisplayMode, NVML_BOARD, zero)
NVML_NUMBER(nvmlDeviceGetPowerManagementMode, NVML_BOARD, one)
NVML_NUMBER(nvmlDeviceGetPowerUsage, NVML_BOARD, power)
NVML_NUMBER(nvmlDeviceGetPowerManagementLimit, NVML_BOARD, power_limit)
NVML_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, NVML_BOARD, power_limit)
NVML_NUMBER(nvmlDeviceGetEnforcedPowerLimit, NVML_BOARD, power_limit)
NVML_NUMBER(nvmlDeviceGetPerformanceState, NVML_BOARD, performance_state)
NVML_NUMBER(nvmlDeviceGetPowerState, NVML_BOARD, performance_state) /* the older name */
NVML_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, NVML_BOARD, link_generation)
NVML_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, NVML_BOARD, link_generation)
NVML_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, NVML_BOARD, lanes)
NVML_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, NVML_BOARD, lanes)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned int sensor, unsigned int *celsius) {
  return sensor ? NVML_ERROR_INVALID_ARGUMENT : nvml_number(handle, NVML_BOARD, celsius, temperature);
}

struct temperature {
  unsigned int version, sensor;
  int celsius;
};
#define TEMPERATURE_V1 (sizeof(struct temperature) | 1u << 24)

/* The form with a version, for the same single sensor. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, struct temperature *asked) {
  if (!asked)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (asked->version != TEMPERATURE_V1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return nvmlDeviceGetTemperature(handle, asked->sensor, (unsigned int *)&asked->celsius);
}

/* In mJ, since the state was made. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long *energy) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (!result && energy)
    *energy = energy_mj(device);
  return result ? result : nvml_leave(energy ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEM, CLOCK_VIDEO };

/* The graphics clock of an idle board, in MHz. The SM and video clocks are the same. */
static uint32_t idle_clock_mhz(const struct sg_device *d) {
  return d->major == 9 ? HOPPER_IDLE_MHZ : d->major == 8 ? AMPERE_IDLE_MHZ : TURING_IDLE_MHZ;
}

/* The body of the calls that return a clock. `highest`: the clock under full load; else the present one, which is low
 * on an idle board. HBM keeps its clock there, because its board stays in P0. */
static nvmlReturn_t clock_mhz(nvmlDevice_t handle, unsigned int type, unsigned int *mhz, bool highest) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (!mhz || type > CLOCK_VIDEO)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  bool idle = !highest && !load(device);
  if (type == CLOCK_MEM)
    *mhz = idle && !has_hbm(device) ? GDDR_IDLE_MHZ : device->memory_clock_khz / 1000;
  else
    *mhz = idle ? idle_clock_mhz(device) : device->clock_khz / 1000;
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz) {
  return clock_mhz(handle, type, mhz, /* highest */ false);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz) {
  return clock_mhz(handle, type, mhz, /* highest */ true);
}

/* The body of the calls about encoders and decoders. They are always idle: nothing uses them here. */
static nvmlReturn_t video(nvmlDevice_t handle, unsigned int *percent, unsigned int *sampling_us) {
  nvmlReturn_t result = sampling_us ? nvml_number(handle, NVML_LOAD, percent, zero) : NVML_ERROR_INVALID_ARGUMENT;
  if (!result)
    *sampling_us = SAMPLING_US;
  return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t handle, unsigned int *percent,
                                                         unsigned int *sampling_us) {
  return video(handle, percent, sampling_us);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t handle, unsigned int *percent,
                                                         unsigned int *sampling_us) {
  return video(handle, percent, sampling_us);
}

/* --- errors of memory --------------------------------------------------------------------------------------------- */

/* ECC is on in every GPU, and will be after the next reboot. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending) {
  nvmlReturn_t result = nvml_number(handle, NVML_BOARD, current, one);
  return result ? result : nvml_number(handle, NVML_BOARD, pending, one);
}

/* The errors that XIDs reported; none was corrected. The driver was last loaded when the state was made, so the
 * volatile and the aggregate counter are equal. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned int uncorrected,
                                                     unsigned int aggregate, unsigned long long *count) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (!count || uncorrected > 1 || aggregate > 1)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *count = 0;
  for (uint32_t n = 0; uncorrected && n < SG_MAX_XIDS; n++) {
    const struct sg_xid *xid = &nvml.state.shared->xids[n];
    bool memory = xid->xid == XID_DOUBLE_BIT || xid->xid == XID_CONTAINED || xid->xid == XID_NOT_CONTAINED;
    bool here =
        xid->device == nvml_place(device) || nvml.state.shared->devices[xid->device].parent == nvml_place(device);
    *count += xid->seq && memory && here;
  }
  return nvml_leave(NVML_SUCCESS);
}

/* --- place in the machine ----------------------------------------------------------------------------------------- */

struct pci_info {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

/* The body of the calls that return the place on the bus. `size`: bytes of the caller's layout; the older layouts are a
 * prefix of this one. */
static nvmlReturn_t pci_info(nvmlDevice_t handle, struct pci_info *pci, size_t size) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (!pci)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  struct pci_info whole = {
      .domain = device->pci_domain,
      .bus = device->pci_bus,
      .device = device->pci_device,
      .pci_device_id = device->pci_id,
      .pci_subsystem_id = device->pci_id,
  };
  snprintf(whole.bus_id_legacy, sizeof whole.bus_id_legacy, "%04X:%02X:%02X.0", whole.domain & 0xffff, whole.bus & 0xff,
           whole.device & 0xff);
  snprintf(whole.bus_id, sizeof whole.bus_id, "%08X:%02X:%02X.0", whole.domain, whole.bus & 0xff, whole.device & 0xff);
  memcpy(pci, &whole, size);
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, struct pci_info *pci) {
  return pci_info(handle, pci, sizeof *pci);
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, struct pci_info *pci) {
  return pci_info(handle, pci, offsetof(struct pci_info, bus_id));
}
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, struct pci_info *pci) {
  return pci_info(handle, pci, offsetof(struct pci_info, pci_subsystem_id));
}

/* A number made of the lower half of the seed (bytes 6 and 7 of the UUID) and the GPU's number. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned int length) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  char text[32];
  snprintf(text, sizeof text, "165%05u%05u", (unsigned)(device->uuid[6] << 8 | device->uuid[7]), device->number);
  return nvml_leave(nvml_text(serial, length, text));
}

struct bar1_memory {
  unsigned long long total, free, used;
};

/* The window is as large as the memory, rounded up to a power of two; Turing's is 256 MiB. The driver uses 1 MiB of it.
 * An instance has its slices of the window. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, struct bar1_memory *memory) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LIVE, &device);
  if (result)
    return result;
  if (!memory)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  bool instance = device->parent != SG_NONE;
  const struct sg_device *gpu = instance ? &nvml.state.shared->devices[device->parent] : device;
  *memory = (struct bar1_memory){.total = 256ull << 20, .used = instance ? 0 : 1ull << 20};
  while (gpu->major > 7 && memory->total < gpu->memory_total_bytes)
    memory->total *= 2;
  if (instance)
    memory->total = memory->total / 8 * sg_mig_profile_of(device)->memory_slices; /* a GPU has 8 memory slices */
  memory->free = memory->total - memory->used;
  return nvml_leave(NVML_SUCCESS);
}

enum { PCIE_SENT, PCIE_RECEIVED };

/* The throughput of the copies that run now, in kB/s: each at the model's full rate. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, unsigned int counter, unsigned int *value) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (!value || counter > PCIE_RECEIVED)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  const struct sg_shared *shared = nvml.state.shared;
  *value = 0;
  SG_EACH(slot, shared->active, SG_MAX_CONTEXTS) {
    const struct sg_context *context = &shared->contexts[slot];
    if (context->device != nvml_place(device) && shared->devices[context->device].parent != nvml_place(device))
      continue;
    SG_EACH(lane, context->active, SG_MAX_LANES) {
      const struct sg_item *item = &context->items[context->lanes[lane].head];
      bool inward = item->flags & SG_INWARD;
      if (item->kind == SG_COPY && item->phase == SG_RUNNING && inward == (counter == PCIE_RECEIVED))
        *value += (unsigned int)shared->model.profile.pcie_mb_s * 1000u;
    }
  }
  return nvml_leave(NVML_SUCCESS);
}

/* Begin a call about two GPUs. Every success needs nvml_leave. */
static nvmlReturn_t enter_two(nvmlDevice_t a, nvmlDevice_t b, const struct sg_device **first,
                              const struct sg_device **second) {
  nvmlReturn_t result = nvml_enter_device(a, NVML_BOARD, first);
  if (result)
    return result;
  uint32_t place = 0;
  while (place < nvml.state.shared->device_count && b != &nvml.handles[place])
    place++;
  if (place == nvml.state.shared->device_count)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *second = &nvml.state.shared->devices[place];
  return (*second)->parent == SG_NONE ? NVML_SUCCESS : nvml_leave(NVML_ERROR_NOT_SUPPORTED);
}

enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_NODE = 40, TOPOLOGY_SYSTEM = 50 };

/* Four devices share a CPU, as in common servers. No PCI switch joins them. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, int *level) {
  const struct sg_device *first, *second;
  nvmlReturn_t result = enter_two(a, b, &first, &second);
  if (result)
    return result;
  if (!level)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  bool near = first->number / 4 == second->number / 4;
  *level = first == second ? TOPOLOGY_INTERNAL : near ? TOPOLOGY_NODE : TOPOLOGY_SYSTEM;
  return nvml_leave(NVML_SUCCESS);
}

/* All links of a board lead to the switch that connects all boards of its model. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link, unsigned int *active) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (link >= device->nvlinks)
    return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
  if (active)
    *active = 1;
  return nvml_leave(active ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

enum { P2P_NVLINK = 2, P2P_UNKNOWN = 5 }; /* UNKNOWN is the last kind */
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

/* GPUs are peers over NVLink only, not across the bus. A GPU in MIG mode has no peers. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned int kind,
                                                unsigned int *status) {
  const struct sg_device *first, *second;
  nvmlReturn_t result = enter_two(a, b, &first, &second);
  if (result)
    return result;
  if (!status || kind >= P2P_UNKNOWN || first == second)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  bool joined = first->nvlinks && first->model == second->model && !first->mig && !second->mig;
  *status = joined && kind == P2P_NVLINK ? P2P_OK : P2P_NOT_SUPPORTED;
  return nvml_leave(NVML_SUCCESS);
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

/* The only field that is known is the recovery action: a device that is lost needs a reset. */
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
