/* Executable graphs: made of a graph, launched, changed. graphs/steps.c cuts a graph into steps, which a launch gives
 * to its stream one by one. CUDA's documentation tells what the exported functions do; a comment at one tells only
 * what is special here. */
#include "simgpu/graphs/graph.h"

#include <stdlib.h>
#include <string.h>

struct exec {
  struct handle handle;
  struct graph *graph; /* its own */
  uint64_t flags;
  struct step *steps;
  uint32_t count;
};

/* Read the executable's graph again. On failure it keeps its old steps. */
CUresult exec_rebuild(CUgraphExec exec) {
  struct step *steps;
  uint32_t count;
  CUresult result = steps_read(exec->graph, &steps, &count);
  if (result)
    return result;
  steps_free(exec->steps, exec->count);
  exec->steps = steps;
  exec->count = count;
  return CUDA_SUCCESS;
}

/* The executable's own copy of a node of the graph that it was made from; NULL: it has none, or a handle is
 * invalid. */
struct node *exec_node(CUgraphExec exec, CUgraphNode node) {
  return is_handle(exec, EXEC_HANDLE) && is_handle(node, NODE_HANDLE) ? graph_find(exec->graph, node) : NULL;
}

/* --- making and ending -------------------------------------------------------------------------------------------- */

/* Free an executable with its graph and its steps. An executable that was made needs graph_memory_retire before. */
static void exec_free(struct exec *exec) {
  steps_free(exec->steps, exec->count);
  if (exec->graph)
    graph_free(exec->graph);
  handle_free(exec);
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream handle);
EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec);

/* The executable gets a clone of the graph, which is cut into steps. Each allocation of a graph may be in one
 * executable at a time. */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  CUresult result = graph_valid(graph);
  if (result || !out || flags & ~(unsigned long long)INSTANTIATE_ALL || graph->capturing)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
    return not_supported("graphs launched from the device");
  struct exec *exec = handle_new(EXEC_HANDLE, sizeof *exec);
  if (!exec)
    return CUDA_ERROR_OUT_OF_MEMORY;
  exec->flags = flags;
  exec->graph = graph_clone(graph);
  result = exec->graph ? exec_rebuild(exec) : CUDA_ERROR_OUT_OF_MEMORY;
  if (!result)
    result = graph_memory_instantiate(exec->graph);
  if (result)
    exec_free(exec);
  else
    *out = exec;
  return result;
}

/* With CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD also upload the executable; if that fails, there is none. */
EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  if (!params)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = cuGraphInstantiateWithFlags(out, graph, params->flags);
  if (!result && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
    if ((result = cuGraphUpload(*out, params->hUploadStream)))
      cuGraphExecDestroy(*out);
  params->hErrNode_out = NULL;
  /* CUgraphInstantiateResult: NODE_OPERATION_NOT_SUPPORTED, ERROR, SUCCESS */
  params->result_out = result ? result == CUDA_ERROR_NOT_SUPPORTED ? 3 : 1 : 0;
  return result;
}
EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  if (params && !params->hUploadStream)
    params->hUploadStream = CU_STREAM_PER_THREAD;
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

/* Launches in flight have their own copies of the effects. */
EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
  if (!is_handle(exec, EXEC_HANDLE))
    return CUDA_ERROR_INVALID_VALUE;
  graph_memory_retire(exec->graph);
  exec_free(exec);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags) {
  if (!is_handle(exec, EXEC_HANDLE) || !flags)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

/* --- launching ---------------------------------------------------------------------------------------------------- */

/* Find the stream of a launch or an upload, and check the executable. */
static CUresult find_for_launch(CUgraphExec exec, CUstream handle, struct stream **stream) {
  struct context *context;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, stream);
  return result ? result : is_handle(exec, EXEC_HANDLE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Give the device the work of a step as one item, with the step's effects. The item's demand is the part of the SMs
 * that the work needs on average, from 1 to SG_ALL_SMS. */
static CUresult launch_work(struct stream *stream, const struct step *step) {
  static uint32_t name = SG_NONE; /* the same for every launch of this process */
  if (name == SG_NONE) {
    sg_lock(&process.state);
    name = sg_intern(process.state.shared, "graph");
    sg_unlock(&process.state);
  }
  /* Branches that do not fit on the SMs together share them: then the graph takes the sum of its work. */
  uint64_t whole_ns = step->whole_device_ns, duration_ns = step->duration_ns;
  if (process.state.shared->model.profile.streams_share_sms && whole_ns > duration_ns)
    duration_ns = whole_ns;
  uint64_t demand = duration_ns ? (whole_ns * SG_ALL_SMS + duration_ns - 1) / duration_ns : 1;
  struct sg_item item = {.kind = SG_GRAPH,
                         .flags = SG_LOGGED,
                         .name = name,
                         .demand = demand < 1            ? 1
                                   : demand < SG_ALL_SMS ? (uint32_t)demand
                                                         : SG_ALL_SMS,
                         .duration_ns = duration_ns};
  struct effect empty = {.kind = EFFECT_LIST}; /* has no effect, but makes the owner poll the word of a spin */
  if (step->spin) {
    item.flags |= SG_SPIN;
    item.watch = step->watch;
  }
  return submit(stream, item, step->effects ? step->effects : step->spin ? &empty : NULL, NULL);
}

/* Give the stream the operations of a batch one by one. */
static CUresult launch_words(struct stream *stream, const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch) {
  CUresult result = CUDA_SUCCESS;
  for (unsigned n = 0; !result && n < batch->count; n++)
    result = submit_operation(stream, &batch->paramArray[n]);
  return result;
}

/* Give the stream one step: work, or what the step's node does. */
static CUresult launch_step(struct stream *stream, const struct step *step) {
  const struct body *body = step->node ? &step->node->body : NULL;
  if (step->kind == STEP_WORK)
    return launch_work(stream, step);
  switch (body->params.type) {
  case CU_GRAPH_NODE_TYPE_HOST:
    return submit(stream, (struct sg_item){.kind = SG_HOST}, body->effect, NULL);
  case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    return submit_record(stream, body->params.eventWait.event);
  case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    return submit_wait(stream, body->params.eventWait.event);
  default:
    return launch_words(stream, &body->params.memOp);
  }
}

/* Capture a launch: add a child graph to the capture, a copy of the executable's graph. */
static CUresult capture_launch(CUgraphExec exec, struct stream *stream) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph.graph = exec->graph};
  struct body body;
  CUresult result = body_make(&params, &body);
  if (!result)
    result = capture_node(stream, &body);
  if (result)
    body_free(&body);
  return result;
}

/* Give the stream the steps of the executable, one after the other. Before that, take the memory of its graph if it is
 * not taken yet. In a capture the launch becomes a child graph instead. */
EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  uint64_t entry_ns = sg_now();
  struct stream *stream;
  CUresult result = find_for_launch(exec, handle, &stream);
  if (!result)
    result = legacy_conflict(stream);
  if (result)
    return result;
  if (is_capturing(stream))
    return capture_launch(exec, stream);
  result = graph_memory_reserve(exec->graph, stream->context);
  if (!result)
    result = graph_memory_launch(exec->graph, exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  if (result)
    return result;
  burn(entry_ns, process.settings.launch_cost_ns);
  for (uint32_t n = 0; !result && n < exec->count; n++)
    result = launch_step(stream, &exec->steps[n]);
  return result;
}
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return cuGraphLaunch(exec, stream ? stream : CU_STREAM_PER_THREAD);
}

/* An upload has nothing to do but to take the graph's memory. */
EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
  struct stream *stream;
  CUresult result = find_for_launch(exec, handle, &stream);
  if (!result)
    result = legacy_conflict(stream);
  if (!result && is_capturing(stream))
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return result ? result : graph_memory_reserve(exec->graph, stream->context);
}
EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return cuGraphUpload(exec, stream ? stream : CU_STREAM_PER_THREAD);
}

/* --- changing ----------------------------------------------------------------------------------------------------- */

/* The executable's copy of a node that can be enabled and disabled. Only a node with a cost and a result of its
 * own can be left out: a kernel, a copy or a set. */
static CUresult find_switchable(CUgraphExec exec, CUgraphNode original, struct node **node) {
  *node = exec_node(exec, original);
  return *node && (*node)->body.params.type <= CU_GRAPH_NODE_TYPE_MEMSET ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The executable's graph is cut into steps again: a disabled node has no work in them. */
EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode original, unsigned enabled) {
  struct node *node;
  CUresult result = find_switchable(exec, original, &node);
  if (!result) {
    node->disabled = !enabled;
    result = exec_rebuild(exec);
  }
  return result;
}

EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode original, unsigned *enabled) {
  struct node *node;
  CUresult result = enabled ? find_switchable(exec, original, &node) : CUDA_ERROR_INVALID_VALUE;
  if (!result)
    *enabled = !node->disabled;
  return result;
}

/* The answer of a refused update: the reason, and the node of the new graph at fault (NULL: no single one). If an
 * edge to that node is at fault, `from` is the node at its begin; else NULL. */
static CUgraphExecUpdateResultInfo refused(int why, struct node *node, struct node *from) {
  return (CUgraphExecUpdateResultInfo){why, node, from};
}

/* Whether the executable's graph `own` can be updated from `update`. If so, `result` of the answer is 0; else the
 * answer tells what differs. The nodes are paired in the order in which they were added. */
static CUgraphExecUpdateResultInfo compare(struct graph *own, struct graph *update) {
  if (own->count != update->count)
    return refused(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL, NULL);
  for (uint32_t n = 0; n < own->count; n++) {
    struct node *old = own->nodes[n], *new = update->nodes[n];
    if (old->body.params.type != new->body.params.type)
      return refused(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, new, NULL);
    if (old->dependency_count != new->dependency_count)
      return refused(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, new, NULL);
    for (uint32_t m = 0; m < old->dependency_count; m++)
      if (graph_index(own, old->dependencies[m]) != graph_index(update, new->dependencies[m]))
        return refused(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, new, new->dependencies[m]);
    if (old->body.memory != new->body.memory)
      return refused(CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, new, NULL);
    if (old->body.params.type == CU_GRAPH_NODE_TYPE_MEMCPY && old->body.item.kind != new->body.item.kind)
      return refused(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, new, NULL);
    CUgraphExecUpdateResultInfo child = {0};
    if (old->body.child)
      child = compare(old->body.child, new->body.child);
    if (child.result)
      return child;
  }
  return (CUgraphExecUpdateResultInfo){0};
}

/* Replace the bodies in the executable's graph `own` by copies of those in `update`. The nodes stay: the program names
 * them by the nodes of the graph that the executable was made from. False: there is no memory, and some bodies may be
 * replaced. */
static bool replace(struct graph *own, struct graph *update) {
  for (uint32_t n = 0; n < own->count; n++) {
    struct body body, *old = &own->nodes[n]->body;
    if (old->child) {
      if (!replace(old->child, update->nodes[n]->body.child))
        return false;
      continue;
    }
    if (!body_copy(&update->nodes[n]->body, &body))
      return false;
    body_free(old);
    *old = body;
  }
  return true;
}

/* Copy the bodies of the graph's nodes into the executable, if the two have the same form. Else nothing changes, and
 * `info` (may be NULL) tells what differs. */
EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  CUgraphExecUpdateResultInfo answer = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
  CUresult result = graph_valid(graph);
  if (!result)
    result = is_handle(exec, EXEC_HANDLE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (!result)
    answer = compare(exec->graph, graph);
  if (!result && answer.result)
    result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  if (!result)
    result = replace(exec->graph, graph) ? exec_rebuild(exec) : CUDA_ERROR_OUT_OF_MEMORY;
  if (info)
    *info = answer;
  return result;
}
EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *verdict) {
  CUgraphExecUpdateResultInfo info;
  CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
  if (error)
    *error = info.errorNode;
  if (verdict)
    *verdict = info.result;
  return result;
}
