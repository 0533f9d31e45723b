/* The share's side of the account: the sum over its slots in the region, and the cap. This process charges its own slot
 * ("our slot"). A device is named by its CUdevice. */
#include "hook/gate/process.h"
#include "hook/memory/memory.h"

/* The share's device with this ordinal (CUdevice). NULL: the share does not hold it, or the process is not attached. */
static struct sp_device *device_of(int ordinal) {
  if (!sp_load(&sp_this_process.attached))
    return NULL;
  for (uint32_t index = 0; index < sp_this_process.device_count; index++)
    if (sp_this_process.devices[index].ordinal == ordinal)
      return &sp_this_process.devices[index];
  return NULL;
}

/* Ask the region whether the bytes fit under the cap, and charge them to our slot if so. 0: they are charged; -1: they
 * do not fit. A device outside the share is never charged: 0. */
int sp_share_memory_try(int device_ordinal, uint64_t bytes) {
  struct sp_device *device = device_of(device_ordinal);
  if (!device)
    return 0;
  uint64_t limit_bytes = sp_load(&device->grant->memory_limit_bytes);
  /* Try twice: two processes that race may refuse each other although one of them would fit. */
  return sp_region_memory_try(&sp_this_process.region, device->index, bytes, limit_bytes) &&
                 sp_region_memory_try(&sp_this_process.region, device->index, bytes, limit_bytes)
             ? -1
             : 0;
}

/* Change what our slot is charged with by `delta_bytes`. The cap is not asked. */
void sp_slot_memory(int device_ordinal, int64_t delta_bytes) {
  struct sp_device *device = device_of(device_ordinal);
  if (!device || !delta_bytes)
    return;
  /* Two's complement: subtracting a negative adds. */
  sp_region_memory_sub(&sp_this_process.region, device->index, (uint64_t)-delta_bytes);
}

/* Change by `delta_bytes` the part of our slot's charge that was reserved in advance for contexts; the charge itself
 * stays. Once contexts exist, the agent knows from NVML what they take. */
void sp_slot_context_memory(int device_ordinal, int64_t delta_bytes) {
  struct sp_device *device = device_of(device_ordinal);
  if (device)
    sp_region_context_add(&sp_this_process.region, device->index, delta_bytes);
}

/* Tell the agent of an allocation of `bytes` that did not fit. */
void sp_slot_memory_refused(int device_ordinal, uint64_t bytes) {
  struct sp_device *device = device_of(device_ordinal);
  if (!device)
    return;
  sp_store(&device->slot->refused_bytes, bytes);
  sp_add(&device->slot->refusals, 1);
}

/* The share's cap on this device; UINT64_MAX: there is none. */
uint64_t sp_share_memory_limit(int device_ordinal) {
  struct sp_device *device = device_of(device_ordinal);
  uint64_t limit_bytes = device ? sp_load(&device->grant->memory_limit_bytes) : 0;
  return limit_bytes ? limit_bytes : UINT64_MAX;
}

/* What all processes of the share use of the device, as programs are shown it (sp_region_memory_shown). */
uint64_t sp_share_memory_shown(int device_ordinal) {
  struct sp_device *device = device_of(device_ordinal);
  return device ? sp_region_memory_shown(&sp_this_process.region, device->index) : 0;
}

/* How much of the device's memory a context takes, as the agent has learned; 0: not known. */
uint64_t sp_share_context_bytes(int device_ordinal) {
  struct sp_device *device = device_of(device_ordinal);
  return device ? sp_load(&device->grant->context_bytes) : 0;
}
