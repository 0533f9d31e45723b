/* Runs bill.c on a device in virtual time; its tests call the functions through ctypes. Shares are numbered from 0. */
#include "agent/arbiter/node.h"

#define SHARES 4

static struct sp_node_device device;
static struct sp_grant grants[SHARES];
static struct sp_member members[SHARES];

/* Stand-ins for the rest of the arbiter. */
uint64_t sp_now_ns(void) {
  return 0;
}
void sp_slots_scan(struct sp_member *member, uint64_t now_ns) {
  (void)member, (void)now_ns;
}
void sp_grant_account(struct sp_grant *grant, uint64_t used_ns) {
  (void)grant, (void)used_ns;
}

void lab_begin(uint64_t now_ns) {
  device = (struct sp_node_device){.billed_until_ns = now_ns};
  sp_policy_init(&device.policy);
  for (int index = 0; index < SHARES; index++) {
    grants[index] = (struct sp_grant){0};
    members[index] = (struct sp_member){.device = &device,
                                        .grant = &grants[index],
                                        .deadline_ns = UINT64_MAX,
                                        .beside_billed_ns = now_ns,
                                        .policy = sp_policy_add(&device.policy, 25000, SP_POLICY_WHOLE, 1, now_ns)};
    device.members[members[index].policy] = &members[index];
  }
}

/* From now on other shares want the device, or none does. */
void lab_contend(int share, bool contended) {
  members[share].grant->flags = contended ? SP_GRANT_CONTENDED : 0;
  device.waiting = contended;
}

void lab_grant(int share, uint64_t now_ns, bool contended) {
  struct sp_member *member = &members[share];
  lab_contend(share, contended);
  member->holding = true;
  member->granted_ns = now_ns;
  member->view = (struct sp_view){0};
  device.holder = member;
  sp_bill_begin(member);
}

/* The share's next turn is granted while the work of its last turn runs on; if `overdue`, beside other shares. */
void lab_late(int share, bool overdue) {
  members[share].late = true;
  members[share].overdue = overdue;
}

/* `until_ns`: when the share's turn ought to end. */
void lab_deadline(int share, uint64_t until_ns) {
  members[share].deadline_ns = until_ns;
}

void lab_say(int share, uint64_t now_ns, uint64_t used_ns, uint32_t running, uint64_t ended_ns) {
  struct sp_member *member = &members[share];
  if (!member->view.entered)
    member->view.entered_ns = now_ns;
  member->view.entered = true;
  member->view.used_ns = used_ns;
  member->view.running = running;
  member->view.ended_ns = ended_ns;
  member->scanned_ns = now_ns;
}

void lab_close(int share, uint64_t now_ns) {
  sp_bill(&device, now_ns);
  members[share].holding = false;
  members[share].draining = true;
  device.holder = NULL;
  device.drains[device.draining++] = &members[share];
}

void lab_cogrant(int share, uint64_t now_ns) {
  sp_bill(&device, now_ns);
  members[share].cogranted = true;
  members[share].cogranted_ns = now_ns;
}

static void remove_drain(const struct sp_member *member) {
  uint32_t left = 0;
  for (uint32_t index = 0; index < device.draining; index++)
    if (device.drains[index] != member)
      device.drains[left++] = device.drains[index];
  device.draining = left;
}

/* The share's next turn is granted while, as far as the arbiter knows, this turn still drains. */
void lab_go_on(int share, uint64_t now_ns) {
  struct sp_member *member = &members[share];
  sp_bill(&device, now_ns);
  int64_t last_used_ns = (int64_t)member->turn_used_ns;
  uint64_t last_until_ns = now_ns - (uint64_t)member->others_late_ns;
  remove_drain(member);
  member->late = true;
  member->draining = false;
  lab_grant(share, now_ns, true);
  member->last_used_ns = last_used_ns;
  member->last_until_ns = last_until_ns;
}

/* The share reports when the work of its previous turn ended, or that it still `runs`. */
void lab_last(int share, uint64_t ended_ns, bool runs) {
  members[share].view.last_ended_ns = ended_ns;
  members[share].view.last_runs = runs;
  sp_bill_last(&device, &members[share]);
}

/* What the arbiter does at the end of a turn. */
void lab_drained(int share, uint64_t now_ns) {
  struct sp_member *member = &members[share];
  sp_bill(&device, now_ns);
  sp_bill_correct(&device, member);
  device.drained_ns = now_ns;
  device.ended_ns = member->view.entered && member->view.ended_ns < now_ns ? member->view.ended_ns : now_ns;
  remove_drain(member);
  member->draining = member->cogranted = false;
}

/* The share's work took `put_off_ns` longer than is known of it. */
void lab_put_off(int share, uint64_t put_off_ns) {
  members[share].put_off_ns = (int64_t)put_off_ns;
}

void lab_bill(uint64_t until_ns) {
  sp_bill(&device, until_ns);
}

void lab_beside(int share, uint64_t now_ns, uint64_t beside_ns, uint64_t until_ns) {
  members[share].beside_ns = beside_ns;
  members[share].beside_until_us = (uint32_t)(until_ns / 1000);
  sp_bill_beside(&device, &members[share], now_ns);
}

/* Reads the share's used, charged, estimated, overrun and beside time, its grace, and all that the device charged. */
void lab_read(int share, int64_t out[7]) {
  const struct sp_usage *usage = &members[share].usage;
  int64_t read[7] = {(int64_t)usage->used_ns,    (int64_t)usage->charged_ns, (int64_t)usage->estimated_ns,
                     (int64_t)usage->overrun_ns, (int64_t)usage->beside_ns,  members[share].grace_ns,
                     (int64_t)device.charged_ns};
  for (int index = 0; index < 7; index++)
    out[index] = read[index];
}
