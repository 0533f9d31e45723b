/* Executable graphs: one piece of device work as long as the longest path, then its effects in order. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct exec {
  struct handle handle;
  uint64_t duration_ns;
  uint32_t nodes;
  uint64_t shape;         /* of the graph it was made from: an update must have the same */
  uint64_t watch;         /* spin node: the word */
  bool spin, device;      /* device: has any work beside host functions */
  struct effect *effects; /* in order; NULL: none */
  struct effect *calls;   /* host functions: they follow the device work */
};

static uint64_t shape_of(const struct graph *graph) {
  uint64_t shape = graph->count;
  for (uint32_t n = 0; n < graph->count; n++)
    shape = shape * 1000003 + (uint64_t)graph->nodes[n]->type * 131 + graph->nodes[n]->on_count;
  return shape;
}

/* Fill an executable from a graph; what it held before is dropped only on success. */
static CUresult build(struct exec *exec, struct graph *graph) {
  struct node **order = malloc((graph->count + 1) * sizeof *order);
  if (!order)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = graph_order(graph, order) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  struct effect *effects = NULL, *calls = NULL, **effect_link = &effects, **call_link = &calls;
  uint64_t duration_ns = 0, watch = 0;
  bool spin = false, device = false;
  for (uint32_t n = 0; !result && n < graph->count; n++) {
    const struct node *node = order[n];
    duration_ns = node->until_ns > duration_ns ? node->until_ns : duration_ns;
    device |= node->type != NODE_HOST;
    if (node->item.flags & SG_SPIN) {
      spin = true;
      watch = node->item.watch;
    }
    if (!node->effect)
      continue;
    struct effect ***link = node->type == NODE_HOST ? &call_link : &effect_link;
    **link = effect_copy_of(node->effect);
    if (**link)
      *link = &(**link)->next;
    else
      result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  free(order);
  if (result) {
    effect_free(effects);
    effect_free(calls);
    return result;
  }
  effect_free(exec->effects);
  effect_free(exec->calls);
  exec->effects = effects;
  exec->calls = calls;
  exec->duration_ns = duration_ns;
  exec->nodes = graph->count;
  exec->shape = shape_of(graph);
  exec->watch = watch;
  exec->spin = spin;
  exec->device = device;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  CUresult result = ready();
  (void)flags;
  if (result || !out || !is_handle(graph, GRAPH_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  struct exec *exec = handle_new(EXEC_HANDLE, sizeof *exec);
  if (!exec)
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = build(exec, graph);
  if (result)
    handle_free(exec);
  else
    *out = exec;
  return result;
}

typedef struct {
  uint64_t flags;
  CUstream upload;
  CUgraphNode error_node;
  int result;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  CUresult result = cuGraphInstantiateWithFlags(out, graph, params ? params->flags : 0);
  if (params) {
    params->error_node = NULL;
    params->result = result ? 1 : 0;
  }
  return result;
}
EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  return cuGraphInstantiateWithParams(out, graph, params);
}
EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t bytes) {
  if (error)
    *error = NULL;
  if (log && bytes)
    *log = 0;
  return cuGraphInstantiateWithFlags(out, graph, 0);
}
EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t bytes) {
  return cuGraphInstantiate_v2(out, graph, error, log, bytes);
}

/* Launches in flight have copies of the effects. */
EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
  if (!is_handle(exec, EXEC_HANDLE))
    return CUDA_ERROR_INVALID_VALUE;
  effect_free(exec->effects);
  effect_free(exec->calls);
  handle_free(exec);
  return CUDA_SUCCESS;
}

static CUresult update(CUgraphExec exec, CUgraph graph, int *verdict) {
  if (!is_handle(exec, EXEC_HANDLE) || !is_handle(graph, GRAPH_HANDLE))
    return CUDA_ERROR_INVALID_VALUE;
  bool same = exec->shape == shape_of(graph);
  *verdict = same ? 0 : 2; /* CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED */
  return same ? build(exec, graph) : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

typedef struct {
  int result;
  CUgraphNode error_node, error_from_node;
} CUgraphExecUpdateResultInfo;

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  int verdict = 1;
  CUresult result = update(exec, graph, &verdict);
  if (info)
    *info = (CUgraphExecUpdateResultInfo){.result = verdict};
  return result;
}
EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *verdict) {
  int own = 1;
  if (error)
    *error = NULL;
  return update(exec, graph, verdict ? verdict : &own);
}

static CUresult find(CUgraphExec exec, CUstream handle, struct stream **stream) {
  struct context *context;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, stream);
  return result ? result : is_handle(exec, EXEC_HANDLE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  uint64_t entry_ns = sg_now();
  struct stream *stream;
  CUresult result = find(exec, handle, &stream);
  if (!result && is_capturing(stream))
    return not_supported("cuGraphLaunch while capturing");
  if (result)
    return result;
  static uint32_t name = SG_NONE; /* the same for every launch of this process */
  if (name == SG_NONE) {
    sg_lock(&process.state);
    name = sg_intern(process.state.shared, "graph");
    sg_unlock(&process.state);
  }
  burn(entry_ns, process.settings.launch_cost_ns);
  struct sg_item item = {.kind = SG_GRAPH, .flags = SG_LOGGED, .name = name, .duration_ns = exec->duration_ns};
  struct effect watching = {.kind = EFFECT_LIST};
  if (exec->spin) {
    item.flags |= SG_SPIN;
    item.watch = exec->watch;
  }
  if (exec->device)
    result = issue(stream, item, exec->effects ? exec->effects : exec->spin ? &watching : NULL, NULL);
  if (!result && exec->calls)
    result = issue(stream, (struct sg_item){.kind = SG_HOST}, exec->calls, NULL);
  return result;
}
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return cuGraphLaunch(exec, stream ? stream : STREAM_PER_THREAD);
}

/* There is nothing to upload. */
EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
  struct stream *stream;
  return find(exec, handle, &stream);
}
EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return cuGraphUpload(exec, stream ? stream : STREAM_PER_THREAD);
}
EXPORT CUresult cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags) {
  *flags = 0;
  return is_handle(exec, EXEC_HANDLE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                  const CUDA_KERNEL_NODE_PARAMS *params) {
  (void)exec, (void)node, (void)params;
  return not_supported("cuGraphExecKernelNodeSetParams");
}
