/* Decides whether a pod fits on a node, on which devices, and at what cost: see placement.h. */
#include "scheduler/placement/csrc/placement.h"

#include <math.h>
#include <string.h>

#define AHEAD        4     /* candidates from one that is judged to one that is prefetched */
#define CACHE_LINE   64    /* bytes that one prefetch brings */
#define SEARCH_STEPS 20000 /* the most devices that place_rest tries for one pod on one node */

_Static_assert(SP_NODE_DEVICES <= 16, "a bit of uint16_t for each");
_Static_assert(SP_MODELS <= 32, "a bit of uint32_t for each");

int32_t sp_share_mib(const struct sp_node *node, const struct sp_share *share) {
  int32_t part = (int32_t)((int64_t)node->device_mib * share->memory_milli / SP_DEVICE_MILLI);
  if (node->device_mib == 0)
    return 0;
  return part > share->mib ? part : share->mib;
}

/* Computes a node's left_milli anew. To be called when what is left of the node was set. */
void sp_node_update_left(struct sp_node *node) {
  for (int32_t device = 0; device < node->devices; device++)
    node->left_milli[device] = sp_left_milli(node, node->free_milli[device], node->free_mib[device]);
}

/* Takes a step from a device of the work's node, and updates what depends on it. The potential becomes NAN. */
static void take_on(struct sp_work *work, struct sp_step step, int32_t device) {
  struct sp_node *node = &work->node;
  int32_t left = node->left_milli[device];
  node->free_milli[device] -= step.milli;
  node->free_mib[device] -= step.mib;
  node->left_milli[device] = sp_left_milli(node, node->free_milli[device], node->free_mib[device]);
  work->potential = NAN;
  if (work->policy->rule == SP_WORTH)
    sp_worth_changed(work, left, node->left_milli[device]);
}

/* Takes a pod's request from a node (sign 1) or gives it back (sign -1); devices[i] is the set of share i. Returns 0,
 * and changes nothing, if something would be below 0 or a device would have more left than there is of it. The sums are
 * in 64 bits, because several shares of a pod may be on one device. */
static int32_t take_signed(struct sp_node *node, const struct sp_request *request, const uint16_t *devices,
                           int64_t sign) {
  int64_t milli[SP_NODE_DEVICES], mib[SP_NODE_DEVICES]; /* what is left of each device afterwards */
  int64_t cpu = node->cpu_milli - sign * request->cpu_milli, memory = node->memory_mib - sign * request->memory_mib;
  int possible = cpu >= 0 && memory >= 0;
  for (int32_t device = 0; device < node->devices; device++) {
    milli[device] = node->free_milli[device];
    mib[device] = node->free_mib[device];
    for (int32_t i = 0; i < request->shares; i++) {
      if (!(devices[i] >> device & 1))
        continue;
      milli[device] -= sign * request->share[i].milli;
      mib[device] -= sign * sp_share_mib(node, &request->share[i]);
    }
    possible = possible && milli[device] >= 0 && milli[device] <= SP_DEVICE_MILLI && mib[device] >= 0 &&
               mib[device] <= node->device_mib;
  }
  if (!possible)
    return 0;
  node->cpu_milli = cpu;
  node->memory_mib = memory;
  for (int32_t device = 0; device < node->devices; device++) {
    node->free_milli[device] = (int32_t)milli[device];
    node->free_mib[device] = (int32_t)mib[device];
  }
  sp_node_update_left(node);
  return 1;
}

/* Takes a pod's request from a node, each share on its devices. Returns 0, and takes nothing, when the node has not all
 * of it. */
int32_t sp_take(struct sp_node *node, const struct sp_request *request, const uint16_t *devices) {
  return take_signed(node, request, devices, 1);
}

/* Undoes sp_take. Returns 0, and gives nothing back, when a device would have more left than there is of it. */
int32_t sp_give_back(struct sp_node *node, const struct sp_request *request, const uint16_t *devices) {
  return take_signed(node, request, devices, -1);
}

/* Fills `found` with the devices of the set `open` that have room for a share. Returns SP_FITS, or why these are too
 * few. */
static enum sp_verdict fitting(const struct sp_node *node, const struct sp_share *share, uint16_t open,
                               uint16_t *found) {
  int32_t mib = sp_share_mib(node, share), there = 0, with_time = 0, with_both = 0;
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

/* Fills first[i], for each open device, with the first open device that has just as much left; returns the set of these
 * first ones. So the potential is computed only once for devices that are alike. */
static uint16_t distinct(const struct sp_node *node, uint16_t open, int8_t *first) {
  uint16_t found = 0;
  for (int8_t i = 0; i < node->devices; i++) {
    if (!(open >> i & 1))
      continue;
    first[i] = 0;
    while (first[i] < i && !(found >> first[i] & 1 && node->free_milli[first[i]] == node->free_milli[i] &&
                             node->free_mib[first[i]] == node->free_mib[i]))
      first[i]++;
    if (first[i] == i)
      found |= (uint16_t)(1U << i);
  }
  return found;
}

/* Fills for each device of the set `devices` what decides between them; of both numbers the least is the best. after[i]
 * is the node's potential with the step taken on device i; left[i] is what is left of the device, negated under
 * SP_SPREAD. Under rules without sp_by_node, `after` is `left`, too. */
static void prospects(const struct sp_work *work, struct sp_step step, uint16_t devices, double *after, int32_t *left) {
  const struct sp_node *node = &work->node;
  int by_node = sp_by_node(work->policy);
  int8_t first[SP_NODE_DEVICES];
  if (by_node)
    sp_potentials_with(work, step, distinct(node, devices, first), after);
  for (int32_t i = 0; i < node->devices; i++) {
    left[i] = work->policy->rule == SP_SPREAD ? -node->left_milli[i] : node->left_milli[i];
    if (devices >> i & 1)
      after[i] = by_node ? after[first[i]] : left[i];
  }
}

/* Takes a step on the open device where it costs least, and returns that device. Among equals it is the one with least
 * left, under SP_SPREAD most. At least one device is open. `extra`: what each device costs in addition. */
static int32_t take_cheapest(struct sp_work *work, struct sp_step step, uint16_t open, const double *extra) {
  double after[SP_NODE_DEVICES];
  int32_t left[SP_NODE_DEVICES], best = -1;
  prospects(work, step, open, after, left);
  for (int32_t i = 0; i < work->node.devices; i++) {
    if (!(open >> i & 1))
      continue;
    double above_best = best < 0 ? -1 : after[i] + extra[i] - (after[best] + extra[best]);
    if (above_best < 0 || (above_best <= 0 && left[i] < left[best]))
      best = i;
  }
  take_on(work, step, best);
  if (sp_by_node(work->policy))
    work->potential = after[best]; /* take_on has made it NAN */
  return best;
}

/* Fills extra[i] with what a share costs on device i for measured use and promises, in milli; 0: no use is known. */
static void extras(const struct sp_work *work, const struct sp_share *share, double *extra) {
  for (int32_t i = 0; i < work->node.devices; i++)
    extra[i] = work->node.known & SP_USE_KNOWN ? sp_device_extra(work->policy, &work->facts->use[i], share) : 0;
}

/* Takes a share that spreads over several devices on the cheapest set of open ones, the cost of missing links included,
 * and returns that set. `step`: what it takes of each. `extra`: what each device costs in addition. */
static uint16_t take_set(struct sp_work *work, const struct sp_share *share, struct sp_step step, uint16_t open,
                         const double *extra) {
  double after[SP_NODE_DEVICES];
  int32_t left[SP_NODE_DEVICES];
  prospects(work, step, open, after, left);
  for (int32_t i = 0; i < work->node.devices; i++)
    if (open >> i & 1)
      after[i] += extra[i];
  uint16_t devices = sp_best_set(work->policy, work->facts, after, left, open, share->devices);
  for (int32_t i = 0; i < work->node.devices; i++)
    if (devices >> i & 1)
      take_on(work, step, i);
  return devices;
}

/* Takes each share of a pod where it costs least, one after the other, and fills devices[i] with the set of share i.
 * `allowed`: the set that the pod may have. If a share finds no room, returns why; the shares before it stay taken. */
static enum sp_verdict choose(struct sp_work *work, const struct sp_request *request, uint16_t allowed,
                              uint16_t *devices) {
  double extra[SP_NODE_DEVICES];
  for (int32_t i = 0; i < request->shares; i++) {
    const struct sp_share *share = &request->share[i];
    struct sp_step step = {share->milli, sp_share_mib(&work->node, share)};
    uint16_t open = 0;
    enum sp_verdict verdict = fitting(&work->node, share, share->beside >= 0 ? devices[share->beside] : allowed, &open);
    if (verdict != SP_FITS)
      return verdict;
    extras(work, share, extra);
    devices[i] = 0;
    if (share->devices > 1 && work->node.known & SP_LINKS_KNOWN) {
      devices[i] = take_set(work, share, step, open, extra);
      continue;
    }
    for (int32_t n = 0; n < share->devices; n++)
      devices[i] |= (uint16_t)(1U << take_cheapest(work, step, (uint16_t)(open & ~devices[i]), extra));
  }
  return SP_FITS;
}

/* What place_rest searches, and how far it has come. */
struct search {
  const struct sp_request *request;
  struct sp_node *node; /* its left_milli is out of date during the search */
  uint16_t allowed;
  uint16_t *devices; /* of each share, the set so far */
  int32_t steps;     /* devices that may still be tried: some pods would take too long */
};

/* Finds any way to place the rest of share `i`, which has `placed` devices so far, on devices from `from` on, and then
 * all shares after it. Takes all of that and returns 1. Returns 0, with the node as it was, if there is no way, or if
 * search->steps have been tried. */
static int place_rest(struct search *search, int32_t i, int32_t placed, int32_t from) {
  if (i == search->request->shares)
    return 1;
  const struct sp_share *share = &search->request->share[i];
  struct sp_node *node = search->node;
  uint16_t open = 0;
  if (placed == share->devices) {
    if (i + 1 < search->request->shares)
      search->devices[i + 1] = 0;
    return place_rest(search, i + 1, 0, 0);
  }
  int32_t mib = sp_share_mib(node, share);
  fitting(node, share, share->beside >= 0 ? search->devices[share->beside] : search->allowed, &open);
  for (int32_t device = from; device < node->devices && search->steps > 0; device++) {
    if (!(open >> device & 1))
      continue;
    search->steps--;
    search->devices[i] |= (uint16_t)(1U << device);
    node->free_milli[device] -= share->milli;
    node->free_mib[device] -= mib;
    if (place_rest(search, i, placed + 1, device + 1))
      return 1;
    node->free_milli[device] += share->milli;
    node->free_mib[device] += mib;
    search->devices[i] &= (uint16_t)~(1U << device);
  }
  return 0;
}

/* Takes all shares of a pod, each where it costs least, and fills `devices`. That may leave no room for a later share
 * where another choice would. Then any way that fits is taken. If there is none, returns why the first try failed. */
static enum sp_verdict choose_or_search(struct sp_work *work, const struct sp_request *request, uint16_t allowed,
                                        uint16_t *devices) {
  if (request->shares < 2)
    return choose(work, request, allowed, devices);
  struct sp_node before = work->node;
  enum sp_verdict verdict = choose(work, request, allowed, devices);
  if (verdict == SP_FITS)
    return verdict;
  memset(devices, 0, sizeof(uint16_t) * SP_ASK_SHARES);
  work->node = before;
  struct search search = {request, &work->node, allowed, devices, SEARCH_STEPS};
  if (!place_rest(&search, 0, 0, 0))
    return verdict;
  sp_node_update_left(&work->node);
  work->potential = NAN;
  if (work->policy->rule == SP_WORTH)
    sp_worth_begin(work);
  return SP_FITS;
}

/* What a place costs in addition to the room that is taken: for measured use, promises and missing links, in milli. */
static double extra_of(const struct sp_work *work, const struct sp_request *request, const uint16_t *devices) {
  double sum = 0;
  for (int32_t i = 0; i < request->shares && work->node.known; i++) {
    for (int32_t device = 0; work->node.known & SP_USE_KNOWN && device < work->node.devices; device++)
      if (devices[i] >> device & 1)
        sum += sp_device_extra(work->policy, &work->facts->use[device], &request->share[i]);
    if (work->node.known & SP_LINKS_KNOWN)
      sum += sp_pairs_extra(work->policy, work->facts, devices[i], request->share[i].devices);
  }
  return sum;
}

/* The verdict before anything is placed, which already refuses most nodes of a full cluster. For pods of several shares
 * SP_FITS means only that the first share fits. `allowed`: the set of devices that the pod may have. */
static enum sp_verdict at_first_sight(const struct sp_node *node, const struct sp_request *request, uint16_t allowed) {
  uint16_t open;
  if (!node->there)
    return SP_NO_NODE;
  if (node->cpu_milli < request->cpu_milli)
    return SP_NO_CPU;
  if (node->memory_mib < request->memory_mib)
    return SP_NO_MEMORY;
  if (request->shares > 0 && !(request->models >> node->model & 1))
    return SP_NO_MODEL;
  return request->shares > 0 ? fitting(node, &request->share[0], allowed, &open) : SP_FITS;
}

/* Fills the choice for a pod on one node: the verdict and, if the pod fits, its devices and its cost. */
static void judge(const struct sp_node *node, const struct sp_device_facts *facts, const struct sp_request *request,
                  const struct sp_policy *policy, uint16_t allowed, struct sp_choice *choice) {
  memset(choice, 0, sizeof *choice);
  choice->verdict = at_first_sight(node, request, allowed);
  if (choice->verdict != SP_FITS)
    return;
  struct sp_work work;
  work.policy = policy;
  work.facts = facts;
  work.node = *node;
  if (policy->rule == SP_WORTH)
    sp_worth_begin(&work);
  double potential_before = sp_potential(&work);
  work.potential = NAN;
  work.node.cpu_milli -= request->cpu_milli;
  work.node.memory_mib -= request->memory_mib;
  if (policy->rule == SP_WORTH)
    sp_worth_processors(&work);
  choice->verdict = choose_or_search(&work, request, allowed, choice->devices);
  if (choice->verdict != SP_FITS)
    return;
  double extra = extra_of(&work, request, choice->devices);
  double potential_after = isnan(work.potential) ? sp_potential(&work) : work.potential;
  choice->cost = sp_cost(policy, node, &work.node, potential_before, potential_after, extra);
}

/* Returns the node of candidate `i` of `count`, and prefetches that of the candidate AHEAD of it: the candidates are in
 * any order, which the processor cannot predict. */
static const struct sp_node *candidate(const struct sp_node *nodes, const int32_t *candidates, int32_t i,
                                       int32_t count) {
  if (i + AHEAD < count)
    for (size_t at = 0; at < sizeof *nodes; at += CACHE_LINE)
      __builtin_prefetch((const char *)&nodes[candidates[i + AHEAD]] + at);
  return &nodes[candidates[i]];
}

/* Judges nodes[candidates[i]] for a pod, for each i, and fills choices[i]. allowed[i] is the set of devices that the
 * pod may have there; NULL: all. `facts` has an entry for each of `nodes`. */
void sp_rank(const struct sp_node *nodes, const struct sp_device_facts *facts, const int32_t *candidates,
             const uint16_t *allowed, int32_t count, const struct sp_request *request, const struct sp_policy *policy,
             struct sp_choice *choices) {
  for (int32_t i = 0; i < count; i++) {
    const struct sp_node *node = candidate(nodes, candidates, i, count);
    judge(node, &facts[candidates[i]], request, policy, allowed ? allowed[i] : UINT16_MAX, &choices[i]);
  }
}

/* Fills only the verdicts of sp_rank, with the same arguments. They are the same under every rule, so the cheapest rule
 * is used. */
void sp_fit(const struct sp_node *nodes, const int32_t *candidates, const uint16_t *allowed, int32_t count,
            const struct sp_request *request, int32_t *verdicts) {
  static const struct sp_policy any = {.rule = SP_BINPACK};
  for (int32_t i = 0; i < count; i++) {
    const struct sp_node *node = candidate(nodes, candidates, i, count);
    uint16_t mask = allowed ? allowed[i] : UINT16_MAX, devices[SP_ASK_SHARES];
    verdicts[i] = at_first_sight(node, request, mask);
    if (verdicts[i] != SP_FITS || request->shares < 2)
      continue;
    struct sp_work work;
    work.policy = &any;
    work.node = *node;
    work.node.known = 0; /* so its facts are not read */
    verdicts[i] = choose_or_search(&work, request, mask, devices);
  }
}

/* The position of the least cost in `choices`, which sp_rank has filled; among equals that of the lowest node index.
 * -1: no node fits. */
int32_t sp_best(const struct sp_choice *choices, const int32_t *candidates, int32_t count) {
  int32_t best = -1;
  for (int32_t i = 0; i < count; i++) {
    if (choices[i].verdict != SP_FITS)
      continue;
    if (best < 0 || choices[i].cost < choices[best].cost ||
        (choices[i].cost == choices[best].cost && candidates[i] < candidates[best]))
      best = i;
  }
  return best;
}
