/*
 * The policy of one device. docs/policy.md states the account in one page; the invariants stand beside the code.
 *
 * A share has two accounts that the same charges lower. `credit` earns the request and answers "is it below its
 * request?". `lag` earns the target (request + part of the surplus) and answers "how far behind is it?". Lag that all
 * active shares have in common is time that the device gave to none. It is cancelled (sp_accounts_cancel_common_lag):
 * so only differences between shares remain, and hand-off costs, overcommit and rounding never pile up.
 *
 * A share is *active* while it waits or holds a turn. `share` is an index into policy->shares. A call that changes
 * something at `now_ns` (monotonic) first brings the accounts to that time. The caller, the arbiter, makes one call at
 * a time. Accounts are in ns x millipercent (WHOLE is 100 %).
 */
#include "agent/policy/policy.h"

#include <string.h>

#include "agent/policy/accounts.h"
#include "agent/policy/rates.h"

/* Is there a share at this index? The calls of policy.h ignore an index without one. */
static bool is_known(const struct sp_policy *policy, int share) {
  return share >= 0 && share < policy->top && policy->shares[share].present;
}

/* Is the share below its request? `credit`: its credit at the time that is asked about. A share with request 0 never
 * is. */
static bool is_below_request(const struct sp_policy_share *s, int64_t credit) {
  return s->request_mp > 0 && credit >= 0;
}

/* May the share begin a turn under its limit? `bucket`: what its bucket holds at the time that is asked about. */
static bool limit_allows(const struct sp_policy_share *s, int64_t bucket) {
  return !is_limited(s) || bucket >= sp_account_threshold(s);
}

/* Bring the accounts to now_ns, and the rates up to date: a debt that is repaid on the way makes them stale. */
static void refresh(struct sp_policy *policy, uint64_t now_ns) {
  sp_accounts_advance(policy, now_ns);
  if (policy->stale)
    sp_policy_rates(policy);
}

/* ------------------------------------------------------------------------------------------------ choice */

/* The rule by which the share would be chosen now. */
static uint32_t rule_of(const struct sp_policy_share *s) {
  if (is_below_request(s, s->credit))
    return s->share_class == SP_CLASS_LATENCY ? SP_RULE_LATENCY : SP_RULE_REQUEST;
  return takes_surplus(s) ? SP_RULE_SURPLUS : SP_RULE_LEFTOVER;
}

/* Is `a` chosen before `b`? The order is that of the rules; within a rule the turn that is due first; then the longest
 * wait. */
static bool goes_before(const struct sp_policy_share *a, const struct sp_policy_share *b) {
  uint32_t rule_a = rule_of(a);
  uint32_t rule_b = rule_of(b);
  if (rule_a != rule_b)
    return rule_a < rule_b;
  int sooner = sp_accounts_urgency(a, b);
  return sooner != 0 ? sooner > 0 : a->waiting_since_ns < b->waiting_since_ns;
}

/* Begin the share's turn: it holds, and waits no longer. Returns the choice, with the rule and the quantum. The caller
 * has brought the accounts to now and capped them. */
static struct sp_choice begin_turn(struct sp_policy *policy, int share) {
  struct sp_policy_share *s = &policy->shares[share];
  struct sp_choice choice = {.share = share, .retry_ns = UINT64_MAX};
  choice.quantum_ns = sp_account_quantum(policy, s);
  if (is_limited(s)) { /* a turn empties the bucket at WHOLE and fills it at the limit, both at once */
    uint64_t bucket = s->bucket > 0 ? (uint64_t)s->bucket : 0;
    choice.quantum_ns = min_u64(choice.quantum_ns, bucket / (WHOLE - s->limit_mp));
  }
  choice.rule = s->rule = rule_of(s);
  s->holding = true; /* from waiting to holding: it stays active, so the rates stay */
  s->waiting = false;
  return choice;
}

/* Choose the share that runs next, among those that wait, do not hold and are not paused, and begin its turn.
 * share == -1: none may run; then retry_ns is when a limit first lets one of them run, UINT64_MAX if none waits. */
struct sp_choice sp_policy_next(struct sp_policy *policy, uint64_t now_ns) {
  struct sp_choice choice = {.share = -1, .quantum_ns = 0, .retry_ns = UINT64_MAX, .rule = SP_RULE_NONE};
  refresh(policy, now_ns);
  sp_accounts_cancel_common_lag(policy);
  policy->decisions++;
  struct sp_policy_share *best = NULL;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    if (s->holding || !s->waiting || s->paused)
      continue;
    sp_accounts_cap(policy, s);
    if (!limit_allows(s, s->bucket)) {
      uint64_t missing = (uint64_t)(sp_account_threshold(s) - s->bucket);
      uint64_t refill_ns = (missing + s->limit_mp - 1) / s->limit_mp; /* rounded up: then the bucket is full enough */
      choice.retry_ns = min_u64(choice.retry_ns, policy->updated_ns + refill_ns);
    } else if (best == NULL || goes_before(s, best)) {
      best = s;
      choice.share = i;
    }
  }
  if (best == NULL)
    return choice;
  return begin_turn(policy, choice.share);
}

/* Begin a turn of this share, which belongs to a gang, without comparing it with others. Either the policy has chosen
 * it before, and it waited for the gang's other devices; or it follows: it runs out of turn, because work on another
 * device may spin for its launch. The quantum is at least QUANTUM_MIN_NS, whatever its limit allows. Returns share -1,
 * and changes nothing, if the share is not known, holds already or is paused. */
struct sp_choice sp_policy_take(struct sp_policy *policy, int share, uint64_t now_ns) {
  if (!is_known(policy, share) || policy->shares[share].holding || policy->shares[share].paused)
    return (struct sp_choice){.share = -1, .retry_ns = UINT64_MAX};
  sp_policy_wait(policy, share, true, now_ns); /* it may count as idle here, and then has no rates */
  refresh(policy, now_ns);
  sp_accounts_cancel_common_lag(policy);
  policy->decisions++;
  sp_accounts_cap(policy, &policy->shares[share]);
  struct sp_choice choice = begin_turn(policy, share);
  choice.quantum_ns = max_u64(choice.quantum_ns, QUANTUM_MIN_NS);
  return choice;
}

/* End the share's turn and let it wait for the next one. Called when a holder wants more at the end of its quantum, and
 * to undo a choice that the caller does not grant. */
void sp_policy_return(struct sp_policy *policy, int share, uint64_t now_ns) {
  sp_policy_wait(policy, share, true, now_ns); /* before the end: else it would count as idle in between */
  sp_policy_end(policy, share, now_ns);
}

/* May the share, a member of a gang, get one turn before the policy chooses it? It may if it is not paused, has no
 * debt, is ahead of its target by one turn at most, and its limit allows a turn. */
bool sp_policy_is_near(struct sp_policy *policy, int share, uint64_t now_ns) {
  if (!is_known(policy, share))
    return false;
  struct sp_policy_share *s = &policy->shares[share];
  refresh(policy, now_ns);
  sp_accounts_bring(policy, s, now_ns);
  /* An ordinary turn lowers the lag by twice the due lag. */
  return !s->paused && s->debt == 0 && s->lag >= -2 * s->due_lag && limit_allows(s, s->bucket);
}

/* Does any share wait that is below its request and may run under its limit? */
static bool request_waits(const struct sp_policy *policy) {
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    const struct sp_policy_share *s = &policy->shares[i];
    if (s->waiting && !s->holding && !s->paused && is_below_request(s, s->credit) && limit_allows(s, s->bucket))
      return true;
  }
  return false;
}

/* The share's ordinary quantum (ns), before its limit cuts it. It is the shortest one if the share is not below its
 * request and a waiting share is. Asked about the holder when the first other share begins to wait: a longer turn is
 * then cut to this. */
uint64_t sp_policy_quantum(struct sp_policy *policy, int share, uint64_t now_ns) {
  if (!is_known(policy, share))
    return QUANTUM_MIN_NS;
  refresh(policy, now_ns);
  const struct sp_policy_share *s = &policy->shares[share];
  if (!is_below_request(s, s->credit) && request_waits(policy))
    return QUANTUM_MIN_NS;
  return sp_policy_ordinary(policy, s);
}

/* The longest quantum in ns that the share could get at the present rates. Asked about the holder when one more share
 * begins to wait: its turn may have been granted while fewer waited. */
uint64_t sp_policy_longest(struct sp_policy *policy, int share, uint64_t now_ns) {
  if (!is_known(policy, share))
    return QUANTUM_MIN_NS;
  refresh(policy, now_ns);
  return sp_account_longest(policy, &policy->shares[share]);
}

/* Should `waiter`, a latency share that may run under its limit, end the turn of `holder` now? Yes, if the holder uses
 * leftovers and the waiter has a request. Yes, too, if the waiter is below its request, unless the holder was chosen as
 * a latency share below its own. Nothing changes. */
bool sp_policy_preempts(const struct sp_policy *policy, int waiter, int holder, uint64_t now_ns) {
  if (!is_known(policy, waiter) || !is_known(policy, holder) || waiter == holder)
    return false;
  const struct sp_policy_share *s = &policy->shares[waiter];
  const struct sp_policy_share *h = &policy->shares[holder];
  if (!s->waiting || s->holding || s->paused || s->share_class != SP_CLASS_LATENCY)
    return false;
  /* The policy is const here: what the waiter has earned since the last call is added below, but not stored. */
  uint64_t elapsed_ns = now_ns > policy->updated_ns ? min_u64(now_ns - policy->updated_ns, STEP_MAX_NS) : 0;
  if (!h->holding || !limit_allows(s, s->bucket + earned(elapsed_ns, s->limit_mp)))
    return false;
  /* Leftovers are for times when no other share waits: so a latency share ends them even to use surplus. */
  if (h->rule == SP_RULE_LEFTOVER)
    return takes_surplus(s);
  return h->rule != SP_RULE_LATENCY && is_below_request(s, s->credit + earned(elapsed_ns, s->request_mp));
}

/* ------------------------------------------------------------------------------------------------ events */

/* Make the policy empty: no shares, nothing charged. Called once, before any other call. */
void sp_policy_init(struct sp_policy *policy) {
  memset(policy, 0, sizeof *policy);
  policy->stale = true;
}

/* Note whether a latency share is present that is not paused (then rounds are shorter), and that all rates must be
 * computed anew. Called after any change of terms, presence or pause. */
static void note_latency_and_stale(struct sp_policy *policy) {
  policy->latency_present = false;
  for (int i = 0; i < policy->top; i++) {
    const struct sp_policy_share *s = &policy->shares[i];
    if (s->present && s->share_class == SP_CLASS_LATENCY && !s->paused)
      policy->latency_present = true;
  }
  policy->stale = true;
}

/* Set the terms, each cut to its range: the limit to 1..WHOLE, the request to the limit; an unknown class is batch. */
static void set_terms(struct sp_policy_share *s, uint32_t request_mp, uint32_t limit_mp, uint32_t share_class) {
  s->limit_mp = limit_mp < 1 ? 1 : limit_mp > WHOLE ? WHOLE : limit_mp;
  s->request_mp = request_mp > s->limit_mp ? s->limit_mp : request_mp;
  s->share_class = share_class > SP_CLASS_BATCH ? SP_CLASS_BATCH : share_class;
}

/* Add a share, idle at first, with these terms (millipercent; enum sp_class). Returns its index; -1: no room. */
int sp_policy_add(struct sp_policy *policy, uint32_t request_mp, uint32_t limit_mp, uint32_t share_class,
                  uint64_t now_ns) {
  sp_accounts_advance(policy, now_ns);
  for (int i = 0; i < SP_POLICY_SHARES; i++) {
    struct sp_policy_share *s = &policy->shares[i];
    if (s->present)
      continue;
    memset(s, 0, sizeof *s);
    s->present = true;
    s->updated_ns = policy->updated_ns;
    set_terms(s, request_mp, limit_mp, share_class);
    s->bucket = sp_account_threshold(s); /* enough for a turn at once */
    if (policy->top <= i)
      policy->top = i + 1;
    note_latency_and_stale(policy);
    return i;
  }
  return -1;
}

/* Give the share new terms, at once. Its accounts stay, within the new bounds; only a share with a request has debt. */
void sp_policy_update(struct sp_policy *policy, int share, uint32_t request_mp, uint32_t limit_mp, uint32_t share_class,
                      uint64_t now_ns) {
  if (!is_known(policy, share))
    return;
  struct sp_policy_share *s = &policy->shares[share];
  sp_accounts_bring(policy, s, now_ns);
  bool was_limited = is_limited(s);
  set_terms(s, request_mp, limit_mp, share_class);
  if (!was_limited) /* the bucket of an unlimited share means nothing */
    s->bucket = sp_account_threshold(s);
  if (s->request_mp == 0)
    s->debt = 0;
  sp_accounts_cap(policy, s);
  note_latency_and_stale(policy);
}

/* Forget the share, its accounts, and a turn that it holds. A later share may get its index. */
void sp_policy_remove(struct sp_policy *policy, int share, uint64_t now_ns) {
  if (!is_known(policy, share))
    return;
  sp_accounts_advance(policy, now_ns);
  memset(&policy->shares[share], 0, sizeof policy->shares[share]);
  sp_accounts_note_active(policy, share);
  while (policy->top > 0 && !policy->shares[policy->top - 1].present)
    policy->top--;
  note_latency_and_stale(policy);
}

/* Pause the share, or resume it. A paused share is never chosen, and earns neither credit nor lag. A turn that it holds
 * goes on until sp_policy_end. */
void sp_policy_pause(struct sp_policy *policy, int share, bool paused, uint64_t now_ns) {
  if (!is_known(policy, share) || policy->shares[share].paused == paused)
    return;
  struct sp_policy_share *s = &policy->shares[share];
  sp_accounts_bring(policy, s, now_ns);
  s->paused = paused;
  sp_accounts_note_active(policy, share); /* unless it holds, a pause makes it idle */
  if (paused)                             /* a correction at this very time may have overfilled its bucket */
    sp_accounts_cap(policy, s);
  note_latency_and_stale(policy); /* a paused latency share makes no rounds shorter */
}

/* Note that the share begins or stops to want a turn. Does nothing if that is known already. */
void sp_policy_wait(struct sp_policy *policy, int share, bool waiting, uint64_t now_ns) {
  if (!is_known(policy, share) || policy->shares[share].waiting == waiting)
    return;
  struct sp_policy_share *s = &policy->shares[share];
  sp_accounts_bring(policy, s, now_ns);
  s->waiting = waiting;
  sp_accounts_note_active(policy, share);
  if (waiting)
    s->waiting_since_ns = policy->updated_ns;
}

/* Charge the share with device time since its last charge; negative: correct what was charged before. Called at any
 * moment, and for every holder before the next choice. */
void sp_policy_charge(struct sp_policy *policy, int share, int64_t charged_ns, uint64_t now_ns) {
  if (!is_known(policy, share))
    return;
  sp_accounts_bring(policy, &policy->shares[share], now_ns);
  sp_accounts_charge(policy, &policy->shares[share], charged_ns);
}

/* End the share's turn, which the caller has charged. The share is idle then, unless it waits. */
void sp_policy_end(struct sp_policy *policy, int share, uint64_t now_ns) {
  if (!is_known(policy, share) || !policy->shares[share].holding)
    return;
  sp_accounts_advance(policy, now_ns);
  policy->shares[share].holding = false;
  sp_accounts_note_active(policy, share);
  sp_accounts_cap(policy, &policy->shares[share]); /* while it held, its accounts were not capped */
}

/* Set the share's longest unit (ns), as observed lately: rounds and due lags depend on it. Returns the share's ordinary
 * quantum, at the rates of the last call. */
uint64_t sp_policy_unit(struct sp_policy *policy, int share, uint64_t longest_unit_ns) {
  if (!is_known(policy, share))
    return QUANTUM_MIN_NS;
  struct sp_policy_share *s = &policy->shares[share];
  if (s->longest_unit_ns != longest_unit_ns) {
    s->longest_unit_ns = longest_unit_ns;
    sp_policy_round(policy);
  }
  return sp_policy_ordinary(policy, s);
}

/* -------------------------------------------------------------------------------------------- validation */

/* Are the invariants of this one share kept? */
static bool share_is_valid(const struct sp_policy *policy, const struct sp_policy_share *s) {
  if (s->request_mp > s->limit_mp || s->limit_mp < 1 || s->limit_mp > WHOLE || s->share_class > SP_CLASS_BATCH)
    return false;
  if (s->debt < 0 || s->debt > earned(DEBT_MAX_NS, WHOLE) || (s->debt > 0 && s->request_mp == 0))
    return false;
  if (!policy->stale && (s->guarantee_mp > s->target_mp || s->target_mp > s->limit_mp))
    return false;
  if (!is_active(s) && s->target_mp > 0)
    return false;
  return s->used_ns <= policy->used_ns;
}

/* Are all invariants of the policy kept? Only tests ask, after a call: false means a bug. */
bool sp_policy_valid(const struct sp_policy *policy) {
  uint64_t targets_mp = 0;
  uint64_t used_ns = 0;
  if (policy->top < 0 || policy->top > SP_POLICY_SHARES)
    return false;
  for (int i = 0; i < SP_POLICY_SHARES; i++) {
    const struct sp_policy_share *s = &policy->shares[i];
    if (is_active(s) != (next_active(policy, i) == i))
      return false;
    if (!s->present)
      continue;
    if (i >= policy->top || !share_is_valid(policy, s))
      return false;
    targets_mp += s->target_mp;
    used_ns += s->used_ns;
  }
  if (used_ns > policy->used_ns)
    return false;
  return policy->stale || (targets_mp == policy->targets_mp && targets_mp <= WHOLE);
}
