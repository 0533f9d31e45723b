/*
 * The gang: grants several devices together, to one share that has several, or to several shares that are one gang.
 *
 * A gang wants those of its devices on which it waits. When the policy of one device has chosen the gang, the gang
 * *reserves* that device. A reserved device is lent to other shares in short turns, until the policies of the gang's
 * other devices have chosen it, too. Then the gang is *complete* and *commits* its devices: from then on they are not
 * lent. When all of them are free, their grants open together, in the order of the devices' names. So on each device
 * the gang gets what that device's policy gives it. What it cannot use, because it waits for its slowest device, goes
 * to the other shares.
 *
 * Invariants, which together mean that gangs never wait for each other in a circle:
 *   a gang commits all of its devices at once, or none;
 *   a device is committed to one gang at most;
 *   a gang does not commit while an older gang is complete and wants one of its devices: so the oldest always can.
 *
 * The turns of a gang end together, too (step.c), but its work does not: a kernel of one rank may spin for a kernel of
 * another rank, which waits at the gate of its device. So when the drain of one member is late and another member
 * waits, the waiting member may *follow*: it is let in, one launch at a time. The same holds for a gang that has a turn
 * on one device and begins to wait for another one: the waiting member follows for what is left of the turn. The policy
 * has chosen no follower, so none may follow when it is more than a turn ahead of its target. A pause, too, can fall
 * between the launches of one collective: a paused gang may follow until the work that it had launched has ended.
 *
 * join.c decides which shares are one gang. A member is a share on one device; `view` is what its processes last said.
 * All functions run under the arbiter's lock.
 */
#include <string.h>

#include "agent/arbiter/node.h"

#define FOLLOW_NS      10000000u  /* a follower's turn; it ends with the drain that it follows */
#define TURN_MAX_NS    100000000u /* no turn is longer */
#define SPINS_AFTER_NS 300000u    /* work that runs this long after its predicted end may be spinning */
#define KEEP_FREE_NS   1000000u   /* a device is kept free for a follower for at most this long */
#define TURN_MIN_NS    2000000u   /* a turn lasts at least this long before a follower may end it */
#define ASK_AGAIN_NS   2000000u   /* a member that was too far ahead to follow is asked again after this */

/* Does the member wait for a turn? A member of a paused gang does not count as waiting. */
static bool waits(const struct sp_member *member) {
  return member->view.waiting && !member->gang->paused && !member->holding;
}

/* Has the member its device to itself? True: no other share has it, waits for it, or had a turn on it lately. Then a
 * reservation would win nothing. False for a member with a limit: it always reserves, or else it would spend its limit
 * on work that spins for the rest of the gang. */
static bool has_it_alone(const struct sp_member *member) {
  const struct sp_node_device *device = member->device;
  return member->terms.limit_millipercent == SP_POLICY_WHOLE && !sp_others_wait(device, member) &&
         (!device->holder || device->holder == member) && !sp_others_recent(device, member, member->scanned_ns);
}

/* The device as a bit of a set of devices, like arbiter->stirred. */
static uint64_t bit_of(const struct sp_node_device *device) {
  return (uint64_t)1 << device->handle;
}

/* Have all devices of the gang stepped soon: something has changed that concerns them all. */
void sp_gang_stir(struct sp_arbiter *arbiter, const struct sp_gang *gang) {
  for (uint32_t index = 0; index < gang->count; index++)
    arbiter->stirred |= bit_of(gang->members[index]->device);
}

/* The devices that the gang reserves, a bit each. */
static uint64_t reserved_by(const struct sp_gang *gang) {
  uint64_t devices = 0;
  for (uint32_t index = 0; index < gang->count; index++)
    if (gang->members[index]->reserves)
      devices |= bit_of(gang->members[index]->device);
  return devices;
}

/* Does the gang reserve every device on which it waits, except those that it has to itself? */
static bool is_complete(const struct sp_gang *gang) {
  for (uint32_t index = 0; index < gang->count; index++) {
    const struct sp_member *member = gang->members[index];
    if (waits(member) && !member->reserves && !has_it_alone(member))
      return false;
  }
  return true;
}

/* May the gang, if it is complete, commit the devices that it reserves? Not while an older complete gang reserves one
 * of them, or one of them is committed already, or has a holder that it was not lent to. A gang that has committed some
 * devices keeps them, even if another of its members begins to wait after that. */
static bool may_commit(const struct sp_arbiter *arbiter, const struct sp_gang *gang) {
  if (!is_complete(gang))
    return false;
  uint64_t devices = reserved_by(gang);
  for (uint32_t index = 0; index < arbiter->gang_count && arbiter->gangs[index] != gang; index++)
    if (reserved_by(arbiter->gangs[index]) & devices && is_complete(arbiter->gangs[index]))
      return false;
  for (uint32_t index = 0; index < gang->count; index++) {
    const struct sp_node_device *device = gang->members[index]->device;
    if (gang->members[index]->reserves && (device->committed_to || (device->holder && !device->holder->lent)))
      return false;
  }
  return true;
}

/* Keep for the gang the devices that it reserves: from now on they are not lent. */
static void commit(struct sp_arbiter *arbiter, struct sp_gang *gang) {
  for (uint32_t index = 0; index < gang->count; index++)
    if (gang->members[index]->reserves)
      gang->members[index]->device->committed_to = gang;
  arbiter->stirred |= reserved_by(gang); /* turns for which a device was lent end now */
}

/* Take the gang off the list of those that reserve a device. The order of the others stays. */
static void forget_gang(struct sp_arbiter *arbiter, const struct sp_gang *gang) {
  uint32_t index = 0;
  while (index < arbiter->gang_count && arbiter->gangs[index] != gang)
    index++;
  if (index == arbiter->gang_count)
    return;
  arbiter->gang_count--;
  for (; index < arbiter->gang_count; index++)
    arbiter->gangs[index] = arbiter->gangs[index + 1];
}

/* End the member's reservation, without telling the policy; if the device is committed to its gang, that ends too. With
 * its last one the gang leaves the list of gangs that reserve. */
static void unreserve(struct sp_arbiter *arbiter, struct sp_member *member) {
  struct sp_gang *gang = member->gang;
  member->reserves = false;
  member->device->reserved--;
  if (member->device->committed_to == gang)
    member->device->committed_to = NULL;
  if (!reserved_by(gang))
    forget_gang(arbiter, gang);
}

/* Give up the member's reservation, if it has one, for example because it waits no longer. Since it reserved the device
 * the policy has counted it as idle: if it still waits, tell the policy so. */
void sp_gang_give_up(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns) {
  if (!member->reserves)
    return;
  struct sp_gang *gang = member->gang;
  unreserve(arbiter, member);
  sp_gang_stir(arbiter, gang); /* if the member waits no longer, its gang may be complete; or another gang may commit */
  if (waits(member))
    sp_policy_wait(&member->device->policy, member->policy, true, now_ns);
}

/* Give up all reservations of the gang. The gang itself stays. */
void sp_gang_dissolve(struct sp_arbiter *arbiter, struct sp_gang *gang, uint64_t now_ns) {
  for (uint32_t index = 0; index < gang->count; index++)
    sp_gang_give_up(arbiter, gang->members[index], now_ns);
}

/* Reserve the device of `member`, which the device's policy has chosen, for the member's gang. False: a reservation
 * would win nothing; the policy still counts the member as holder, and the caller grants it the device at once. */
bool sp_gang_reserve(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns) {
  struct sp_gang *gang = member->gang;
  /* A reservation helps only if another member waits that reserves its device, or has not got it to itself. */
  bool none_to_wait_for = true;
  for (uint32_t index = 0; index < gang->count; index++) {
    const struct sp_member *other = gang->members[index];
    if (other != member && waits(other) && (other->reserves || !has_it_alone(other)))
      none_to_wait_for = false;
  }
  if (none_to_wait_for || has_it_alone(member))
    return false;
  if (!reserved_by(gang))
    arbiter->gangs[arbiter->gang_count++] = gang;
  member->reserves = true;
  member->device->reserved++;
  sp_policy_end(&member->device->policy, member->policy, now_ns); /* in the policy it neither waits nor holds now */
  return true;
}

/* Does the member reserve its device, and has its gang committed that? */
static bool is_committed(const struct sp_member *member) {
  return member->reserves && member->device->committed_to == member->gang;
}

/* The gang's member with a committed device that comes next after `last` in the order of the devices' names; `last`
 * NULL: the first one. Returns NULL if there is none. */
static struct sp_member *next_committed(struct sp_gang *gang, const struct sp_member *last) {
  struct sp_member *next = NULL;
  for (uint32_t index = 0; index < gang->count; index++) {
    struct sp_member *member = gang->members[index];
    if (is_committed(member) && (!last || memcmp(member->device->uuid, last->device->uuid, SP_UUID_BYTES) > 0) &&
        (!next || memcmp(member->device->uuid, next->device->uuid, SP_UUID_BYTES) < 0))
      next = member;
  }
  return next;
}

/* Grant all devices that the gang has committed, if all are free; else do nothing. All turns last for the shortest of
 * their quanta, and not past the end of the turns that the gang has already. Devices that it has reserved since the
 * commit are for a later one. */
static void grant_committed(struct sp_arbiter *arbiter, struct sp_gang *gang, uint64_t now_ns) {
  for (uint32_t index = 0; index < gang->count; index++)
    if (is_committed(gang->members[index]) && !sp_step_try_free(arbiter, gang->members[index]->device, now_ns))
      return;
  uint64_t end_ns = sp_gang_deadline_ns(gang);
  uint64_t quantum_ns = end_ns <= now_ns ? 0 : end_ns == UINT64_MAX ? TURN_MAX_NS : end_ns - now_ns;
  for (struct sp_member *member = NULL; (member = next_committed(gang, member));) {
    sp_step_bill_drains(arbiter, member->device, now_ns);
    if (!is_committed(member))
      continue; /* the scans for that bill have shown that it waits no longer, and it has given up */
    struct sp_choice choice = sp_policy_take(&member->device->policy, member->policy, now_ns);
    if (choice.share < 0)
      sp_gang_give_up(arbiter, member, now_ns);
    else if (choice.quantum_ns < quantum_ns)
      quantum_ns = choice.quantum_ns;
  }
  for (struct sp_member *member; (member = next_committed(gang, NULL));) {
    unreserve(arbiter, member);
    sp_turn_grant(arbiter, member, quantum_ns, now_ns);
  }
  sp_gang_stir(arbiter, gang);
}

/* Does another member of the gang have work that still runs after its turn? It may spin for a launch of `member`. */
static bool partner_still_runs(const struct sp_member *member) {
  const struct sp_gang *gang = member->gang;
  for (uint32_t index = 0; index < gang->count; index++)
    if (gang->members[index] != member && gang->members[index]->draining && gang->members[index]->view.busy)
      return true;
  return false;
}

/* From when on (past or to come) work of the gang on another device may be spinning for what `member` waits to launch.
 * If another member drains, that is SPINS_AFTER_NS after the predicted end of its work. If another member has a turn,
 * that is SPINS_AFTER_NS after both that turn and this wait have begun. UINT64_MAX: there is no such work. */
static uint64_t spins_from_ns(const struct sp_member *member) {
  const struct sp_gang *gang = member->gang;
  uint64_t least_ns = UINT64_MAX;
  for (uint32_t index = 0; index < gang->count; index++) {
    const struct sp_member *other = gang->members[index];
    uint64_t from_ns = UINT64_MAX - SPINS_AFTER_NS; /* never: the sum below is UINT64_MAX */
    if (other != member && other->draining && other->view.busy)
      from_ns = other->view.residue_until_ns > other->closed_ns ? other->view.residue_until_ns : other->closed_ns;
    else if (other != member && other->holding && other->view.entered && sp_turn_ends(other->device, other))
      from_ns = other->granted_ns > member->view.waiting_since_ns ? other->granted_ns : member->view.waiting_since_ns;
    if (from_ns + SPINS_AFTER_NS < least_ns)
      least_ns = from_ns + SPINS_AFTER_NS;
  }
  return least_ns;
}

/* When the member may follow, or is asked again after a refusal; UINT64_MAX: nothing spins for it. */
static uint64_t may_follow_from_ns(const struct sp_member *member) {
  uint64_t from_ns = spins_from_ns(member);
  return from_ns > member->ask_again_ns ? from_ns : member->ask_again_ns;
}

/* Find the member that may follow first on the device: of those that wait for it, the one for which work of its gang
 * may be spinning first. *from_ns: from when on it may follow. Returns NULL, and *from_ns is UINT64_MAX, if there is
 * none. */
static struct sp_member *first_to_follow(const struct sp_node_device *device, uint64_t *from_ns) {
  struct sp_member *found = NULL;
  *from_ns = UINT64_MAX;
  for (int index = 0; device->gang_members && index < device->policy.top; index++) {
    struct sp_member *member = device->members[index];
    if (!member || member->gang->count < 2 || !member->view.waiting || member->holding ||
        (member->draining && !member->cogranted))
      continue;
    uint64_t since_ns = may_follow_from_ns(member);
    if (since_ns < *from_ns) {
      *from_ns = since_ns;
      found = member;
    }
  }
  return found;
}

/* May the member follow, that is, run before the policy chooses it? A paused member always may, because the policy
 * never chooses it. Any other member may if it is at most about one turn ahead of its target, or if work may have spun
 * for it for longer than SP_DRAIN_MIN_NS. A refusal is noted: the member is asked again after ASK_AGAIN_NS. */
static bool may_follow(struct sp_member *member, uint64_t now_ns) {
  uint64_t from_ns = spins_from_ns(member);
  if (member->gang->paused || sp_policy_is_near(&member->device->policy, member->policy, now_ns) ||
      (from_ns < now_ns && now_ns - from_ns > SP_DRAIN_MIN_NS))
    return true;
  member->ask_again_ns = now_ns + ASK_AGAIN_NS;
  return false;
}

/* Let a member follow on the device, which is free, if work of its gang may be spinning for it. True: it has the
 * device; or it may have it within KEEP_FREE_NS, and the device is kept free until then (device->retry_ns). False:
 * nothing is granted. */
static bool grant_follower(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  uint64_t from_ns;
  struct sp_member *member = first_to_follow(device, &from_ns);
  if (!member || from_ns > now_ns + KEEP_FREE_NS || !may_follow(member, now_ns))
    return false;
  if (from_ns > now_ns) {
    device->retry_ns = from_ns;
    return true;
  }
  if (member->reserves)
    unreserve(arbiter, member);
  uint64_t end_ns = sp_gang_deadline_ns(member->gang), quantum_ns = FOLLOW_NS;
  if (!sp_policy_is_near(&device->policy, member->policy, now_ns)) {
    quantum_ns = SP_LENT_NS; /* it is too far ahead of its target: it gets a short turn, and no other one soon */
    member->ask_again_ns = now_ns + SP_DRAIN_MIN_NS;
  }
  /* The policy never gives a paused share a turn: so it is granted without the policy. */
  if (!member->gang->paused && sp_policy_take(&device->policy, member->policy, now_ns).share < 0) {
    member->ask_again_ns = now_ns + ASK_AGAIN_NS;
    return false;
  }
  member->follows = partner_still_runs(member); /* if not, its turn ends with those of its gang */
  if (end_ns < now_ns + quantum_ns)
    quantum_ns = end_ns > now_ns ? end_ns - now_ns : 0;
  sp_turn_grant(arbiter, member, quantum_ns, now_ns);
  return true;
}

/* Keep the device, which is free, for a gang that has just had a turn on it and still drains elsewhere. The turns of a
 * gang end together, and their drains nearly so: when the last has drained, its threads wait again at once. True: it is
 * kept, at most until KEEP_FREE_NS after the close (device->retry_ns). */
static bool keep_for_drains_elsewhere(struct sp_node_device *device, uint64_t now_ns) {
  for (int place = 0; place < device->policy.top; place++) {
    const struct sp_member *member = device->members[place];
    if (!member || member->gang->count < 2 || now_ns >= member->closed_ns + KEEP_FREE_NS)
      continue;
    for (uint32_t index = 0; index < member->gang->count; index++) {
      const struct sp_member *other = member->gang->members[index];
      if (other != member && other->draining && other->closed_ns == member->closed_ns && !other->cogranted) {
        device->retry_ns = member->closed_ns + KEEP_FREE_NS;
        return true;
      }
    }
  }
  return false;
}

/* The device is committed to a gang. Let a latency share go first that is below its request and in no larger gang.
 * True: one has got the device. */
static bool let_latency_first(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  if (!device->latency_waiting)
    return false;
  struct sp_choice choice = sp_policy_next(&device->policy, now_ns);
  if (choice.share < 0)
    return false;
  struct sp_member *member = device->members[choice.share];
  if (choice.rule != SP_RULE_LATENCY || member->gang->count > 1) {
    sp_policy_return(&device->policy, choice.share, now_ns); /* sp_policy_next has begun its turn */
    return false;
  }
  sp_turn_grant(arbiter, member, choice.quantum_ns, now_ns);
  return true;
}

/* Let every gang commit its devices that may: the oldest first. Called before each round of steps and when a device is
 * free, because any change on any device can make a gang complete. */
void sp_gang_commit(struct sp_arbiter *arbiter) {
  for (uint32_t index = 0; index < arbiter->gang_count; index++)
    if (may_commit(arbiter, arbiter->gangs[index]))
      commit(arbiter, arbiter->gangs[index]);
}

/* Offer the device, which is free, to the gangs, before the policy is asked. True: it is granted, or it is kept free:
 * for the gang that has committed it; or until device->retry_ns, for a gang that may follow soon, or that has just had
 * its turn here and still drains elsewhere. */
bool sp_gang_first(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  if (!device->gang_members)
    return false;
  if (grant_follower(arbiter, device, now_ns) || keep_for_drains_elsewhere(device, now_ns))
    return true;
  sp_gang_commit(arbiter);
  if (!device->committed_to)
    return false;
  if (!let_latency_first(arbiter, device, now_ns))
    grant_committed(arbiter, device->committed_to, now_ns);
  return true;
}

/* Must the holder's turn end because a gang needs the device? A lent turn ends when a gang commits the device; a
 * follower's turn when no work can spin for it any more, or at its deadline; any other turn when a member may follow. A
 * refusal to let a member follow is noted in that member. */
bool sp_gang_ends(const struct sp_node_device *device, uint64_t now_ns) {
  const struct sp_member *holder = device->holder;
  if (holder->lent && device->committed_to)
    return true;
  if (holder->follows)
    return !partner_still_runs(holder) || now_ns >= holder->deadline_ns;
  uint64_t from_ns;
  return sp_gang_due_ns(device) <= now_ns && may_follow(first_to_follow(device, &from_ns), now_ns);
}

/* Has the device no holder, and are all its drains late, so that none keeps it from the next share? */
static bool is_vacant(const struct sp_node_device *device) {
  for (uint32_t index = 0; index < device->draining; index++)
    if (!device->drains[index]->cogranted)
      return false;
  return !device->holder;
}

/* When a member may next follow on the device, which ends the turn of the holder, if there is one. UINT64_MAX: no
 * member waits to follow, the holder follows itself, or a drain keeps the device. */
uint64_t sp_gang_due_ns(const struct sp_node_device *device) {
  uint64_t from_ns;
  const struct sp_member *holder = device->holder;
  if (!device->gang_members || (holder ? holder->follows : !is_vacant(device)) || !first_to_follow(device, &from_ns))
    return UINT64_MAX;
  if (!holder) /* if the device is kept for another gang, perhaps no other step of it is due before */
    return from_ns;
  uint64_t may_end_ns = holder->granted_ns + (holder->lent ? 0 : TURN_MIN_NS);
  return from_ns > may_end_ns ? from_ns : may_end_ns;
}

/* Close the member's turn, and with it the turns of its gang on other devices that have an end (sp_turn_ends). A
 * follower's turn is closed alone. `reason` is an enum sp_reason. */
void sp_gang_close(struct sp_arbiter *arbiter, struct sp_member *member, uint32_t reason, uint64_t now_ns) {
  struct sp_gang *gang = member->gang;
  bool together = !member->follows;
  sp_turn_close(arbiter, member, reason, now_ns);
  for (uint32_t index = 0; together && index < gang->count; index++) {
    struct sp_member *other = gang->members[index];
    if (!other->holding || other->follows || !sp_turn_ends(other->device, other))
      continue;
    sp_turn_close(arbiter, other, reason, now_ns);
    arbiter->stirred |= bit_of(other->device);
  }
}

/* When the turns that the gang holds end: the earliest of their deadlines. UINT64_MAX: it holds no turn that has an end
 * (sp_turn_ends). A follower's turn does not count. */
uint64_t sp_gang_deadline_ns(const struct sp_gang *gang) {
  uint64_t deadline_ns = UINT64_MAX;
  for (uint32_t index = 0; index < gang->count; index++) {
    const struct sp_member *member = gang->members[index];
    if (member->holding && !member->follows && sp_turn_ends(member->device, member) &&
        member->deadline_ns < deadline_ns)
      deadline_ns = member->deadline_ns;
  }
  return deadline_ns;
}

/* Tell why `member`, which reserves its device, still waits: the handle of another device that its gang has not
 * reserved yet, or has committed and that is still in use. -1: there is none, or it does not reserve. */
int32_t sp_gang_waits_for(const struct sp_member *member) {
  const struct sp_gang *gang = member->gang;
  for (uint32_t index = 0; member->reserves && index < gang->count; index++) {
    const struct sp_member *other = gang->members[index];
    bool committed = is_committed(other);
    if (other != member && waits(other) &&
        (committed ? other->device->holder || other->device->draining : !other->reserves))
      return other->device->handle;
  }
  return -1;
}
