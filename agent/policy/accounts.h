/* The accounts: what a share has earned and used, and from that the quantum of its next turn. For policy.c alone;
 * docs/policy.md has the formulas. */
#ifndef SHAREPOD_POLICY_ACCOUNTS_H
#define SHAREPOD_POLICY_ACCOUNTS_H

#include "agent/policy/rates.h"

#define DEBT_MAX_NS (10000 * MS)
/* One step of time, or one charge, counts as this much at most. Accounts are full long before; the cut keeps
 * ns x millipercent far from 2^63. */
#define STEP_MAX_NS (1000000 * MS)
#define ACCOUNT_MAX ((int64_t)(STEP_MAX_NS * WHOLE))

/* What `ns` earn at `rate_mp`, in account units (ns x millipercent). */
static inline int64_t earned(uint64_t ns, uint32_t rate_mp) {
  return (int64_t)(ns * rate_mp);
}

/* Has the share a limit, and so a bucket? */
static inline bool is_limited(const struct sp_policy_share *s) {
  return s->limit_mp < WHOLE;
}

/* Let all active shares earn, at their present rates, for the time up to now_ns. */
void sp_accounts_advance(struct sp_policy *policy, uint64_t now_ns);
/* Bring the accounts of this share and of all active shares to now_ns. Called before the share's accounts are changed,
 * and before it becomes active. */
void sp_accounts_bring(struct sp_policy *policy, struct sp_policy_share *s, uint64_t now_ns);
/* Put the share into the set of active shares, or take it out. Called after any change of waiting, holding, paused or
 * present. A share that moves begins with rates 0, and the rates of all are computed anew. */
void sp_accounts_note_active(struct sp_policy *policy, int share);
/* Keep a share's accounts below their upper bounds. */
void sp_accounts_cap(const struct sp_policy *policy, struct sp_policy_share *s);
/* Charge device time to the share; negative: give some back. The caller has brought its accounts to now. */
void sp_accounts_charge(struct sp_policy *policy, struct sp_policy_share *s, int64_t charged_ns);
/* Cancel the lag common to all active shares. */
void sp_accounts_cancel_common_lag(struct sp_policy *policy);
/* -1, 0, 1 as `a` is less, equally or further behind its target than `b`, in time at its rate. */
int sp_accounts_compare(const struct sp_policy_share *a, const struct sp_policy_share *b);

/* -1, 0, 1 as `a` reaches its due lag later than `b`, at the same time, or sooner. */
int sp_accounts_urgency(const struct sp_policy_share *a, const struct sp_policy_share *b);

/* How long the share's next turn may last (ns) before its limit cuts it: about the ordinary quantum; longer if it is
 * behind. */
uint64_t sp_account_quantum(const struct sp_policy *policy, const struct sp_policy_share *s);
/* … and the longest that it can be at the present rates. */
uint64_t sp_account_longest(const struct sp_policy *policy, const struct sp_policy_share *s);
/* What the limit's bucket must hold before a turn is granted, in account units. */
int64_t sp_account_threshold(const struct sp_policy_share *s);

#endif
