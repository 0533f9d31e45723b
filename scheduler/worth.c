/* What the rest of a node is worth to the pods that are expected: see policy.py for what it means. */
#include "placement.h"

#include <math.h>
#include <string.h>

_Static_assert((SP_STEPS - 1) * SP_STEP_MILLI == SP_DEVICE_MILLI, "a step for every residue of a device");

static const float *table_of(const struct sp_policy *policy, int32_t model, int32_t price) {
  return policy->worth + ((int64_t)model * SP_PRICES + price) * SP_STEPS;
}

/* How many pods of a kind that takes several devices an otherwise full cluster could put here. */
int64_t sp_copies(const struct sp_node *node, const struct sp_kind *kind) {
  int64_t open = 0;
  if (!(kind->models >> node->model & 1))
    return 0;
  for (int32_t i = 0; i < node->devices; i++)
    open += sp_left_milli(node, i) >= kind->milli;
  int64_t copies = open / kind->devices;
  if (kind->cpu_milli > 0 && node->cpu_milli / kind->cpu_milli < copies)
    copies = node->cpu_milli / kind->cpu_milli;
  return copies;
}

int64_t sp_room(const struct sp_node *nodes, int32_t count, const struct sp_kind *kind) {
  int64_t sum = 0;
  for (int32_t i = 0; i < count; i++)
    sum += sp_copies(&nodes[i], kind);
  return sum;
}

/* The least, over the prices of a processor, of what processors and devices are worth apart: what they are worth
 * together, when pods could be cut (Lagrange). A price that is too low makes the devices dear, one too high the rest.
 */
static double worth_of_singles(const struct sp_policy *policy, const struct sp_node *node) {
  double least = INFINITY;
  int32_t step[SP_NODE_DEVICES];
  for (int32_t i = 0; i < node->devices; i++) {
    int32_t left = sp_left_milli(node, i);
    step[i] = left > 0 ? left / SP_STEP_MILLI : 0;
  }
  for (int32_t price = 0; price < SP_PRICES; price++) {
    const float *table = table_of(policy, node->model, price);
    double sum = policy->price[price] * (double)node->cpu_milli;
    for (int32_t i = 0; i < node->devices; i++)
      sum += (double)table[step[i]];
    if (sum < least)
      least = sum;
  }
  return least;
}

double sp_worth_of(const struct sp_policy *policy, const struct sp_node *node) {
  double sum = worth_of_singles(policy, node);
  for (int32_t i = 0; i < policy->kinds; i++) {
    const struct sp_kind *kind = &policy->kind[i];
    if (kind->devices > 1 && kind->wanted > 0)
      sum += kind->wanted * kind->milli * kind->devices * (double)sp_copies(node, kind);
  }
  return sum;
}

/* One more offer: with its part as probability a pod of each kind comes, and is taken when that is worth more than
 * what the room that it takes is worth after. */
static void one_more_offer(const double *worth, double *next, const struct sp_kind *kinds, int32_t count, int32_t model,
                           double price) {
  for (int32_t step = 0; step < SP_STEPS; step++)
    next[step] = worth[step];
  for (int32_t k = 0; k < count; k++) {
    const struct sp_kind *kind = &kinds[k];
    if (kind->devices != 1 || !(kind->models >> model & 1))
      continue;
    int32_t size = (kind->milli + SP_STEP_MILLI - 1) / SP_STEP_MILLI;
    double gain = kind->worth - price * (double)kind->cpu_milli;
    for (int32_t step = size; step < SP_STEPS; step++) {
      double more = gain + worth[step - size] - worth[step];
      if (more > 0)
        next[step] += kind->part * more;
    }
  }
}

/* Fills [model][price][step] for a device that so many offers come to. */
void sp_fill_worth(float *tables, const double *prices, int32_t models, const struct sp_kind *kinds, int32_t count,
                   int32_t offers) {
  for (int32_t model = 0; model < models; model++) {
    for (int32_t price = 0; price < SP_PRICES; price++) {
      double worth[SP_STEPS] = {0}, next[SP_STEPS];
      for (int32_t offer = 0; offer < offers; offer++) {
        one_more_offer(worth, next, kinds, count, model, prices[price]);
        memcpy(worth, next, sizeof worth);
      }
      float *table = tables + ((int64_t)model * SP_PRICES + price) * SP_STEPS;
      for (int32_t step = 0; step < SP_STEPS; step++)
        table[step] = (float)worth[step];
    }
  }
}
