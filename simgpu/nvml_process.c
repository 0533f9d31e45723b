/* Who uses a device: memory and device time per process, contexts of one process counted together. */
#include "nvml.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOK_BACK_NS 1000000000ull                     /* utilisation of a process, when the caller names no time */
#define SHORTEST_NS  (2 * SG_BUCKET_NS)                /* the history has no finer grain */
#define LONGEST_NS   ((SG_BUCKETS - 2) * SG_BUCKET_NS) /* nor a longer memory */

struct process_use {
  uint32_t pid;
  uint64_t memory_bytes;
  uint64_t busy_ns;
};

/* Inside a call: fill `uses` (SG_MAX_CONTEXTS entries), one per process with a context on the device. */
static uint32_t collect(const struct sg_device *device, uint64_t span_ns, struct process_use *uses) {
  const struct sg_shared *shared = nvml.state.shared;
  uint32_t index = (uint32_t)(device - shared->devices), count = 0;
  sg_reap(&nvml.state);
  for
    SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS) {
      const struct sg_context *context = &shared->contexts[slot];
      if (context->device != index)
        continue;
      uint32_t n = 0;
      while (n < count && uses[n].pid != (uint32_t)context->pid)
        n++;
      if (n == count)
        uses[count++] = (struct process_use){.pid = (uint32_t)context->pid};
      uses[n].memory_bytes += context->memory_bytes;
      uses[n].busy_ns += sg_history_busy(&context->history, shared->now_ns - span_ns, shared->now_ns);
    }
  return count;
}

/* --- running processes -------------------------------------------------------------------------------------------- */

struct process_v1 {
  unsigned int pid;
  unsigned long long memory_bytes;
};
struct process_v2 {
  unsigned int pid;
  unsigned long long memory_bytes;
  unsigned int gpu_instance, compute_instance;
};

/* `count` is the room on entry and the number of processes on return; entries are `size` bytes, of either layout. */
static nvmlReturn_t running(nvmlDevice_t handle, unsigned int *count, void *entries, size_t size) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LIVE, &device);
  if (result)
    return result;
  if (!count || (*count && !entries))
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  struct process_use uses[SG_MAX_CONTEXTS];
  uint32_t room = *count, found = collect(device, LOOK_BACK_NS, uses);
  *count = found;
  if (found > room)
    return nvml_leave(NVML_ERROR_INSUFFICIENT_SIZE);
  for (uint32_t n = 0; n < found; n++) {
    struct process_v2 entry = {uses[n].pid, uses[n].memory_bytes, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
    memcpy((char *)entries + n * size, &entry, size); /* the old layout is a prefix of the new one */
  }
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned int *count,
                                                              struct process_v1 *entries) {
  return running(handle, count, entries, sizeof *entries);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned int *count,
                                                                 struct process_v2 *entries) {
  return running(handle, count, entries, sizeof *entries);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                                 struct process_v2 *entries) {
  return running(handle, count, entries, sizeof *entries);
}

/* Nobody draws on a simulated device, and there is no MPS server. */
static nvmlReturn_t nobody(nvmlDevice_t handle, unsigned int *count) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LIVE, &device);
  if (result)
    return result;
  if (!count)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *count = 0;
  return nvml_leave(NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                                  struct process_v2 *entries) {
  (void)entries;
  return nobody(handle, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                                    struct process_v2 *entries) {
  (void)entries;
  return nobody(handle, count);
}

/* --- utilisation -------------------------------------------------------------------------------------------------- */

struct process_sample {
  unsigned int pid;
  unsigned long long timestamp_us;
  unsigned int sm, memory, encoder, decoder;
};

/* One sample per process: its mean since `last_seen_us` (wall clock, as real drivers stamp samples), 0 = the last
 * second. A mean since the caller's last look makes shares of successive looks add up. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, struct process_sample *samples,
                                                         unsigned int *count, unsigned long long last_seen_us) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_LIVE, &device);
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
  struct process_use uses[SG_MAX_CONTEXTS];
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
        .memory = percent < 100 ? (uint32_t)percent / 2 : 50,
    };
  }
  return nvml_leave(NVML_SUCCESS);
}
