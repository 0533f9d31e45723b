/* The overhead: device memory that a process takes beyond its charged allocations, for contexts, modules and rounding
 * by the driver. NVML tells the total of a process. The difference goes into the grant, and every process of the share
 * adds it to what the share uses. */
#include <errno.h>

#include "agent/arbiter/node.h"

/* Put what each live process of the share is charged with on its `term`-th device into the array, as the slots say now.
 * Returns how many, `capacity` at most; -ENOENT: no such share; -EINVAL: no such term. */
int sp_arbiter_read_holdings(struct sp_arbiter *arbiter, int share, uint32_t term, struct sp_holding *holdings,
                             uint32_t capacity) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  int result = !found ? -ENOENT : term >= found->member_count ? -EINVAL : 0;
  if (!result) {
    sp_slots_scan(&found->members[term], sp_now_ns());
    for (uint64_t rest = found->claimed; rest && (uint32_t)result < capacity; rest &= rest - 1) {
      uint32_t slot = (uint32_t)__builtin_ctzll(rest);
      const struct sp_known *known = &found->members[term].known[slot];
      holdings[result++] = (struct sp_holding){.pid = found->tenants[slot].pid,
                                               .slot = slot,
                                               .memory_used_bytes = known->memory_bytes,
                                               .context_bytes = known->context_bytes};
    }
  }
  sp_arbiter_unlock(arbiter);
  return result;
}

/* Set how much more memory the process in `slot` takes on the `term`-th device than it is charged with. A negative
 * figure gives back at most what was reserved for contexts. Does nothing if the figure cannot be true, or if another
 * process, or none, has the slot by now. 0; -ENOENT: no such share; -EINVAL: no such term or slot. */
int sp_arbiter_set_overhead(struct sp_arbiter *arbiter, int share, uint32_t term, uint32_t slot, int32_t pid,
                            int64_t overhead_bytes) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  int error = !found ? -ENOENT : term >= found->member_count || slot >= SP_SLOTS_MAX ? -EINVAL : 0;
  if (!error && found->claimed >> slot & 1 && found->tenants[slot].pid == pid && overhead_bytes < SP_MEMORY_MAX_BYTES) {
    struct sp_known *known = &found->members[term].known[slot];
    int64_t least_bytes = -(int64_t)known->context_bytes;
    known->overhead_bytes = overhead_bytes < least_bytes ? least_bytes : overhead_bytes;
    sp_holdings_changed(found);
  }
  sp_arbiter_unlock(arbiter);
  return error;
}

/* Forget how much memory contexts take, on all devices, also in the grants: another driver has been loaded. */
void sp_arbiter_forget_contexts(struct sp_arbiter *arbiter) {
  pthread_mutex_lock(&arbiter->lock);
  for (uint32_t device = 0; device < arbiter->device_count; device++)
    arbiter->devices[device].context_bytes = 0;
  for (int handle = 0; handle < SP_SHARES_MAX; handle++)
    if (arbiter->shares[handle])
      sp_holdings_changed(arbiter->shares[handle]);
  sp_arbiter_unlock(arbiter);
}

/* Set how much memory a context takes on the device, and write it into all grants. `context_bytes` 0: only ask. Returns
 * what is set now; 0: nothing is, or there is no such device. */
uint64_t sp_arbiter_context_bytes(struct sp_arbiter *arbiter, int device, uint64_t context_bytes) {
  if (device < 0 || (uint32_t)device >= arbiter->device_count)
    return 0;
  pthread_mutex_lock(&arbiter->lock);
  struct sp_node_device *found = &arbiter->devices[device];
  if (context_bytes && context_bytes != found->context_bytes) {
    found->context_bytes = context_bytes;
    for (int handle = 0; handle < SP_SHARES_MAX; handle++)
      if (arbiter->shares[handle])
        sp_holdings_changed(arbiter->shares[handle]);
  }
  context_bytes = found->context_bytes;
  sp_arbiter_unlock(arbiter);
  return context_bytes;
}
