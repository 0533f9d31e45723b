/* The policy's clockwork: which shares are active, their rates, and the length of turns. Only the files of this folder
 * include it. `_mp` is millipercent: WHOLE is 100 %. */
#ifndef SHAREPOD_POLICY_RATES_H
#define SHAREPOD_POLICY_RATES_H

#include "agent/policy/policy.h"

#define MS    1000000ull
#define WHOLE SP_POLICY_WHOLE

#define QUANTUM_MIN_NS (2 * MS)
#define QUANTUM_MAX_NS (50 * MS)
/* The longest ordinary quantum beside other active shares, if no unit is long. Each turn costs a hand-off (about 50
 * us), so it is not much shorter. */
#define QUANTUM_NS (10 * MS)
/* How long a round of turns is for each active share: with quanta up to QUANTUM_NS the median one is then about 9 ms
 * (docs/adr/0012). Where a latency share is present, rounds are shorter, because it might be kept waiting. */
#define BASE_NS         (12 * MS)
#define BASE_LATENCY_NS (5 * MS)
/* How long work of small units runs on after the end of its turn: measured, docs/adr/0011. */
#define RESIDUE_NS (600000ull)
/* The longest that a round should become with many active shares, so that no share's wait grows with their number. */
#define ROUND_NS (100 * MS)

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}
static inline uint64_t clamp_u64(uint64_t x, uint64_t low, uint64_t high) {
  return x < low ? low : x > high ? high : x;
}
static inline int64_t min_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* Does the share wait or hold? A paused one is active only while it holds. */
static inline bool is_active(const struct sp_policy_share *s) {
  return s->present && (s->holding || (s->waiting && !s->paused));
}

/* The first active share from `from` on, -1: none. All of them:
 * for (int i = next_active(policy, 0); i >= 0; i = next_active(policy, i + 1)) */
static inline int next_active(const struct sp_policy *policy, int from) {
  for (int word = from / 64; word < SP_POLICY_SHARES / 64; word++) {
    uint64_t candidates = policy->active_set[word];
    if (word == from / 64)
      candidates &= ~(uint64_t)0 << (from % 64);
    if (candidates)
      return word * 64 + __builtin_ctzll(candidates);
  }
  return -1;
}

/* Does the share take part in the surplus? Batch shares and those with request 0 get what these leave of it. */
static inline bool takes_surplus(const struct sp_policy_share *s) {
  return s->share_class != SP_CLASS_BATCH && s->request_mp > 0;
}

/* Work out guarantees, targets, the round and the due lags from the terms of the active shares. */
void sp_policy_rates(struct sp_policy *policy);
/* Work out the round and the due lags alone: enough after a change of a longest unit. */
void sp_policy_round(struct sp_policy *policy);
/* How long a turn of the share ordinarily lasts (ns), before its limit cuts it. */
uint64_t sp_policy_ordinary(const struct sp_policy *policy, const struct sp_policy_share *s);
/* How long work ordinarily runs after the end of such a turn (ns): half a unit, because kernels are not cut. */
uint64_t sp_policy_residue(const struct sp_policy_share *s);

#endif
