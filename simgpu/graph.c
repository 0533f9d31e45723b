#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct graph *graph_new(void) {
  return handle_new(GRAPH_HANDLE, sizeof(struct graph));
}

void graph_free(struct graph *graph) {
  for (uint32_t n = 0; n < graph->count; n++) {
    effect_free(graph->nodes[n]->effect);
    free(graph->nodes[n]->on);
    handle_free(graph->nodes[n]);
  }
  free(graph->nodes);
  handle_free(graph);
}

bool node_depend(struct node *node, struct node *on) {
  struct node **grown = realloc(node->on, (node->on_count + 1) * sizeof *grown);
  if (!grown)
    return false;
  node->on = grown;
  node->on[node->on_count++] = on;
  return true;
}

struct node *graph_add(struct graph *graph, enum node_type type, const struct sg_item *item,
                       const struct effect *effect, struct node *const *on, uint32_t count) {
  if (graph->count == graph->room) {
    uint32_t room = graph->room ? 2 * graph->room : 16;
    struct node **grown = realloc(graph->nodes, room * sizeof *grown);
    if (!grown)
      return NULL;
    graph->nodes = grown;
    graph->room = room;
  }
  struct node *node = handle_new(NODE_HANDLE, sizeof *node);
  if (!node)
    return NULL;
  node->graph = graph;
  node->type = type;
  node->item = *item;
  node->effect = effect ? effect_copy_of(effect) : NULL;
  graph->nodes[graph->count++] = node;
  for (uint32_t n = 0; n < count; n++)
    if (!node_depend(node, on[n]))
      return NULL;
  return node;
}

/* Repeatedly take the nodes whose dependencies are taken. */
bool graph_order(struct graph *graph, struct node **order) {
  uint32_t taken = 0;
  for (uint32_t n = 0; n < graph->count; n++)
    graph->nodes[n]->visit = 0;
  for (bool moved = true; moved && taken < graph->count;) {
    moved = false;
    for (uint32_t n = 0; n < graph->count; n++) {
      struct node *node = graph->nodes[n];
      uint64_t from_ns = 0;
      bool free_to_go = !node->visit;
      for (uint32_t m = 0; free_to_go && m < node->on_count; m++) {
        free_to_go = node->on[m]->visit;
        from_ns = node->on[m]->until_ns > from_ns ? node->on[m]->until_ns : from_ns;
      }
      if (!free_to_go)
        continue;
      node->visit = 1;
      node->until_ns = from_ns + node->item.duration_ns;
      order[taken++] = node;
      moved = true;
    }
  }
  return taken == graph->count;
}

static CUresult valid(CUgraph graph) {
  CUresult result = ready();
  return result ? result : is_handle(graph, GRAPH_HANDLE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- building ---------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned flags) {
  CUresult result = ready();
  if (result || !out || flags)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *out = graph_new();
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  CUresult result = valid(graph);
  if (!result)
    graph_free(graph);
  return result;
}

EXPORT CUresult cuGraphClone(CUgraph *out, CUgraph graph) {
  CUresult result = valid(graph);
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  struct graph *copy = graph_new();
  for (uint32_t n = 0; copy && n < graph->count; n++) {
    struct node *from = graph->nodes[n], *to = graph_add(copy, from->type, &from->item, from->effect, NULL, 0);
    if (!to)
      return CUDA_ERROR_OUT_OF_MEMORY;
    to->kernel = from->kernel;
    to->memset = from->memset;
    to->memcpy = from->memcpy;
    from->visit = n;
  }
  for (uint32_t n = 0; copy && n < graph->count; n++)
    for (uint32_t m = 0; m < graph->nodes[n]->on_count; m++)
      if (!node_depend(copy->nodes[n], copy->nodes[graph->nodes[n]->on[m]->visit]))
        return CUDA_ERROR_OUT_OF_MEMORY;
  *out = copy;
  return copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count, enum node_type type,
                    const struct sg_item *item, const struct effect *effect) {
  CUresult result = valid(graph);
  if (result || !out || (count && !on))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  for (size_t n = 0; n < count; n++)
    if (!is_handle(on[n], NODE_HANDLE) || on[n]->graph != graph)
      return CUDA_ERROR_INVALID_VALUE;
  *out = graph_add(graph, type, item, effect, on, (uint32_t)count);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult kernel_item(const CUDA_KERNEL_NODE_PARAMS *params, struct sg_item *item) {
  struct context *context;
  CUresult result = enter(&context);
  CUfunction function = params ? params->func ? params->func : params->kern : NULL;
  if (result || !find_function(function))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  struct launch launch = {function,
                          {params->gridDimX, params->gridDimY, params->gridDimZ},
                          {params->blockDimX, params->blockDimY, params->blockDimZ},
                          params->kernelParams,
                          params->extra};
  return launch_item(context, &launch, item);
}

/* The first parameters of CUDA 10 end before `kern`. */
static CUresult add_kernel(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count,
                           const CUDA_KERNEL_NODE_PARAMS *params, size_t bytes) {
  CUDA_KERNEL_NODE_PARAMS own = {0};
  struct sg_item item;
  if (!params)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(&own, params, bytes);
  CUresult result = kernel_item(&own, &item);
  if (!result)
    result = add(out, graph, on, count, NODE_KERNEL, &item, NULL);
  if (!result)
    (*out)->kernel = own;
  return result;
}
EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count,
                                        const CUDA_KERNEL_NODE_PARAMS *params) {
  return add_kernel(out, graph, on, count, params, sizeof *params);
}
EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count,
                                     const CUDA_KERNEL_NODE_PARAMS *params) {
  return add_kernel(out, graph, on, count, params, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
}

EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count,
                                     const CUDA_MEMCPY3D *box, CUcontext context) {
  struct effect effect;
  if (!is_handle(context, CONTEXT_HANDLE))
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = boxed(box, &effect);
  if (result)
    return result;
  struct sg_item item = copy_item(context, &effect);
  result = add(out, graph, on, count, NODE_MEMCPY, &item, &effect);
  if (!result)
    (*out)->memcpy = *box;
  return result;
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count,
                                     const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
  if (!is_handle(context, CONTEXT_HANDLE))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!params || !params->dst || (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4))
    return CUDA_ERROR_INVALID_VALUE;
  struct effect effect = {.kind = EFFECT_SET,
                          .element = params->elementSize,
                          .value = params->value,
                          .dst = (void *)(uintptr_t)params->dst,
                          .width = params->width * params->elementSize,
                          .height = params->height,
                          .depth = 1,
                          .dst_pitch = params->pitch};
  struct sg_item item = copy_item(context, &effect);
  CUresult result = add(out, graph, on, count, NODE_MEMSET, &item, &effect);
  if (!result)
    memcpy(&(*out)->memset, params, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx));
  return result;
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count,
                                   const CUDA_HOST_NODE_PARAMS *params) {
  if (!params || !params->fn)
    return CUDA_ERROR_INVALID_VALUE;
  struct effect effect = {.kind = EFFECT_CALL, .call = params->fn, .data = params->userData};
  return add(out, graph, on, count, NODE_HOST, &(struct sg_item){.kind = SG_HOST}, &effect);
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count) {
  return add(out, graph, on, count, NODE_EMPTY, &(struct sg_item){.kind = SG_WRITE}, NULL);
}

EXPORT CUresult cuGraphAddDependencies(CUgraph graph, CUgraphNode const *from, CUgraphNode const *to, size_t count) {
  CUresult result = valid(graph);
  for (size_t n = 0; !result && n < count; n++) {
    if (!is_handle(from[n], NODE_HANDLE) || !is_handle(to[n], NODE_HANDLE) || from[n]->graph != graph ||
        to[n]->graph != graph || from[n] == to[n])
      return CUDA_ERROR_INVALID_VALUE;
    result = node_depend(to[n], from[n]) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  return result;
}

EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
  if (!is_handle(node, NODE_HANDLE) || node->type != NODE_KERNEL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = kernel_item(params, &node->item);
  if (!result)
    node->kernel = *params;
  return result;
}

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
  if (!is_handle(node, NODE_HANDLE) || node->type != NODE_KERNEL || !params)
    return CUDA_ERROR_INVALID_VALUE;
  *params = node->kernel;
  return CUDA_SUCCESS;
}

/* --- looking ----------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
  if (!is_handle(node, NODE_HANDLE) || !type)
    return CUDA_ERROR_INVALID_VALUE;
  *type = (int)node->type;
  return CUDA_SUCCESS;
}

/* Nodes for which `wanted` says yes; `count` is room on entry, and the number written (or, without room, wanted). */
static CUresult list(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots_only) {
  CUresult result = valid(graph);
  size_t found = 0;
  if (result || !count)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < graph->count; n++) {
    if (roots_only && graph->nodes[n]->on_count)
      continue;
    if (nodes && found < *count)
      nodes[found] = graph->nodes[n];
    found++;
  }
  *count = nodes && found > *count ? *count : found;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  return list(graph, nodes, count, false);
}
EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  return list(graph, nodes, count, true);
}

EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
  if (!is_handle(node, NODE_HANDLE) || !count)
    return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; nodes && n < node->on_count && n < *count; n++)
    nodes[n] = node->on[n];
  *count = nodes && node->on_count > *count ? *count : node->on_count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
  CUresult result = valid(graph);
  size_t found = 0;
  if (result || !count)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < graph->count; n++)
    for (uint32_t m = 0; m < graph->nodes[n]->on_count; m++, found++)
      if (from && to && found < *count) {
        from[found] = graph->nodes[n]->on[m];
        to[found] = graph->nodes[n];
      }
  *count = from && found > *count ? *count : found;
  return CUDA_SUCCESS;
}
