/* Computes what each rule minimises on a node, and what a pod that changes it costs: see placement.h and policy.py. */
#include "scheduler/placement/csrc/placement.h"

#include <math.h>

/* FGD rounds its score to hundredths of a sigmoid over whole devices: nodes that are nearly equal fill up in order. */
#define FGD_SCALE_MILLI 1000.0
#define FGD_LEVELS      100.0
/* The size of the largest node, for packing by what is left; only the ratio of processors to devices matters. */
#define PACK_CPU_MILLI    128000.0
#define PACK_DEVICE_MILLI 8000.0
#define PACK_LEVELS       1e9

/* The time left on a node that an expected pod could not use, in milli: averaged over the kinds by their part of all
 * pods (Weng et al., "Beware of Fragmentation", USENIX ATC 2023, equations 1 and 2). */
static double fragmentation_of(const struct sp_node *node, const struct sp_kind *kinds, int32_t count) {
  int64_t free_of_all = sp_free_of_all(node);
  double sum = 0;
  if (free_of_all == 0)
    return 0;
  for (int32_t k = 0; k < count; k++) {
    const struct sp_kind *kind = &kinds[k];
    double useless = (double)free_of_all; /* a kind that does not fit can use nothing */
    if (kind->devices > 0 && kind->models >> node->model & 1 && kind->cpu_milli <= node->cpu_milli) {
      int32_t usable = 0;
      int64_t small = 0; /* the time left on devices that have too little for the kind */
      for (int32_t i = 0; i < node->devices; i++) {
        if (node->free_milli[i] >= kind->milli)
          usable++;
        else
          small += node->free_milli[i];
      }
      if (usable >= kind->devices)
        useless = (double)small;
    }
    sum += kind->part * useless;
  }
  return sum;
}

/* Fills after[i], for each device of the set `devices`, with what fragmentation_of would be with a step taken on
 * device i. For each kind all devices are counted once; then only device i is corrected. */
static void fragmentations_with(const struct sp_work *work, struct sp_step step, uint16_t devices, double *after) {
  const struct sp_node *node = &work->node;
  int32_t count = node->devices, free_of_all = (int32_t)sp_free_of_all(node) - step.milli;
  for (int32_t i = 0; i < count; i++)
    after[i] = 0;
  if (free_of_all == 0)
    return;
  for (int32_t k = 0; k < work->policy->kinds; k++) {
    const struct sp_kind *kind = &work->policy->kind[k];
    int may_fit = kind->devices > 0 && kind->models >> node->model & 1 && kind->cpu_milli <= node->cpu_milli;
    int32_t usable = 0, small = 0; /* both as in fragmentation_of */
    for (int32_t i = 0; may_fit && i < count; i++) {
      int32_t fits = node->free_milli[i] >= kind->milli;
      usable += fits;
      small += fits ? 0 : node->free_milli[i];
    }
    for (int32_t i = 0; i < count; i++) {
      if (!(devices >> i & 1))
        continue;
      int32_t left = node->free_milli[i], left_after = left - step.milli, useless = free_of_all;
      int32_t becomes_small = left >= kind->milli && left_after < kind->milli;
      if (may_fit && usable - becomes_small >= kind->devices)
        useless = small - (left < kind->milli ? left : 0) + (left_after < kind->milli ? left_after : 0);
      after[i] += kind->part * (double)useless;
    }
  }
}

/* The fragmentation of all nodes, added up, in milli. */
double sp_fragmentation(const struct sp_node *nodes, int32_t count, const struct sp_kind *kinds, int32_t kinds_count) {
  double sum = 0;
  for (int32_t i = 0; i < count; i++)
    sum += fragmentation_of(&nodes[i], kinds, kinds_count);
  return sum;
}

/* What is left of a node, as parts of the processors and of the devices of the largest node, added up. */
static double left_of(const struct sp_node *node) {
  return (double)node->cpu_milli / PACK_CPU_MILLI + (double)sp_free_of_all(node) / PACK_DEVICE_MILLI;
}

/* Whether a policy chooses devices by the state of the node afterwards; else it chooses by what is left of each. */
int sp_by_node(const struct sp_policy *policy) {
  return policy->rule == SP_FGD || policy->rule == SP_WORTH;
}

/* What a policy minimises: less is better. A pod costs the difference that it makes, except under rules that count only
 * what is left afterwards. */
double sp_potential(const struct sp_work *work) {
  const struct sp_node *node = &work->node;
  switch (work->policy->rule) {
  case SP_FGD:
    return fragmentation_of(node, work->policy->kind, work->policy->kinds);
  case SP_WORTH:
    return -sp_worth(work);
  case SP_CONSOLIDATE:
    return node->devices ? (double)sp_free_of_all(node) / node->devices : 0;
  case SP_SPREAD:
    return -left_of(node);
  default:
    return left_of(node);
  }
}

/* Fills after[i], for each device of the set `devices`, with the potential as if a step were taken on device i. Only
 * for rules with sp_by_node. */
void sp_potentials_with(const struct sp_work *work, struct sp_step step, uint16_t devices, double *after) {
  if (work->policy->rule == SP_WORTH)
    sp_worths_with(work, step, devices, after);
  else
    fragmentations_with(work, step, devices, after);
}

/* What a pod costs by the rule alone, in the rule's own units (costs_of_milli); less is better. `before`, `after`: the
 * node without and with the pod; `potential_...`: the potentials of both. */
static int64_t base_cost(const struct sp_policy *policy, const struct sp_node *before, const struct sp_node *after,
                         double potential_before, double potential_after) {
  double growth = potential_after - potential_before;
  switch (policy->rule) {
  case SP_FGD:
    return -(int64_t)floor(FGD_LEVELS / (1 + exp(growth / FGD_SCALE_MILLI)));
  case SP_WORTH:
    growth += policy->crowding[before->model] * (double)(sp_free_of_all(before) - sp_free_of_all(after));
    return (int64_t)floor(growth / policy->grain_milli + 0.5);
  case SP_CONSOLIDATE:
    return (int64_t)floor(potential_after);
  default:
    return (int64_t)(potential_after * PACK_LEVELS);
  }
}

/* How many units of a rule's cost one milli of a device is. */
static double costs_of_milli(const struct sp_policy *policy) {
  switch (policy->rule) {
  case SP_FGD:
    return FGD_LEVELS / FGD_SCALE_MILLI / 4; /* the slope of the sigmoid at a growth of 0 */
  case SP_WORTH:
    return 1 / policy->grain_milli;
  case SP_CONSOLIDATE:
    return SP_DEVICE_MILLI / PACK_DEVICE_MILLI; /* its cost is an average over devices: here over eight */
  default:
    return PACK_LEVELS / PACK_DEVICE_MILLI;
  }
}

/* The cost of a place, in the rule's units. `before`, `after`, `potential_...`: as in base_cost. `extra`: the cost of
 * measured use, promises and links, in milli. It is rounded separately, so that places with the same extra keep their
 * order. */
int64_t sp_cost(const struct sp_policy *policy, const struct sp_node *before, const struct sp_node *after,
                double potential_before, double potential_after, double extra) {
  int64_t cost = base_cost(policy, before, after, potential_before, potential_after);
  return cost + (int64_t)floor(extra * costs_of_milli(policy) + 0.5);
}
