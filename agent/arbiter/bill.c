/*
 * The bill: which share pays for the time that passes on a device.
 *
 * A share has two accounts. *Used* is how long its work ran, as its processes measured it on the device's clock, but
 * never more than the time that passed while the share paid. This is the bill, and it is the tenant's word. *Charged*
 * is what counts against the share in the policy: the time for which its turn kept the device, by the arbiter's own
 * clock, from the grant (or from the predecessor's drain, if that is later) until its own work has drained. All that is
 * used is charged. In each turn SP_FREE_NS of idle time is free: it covers a wake-up or a pause of the host. What a
 * turn does not need of that is saved, up to SP_GRACE_NS: this is the share's *grace*. While no other share waits, only
 * used time is charged, because an idle turn harms no share. So a tenant that lies about its use lowers its own bill,
 * but takes no more from others than its grace.
 *
 * While k shares have work on the device (co-grant), each pays 1/k. Neither sum ever exceeds the time that passed.
 *
 * A turn *drains* from its close until its work has ended. Its drain is *late* (`cogranted`) from its bound on: then
 * other shares run beside it. A share that gets a turn while its own previous turn drains late takes that drain over
 * (`late`). Where the reports of the processes do not cover a turn (`by_clock`), or were read torn, the time that
 * passes counts as used. Time is billed up to device->billed_until_ns. All functions run under the arbiter's lock; a
 * member is a share on one device.
 */
#include "agent/arbiter/node.h"

#define CUT_NS     300000  /* work that ends this long after its predicted end was put off by other work */
#define CUT_MAX_NS 4000000 /* … but if it ends later than this, it has run in turns with other work, slice by slice */
#define PROOF_NS   100000  /* a time counts as earlier only by this much: the clocks of two processes differ */
#define CHANGES_NS 300000  /* the device rarely takes longer to change to another share's work and back */

/* Add to both accounts of the share, used and charged. A negative number corrects what was counted before. The policy
 * gets it at once. But counters never fall: so there it is deducted from what is counted next. */
static void book_share(struct sp_node_device *device, struct sp_member *member, int64_t used_ns, int64_t charged_ns,
                       uint64_t now_ns) {
  member->owed_used_ns += used_ns;
  if (member->owed_used_ns > 0) {
    member->usage.used_ns += (uint64_t)member->owed_used_ns;
    member->owed_used_ns = 0;
    sp_grant_account(member->grant, member->usage.used_ns);
  }
  member->owed_charged_ns += charged_ns;
  if (member->owed_charged_ns > 0) {
    member->usage.charged_ns += (uint64_t)member->owed_charged_ns;
    device->charged_ns += (uint64_t)member->owed_charged_ns;
    member->owed_charged_ns = 0;
  }
  if (charged_ns)
    sp_policy_charge(&device->policy, member->policy, charged_ns, now_ns);
}

/* Add to both accounts of the share and to those of its current turn. What is charged for time past the turn's deadline
 * counts as overrun, too, if the turn drains or others wait. */
static void book_turn(struct sp_node_device *device, struct sp_member *member, int64_t used_ns, int64_t charged_ns,
                      uint64_t now_ns) {
  member->turn_used_ns += (uint64_t)used_ns;
  member->turn_charged_ns += (uint64_t)charged_ns;
  if (charged_ns > 0 && now_ns > member->deadline_ns &&
      (member->draining || member->grant->flags & SP_GRANT_CONTENDED)) {
    uint64_t over_ns = now_ns - member->deadline_ns;
    member->usage.overrun_ns += over_ns < (uint64_t)charged_ns ? over_ns : (uint64_t)charged_ns;
  }
  book_share(device, member, used_ns, charged_ns, now_ns);
}

/* Find the members that pay for the time from the last bill on; returns how many. A turn that drains and is not late
 * pays alone: neither the successor, if that was granted early, nor the members with a late drain pay beside it. */
static uint32_t find_payers(const struct sp_node_device *device, struct sp_member *payers[SP_POLICY_SHARES]) {
  uint32_t count = 0;
  bool exclusive = false; /* a turn drains that is not late */
  for (uint32_t index = 0; index < device->draining; index++)
    exclusive = exclusive || !device->drains[index]->cogranted;
  for (uint32_t index = 0; index < device->draining; index++)
    if (!device->drains[index]->cogranted || !exclusive)
      payers[count++] = device->drains[index];
  if (device->holder && !exclusive)
    payers[count++] = device->holder;
  return count;
}

/* The member's turn has taken over the drain of its own previous turn: how long that work ran on in this turn, at most
 * until a process entered it. The caller has seen that one has entered. */
static int64_t previous_ran_on_ns(const struct sp_member *member) {
  const struct sp_view *view = &member->view;
  uint64_t until_ns = view->entered_ns;
  if (view->last_ended_ns && !view->last_runs && view->last_ended_ns < until_ns)
    until_ns = view->last_ended_ns;
  return until_ns > member->granted_ns ? (int64_t)(until_ns - member->granted_ns) : 0;
}

/* What the turn has used up to `until_ns` by its processes' reports. If work of another share ran beside it, the device
 * changed to that work and back, and the reports contain that time. They also say by how much their work was put off:
 * this is subtracted, but at most the length of that other work and of the changes. */
static int64_t reported_used(const struct sp_member *member, uint64_t until_ns) {
  const struct sp_view *view = &member->view;
  int64_t most_ns = member->beside_turn_ns + member->changes_ns;
  int64_t put_off_ns = member->put_off_ns < most_ns ? member->put_off_ns : most_ns;
  int64_t used_ns = (int64_t)view->used_ns - put_off_ns;
  if (member->late && view->entered)
    used_ns += previous_ran_on_ns(member);
  /* Work that runs has gone on since the scan. */
  return used_ns + (int64_t)view->running * ((int64_t)until_ns - (int64_t)member->scanned_ns);
}

/* When the turn's work ended, as last reported; `until_ns` if it ended later or still runs. */
static uint64_t work_end(const struct sp_member *member, uint64_t until_ns) {
  const struct sp_view *view = &member->view;
  return !view->running && view->entered && view->ended_ns < until_ns ? view->ended_ns : until_ns;
}

/* For how long the share has paid for the device in this turn: from begun_ns to `until_ns`, or to the end of its work
 * if that is earlier, less what other shares paid in that time. If its drain became late, they may also have paid for
 * time past that end: so of others_late_ns at most the time from the co-grant to that end counts. */
static int64_t paid_ns(const struct sp_member *member, uint64_t until_ns) {
  int64_t end_ns = (int64_t)work_end(member, until_ns), others_ns = member->others_ns;
  int64_t shared_ns = end_ns - (int64_t)member->cogranted_ns;
  if (member->cogranted && shared_ns < member->others_late_ns)
    others_ns -= member->others_late_ns - (shared_ns > 0 ? shared_ns : 0);
  return end_ns - (int64_t)member->begun_ns - others_ns;
}

/* What the turn has used up to `until_ns`: what its processes report, but no more than the time for which the share has
 * paid. A process that entered early may report the time of the predecessor's work as its own: the bound removes it. */
static uint64_t turn_used(const struct sp_member *member, uint64_t until_ns) {
  int64_t used_ns = reported_used(member, until_ns), paid = paid_ns(member, until_ns);
  int64_t least_ns = used_ns < paid ? used_ns : paid;
  return least_ns < 0 ? 0 : (uint64_t)least_ns;
}

/* Begin the account of a turn that is being granted. The share's grace grows by SP_FREE_NS, up to SP_GRACE_NS. */
void sp_bill_begin(struct sp_member *member) {
  member->cut_predecessor = NULL;
  member->cut_by_ns = 0;
  member->turn_used_ns = member->turn_charged_ns = member->begun_ns = 0;
  member->others_ns = member->others_late_ns = member->turn_alone_ns = member->turn_idle_ns = member->turn_forgiven_ns =
      0;
  member->put_off_ns = member->beside_turn_ns = member->changes_ns = 0;
  int64_t grace_ns = member->grace_ns + SP_FREE_NS;
  member->grace_ns = grace_ns < SP_GRACE_NS ? grace_ns : SP_GRACE_NS;
  member->by_clock = member->overdue; /* its earlier work runs on, and no process reports it for this turn */
}

/* The turn was idle for `idle_ns` more: forgive as much of that as the share's grace covers. Returns what is not to be
 * charged. A correction is negative: then the grace grows again, and the result is negative, too. */
static int64_t forgive(struct sp_member *member, int64_t idle_ns) {
  member->turn_idle_ns += idle_ns;
  int64_t before_ns = member->turn_forgiven_ns, most_ns = before_ns + member->grace_ns;
  int64_t total_ns = member->turn_idle_ns < most_ns ? member->turn_idle_ns : most_ns;
  member->turn_forgiven_ns = total_ns > 0 ? total_ns : 0;
  member->grace_ns -= member->turn_forgiven_ns - before_ns;
  return member->turn_forgiven_ns - before_ns;
}

/* Does the member's turn keep the device from others? A successor that was granted early waits for the drain, too. */
static bool keeps_others_out(const struct sp_node_device *device, const struct sp_member *member) {
  if (member->draining)
    return device->holder || sp_others_wait(device, member);
  return member->grant->flags & SP_GRANT_CONTENDED;
}

/* Bill the time from the last bill to `until_ns` to the payers. Several payers share it equally. A single one has used
 * what its processes report. If it keeps others out, it is charged for idle time, too, less what its grace covers. */
static void bill_payers(struct sp_node_device *device, uint64_t until_ns) {
  if (until_ns <= device->billed_until_ns)
    return;
  int64_t elapsed_ns = (int64_t)(until_ns - device->billed_until_ns);
  uint64_t from_ns = device->billed_until_ns;
  device->billed_until_ns = until_ns;
  struct sp_member *payers[SP_POLICY_SHARES];
  uint32_t count = find_payers(device, payers);
  for (uint32_t index = 0; index < count; index++) {
    struct sp_member *member = payers[index];
    /* A turn that follows a drain at once pays from the end of that work, which is before the drain was noticed. */
    if (!member->begun_ns)
      member->begun_ns = from_ns == device->drained_ns ? device->ended_ns : from_ns;
    if (member->begun_ns < member->granted_ns)
      member->begun_ns = member->granted_ns;
    int64_t charged_ns = elapsed_ns / count, used_ns = charged_ns;
    if (count > 1) {
      member->others_ns += elapsed_ns - charged_ns;
      member->others_late_ns += member->cogranted ? elapsed_ns - charged_ns : 0;
      member->usage.estimated_ns += (uint64_t)charged_ns;
    } else if (!member->by_clock && !member->view.torn) {
      if (member->holding && !member->view.entered)
        sp_slots_scan(member, sp_now_ns()); /* `until_ns` may lie in the past */
      used_ns = (int64_t)turn_used(member, until_ns) - (int64_t)member->turn_used_ns;
      if (used_ns < 0) /* too much has been billed: corrected at the end of the turn, when all is known */
        used_ns = 0;
      if (keeps_others_out(device, member)) {
        charged_ns -= forgive(member, elapsed_ns - used_ns);
      } else {
        if (charged_ns > used_ns)
          charged_ns = used_ns;
        member->turn_alone_ns += charged_ns;
      }
    }
    book_turn(device, member, used_ns, charged_ns, until_ns);
  }
}

/* Do processes of more than one share use the device? */
static bool is_shared(const struct sp_node_device *device) {
  uint32_t count = 0;
  for (int index = 0; index < device->policy.top; index++)
    count += device->members[index] && device->members[index]->share->claimed;
  return count > 1;
}

/* Leave time unpaid: count it as paid by other shares, so that the member never pays for it. The time runs from the
 * last bill to `until_ns`, or to the end of the member's work if that is earlier. Called by sp_bill for the time in
 * which the gates were open. Does nothing for a member that is NULL or does not pay yet. */
static void leave_unpaid(struct sp_node_device *device, struct sp_member *member, uint64_t until_ns) {
  uint64_t from_ns = device->billed_until_ns;
  if (!member || !member->begun_ns)
    return;
  sp_slots_scan(member, sp_now_ns());
  if (member->view.entered && !member->view.running && member->view.ended_ns < until_ns)
    until_ns = member->view.ended_ns;
  if (from_ns < member->begun_ns)
    from_ns = member->begun_ns;
  if (until_ns > from_ns)
    member->others_ns += (int64_t)(until_ns - from_ns);
}

/* Bill the time from the last bill to `until_ns`. From SP_STALE_NS after the agent's last heartbeat on, all gates were
 * open. Which share's work ran then is not known: so no share pays for that time, unless only one uses the device. */
void sp_bill(struct sp_node_device *device, uint64_t until_ns) {
  uint64_t open_ns = device->heartbeat_ns + SP_STALE_NS;
  if (!device->heartbeat_ns || until_ns <= open_ns || !is_shared(device)) {
    bill_payers(device, until_ns);
    return;
  }
  bill_payers(device, open_ns);
  if (until_ns <= device->billed_until_ns)
    return;
  leave_unpaid(device, device->holder, until_ns);
  for (uint32_t index = 0; index < device->draining; index++)
    leave_unpaid(device, device->drains[index], until_ns);
  device->billed_until_ns = until_ns;
}

/* The member has drained after its successor, the holder, was granted. If its work ended more than CUT_NS after the
 * predicted end, the successor's work has probably cut it: note by how much, for sp_bill_closed. From CUT_MAX_NS on it
 * was not cut once: the device has run both in slices. */
void sp_bill_outlived(struct sp_node_device *device, struct sp_member *member, uint64_t drained_ns) {
  struct sp_member *holder = device->holder;
  if (holder && holder != member && member->predicted_end_ns && drained_ns > member->predicted_end_ns + CUT_NS &&
      drained_ns < member->predicted_end_ns + CUT_MAX_NS) {
    holder->cut_predecessor = member;
    holder->cut_by_ns = (int64_t)(drained_ns - member->predicted_end_ns);
  }
}

/* The member's turn has closed. If its work has cut its predecessor's last work in two, the predecessor paid for the
 * time between the parts: take that back, and bill it to the member, which has used it. The proof is that work of the
 * member's turn ended before the predecessor's did. A share that predicts its ends too early gains no more by this than
 * its grace. */
void sp_bill_closed(struct sp_node_device *device, struct sp_member *member) {
  int64_t unpaid_ns = reported_used(member, device->billed_until_ns) - paid_ns(member, device->billed_until_ns);
  struct sp_member *cut = member->cut_predecessor;
  if (unpaid_ns > member->cut_by_ns)
    unpaid_ns = member->cut_by_ns;
  member->cut_predecessor = NULL;
  uint64_t first_ns = member->view.first_ended_ns;
  if (!cut || member->by_clock || unpaid_ns < CUT_NS || !first_ns || first_ns + PROOF_NS > member->predecessor_ns)
    return;
  int64_t charged_ns = unpaid_ns < cut->grace_ns ? unpaid_ns : cut->grace_ns;
  cut->grace_ns -= charged_ns;
  book_share(device, cut, -unpaid_ns, -charged_ns, device->billed_until_ns);
  member->others_ns -= unpaid_ns;
  book_turn(device, member, unpaid_ns, charged_ns, device->billed_until_ns);
}

/* When the last work of beside_ns had ended, as the member's processes report it: as the lower 32 bits of the time in
 * us. An end in the future counts as now. */
static uint64_t beside_until(const struct sp_member *member, uint64_t now_ns) {
  int32_t ago_us = (int32_t)((uint32_t)(now_ns / 1000) - member->beside_until_us);
  return ago_us > 0 ? now_ns - (uint64_t)ago_us * 1000 : now_ns;
}

/* Bill beside_ns: work of the share that stood behind a wait, and so ran outside every turn of its own. The share pays
 * for it, and the turn beside which it ran gets that time back. No more is believed than has passed since the end of
 * the work that was billed before. This end counts, and not the news of it: so late news costs the share nothing. */
void sp_bill_beside(struct sp_node_device *device, struct sp_member *member, uint64_t now_ns) {
  if (member->beside_ns == 0)
    return;
  uint64_t most_ns = now_ns - member->beside_billed_ns, until_ns = beside_until(member, now_ns);
  int64_t beside_ns = (int64_t)(member->beside_ns < most_ns ? member->beside_ns : most_ns);
  member->beside_ns = 0;
  member->beside_billed_ns += (uint64_t)beside_ns; /* even if it is reported to have ended long ago */
  if (member->beside_billed_ns < until_ns)
    member->beside_billed_ns = until_ns;
  sp_bill(device, now_ns);
  member->usage.beside_ns += (uint64_t)beside_ns;
  book_share(device, member, beside_ns, beside_ns, now_ns);
  struct sp_member *payers[SP_POLICY_SHARES];
  if (find_payers(device, payers) != 1)
    return; /* no share paid for that time, or several shared it */
  struct sp_member *payer = payers[0];
  if (payer == member || !payer->begun_ns)
    return;
  int64_t back_ns = (int64_t)until_ns - (int64_t)payer->begun_ns; /* before that another share's turn paid */
  back_ns = back_ns < beside_ns ? back_ns : beside_ns;
  if (back_ns > (int64_t)payer->turn_charged_ns)
    back_ns = (int64_t)payer->turn_charged_ns;
  if (back_ns <= 0)
    return;
  payer->others_ns += back_ns;
  payer->beside_turn_ns += back_ns;
  payer->changes_ns += CHANGES_NS;
  int64_t used_ns = -back_ns;
  if (!payer->by_clock && !payer->view.torn) /* its processes report what it has really used */
    used_ns = (int64_t)turn_used(payer, device->billed_until_ns) - (int64_t)payer->turn_used_ns;
  payer->usage.estimated_ns += (uint64_t)back_ns;
  member->usage.estimated_ns += (uint64_t)back_ns;
  book_turn(device, payer, used_ns < 0 ? used_ns : 0, -back_ns, now_ns);
}

/* Time that was billed to one share, but was used by others. It has been taken back from the one; this much of it is
 * still to be billed to the others. */
struct refund {
  int64_t used_ns, charged_ns;
};

/* Deduct `most_ns` from *from_ns, but no more than that has. Returns what was deducted; most_ns if that is negative. */
static int64_t deduct(int64_t *from_ns, int64_t most_ns) {
  int64_t part_ns = *from_ns < most_ns ? *from_ns : most_ns;
  *from_ns -= part_ns;
  return part_ns;
}

/* The member's turn is over, but an older turn of another share still seems to drain, and was billed for the time of
 * both. Note in unpaid_ns what the member has used of that time: bill_unpaid bills it when the older turn is corrected.
 * Nothing is noted if the reports do not cover the turn. */
static void note_unpaid(const struct sp_node_device *device, struct sp_member *member) {
  int64_t ran_ns = (int64_t)work_end(member, device->billed_until_ns) - (int64_t)member->granted_ns;
  int64_t used_ns = reported_used(member, device->billed_until_ns);
  if (!member->by_clock && !member->view.torn)
    member->unpaid_ns = (used_ns < ran_ns ? used_ns : ran_ns) - (int64_t)member->turn_used_ns;
}

/* Bill the shares for the use that note_unpaid has noted for each, as far as the refund goes. */
static void bill_unpaid(struct sp_node_device *device, struct refund *refund) {
  for (int index = 0; index < device->policy.top; index++) {
    struct sp_member *member = device->members[index];
    if (!member || member->unpaid_ns <= 0)
      continue;
    int64_t part_ns = deduct(&refund->used_ns, member->unpaid_ns);
    member->unpaid_ns = 0; /* what the refund does not cover was really used by the older turn, or by none */
    book_share(device, member, part_ns, deduct(&refund->charged_ns, part_ns), device->billed_until_ns);
  }
}

/* Bill the holder, which ran beside the drain that is now over, as far as the refund goes. The holder is charged now;
 * what it has used is counted at its next bill. */
static void bill_holder(struct sp_node_device *device, struct refund *refund) {
  struct sp_member *holder = device->holder;
  uint64_t begun_ns = holder->begun_ns ? holder->begun_ns : device->billed_until_ns;
  int64_t unpaid_ns = holder->others_ns; /* the time since its grant for which others have paid */
  if (begun_ns > holder->granted_ns)
    unpaid_ns += (int64_t)(begun_ns - holder->granted_ns);
  int64_t used_ns = deduct(&refund->used_ns, unpaid_ns), charged_ns = deduct(&refund->charged_ns, used_ns);
  if (holder->begun_ns) /* if it does not pay yet, it begins at the end of the drain anyway */
    holder->others_ns -= used_ns;
  book_turn(device, holder, 0, charged_ns - forgive(holder, charged_ns), device->billed_until_ns);
}

/* Take back what the turn was billed but has not used. Called at its end, when all its use is known. Returns what may
 * now be billed to the shares that have used that time. */
static struct refund refund_unused(struct sp_node_device *device, struct sp_member *member) {
  int64_t over_ns = (int64_t)member->turn_used_ns - (int64_t)turn_used(member, device->billed_until_ns);
  if (over_ns <= 0 || member->by_clock || member->view.torn)
    return (struct refund){0};
  /* Time that was charged as used while no other share waited was idle after all: it is not charged. */
  int64_t alone_ns = over_ns < member->turn_alone_ns ? over_ns : member->turn_alone_ns;
  if (member->cogranted)
    alone_ns = 0; /* the time that was not used came last, when others ran */
  member->turn_alone_ns -= alone_ns;
  int64_t forgiven_ns = forgive(member, over_ns - alone_ns);
  book_turn(device, member, -over_ns, -alone_ns - forgiven_ns, device->billed_until_ns);
  return (struct refund){.used_ns = over_ns, .charged_ns = forgiven_ns};
}

/* Correct the bill of the member's previous (last_…) turn, which still seemed to drain when the present turn was
 * granted. Once the processes have reported the real end of that drain, the previous turn gets back what it was billed
 * for the time after it, and the shares that ran then are billed. Called at each scan and at the close of the present
 * turn; the correction is made once. */
void sp_bill_last(struct sp_node_device *device, struct sp_member *member) {
  const struct sp_view *view = &member->view;
  if (!member->last_used_ns || !view->entered || !view->last_ended_ns || view->last_runs)
    return; /* there is nothing to correct, it is done already, or the end is not known yet */
  int64_t past_end_ns = (int64_t)(member->last_until_ns - view->last_ended_ns); /* < 0: the end came after that bill */
  int64_t used_ns = deduct(&member->last_used_ns, past_end_ns);
  member->last_used_ns = 0;
  if (used_ns <= 0)
    return;
  struct refund refund = {.used_ns = used_ns, .charged_ns = forgive(member, used_ns)}; /* that time was idle */
  book_share(device, member, -refund.used_ns, -refund.charged_ns, device->billed_until_ns);
  bill_unpaid(device, &refund);
}

/* The turn is over and its processes have reported all of it: take back what it has not used, and bill the shares that
 * have used that time. */
void sp_bill_correct(struct sp_node_device *device, struct sp_member *member) {
  struct refund refund = refund_unused(device, member);
  if (member->draining && device->drains[0] != member) {
    note_unpaid(device, member); /* an older turn still drains, and may have been billed for this use */
    return;
  }
  bill_unpaid(device, &refund); /* the drain was not late, only the news of it: another share used the time */
  if (member->cogranted && device->holder)
    bill_holder(device, &refund);
}
