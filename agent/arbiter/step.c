/*
 * The step of a device: decides what is due there now, and has it done.
 *
 * Must the holder's turn end? May the next share be granted although a turn still drains? Which share is next? policy.c
 * answers the last question, and gang.c for gangs. turn.c carries out what is decided.
 *
 * A member is a share on one device. The *holder* has the open turn of a device. A closed turn *drains* until its work
 * has ended; from its bound on its drain is *late* (`cogranted`), and other shares run beside it. A *residue* is what
 * still runs after a close; its end is predicted. All functions run under the arbiter's lock.
 */
#include "agent/arbiter/node.h"

#define NEWS_NS        300000u  /* the news of a drain is rarely later than this */
#define OVERLAP_MAX_NS 1000000u /* a residue that runs on for this long after its predicted end shares the time */
#define LOOP_MIN_NS    50000u   /* when to step a device again on which a step that was due has changed nothing */
#define ROUNDS         8        /* a step may stir other devices, and their steps still others; more rounds are a bug */

/* Note whether the turn that the member is about to get is lent. Returns the turn's quantum: `quantum_ns`, or less if
 * the turn is lent. A device that a gang reserves is lent in short turns (SP_LENT_NS) to members that are in no larger
 * gang. The turn of a latency share below its request is not shortened. */
static uint64_t quantum_if_lent(const struct sp_node_device *device, struct sp_member *member, uint64_t quantum_ns) {
  member->lent =
      device->reserved && member->gang->count == 1 && device->policy.shares[member->policy].rule != SP_RULE_LATENCY;
  return member->lent && quantum_ns > SP_LENT_NS ? SP_LENT_NS : quantum_ns;
}

/* The holder's deadline has come: ask the policy whether it goes on. True: it does, and has a new deadline. False: the
 * policy counts it as waiting for its next turn, and the caller closes this one. */
static bool extend(struct sp_node_device *device, struct sp_member *holder, uint64_t now_ns) {
  sp_bill(device, now_ns);
  sp_policy_unit(&device->policy, holder->policy, holder->view.longest_unit_ns);
  sp_policy_return(&device->policy, holder->policy, now_ns);
  struct sp_choice choice = sp_policy_next(&device->policy, now_ns);
  if (choice.share == holder->policy) {
    holder->deadline_ns = now_ns + quantum_if_lent(device, holder, choice.quantum_ns);
    sp_lead_aim(holder);
    return true;
  }
  if (choice.share >= 0) /* undo the choice of another share: the device must drain first, and then choose asks again */
    sp_policy_return(&device->policy, choice.share, now_ns);
  return false;
}

/* The holder's deadline has come: ask the policies whether it goes on, and its gang with it. True: all turns of the
 * gang have a new deadline, the same one. False: the caller closes all of them. */
static bool extend_all(struct sp_member *holder, uint64_t now_ns) {
  const struct sp_gang *gang = holder->gang;
  if (gang->count == 1) /* not if the device is committed: then another gang gets it, even from a latency share */
    return !holder->device->committed_to && extend(holder->device, holder, now_ns);
  uint64_t deadline_ns = UINT64_MAX;
  for (uint32_t index = 0; index < gang->count; index++) {
    struct sp_member *member = gang->members[index];
    if (!member->holding || member->follows || !sp_turn_ends(member->device, member))
      continue;
    /* A member that reserves the device counts as idle in its policy, so an extension could starve it. */
    if (member->device->reserved || !extend(member->device, member, now_ns))
      return false;
    if (member->deadline_ns < deadline_ns)
      deadline_ns = member->deadline_ns;
  }
  for (uint32_t index = 0; index < gang->count; index++)
    if (gang->members[index]->deadline_ns > deadline_ns)
      gang->members[index]->deadline_ns = deadline_ns;
  return true;
}

/* Does a latency share wait on the device for which the holder's turn must end now? */
static bool is_preempted(const struct sp_node_device *device, uint64_t now_ns) {
  if (!device->latency_waiting)
    return false;
  for (int index = 0; index < device->policy.top; index++) {
    const struct sp_member *other = device->members[index];
    if (other && other != device->holder && other->view.waiting && !other->gang->paused &&
        other->terms.share_class == SP_CLASS_LATENCY &&
        sp_policy_preempts(&device->policy, index, device->holder->policy, now_ns))
      return true;
  }
  return false;
}

/* The device has a holder: close its turn if there is a reason to. The first one that applies counts; at the deadline
 * the turn may be extended instead. If it goes on, tell its gate what has changed. */
static void judge_holder(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  struct sp_member *holder = device->holder;
  const struct sp_view *view = &holder->view;
  /* While no other share waits, the holder parks without ringing. */
  if (holder->scanned_ns != now_ns && !(holder->grant->flags & SP_GRANT_CONTENDED))
    sp_slots_scan(holder, now_ns);
  bool contended = sp_others_wait(device, holder);
  if (holder->gang->paused && !holder->follows) {
    sp_turn_close(arbiter, holder, SP_REASON_PAUSED, now_ns);
  } else if (!holder->share->claimed) {
    sp_turn_close(arbiter, holder, SP_REASON_DEAD, now_ns);
  } else if (!view->entered && now_ns - holder->granted_ns > SP_ENTER_NS) {
    sp_slots_mark_unresponsive(holder);
    sp_turn_close(arbiter, holder, SP_REASON_IDLE, now_ns);
  } else if ((contended || holder->by_clock) && view->entered && !view->busy && !view->waiting) {
    sp_turn_close(arbiter, holder, SP_REASON_IDLE, now_ns); /* even alone, if it pays for idle time (by_clock) */
  } else if (contended && is_preempted(device, now_ns)) {
    sp_gang_close(arbiter, holder, SP_REASON_LATENCY, now_ns);
  } else if (device->gang_members && sp_gang_ends(device, now_ns)) {
    sp_gang_close(arbiter, holder, SP_REASON_QUANTUM, now_ns);
  } else if (now_ns >= holder->deadline_ns && sp_turn_ends(device, holder)) {
    if (!extend_all(holder, now_ns))
      sp_gang_close(arbiter, holder, contended ? SP_REASON_QUANTUM : SP_REASON_LIMIT, now_ns);
  }
  if (device->holder)
    sp_pressure_update(arbiter, device, now_ns);
}

/* The device has no holder. Bring its drains up to date: end those that are over, and let others run beside those that
 * are late. True: the next share may be granted, because every turn that still drains is late or ends within its lead.
 */
static bool resolve_drains(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  for (uint32_t index = device->draining; index-- > 0;) { /* downwards: an update may end a drain */
    struct sp_member *member = device->drains[index];
    if (member->cogranted)
      continue;
    if (now_ns >= member->bound_ns) {
      sp_turn_cogrant(member, now_ns);
      continue;
    }
    if (!member->view.residue_until_ns || now_ns + sp_lead_ns(member) < member->view.residue_until_ns)
      return false; /* its end is not known, or not near */
    /* A launch that was under way at the close moves the predicted end, and rings no doorbell. */
    sp_turn_update(arbiter, member, now_ns);
    if (member->draining && now_ns + sp_lead_ns(member) < member->view.residue_until_ns)
      return false;
  }
  return true;
}

/* The holder was granted before an earlier turn had drained, because that was about to end. If the residue of that turn
 * has outlived its prediction by OVERLAP_MAX_NS, or its drain's bound is past, its drain counts as late from here on:
 * then the two share the time. */
static void judge_overlap(struct sp_node_device *device, uint64_t now_ns) {
  for (uint32_t index = 0; index < device->draining; index++) {
    struct sp_member *member = device->drains[index];
    if (member->cogranted)
      continue;
    if (now_ns < member->bound_ns &&
        (!member->view.residue_until_ns || now_ns < member->view.residue_until_ns + OVERLAP_MAX_NS))
      continue;
    sp_turn_cogrant(member, now_ns);
  }
}

/* Find a member that waits to launch although its drain has been late for SP_STUCK_AFTER_NS: of several, the one with
 * the earliest bound; NULL: there is none. Its work that does not end may be spinning for that very launch, and is
 * charged meanwhile. So the policy may never choose it again (its limit's bucket stays empty): the caller grants it a
 * short turn without the policy. */
static struct sp_member *find_stuck(const struct sp_node_device *device, uint64_t now_ns) {
  struct sp_member *longest = NULL;
  for (uint32_t index = 0; index < device->draining; index++) {
    struct sp_member *member = device->drains[index];
    if (member->cogranted && member->view.waiting && !member->gang->paused &&
        now_ns >= member->bound_ns + SP_STUCK_AFTER_NS && (!longest || member->bound_ns < longest->bound_ns))
      longest = member;
  }
  return longest;
}

/* Bring the device's drains up to date. True: it has no holder, and no drain keeps it from the next share. */
bool sp_step_try_free(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  return !device->holder && (!device->draining || resolve_drains(arbiter, device, now_ns));
}

/* Bill the shares that drain up to now, so that the policy chooses by their true accounts. Late drains are first
 * brought up to date, which may end them. Called before each choice. */
void sp_step_bill_drains(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  bool in_time = false; /* a turn drains that is not late */
  for (uint32_t index = device->draining; index-- > 0;) {
    struct sp_member *member = device->drains[index];
    if (member->cogranted) /* it may have drained since it was last scanned */
      sp_turn_update(arbiter, member, now_ns);
    else
      in_time = true;
  }
  if (device->draining) /* that turn may have drained up to NEWS_NS ago: leave this time until the news of it is here */
    sp_bill(device, in_time ? now_ns - NEWS_NS : now_ns);
}

/* Grant the device, which is free: to a stuck share (find_stuck); else to a gang (sp_gang_first); else to the share
 * that the policy chooses. A chosen member of a gang may reserve the device instead; then the policy chooses again. If
 * no share may have the device now, device->retry_ns says when to ask again. */
static void choose(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  sp_step_bill_drains(arbiter, device, now_ns);
  struct sp_member *stuck = find_stuck(device, now_ns);
  if (stuck) {
    sp_gang_give_up(arbiter, stuck, now_ns);
    sp_turn_grant(arbiter, stuck, SP_STUCK_NS, now_ns);
  }
  while (!device->holder && !sp_gang_first(arbiter, device, now_ns)) {
    struct sp_choice choice = sp_policy_next(&device->policy, now_ns);
    if (choice.share < 0) {
      device->retry_ns = choice.retry_ns;
      return;
    }
    struct sp_member *member = device->members[choice.share];
    if (member->gang->count > 1) {
      if (sp_gang_reserve(arbiter, member, now_ns))
        continue; /* the device is lent to other shares until the gang commits it */
      uint64_t end_ns = sp_gang_deadline_ns(member->gang);
      if (end_ns < now_ns + choice.quantum_ns)
        choice.quantum_ns = end_ns > now_ns ? end_ns - now_ns : 0;
    }
    sp_turn_grant(arbiter, member, quantum_if_lent(device, member, choice.quantum_ns), now_ns);
  }
}

/* Do what is due on the device: close, drain, grant. Called when something has changed there, and when something is due
 * by the passing of time (due_ns_of). What the decision costs is counted. */
void sp_step(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  uint64_t began_ns = sp_now_ns();
  if (device->holder)
    judge_holder(arbiter, device, now_ns);
  if (device->holder && device->draining)
    judge_overlap(device, now_ns);
  if (!device->holder) {
    device->retry_ns = UINT64_MAX;
    if (sp_step_try_free(arbiter, device, now_ns))
      choose(arbiter, device, now_ns);
  }
  device->decisions++;
  device->decision_ns += sp_now_ns() - began_ns;
}

/* When the next step of the device is due without an event; UINT64_MAX: never. */
static uint64_t due_ns_of(const struct sp_node_device *device) {
  uint64_t due_ns = device->holder ? UINT64_MAX : device->retry_ns;
  const struct sp_member *holder = device->holder;
  if (holder) {
    bool contended = sp_others_wait(device, holder); /* if not, a tick closes the turn soon enough */
    if (contended && !holder->view.entered)
      due_ns = holder->granted_ns + SP_ENTER_NS + 1;
    if (sp_pressure_due_ns(device) < due_ns)
      due_ns = sp_pressure_due_ns(device);
  }
  if (device->gang_members && sp_gang_due_ns(device) < due_ns)
    due_ns = sp_gang_due_ns(device);
  for (uint32_t index = 0; index < device->draining; index++) {
    const struct sp_member *member = device->drains[index];
    if (member->cogranted) {
      if (member->view.waiting && !holder && member->bound_ns + SP_STUCK_AFTER_NS < due_ns)
        due_ns = member->bound_ns + SP_STUCK_AFTER_NS;
      continue;
    }
    uint64_t next_ns = member->bound_ns, residue_ns = member->view.residue_until_ns;
    if (residue_ns && !holder && sp_others_wait(device, member)) /* then the next share is granted early */
      next_ns = residue_ns > sp_lead_ns(member) ? residue_ns - sp_lead_ns(member) : 0;
    if (residue_ns && holder && residue_ns + OVERLAP_MAX_NS < next_ns) /* see judge_overlap */
      next_ns = residue_ns + OVERLAP_MAX_NS;
    if (next_ns < due_ns)
      due_ns = next_ns;
  }
  return due_ns;
}

/* Step the devices of the share and of its gang. Called when the share's processes have rung or one has ended, and when
 * the share was paused or resumed. */
void sp_step_share(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns) {
  const struct sp_gang *gang = share->gang;
  /* All members first: a step may depend on what the slots say of the other devices. */
  for (uint32_t index = 0; index < gang->count; index++)
    sp_turn_update(arbiter, gang->members[index], now_ns);
  for (uint32_t index = 0; index < gang->count; index++)
    sp_step(arbiter, gang->members[index]->device, now_ns);
}

/* Step every device on which something is due at now_ns, or that another step has stirred, until none is left. Returns
 * when the next step is due; UINT64_MAX: never without an event. Called once in each pass of the arbiter's loop. */
uint64_t sp_step_due(struct sp_arbiter *arbiter, uint64_t now_ns) {
  uint64_t due_ns = UINT64_MAX;
  for (int round = 0; round == 0 || (arbiter->stirred && round < ROUNDS); round++) {
    due_ns = UINT64_MAX;
    sp_gang_commit(arbiter);
    for (uint32_t index = 0; index < arbiter->device_count; index++) {
      struct sp_node_device *device = &arbiter->devices[index];
      uint64_t device_due_ns = due_ns_of(device), bit = (uint64_t)1 << index;
      if (device_due_ns <= now_ns || arbiter->stirred & bit) {
        arbiter->stirred &= ~bit;
        if (device->holder)
          sp_turn_update(arbiter, device->holder, now_ns);
        sp_step(arbiter, device, now_ns);
        device_due_ns = due_ns_of(device);
        if (device_due_ns <= now_ns) /* else the arbiter's loop would spin */
          device_due_ns = now_ns + LOOP_MIN_NS;
      }
      if (device_due_ns < due_ns)
        due_ns = device_due_ns;
    }
  }
  return due_ns;
}
