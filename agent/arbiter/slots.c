/* Reads the tenants' slots, clamps what they say to what can be true, and does what is due when a process has died.
 * Nothing here waits for a tenant: identity.c finds out which process has a slot.
 *
 * A member is a share on one device. member->view has the sums of what its processes say of it, member->known[slot] the
 * last values of each process that could be true. `report` is a report as it was read. Values that cannot be true are
 * clamped or left out; some of them count as faults. A slot is *claimed* while a process uses it. Sets of slots are
 * masks with a bit per slot. All functions run under the arbiter's lock. */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "agent/arbiter/node.h"

#define READ_NS     10000000u    /* reading a slot takes less */
#define WRITING_NS  1000000000u  /* even a busy host lets a thread that writes its report run within this */
#define UNIT_MAX_NS 10000000000u /* a longer unit is not believed */

/* Keep a total over the device's members up to date. `counts`: the member counts in it from now on. *counted: it did so
 * far; updated. */
static void update_total(uint32_t *total, bool *counted, bool counts) {
  *total += (uint32_t)counts - (uint32_t)*counted;
  *counted = counts;
}

/* Bring the device's counts of waiting and latency members up to date with the member. `there` false: it leaves, and
 * counts no more. */
void sp_member_count(struct sp_member *member, bool there) {
  struct sp_node_device *device = member->device;
  bool latency = there && member->terms.share_class == SP_CLASS_LATENCY;
  bool waits = there && member->view.waiting && !member->gang->paused;
  update_total(&device->waiting, &member->counted_waiting, waits);
  update_total(&device->latency_waiting, &member->counted_latency, waits && latency);
  update_total(&device->latency_present, &member->counted_present, latency && member->share->claimed);
}

/* Count a fault on each device of the share: its tenant has damaged the file of the slots. */
void sp_slots_fault(struct sp_share *share) {
  for (uint32_t index = 0; index < share->member_count; index++)
    share->members[index].usage.faults++;
}

/* Read which slots are claimed, into `look`, and bring the share's claims and the counts of its devices up to date. If
 * the process of a claim is not known, or the file is damaged, the identity thread is asked to look. */
static void read_claims(struct sp_arbiter *arbiter, struct sp_share *share, struct sp_slots_look *look,
                        uint64_t now_ns) {
  /* Damage: the tenant has truncated the file, or has removed the claim of a process that lives and keeps its slot. */
  bool truncated = sp_slots_look(&share->region, look) != 0;
  if (!share->mend && (truncated || share->watched & ~look->claimed)) {
    sp_slots_fault(share);
    share->mend = true;
  }
  share->claimed = (look->claimed & ~share->gone) | share->watched;
  for (uint32_t index = 0; index < share->member_count; index++)
    sp_member_count(&share->members[index], true);
  if (share->mend || share->claimed != share->watched)
    sp_identity_ask(arbiter, share, now_ns);
}

/* No process has entered the member's turn. So those that report that they wait are stopped or dying: they count as not
 * waiting until they ring, or until a tick believes them again. */
void sp_slots_mark_unresponsive(struct sp_member *member) {
  for (uint64_t rest = member->share->claimed; rest; rest &= rest - 1) {
    uint32_t slot = (uint32_t)__builtin_ctzll(rest);
    struct sp_slot_device report;
    if (sp_slot_read(&member->share->region, slot, member->index, &report) == 0 && report.waiting)
      member->known[slot].unresponsive = true;
  }
}

/* The processes in the slots `rung` have rung: believe again, on all devices, what they say of waiting. */
void sp_slots_mark_responsive(struct sp_share *share, uint64_t rung) {
  for (uint64_t rest = rung; rest; rest &= rest - 1)
    for (uint32_t index = 0; index < share->member_count; index++)
      share->members[index].known[__builtin_ctzll(rest)].unresponsive = false;
}

/* Read anew which slots of the share are claimed: see read_claims. */
void sp_slots_watch(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns) {
  struct sp_slots_look look;
  read_claims(arbiter, share, &look, now_ns);
}

/* Write three figures into the share's grants: what a context takes; the overhead, summed over the live processes; and
 * the spare memory, which is the sum of the overheads below 0. Called when one of these has changed, or a process is
 * gone. */
void sp_holdings_changed(struct sp_share *share) {
  for (uint32_t index = 0; index < share->member_count; index++) {
    struct sp_member *member = &share->members[index];
    int64_t sum_bytes = 0;
    member->spare_bytes = 0;
    for (uint64_t rest = share->claimed; rest; rest &= rest - 1) {
      int64_t bytes = member->known[__builtin_ctzll(rest)].overhead_bytes;
      sum_bytes += bytes;
      member->spare_bytes += bytes < 0 ? (uint64_t)-bytes : 0;
    }
    if (member->spare_bytes > SP_SPARE_MAX_BYTES)
      member->spare_bytes = SP_SPARE_MAX_BYTES;
    member->usage.memory_overhead_bytes = sum_bytes;
    sp_grant_overhead(member->grant, member->device->context_bytes, sum_bytes, member->spare_bytes);
  }
}

/* Take the counters that the process in `slot` reports, into member->known. What beside_ns and put_off_us have grown by
 * is added to the member, to be billed. A counter that has fallen keeps its last value. */
static void take_counts(struct sp_member *member, uint32_t slot, const struct sp_slot_device *report) {
  struct sp_known *known = &member->known[slot];
  if (report->beside_ns > known->beside_ns) {
    member->beside_ns += report->beside_ns - known->beside_ns;
    known->beside_ns = report->beside_ns;
    member->beside_until_us = report->beside_until_us;
  }
  member->put_off_ns += (int64_t)(report->put_off_us - known->put_off_us) * 1000; /* it may have wrapped */
  known->put_off_us = report->put_off_us;
  if (report->launches >= known->launches)
    known->launches = report->launches;
  if (report->passed >= known->passed)
    known->passed = report->passed;
  if (report->refusals >= known->refusals)
    known->refusals = report->refusals;
  if (report->refused_bytes)
    member->usage.memory_refused_bytes = report->refused_bytes;
}

/* Has the process in `slot` really ended? The caller has an event of a pidfd, which may belong to an earlier share with
 * the same handle. Then the process that has the slot now lives, or there is none. */
bool sp_slots_is_dead(const struct sp_share *share, uint32_t slot) {
  struct pollfd process = {.fd = share->tenants[slot].pidfd, .events = POLLIN}; /* below 0: poll ignores it */
  return poll(&process, 1, 0) > 0;
}

/* The process in `slot` is gone: bill its turns, add its counters to those of ended processes (retired_…), close its
 * pidfd, and have the identity thread clear the slot. Until then the slot is in share->gone and counts as free. */
void sp_slots_died(struct sp_arbiter *arbiter, struct sp_share *share, uint32_t slot, uint64_t now_ns) {
  struct sp_tenant *tenant = &share->tenants[slot];
  if (tenant->pidfd >= 0) {
    epoll_ctl(arbiter->epoll_fd, EPOLL_CTL_DEL, tenant->pidfd, NULL);
    close(tenant->pidfd);
  }
  tenant->pidfd = -1;
  sp_diagnostics_take(share, slot); /* before its slot is cleared */
  tenant->diagnostics_told = 0;
  share->full_told = false;
  share->watched &= ~((uint64_t)1 << slot);
  tenant->pid = 0;
  tenant->orphaned_ns = 0;
  for (uint32_t index = 0; index < share->member_count; index++) {
    struct sp_member *member = &share->members[index];
    if (member->holding || member->draining) { /* bill now: its slot is about to be cleared */
      sp_slots_scan(member, now_ns);
      sp_bill(member->device, now_ns);
      if (member->holding)
        sp_bill_closed(member->device, member);
      sp_bill_correct(member->device, member);
    }
    struct sp_slot_device report; /* what the process last wrote */
    bool whole = sp_slot_read(&share->region, slot, index, &report) == 0;
    if (whole)
      take_counts(member, slot, &report);
    sp_bill_beside(member->device, member, now_ns);
    if (!whole || report.held_turn == member->turn) /* its report of the turn is lost with its slot */
      member->by_clock = true;
    member->retired_launches += member->known[slot].launches;
    member->retired_passed += member->known[slot].passed;
    member->retired_refusals += member->known[slot].refusals;
    sp_copies_retire(member, slot);
    memset(&member->known[slot], 0, sizeof member->known[slot]);
  }
  sp_holdings_changed(share);
  share->claimed &= ~((uint64_t)1 << slot);
  share->gone |= (uint64_t)1 << slot;
  sp_identity_clear(arbiter, share); /* at once: until then its memory counts against the rest of the share */
  for (uint32_t index = 0; index < share->member_count; index++)
    sp_member_count(&share->members[index], true);
}

/* Close the pidfds of the share's processes: the share is about to be freed. */
void sp_slots_close(struct sp_share *share) {
  for (uint32_t slot = 0; slot < SP_SLOTS_MAX; slot++)
    if (share->tenants[slot].pidfd >= 0)
      close(share->tenants[slot].pidfd);
}

/* The time `value`, which a tenant reports, clamped to `low` .. `high`, the time of the scan. A value outside counts as
 * a fault, except one less than READ_NS after the present time. */
static uint64_t clamp_ns(struct sp_member *member, uint64_t value, uint64_t low, uint64_t high) {
  if (value > high)
    high = sp_now_ns(); /* the tenant may have written it after the scan began */
  if (value >= low && value <= high)
    return value;
  if (value < low || value - high > READ_NS)
    member->usage.faults++;
  return value < low ? low : high;
}

/* If the process in `slot` waits and is not unresponsive, add that to `view`, with the time since when, clamped to what
 * can be true. These two fields of a report are valid even if the rest of it is torn. */
static void add_waiting(struct sp_member *member, uint32_t slot, const struct sp_slot_device *report,
                        struct sp_view *view, uint64_t now_ns) {
  if (report->waiting == 0 || report->waiting >= SP_WAITING_MAX || member->known[slot].unresponsive)
    return;
  view->waiting = true;
  /* Either it waited already at the last scan, or it began after that; and its last grant ended all waiting. */
  uint64_t earliest_ns = member->view.waiting ? member->view.waiting_since_ns : member->scanned_ns;
  if (earliest_ns < member->granted_ns)
    earliest_ns = member->granted_ns;
  if (earliest_ns > now_ns) /* sp_bill has scanned meanwhile, at a later time */
    earliest_ns = now_ns;
  uint64_t since_ns = report->waiting_since_ns;
  if (!since_ns || since_ns > now_ns)
    since_ns = now_ns;
  else if (since_ns < earliest_ns)
    since_ns = earliest_ns;
  if (!view->waiting_since_ns || since_ns < view->waiting_since_ns)
    view->waiting_since_ns = since_ns;
}

/* Take the memory that a process reports into `known`, its last values, if it can be true. The writer's sequence does
 * not guard these fields: they are never torn. */
static void take_memory(struct sp_member *member, struct sp_known *known, const struct sp_slot_device *report) {
  if (report->memory_used_bytes < (uint64_t)SP_MEMORY_MAX_BYTES && report->context_bytes <= report->memory_used_bytes) {
    known->memory_bytes = report->memory_used_bytes;
    known->context_bytes = report->context_bytes;
  } else {
    member->usage.faults++;
  }
}

/* Is the process in the middle of writing its report? A thread that loses the processor while it writes leaves an odd
 * sequence, and completes it later. That is no fault of its share. After WRITING_NS it counts as one: false. */
static bool is_writing(struct sp_known *known, const struct sp_slot_device *report, uint64_t now_ns) {
  if (!(report->sequence & 1u))
    return false;
  if (!known->writing_ns)
    known->writing_ns = now_ns;
  return (int64_t)(now_ns - known->writing_ns) < (int64_t)WRITING_NS;
}

/* The member's turn took over the drain of its own previous turn. Add to `view` what a process reports of that one:
 * when it drained, or that its work still runs. `holds`: the process has entered the present turn. */
static void add_previous(const struct sp_member *member, const struct sp_slot_device *report, bool holds,
                         struct sp_view *view) {
  uint32_t previous = member->turn - 2; /* a close and a grant each add one */
  if (report->drained_turn == previous)
    view->last_ended_ns = report->drained_ns > view->last_ended_ns ? report->drained_ns : view->last_ended_ns;
  else if (holds || report->held_turn == previous)
    view->last_runs = true;
}

/* Add to `view` what a process that has entered the member's turn reports of it, clamped to what can be true. */
static void add_turn(struct sp_member *member, const struct sp_slot_device *report, struct sp_view *view,
                     uint64_t now_ns) {
  bool drained = report->drained_turn == member->turn;
  uint64_t granted_ns = member->granted_ns < now_ns ? member->granted_ns : now_ns;
  if (!drained) {
    view->busy = true;
    /* A prediction only moves a timer, but never by more than the bound of a drain. */
    uint64_t residue_ns =
        report->residue_until_ns < now_ns + SP_DRAIN_MAX_NS ? report->residue_until_ns : now_ns + SP_DRAIN_MAX_NS;
    if (residue_ns > view->residue_until_ns)
      view->residue_until_ns = residue_ns;
  } else {
    uint64_t drained_ns = clamp_ns(member, report->drained_ns, granted_ns, now_ns);
    if (drained_ns > view->drained_ns)
      view->drained_ns = drained_ns;
  }
  uint64_t entered_ns = clamp_ns(member, report->entered_ns, granted_ns, now_ns);
  /* Once the work has drained, residue_until_ns is its real end. */
  uint64_t until_ns = drained ? clamp_u64(report->residue_until_ns, entered_ns, now_ns) : now_ns;
  if (until_ns > view->ended_ns)
    view->ended_ns = until_ns;
  if (until_ns - entered_ns > report->idle_ns)
    view->used_ns += until_ns - entered_ns - report->idle_ns;
  view->running += !drained;
  if (!view->entered || entered_ns < view->entered_ns)
    view->entered_ns = entered_ns;
  if (report->first_ended_ns >= entered_ns && report->first_ended_ns <= now_ns &&
      (!view->first_ended_ns || report->first_ended_ns < view->first_ended_ns))
    view->first_ended_ns = report->first_ended_ns;
  view->entered = true;
}

/* Add one process's counters and memory to the view's sums. */
static void add_account(const struct sp_known *known, struct sp_view *view) {
  view->launches += known->launches;
  view->passed += known->passed;
  view->refusals += known->refusals;
  view->memory_used_bytes += known->memory_bytes;
}

/* Add what the process in `slot` reports to `view`, clamped to what can be true at `now_ns`, and keep its counters in
 * member->known. `read_already`: its report, if that has been read; else NULL. A torn report adds only those fields
 * that are valid by themselves. */
static void add_slot(struct sp_member *member, uint32_t slot, const struct sp_slot_device *read_already,
                     struct sp_view *view, uint64_t now_ns) {
  struct sp_known *known = &member->known[slot];
  struct sp_slot_device report;
  int torn = 0;
  if (read_already)
    report = *read_already;
  else
    torn = sp_slot_read(&member->share->region, slot, member->index, &report); /* < 0: not read; 1: not whole */
  if (torn >= 0)
    add_waiting(member, slot, &report, view, now_ns);
  if (torn) {
    /* If the writer died inside its sequence, its slot is cleared soon. If the tenant lies, it counts as busy until the
     * drain's bound. If the report is damaged, the process writes it anew in its next turn. */
    if (torn < 0 || !is_writing(known, &report, now_ns))
      member->usage.faults++;
    if (torn > 0 && report.held_turn == member->turn)
      view->entered = view->busy = view->torn = true;
    if (torn > 0)
      take_memory(member, known, &report);
    add_account(known, view); /* what was read before still counts while a report cannot be read */
    return;
  }
  known->writing_ns = 0;
  bool holds = (member->holding || member->draining) && report.held_turn == member->turn;
  /* A turn that took over a late drain, and that this process has not entered, lasts until the drain's work ends. */
  if (member->draining && member->late && !holds && report.held_turn && report.drained_turn != report.held_turn)
    view->busy = true;
  if (member->late)
    add_previous(member, &report, holds, view);
  if (holds)
    add_turn(member, &report, view, now_ns);
  take_counts(member, slot, &report);
  take_memory(member, known, &report);
  add_account(known, view);
  uint64_t unit_ns = (uint64_t)report.longest_unit_us * 1000;
  if (unit_ns > UNIT_MAX_NS)
    unit_ns = UNIT_MAX_NS;
  if (unit_ns > view->longest_unit_ns)
    view->longest_unit_ns = unit_ns;
}

/* Read the reports of all claimed slots anew, into the member's view and usage, and bring its device's counts up to
 * date. `first`: the report of slot 0, if it has been read already; else NULL. */
static void scan(struct sp_member *member, const struct sp_slot_device *first, uint64_t now_ns) {
  struct sp_view view = {0};
  for (uint64_t rest = member->share->claimed; rest; rest &= rest - 1) {
    uint32_t slot = (uint32_t)__builtin_ctzll(rest);
    add_slot(member, slot, slot ? NULL : first, &view, now_ns);
  }
  member->view = view;
  member->scanned_ns = now_ns;
  sp_member_count(member, true);
  member->usage.launches = view.launches + member->retired_launches;
  member->usage.passed = view.passed + member->retired_passed;
  int64_t overhead_bytes = member->usage.memory_overhead_bytes; /* the sum is cut at 0 */
  member->usage.memory_used_bytes = overhead_bytes < 0 && view.memory_used_bytes < (uint64_t)-overhead_bytes
                                        ? 0
                                        : view.memory_used_bytes + (uint64_t)overhead_bytes;
  member->usage.memory_refusals = view.refusals + member->retired_refusals;
  member->usage.processes = (uint32_t)__builtin_popcountll(member->share->claimed);
}

/* Read what the share's processes report of the member's device, into its view and usage: see `scan`. */
void sp_slots_scan(struct sp_member *member, uint64_t now_ns) {
  scan(member, NULL, now_ns);
}

/* Read the claims of the share, then the reports about the member. A share with one process, in slot 0, needs a single
 * read of its file for both. */
void sp_slots_watch_and_scan(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns) {
  struct sp_slots_look look;
  read_claims(arbiter, member->share, &look, now_ns);
  scan(member, look.whole && member->index == 0 ? &look.first : NULL, now_ns);
}
