/* Conditional nodes: the handles of conditions, and the graphs that run under one. */
#include "simgpu/graphs/graph.h"

/* Kernels compute nothing, so no kernel sets a condition: only its default value counts, which each launch assigns. If
 * that is not zero, the body runs once, also that of a WHILE node; else it never runs. The handle's lowest bit tells
 * whether the body runs, and its other bits make it unique. */
EXPORT CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph, CUcontext context,
                                               unsigned value, unsigned flags) {
  CUresult result = graph_valid(graph);
  if (result || !out || flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (context && !is_handle(context, CONTEXT_HANDLE))
    return CUDA_ERROR_INVALID_CONTEXT;
  bool runs = value && flags & CU_GRAPH_COND_ASSIGN_DEFAULT;
  *out = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED) << 1 | runs;
  return CUDA_SUCCESS;
}

/* Make the graph of the condition, which the program then fills. */
CUresult conditional_body(struct body *body) {
  const CUDA_CONDITIONAL_NODE_PARAMS *params = &body->params.conditional;
  if (!params->handle || !params->size)
    return CUDA_ERROR_INVALID_VALUE;
  if (params->size > 1 || (params->type != CU_GRAPH_COND_TYPE_IF && params->type != CU_GRAPH_COND_TYPE_WHILE))
    return not_supported("a conditional node with several graphs");
  body->child = graph_new();
  return body->child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The lowest bit of a condition's handle tells whether its graph runs. All other nodes run. */
bool body_runs(const struct body *body) {
  return body->params.type != CU_GRAPH_NODE_TYPE_CONDITIONAL || body->params.conditional.handle & 1;
}
