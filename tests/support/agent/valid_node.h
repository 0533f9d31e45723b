/*
 * What must hold of the arbiter's devices and members after every event: counts that are the sums of what they count,
 * and turns in the state that their grants show. The labs of virtual time ask for it.
 */
#ifndef SHAREPOD_VALID_NODE_H
#define SHAREPOD_VALID_NODE_H

#include <stddef.h>

#include "agent/arbiter/node.h"

/* What of the device's turns does not hold; NULL: all holds. */
static const char *broken_turns(const struct sp_node_device *device) {
  if (device->holder && (!device->holder->holding || device->holder->device != device))
    return "the holder is a member of the device, and holds";
  for (uint32_t index = 0; index < device->draining; index++) {
    const struct sp_member *member = device->drains[index];
    if (!member->draining || member->holding || member->device != device)
      return "a drain is a closed turn of a member of the device";
    if (index && member->closed_ns < device->drains[index - 1]->closed_ns)
      return "drains are in the order in which their turns were closed";
  }
  return NULL;
}

/* What does not hold of one member of the device. */
static const char *broken_member(const struct sp_node_device *device, const struct sp_member *member) {
  if (member->device != device)
    return "the member is of the device that lists it";
  if (member->holding != (member == device->holder))
    return "the member that holds is the device's holder";
  if (member->holding != (sp_grant_word(member->grant) & 1u))
    return "a grant is open while its member holds";
  if (member->holding && member->draining)
    return "an open turn does not drain";
  if (member->reserves && !(member->gang->count > 1))
    return "only members of gangs reserve a device";
  return NULL;
}

/* What of the device does not hold; NULL: all holds. */
static const char *broken_device(const struct sp_arbiter *arbiter, const struct sp_node_device *device) {
  uint32_t waiting = 0, latency_waiting = 0, latency_present = 0, gang_members = 0, reserved = 0, draining = 0;
  const char *broken = broken_turns(device);
  for (uint32_t index = 0; index < (uint32_t)device->policy.top && !broken; index++) {
    const struct sp_member *member = device->members[index];
    if (!member)
      continue;
    if (member->policy != (int)index)
      return "a member is listed by its index in the policy";
    broken = broken_member(device, member);
    waiting += member->counted_waiting;
    latency_waiting += member->counted_latency;
    latency_present += member->counted_present;
    gang_members += member->gang->count > 1;
    reserved += member->reserves;
    draining += member->draining;
  }
  if (broken)
    return broken;
  if (waiting != device->waiting || latency_waiting != device->latency_waiting ||
      latency_present != device->latency_present)
    return "the counts of members that wait, and of latency shares, are sums over the members";
  if (gang_members != device->gang_members || reserved != device->reserved)
    return "the counts of gangs' members and of reservations are sums over the members";
  if (draining != device->draining)
    return "the drains are the members that drain";
  if (device->committed_to) {
    bool listed = false;
    for (uint32_t index = 0; index < arbiter->gang_count; index++)
      listed = listed || arbiter->gangs[index] == device->committed_to;
    if (!listed)
      return "a device is kept free for a gang that reserves";
  }
  return NULL;
}

/* What of the arbiter's devices does not hold; NULL: all holds. `policies`: look at their sums, too, which costs more.
 */
static const char *broken_node(const struct sp_arbiter *arbiter, bool policies) {
  const char *broken = NULL;
  for (uint32_t index = 0; index < arbiter->device_count && !broken; index++) {
    const struct sp_node_device *device = &arbiter->devices[index];
    broken = broken_device(arbiter, device);
    if (!broken && policies && !sp_policy_valid(&device->policy))
      broken = "the policy's sums are those of its shares";
  }
  return broken;
}

#endif
