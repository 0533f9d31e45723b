/*
 * The bill: who pays for the time that passes on a device.
 *
 * The holder pays from its grant, or from its predecessor's drain if that is later, until its own work has drained. A
 * wake-up is not use: the time between a grant and the first launch under it is nobody's, up to SP_FREE_NS. While k
 * shares have work on the device (co-grant) each pays 1/k. What is charged never exceeds what passed.
 */
#include "node.h"

static void charge(struct sp_node_device *device, struct sp_member *member, uint64_t used_ns, uint64_t now_ns,
                   bool estimated) {
  if (!used_ns)
    return;
  member->usage.used_ns += used_ns;
  sp_grant_account(member->grant, member->usage.used_ns);
  member->turn_charged_ns += used_ns;
  if (estimated)
    member->usage.estimated_ns += used_ns;
  if (now_ns > member->deadline_ns && (member->draining || member->grant->flags & SP_GRANT_CONTENDED)) {
    uint64_t over_ns = now_ns - member->deadline_ns;
    member->usage.overrun_ns += over_ns < used_ns ? over_ns : used_ns;
  }
  device->charged_ns += used_ns;
  sp_policy_charge(&device->policy, member->policy, used_ns, now_ns);
}

/* How much of a span passed before the holder's first launch. */
static uint64_t not_begun(struct sp_member *member, uint64_t from_ns, uint64_t until_ns) {
  uint64_t free_until_ns = member->granted_ns + SP_FREE_NS;
  if (from_ns >= free_until_ns)
    return 0;
  if (!member->view.entered)
    sp_slots_scan(member, sp_now_ns()); /* `until_ns` may lie in the past */
  if (member->view.entered && member->view.entered_ns < free_until_ns)
    free_until_ns = member->view.entered_ns;
  if (free_until_ns > until_ns)
    free_until_ns = until_ns;
  return free_until_ns > from_ns ? free_until_ns - from_ns : 0;
}

/* A draining turn has the device to itself until its bound: the successor that was granted early pays from its end, and
 * so do those whose drain is late. */
static uint32_t find_payers(const struct sp_node_device *device, struct sp_member *payers[SP_POLICY_SHARES]) {
  uint32_t count = 0;
  bool exclusive = false;
  for (uint32_t index = 0; index < device->draining; index++)
    exclusive = exclusive || !device->drains[index]->cogranted;
  for (uint32_t index = 0; index < device->draining; index++)
    if (!device->drains[index]->cogranted || !exclusive)
      payers[count++] = device->drains[index];
  if (device->holder && !exclusive)
    payers[count++] = device->holder;
  return count;
}

void sp_bill(struct sp_node_device *device, uint64_t until_ns) {
  if (until_ns <= device->billed_until_ns)
    return;
  uint64_t elapsed_ns = until_ns - device->billed_until_ns;
  uint64_t from_ns = device->billed_until_ns;
  device->billed_until_ns = until_ns;
  struct sp_member *payers[SP_POLICY_SHARES];
  uint32_t count = find_payers(device, payers);
  for (uint32_t index = 0; index < count; index++) {
    struct sp_member *member = payers[index];
    uint64_t part_ns = elapsed_ns / count;
    if (count == 1 && member->holding)
      part_ns -= not_begun(member, from_ns, until_ns);
    if (count == 1 && member->holding && !(member->grant->flags & SP_GRANT_CONTENDED)) {
      /* Idle time inside a turn that nobody else wanted: up to its re-entry, and since the last drain if idle now. It
       * is the tenant's word, so it counts only while nobody else could be harmed by a lie. */
      uint64_t idle_ns = member->view.idle_ns > member->idle_ns ? member->view.idle_ns - member->idle_ns : 0;
      member->idle_ns += idle_ns;
      if (member->view.entered && !member->view.busy && until_ns > member->view.drained_ns) {
        uint64_t since_ns = member->view.drained_ns > from_ns ? member->view.drained_ns : from_ns;
        idle_ns += until_ns - since_ns;
        /* When it enters again the hook will report this pause too: what is left out now is not left out twice. */
        member->idle_ns += until_ns - since_ns;
      }
      part_ns = part_ns > idle_ns ? part_ns - idle_ns : 0;
    }
    charge(device, member, part_ns, until_ns, count > 1);
  }
}
