/* Collects what went wrong in processes of shares, as diagnostics. The hook may not print them, and writes them into
 * its slot. A diagnostic has a kind (enum sp_diagnostic_kind, which explains its detail) and a detail. The functions
 * that take a share run under the arbiter's lock. */
#include <errno.h>

#include "agent/arbiter/node.h"
#include "hook/interpose/driver.h"

#define SECOND_NS    1000000000u
#define QUIET_NS     60000000000u /* after this long without a flood the next one is recorded */
#define RINGS_MAX    1000000u     /* in a second: a thousand threads that wait for 500 turns each ring half as often */
#define LOCKS_MAX_MS 50u          /* of a second: a hundred looks at 64 slots take 13 ms without a flood */

/* The driver functions that a detail can stand for, by sp_name_hash. */
static const char *const functions[] = {
#define WRAPPED(name, since, class, action, subject, reason) #name,
#include "driver/wrapped.h"
#define SP_FIELD(field, symbol, older, parameters) #field,
    SP_DRIVER_FUNCTIONS(SP_FIELD)
#undef SP_FIELD
};

/* The name of the driver function that a diagnostic's detail is the hash of; "": none that is known here. */
const char *sp_function_of(uint32_t detail) {
  for (uint32_t index = 0; index < sizeof functions / sizeof *functions; index++)
    if (sp_name_hash(functions[index]) == detail)
      return functions[index];
  return "";
}

/* Put a diagnostic into the share's ring of SP_DIAGNOSTICS_KEPT; the oldest one gives way. `pid` 0: not known. */
static void keep(struct sp_share *share, int32_t pid, uint32_t kind, uint32_t detail) {
  struct sp_diagnostic *diagnostic = &share->diagnostics[share->diagnostic_count % SP_DIAGNOSTICS_KEPT];
  share->diagnostic_count++;
  *diagnostic = (struct sp_diagnostic){.number = share->diagnostic_count, .pid = pid, .kind = kind, .detail = detail};
}

/* Keep what the process in `slot` reports for the first time: each kind once. Called when diagnostics are read, and
 * when the process has ended. */
void sp_diagnostics_take(struct sp_share *share, uint32_t slot) {
  struct sp_tenant *tenant = &share->tenants[slot];
  uint32_t said[SP_DIAGNOSTIC_KINDS];
  if (sp_slot_diagnostics(&share->region, slot, said))
    return;
  for (uint32_t kind = 0; kind <= SP_DIAGNOSTIC_CROWDED; kind++) {
    if (!said[kind] || kind == SP_DIAGNOSTIC_FULL || tenant->diagnostics_told >> kind & 1)
      continue; /* FULL comes from a process without a slot: see sp_diagnostic_full */
    tenant->diagnostics_told |= 1u << kind;
    keep(share, tenant->pid, kind, said[kind] - 1); /* a slot has the detail plus one */
  }
}

/* A process has rung that it found no free slot in the share. If that is true, keep it as a diagnostic: once, until a
 * process of the share ends. */
void sp_diagnostic_full(struct sp_share *share) {
  if (~share->claimed || share->full_told)
    return; /* a slot is free, or it has been told */
  share->full_told = true;
  keep(share, 0, SP_DIAGNOSTIC_FULL, SP_SLOTS_MAX);
}

/* A second of a flood: record the diagnostic, unless there was one within the last minute. */
static void keep_flood(struct sp_share *share, uint64_t *last_ns, uint64_t now_ns, uint32_t kind, uint32_t detail) {
  if (*last_ns == 0 || now_ns - *last_ns > QUIET_NS)
    keep(share, 0, kind, detail);
  *last_ns = now_ns;
}

/* Record that a program floods the doorbell, or the locks on the share's files. A flood costs no other share anything,
 * but it costs the host processor time. Called at each tick. */
void sp_diagnostics_flood(struct sp_share *share, uint64_t now_ns) {
  if (now_ns - share->counted_ns < SECOND_NS)
    return;
  if (share->rings > RINGS_MAX)
    keep_flood(share, &share->rings_flood_ns, now_ns, SP_DIAGNOSTIC_RINGS, RINGS_MAX);
  if (share->locks_ns > LOCKS_MAX_MS * 1000000u)
    keep_flood(share, &share->locks_flood_ns, now_ns, SP_DIAGNOSTIC_LOCKS, LOCKS_MAX_MS);
  share->rings = share->locks_ns = 0;
  share->counted_ns = now_ns;
}

/* Put the share's diagnostics with a number above `after` into the array, oldest first. Returns how many, `capacity` at
 * most; -ENOENT: no such share. */
int sp_arbiter_read_diagnostics(struct sp_arbiter *arbiter, int share, uint64_t after,
                                struct sp_diagnostic *diagnostics, uint32_t capacity) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  uint32_t count = 0;
  if (found) {
    for (uint64_t rest = found->claimed; rest; rest &= rest - 1)
      sp_diagnostics_take(found, (uint32_t)__builtin_ctzll(rest));
    uint64_t oldest = found->diagnostic_count > SP_DIAGNOSTICS_KEPT ? found->diagnostic_count - SP_DIAGNOSTICS_KEPT : 0;
    for (uint64_t next = after > oldest ? after : oldest; next < found->diagnostic_count && count < capacity; next++)
      diagnostics[count++] = found->diagnostics[next % SP_DIAGNOSTICS_KEPT];
  }
  sp_arbiter_unlock(arbiter);
  return found ? (int)count : -ENOENT;
}
