/* Computes what a place costs for measured use, promises and missing links. The cost is 0 where nothing is known, and
 * it never makes a place impossible. The weights and their reasons are in policy.py.
 */
#include "scheduler/placement/csrc/placement.h"

#include <float.h>

/* Up to this many open devices all sets are tried: at most 70, for 4 of 8 devices. */
#define EXACT_DEVICES 8

/* The value, or the nearest one from 0 to `most`. */
static int16_t within(int64_t value, int64_t most) {
  return (int16_t)(value < 0 ? 0 : value > most ? most : value);
}

/* Sets the use of each device of a node: four of `values` for each, in the order of struct sp_use. Values are clamped
 * to their ranges. From now on the use is known. */
void sp_set_uses(struct sp_node *node, struct sp_device_facts *facts, const int64_t *values) {
  for (int32_t device = 0; device < node->devices; device++, values += 4)
    facts->use[device] = (struct sp_use){within(values[0], SP_DEVICE_MILLI), within(values[1], SP_DEVICE_MILLI),
                                         within(values[2], SP_DEVICE_MILLI), within(values[3], SP_LIMITS_MILLI)};
  node->known |= SP_USE_KNOWN;
}

/* What a share costs on one device for measured use and promises, in milli. */
double sp_device_extra(const struct sp_policy *policy, const struct sp_use *use, const struct sp_share *share) {
  const struct sp_weights *weights = &policy->weights;
  double extra, over = (double)use->limits_milli + share->limit_milli - SP_DEVICE_MILLI;
  if (share->latency)
    extra = weights->busy * use->busy_milli + weights->waited_latency * use->waited_milli;
  else
    extra = weights->latency * use->latency_milli * share->limit_milli / SP_DEVICE_MILLI +
            weights->waited * use->waited_milli;
  if (over > 0)
    extra += weights->promised * (over < weights->promised_most ? over : weights->promised_most);
  return extra;
}

/* The cost of one pair of a share's `count` devices, in milli. Work on several devices is as fast as their slowest
 * link, so each of the `count` devices loses the weight times the part of the pairs that are apart. There are
 * count * (count - 1) / 2 pairs, so one pair costs all devices together 2 / (count - 1) of the weight. */
static double pair_extra(const struct sp_policy *policy, const struct sp_device_facts *facts, int32_t one,
                         int32_t other, int32_t count) {
  double extra = facts->linked[one] >> other & 1 ? 0 : policy->weights.apart;
  if (facts->numa[one] != facts->numa[other])
    extra += policy->weights.numa;
  return extra * 2 / (count - 1);
}

/* The cost of all pairs of one share's devices, in milli: of the `count` devices in the set `devices`. */
double sp_pairs_extra(const struct sp_policy *policy, const struct sp_device_facts *facts, uint16_t devices,
                      int32_t count) {
  double extra = 0;
  for (int32_t one = 0; devices >> one; one++)
    for (int32_t other = one + 1; devices >> one & 1 && devices >> other; other++)
      if (devices >> other & 1)
        extra += pair_extra(policy, facts, one, other, count);
  return extra;
}

/* A search for the cheapest set of open devices. A device is named by its position in the order of comes_before. Of
 * sets with equal cost the first that is tried counts as the best. */
struct sets {
  int32_t open;                                  /* how many devices are open */
  int32_t count;                                 /* how many devices a set has */
  int32_t device[SP_NODE_DEVICES];               /* by position: its index on the node */
  double cost[SP_NODE_DEVICES];                  /* by position: what it costs above the device at position 0 */
  double pair[SP_NODE_DEVICES][SP_NODE_DEVICES]; /* by two positions: the cost of that pair (pair_extra) */
  double best_cost;                              /* of the best set that was tried */
  uint16_t best;                                 /* that set, with a bit for each device */
};

/* Whether a device is looked at before another: the cheaper one is, among equals the one with less left. */
static int comes_before(double cost, int32_t left, double other_cost, int32_t other_left) {
  return cost < other_cost || (cost <= other_cost && left < other_left);
}

/* Fills `sets` to search sets of `count` open devices; none has been tried yet. `cost`, `left`: as in sp_best_set. */
static void arrange(struct sets *sets, const struct sp_policy *policy, const struct sp_device_facts *facts,
                    const double *cost, const int32_t *left, uint16_t open, int32_t count) {
  sets->open = 0;
  sets->count = count;
  for (int32_t i = 0; open >> i; i++) {
    if (!(open >> i & 1))
      continue;
    int32_t at = sets->open++;
    for (; at > 0 && comes_before(cost[i], left[i], cost[sets->device[at - 1]], left[sets->device[at - 1]]); at--)
      sets->device[at] = sets->device[at - 1];
    sets->device[at] = i;
  }
  for (int32_t at = 0; at < sets->open; at++) {
    sets->cost[at] = cost[sets->device[at]] - cost[sets->device[0]];
    for (int32_t other = 0; other < at; other++)
      sets->pair[at][other] = sets->pair[other][at] =
          pair_extra(policy, facts, sets->device[at], sets->device[other], count);
  }
  sets->best_cost = DBL_MAX;
  sets->best = 0;
}

/* Keeps the chosen set (`chosen`: positions) if it costs less than the best so far. */
static void keep_best(struct sets *sets, double cost, const int32_t *chosen) {
  if (cost >= sets->best_cost)
    return;
  sets->best_cost = cost;
  sets->best = 0;
  for (int32_t n = 0; n < sets->count; n++)
    sets->best |= (uint16_t)(1U << sets->device[chosen[n]]);
}

/* Tries every set that begins with the first `n` of the chosen devices, except those that cannot be cheaper than the
 * best. `chosen`: positions, ascending. `cost`: what these `n` cost, their pairs included. */
static void try_all(struct sets *sets, int32_t *chosen, int32_t n, double cost) {
  if (n == sets->count) {
    keep_best(sets, cost, chosen);
    return;
  }
  int32_t from = n ? chosen[n - 1] + 1 : 0, last = sets->open - (sets->count - n);
  for (int32_t at = from; at <= last; at++) {
    double cost_with = cost + sets->cost[at];
    /* Each device after this one costs as much or more. */
    if (cost + sets->cost[at] * (sets->count - n) >= sets->best_cost)
      return;
    for (int32_t i = 0; i < n; i++)
      cost_with += sets->pair[chosen[i]][at];
    chosen[n] = at;
    try_all(sets, chosen, n + 1, cost_with);
  }
}

/* Tries one set for each open device: it begins with this device, and always adds the one with which it is cheapest. */
static void grow_from_each(struct sets *sets) {
  int32_t chosen[SP_NODE_DEVICES];
  for (int32_t seed = 0; seed < sets->open; seed++) {
    double added[SP_NODE_DEVICES], cost = sets->cost[seed]; /* added: what the set costs more with each device */
    uint32_t taken = 1U << seed;
    chosen[0] = seed;
    for (int32_t at = 0; at < sets->open; at++)
      added[at] = sets->cost[at] + sets->pair[seed][at];
    for (int32_t n = 1; n < sets->count; n++) {
      int32_t next = -1;
      for (int32_t at = 0; at < sets->open; at++)
        if (!(taken >> at & 1) && (next < 0 || added[at] < added[next]))
          next = at;
      taken |= 1U << next;
      chosen[n] = next;
      cost += added[next];
      for (int32_t at = 0; at < sets->open; at++)
        added[at] += sets->pair[next][at];
    }
    keep_best(sets, cost, chosen);
  }
}

/* The set of `count` open devices that costs least, their pairs included; at least `count` are open. cost[i] is what
 * device i costs by itself, left[i] what is left of it, which decides between equals. Of more than EXACT_DEVICES open
 * devices the set may be only nearly the cheapest. */
uint16_t sp_best_set(const struct sp_policy *policy, const struct sp_device_facts *facts, const double *cost,
                     const int32_t *left, uint16_t open, int32_t count) {
  struct sets sets;
  int32_t chosen[SP_NODE_DEVICES];
  arrange(&sets, policy, facts, cost, left, open, count);
  if (sets.open > EXACT_DEVICES)
    grow_from_each(&sets);
  else
    try_all(&sets, chosen, 0, 0);
  return sets.best;
}
