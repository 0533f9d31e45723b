/* Counts host copies (between host memory and a device's memory) by what the tenants report. That is read when usage is
 * asked for and when a process ends, never in a turn. */
#include "agent/arbiter/node.h"

/* More than a process can copy: 500 GB/s for a day is a quarter of this. The sum of 64 such processes fits 64 bits. */
#define MOST_BYTES ((uint64_t)1 << 57)

/* Set *known, the last value of a process's counter, to what the process reports now, if that has not fallen and can be
 * true. Else keep the last value, and count a fault. */
static void take_if_true(struct sp_member *member, uint64_t *known, uint64_t reported) {
  if (reported >= *known && reported <= MOST_BYTES)
    *known = reported;
  else
    member->usage.faults++;
}

/* Read what the process in `slot` has copied on the member's device, into member->known. */
static void read_slot(struct sp_member *member, uint32_t slot) {
  struct sp_copies *known = &member->known[slot].copies;
  struct sp_slot_copies report;
  if (sp_slot_copies(&member->share->region, slot, member->index, &report))
    return; /* the file is truncated: sp_slots_watch counts that as a fault */
  take_if_true(member, &known->to_device_bytes, report.to_device_bytes);
  take_if_true(member, &known->to_host_bytes, report.to_host_bytes);
  take_if_true(member, &known->to_device_count, report.to_device_count);
  take_if_true(member, &known->to_host_count, report.to_host_count);
}

/* The sum, cut to UINT64_MAX / 2: a counter may not wrap even if all processes of a tenant lie. */
static uint64_t capped_sum(uint64_t one, uint64_t other) {
  return one > UINT64_MAX / 2 - other ? UINT64_MAX / 2 : one + other;
}

/* Add `more` to `total`, counter by counter. */
static void add(struct sp_copies *total, const struct sp_copies *more) {
  total->to_device_bytes = capped_sum(total->to_device_bytes, more->to_device_bytes);
  total->to_host_bytes = capped_sum(total->to_host_bytes, more->to_host_bytes);
  total->to_device_count = capped_sum(total->to_device_count, more->to_device_count);
  total->to_host_count = capped_sum(total->to_host_count, more->to_host_count);
}

/* Add up the host copies of live and of gone processes on the member's device, into its usage. Called when usage is
 * read. */
void sp_copies_scan(struct sp_member *member) {
  struct sp_usage *usage = &member->usage;
  struct sp_copies all = usage->gone_copies;
  for (uint64_t rest = member->share->claimed; rest; rest &= rest - 1) {
    uint32_t slot = (uint32_t)__builtin_ctzll(rest);
    read_slot(member, slot);
    add(&all, &member->known[slot].copies);
  }
  usage->host_to_device_bytes = all.to_device_bytes;
  usage->device_to_host_bytes = all.to_host_bytes;
  usage->host_to_device_copies = all.to_device_count;
  usage->device_to_host_copies = all.to_host_count;
}

/* The process in `slot` is gone: add its copies to those of gone processes. Called before its slot is cleared. */
void sp_copies_retire(struct sp_member *member, uint32_t slot) {
  read_slot(member, slot);
  add(&member->usage.gone_copies, &member->known[slot].copies);
}
