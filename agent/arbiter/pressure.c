/*
 * The pressure: what a grant tells the gate about the other shares on the device: whether they wait, and how much work
 * may be in flight beside them. It changes when they come or go, and near the end of a turn. All functions run under
 * the arbiter's lock; `member` is a share on `device`.
 */
#include "agent/arbiter/node.h"
#include "region/order.h"

/* Did another share, which still has processes, have a turn within SP_RECENT_NS? It will want one soon, and what is
 * queued now delays it. */
bool sp_others_recent(const struct sp_node_device *device, const struct sp_member *member, uint64_t now_ns) {
  for (int index = 0; index < 2; index++) {
    const struct sp_member *other = device->recent[index].member;
    if (other && other != member && other->share->claimed && now_ns - device->recent[index].ended_ns < SP_RECENT_NS)
      return true;
  }
  return false;
}

/* Does another share of class latency with live processes hold a part of the device? */
static bool beside_latency(const struct sp_node_device *device, const struct sp_member *member) {
  return device->latency_present > (uint32_t)member->counted_present;
}

/* What a grant tells the gate about the other shares on the device. */
struct pressure {
  uint64_t budget_ns, lookahead_ns;
  uint32_t flags;
};

/* What the grant of `member` has to tell the gate now. `member` is the holder, or about to become it. Where several
 * rules apply, the later one decides. */
static struct pressure pressure_on(const struct sp_node_device *device, const struct sp_member *member,
                                   uint64_t now_ns) {
  bool contended = sp_others_wait(device, member);
  struct pressure pressure = {SP_BUDGET_ALONE_NS, SP_BUDGET_ALONE_NS, contended ? SP_GRANT_CONTENDED : 0};
  if (member->terms.limit_millipercent < SP_POLICY_WHOLE)
    pressure.flags |= SP_GRANT_LIMITED;
  if (contended || sp_others_recent(device, member, now_ns)) {
    pressure.budget_ns = SP_BUDGET_SHARED_NS;
    pressure.lookahead_ns = SP_LOOKAHEAD_NS;
  }
  if (pressure.flags & SP_GRANT_LIMITED) { /* its quanta are short even alone, and queued work overruns them */
    pressure.budget_ns = SP_BUDGET_LIMITED_NS;
    pressure.lookahead_ns = SP_LOOKAHEAD_NS;
  }
  if (member->follows) {
    pressure.budget_ns = pressure.lookahead_ns = SP_BUDGET_FOLLOW_NS;
  } else if (beside_latency(device, member)) {
    pressure.budget_ns = SP_BUDGET_LATENCY_NS;
    pressure.lookahead_ns = SP_LOOKAHEAD_LATENCY_NS;
  }
  /* Work in flight at the deadline outlives the turn. So shortly before it (sp_pressure_due_ns) the budget becomes so
   * small that the last work ends soon after it. The work that was launched before keeps the device busy until then. */
  if (sp_turn_ends(device, member) && pressure.budget_ns > SP_BUDGET_END_NS) {
    if (now_ns + pressure.budget_ns >= member->deadline_ns + SP_BUDGET_END_NS)
      pressure.budget_ns = pressure.lookahead_ns = SP_BUDGET_END_NS;
  }
  return pressure;
}

/* When the holder needs a step because of the end of its turn: the time at which its budget must be lowered, or, once
 * it is, the deadline. UINT64_MAX: its turn does not end. */
uint64_t sp_pressure_due_ns(const struct sp_node_device *device) {
  const struct sp_member *holder = device->holder;
  if (!sp_turn_ends(device, holder))
    return UINT64_MAX;
  uint64_t budget_ns = holder->grant->budget_ns;
  return budget_ns > SP_BUDGET_END_NS ? holder->deadline_ns + SP_BUDGET_END_NS - budget_ns : holder->deadline_ns;
}

/* Open the member's grant, after its deadline was set. Returns the turn's word, by which the slots name the turn. The
 * caller wakes the waiters. */
uint32_t sp_pressure_open(const struct sp_node_device *device, const struct sp_member *member, uint64_t now_ns) {
  struct pressure pressure = pressure_on(device, member, now_ns);
  return sp_grant_open(member->grant, pressure.budget_ns, pressure.lookahead_ns, pressure.flags, now_ns);
}

/* Bring the holder's grant up to date with what has changed around it, and wake its keeper if that must act at once.
 * The deadline comes sooner if a first other share begins to wait. Called at each step of a device with a holder. */
void sp_pressure_update(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  struct sp_member *holder = device->holder;
  struct pressure now = pressure_on(device, holder, now_ns);
  uint32_t flags = holder->grant->flags, raised = now.flags & ~flags; /* raised: set now, and not before */
  uint64_t budget_ns = holder->grant->budget_ns;
  if (now.flags == flags && now.budget_ns == budget_ns)
    return;
  if (now.flags != flags && !device->draining) /* beside a drain the flags do not change what the holder pays */
    sp_bill(device, now_ns); /* idle time is free up to here, charged from here on, or the other way round */
  if (raised & SP_GRANT_CONTENDED && !holder->overdue) { /* a turn that took over a late drain is short as it stands */
    /* Its quantum was computed while no other share waited. */
    uint64_t quantum_ns = sp_policy_quantum(&device->policy, holder->policy, now_ns);
    if (holder->granted_ns + quantum_ns < holder->deadline_ns)
      holder->deadline_ns = holder->granted_ns + quantum_ns;
  }
  sp_grant_set(holder->grant, now.budget_ns, now.lookahead_ns, now.flags);
  if (raised & SP_GRANT_CONTENDED) { /* it may have parked without ringing: then its turn ends now */
    sp_fence();                      /* pairs with park_locked in keeper.c */
    sp_slots_scan(holder, now_ns);
    if (holder->view.entered && !holder->view.busy)
      holder->deadline_ns = now_ns;
  }
  if (raised || (now.budget_ns < budget_ns && now.budget_ns != SP_BUDGET_END_NS)) /* a taper wakes no thread */
    sp_wake_later(arbiter, holder->grant);
}
