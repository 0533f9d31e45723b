/*
 * Cuts a graph into steps. Device work becomes one step: it lasts as long as its longest path, and its memory effects
 * are at its end. Host functions, event records and waits, and operations on words are steps of their own between such
 * steps. Work that depends on a step comes after it; other work comes before it where it can.
 */
#include "simgpu/graphs/graph.h"

#include <stdlib.h>
#include <string.h>

/* Free steps with their effects. */
void steps_free(struct step *steps, uint32_t count) {
  for (uint32_t n = 0; n < count; n++)
    effect_free(steps[n].effects);
  free(steps);
}

/* One reading of a graph: its device work, one step for each level, and its other steps with the level that each ends.
 */
struct reading {
  struct step *steps; /* in the order found; sorted at the end */
  uint32_t *levels;   /* of each step */
  uint32_t count, room;
};

/* A level consists of a stage (upper 16 bits) and a place in it (lower 16 bits): the stage is the number of waits
 * before it, the place the number of other steps in that stage. Waits end their stage, so that they hold up only work
 * that depends on them. */
#define STAGE_END 0xffffu
struct position {
  uint32_t level;
  uint64_t ns; /* of device work in that level, on the longest path */
};

/* The later one of two positions. */
static struct position later(struct position a, struct position b) {
  return a.level > b.level || (a.level == b.level && a.ns > b.ns) ? a : b;
}

/* Append a step at this level; NULL: there is no memory. The pointer is valid until the next step is appended. */
static struct step *step_new(struct reading *reading, uint32_t level, struct step step) {
  if (reading->count == reading->room) {
    uint32_t room = reading->room ? 2 * reading->room : 16;
    struct step *steps = realloc(reading->steps, room * sizeof *steps);
    uint32_t *levels = steps ? realloc(reading->levels, room * sizeof *levels) : NULL;
    reading->steps = steps ? steps : reading->steps;
    reading->levels = levels ? levels : reading->levels;
    if (!levels)
      return NULL;
    reading->room = room;
  }
  reading->levels[reading->count] = level;
  reading->steps[reading->count] = step;
  return &reading->steps[reading->count++];
}

/* The step with the device work of a level, made if there is none; NULL: there is no memory. */
static struct step *work_at(struct reading *reading, uint32_t level) {
  for (uint32_t n = 0; n < reading->count; n++)
    if (reading->levels[n] == level && reading->steps[n].kind == STEP_WORK)
      return &reading->steps[n];
  return step_new(reading, level, (struct step){.kind = STEP_WORK});
}

/* Append a copy of the effect to those of the step. False: there is no memory. */
static bool add_effect(struct step *step, const struct effect *effect) {
  struct effect **link = &step->effects;
  while (*link)
    link = &(*link)->next;
  *link = effect_copy_of(effect);
  return *link != NULL;
}

/* Whether an operation of the batch waits for a word. */
static bool has_wait(const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch) {
  for (unsigned n = 0; n < batch->count; n++)
    if (waits_for_word(&batch->paramArray[n]))
      return true;
  return false;
}

/* The kind of step that a node needs besides device work; STEP_WORK: none. */
static int step_of(const struct node *node) {
  switch (node->body.params.type) {
  case CU_GRAPH_NODE_TYPE_HOST:
    return STEP_HOST;
  case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    return STEP_RECORD;
  case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    return STEP_WAIT;
  case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
    return has_wait(&node->body.params.memOp) ? STEP_WAIT : STEP_WORDS;
  default:
    return STEP_WORK;
  }
}

/* Add a node to the device work of its level. `at`: the position where the node begins, and then where it ends. False:
 * there is no memory. */
static bool read_work(struct reading *reading, const struct node *node, struct position *at) {
  const struct body *body = &node->body;
  struct step *work = work_at(reading, at->level);
  if (!work)
    return false;
  if (node->disabled)
    return true;
  at->ns += body->item.duration_ns;
  work->whole_device_ns += body->item.duration_ns * body->item.demand / SG_ALL_SMS;
  work->duration_ns = at->ns > work->duration_ns ? at->ns : work->duration_ns;
  if (body->item.flags & SG_SPIN) {
    work->spin = true;
    work->watch = body->item.watch;
  }
  struct effect over = {.kind = EFFECT_CALL, .call = graph_memory_over, .data = body->memory};
  if (body->params.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
    return add_effect(work, &over);
  return !body->effect || add_effect(work, body->effect);
}

/* Cut a graph, with its children in their places, into steps. `at`: the position where the graph begins, and then where
 * all of it has ended. */
static CUresult read_graph(struct reading *reading, struct graph *graph, struct position *at) {
  struct node **order = malloc((graph->count + 1) * sizeof *order);
  struct position from = *at;
  if (!order)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = graph_order(graph, order) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; !result && n < graph->count; n++) {
    struct node *node = order[n];
    struct position here = from;
    for (uint32_t m = 0; m < node->dependency_count; m++)
      here = later(here, (struct position){node->dependencies[m]->level, node->dependencies[m]->until_ns});
    int kind = step_of(node);
    if (node->body.child && body_runs(&node->body)) {
      result = read_graph(reading, node->body.child, &here);
    } else if (kind == STEP_WORK) {
      result = read_work(reading, node, &here) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    } else {
      uint32_t level = kind == STEP_WAIT ? here.level | STAGE_END : here.level;
      if (!step_new(reading, level, (struct step){.kind = kind, .node = node}))
        result = CUDA_ERROR_OUT_OF_MEMORY;
      here = (struct position){level + 1, 0}; /* after a wait: the next stage */
    }
    node->level = here.level;
    node->until_ns = here.ns;
    *at = later(*at, here);
  }
  free(order);
  return result;
}

/* Sort the steps by level, and inside a level by kind; equal ones keep their order. An insertion sort: each step is
 * exchanged with the one before it until it is in its place. */
static void sort(struct reading *reading) {
  for (uint32_t n = 1; n < reading->count; n++)
    for (uint32_t m = n; m; m--) {
      struct step *pair = &reading->steps[m - 1], first = pair[0];
      uint32_t *levels = &reading->levels[m - 1], first_level = levels[0];
      if (levels[0] < levels[1] || (levels[0] == levels[1] && pair[0].kind <= pair[1].kind))
        break;
      pair[0] = pair[1];
      pair[1] = first;
      levels[0] = levels[1];
      levels[1] = first_level;
    }
}

/* Cut a graph into steps, in the order in which a launch gives them to its stream. After an error `steps` is not
 * valid. */
CUresult steps_read(struct graph *graph, struct step **steps, uint32_t *count) {
  struct reading reading = {0};
  struct position at = {0};
  CUresult result = read_graph(&reading, graph, &at);
  if (result)
    steps_free(reading.steps, reading.count);
  else
    sort(&reading);
  free(reading.levels);
  *steps = reading.steps;
  *count = reading.count;
  return result;
}
