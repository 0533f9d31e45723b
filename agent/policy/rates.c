/*
 * The rates of one device: each active share's guarantee, its target (which includes its part of the surplus), and the
 * length of a round of turns. docs/policy.md has the formulas. Rates and weights are in millipercent (WHOLE is 100 %);
 * a share is active while it waits or holds a turn.
 */
#include "agent/policy/rates.h"

/* Request 0 has no weight of its own; among the leftovers it counts as 1 %. */
#define LEFTOVER_WEIGHT_MP 1000u

/* What the guarantees leave over goes to the tiers in this order; the shares of one tier divide its part. */
enum tier { TIER_SURPLUS, TIER_INDEBTED, TIER_LEFTOVER, TIER_NONE, TIER_COUNT };

/* The tier in which the share gets a part of what the guarantees leave over. A paused share is active while its last
 * work runs, but it earns nothing: the scheduler may have promised the request of a paused share to others as well, so
 * earning would lower their guarantees. */
static enum tier tier_of(const struct sp_policy_share *s) {
  if (s->paused)
    return TIER_NONE;
  if (!takes_surplus(s))
    return TIER_LEFTOVER;
  return s->debt > 0 ? TIER_INDEBTED : TIER_SURPLUS;
}

/* The share's weight when its tier's part is divided: its request, among the leftovers at least LEFTOVER_WEIGHT_MP. */
static uint32_t weight_of(const struct sp_policy_share *s) {
  return s->request_mp > LEFTOVER_WEIGHT_MP || takes_surplus(s) ? s->request_mp : LEFTOVER_WEIGHT_MP;
}

/* Divide `left` millipercent among the active shares of one tier: raise their targets in proportion to weight, none
 * above its share's limit. Each pass either fills at least one share up to its limit, or is the last. Returns what is
 * left for the next tier. */
static uint32_t fill_tier(struct sp_policy *policy, enum tier tier, uint32_t left) {
  while (left > 0) {
    uint64_t weights = 0;
    for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
      const struct sp_policy_share *s = &policy->shares[i];
      if (tier_of(s) == tier && s->target_mp < s->limit_mp)
        weights += weight_of(s);
    }
    if (weights == 0)
      return left;
    uint32_t filled = 0;
    for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
      struct sp_policy_share *s = &policy->shares[i];
      if (tier_of(s) != tier || s->target_mp >= s->limit_mp)
        continue;
      uint32_t room = s->limit_mp - s->target_mp;
      if ((uint64_t)left * weight_of(s) >= (uint64_t)room * weights) {
        s->target_mp = s->limit_mp;
        filled += room;
      }
    }
    /* The test above does not round, so the shares that were filled never got more than what was left. */
    left -= filled;
    if (filled > 0)
      continue;
    uint32_t before = left;
    for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
      struct sp_policy_share *s = &policy->shares[i];
      if (tier_of(s) != tier || s->target_mp >= s->limit_mp)
        continue;
      uint32_t part = (uint32_t)((uint64_t)before * weight_of(s) / weights);
      s->target_mp += part;
      left -= part;
    }
    return 0; /* at most one millipercent per share is lost to rounding */
  }
  return 0;
}

/* The part of the request that counts for the guarantee: none while paused; half in debt, for the rest repays that. */
static uint32_t effective_request(const struct sp_policy_share *s) {
  if (s->paused)
    return 0;
  return s->debt > 0 ? s->request_mp / 2 : s->request_mp;
}

/* The ordinary quantum is proportional to the target: a share with a small target gets a turn in every round, too, but
 * a shorter one. A share with a large target has several turns in a round, between those of others, which keeps every
 * short window exact. */
uint64_t sp_policy_ordinary(const struct sp_policy *policy, const struct sp_policy_share *s) {
  return clamp_u64(policy->round_ns * s->target_mp / WHOLE, QUANTUM_MIN_NS, policy->longest_ns);
}

/* How long work ordinarily runs after the end of the share's turn (ns): half its longest unit, because kernels are not
 * cut; at least RESIDUE_NS. */
uint64_t sp_policy_residue(const struct sp_policy_share *s) {
  return clamp_u64(s->longest_unit_ns / 2, RESIDUE_NS, QUANTUM_MAX_NS);
}

/* Set the length of a round of turns: shares x base. The base is at least half the longest unit, for a turn lasts at
 * least one unit. A whole unit would be too much: a turn with work in flight at its end would last two. The longest
 * ordinary quantum and the due lags depend on the round, and are set, too. */
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
  uint64_t requests = 0;
  policy->active = 0;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    policy->active++;
    requests += effective_request(&policy->shares[i]);
  }
  uint32_t left = WHOLE;
  bool present[TIER_COUNT] = {false};
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) {
    struct sp_policy_share *s = &policy->shares[i];
    present[tier_of(s)] = true;
    uint64_t request = effective_request(s);
    s->guarantee_mp = (uint32_t)(requests > WHOLE ? request * WHOLE / requests : request);
    s->target_mp = s->guarantee_mp;
    left -= s->guarantee_mp;
  }
  for (int tier = 0; tier < TIER_NONE; tier++)
    if (present[tier])
      left = fill_tier(policy, (enum tier)tier, left);
  policy->targets_mp = 0;
  for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1))
    policy->targets_mp += policy->shares[i].target_mp;
  sp_policy_round(policy);
  policy->stale = false;
}
