/*
 * The rates of one device: each active share's guarantee, its target (which includes its part of the surplus), and the
 * length of a round of turns. docs/policy.md has the formulas. Rates and weights are in millipercent (WHOLE is 100 %);
 * a share is active while it waits or holds a turn.
 */
#include "agent/policy/rates.h"

/* Request 0 has no weight of its own; among the leftovers it counts as 1 %. */
#define LEFTOVER_WEIGHT_MP 1000u

/* What the guarantees leave over is offered to the tiers in this order. The shares of a tier divide it; what their
 * limits do not let them take goes to the next tier. */
enum tier { TIER_SURPLUS, TIER_INDEBTED, TIER_LEFTOVER, TIER_NONE, TIER_COUNT };

/* The tier in which the share gets a part of what the guarantees leave over. A paused share gets none, although it is
 * active while its last work runs: the scheduler may have promised that time to other shares. */
static enum tier tier_of(const struct sp_policy_share *s) {
  if (s->paused)
    return TIER_NONE;
  if (!takes_surplus(s))
    return TIER_LEFTOVER;
  return s->debt > 0 ? TIER_INDEBTED : TIER_SURPLUS;
}

/* The share's weight when its tier divides its part: its request; but in TIER_LEFTOVER at least LEFTOVER_WEIGHT_MP. */
static uint32_t weight_of(const struct sp_policy_share *s) {
  return s->request_mp > LEFTOVER_WEIGHT_MP || takes_surplus(s) ? s->request_mp : LEFTOVER_WEIGHT_MP;
}

/* Divide `left_mp` among the active shares of one tier: raise their targets in proportion to weight, none above its
 * share's limit. Each pass of the loop either fills at least one share up to its limit, or is the last. Returns what is
 * left for the next tier. */
static uint32_t fill_tier(struct sp_policy *policy, enum tier tier, uint32_t left_mp) {
  while (left_mp > 0) {
    uint64_t weight_sum = 0;
    for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
      const struct sp_policy_share *s = &policy->shares[i];
      if (tier_of(s) == tier && s->target_mp < s->limit_mp)
        weight_sum += weight_of(s);
    }
    if (weight_sum == 0)
      return left_mp;
    uint32_t filled_mp = 0;
    for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
      struct sp_policy_share *s = &policy->shares[i];
      if (tier_of(s) != tier || s->target_mp >= s->limit_mp)
        continue;
      uint32_t room_mp = s->limit_mp - s->target_mp;
      if ((uint64_t)left_mp * weight_of(s) >= (uint64_t)room_mp * weight_sum) { /* its part fills it */
        s->target_mp = s->limit_mp;
        filled_mp += room_mp;
      }
    }
    left_mp -= filled_mp; /* >= 0: the test above does not round */
    if (filled_mp > 0)
      continue;
    for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
      struct sp_policy_share *s = &policy->shares[i];
      if (tier_of(s) == tier && s->target_mp < s->limit_mp)
        s->target_mp += (uint32_t)((uint64_t)left_mp * weight_of(s) / weight_sum);
    }
    return 0; /* at most one millipercent per share is lost to rounding */
  }
  return 0;
}

/* The part of the request that counts for the guarantee: none while paused; half in debt, as the rest repays it. */
static uint32_t effective_request(const struct sp_policy_share *s) {
  if (s->paused)
    return 0;
  return s->debt > 0 ? s->request_mp / 2 : s->request_mp;
}

/* The share's ordinary quantum (ns). It is proportional to the target: so a share with a small target gets a turn in
 * every round, but a short one. A share with a large target has several turns in a round, with turns of other shares in
 * between: so every share gets its part even in a short window. */
uint64_t sp_policy_ordinary(const struct sp_policy *policy, const struct sp_policy_share *s) {
  return clamp_u64(policy->round_ns * s->target_mp / WHOLE, QUANTUM_MIN_NS, policy->longest_ns);
}

/* How long work ordinarily runs after the end of the share's turn (ns): half its longest unit, because kernels are not
 * cut; at least RESIDUE_NS. */
uint64_t sp_policy_residue(const struct sp_policy_share *s) {
  return clamp_u64(s->longest_unit_ns / 2, RESIDUE_NS, QUANTUM_MAX_NS);
}

/* Set the length of a round of turns: active shares x base. Then set what depends on it: the longest ordinary quantum
 * and the due lags. The base is at least half the longest unit, because a turn lasts at least one unit. A whole unit
 * would be too much: a turn with work in flight at its end would last two. */
void sp_policy_round(struct sp_policy *policy) {
  uint64_t base_ns = policy->latency_present ? BASE_LATENCY_NS : BASE_NS;
  uint64_t unit_ns = 0;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1))
    unit_ns = max_u64(unit_ns, policy->shares[i].longest_unit_ns);
  uint64_t turns = max_u64(policy->active, 2); /* a share that is alone has turns of two base quanta */
  base_ns = min_u64(base_ns, max_u64(ROUND_NS / turns, QUANTUM_MIN_NS));
  unit_ns = min_u64(unit_ns / 2, QUANTUM_MAX_NS);
  policy->round_ns = turns * max_u64(base_ns, unit_ns);
  policy->longest_ns = policy->active > 1 ? max_u64(unit_ns, QUANTUM_NS) : QUANTUM_MAX_NS;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    s->due_lag = (int64_t)((sp_policy_ordinary(policy, s) + sp_policy_residue(s)) * (WHOLE - s->target_mp) / 2);
  }
}

/* Compute guarantees, targets, the round and due lags from the terms of the active shares. Called when `stale` says
 * that they or the active set have changed. */
void sp_policy_rates(struct sp_policy *policy) {
  uint64_t requests_mp = 0;
  policy->active = 0;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    policy->active++;
    requests_mp += effective_request(&policy->shares[i]);
  }
  uint32_t left_mp = WHOLE;
  bool has_shares[TIER_COUNT] = {false}; /* by tier */
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    has_shares[tier_of(s)] = true;
    uint64_t request_mp = effective_request(s);
    s->guarantee_mp = (uint32_t)(requests_mp > WHOLE ? request_mp * WHOLE / requests_mp : request_mp);
    s->target_mp = s->guarantee_mp;
    left_mp -= s->guarantee_mp;
  }
  for (int tier = 0; tier < TIER_NONE; tier++)
    if (has_shares[tier])
      left_mp = fill_tier(policy, (enum tier)tier, left_mp);
  policy->targets_mp = 0;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1))
    policy->targets_mp += policy->shares[i].target_mp;
  sp_policy_round(policy);
  policy->stale = false;
}
