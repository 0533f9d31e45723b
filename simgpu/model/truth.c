/* The functions that truth.py calls: they read the state for observers that are no clients of the driver. */
#include "simgpu/api/abi.h"
#include "simgpu/model/model.h"
#include "simgpu/model/state.h"

#include <stdlib.h>
#include <string.h>

struct truth_device {
  char name[96];
  uint8_t uuid[16];
  uint64_t busy_ns, switches, memory_used_bytes, memory_total_bytes;
  uint32_t parent, reserved; /* parent: UINT32_MAX: a GPU */
};

struct truth_context {
  uint32_t id;
  int32_t pid;
  uint64_t busy_ns, memory_bytes;
  uint32_t alive, lost;
};

struct truth_process {
  int32_t pid;
  uint32_t owner; /* id */
  uint64_t contexts_bytes, pools_bytes, physical_bytes, external_bytes;
};

/* Open a state file, as sg_open does. NULL: it cannot be opened, and *error is the errno. */
EXPORT struct sg_state *simgpu_truth_open(const char *path, int *error) {
  struct sg_state *state = malloc(sizeof *state);
  *error = state ? -sg_open(state, path) : 12; /* ENOMEM */
  if (*error) {
    free(state);
    return NULL;
  }
  return state;
}

/* Unmap the state and free it. */
EXPORT void simgpu_truth_close(struct sg_state *state) {
  sg_close(state);
  free(state);
}

/* Lock the state, advance it to now, and drop what dead processes have left. The caller unlocks it. */
static void lock_and_reap(struct sg_state *state) {
  sg_lock_advanced(state);
  sg_reap(state);
}

/* List the devices. Returns their number; at most `room` are written. */
EXPORT uint32_t simgpu_truth_devices(struct sg_state *state, struct truth_device *out, uint32_t room) {
  lock_and_reap(state);
  uint32_t count = state->shared->device_count;
  for (uint32_t n = 0; n < count && n < room; n++) {
    const struct sg_device *device = &state->shared->devices[n];
    out[n] = (struct truth_device){.busy_ns = device->busy_ns,
                                   .switches = device->switches,
                                   .memory_used_bytes = sg_memory_used(state->shared, n),
                                   .memory_total_bytes = device->memory_total_bytes,
                                   .parent = device->parent};
    memcpy(out[n].name, device->name, sizeof device->name);
    memcpy(out[n].uuid, device->uuid, sizeof device->uuid);
  }
  sg_unlock(state);
  return count;
}

/* List the live contexts, then the ended ones, each id once. Returns their number; at most `room` are written. */
EXPORT uint32_t simgpu_truth_contexts(struct sg_state *state, uint32_t device, struct truth_context *out,
                                      uint32_t room) {
  uint32_t count = 0;
  lock_and_reap(state);
  const struct sg_shared *shared = state->shared;
  SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS) {
    const struct sg_context *context = &shared->contexts[slot];
    if (context->device == device && count++ < room)
      out[count - 1] = (struct truth_context){.id = context->id,
                                              .pid = sg_pid_of(state, &context->owner),
                                              .busy_ns = context->busy_ns,
                                              .memory_bytes = context->memory_bytes,
                                              .alive = 1,
                                              .lost = context->lost_error};
  }
  uint64_t first = shared->past_count > SG_MAX_PAST ? shared->past_count - SG_MAX_PAST : 0; /* older ones are gone */
  for (uint64_t n = first; n < shared->past_count; n++) {
    const struct sg_past *past = &shared->past[n % SG_MAX_PAST];
    bool again = n > first && shared->past[(n - 1) % SG_MAX_PAST].id == past->id; /* see sg_context_drop */
    if (past->device == device && !again && count++ < room)
      out[count - 1] =
          (struct truth_context){.id = past->id, .pid = sg_pid_of(state, &past->owner), .busy_ns = past->busy_ns};
  }
  sg_unlock(state);
  return count;
}

/* With the state locked: append a process with its memory on a device to the list, unless it has none or is in the
 * list. *count may exceed `room`: then it is counted, but not written. */
static void add_process(struct sg_state *state, uint32_t device, const struct sg_owner *owner,
                        struct truth_process *out, uint32_t room, uint32_t *count) {
  const struct sg_shared *shared = state->shared;
  for (uint32_t n = 0; n < *count && n < room; n++)
    if (out[n].owner == owner->id)
      return;
  struct truth_process found = {
      .pid = sg_pid_of(state, owner),
      .owner = owner->id,
      .pools_bytes = sg_holding_of(shared, device, owner->id, SG_POOLS),
      .physical_bytes = sg_holding_of(shared, device, owner->id, SG_PHYSICAL),
      .external_bytes = sg_holding_of(shared, device, owner->id, SG_EXTERNAL),
  };
  uint64_t all = sg_memory_of(shared, device, owner->id);
  found.contexts_bytes = all - found.pools_bytes - found.physical_bytes - found.external_bytes;
  if (all && (*count)++ < room)
    out[*count - 1] = found;
}

/* List the processes with memory on the device. Returns their number; at most `room` are written. */
EXPORT uint32_t simgpu_truth_processes(struct sg_state *state, uint32_t device, struct truth_process *out,
                                       uint32_t room) {
  uint32_t count = 0;
  lock_and_reap(state);
  const struct sg_shared *shared = state->shared;
  SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS) {
    add_process(state, device, &shared->contexts[slot].owner, out, room, &count);
  }
  SG_EACH(slot, shared->clients_alive, SG_MAX_CLIENTS) {
    add_process(state, device, &shared->clients[slot].owner, out, room, &count);
  }
  sg_unlock(state);
  return count;
}

/* With the state locked: write the pids into the records as the reader's namespace has them. To find a pid takes system
 * calls, and few processes have most of the records: so found pids are remembered, by the last bits of the owner's id.
 */
static void tell_pids(struct sg_state *state, struct sg_log_record *records, uint64_t count) {
  struct sg_owner known[64] = {0};
  for (uint64_t n = 0; n < count; n++) {
    struct sg_owner *owner = &records[n].owner, *found = &known[owner->id % 64];
    if (found->id != owner->id)
      *found = (struct sg_owner){.id = owner->id, .pid = sg_pid_of(state, owner)};
    owner->pid = found->pid;
  }
}

/* Copy the newest records of all devices, the oldest of them first. Returns how many the log has; at most `room` are
 * written. */
EXPORT uint64_t simgpu_truth_kernels(struct sg_state *state, struct sg_log_record *out, uint64_t room) {
  uint64_t count = 0;
  lock_and_reap(state);
  if (state->log) {
    uint64_t size = state->shared->model.log_records, logged = state->shared->logged;
    count = logged < size ? logged : size;
    for (uint64_t n = 0; n < count && n < room; n++)
      out[n] = state->log[(logged - (count < room ? count : room) + n) % size];
    tell_pids(state, out, count < room ? count : room);
  }
  sg_unlock(state);
  return count;
}

/* The kernel name with this index, as records have it; "": there is no such index. */
EXPORT const char *simgpu_truth_name(struct sg_state *state, uint32_t name) {
  return name < SG_MAX_NAMES ? state->shared->names[name] : "";
}

/* Report an XID of the device; an XID that loses the device also fails its contexts. */
EXPORT void simgpu_truth_inject_xid(struct sg_state *state, uint32_t device, uint32_t xid) {
  lock_and_reap(state);
  if (device < state->shared->device_count)
    sg_inject_xid(state, device, xid);
  sg_unlock(state);
}

/* Let a lost device work again for new contexts. */
EXPORT void simgpu_truth_recover(struct sg_state *state, uint32_t device) {
  lock_and_reap(state);
  if (device < state->shared->device_count)
    sg_recover(state, device);
  sg_unlock(state);
}

/* Let an MPS server with this pid serve the device from now on; 0: none does. */
EXPORT void simgpu_truth_serve_by_mps(struct sg_state *state, uint32_t device, uint32_t pid) {
  lock_and_reap(state);
  if (device < state->shared->device_count)
    state->shared->devices[device].mps_pid = pid;
  sg_unlock(state);
}

/* Let the device report this compute mode from now on. Contexts can be made in any mode. */
EXPORT void simgpu_truth_set_compute_mode(struct sg_state *state, uint32_t device, uint32_t mode) {
  lock_and_reap(state);
  if (device < state->shared->device_count)
    state->shared->devices[device].compute_mode = mode;
  sg_unlock(state);
}

/* Let NVML answer from now on that the caller may not know the device's memory; 0: it tells it again. */
EXPORT void simgpu_truth_mute(struct sg_state *state, uint32_t device, uint32_t mute) {
  lock_and_reap(state);
  if (device < state->shared->device_count)
    state->shared->devices[device].mute = mute;
  sg_unlock(state);
}

/* Let the process with this pid draw on the device from now on; 0: none does. */
EXPORT void simgpu_truth_draw(struct sg_state *state, uint32_t device, uint32_t pid) {
  lock_and_reap(state);
  if (device < state->shared->device_count)
    state->shared->devices[device].graphics_pid = pid;
  sg_unlock(state);
}

/* Reload the driver: NVML's calls fail in programs that opened it before. */
EXPORT void simgpu_truth_reload_driver(struct sg_state *state) {
  lock_and_reap(state);
  state->shared->driver_loads++;
  sg_unlock(state);
}

/* Let NVML refuse to open, and all its calls fail, from now on; 0: both work again. */
EXPORT void simgpu_truth_refuse_nvml(struct sg_state *state, uint32_t refuses) {
  lock_and_reap(state);
  state->shared->nvml_refuses = refuses;
  sg_unlock(state);
}

/* Let NVML's calls that talk to the device hang from now on; 0: they return. */
EXPORT void simgpu_truth_hang(struct sg_state *state, uint32_t device, uint32_t hangs) {
  lock_and_reap(state);
  if (device < state->shared->device_count)
    state->shared->devices[device].hangs = hangs;
  sg_unlock(state);
}
