/* Does a pod fit a node, on which devices, and at what cost: see placement.h. */
#include "placement.h"

#include <math.h>
#include <string.h>

/* FGD rounds its score to hundredths of a sigmoid over whole devices: nodes that are nearly equal fill up in order. */
#define FGD_SCALE_MILLI 1000.0
#define FGD_LEVELS      100.0
/* Of the largest node that packing by what is left compares with; only the proportion of the two matters. */
#define PACK_CPU_MILLI    128000.0
#define PACK_DEVICE_MILLI 8000.0
#define PACK_LEVELS       1e9
#define SEARCH_STEPS      20000

_Static_assert(SP_NODE_DEVICES <= 16, "a bit of uint16_t for each");
_Static_assert(SP_MODELS <= 32, "a bit of uint32_t for each");

static int32_t share_mib(const struct sp_node *node, const struct sp_share *share) {
  if (share->mib >= 0)
    return node->device_mib > 0 ? share->mib : 0;
  return (int32_t)((int64_t)node->device_mib * share->milli / SP_DEVICE_MILLI);
}

static int64_t free_of_all(const struct sp_node *node) {
  int64_t sum = 0;
  for (int32_t i = 0; i < node->devices; i++)
    sum += node->free_milli[i];
  return sum;
}

static void take_on(struct sp_node *node, const struct sp_share *share, int32_t device, int32_t sign) {
  node->free_milli[device] -= sign * share->milli;
  node->free_mib[device] -= sign * share_mib(node, share);
}

/* Adds up what a pod takes of each device in 64 bits: shares of one pod may be on one device. */
static int32_t change(struct sp_node *node, const struct sp_ask *ask, const uint16_t *devices, int64_t sign) {
  int64_t milli[SP_NODE_DEVICES], mib[SP_NODE_DEVICES];
  int64_t cpu = node->cpu_milli - sign * ask->cpu_milli, memory = node->memory_mib - sign * ask->memory_mib;
  int holds = cpu >= 0 && memory >= 0;
  for (int32_t device = 0; device < node->devices; device++) {
    milli[device] = node->free_milli[device];
    mib[device] = node->free_mib[device];
    for (int32_t i = 0; i < ask->shares; i++) {
      if (!(devices[i] >> device & 1))
        continue;
      milli[device] -= sign * ask->share[i].milli;
      mib[device] -= sign * share_mib(node, &ask->share[i]);
    }
    holds = holds && milli[device] >= 0 && milli[device] <= SP_DEVICE_MILLI && mib[device] >= 0 &&
            mib[device] <= node->device_mib;
  }
  if (!holds)
    return 0;
  node->cpu_milli = cpu;
  node->memory_mib = memory;
  for (int32_t device = 0; device < node->devices; device++) {
    node->free_milli[device] = (int32_t)milli[device];
    node->free_mib[device] = (int32_t)mib[device];
  }
  return 1;
}

/* Returns 0, and takes nothing, when the node has not all of it. */
int32_t sp_take(struct sp_node *node, const struct sp_ask *ask, const uint16_t *devices) {
  return change(node, ask, devices, 1);
}

/* Returns 0, and gives nothing back, when a device would have more left than there is of it. */
int32_t sp_give_back(struct sp_node *node, const struct sp_ask *ask, const uint16_t *devices) {
  return change(node, ask, devices, -1);
}

/* The part of what is left on a node that an expected pod could not use, for each kind by its part of all pods
 * (Weng et al., "Beware of Fragmentation", USENIX ATC 2023, equations 1 and 2), in milli. */
static double fragmentation_of(const struct sp_node *node, const struct sp_kind *kinds, int32_t count) {
  int64_t all = free_of_all(node);
  double sum = 0;
  if (all == 0)
    return 0;
  for (int32_t k = 0; k < count; k++) {
    const struct sp_kind *kind = &kinds[k];
    double useless = (double)all;
    if (kind->devices > 0 && kind->models >> node->model & 1 && kind->cpu_milli <= node->cpu_milli) {
      int32_t usable = 0;
      int64_t small = 0;
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

double sp_fragmentation(const struct sp_node *nodes, int32_t count, const struct sp_kind *kinds, int32_t kinds_count) {
  double sum = 0;
  for (int32_t i = 0; i < count; i++)
    sum += fragmentation_of(&nodes[i], kinds, kinds_count);
  return sum;
}

static double left_of(const struct sp_node *node) {
  return (double)node->cpu_milli / PACK_CPU_MILLI + (double)free_of_all(node) / PACK_DEVICE_MILLI;
}

/* What a policy minimises. A pod costs the difference that it makes, but where only what is left then counts. */
static double potential(const struct sp_policy *policy, const struct sp_node *node) {
  switch (policy->rule) {
  case SP_FGD:
    return fragmentation_of(node, policy->kind, policy->kinds);
  case SP_WORTH:
    return -sp_worth_of(policy, node);
  case SP_CONSOLIDATE:
    return node->devices ? (double)free_of_all(node) / node->devices : 0;
  case SP_SPREAD:
    return -left_of(node);
  default:
    return left_of(node);
  }
}

static int64_t cost_of(const struct sp_policy *policy, const struct sp_node *before, double potential_before,
                       double potential_after, const struct sp_node *after) {
  double growth = potential_after - potential_before;
  switch (policy->rule) {
  case SP_FGD:
    return -(int64_t)floor(FGD_LEVELS / (1 + exp(growth / FGD_SCALE_MILLI)));
  case SP_WORTH:
    growth += policy->crowding[before->model] * (double)(free_of_all(before) - free_of_all(after));
    return (int64_t)floor(growth / policy->grain_milli + 0.5);
  case SP_CONSOLIDATE:
    return (int64_t)floor(potential_after);
  default:
    return (int64_t)(potential_after * PACK_LEVELS);
  }
}

static int same(const struct sp_node *node, int32_t one, int32_t other) {
  return node->free_milli[one] == node->free_milli[other] && node->free_mib[one] == node->free_mib[other];
}

/* Whether an earlier device that may be chosen as well is just like this one. */
static int seen_before(const struct sp_node *node, uint16_t open, int32_t device) {
  for (int32_t i = 0; i < device; i++)
    if (open >> i & 1 && same(node, i, device))
      return 1;
  return 0;
}

/* Of the open devices, those that have room for a share; why not when they are too few. */
static enum sp_verdict fitting(const struct sp_node *node, const struct sp_share *share, uint16_t open,
                               uint16_t *found) {
  int32_t mib = share_mib(node, share), there = 0, with_time = 0, with_both = 0;
  *found = 0;
  for (int32_t i = 0; i < node->devices; i++) {
    if (!(open >> i & 1))
      continue;
    there++;
    if (node->free_milli[i] < share->milli)
      continue;
    with_time++;
    if (node->free_mib[i] < mib)
      continue;
    with_both++;
    *found |= (uint16_t)(1U << i);
  }
  if (there < share->devices)
    return SP_FEW_DEVICES;
  if (with_time < share->devices)
    return SP_NO_TIME;
  return with_both < share->devices ? SP_NO_DEVICE_MEMORY : SP_FITS;
}

/* The device whose loss is least; of equal ones the one with least left, with SP_SPREAD with most. */
static int32_t cheapest(const struct sp_policy *policy, struct sp_node *node, const struct sp_share *share,
                        uint16_t open) {
  int32_t best = -1, best_left = 0;
  double best_potential = 0;
  int by_node = policy->rule == SP_FGD || policy->rule == SP_WORTH;
  for (int32_t i = 0; i < node->devices; i++) {
    if (!(open >> i & 1) || seen_before(node, open, i))
      continue;
    int32_t left = policy->rule == SP_SPREAD ? -sp_left_milli(node, i) : sp_left_milli(node, i);
    double after = 0;
    if (by_node) {
      take_on(node, share, i, 1);
      after = potential(policy, node);
      take_on(node, share, i, -1);
    }
    if (best < 0 || after < best_potential || (after <= best_potential && left < best_left)) {
      best = i;
      best_left = left;
      best_potential = after;
    }
  }
  return best;
}

/* Each share where it costs least, one after the other. */
static enum sp_verdict choose(const struct sp_policy *policy, struct sp_node *node, const struct sp_ask *ask,
                              uint16_t allowed, uint16_t *devices) {
  for (int32_t i = 0; i < ask->shares; i++) {
    const struct sp_share *share = &ask->share[i];
    uint16_t open = 0;
    enum sp_verdict verdict = fitting(node, share, share->beside >= 0 ? devices[share->beside] : allowed, &open);
    if (verdict != SP_FITS)
      return verdict;
    devices[i] = 0;
    for (int32_t n = 0; n < share->devices; n++) {
      int32_t device = cheapest(policy, node, share, open);
      open &= (uint16_t)~(1U << device);
      devices[i] |= (uint16_t)(1U << device);
      take_on(node, share, device, 1);
    }
  }
  return SP_FITS;
}

struct search {
  const struct sp_ask *ask;
  struct sp_node *node;
  uint16_t allowed;
  uint16_t *devices;
  int32_t steps; /* that are left: a pod may be a riddle */
};

/* Any way to place what is left of share `i` on devices from `from` on, and all shares after it. */
static int place_rest(struct search *search, int32_t i, int32_t placed, int32_t from) {
  if (i == search->ask->shares)
    return 1;
  const struct sp_share *share = &search->ask->share[i];
  uint16_t open = 0;
  if (placed == share->devices) {
    if (i + 1 < search->ask->shares)
      search->devices[i + 1] = 0;
    return place_rest(search, i + 1, 0, 0);
  }
  fitting(search->node, share, share->beside >= 0 ? search->devices[share->beside] : search->allowed, &open);
  for (int32_t device = from; device < search->node->devices && search->steps > 0; device++) {
    if (!(open >> device & 1))
      continue;
    search->steps--;
    search->devices[i] |= (uint16_t)(1U << device);
    take_on(search->node, share, device, 1);
    if (place_rest(search, i, placed + 1, device + 1))
      return 1;
    take_on(search->node, share, device, -1);
    search->devices[i] &= (uint16_t)~(1U << device);
  }
  return 0;
}

/* One share after the other may leave no room for a later one where another order does: then any way that fits is
 * taken. */
static enum sp_verdict choose_or_search(const struct sp_policy *policy, struct sp_node *node, const struct sp_ask *ask,
                                        uint16_t allowed, uint16_t *devices) {
  struct sp_node before = *node;
  enum sp_verdict verdict = choose(policy, node, ask, allowed, devices);
  if (verdict == SP_FITS)
    return verdict;
  memset(devices, 0, sizeof(uint16_t) * SP_ASK_SHARES);
  if (ask->shares < 2)
    return verdict;
  *node = before;
  struct search search = {ask, node, allowed, devices, SEARCH_STEPS};
  return place_rest(&search, 0, 0, 0) ? SP_FITS : verdict;
}

static void judge(const struct sp_node *node, const struct sp_ask *ask, const struct sp_policy *policy,
                  uint16_t allowed, struct sp_choice *choice) {
  memset(choice, 0, sizeof *choice);
  if (node->cpu_milli < ask->cpu_milli)
    choice->verdict = SP_NO_CPU;
  else if (node->memory_mib < ask->memory_mib)
    choice->verdict = SP_NO_MEMORY;
  else if (ask->shares > 0 && !(ask->models >> node->model & 1))
    choice->verdict = SP_NO_MODEL;
  if (choice->verdict != SP_FITS)
    return;
  struct sp_node after = *node;
  after.cpu_milli -= ask->cpu_milli;
  after.memory_mib -= ask->memory_mib;
  choice->verdict = choose_or_search(policy, &after, ask, allowed, choice->devices);
  if (choice->verdict != SP_FITS)
    return;
  choice->cost = cost_of(policy, node, potential(policy, node), potential(policy, &after), &after);
}

/* Judges nodes[candidates[i]] for each i; `allowed` has a bit for each device that the pod may have, NULL: all. */
void sp_rank(const struct sp_node *nodes, const int32_t *candidates, const uint16_t *allowed, int32_t count,
             const struct sp_ask *ask, const struct sp_policy *policy, struct sp_choice *choices) {
  for (int32_t i = 0; i < count; i++)
    judge(&nodes[candidates[i]], ask, policy, allowed ? allowed[i] : UINT16_MAX, &choices[i]);
}

/* The first of the least cost, -1: none fits. */
int32_t sp_best(const struct sp_choice *choices, int32_t count) {
  int32_t best = -1;
  for (int32_t i = 0; i < count; i++)
    if (choices[i].verdict == SP_FITS && (best < 0 || choices[i].cost < choices[best].cost))
      best = i;
  return best;
}
