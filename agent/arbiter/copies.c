/* Host copies, as the tenants count them. They are read when usage is asked for and when a process ends, never in a
 * turn. */
#include "agent/arbiter/node.h"

/* More than a process can copy: 500 GB/s for a day is a quarter of this. The sum of 64 such processes fits a word. */
#define MOST_BYTES ((uint64_t)1 << 57)

/* Set *before, the last value of a counter of a process, to what the process says now, if that has not fallen and can
 * be true. Else count a fault, and keep the last value. */
static void believe(struct sp_member *member, uint64_t *before, uint64_t said) {
  if (said >= *before && said <= MOST_BYTES)
    *before = said;
  else
    member->usage.faults++;
}

/* Read what the process in `slot` has copied on the member's device, and keep what can be believed in `said`. */
static void take_slot(struct sp_member *member, uint32_t slot) {
  struct sp_copies *before = &member->said[slot].copies;
  struct sp_slot_copies said;
  if (sp_slot_copies(&member->share->region, slot, member->index, &said))
    return; /* the file is truncated: sp_slots_watch counts that as a fault */
  believe(member, &before->to_device_bytes, said.to_device_bytes);
  believe(member, &before->to_host_bytes, said.to_host_bytes);
  believe(member, &before->to_device_count, said.to_device_count);
  believe(member, &before->to_host_count, said.to_host_count);
}

/* The sum, cut to half of what a word holds: a counter may not wrap even if each process of a tenant lies. */
static uint64_t sum(uint64_t one, uint64_t other) {
  return one > UINT64_MAX / 2 - other ? UINT64_MAX / 2 : one + other;
}

/* Add `more` to `total`, counter by counter. */
static void add(struct sp_copies *total, const struct sp_copies *more) {
  total->to_device_bytes = sum(total->to_device_bytes, more->to_device_bytes);
  total->to_host_bytes = sum(total->to_host_bytes, more->to_host_bytes);
  total->to_device_count = sum(total->to_device_count, more->to_device_count);
  total->to_host_count = sum(total->to_host_count, more->to_host_count);
}

/* Add up the host copies of live and of gone processes on the member's device, into its usage. Called when usage is
 * read. */
void sp_copies_scan(struct sp_member *member) {
  struct sp_usage *usage = &member->usage;
  struct sp_copies all = usage->gone_copies;
  for (uint64_t rest = member->share->claimed; rest; rest &= rest - 1) {
    uint32_t slot = (uint32_t)__builtin_ctzll(rest);
    take_slot(member, slot);
    add(&all, &member->said[slot].copies);
  }
  usage->host_to_device_bytes = all.to_device_bytes;
  usage->device_to_host_bytes = all.to_host_bytes;
  usage->host_to_device_copies = all.to_device_count;
  usage->device_to_host_copies = all.to_host_count;
}

/* The process in `slot` is gone: keep what it has copied. Called before the slot is cleared. */
void sp_copies_retire(struct sp_member *member, uint32_t slot) {
  take_slot(member, slot);
  add(&member->usage.gone_copies, &member->said[slot].copies);
}
