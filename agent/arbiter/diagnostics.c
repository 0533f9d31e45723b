/* Collects diagnostics: what went wrong in processes of shares. The hook may not print them, so it writes them into its
 * slot. A diagnostic has a kind and a detail; enum sp_diagnostic_kind explains both. The functions that take a share
 * run under the arbiter's lock. */
#include <errno.h>

#include "agent/arbiter/node.h"
#include "hook/interpose/driver.h"

#define SECOND_NS    1000000000u
#define QUIET_NS     60000000000u /* after this long without a flood the next one is recorded again */
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

/* The name of the driver function with the hash `detail`, from a diagnostic; "": no function of that hash is known. */
const char *sp_function_of(uint32_t detail) {
  for (uint32_t index = 0; index < sizeof functions / sizeof *functions; index++)
    if (sp_name_hash(functions[index]) == detail)
      return functions[index];
  return "";
}

/* Put a diagnostic into the share's ring of SP_DIAGNOSTICS_KEPT; the oldest one gives way. `pid` 0: not known. */
static void record(struct sp_share *share, int32_t pid, uint32_t kind, uint32_t detail) {
  struct sp_diagnostic *diagnostic = &share->diagnostics[share->diagnostic_count % SP_DIAGNOSTICS_KEPT];
  share->diagnostic_count++;
  *diagnostic = (struct sp_diagnostic){.number = share->diagnostic_count, .pid = pid, .kind = kind, .detail = detail};
}

/* Record the diagnostics that the process in `slot` reports: each kind once. Called when diagnostics are read, and when
 * the process has ended. */
void sp_diagnostics_take(struct sp_share *share, uint32_t slot) {
  struct sp_tenant *tenant = &share->tenants[slot];
  uint32_t reported[SP_DIAGNOSTIC_KINDS]; /* by kind: the detail plus one; 0: it has not happened */
  if (sp_slot_diagnostics(&share->region, slot, reported))
    return;
  for (uint32_t kind = 0; kind <= SP_DIAGNOSTIC_CROWDED; kind++) { /* the kinds after it come from the agent itself */
    if (!reported[kind] || kind == SP_DIAGNOSTIC_FULL || tenant->diagnostics_told >> kind & 1)
      continue; /* FULL comes from a process without a slot: see sp_diagnostic_full */
    tenant->diagnostics_told |= 1u << kind;
    record(share, tenant->pid, kind, reported[kind] - 1);
  }
}

/* A process has rung that it found no free slot in the share. If no slot is free, record a diagnostic: once, until a
 * process of the share ends. */
void sp_diagnostic_full(struct sp_share *share) {
  if (~share->claimed || share->full_told)
    return; /* a slot is free, or it is recorded already */
  share->full_told = true;
  record(share, 0, SP_DIAGNOSTIC_FULL, SP_SLOTS_MAX);
}

/* There was a flood in the last second: record the diagnostic, unless the flood before was less than QUIET_NS ago, at
 * *last_ns. */
static void record_flood(struct sp_share *share, uint64_t *last_ns, uint64_t now_ns, uint32_t kind, uint32_t detail) {
  if (*last_ns == 0 || now_ns - *last_ns > QUIET_NS)
    record(share, 0, kind, detail);
  *last_ns = now_ns;
}

/* Record whether a program floods the doorbell, or the locks on the share's files. A flood costs other shares nothing,
 * but it costs the host processor time. Called at each tick; counts whole seconds. */
void sp_diagnostics_flood(struct sp_share *share, uint64_t now_ns) {
  if (now_ns - share->counted_ns < SECOND_NS)
    return;
  if (share->rings > RINGS_MAX)
    record_flood(share, &share->rings_flood_ns, now_ns, SP_DIAGNOSTIC_RINGS, RINGS_MAX);
  if (share->locks_ns > LOCKS_MAX_MS * 1000000u)
    record_flood(share, &share->locks_flood_ns, now_ns, SP_DIAGNOSTIC_LOCKS, LOCKS_MAX_MS);
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
