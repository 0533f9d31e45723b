/*
 * The accounts of the policy: each share's credit, lag, bucket and debt. The accounts of active shares are all valid at
 * policy.updated_ns. An idle share's are valid at its own updated_ns, when it became idle, and are brought up to date
 * when they are needed: so a node with many idle shares decides as fast as one without.
 *
 * struct sp_policy_share in policy.h says what each account means. All are in account units: ns x millipercent (WHOLE
 * is 100 %), what `earned` returns. A share is active while it waits or holds a turn; `s` is a share of `policy`.
 */
#include "agent/policy/accounts.h"

#include <stddef.h>

/* An idle share saves at most its request over this time. With less than 100 ms no other share waits longer than 100 ms
 * while a share that comes back spends its savings, whatever its request is. */
#define SAVED_NS (75 * MS)
/* Lag within this time of target is ordinary rounding; an overrun beyond it is debt. */
#define LAG_NS (200 * MS)
/* The on-off period of a share that is held back by its limit alone. */
#define LIMIT_PERIOD_NS (20 * MS)
/* A turn differs from the ordinary quantum by at most a fifth of it. */
#define VARIES 5
/* Co-granted holders are charged within a second of each other: a bill that exceeds the time passed by more is wrong.
 */
#define LOSS_RETURNED_MAX ((int64_t)(1000 * MS * WHOLE))

/* value x rate / whole, cut to +-FINITE. Rates are below 2^17: so a value below 2^46 needs no division of 128 bits. */
static int64_t scaled(int64_t value, uint32_t rate, uint32_t whole) {
  const int64_t fits = (int64_t)1 << 46;
  if (value < fits && value > -fits)
    return value * (int64_t)rate / (int64_t)whole;
  __int128 result = (__int128)value * rate / whole;
  return result > FINITE ? FINITE : result < -FINITE ? -FINITE : (int64_t)result;
}

/* What the bucket must hold before a turn is granted; 0 without a limit. With this much, a share that is alone runs for
 * limit x LIMIT_PERIOD_NS, then pauses. */
int64_t sp_account_threshold(const struct sp_policy_share *s) {
  return scaled(earned(LIMIT_PERIOD_NS, s->limit_mp), WHOLE - s->limit_mp, WHOLE);
}

/* The most that the share's bucket keeps: twice the threshold. Beside other active shares it is at least what the share
 * earns in two rounds: it cannot spend during their turns, and what a full bucket does not take is lost. */
static int64_t bucket_capacity(const struct sp_policy *policy, const struct sp_policy_share *s) {
  int64_t burst = 2 * sp_account_threshold(s);
  return policy->active > 1 ? max_i64(burst, earned(2 * policy->round_ns, s->limit_mp)) : burst;
}

/* The longest that a turn ordinarily becomes, in account units: its ordinary quantum and one unit, because kernels
 * are not cut. */
static int64_t longest_turn(const struct sp_policy *policy, const struct sp_policy_share *s) {
  return earned(sp_policy_ordinary(policy, s) + min_u64(s->longest_unit_ns, QUANTUM_MAX_NS), WHOLE);
}

/* How far behind a share may be, as time at its rate: LAG_NS, or two rounds where long units make these longer. */
static uint64_t lag_bound_ns(const struct sp_policy *policy) {
  return max_u64(LAG_NS, 2 * policy->round_ns);
}

/* The rate at which credit is earned. Alone on the device, a share earns all of it, so its use costs no credit. */
static uint32_t credit_rate(const struct sp_policy *policy, const struct sp_policy_share *s) {
  return policy->active == 1 ? WHOLE : s->guarantee_mp;
}

/* Cap the credit and the lag of a share that is not active: it saves at most its request over SAVED_NS. */
static void cap_savings(struct sp_policy_share *s) {
  s->credit = min_i64(s->credit, earned(SAVED_NS, s->request_mp));
  s->lag = min_i64(s->lag, earned(SAVED_NS, s->request_mp));
}

/* Cut the share's accounts to their upper bounds. Called whenever they may have grown. A holder's accounts only look
 * full, because its use is not charged yet: so they are not cut. */
void sp_accounts_cap(const struct sp_policy *policy, struct sp_policy_share *s) {
  if (s->holding) { /* only kept finite, in case a caller never charges */
    s->bucket = min_i64(s->bucket, FINITE);
    s->credit = min_i64(s->credit, FINITE);
    s->lag = min_i64(s->lag, FINITE);
    return;
  }
  s->bucket = min_i64(s->bucket, is_limited(s) ? bucket_capacity(policy, s) : FINITE); /* a capacity costs a division */
  if (is_active(s)) {
    /* A target of 0 may only mean that the rates are stale. Then the lag is left as it is, which does no harm. */
    s->credit = min_i64(s->credit, earned(lag_bound_ns(policy), s->request_mp));
    if (s->target_mp > 0)
      s->lag = min_i64(s->lag, earned(lag_bound_ns(policy), s->target_mp));
  } else {
    cap_savings(s);
  }
}

/* Let all active shares earn, at their present rates, for the time up to now_ns (STEP_MAX_NS at most). Their debts
 * shrink meanwhile. A time that is not later than the last one changes nothing. */
void sp_accounts_advance(struct sp_policy *policy, uint64_t now_ns) {
  if (policy->stale)
    sp_policy_rates(policy);
  if (now_ns <= policy->updated_ns)
    return;
  uint64_t elapsed_ns = min_u64(now_ns - policy->updated_ns, STEP_MAX_NS);
  policy->updated_ns = now_ns;
  policy->entitled = min_i64(policy->entitled + earned(elapsed_ns, policy->targets_mp), FINITE); /* take_back_loss */
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    s->bucket += earned(elapsed_ns, s->limit_mp);
    s->credit += earned(elapsed_ns, credit_rate(policy, s));
    s->lag += earned(elapsed_ns, s->target_mp);
    if (s->debt > 0) { /* the half of the request that effective_request in rates.c left out */
      s->debt = max_i64(s->debt - earned(elapsed_ns, s->request_mp - s->request_mp / 2), 0);
      policy->stale = policy->stale || s->debt == 0; /* without debt its guarantee is whole again */
    }
    sp_accounts_cap(policy, s);
  }
}

/* Bring the accounts of all active shares to now_ns, and those of this share, active or not. While idle it earns its
 * request, which first repays its debt. Called before the accounts or the state of the share are changed. */
void sp_accounts_bring(struct sp_policy *policy, struct sp_policy_share *s, uint64_t now_ns) {
  sp_accounts_advance(policy, now_ns);
  if (is_active(s))
    return;
  uint64_t elapsed_ns = min_u64(policy->updated_ns - s->updated_ns, STEP_MAX_NS);
  s->updated_ns = policy->updated_ns;
  s->bucket += earned(elapsed_ns, s->limit_mp);
  if (s->debt > 0) { /* the whole request repays it first; a share with request 0 has no debt */
    uint64_t repaid_ns = min_u64(((uint64_t)s->debt + s->request_mp - 1) / s->request_mp, elapsed_ns);
    s->debt = max_i64(s->debt - earned(repaid_ns, s->request_mp), 0);
    elapsed_ns -= repaid_ns;
  }
  if (!s->paused) { /* a paused share only repays its debt */
    s->credit += earned(elapsed_ns, s->request_mp);
    s->lag += earned(elapsed_ns, s->request_mp);
  }
  sp_accounts_cap(policy, s);
}

/* Put the share into the set of active shares, or take it out. Called after any change of waiting, holding, paused or
 * present; does nothing if that leaves the share where it is. A share that moves has rates 0 until all are computed
 * anew (`stale`). */
void sp_accounts_sort(struct sp_policy *policy, int share) {
  struct sp_policy_share *s = &policy->shares[share];
  uint64_t bit = (uint64_t)1 << (share % 64), *word = &policy->active_set[share / 64];
  if (is_active(s) == ((*word & bit) != 0))
    return;
  *word ^= bit;
  s->updated_ns = policy->updated_ns;
  s->guarantee_mp = s->target_mp = 0;
  policy->stale = true;
  if (!is_active(s))
    cap_savings(s);
}

/* Called just before one share is charged `charged` account units. All active shares together have earned
 * policy->entitled since the last charge. What of that exceeds `charged` was lost in hand-offs: it is taken back from
 * them, in proportion to their rates. The loss is signed: if co-granted holders are charged one after the other, the
 * later charge gives back what the earlier one took too much. */
static void take_back_loss(struct sp_policy *policy, int64_t charged) {
  int64_t loss = max_i64(policy->entitled - charged, -LOSS_RETURNED_MAX);
  policy->entitled = 0;
  if (policy->targets_mp == 0)
    return;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    /* A full account may have earned less than it loses here: so no account falls below its lower bound. */
    int64_t lag_floor = min_i64(s->lag, -earned(lag_bound_ns(policy), s->target_mp));
    int64_t credit_floor = min_i64(s->credit, -longest_turn(policy, s));
    s->lag = max_i64(s->lag - scaled(loss, s->target_mp, policy->targets_mp), lag_floor);
    s->credit = max_i64(s->credit - scaled(loss, credit_rate(policy, s), policy->targets_mp), credit_floor);
    sp_accounts_cap(policy, s);
  }
}

/* Keep credit and lag of a share that was just charged above their lower bounds. Lag below its bound becomes debt, if
 * the share has a request; else it is forgotten. */
static void bound_overrun(struct sp_policy *policy, struct sp_policy_share *s) {
  int64_t turn = longest_turn(policy, s);
  /* Surplus that a share has used must not cost it its guarantee later: so its credit stays above minus one turn. */
  s->credit = max_i64(s->credit, -turn);
  int64_t floor = -max_i64(turn, earned(LAG_NS, s->target_mp));
  if (s->lag >= floor)
    return;
  if (s->request_mp > 0) {
    policy->stale = policy->stale || s->debt == 0; /* the first debt halves its guarantee */
    s->debt = min_i64(s->debt + (floor - s->lag), earned(DEBT_MAX_NS, WHOLE));
  }
  s->lag = floor;
}

/* Charge device time to the share; negative: give some back. The caller has brought its accounts to now. */
void sp_accounts_charge(struct sp_policy *policy, struct sp_policy_share *s, int64_t charged_ns) {
  charged_ns = min_i64(max_i64(charged_ns, -(int64_t)STEP_MAX_NS), STEP_MAX_NS);
  if (charged_ns < 0) /* a correction never gives back more than was charged */
    charged_ns = -(int64_t)min_u64((uint64_t)-charged_ns, s->used_ns);
  int64_t charged = charged_ns * WHOLE;
  take_back_loss(policy, charged);
  s->used_ns += (uint64_t)charged_ns;
  policy->used_ns += (uint64_t)charged_ns;
  s->credit -= charged;
  s->lag -= charged;
  /* Whatever exceeds a limit is repaid in full, however long the unit was. The bound only keeps the account finite. */
  s->bucket = max_i64(s->bucket - charged, -FINITE);
  bound_overrun(policy, s);
}

/* Compare two times, account / rate, by cross multiplication: -1, 0, 1 as the first is shorter, equal, longer. A target
 * of 0 (leftovers) counts as the smallest rate. */
static int compare(int64_t a, uint32_t a_mp, int64_t b, uint32_t b_mp) {
  __int128 left = (__int128)a * (b_mp ? b_mp : 1);
  __int128 right = (__int128)b * (a_mp ? a_mp : 1);
  return (left > right) - (left < right);
}

/* -1, 0, 1 as `a` is less, equally or further behind its target than `b`, in time at its rate. */
int sp_accounts_compare(const struct sp_policy_share *a, const struct sp_policy_share *b) {
  return compare(a->lag, a->target_mp, b->lag, b->target_mp);
}

/* -1, 0, 1 as `a` reaches its due lag later than `b`, at the same time, or sooner. */
int sp_accounts_urgency(const struct sp_policy_share *a, const struct sp_policy_share *b) {
  return compare(a->lag - a->due_lag, a->target_mp, b->lag - b->due_lag, b->target_mp);
}

/* The quantum, cut to QUANTUM_MIN_NS..QUANTUM_MAX_NS. */
static uint64_t bounded(uint64_t quantum_ns) {
  return clamp_u64(quantum_ns, QUANTUM_MIN_NS, QUANTUM_MAX_NS);
}

/* The longest that sp_account_quantum can be for the share at the present rates, ns. */
uint64_t sp_account_longest(const struct sp_policy *policy, const struct sp_policy_share *s) {
  uint64_t ordinary_ns = sp_policy_ordinary(policy, s);
  return bounded(ordinary_ns + ordinary_ns / VARIES);
}

/* How long the share's next turn may last (ns), before its limit cuts it: once its residue has ended, its lag should be
 * as far below zero as the due lag is above. So what an earlier turn was too long or too short by is made up for at
 * once. But a turn differs from the ordinary one by a bounded part only: so a share that was idle does not keep the
 * device, and no turn is so short that the hand-off is most of it. */
uint64_t sp_account_quantum(const struct sp_policy *policy, const struct sp_policy_share *s) {
  uint64_t ordinary_ns = sp_policy_ordinary(policy, s), varies_ns = ordinary_ns / VARIES;
  if (s->target_mp == WHOLE)
    return ordinary_ns; /* its lag does not fall in a turn */
  /* In a turn the lag falls at the rate WHOLE - target, from `lag` to -due_lag. */
  int64_t to_end_ns = (s->lag + s->due_lag) / (int64_t)(WHOLE - s->target_mp) - (int64_t)sp_policy_residue(s);
  uint64_t quantum_ns = to_end_ns > 0 ? (uint64_t)to_end_ns : 0;
  return bounded(clamp_u64(quantum_ns, ordinary_ns - varies_ns, ordinary_ns + varies_ns));
}

/* Cancel the lag (as time at the rate) common to all active shares, so that the least is <= 0 and the most >= 0. If all
 * are behind, the device did not give that time. If all are ahead, they used time that no other share wanted, and owe
 * nothing for it. Called before each choice. Shares with target 0 do not count. */
void sp_accounts_cancel_common_lag(struct sp_policy *policy) {
  const struct sp_policy_share *least = NULL;
  const struct sp_policy_share *most = NULL;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    const struct sp_policy_share *s = &policy->shares[i];
    if (s->target_mp == 0)
      continue;
    if (least == NULL || sp_accounts_compare(s, least) < 0)
      least = s;
    if (most == NULL || sp_accounts_compare(s, most) > 0)
      most = s;
  }
  if (least == NULL || (least->lag <= 0 && most->lag >= 0))
    return;
  int64_t common = least->lag > 0 ? least->lag : most->lag;
  uint32_t rate = least->lag > 0 ? least->target_mp : most->target_mp;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    s->lag = max_i64(s->lag - scaled(common, s->target_mp, rate), -FINITE);
  }
}
