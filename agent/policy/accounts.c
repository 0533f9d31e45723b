/*
 * The accounts of the policy: each share's credit, lag, bucket and debt. The accounts of active shares all stand at
 * policy.updated_ns. The accounts of an idle share stand at its own updated_ns, and are brought up to date only when
 * they are needed: so a node with many idle shares decides as fast as one without.
 *
 * struct sp_policy_share in policy.h says what each account means. All are in account units: ns x millipercent (WHOLE
 * is 100 %), what `earned` returns. A share is active while it waits or holds a turn; `s` is a share of `policy`.
 */
#include "agent/policy/accounts.h"

#include <stddef.h>

/* An idle share saves at most its request over this time. It is below 100 ms: so no other share waits longer than
 * 100 ms while a share that comes back spends its savings, whatever its request is. */
#define SAVED_NS (75 * MS)
/* A share may be behind or ahead of its target by this much time, at the rate of the target: kernels are not cut. To be
 * further ahead is an overrun, which becomes debt. */
#define LAG_NS (200 * MS)
/* A share that only its limit holds back runs and pauses with this period. */
#define LIMIT_PERIOD_NS (20 * MS)
/* A turn differs from the ordinary quantum by at most a fifth of it. */
#define VARIES_ONE_IN 5
/* The most that take_back_loss gives back at once. Co-granted holders are charged within a second of each other: so a
 * charge that exceeds the time passed by more than that is wrong. */
#define LOSS_RETURNED_MAX ((int64_t)(1000 * MS * WHOLE))

/* value x rate / whole, cut to +-ACCOUNT_MAX. Rates are below 2^17: so a value below 2^46 needs no division of 128
 * bits. */
static int64_t scaled(int64_t value, uint32_t rate, uint32_t whole) {
  const int64_t small = (int64_t)1 << 46;
  if (value < small && value > -small)
    return value * (int64_t)rate / (int64_t)whole;
  __int128 result = (__int128)value * rate / whole;
  return result > ACCOUNT_MAX ? ACCOUNT_MAX : result < -ACCOUNT_MAX ? -ACCOUNT_MAX : (int64_t)result;
}

/* What the bucket must hold before a turn is granted, in account units; 0 without a limit. With this much, a share that
 * is alone runs for limit x LIMIT_PERIOD_NS, then pauses for the rest of the period. */
int64_t sp_account_threshold(const struct sp_policy_share *s) {
  return scaled(earned(LIMIT_PERIOD_NS, s->limit_mp), WHOLE - s->limit_mp, WHOLE);
}

/* The most that the share's bucket keeps, in account units: twice the threshold. Beside other active shares it is at
 * least what the limit lets in during two rounds, because the share cannot spend anything during their turns. */
static int64_t bucket_capacity(const struct sp_policy *policy, const struct sp_policy_share *s) {
  int64_t two_turns = 2 * sp_account_threshold(s);
  return policy->active > 1 ? max_i64(two_turns, earned(2 * policy->round_ns, s->limit_mp)) : two_turns;
}

/* The most that a turn of the share ordinarily uses, in account units: its ordinary quantum and one unit, because
 * kernels are not cut. */
static int64_t longest_turn(const struct sp_policy *policy, const struct sp_policy_share *s) {
  return earned(sp_policy_ordinary(policy, s) + min_u64(s->longest_unit_ns, QUANTUM_MAX_NS), WHOLE);
}

/* How far behind its target a share may be (ns, at its rate): LAG_NS, or two rounds if long units make these longer. */
static uint64_t lag_bound_ns(const struct sp_policy *policy) {
  return max_u64(LAG_NS, 2 * policy->round_ns);
}

/* The rate at which an active share earns credit. While it is the only active one, that is 100 %: so its use costs it
 * no credit. */
static uint32_t credit_rate(const struct sp_policy *policy, const struct sp_policy_share *s) {
  return policy->active == 1 ? WHOLE : s->guarantee_mp;
}

/* Cap the credit and the lag of a share that is not active: it saves at most its request over SAVED_NS. */
static void cap_savings(struct sp_policy_share *s) {
  s->credit = min_i64(s->credit, earned(SAVED_NS, s->request_mp));
  s->lag = min_i64(s->lag, earned(SAVED_NS, s->request_mp));
}

/* Cut the share's accounts to their upper bounds. Called whenever they may have grown. A holder's accounts only look
 * full, because its use is not charged yet: so they are cut only at ACCOUNT_MAX, in case a caller never charges. */
void sp_accounts_cap(const struct sp_policy *policy, struct sp_policy_share *s) {
  if (s->holding) {
    s->bucket = min_i64(s->bucket, ACCOUNT_MAX);
    s->credit = min_i64(s->credit, ACCOUNT_MAX);
    s->lag = min_i64(s->lag, ACCOUNT_MAX);
    return;
  }
  /* Only with a limit, because a capacity costs a division. */
  s->bucket = min_i64(s->bucket, is_limited(s) ? bucket_capacity(policy, s) : ACCOUNT_MAX);
  if (is_active(s)) {
    s->credit = min_i64(s->credit, earned(lag_bound_ns(policy), s->request_mp));
    if (s->target_mp > 0) /* 0 may only mean that the rates are stale: then the lag is cut later */
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
  /* For take_back_loss, at the next charge. */
  policy->entitled = min_i64(policy->entitled + earned(elapsed_ns, policy->targets_mp), ACCOUNT_MAX);
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    s->bucket += earned(elapsed_ns, s->limit_mp);
    s->credit += earned(elapsed_ns, credit_rate(policy, s));
    s->lag += earned(elapsed_ns, s->target_mp);
    if (s->debt > 0) { /* repaid by the half of the request that effective_request in rates.c leaves out */
      s->debt = max_i64(s->debt - earned(elapsed_ns, s->request_mp - s->request_mp / 2), 0);
      policy->stale = policy->stale || s->debt == 0; /* without debt its guarantee is whole again */
    }
    sp_accounts_cap(policy, s);
  }
}

/* Bring the accounts of this share and of all active shares to now_ns. Called before the accounts or the state of the
 * share are changed. An idle share has earned its request since its updated_ns; that first repays its debt. */
void sp_accounts_bring(struct sp_policy *policy, struct sp_policy_share *s, uint64_t now_ns) {
  sp_accounts_advance(policy, now_ns);
  if (is_active(s))
    return;
  uint64_t elapsed_ns = min_u64(policy->updated_ns - s->updated_ns, STEP_MAX_NS);
  s->updated_ns = policy->updated_ns;
  s->bucket += earned(elapsed_ns, s->limit_mp); /* while paused, too */
  if (s->debt > 0) {                            /* only a share with a request can have debt */
    uint64_t repaying_ns = min_u64(((uint64_t)s->debt + s->request_mp - 1) / s->request_mp, elapsed_ns);
    s->debt = max_i64(s->debt - earned(repaying_ns, s->request_mp), 0);
    elapsed_ns -= repaying_ns;
  }
  if (!s->paused) { /* a paused share earns neither credit nor lag */
    s->credit += earned(elapsed_ns, s->request_mp);
    s->lag += earned(elapsed_ns, s->request_mp);
  }
  sp_accounts_cap(policy, s);
}

/* Put the share into the set of active shares, or take it out, if it has become active or idle. Called after any change
 * of waiting, holding, paused or present. A share that moves has rates 0 until all are computed anew (`stale`). */
void sp_accounts_note_active(struct sp_policy *policy, int share) {
  struct sp_policy_share *s = &policy->shares[share];
  uint64_t bit = (uint64_t)1 << (share % 64), *word = &policy->active_set[share / 64];
  if (is_active(s) == ((*word & bit) != 0))
    return; /* it stays where it is */
  *word ^= bit;
  s->updated_ns = policy->updated_ns;
  s->guarantee_mp = s->target_mp = 0;
  policy->stale = true;
  if (!is_active(s))
    cap_savings(s);
}

/* Called just before one share is charged `charged` account units. Since the last charge all active shares together
 * have earned policy->entitled. What exceeds `charged` was lost in hand-offs: it is taken back from all of them, in
 * proportion to their rates. A negative loss is given back: if co-granted holders are charged one after the other, the
 * first charge seems to leave a loss, and the second one shows that it was none. */
static void take_back_loss(struct sp_policy *policy, int64_t charged) {
  int64_t loss = max_i64(policy->entitled - charged, -LOSS_RETURNED_MAX);
  policy->entitled = 0;
  if (policy->targets_mp == 0)
    return;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    /* An account that was full may have earned less than it loses here. So none falls below its lower bound. */
    int64_t lag_floor = min_i64(s->lag, -earned(lag_bound_ns(policy), s->target_mp));
    int64_t credit_floor = min_i64(s->credit, -longest_turn(policy, s));
    s->lag = max_i64(s->lag - scaled(loss, s->target_mp, policy->targets_mp), lag_floor);
    s->credit = max_i64(s->credit - scaled(loss, credit_rate(policy, s), policy->targets_mp), credit_floor);
    sp_accounts_cap(policy, s);
  }
}

/* Keep the share's credit and lag above their lower bounds. Called just after a charge. If the share has a request, the
 * lag below the bound becomes debt. If it has none, that lag is forgotten. */
static void bound_overrun(struct sp_policy *policy, struct sp_policy_share *s) {
  int64_t turn = longest_turn(policy, s);
  /* A share may use surplus. That must not cost it its guarantee later: so its credit stays above minus one turn. */
  s->credit = max_i64(s->credit, -turn);
  /* To be ahead by one turn, or by LAG_NS at the target, is ordinary, because kernels are not cut. */
  int64_t lag_floor = -max_i64(turn, earned(LAG_NS, s->target_mp));
  if (s->lag >= lag_floor)
    return;
  if (s->request_mp > 0) {
    policy->stale = policy->stale || s->debt == 0; /* the first debt halves its guarantee: all rates change */
    s->debt = min_i64(s->debt + (lag_floor - s->lag), earned(DEBT_MAX_NS, WHOLE));
  }
  s->lag = lag_floor;
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
  /* No other lower bound: what exceeds a limit is repaid in full, however long the unit was. */
  s->bucket = max_i64(s->bucket - charged, -ACCOUNT_MAX);
  bound_overrun(policy, s);
}

/* Compare the times a / a_mp and b / b_mp, by cross multiplication: -1, 0, 1 as the first is shorter, equal, longer. A
 * rate of 0 (the target of leftovers) counts as the smallest one. */
static int compare_times(int64_t a, uint32_t a_mp, int64_t b, uint32_t b_mp) {
  __int128 left = (__int128)a * (b_mp ? b_mp : 1);
  __int128 right = (__int128)b * (a_mp ? a_mp : 1);
  return (left > right) - (left < right);
}

/* -1, 0, 1 as `a` is less, equally or further behind its target than `b`, in time at its rate. */
int sp_accounts_compare(const struct sp_policy_share *a, const struct sp_policy_share *b) {
  return compare_times(a->lag, a->target_mp, b->lag, b->target_mp);
}

/* -1, 0, 1 as `a` reaches its due lag later than `b`, at the same time, or sooner. */
int sp_accounts_urgency(const struct sp_policy_share *a, const struct sp_policy_share *b) {
  return compare_times(a->lag - a->due_lag, a->target_mp, b->lag - b->due_lag, b->target_mp);
}

/* The quantum, cut to QUANTUM_MIN_NS..QUANTUM_MAX_NS. */
static uint64_t bounded_quantum(uint64_t quantum_ns) {
  return clamp_u64(quantum_ns, QUANTUM_MIN_NS, QUANTUM_MAX_NS);
}

/* The longest that sp_account_quantum can be for the share at the present rates, ns. */
uint64_t sp_account_longest(const struct sp_policy *policy, const struct sp_policy_share *s) {
  uint64_t ordinary_ns = sp_policy_ordinary(policy, s);
  return bounded_quantum(ordinary_ns + ordinary_ns / VARIES_ONE_IN);
}

/* How long the share's next turn may last (ns), before its limit cuts it. When the turn's residue has ended, the lag
 * should be -due_lag: so the next turn makes up for one that was too long or too short. But a turn differs from the
 * ordinary one by at most one part in VARIES_ONE_IN: so a share that was idle does not keep the device for long, and no
 * turn is so short that the hand-off is most of it. */
uint64_t sp_account_quantum(const struct sp_policy *policy, const struct sp_policy_share *s) {
  uint64_t ordinary_ns = sp_policy_ordinary(policy, s), most_off_ns = ordinary_ns / VARIES_ONE_IN;
  if (s->target_mp == WHOLE)
    return ordinary_ns; /* its lag does not fall in a turn */
  /* In a turn the lag falls at the rate WHOLE - target, from `lag` to -due_lag. */
  int64_t wanted_ns = (s->lag + s->due_lag) / (int64_t)(WHOLE - s->target_mp) - (int64_t)sp_policy_residue(s);
  uint64_t quantum_ns = wanted_ns > 0 ? (uint64_t)wanted_ns : 0;
  return bounded_quantum(clamp_u64(quantum_ns, ordinary_ns - most_off_ns, ordinary_ns + most_off_ns));
}

/* Cancel the lag that all active shares have in common, as time at their rates: then the least lag is <= 0, the most
 * >= 0. If all were behind, the device gave that time to none. If all were ahead, they used time that no other share
 * wanted, and owe nothing for it. Called before each choice. Shares with target 0 do not count. */
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
  const struct sp_policy_share *nearest = least->lag > 0 ? least : most; /* to its target: its lag becomes 0 */
  int64_t common = nearest->lag;
  uint32_t rate = nearest->target_mp;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    s->lag = max_i64(s->lag - scaled(common, s->target_mp, rate), -ACCOUNT_MAX);
  }
}
