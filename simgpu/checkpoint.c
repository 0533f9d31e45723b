/* cuCheckpointProcess*: RUNNING, LOCKED (launches of that process block), CHECKPOINTED (its device memory is free). */
#include "process.h"

#include <time.h>

/* With the state locked: the process with contexts that the caller calls `pid`; 0: none. */
static uint32_t owner_of(int pid) {
  struct sg_shared *shared = process.state.shared;
  for
    SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS)
  if (pid > 0 && sg_seen_pid(&process.state, &shared->contexts[slot].owner) == pid)
    return shared->contexts[slot].owner.id;
  return 0;
}

/* With the state locked: the next context of a process at or after `slot`. */
static uint32_t next_of(uint32_t owner, uint32_t slot) {
  struct sg_shared *shared = process.state.shared;
  while ((slot = sg_next_bit(shared->alive, slot, SG_MAX_CONTEXTS)) < SG_MAX_CONTEXTS &&
         shared->contexts[slot].owner.id != owner)
    slot++;
  return slot;
}

/* With the state locked: what a process has beside its contexts goes off all devices, or comes back. */
static void move_holdings(uint32_t owner, bool store) {
  struct sg_shared *shared = process.state.shared;
  for
    SG_EACH(slot, shared->clients_alive, SG_MAX_CLIENTS)
  for (int n = 0; n < SG_HOLDINGS * SG_MAX_DEVICES && shared->clients[slot].owner.id == owner; n++) {
    struct sg_client *client = &shared->clients[slot];
    uint64_t *memory = &client->memory_bytes[n / SG_MAX_DEVICES][n % SG_MAX_DEVICES];
    uint64_t *stored = &client->stored_bytes[n / SG_MAX_DEVICES][n % SG_MAX_DEVICES];
    uint64_t *from = store ? memory : stored, *to = store ? stored : memory;
    *to += *from;
    *from = 0;
  }
}

/* With the state locked: does all that a process has stored fit on the devices again? */
static bool has_room(uint32_t owner) {
  const struct sg_shared *shared = process.state.shared;
  for (uint32_t device = 0; device < shared->device_count; device++) {
    uint64_t bytes = sg_memory_used(shared, device);
    for (uint32_t slot = next_of(owner, 0); slot < SG_MAX_CONTEXTS; slot = next_of(owner, slot + 1))
      if (shared->contexts[slot].device == device)
        bytes += shared->contexts[slot].stored_bytes;
    for
      SG_EACH(slot, shared->clients_alive, SG_MAX_CLIENTS)
    for (int holding = 0; holding < SG_HOLDINGS && shared->clients[slot].owner.id == owner; holding++)
      bytes += shared->clients[slot].stored_bytes[holding][device];
    if (bytes > shared->devices[device].memory_total_bytes)
      return false;
  }
  return true;
}

/* Move all contexts of a process from one state to the next; none there: INVALID_VALUE, other state: ILLEGAL_STATE. */
static CUresult move(int pid, uint32_t from, uint32_t to) {
  struct sg_shared *shared = process.state.shared;
  CUresult result = ready();
  if (result)
    return result;
  bool store = to == SG_CHECKPOINT_STORED, restore = from == SG_CHECKPOINT_STORED;
  sg_lock_advanced(&process.state);
  uint32_t owner = owner_of(pid), first = next_of(owner, 0);
  result = first == SG_MAX_CONTEXTS                     ? CUDA_ERROR_INVALID_VALUE
           : shared->contexts[first].checkpoint != from ? CUDA_ERROR_ILLEGAL_STATE
           : restore && !has_room(owner)                ? CUDA_ERROR_OUT_OF_MEMORY
                                                        : CUDA_SUCCESS;
  for (uint32_t slot = first; !result && slot < SG_MAX_CONTEXTS; slot = next_of(owner, slot + 1)) {
    struct sg_context *context = &shared->contexts[slot];
    if (store) {
      context->stored_bytes = context->memory_bytes;
      context->memory_bytes = 0;
    } else if (restore) {
      context->memory_bytes += context->stored_bytes;
      context->stored_bytes = 0;
    }
    context->checkpoint = to;
  }
  if (!result && (store || restore))
    move_holdings(owner, store);
  sg_kick(shared);
  sg_unlock(&process.state);
  return result;
}

EXPORT CUresult cuCheckpointProcessGetState(int pid, int *state) {
  CUresult result = ready();
  if (result || !state)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  sg_lock_advanced(&process.state);
  uint32_t slot = next_of(owner_of(pid), 0);
  if (slot < SG_MAX_CONTEXTS)
    *state = (int)process.state.shared->contexts[slot].checkpoint;
  sg_unlock(&process.state);
  return slot < SG_MAX_CONTEXTS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

typedef struct {
  unsigned timeoutMs, reserved0;
  uint64_t reserved1[7];
} CUcheckpointLockArgs;

/* Locked means: no new launches, and what was submitted is done. Past the timeout the process runs on. */
EXPORT CUresult cuCheckpointProcessLock(int pid, const CUcheckpointLockArgs *args) {
  CUresult result = move(pid, SG_CHECKPOINT_RUNNING, SG_CHECKPOINT_LOCKED);
  uint64_t start_ns = sg_now();
  while (!result) {
    bool busy = false;
    sg_lock_advanced(&process.state);
    uint32_t owner = owner_of(pid);
    for (uint32_t slot = next_of(owner, 0); slot < SG_MAX_CONTEXTS; slot = next_of(owner, slot + 1))
      busy |= sg_bit(process.state.shared->active, slot);
    sg_unlock(&process.state);
    if (!busy)
      return CUDA_SUCCESS;
    if (args && args->timeoutMs && sg_now() - start_ns > args->timeoutMs * 1000000ull) {
      move(pid, SG_CHECKPOINT_LOCKED, SG_CHECKPOINT_RUNNING);
      return CUDA_ERROR_TIMEOUT;
    }
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  }
  return result;
}
EXPORT CUresult cuCheckpointProcessUnlock(int pid, void *args) {
  (void)args;
  return move(pid, SG_CHECKPOINT_LOCKED, SG_CHECKPOINT_RUNNING);
}
EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, void *args) {
  (void)args;
  return move(pid, SG_CHECKPOINT_LOCKED, SG_CHECKPOINT_STORED);
}
EXPORT CUresult cuCheckpointProcessRestore(int pid, void *args) {
  (void)args;
  return move(pid, SG_CHECKPOINT_STORED, SG_CHECKPOINT_LOCKED);
}
EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
  *tid = pid;
  return ready();
}
