/* Answers questions about accounts, processes and turns, and about the arbiter's own cost. Called from other threads;
 * each function takes the arbiter's lock. `share` and `device` are handles, `term` is the index of one of the share's
 * devices. */
#include <errno.h>

#include "agent/arbiter/node.h"

/* Fill `usage` as of now: an open turn is billed first, and a wait that goes on is counted up to now. 0; -ENOENT: no
 * such share; -EINVAL: no such term. */
int sp_arbiter_read_usage(struct sp_arbiter *arbiter, int share, uint32_t term, struct sp_usage *usage) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  int error = !found ? -ENOENT : term >= found->member_count ? -EINVAL : 0;
  if (!error) {
    struct sp_member *member = &found->members[term];
    uint64_t now_ns = sp_now_ns();
    sp_slots_watch_and_scan(arbiter, member, now_ns); /* the ring of a new process may not have been heard yet */
    sp_copies_scan(member);
    if (member->holding)
      sp_bill(member->device, now_ns);
    *usage = member->usage;
    usage->gang_device = sp_gang_waits_for(member);
    if (member->waiting_from_ns)
      usage->waited_ns += now_ns - member->waiting_from_ns;
    usage->state = found->gang->paused    ? SP_PAUSED
                   : member->draining     ? SP_DRAINING
                   : member->holding      ? SP_HOLDING
                   : member->view.waiting ? SP_WAITING
                                          : SP_IDLE;
    if (usage->state == SP_HOLDING && member->view.entered && !member->view.busy)
      usage->state = SP_IDLE; /* the turn is parked: its work has drained */
  }
  sp_arbiter_unlock(arbiter);
  return error;
}

/* Copy the histograms of the share's finished turns: its waits for them, and their lengths. 0, -ENOENT or -EINVAL. */
int sp_arbiter_read_turn_times(struct sp_arbiter *arbiter, int share, uint32_t term, struct sp_histogram *waits,
                               struct sp_histogram *turns) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  int error = !found ? -ENOENT : term >= found->member_count ? -EINVAL : 0;
  if (!error) {
    *waits = found->members[term].waits;
    *turns = found->members[term].turns;
  }
  sp_arbiter_unlock(arbiter);
  return error;
}

/* Put up to `capacity` processes with a slot into the array, each with its counts on all devices of the share, as last
 * scanned. Returns how many; -ENOENT: no such share. */
int sp_arbiter_read_processes(struct sp_arbiter *arbiter, int share, struct sp_process *processes, uint32_t capacity) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  uint32_t count = 0;
  for (uint32_t slot = 0; found && slot < SP_SLOTS_MAX && count < capacity; slot++) {
    if (!(found->claimed >> slot & 1))
      continue;
    struct sp_process *process = &processes[count++];
    *process = (struct sp_process){.pid = found->tenants[slot].pid, .slot = slot};
    for (uint32_t index = 0; index < found->member_count; index++) {
      process->launches += found->members[index].known[slot].launches;
      process->memory_used_bytes += found->members[index].known[slot].memory_bytes;
    }
  }
  sp_arbiter_unlock(arbiter);
  return found ? (int)count : -ENOENT;
}

/* Put finished turns of all shares into the array, oldest first: up to `capacity` of those that are still kept and have
 * a sequence above `after`. Returns how many. */
int sp_arbiter_read_turns(struct sp_arbiter *arbiter, uint64_t after, struct sp_turn *turns, uint32_t capacity) {
  pthread_mutex_lock(&arbiter->lock);
  uint64_t oldest = arbiter->turn_count > SP_TURNS_KEPT ? arbiter->turn_count - SP_TURNS_KEPT : 0;
  uint64_t next = after > oldest ? after : oldest; /* sequences start at 1: turn n lies at n - 1 */
  uint32_t count = 0;
  while (next < arbiter->turn_count && count < capacity)
    turns[count++] = arbiter->turns[next++ % SP_TURNS_KEPT];
  sp_arbiter_unlock(arbiter);
  return (int)count;
}

/* Tell of a device, since the start: the time charged to shares, the number of decisions, and the time that these took.
 * 0, or -ENODEV. */
int sp_arbiter_read_device(struct sp_arbiter *arbiter, int device, uint64_t *charged_ns, uint64_t *decisions,
                           uint64_t *decision_ns) {
  if (device < 0 || (uint32_t)device >= arbiter->device_count)
    return -ENODEV;
  pthread_mutex_lock(&arbiter->lock);
  *charged_ns = arbiter->devices[device].charged_ns;
  *decisions = arbiter->devices[device].decisions;
  *decision_ns = arbiter->devices[device].decision_ns;
  sp_arbiter_unlock(arbiter);
  return 0;
}

/* Copy the device's histogram of hand-offs: arbiter.h says which grants are counted. 0, or -ENODEV. */
int sp_arbiter_read_hand_offs(struct sp_arbiter *arbiter, int device, struct sp_histogram *hand_offs) {
  if (device < 0 || (uint32_t)device >= arbiter->device_count)
    return -ENODEV;
  pthread_mutex_lock(&arbiter->lock);
  *hand_offs = arbiter->devices[device].hand_offs;
  sp_arbiter_unlock(arbiter);
  return 0;
}
