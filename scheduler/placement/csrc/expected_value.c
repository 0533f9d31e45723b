/* Computes what the room left on a node is worth to the expected pods; policy.py explains this worth. */
#include "scheduler/placement/csrc/placement.h"

#include <string.h>

_Static_assert((SP_STEPS - 1) * SP_STEP_MILLI == SP_DEVICE_MILLI, "a step for every residue of a device");
_Static_assert(SP_PRICES % 4 == 0, "prices are compared four at a time");

/* The worth, at each of the SP_PRICES prices, of a device of a model that has `left_milli` left. */
static const float *worth_at(const struct sp_policy *policy, int32_t model, int32_t left_milli) {
  int32_t step = left_milli > 0 ? left_milli / SP_STEP_MILLI : 0;
  return policy->worth + ((int64_t)model * SP_STEPS + step) * SP_PRICES;
}

/* How many pods of a kind fit on a node that has `cpu_milli` of processors left, and `open` devices that each have the
 * kind's time left. */
static int64_t copies(int64_t cpu_milli, int32_t open, int64_t kind_cpu_milli, int32_t kind_devices) {
  int64_t count = kind_devices > 1 ? open / kind_devices : open;
  return kind_cpu_milli * count > cpu_milli ? cpu_milli / kind_cpu_milli : count;
}

/* How many devices of a node have at least `milli` left. */
static int32_t open_devices(const struct sp_node *node, int32_t milli) {
  int32_t open = 0;
  for (int32_t i = 0; i < node->devices; i++)
    open += node->left_milli[i] >= milli;
  return open;
}

/* Fills rooms[k] with how many pods of kind k would fit on all nodes if no other kind came; 0 for a kind that takes one
 * device or none. The kinds are sorted by devices, then by milli (mix.py). */
void sp_rooms(const struct sp_node *nodes, int32_t count, const struct sp_kind *kinds, int32_t kinds_count,
              int64_t *rooms) {
  int32_t first = 0; /* the first kind that takes several devices */
  memset(rooms, 0, sizeof *rooms * (size_t)kinds_count);
  while (first < kinds_count && kinds[first].devices < 2)
    first++;
  for (int32_t n = 0; n < count; n++) {
    const struct sp_node *node = &nodes[n];
    int32_t milli = 0, open = 0; /* `open`: the devices with `milli` left */
    for (int32_t k = first; k < kinds_count; k++) {
      const struct sp_kind *kind = &kinds[k];
      if (kind->milli != milli) {
        milli = kind->milli;
        open = open_devices(node, milli);
      }
      if (open >= kind->devices && kind->devices > 1 && kind->models >> node->model & 1)
        rooms[k] += copies(node->cpu_milli, open, kind->cpu_milli, kind->devices);
    }
  }
}

/* Inserts a kind into `width`, which must be the last one so far; its kinds stay sorted by the processors that they
 * need. The weight is that of the kind alone, not added up yet. */
static void add_wide(const struct sp_kind *kind, struct sp_wide *wide, struct sp_width *width) {
  int32_t at = width->first + width->count++;
  for (; at > width->first && wide[at - 1].cpu_milli > kind->cpu_milli; at--)
    wide[at] = wide[at - 1];
  wide[at] = (struct sp_wide){kind->cpu_milli, kind->wanted * kind->milli * kind->devices};
}

/* Fills `wide` and `widths` for each of the first `models` models with the kinds that take several devices and for
 * which room is scarce. The arrays need an entry for each kind and model; the policy points to them from then on.
 * Returns how many entries of `wide` were filled. */
int32_t sp_gather_wide(struct sp_policy *policy, int32_t models, struct sp_wide *wide, struct sp_width *widths) {
  int32_t wides = 0, count = 0;
  policy->wide = wide;
  policy->width = widths;
  for (int32_t model = 0; model < models; model++) {
    policy->widths[model] = count;
    for (int32_t k = 0; k < policy->kinds; k++) {
      const struct sp_kind *kind = &policy->kind[k];
      if (kind->devices < 2 || kind->wanted <= 0 || !(kind->models >> model & 1))
        continue;
      struct sp_width *last = count > policy->widths[model] ? &widths[count - 1] : 0;
      if (!last || last->milli != kind->milli || last->devices != kind->devices)
        widths[count++] = (struct sp_width){kind->milli, kind->devices, wides, 0};
      add_wide(kind, wide, &widths[count - 1]);
      wides++;
    }
  }
  for (int32_t model = models; model <= SP_MODELS; model++)
    policy->widths[model] = count;
  for (int32_t w = 0; w < count; w++) /* from here on a weight includes those of the kinds before it */
    for (int32_t i = widths[w].first + 1; i < widths[w].first + widths[w].count; i++)
      wide[i].weight += wide[i - 1].weight;
  return wides;
}

/* The weight of all kinds of a width of which `copies` pods fit into `cpu_milli` of processors. `wide`, `count`: the
 * kinds of the width. They are sorted by processors, and a weight includes those before it: so it is the weight of the
 * last kind that fits, which a binary search finds. */
static double weight_of(const struct sp_wide *wide, int32_t count, int64_t copies, int64_t cpu_milli) {
  if (wide[count - 1].cpu_milli * copies <= cpu_milli)
    return wide[count - 1].weight;
  int32_t fit = 0; /* kinds before index `fit` fit; those from fit + count on do not */
  while (count > 0) {
    int32_t half = count / 2;
    if (wide[fit + half].cpu_milli * copies <= cpu_milli) {
      fit += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return fit > 0 ? wide[fit - 1].weight : 0;
}

/* The worth of the room for pods that take several devices, in milli, if device `taken` had `left_after` left. `taken`
 * -1: the node as it is now. A kind of which n pods fit counts n times: once for each number of pods from 1 to n. */
static double worth_of_wide(const struct sp_work *work, int32_t taken, int32_t left_after) {
  const struct sp_policy *policy = work->policy;
  const struct sp_node *node = &work->node;
  double sum = 0;
  int32_t milli = 0, open = 0;
  for (int32_t w = policy->widths[node->model]; w < policy->widths[node->model + 1]; w++) {
    const struct sp_width *width = &policy->width[w];
    if (width->milli != milli) {
      milli = width->milli;
      open = open_devices(node, milli);
      if (taken >= 0)
        open -= node->left_milli[taken] >= milli && left_after < milli;
    }
    for (int32_t count = 1, devices = width->devices; devices <= open; count++, devices += width->devices)
      sum += weight_of(&policy->wide[width->first], width->count, count, node->cpu_milli);
  }
  return sum;
}

/* Whether the room for pods that take several devices may shrink when a device has `left_after` instead of `left`. */
static int is_narrower(const struct sp_work *work, int32_t left, int32_t left_after) {
  const struct sp_policy *policy = work->policy;
  for (int32_t w = policy->widths[work->node.model]; w < policy->widths[work->node.model + 1]; w++)
    if (left >= policy->width[w].milli && left_after < policy->width[w].milli)
      return 1;
  return 0;
}

/* Computes the worth of the processors and of the devices of the work's node: work->cpu and work->sum. The tables are
 * floats and the sums are doubles: nothing is rounded, so the order of changes does not matter. */
void sp_worth_begin(struct sp_work *work) {
  memset(work->sum, 0, sizeof work->sum);
  for (int32_t i = 0; i < work->node.devices; i++) {
    const float *worth = worth_at(work->policy, work->node.model, work->node.left_milli[i]);
    for (int32_t price = 0; price < SP_PRICES; price++)
      work->sum[price] += (double)worth[price];
  }
  sp_worth_processors(work);
}

/* Computes anew what the processors of the work's node are worth. Called when fewer or more of them are left. */
void sp_worth_processors(struct sp_work *work) {
  for (int32_t price = 0; price < SP_PRICES; price++)
    work->cpu[price] = work->policy->price[price] * (double)work->node.cpu_milli;
}

/* Corrects the worth of the devices of the work's node: one of them has `to_milli` left instead of `from_milli`. */
void sp_worth_changed(struct sp_work *work, int32_t from_milli, int32_t to_milli) {
  const float *from = worth_at(work->policy, work->node.model, from_milli);
  const float *to = worth_at(work->policy, work->node.model, to_milli);
  for (int32_t price = 0; price < SP_PRICES; price++)
    work->sum[price] = work->sum[price] - (double)from[price] + (double)to[price];
}

/* What processors and devices are worth together, if pods could be cut: the least sum of both over the prices of a
 * processor (Lagrange). A price that is too low makes the devices dear, one that is too high the processors. By price:
 * `cpu` is the worth of the processors, `sum` that of all devices; in it `to` replaces the worth `from` of one device.
 * Four prices are compared at a time, one in each lane of a vector. */
static double least_of(const double *restrict cpu, const double *restrict sum, const float *restrict from,
                       const float *restrict to) {
  double least[4];
  for (int lane = 0; lane < 4; lane++)
    least[lane] = cpu[lane] + (sum[lane] - (double)from[lane] + (double)to[lane]);
  for (int32_t price = 4; price < SP_PRICES; price += 4) {
    for (int lane = 0; lane < 4; lane++) {
      int32_t at = price + lane;
      double worth = cpu[at] + (sum[at] - (double)from[at] + (double)to[at]);
      least[lane] = worth < least[lane] ? worth : least[lane];
    }
  }
  double first = least[0] < least[1] ? least[0] : least[1], last = least[2] < least[3] ? least[2] : least[3];
  return first < last ? first : last;
}

/* What the work's node is worth, in milli. */
double sp_worth(const struct sp_work *work) {
  const float *any = work->policy->worth; /* as `from` and as `to`: no device changes */
  return least_of(work->cpu, work->sum, any, any) + worth_of_wide(work, -1, 0);
}

/* Fills after[i], for each device of the set `devices`, with minus what the node is worth once `step` has been taken
 * from device i. Minus, because of potentials the least is the best. */
void sp_worths_with(const struct sp_work *work, struct sp_step step, uint16_t devices, double *after) {
  const struct sp_node *node = &work->node;
  double wide_now = worth_of_wide(work, -1, 0); /* most steps do not change it */
  for (int32_t i = 0; i < node->devices; i++) {
    if (!(devices >> i & 1))
      continue;
    int32_t left = node->left_milli[i];
    int32_t left_after = sp_left_milli(node, node->free_milli[i] - step.milli, node->free_mib[i] - step.mib);
    double wide = is_narrower(work, left, left_after) ? worth_of_wide(work, i, left_after) : wide_now;
    after[i] = -(least_of(work->cpu, work->sum, worth_at(work->policy, node->model, left),
                          worth_at(work->policy, node->model, left_after)) +
                 wide);
  }
}

/* Fills `next` with the worth of a device of a model, by step of what is left of it, when one more pod is offered than
 * for `worth`. The part of a kind is the probability that the pod is of it. The pod is taken if it is worth more, less
 * the `price` of its processors, than its room is worth to the offers after it. */
static void one_more_offer(const double *worth, double *next, const struct sp_kind *kinds, int32_t count, int32_t model,
                           double price) {
  for (int32_t step = 0; step < SP_STEPS; step++)
    next[step] = worth[step];
  for (int32_t k = 0; k < count; k++) {
    const struct sp_kind *kind = &kinds[k];
    if (kind->devices != 1 || !(kind->models >> model & 1))
      continue;
    int32_t size = (kind->milli + SP_STEP_MILLI - 1) / SP_STEP_MILLI; /* in steps, rounded up */
    double gain = kind->worth - price * (double)kind->cpu_milli;
    for (int32_t step = size; step < SP_STEPS; step++) {
      double more = gain + worth[step - size] - worth[step];
      if (more > 0)
        next[step] += kind->part * more;
    }
  }
}

/* Fills `tables` [model][step][price] with the worth, in milli, of a device with so many steps left to which `offers`
 * pods of the kinds are offered one by one, at each of the SP_PRICES prices of a processor. */
void sp_fill_worth(float *tables, const double *prices, int32_t models, const struct sp_kind *kinds, int32_t count,
                   int32_t offers) {
  for (int32_t model = 0; model < models; model++) {
    for (int32_t price = 0; price < SP_PRICES; price++) {
      double worth[SP_STEPS] = {0}, next[SP_STEPS];
      for (int32_t offer = 0; offer < offers; offer++) {
        one_more_offer(worth, next, kinds, count, model, prices[price]);
        memcpy(worth, next, sizeof worth);
      }
      for (int32_t step = 0; step < SP_STEPS; step++)
        tables[((int64_t)model * SP_STEPS + step) * SP_PRICES + price] = (float)worth[step];
    }
  }
}
