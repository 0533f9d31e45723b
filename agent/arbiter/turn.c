/*
 * The life of a turn: grant, close, drain. step.c decides what is due when, and policy.c which share is next; this file
 * carries it out.
 *
 * At most one member of a device has an open turn: it is the *holder*. A closed turn *drains* until its work has ended.
 * Meanwhile the next share may be granted the device early, when the *residue* (the work that still runs) is about to
 * end: so no bubble opens between the two. Or it is granted beside the drain, when that is late (*co-grant*: the
 * hardware slices between the two).
 *
 * A member is a share on one device; member->view is what its processes last said. The device's policy must be told of
 * each begin and end of a turn. All functions run under the arbiter's lock.
 */
#include <string.h>

#include "agent/arbiter/node.h"

/* Note that the member has ended a turn, for sp_others_recent: `recent` keeps the last two different members. */
static void remember_end(struct sp_node_device *device, const struct sp_member *member, uint64_t now_ns) {
  if (device->recent[0].member != member)
    device->recent[1] = device->recent[0];
  device->recent[0].member = member;
  device->recent[0].ended_ns = now_ns;
}

enum { BOUNDS = sizeof sp_turn_bounds_ns / sizeof *sp_turn_bounds_ns };
const uint64_t sp_turn_bounds_ns[BOUNDS] = {100000,   1000000,   2000000,   5000000,   10000000,  20000000,
                                            50000000, 100000000, 200000000, 500000000, 1000000000};
const uint64_t sp_hand_off_bounds_ns[BOUNDS] = {10000,   20000,   50000,   100000,   200000,  500000,
                                                1000000, 2000000, 5000000, 10000000, 50000000};
_Static_assert(sizeof((struct sp_histogram *)0)->counts == (BOUNDS + 1) * sizeof(uint64_t), "one more than bounds");

/* Count the duration from begin_ns to end_ns in the histogram. If the end comes first, it counts as 0: an adopted turn
 * is requested after its grant, and a turn can be granted before its predecessor has drained. */
static void count_span(struct sp_histogram *histogram, const uint64_t *bounds_ns, uint64_t begin_ns, uint64_t end_ns) {
  uint64_t span_ns = end_ns > begin_ns ? end_ns - begin_ns : 0;
  uint32_t bucket = 0;
  while (bucket < BOUNDS && span_ns > bounds_ns[bucket])
    bucket++;
  histogram->counts[bucket]++;
  histogram->sum_ns += span_ns;
}

/* Is the grant that the member is about to get a hand-off? It is if the member has waited for the end of another
 * share's turn, and for nothing else, like its limit or its gang. */
static bool is_hand_off(const struct sp_member *member) {
  const struct sp_node_device *device = member->device;
  const struct sp_member *last = device->draining ? device->drains[device->draining - 1] : device->recent[0].member;
  return last && last != member && member->gang->count == 1 && member->terms.limit_millipercent == SP_POLICY_WHOLE &&
         member->waiting_from_ns && (device->draining || member->waiting_from_ns < device->drained_ns);
}

/* Write the member's turn, which has drained at `drained_ns`, into the ring that traces are read from, and count it,
 * its wait and its length. */
static void record_turn(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t drained_ns) {
  struct sp_turn *turn = &arbiter->turns[arbiter->turn_count % SP_TURNS_KEPT];
  arbiter->turn_count++;
  *turn = (struct sp_turn){.sequence = arbiter->turn_count,
                           .share = member->share->handle,
                           .device = member->device->handle,
                           .requested_ns = member->requested_ns,
                           .granted_ns = member->granted_ns,
                           .closed_ns = member->closed_ns,
                           .drained_ns = drained_ns,
                           .charged_ns = member->turn_charged_ns,
                           .reason = member->reason,
                           .cogranted = member->cogranted};
  member->usage.turns++;
  count_span(&member->waits, sp_turn_bounds_ns, member->requested_ns, member->granted_ns);
  count_span(&member->turns, sp_turn_bounds_ns, member->granted_ns, drained_ns);
}

/* The member's turn drains from now on: put it at the end of the device's drains, as the youngest. */
static void add_drain(struct sp_member *member) {
  struct sp_node_device *device = member->device;
  member->draining = true;
  device->drains[device->draining++] = member;
}

/* The member's turn drains no longer. The order of the other drains stays. */
static void remove_drain(struct sp_member *member) {
  struct sp_node_device *device = member->device;
  uint32_t index = 0;
  while (device->drains[index] != member)
    index++;
  device->draining--;
  for (; index < device->draining; index++)
    device->drains[index] = device->drains[index + 1];
  member->draining = false;
}

/* End the member's closed turn, which drained at `drained_ns`, now or a while ago: bill and correct it, record it, and
 * tell the policy. A drain before the last bill counts as one at that bill; sp_bill_correct takes back what was billed
 * too much. */
static void end_drain(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t drained_ns, uint64_t now_ns) {
  struct sp_node_device *device = member->device;
  if (drained_ns < device->billed_until_ns)
    drained_ns = device->billed_until_ns;
  sp_bill(device, drained_ns);
  sp_bill_correct(device, member);
  sp_bill_outlived(device, member, drained_ns);
  device->drained_ns = drained_ns;
  device->ended_ns = member->view.entered && member->view.ended_ns < drained_ns ? member->view.ended_ns : drained_ns;
  record_turn(arbiter, member, drained_ns);
  sp_lead_drained(member, drained_ns);
  remember_end(device, member, now_ns);
  if (device->holder)
    device->holder->predecessor_ns = drained_ns;
  remove_drain(member);
  sp_policy_unit(&device->policy, member->policy, member->view.longest_unit_ns);
  if (!member->reserves) /* else the policy must go on counting it as idle */
    sp_policy_wait(&device->policy, member->policy, member->view.waiting && !member->gang->paused, now_ns);
  if (!member->cogranted) /* else sp_turn_cogrant has told the policy */
    sp_policy_end(&device->policy, member->policy, now_ns);
}

/* The member's drain is late: from here on other shares run beside it, and in the policy its turn has ended. So the
 * share itself may get a turn again, too: the work that does not end may be spinning for a launch that waits at the
 * share's own closed gate. */
void sp_turn_cogrant(struct sp_member *member, uint64_t now_ns) {
  struct sp_node_device *device = member->device;
  sp_bill(device, now_ns);
  member->cogranted = true;
  member->cogranted_ns = now_ns;
  member->usage.cogrants++;
  sp_policy_wait(&device->policy, member->policy, member->view.waiting && !member->gang->paused, now_ns);
  sp_policy_end(&device->policy, member->policy, now_ns);
}

/* Close the member's turn, if it holds one: from here on it drains, and the device has no holder. If none of its work
 * runs, the turn is over at once. `reason`: an enum sp_reason, for the trace. */
void sp_turn_close(struct sp_arbiter *arbiter, struct sp_member *member, uint32_t reason, uint64_t now_ns) {
  struct sp_node_device *device = member->device;
  if (!member->holding)
    return;
  sp_bill(device, now_ns);
  sp_grant_close(member->grant, member->gang->paused ? SP_GRANT_PAUSED : 0);
  member->holding = member->lent = member->follows = false;
  add_drain(member);
  member->cogranted = false;
  member->reason = reason;
  member->closed_ns = now_ns;
  member->predicted_end_ns = 0;
  device->holder = NULL;
  /* The scan comes after the close and its fence: so a slot that is not busy now stays so. The claims are read again,
   * too, because a new process may have found the gate open. */
  sp_slots_watch_and_scan(arbiter, member, now_ns);
  uint64_t unit_ns = member->view.longest_unit_ns;
  uint64_t bound_ns = clamp_u64(unit_ns + unit_ns / 2, SP_DRAIN_MIN_NS, SP_DRAIN_MAX_NS);
  /* Its drain is late after one and a half units. If the turn took over a late drain, it is late at once, unless work
   * of its own has ended: then that drain is over. */
  member->bound_ns = member->overdue && !member->view.first_ended_ns ? now_ns : now_ns + bound_ns;
  sp_lead_closed(member);
  sp_bill_last(device, member);
  sp_bill_closed(device, member);
  if (!member->view.busy) {
    uint64_t drained_ns = member->view.entered ? member->view.drained_ns : now_ns;
    end_drain(arbiter, member, drained_ns, now_ns);
  } else {
    sp_wake_later(arbiter, member->grant); /* the keepers of its work must see the close */
  }
}

/* Adopt a turn that an earlier agent left open in the region: it is closed, and drains like any other. Called while the
 * member joins its device. */
void sp_turn_adopt(struct sp_member *member, uint64_t now_ns) {
  struct sp_node_device *device = member->device;
  if (device->holder || device->draining)
    sp_bill(device, now_ns);
  else if (now_ns > device->billed_until_ns)
    device->billed_until_ns = now_ns; /* no share had the device: none pays for that time */
  member->turn = sp_grant_word(member->grant);
  member->closed_ns = member->requested_ns = now_ns;
  member->granted_ns = member->grant->granted_ns < now_ns ? member->grant->granted_ns : now_ns;
  member->deadline_ns = now_ns;
  member->bound_ns = now_ns + SP_DRAIN_MAX_NS;
  member->reason = SP_REASON_QUANTUM;
  add_drain(member);
  sp_grant_close(member->grant, 0);
  sp_grant_wake(member->grant);
}

/* The share is released: give up the member's reservation, end its turn and its drain, whatever its slots say, and
 * forget the member wherever turns are remembered. */
void sp_turn_drop(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns) {
  sp_gang_give_up(arbiter, member, now_ns);
  sp_turn_close(arbiter, member, SP_REASON_RELEASED, now_ns);
  if (member->draining)
    end_drain(arbiter, member, now_ns, now_ns);
  struct sp_node_device *device = member->device;
  for (int index = 0; index < 2; index++)
    if (device->recent[index].member == member)
      device->recent[index].member = NULL;
  for (int index = 0; index < device->policy.top; index++)
    if (device->members[index] && device->members[index]->cut_predecessor == member)
      device->members[index]->cut_predecessor = NULL;
}

/* Grant the device, which has no holder, to `member` for `quantum_ns`: its gate opens, and its waiters are woken after
 * the decision. The caller has told the policy, or grants without it. If the member's own previous turn still drains,
 * that turn ends here, and the new one takes over what still runs. */
void sp_turn_grant(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t quantum_ns, uint64_t now_ns) {
  struct sp_node_device *device = member->device;
  if (!device->draining && now_ns > device->billed_until_ns)
    device->billed_until_ns = now_ns; /* no share had the device: none pays for that time */
  if (is_hand_off(member))
    count_span(&device->hand_offs, sp_hand_off_bounds_ns, device->draining ? now_ns : device->drained_ns, now_ns);
  int64_t last_used_ns = 0;
  uint64_t last_until_ns = 0;
  member->late = member->draining;
  member->overdue = member->late && member->cogranted;
  if (member->draining) {
    sp_bill(device, now_ns);
    last_used_ns = (int64_t)member->turn_used_ns;
    last_until_ns = device->billed_until_ns - (uint64_t)member->others_late_ns;
    record_turn(arbiter, member, device->billed_until_ns); /* not now_ns: the bill may have gone further */
    remove_drain(member);
  }
  member->holding = true;
  member->cogranted = false;
  member->granted_ns = now_ns;
  member->requested_ns = member->waiting_from_ns ? member->waiting_from_ns : now_ns;
  member->usage.waited_ns += now_ns - member->requested_ns;
  member->waiting_from_ns = 0;
  member->deadline_ns = now_ns + quantum_ns;
  member->predecessor_ns = 0;
  member->view.entered = member->view.busy = false; /* what the view says of the previous turn */
  member->view.used_ns = member->view.running = 0;
  sp_bill_begin(member);
  member->last_used_ns = last_used_ns;
  member->last_until_ns = last_until_ns;
  device->holder = member;
  sp_lead_granted(device);
  member->turn = sp_pressure_open(device, member, now_ns);
  sp_wake_later(arbiter, member->grant);
}

/* One more share waits for the device: shorten the holder's turn to what it could get now, because its quantum was
 * computed for fewer waiters. */
static void shorten_holder(struct sp_node_device *device, uint64_t now_ns) {
  struct sp_member *holder = device->holder;
  if (holder->overdue || !(holder->grant->flags & SP_GRANT_CONTENDED))
    return; /* a turn that took over a late drain is short as it stands; for the first waiter see sp_pressure_update */
  uint64_t longest_ns = sp_policy_longest(&device->policy, holder->policy, now_ns);
  if (holder->granted_ns + longest_ns < holder->deadline_ns) {
    holder->deadline_ns = holder->granted_ns + longest_ns;
    sp_lead_aim(holder);
  }
}

/* Scan the member and act on what its slots say: bill, end its drain, give up its reservation if it waits no longer,
 * and tell the policy whether it waits. The holder's turn is not closed here; its deadline may come sooner. */
void sp_turn_update(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns) {
  struct sp_node_device *device = member->device;
  sp_slots_scan(member, now_ns);
  sp_bill_beside(device, member, now_ns);
  sp_bill_last(device, member);
  if (member->view.waiting && !member->holding) {
    if (!member->waiting_from_ns)
      member->waiting_from_ns = member->view.waiting_since_ns;
  } else if (member->waiting_from_ns) {
    member->usage.waited_ns += now_ns - member->waiting_from_ns;
    member->waiting_from_ns = 0;
  }
  if (member->draining && !member->view.busy)
    end_drain(arbiter, member, member->view.entered ? member->view.drained_ns : now_ns, now_ns);
  if (member->reserves && (!member->view.waiting || member->gang->paused))
    sp_gang_give_up(arbiter, member, now_ns);
  /* A member that holds, reserves or drains in time does not wait in the policy: step.c, gang.c or end_drain tells. */
  if (!member->holding && !member->reserves && (!member->draining || member->cogranted)) {
    bool waited = device->policy.shares[member->policy].waiting, waits = member->view.waiting && !member->gang->paused;
    sp_policy_wait(&device->policy, member->policy, waits, now_ns);
    if (waits && !waited && device->holder)
      shorten_holder(device, now_ns);
  }
}
