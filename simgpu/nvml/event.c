/*
 * Event sets: a client's view of the XIDs in the shared state, from the moment it registers.
 *
 * There is no thread. A wait sleeps on the state's XID counter, without the state's lock. It takes the lock only when
 * the counter has moved.
 *
 * NVML's documentation tells what the exported functions do; a comment at one tells only what is special here.
 */
#define _GNU_SOURCE
#include "simgpu/nvml/nvml.h"

#include <errno.h>
#include <stdlib.h>

#define LOOK_EVERY_NS 1000000000 /* the interval at which a wait checks whether NVML was shut down */
#define EVENT_XID     8ull
#define EVENTS        31ull /* memory errors, P-states, XIDs, clocks: a set may ask for all, but only XIDs ever come */

typedef struct event_set {
  uint64_t seen[SG_MAX_DEVICES]; /* by device: the last XID that was reported; guarded by nvml.lock */
  bool watched[SG_MAX_DEVICES];
} *nvmlEventSet_t;

struct event_data {
  nvmlDevice_t device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

NVML_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
  if (!set)
    return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  *set = calloc(1, sizeof **set);
  return nvml_leave(*set ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}

/* The caller sees to it that no thread waits with the set. */
NVML_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  if (!set)
    return NVML_ERROR_INVALID_ARGUMENT;
  free(set);
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_KNOWN, &device);
  if (result)
    return result;
  if (!types)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  *types = EVENTS;
  return nvml_leave(NVML_SUCCESS);
}

/* The set reports the XIDs of the GPU from its first registration on. Other types are accepted, but never happen. */
NVML_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
  const struct sg_device *device;
  nvmlReturn_t result = nvml_enter_device(handle, NVML_BOARD, &device);
  if (result)
    return result;
  if (!set)
    return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
  if (types & ~EVENTS)
    return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
  uint32_t index = handle->index;
  if (types & EVENT_XID && !set->watched[index]) {
    set->watched[index] = true;
    set->seen[index] = nvml.state.shared->xid_seq;
  }
  return nvml_leave(NVML_SUCCESS);
}

/* Inside a call: report the oldest XID that the set has not reported yet. False: there is none on the set's devices. */
static bool next_xid(nvmlEventSet_t set, struct event_data *data) {
  const struct sg_shared *shared = nvml.state.shared;
  uint64_t first = shared->xid_seq > SG_MAX_XIDS ? shared->xid_seq - SG_MAX_XIDS + 1 : 1; /* in the ring */
  for (uint64_t seq = first; seq <= shared->xid_seq; seq++) {
    const struct sg_xid *xid = &shared->xids[(seq - 1) % SG_MAX_XIDS];
    const struct sg_device *device = &shared->devices[xid->device];
    uint32_t gpu = device->parent == SG_NONE ? xid->device : device->parent; /* a GPU reports its instances' XIDs too */
    if (!set->watched[gpu] || set->seen[gpu] >= seq)
      continue;
    set->seen[gpu] = seq;
    *data = (struct event_data){&nvml.handles[gpu], EVENT_XID, xid->xid, nvml_gpu_instance(device),
                                nvml_compute_instance(device)};
    return true;
  }
  return false;
}

/* Report the oldest XID that the set has not reported. If there is none, sleep until one comes or the time is over. */
NVML_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct event_data *data, unsigned int timeout_ms) {
  if (!set || !data)
    return NVML_ERROR_INVALID_ARGUMENT;
  uint64_t end_ns = sg_now() + timeout_ms * 1000000ull, looked_seq = UINT64_MAX; /* the newest XID at the last look */
  for (;;) {
    nvmlReturn_t result = NVML_ERROR_TIMEOUT;
    pthread_mutex_lock(&nvml.lock);
    const struct sg_shared *shared = nvml.state.shared;
    bool ready = nvml.users, news = ready && __atomic_load_n(&shared->xid_seq, __ATOMIC_RELAXED) != looked_seq;
    pthread_mutex_unlock(&nvml.lock);
    if (!ready)
      return NVML_ERROR_UNINITIALIZED;
    if (news) {
      if ((result = nvml_enter()))
        return result;
      looked_seq = nvml.state.shared->xid_seq;
      result = nvml_leave(next_xid(set, data) ? NVML_SUCCESS : NVML_ERROR_TIMEOUT);
    }
    uint64_t now_ns = sg_now();
    if (result == NVML_SUCCESS || now_ns >= end_ns)
      return result;
    /* If the counter has moved by now, the kernel returns at once. */
    sg_await_xid(shared, looked_seq, end_ns - now_ns < LOOK_EVERY_NS ? end_ns - now_ns : LOOK_EVERY_NS);
  }
}

NVML_EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, struct event_data *data, unsigned int timeout_ms) {
  return nvmlEventSetWait_v2(set, data, timeout_ms);
}
