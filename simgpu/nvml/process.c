/* The processes that use a device: memory and device time of each, contexts of one process counted together. NVML's
 * documentation tells what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/nvml/nvml.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOK_BACK_NS   1000000000ull                     /* for the utilisation, if the caller gives no time */
#define SHORTEST_NS    (2 * SG_BUCKET_NS)                /* the history has no finer resolution */
#define LONGEST_NS     ((SG_BUCKETS - 2) * SG_BUCKET_NS) /* nor does it reach further back */
#define MPS_BYTES      31457280ull                       /* memory that an MPS server takes for itself */
#define GRAPHICS_BYTES (64ull << 20)                     /* reported for a process that draws and has no CUDA context */

struct process_use {
  uint32_t owner; /* id */
  uint32_t pid;
  uint32_t place; /* index of the device, or of its instance */
  uint64_t memory_bytes;
  uint64_t busy_ns;
};
#define MOST_USES (SG_MAX_CONTEXTS + 1) /* and an MPS server */

/* Inside a call: list the processes that use the device in `uses` (room for MOST_USES), and return the number of
 * entries. A process has one entry for the device, and one for each instance of it, if it has a context there.
 * `busy_ns` of an entry is the busy time in the last `span_ns`. */
static uint32_t collect(const struct sg_device *device, uint64_t span_ns, struct process_use *uses) {
  const struct sg_shared *shared = nvml.state.shared;
  uint32_t place = nvml_place(device), count = 0;
  sg_reap(&nvml.state);
  SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS) {
    const struct sg_context *context = &shared->contexts[slot];
    if (context->device != place && shared->devices[context->device].parent != place)
      continue;
    int32_t pid = sg_seen_pid(&nvml.state, &context->owner);
    if (pid == SG_GONE)
      continue;
    uint32_t n = 0;
    while (n < count && (uses[n].owner != context->owner.id || uses[n].place != context->device))
      n++;
    if (n == count)
      uses[count++] = (struct process_use){.owner = context->owner.id,
                                           /* not seen in this pid namespace: its pid in its own */
                                           .pid = (uint32_t)(pid == SG_UNSEEN ? context->owner.pid : pid),
                                           .place = context->device};
    uses[n].memory_bytes = sg_memory_of(shared, context->device, context->owner.id);
    uses[n].busy_ns += sg_history_busy(&context->history, shared->now_ns - span_ns, shared->now_ns);
  }
  return count;
}

/* --- running processes -------------------------------------------------------------------------------------------- */

enum kind { COMPUTE, GRAPHICS, MPS_COMPUTE };

/* Inside a call: list the processes of a kind in `uses` (room for MOST_USES), and return the number of entries.
 * GRAPHICS: the one that draws (graphics_pid, set by Truth.draw), with its CUDA memory; if it has no context, with
 * GRAPHICS_BYTES, which count nowhere else. If an MPS server serves the device, every process is its client:
 * MPS_COMPUTE lists these, and COMPUTE also the server. */
static uint32_t collect_kind(const struct sg_device *device, enum kind kind, struct process_use *uses) {
  if ((kind == GRAPHICS && !device->graphics_pid) || (kind == MPS_COMPUTE && !device->mps_pid))
    return 0;
  uint32_t count = collect(device, LOOK_BACK_NS, uses);
  if (kind == GRAPHICS) {
    struct process_use drawer = {
        .pid = device->graphics_pid, .place = nvml_place(device), .memory_bytes = GRAPHICS_BYTES};
    for (uint32_t n = 0; n < count; n++)
      if (uses[n].pid == drawer.pid)
        drawer = uses[n];
    uses[0] = drawer;
    return 1;
  }
  if (kind == COMPUTE && device->mps_pid)
    uses[count++] =
        (struct process_use){.pid = device->mps_pid, .place = nvml_place(device), .memory_bytes = MPS_BYTES};
  return count;
}

/* The three layouts have a common prefix. */
struct process_detail {
  unsigned int pid;
  unsigned long long memory_bytes;
  unsigned int gpu_instance, compute_instance;
  unsigned long long protected_bytes;
};
#define PROCESS_V1 16
#define PROCESS_V2 24

/* The body of the calls that list processes. `count` is the room on entry and the number of processes on return. An
 * entry is the first `size` bytes of a process_detail. */
static nvmlReturn_t running(nvmlDevice_t handle, enum kind kind, unsigned int *count, void *entries, size_t size) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LIVE, &device);
  if (result)
    return result;
  if (!count || (*count && !entries))
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  struct process_use uses[MOST_USES];
  uint32_t room = *count, found = collect_kind(device, kind, uses);
  *count = found;
  if (found > room)
    return nvml_leave(NVML_ERROR_INSUFFICIENT_SIZE);
  for (uint32_t n = 0; n < found; n++) {
    const struct sg_device *place = &nvml.state.shared->devices[uses[n].place];
    struct process_detail entry = {uses[n].pid, uses[n].memory_bytes, nvml_gpu_instance(place),
                                   nvml_compute_instance(place), 0};
    memcpy((char *)entries + n * size, &entry, size);
  }
  return nvml_leave(NVML_SUCCESS);
}

/* A call that lists the processes of a kind, with entries of `size` bytes. */
#define RUNNING(name, kind, size)                                                                                      \
  NVML_EXPORT nvmlReturn_t name(nvmlDevice_t handle, unsigned int *count, void *entries) {                             \
    return running(handle, kind, count, entries, size);                                                                \
  }
RUNNING(nvmlDeviceGetComputeRunningProcesses, COMPUTE, PROCESS_V1)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, PROCESS_V2)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, PROCESS_V2)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS, PROCESS_V1)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS, PROCESS_V2)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS, PROCESS_V2)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, MPS_COMPUTE, PROCESS_V1)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS_COMPUTE, PROCESS_V2)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS_COMPUTE, PROCESS_V2)

struct process_details {
  unsigned int version, mode, count;
  struct process_detail *entries;
};
#define PROCESS_DETAILS_V1 (sizeof(struct process_details) | 1u << 24)

/* The newest form of these lists: `mode` is the kind of processes. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, struct process_details *details) {
  if (!details)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (details->version != PROCESS_DETAILS_V1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (details->mode > MPS_COMPUTE)
    return NVML_ERROR_INVALID_ARGUMENT;
  return running(handle, details->mode, &details->count, details->entries, sizeof *details->entries);
}

/* Accounting is on. It covers the processes that hold a context. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t handle, unsigned int *mode) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (!result && mode)
    *mode = 1;
  return result ? result : nvml_leave(mode ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t handle, unsigned int *size) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (!result && size)
    *size = MOST_USES;
  return result ? result : nvml_leave(size ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

/* An entry is the pid alone, with which a process_detail begins. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t handle, unsigned int *count, unsigned int *pids) {
  return running(handle, COMPUTE, count, pids, sizeof *pids);
}

/* --- utilisation -------------------------------------------------------------------------------------------------- */

struct process_sample {
  unsigned int pid;
  unsigned long long timestamp_us;
  unsigned int sm, memory, encoder, decoder;
};

/* The body of the calls that return one sample per process: its mean since `last_seen_us` (by the wall clock, as real
 * drivers stamp samples); 0: over the last second. A caller that passes the stamp of its last query gets means that
 * together cover the whole time. *count is the room on entry and the number of processes on return. */
static nvmlReturn_t samples_of(nvmlDevice_t handle, struct process_sample *samples, unsigned int *count,
                               unsigned long long last_seen_us) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LOAD, &device);
  if (result)
    return result;
  if (!count)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  uint64_t now_us = (uint64_t)wall.tv_sec * 1000000u + (uint64_t)wall.tv_nsec / 1000u, span_ns = LOOK_BACK_NS;
  if (last_seen_us)
    span_ns = now_us > last_seen_us ? (now_us - last_seen_us) * 1000u : 0;
  span_ns = span_ns < SHORTEST_NS ? SHORTEST_NS : span_ns > LONGEST_NS ? LONGEST_NS : span_ns;
  struct process_use uses[MOST_USES];
  uint32_t room = *count, found = collect(device, span_ns, uses);
  *count = found;
  if (!found)
    return nvml_leave(NVML_ERROR_NOT_FOUND);
  if (!samples || found > room)
    return nvml_leave(NVML_ERROR_INSUFFICIENT_SIZE);
  for (uint32_t n = 0; n < found; n++) {
    uint64_t percent = (uses[n].busy_ns * 100 + span_ns / 2) / span_ns;
    samples[n] = (struct process_sample){
        .pid = uses[n].pid,
        .timestamp_us = now_us,
        .sm = percent < 100 ? (uint32_t)percent : 100,
        .memory = percent < 100 ? (uint32_t)percent / 2 : 50, /* the model has no memory controller */
    };
  }
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, struct process_sample *samples,
                                                         unsigned int *count, unsigned long long last_seen_us) {
  return samples_of(handle, samples, count, last_seen_us);
}

struct utilization {
  unsigned long long timestamp_us;
  unsigned int pid, sm, memory, encoder, decoder, jpeg, optical_flow;
};
struct utilizations {
  unsigned int version, count;
  unsigned long long last_seen_us;
  struct utilization *entries;
};
#define UTILIZATIONS_V1 (sizeof(struct utilizations) | 1u << 24)

/* The newer form of these samples. `count` becomes the number of processes, also if there is no room for them. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, struct utilizations *asked) {
  if (!asked)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (asked->version != UTILIZATIONS_V1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  struct process_sample samples[MOST_USES];
  unsigned int room = asked->count;
  asked->count = MOST_USES; /* as many as there can be: `samples` has room for all */
  nvmlReturn_t result = samples_of(handle, samples, &asked->count, asked->last_seen_us);
  if (!result && (!asked->entries || asked->count > room))
    result = NVML_ERROR_INSUFFICIENT_SIZE;
  for (uint32_t n = 0; !result && n < asked->count; n++)
    asked->entries[n] = (struct utilization){.timestamp_us = samples[n].timestamp_us,
                                             .pid = samples[n].pid,
                                             .sm = samples[n].sm,
                                             .memory = samples[n].memory};
  return result;
}
