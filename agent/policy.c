/*
 * The policy of one device. docs/policy.md states the account in one page; the invariants stand beside the code.
 *
 * Per share two accounts run on the same charges: `credit` earns the request and answers "is it below its request?",
 * `lag` earns the target (request + part of the surplus) and answers "how far behind is it?". A lag common to all
 * active shares is time that the device did not give anyone; it is cancelled (settle), so only differences between
 * shares remain, and hand-off costs, overcommit and rounding never pile up.
 */
#include "policy.h"

#include <string.h>

#include "policy_rates.h"

/* An idle share saves at most its request over this time. Design allows 200 ms; with less than 100 ms nobody waits
 * longer than 100 ms while a share that comes back spends its savings, whatever its request. */
#define SAVED_NS (80 * MS)
/* Lag within this time of target is ordinary rounding; an overrun beyond it is debt. */
#define LAG_NS      (200 * MS)
#define DEBT_MAX_NS (10000 * MS)
/* The on-off period of a share that is held back by its limit alone. */
#define LIMIT_PERIOD_NS (20 * MS)
/* Co-granted holders are charged within this time of each other; a bill further beyond what has passed is wrong. */
#define LOSS_RETURNED_MAX ((int64_t)(1000 * MS * WHOLE))

/* A larger step or charge saturates every account anyway; the cut keeps ns x millipercent far from 2^63. */
#define STEP_MAX_NS (1000000 * MS)
#define FINITE      ((int64_t)(STEP_MAX_NS * WHOLE))

/* `ns` at `rate_mp`, in account units. */
static int64_t earned(uint64_t ns, uint32_t rate_mp) {
  return (int64_t)(ns * rate_mp);
}

/* value x rate / whole, without overflow; rates are below 2^17, so nearly always without the slow division. */
static int64_t scaled(int64_t value, uint32_t rate, uint32_t whole) {
  const int64_t fits = (int64_t)1 << 46;
  if (value < fits && value > -fits)
    return value * (int64_t)rate / (int64_t)whole;
  __int128 result = (__int128)value * rate / whole;
  return result > FINITE ? FINITE : result < -FINITE ? -FINITE : (int64_t)result;
}

static bool is_known(const struct sp_policy *policy, int share) {
  return share >= 0 && share < policy->top && policy->shares[share].present;
}

static bool is_below_request(const struct sp_policy_share *s, int64_t credit) {
  return s->request_mp > 0 && credit >= 0;
}

static bool is_limited(const struct sp_policy_share *s) {
  return s->limit_mp < WHOLE;
}

/* What the bucket must hold before a turn is granted: enough that a share alone runs limit x period, then pauses. */
static int64_t bucket_threshold(const struct sp_policy_share *s) {
  return scaled(earned(LIMIT_PERIOD_NS, s->limit_mp), WHOLE - s->limit_mp, WHOLE);
}

/* Two such turns; among others also what it earns while they take theirs, or waiting for them would lower its limit. */
static int64_t bucket_capacity(const struct sp_policy *policy, const struct sp_policy_share *s) {
  int64_t burst = 2 * bucket_threshold(s);
  return policy->active > 1 ? max_i64(burst, earned(2 * policy->round_ns, s->limit_mp)) : burst;
}

static bool limit_allows(const struct sp_policy_share *s, int64_t bucket) {
  return !is_limited(s) || bucket >= bucket_threshold(s);
}

/* Proportional to the target: a share with a small one gets its turn once a round, too, only a shorter one. A share
 * with a large target takes its part in several turns between those of others, which keeps every short window exact. */
static uint64_t quantum(const struct sp_policy *policy, const struct sp_policy_share *s) {
  uint64_t longest_ns = policy->active > 1 ? max_u64(policy->round_ns / policy->active, QUANTUM_NS) : QUANTUM_MAX_NS;
  return clamp_u64(policy->round_ns * s->target_mp / WHOLE, QUANTUM_MIN_NS, longest_ns);
}

/* A turn as long as it may ordinarily become: kernels are not cut, so its last one may run past the quantum. */
static int64_t longest_turn(const struct sp_policy *policy, const struct sp_policy_share *s) {
  return earned(quantum(policy, s) + min_u64(s->longest_unit_ns, QUANTUM_MAX_NS), WHOLE);
}

/* ---------------------------------------------------------------------------------------------- accounts */

/* How much a waiting share may be behind: the bound of the lag, or two rounds where units make rounds longer. */
static uint64_t lag_bound_ns(const struct sp_policy *policy) {
  return max_u64(LAG_NS, 2 * policy->round_ns);
}

/* The rate at which credit is earned. Alone, a share may use the whole device and owes nothing for it. */
static uint32_t credit_rate(const struct sp_policy *policy, const struct sp_policy_share *s) {
  return policy->active == 1 ? WHOLE : s->guarantee_mp;
}

/* Upper bounds. Not during a turn: what the holder has used is not charged yet, so its accounts only look full. */
static void cap_accounts(const struct sp_policy *policy, struct sp_policy_share *s) {
  if (s->holding) { /* only kept finite, should a caller never charge */
    s->bucket = min_i64(s->bucket, FINITE);
    s->credit = min_i64(s->credit, FINITE);
    s->lag = min_i64(s->lag, FINITE);
    return;
  }
  s->bucket = min_i64(s->bucket, is_limited(s) ? bucket_capacity(policy, s) : FINITE); /* it costs a division */
  if (is_active(s)) {
    /* A target of 0 may only mean that the rates are stale; lag that it cannot earn does no harm. */
    s->credit = min_i64(s->credit, earned(lag_bound_ns(policy), s->request_mp));
    if (s->target_mp > 0)
      s->lag = min_i64(s->lag, earned(lag_bound_ns(policy), s->target_mp));
  } else {
    s->credit = min_i64(s->credit, earned(SAVED_NS, s->request_mp));
    s->lag = min_i64(s->lag, earned(SAVED_NS, s->request_mp));
  }
}

/* Half of the request repays debt while the share is active (work_out_rates halved it), all of it while it idles. */
static void repay(struct sp_policy *policy, struct sp_policy_share *s, uint64_t elapsed_ns) {
  s->debt -= earned(elapsed_ns, is_active(s) ? s->request_mp - s->request_mp / 2 : s->request_mp);
  if (s->debt <= 0) {
    s->debt = 0;
    policy->stale = true;
  }
}

/* Brings all accounts from updated_ns to now_ns at the rates of that time. */
static void advance(struct sp_policy *policy, uint64_t now_ns) {
  if (policy->stale)
    sp_policy_rates(policy);
  if (now_ns <= policy->updated_ns)
    return;
  uint64_t elapsed_ns = min_u64(now_ns - policy->updated_ns, STEP_MAX_NS);
  policy->updated_ns = now_ns;
  policy->entitled = min_i64(policy->entitled + earned(elapsed_ns, policy->targets_mp), FINITE);
  for (int i = 0; i < policy->top; i++) {
    struct sp_policy_share *s = &policy->shares[i];
    if (!s->present)
      continue;
    s->bucket += earned(elapsed_ns, s->limit_mp);
    if (is_active(s)) {
      s->credit += earned(elapsed_ns, credit_rate(policy, s));
      s->lag += earned(elapsed_ns, s->target_mp);
    } else if (!s->paused && s->debt == 0) {
      s->credit += earned(elapsed_ns, s->request_mp);
      s->lag += earned(elapsed_ns, s->request_mp);
    }
    if (s->debt > 0)
      repay(policy, s, elapsed_ns);
    cap_accounts(policy, s);
  }
}

/* Time to which the active shares were entitled and which nobody was charged for went into hand-offs: all of them give
 * it back at their rates. The sum is signed: when co-granted holders are charged one after the other, the later charge
 * returns what the earlier one took too much. */
static void give_back_loss(struct sp_policy *policy, int64_t charged) {
  int64_t loss = max_i64(policy->entitled - charged, -LOSS_RETURNED_MAX);
  policy->entitled = 0;
  if (policy->targets_mp == 0)
    return;
  for (int i = 0; i < policy->top; i++) {
    struct sp_policy_share *s = &policy->shares[i];
    if (!is_active(s))
      continue;
    /* What a share could not earn because its account was full, it does not lose either. */
    int64_t lag_floor = min_i64(s->lag, -earned(lag_bound_ns(policy), s->target_mp));
    int64_t credit_floor = min_i64(s->credit, -longest_turn(policy, s));
    s->lag = max_i64(s->lag - scaled(loss, s->target_mp, policy->targets_mp), lag_floor);
    s->credit = max_i64(s->credit - scaled(loss, credit_rate(policy, s), policy->targets_mp), credit_floor);
    cap_accounts(policy, s);
  }
}

/* Lower bounds of a share that has just been charged. */
static void bound_overrun(struct sp_policy *policy, struct sp_policy_share *s) {
  int64_t turn = longest_turn(policy, s);
  /* What it used of the surplus costs it nothing later: it never owes its guarantee more than one turn. */
  s->credit = max_i64(s->credit, -turn);
  int64_t floor = -max_i64(turn, earned(LAG_NS, s->target_mp));
  if (s->lag >= floor)
    return;
  if (s->request_mp > 0) {
    policy->stale = policy->stale || s->debt == 0;
    s->debt = min_i64(s->debt + (floor - s->lag), earned(DEBT_MAX_NS, WHOLE));
  }
  s->lag = floor;
}

/* -1, 0, 1 as `a` is less, equally or further behind its target than `b`. */
static int compare_behind(const struct sp_policy_share *a, const struct sp_policy_share *b) {
  /* lag / target by cross multiplication; a target of 0 (leftovers) counts as the smallest rate. */
  __int128 left = (__int128)a->lag * (b->target_mp ? b->target_mp : 1);
  __int128 right = (__int128)b->lag * (a->target_mp ? a->target_mp : 1);
  return (left > right) - (left < right);
}

/* Cancels the lag common to all active shares, so that least <= 0 <= most: if all are behind, the device did not give
 * that time; if all are ahead, they used time that nobody else wanted, and owe nothing for it. */
static void settle(struct sp_policy *policy) {
  const struct sp_policy_share *least = NULL;
  const struct sp_policy_share *most = NULL;
  for (int i = 0; i < policy->top; i++) {
    const struct sp_policy_share *s = &policy->shares[i];
    if (!is_active(s) || s->target_mp == 0)
      continue;
    if (least == NULL || compare_behind(s, least) < 0)
      least = s;
    if (most == NULL || compare_behind(s, most) > 0)
      most = s;
  }
  if (least == NULL || (least->lag <= 0 && most->lag >= 0))
    return;
  int64_t common = least->lag > 0 ? least->lag : most->lag;
  uint32_t rate = least->lag > 0 ? least->target_mp : most->target_mp;
  for (int i = 0; i < policy->top; i++) {
    struct sp_policy_share *s = &policy->shares[i];
    if (is_active(s))
      s->lag = max_i64(s->lag - scaled(common, s->target_mp, rate), -FINITE);
  }
}

/* ------------------------------------------------------------------------------------------------ choice */

static uint32_t rule_of(const struct sp_policy_share *s) {
  if (is_below_request(s, s->credit))
    return s->share_class == SP_CLASS_LATENCY ? SP_RULE_LATENCY : SP_RULE_REQUEST;
  return takes_surplus(s) ? SP_RULE_SURPLUS : SP_RULE_LEFTOVER;
}

/* The order of the rules, then who is furthest behind, then who has waited longest. */
static bool goes_before(const struct sp_policy_share *a, const struct sp_policy_share *b) {
  uint32_t rule_a = rule_of(a);
  uint32_t rule_b = rule_of(b);
  if (rule_a != rule_b)
    return rule_a < rule_b;
  int behind = compare_behind(a, b);
  return behind != 0 ? behind > 0 : a->waiting_since_ns < b->waiting_since_ns;
}

struct sp_choice sp_policy_next(struct sp_policy *policy, uint64_t now_ns) {
  struct sp_choice choice = {.share = -1, .quantum_ns = 0, .retry_ns = UINT64_MAX, .rule = SP_RULE_NONE};
  advance(policy, now_ns);
  if (policy->stale)
    sp_policy_rates(policy);
  settle(policy);
  policy->decisions++;
  struct sp_policy_share *best = NULL;
  for (int i = 0; i < policy->top; i++) {
    struct sp_policy_share *s = &policy->shares[i];
    if (!s->present || !s->waiting || s->holding || s->paused)
      continue;
    cap_accounts(policy, s);
    if (!limit_allows(s, s->bucket)) {
      uint64_t missing = (uint64_t)(bucket_threshold(s) - s->bucket);
      uint64_t refill_ns = (missing + s->limit_mp - 1) / s->limit_mp;
      choice.retry_ns = min_u64(choice.retry_ns, policy->updated_ns + refill_ns);
    } else if (best == NULL || goes_before(s, best)) {
      best = s;
      choice.share = i;
    }
  }
  if (best == NULL)
    return choice;
  choice.retry_ns = UINT64_MAX;
  choice.quantum_ns = quantum(policy, best);
  if (is_limited(best)) /* the bucket goes on filling during the turn, so it lasts bucket / (100 % - limit) */
    choice.quantum_ns = min_u64(choice.quantum_ns, (uint64_t)best->bucket / (WHOLE - best->limit_mp));
  choice.rule = rule_of(best);
  best->rule = choice.rule;
  best->holding = true; /* waiting -> holding: the active set, and with it the rates, stay */
  best->waiting = false;
  return choice;
}

/* Somebody waits who is below its request and may run. */
static bool request_waits(const struct sp_policy *policy) {
  for (int i = 0; i < policy->top; i++) {
    const struct sp_policy_share *s = &policy->shares[i];
    if (s->present && s->waiting && !s->holding && !s->paused && is_below_request(s, s->credit) &&
        limit_allows(s, s->bucket))
      return true;
  }
  return false;
}

uint64_t sp_policy_quantum(struct sp_policy *policy, int share, uint64_t now_ns) {
  if (!is_known(policy, share))
    return QUANTUM_MIN_NS;
  advance(policy, now_ns);
  if (policy->stale)
    sp_policy_rates(policy);
  const struct sp_policy_share *s = &policy->shares[share];
  if (!is_below_request(s, s->credit) && request_waits(policy))
    return QUANTUM_MIN_NS;
  return quantum(policy, s);
}

bool sp_policy_preempts(const struct sp_policy *policy, int waiter, int holder, uint64_t now_ns) {
  if (!is_known(policy, waiter) || !is_known(policy, holder) || waiter == holder)
    return false;
  const struct sp_policy_share *s = &policy->shares[waiter];
  const struct sp_policy_share *h = &policy->shares[holder];
  if (!s->waiting || s->holding || s->paused || s->share_class != SP_CLASS_LATENCY)
    return false;
  uint64_t elapsed_ns = now_ns > policy->updated_ns ? min_u64(now_ns - policy->updated_ns, STEP_MAX_NS) : 0;
  if (!h->holding || !limit_allows(s, s->bucket + earned(elapsed_ns, s->limit_mp)))
    return false;
  /* Leftovers are for when nobody else waits: even for its surplus a latency share need not wait for them. */
  if (h->rule == SP_RULE_LEFTOVER)
    return takes_surplus(s);
  return h->rule != SP_RULE_LATENCY && is_below_request(s, s->credit + earned(elapsed_ns, s->request_mp));
}

/* ------------------------------------------------------------------------------------------------ events */

void sp_policy_init(struct sp_policy *policy) {
  memset(policy, 0, sizeof *policy);
  policy->stale = true;
}

static void set_terms(struct sp_policy_share *s, uint32_t request_mp, uint32_t limit_mp, uint32_t share_class) {
  s->limit_mp = limit_mp < 1 ? 1 : limit_mp > WHOLE ? WHOLE : limit_mp;
  s->request_mp = request_mp > s->limit_mp ? s->limit_mp : request_mp;
  s->share_class = share_class > SP_CLASS_BATCH ? SP_CLASS_BATCH : share_class;
}

int sp_policy_add(struct sp_policy *policy, uint32_t request_mp, uint32_t limit_mp, uint32_t share_class,
                  uint64_t now_ns) {
  advance(policy, now_ns);
  for (int i = 0; i < SP_POLICY_SHARES; i++) {
    struct sp_policy_share *s = &policy->shares[i];
    if (s->present)
      continue;
    memset(s, 0, sizeof *s);
    s->present = true;
    set_terms(s, request_mp, limit_mp, share_class);
    s->bucket = bucket_threshold(s);
    if (policy->top <= i)
      policy->top = i + 1;
    policy->stale = true;
    return i;
  }
  return -1;
}

void sp_policy_update(struct sp_policy *policy, int share, uint32_t request_mp, uint32_t limit_mp, uint32_t share_class,
                      uint64_t now_ns) {
  if (!is_known(policy, share))
    return;
  advance(policy, now_ns);
  struct sp_policy_share *s = &policy->shares[share];
  bool was_limited = is_limited(s);
  set_terms(s, request_mp, limit_mp, share_class);
  if (!was_limited) /* the bucket of an unlimited share means nothing */
    s->bucket = bucket_threshold(s);
  if (s->request_mp == 0)
    s->debt = 0;
  cap_accounts(policy, s);
  policy->stale = true;
}

void sp_policy_remove(struct sp_policy *policy, int share, uint64_t now_ns) {
  if (!is_known(policy, share))
    return;
  advance(policy, now_ns);
  memset(&policy->shares[share], 0, sizeof policy->shares[share]);
  while (policy->top > 0 && !policy->shares[policy->top - 1].present)
    policy->top--;
  policy->stale = true;
}

void sp_policy_pause(struct sp_policy *policy, int share, bool paused, uint64_t now_ns) {
  if (!is_known(policy, share) || policy->shares[share].paused == paused)
    return;
  advance(policy, now_ns);
  policy->shares[share].paused = paused;
  if (paused)
    cap_accounts(policy, &policy->shares[share]);
  policy->stale = true;
}

void sp_policy_wait(struct sp_policy *policy, int share, bool waiting, uint64_t now_ns) {
  if (!is_known(policy, share) || policy->shares[share].waiting == waiting)
    return;
  advance(policy, now_ns);
  struct sp_policy_share *s = &policy->shares[share];
  s->waiting = waiting;
  if (waiting)
    s->waiting_since_ns = policy->updated_ns;
  else
    cap_accounts(policy, s);
  if (!s->holding)
    policy->stale = true;
}

void sp_policy_charge(struct sp_policy *policy, int share, uint64_t used_ns, uint64_t now_ns) {
  if (!is_known(policy, share))
    return;
  advance(policy, now_ns);
  struct sp_policy_share *s = &policy->shares[share];
  used_ns = min_u64(used_ns, STEP_MAX_NS);
  int64_t charged = earned(used_ns, WHOLE);
  give_back_loss(policy, charged);
  s->used_ns += used_ns;
  policy->used_ns += used_ns;
  s->credit -= charged;
  s->lag -= charged;
  /* A limit is repaid in full, however long the unit was; the bound only keeps the account finite. */
  s->bucket = max_i64(s->bucket - charged, -FINITE);
  bound_overrun(policy, s);
}

void sp_policy_end(struct sp_policy *policy, int share, uint64_t now_ns) {
  if (!is_known(policy, share) || !policy->shares[share].holding)
    return;
  advance(policy, now_ns);
  policy->shares[share].holding = false;
  cap_accounts(policy, &policy->shares[share]);
  if (!is_active(&policy->shares[share]))
    policy->stale = true;
}

uint64_t sp_policy_unit(struct sp_policy *policy, int share, uint64_t longest_unit_ns) {
  if (!is_known(policy, share))
    return QUANTUM_MIN_NS;
  struct sp_policy_share *s = &policy->shares[share];
  if (s->longest_unit_ns != longest_unit_ns) {
    s->longest_unit_ns = longest_unit_ns;
    policy->round_ns = sp_policy_round(policy);
  }
  return quantum(policy, s);
}

/* -------------------------------------------------------------------------------------------- validation */

static bool share_is_valid(const struct sp_policy *policy, const struct sp_policy_share *s) {
  if (s->request_mp > s->limit_mp || s->limit_mp < 1 || s->limit_mp > WHOLE || s->share_class > SP_CLASS_BATCH)
    return false;
  if (s->debt < 0 || s->debt > earned(DEBT_MAX_NS, WHOLE) || (s->debt > 0 && s->request_mp == 0))
    return false;
  if (!policy->stale && (s->guarantee_mp > s->target_mp || s->target_mp > s->limit_mp))
    return false;
  if (!policy->stale && !is_active(s) && s->target_mp > 0)
    return false;
  return s->used_ns <= policy->used_ns;
}

bool sp_policy_valid(const struct sp_policy *policy) {
  uint64_t targets_mp = 0;
  uint64_t used_ns = 0;
  if (policy->top < 0 || policy->top > SP_POLICY_SHARES)
    return false;
  for (int i = 0; i < SP_POLICY_SHARES; i++) {
    const struct sp_policy_share *s = &policy->shares[i];
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
