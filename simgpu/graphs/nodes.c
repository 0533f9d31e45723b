/* Nodes of graphs: their bodies, and the calls that add, read and change them, in graphs and in executables. A body
 * is what a node does. For each type of node a function here fills in the rest of a body from the parameters in it.
 * CUDA's documentation tells what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/graphs/graph.h"

#include <stdlib.h>
#include <string.h>

/* --- bodies ------------------------------------------------------------------------------------------------------ */

/* Fill in the item of a kernel: that of a launch in the current context. */
static CUresult kernel_body(struct body *body) {
  const CUDA_KERNEL_NODE_PARAMS_v2 *params = &body->params.kernel;
  struct context *context;
  CUresult result = enter(&context);
  CUfunction function = params->func ? params->func : params->kern;
  if (result || !find_function(function))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  struct launch launch = {function,
                          {params->gridDimX, params->gridDimY, params->gridDimZ},
                          {params->blockDimX, params->blockDimY, params->blockDimZ},
                          params->kernelParams,
                          params->extra};
  return launch_item(context, &launch, &body->item);
}

/* Fill in the item and the effect of a copy or set. The item has only its cost; the effect does the work. `context`:
 * where it runs; NULL: in the current one. */
static CUresult transfer_body(struct body *body, struct context *context, const struct effect *effect) {
  CUresult result = context ? CUDA_SUCCESS : enter(&context);
  if (result || !is_handle(context, CONTEXT_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_CONTEXT;
  body->item = copy_item(context, effect);
  body->effect = effect_copy_of(effect);
  return body->effect ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Fill in a copy. Its parameters are those of a 3D copy. */
static CUresult memcpy_body(struct body *body) {
  struct effect effect;
  CUresult result = boxed(&body->params.memcpy.copyParams, &effect);
  return result ? result : transfer_body(body, body->params.memcpy.copyCtx, &effect);
}

/* Fill in a set of `height` rows to a value of 1, 2 or 4 bytes. */
static CUresult memset_body(struct body *body) {
  const CUDA_MEMSET_NODE_PARAMS_v2 *params = &body->params.memset;
  if (!params->dst || (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4))
    return CUDA_ERROR_INVALID_VALUE;
  struct effect effect = {.kind = EFFECT_SET,
                          .element = params->elementSize,
                          .value = params->value,
                          .dst = (void *)(uintptr_t)params->dst,
                          .width = params->width * params->elementSize,
                          .height = params->height,
                          .depth = 1,
                          .dst_pitch = params->pitch};
  return transfer_body(body, params->ctx, &effect);
}

/* Fill in a host function. */
static CUresult host_body(struct body *body) {
  const CUDA_HOST_NODE_PARAMS_v1 *params = &body->params.host;
  struct effect effect = {.kind = EFFECT_CALL, .call = params->fn, .data = params->userData};
  if (!params->fn)
    return CUDA_ERROR_INVALID_VALUE;
  body->item.kind = SG_HOST;
  body->effect = effect_copy_of(&effect);
  return body->effect ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

enum { OWNERSHIP_CLONE, OWNERSHIP_MOVE };

/* Fill in the child: a copy of the graph, or the graph itself if its ownership moves. An error: a graph with memory
 * cannot be copied, and one that is a child already cannot move. */
static CUresult child_body(struct body *body) {
  CUgraph graph = body->params.graph.graph;
  bool moved = body->params.graph.ownership == OWNERSHIP_MOVE;
  CUresult result = graph_valid(graph);
  if (result)
    return result;
  if (moved ? graph->owner != NULL : graph_has_memory(graph))
    return moved ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  body->child = moved ? graph : graph_clone(graph);
  body->params.graph.graph = body->child;
  return body->child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A record or a wait needs only its parameters: check the event. */
static CUresult event_body(struct body *body) {
  return is_handle(body->params.eventWait.event, EVENT_HANDLE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Make the allocation, which can only be memory of a device. Its address is valid from now on, and goes into the
 * parameters. */
static CUresult alloc_body(struct body *body) {
  CUDA_MEM_ALLOC_NODE_PARAMS *params = &body->params.alloc;
  int device = params->poolProps.location.id;
  if (params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 ||
      (uint32_t)device >= process.device_count || !params->bytesize)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = graph_memory_new(process.devices[device], params->bytesize, &body->memory);
  if (!result)
    params->dptr = graph_memory_address(body->memory);
  return result;
}

/* Hold the memory that the node frees. Only memory that a graph allocates can be freed by a node. */
static CUresult free_body(struct body *body) {
  struct block block;
  CUdeviceptr address = body->params.free.dptr;
  if (!find_block(address, &block) || block.address != address || !block.graph)
    return CUDA_ERROR_INVALID_VALUE;
  body->memory = block.graph;
  graph_memory_hold(body->memory);
  return CUDA_SUCCESS;
}

/* Replace the program's array of operations by a copy. False: there is no memory, and the array is NULL. */
static bool own_operations(struct body *body) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS *params = &body->params.memOp;
  CUstreamBatchMemOpParams *own = calloc(params->count + 1, sizeof *own);
  if (own)
    memcpy(own, params->paramArray, params->count * sizeof *own);
  params->paramArray = own;
  return own != NULL;
}

/* Check a batch of operations on words, and replace the program's array by a copy. */
static CUresult batch_body(struct body *body) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS *params = &body->params.memOp;
  CUresult result = params->flags ? CUDA_ERROR_INVALID_VALUE : check_operations(params->paramArray, params->count);
  if (result)
    params->paramArray = NULL; /* it is the program's: body_free must not free it */
  return result ? result : own_operations(body) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Make the body of a node from its parameters. Each body begins as an SG_WRITE of no word, an item that takes no device
 * time; that of an empty node stays so. The caller frees the body (body_free), also after an error. */
CUresult body_make(const CUgraphNodeParams *params, struct body *body) {
  static CUresult (*const makers[])(struct body *) = {[CU_GRAPH_NODE_TYPE_KERNEL] = kernel_body,
                                                      [CU_GRAPH_NODE_TYPE_MEMCPY] = memcpy_body,
                                                      [CU_GRAPH_NODE_TYPE_MEMSET] = memset_body,
                                                      [CU_GRAPH_NODE_TYPE_HOST] = host_body,
                                                      [CU_GRAPH_NODE_TYPE_GRAPH] = child_body,
                                                      [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = event_body,
                                                      [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = event_body,
                                                      [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = alloc_body,
                                                      [CU_GRAPH_NODE_TYPE_MEM_FREE] = free_body,
                                                      [CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = batch_body,
                                                      [CU_GRAPH_NODE_TYPE_CONDITIONAL] = conditional_body};
  CUresult result = ready();
  *body = (struct body){.item.kind = SG_WRITE};
  if (result)
    return result;
  body->params = *params;
  if (params->type == CU_GRAPH_NODE_TYPE_EMPTY)
    return CUDA_SUCCESS;
  if (params->type < 0 || (size_t)params->type >= sizeof makers / sizeof *makers || !makers[params->type])
    return not_supported("this type of graph node");
  return makers[params->type](body);
}

/* Copy a body. False: there is no memory, and nothing is left of the copy. */
bool body_copy(const struct body *from, struct body *to) {
  *to = *from;
  to->effect = from->effect ? effect_copy_of(from->effect) : NULL;
  to->child = from->child ? graph_clone(from->child) : NULL;
  if (to->child && from->params.type == CU_GRAPH_NODE_TYPE_GRAPH)
    to->params.graph.graph = to->child;
  if (to->memory)
    graph_memory_hold(to->memory);
  bool complete = (!from->effect || to->effect) && (!from->child || to->child);
  if (from->params.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
    complete &= own_operations(to);
  if (!complete)
    body_free(to);
  return complete;
}

/* Free what a body owns: its effect, its child graph, its reference to memory, its array of operations. */
void body_free(struct body *body) {
  effect_free(body->effect);
  if (body->child)
    graph_free(body->child);
  if (body->memory)
    graph_memory_drop(body->memory);
  if (body->params.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
    free(body->params.memOp.paramArray);
}

/* The body for an item that a capturing stream is given. A program can read the parameters of its node: they are filled
 * in as far as they are known. */
CUresult body_of_item(const struct sg_item *item, const struct effect *effect, struct body *body) {
  *body = (struct body){.item = *item};
  body->effect = effect ? effect_copy_of(effect) : NULL;
  body->params.type = item->kind == SG_KERNEL ? CU_GRAPH_NODE_TYPE_KERNEL
                      : item->kind == SG_HOST ? CU_GRAPH_NODE_TYPE_HOST
                      : effect ? (effect->kind == EFFECT_SET ? CU_GRAPH_NODE_TYPE_MEMSET : CU_GRAPH_NODE_TYPE_MEMCPY)
                               : CU_GRAPH_NODE_TYPE_EMPTY;
  if (body->params.type == CU_GRAPH_NODE_TYPE_HOST)
    body->params.host = (CUDA_HOST_NODE_PARAMS_v1){effect->call, effect->data};
  if (body->params.type == CU_GRAPH_NODE_TYPE_MEMSET)
    body->params.memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = (uintptr_t)effect->dst,
                                                       .pitch = effect->dst_pitch,
                                                       .value = (unsigned)effect->value,
                                                       .elementSize = effect->element,
                                                       .width = effect->width / effect->element,
                                                       .height = effect->height};
  if (body->params.type == CU_GRAPH_NODE_TYPE_MEMCPY && effect->kind == EFFECT_COPY)
    body->params.memcpy.copyParams = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                                                     .srcDevice = (uintptr_t)effect->src,
                                                     .srcPitch = effect->src_pitch,
                                                     .srcHeight = effect->height,
                                                     .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                                                     .dstDevice = (uintptr_t)effect->dst,
                                                     .dstPitch = effect->dst_pitch,
                                                     .dstHeight = effect->height,
                                                     .WidthInBytes = effect->width,
                                                     .Height = effect->height,
                                                     .Depth = effect->depth};
  return effect && !body->effect ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* --- the general calls ------------------------------------------------------------------------------------------- */

/* Add a node that depends on the nodes `on`. What the driver chose goes into `params`: the address of an allocation,
 * the child graph, the graph of a condition. */
static CUresult add(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count, CUgraphNodeParams *params) {
  CUresult result = graph_valid(graph);
  if (result || !out || (count && !on) || !params)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  for (size_t n = 0; n < count; n++)
    if (!is_handle(on[n], NODE_HANDLE) || on[n]->graph != graph)
      return CUDA_ERROR_INVALID_VALUE;
  struct body body;
  result = body_make(params, &body);
  if (!result && params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
    result = graph_memory_freed_by(body.memory, graph);
  struct node *node = result ? NULL : graph_add(graph, &body, on, (uint32_t)count);
  if (!node) {
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH && body.child == params->graph.graph)
      body.child = NULL; /* the program still owns it */
    body_free(&body);
    return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    params->alloc.dptr = node->body.params.alloc.dptr;
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH)
    params->graph.graph = node->body.child;
  if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
    params->conditional.phGraph_out = &node->body.child;
  *out = node;
  return CUDA_SUCCESS;
}

/* Give a node other parameters of the same type. Memory and conditions belong to their graph and cannot be changed. */
static CUresult set(struct node *node, const CUgraphNodeParams *params) {
  if (!is_handle(node, NODE_HANDLE) || !params || node->body.params.type != params->type)
    return CUDA_ERROR_INVALID_VALUE;
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
      params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
    return CUDA_ERROR_NOT_SUPPORTED;
  struct body body;
  CUresult result = body_make(params, &body);
  if (!result && body.child)
    body.child->owner = node;
  struct body unused = result ? body : node->body;
  if (!result)
    node->body = body;
  body_free(&unused);
  return result;
}

/* Give the executable's own copy of a node other parameters, and cut its graph into steps again. */
static CUresult exec_set(CUgraphExec exec, CUgraphNode original, const CUgraphNodeParams *params) {
  struct node *node = exec_node(exec, original);
  if (!node || !params)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = set(node, params);
  return result ? result : exec_rebuild(exec);
}

/* The parameters of a node. An error: it is not of this type. */
static CUresult get(CUgraphNode node, int type, const CUgraphNodeParams **params) {
  if (!is_handle(node, NODE_HANDLE) || node->body.params.type != type)
    return CUDA_ERROR_INVALID_VALUE;
  *params = &node->body.params;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count,
                               CUgraphNodeParams *params) {
  return add(out, graph, on, count, params);
}
EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, const CUgraphEdgeData *edges,
                                  size_t count, CUgraphNodeParams *params) {
  (void)edges;
  return add(out, graph, on, count, params);
}
EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params) {
  return set(node, params);
}
EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params) {
  return exec_set(exec, node, params);
}

/* --- the calls of each type -------------------------------------------------------------------------------------- */

/* Add, get, set and set in an executable, for a type that has its parameters in one struct. `bytes`: the size of the
 * struct in that version of the call. */
#define ADD(name, type_, member, ctype, bytes)                                                                         \
  EXPORT CUresult name(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count, const ctype *params) {    \
    CUgraphNodeParams own = {.type = type_};                                                                           \
    if (!params)                                                                                                       \
      return CUDA_ERROR_INVALID_VALUE;                                                                                 \
    memcpy(&own.member, params, bytes);                                                                                \
    return add(out, graph, on, count, &own);                                                                           \
  }
#define GET(name, type_, member, ctype, bytes)                                                                         \
  EXPORT CUresult name(CUgraphNode node, ctype *params) {                                                              \
    const CUgraphNodeParams *own;                                                                                      \
    CUresult result = params ? get(node, type_, &own) : CUDA_ERROR_INVALID_VALUE;                                      \
    if (!result)                                                                                                       \
      memcpy(params, &own->member, bytes);                                                                             \
    return result;                                                                                                     \
  }
#define SET(name, type_, member, ctype, bytes)                                                                         \
  EXPORT CUresult name(CUgraphNode node, const ctype *params) {                                                        \
    CUgraphNodeParams own = {.type = type_};                                                                           \
    if (!params)                                                                                                       \
      return CUDA_ERROR_INVALID_VALUE;                                                                                 \
    memcpy(&own.member, params, bytes);                                                                                \
    return set(node, &own);                                                                                            \
  }
#define EXEC_SET(name, type_, member, ctype, bytes)                                                                    \
  EXPORT CUresult name(CUgraphExec exec, CUgraphNode node, const ctype *params) {                                      \
    CUgraphNodeParams own = {.type = type_};                                                                           \
    if (!params)                                                                                                       \
      return CUDA_ERROR_INVALID_VALUE;                                                                                 \
    memcpy(&own.member, params, bytes);                                                                                \
    return exec_set(exec, node, &own);                                                                                 \
  }
#define ALL(add_name, node_name, exec_name, suffix, type, member, ctype, bytes)                                        \
  ADD(add_name##suffix, type, member, ctype, bytes)                                                                    \
  GET(node_name##GetParams##suffix, type, member, ctype, bytes)                                                        \
  SET(node_name##SetParams##suffix, type, member, ctype, bytes)                                                        \
  EXEC_SET(exec_name##SetParams##suffix, type, member, ctype, bytes)

#define KERNEL_V1 offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kern) /* of CUDA 10 */
#define MEMSET_V1 offsetof(CUDA_MEMSET_NODE_PARAMS_v2, ctx)
ALL(cuGraphAddKernelNode, cuGraphKernelNode, cuGraphExecKernelNode, , CU_GRAPH_NODE_TYPE_KERNEL, kernel,
    CUDA_KERNEL_NODE_PARAMS_v2, KERNEL_V1)
ALL(cuGraphAddKernelNode, cuGraphKernelNode, cuGraphExecKernelNode, _v2, CU_GRAPH_NODE_TYPE_KERNEL, kernel,
    CUDA_KERNEL_NODE_PARAMS_v2, sizeof *params)
ALL(cuGraphAddHostNode, cuGraphHostNode, cuGraphExecHostNode, , CU_GRAPH_NODE_TYPE_HOST, host, CUDA_HOST_NODE_PARAMS_v1,
    sizeof *params)
ALL(cuGraphAddBatchMemOpNode, cuGraphBatchMemOpNode, cuGraphExecBatchMemOpNode, , CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
    memOp, CUDA_BATCH_MEM_OP_NODE_PARAMS, sizeof *params)
GET(cuGraphMemcpyNodeGetParams, CU_GRAPH_NODE_TYPE_MEMCPY, memcpy.copyParams, CUDA_MEMCPY3D, sizeof *params)
GET(cuGraphMemsetNodeGetParams, CU_GRAPH_NODE_TYPE_MEMSET, memset, CUDA_MEMSET_NODE_PARAMS_v2, MEMSET_V1)
SET(cuGraphMemcpyNodeSetParams, CU_GRAPH_NODE_TYPE_MEMCPY, memcpy.copyParams, CUDA_MEMCPY3D, sizeof *params)
SET(cuGraphMemsetNodeSetParams, CU_GRAPH_NODE_TYPE_MEMSET, memset, CUDA_MEMSET_NODE_PARAMS_v2, MEMSET_V1)
GET(cuGraphMemAllocNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_ALLOC, alloc, CUDA_MEM_ALLOC_NODE_PARAMS, sizeof *params)
GET(cuGraphMemFreeNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_FREE, free.dptr, CUdeviceptr, sizeof *params)
GET(cuGraphChildGraphNodeGetGraph, CU_GRAPH_NODE_TYPE_GRAPH, graph.graph, CUgraph, sizeof *params)

/* Copies and sets get their context as a parameter of its own. */
#define IN_CONTEXT(add_name, exec_name, type_, member, context_member, ctype, bytes)                                   \
  EXPORT CUresult add_name(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count, const ctype *params,  \
                           CUcontext context) {                                                                        \
    CUgraphNodeParams own = {.type = type_};                                                                           \
    if (!params)                                                                                                       \
      return CUDA_ERROR_INVALID_VALUE;                                                                                 \
    memcpy(&own.member, params, bytes);                                                                                \
    own.context_member = context;                                                                                      \
    return is_handle(context, CONTEXT_HANDLE) ? add(out, graph, on, count, &own) : CUDA_ERROR_INVALID_CONTEXT;         \
  }                                                                                                                    \
  EXPORT CUresult exec_name(CUgraphExec exec, CUgraphNode node, const ctype *params, CUcontext context) {              \
    CUgraphNodeParams own = {.type = type_};                                                                           \
    if (!params)                                                                                                       \
      return CUDA_ERROR_INVALID_VALUE;                                                                                 \
    memcpy(&own.member, params, bytes);                                                                                \
    own.context_member = context;                                                                                      \
    return is_handle(context, CONTEXT_HANDLE) ? exec_set(exec, node, &own) : CUDA_ERROR_INVALID_CONTEXT;               \
  }
IN_CONTEXT(cuGraphAddMemcpyNode, cuGraphExecMemcpyNodeSetParams, CU_GRAPH_NODE_TYPE_MEMCPY, memcpy.copyParams,
           memcpy.copyCtx, CUDA_MEMCPY3D, sizeof *params)
IN_CONTEXT(cuGraphAddMemsetNode, cuGraphExecMemsetNodeSetParams, CU_GRAPH_NODE_TYPE_MEMSET, memset, memset.ctx,
           CUDA_MEMSET_NODE_PARAMS_v2, MEMSET_V1)

/* Events, child graphs and addresses are passed by value. */
#define BY_VALUE(add_name, type_, member, ctype)                                                                       \
  EXPORT CUresult add_name(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count, ctype value) {        \
    CUgraphNodeParams own = {.type = type_, .member = value};                                                          \
    return add(out, graph, on, count, &own);                                                                           \
  }
#define EXEC_BY_VALUE(exec_name, type_, member, ctype)                                                                 \
  EXPORT CUresult exec_name(CUgraphExec exec, CUgraphNode node, ctype value) {                                         \
    CUgraphNodeParams own = {.type = type_, .member = value};                                                          \
    return exec_set(exec, node, &own);                                                                                 \
  }
#define EVENT(name, type_)                                                                                             \
  BY_VALUE(cuGraphAdd##name##Node, type_, eventWait.event, CUevent)                                                    \
  GET(cuGraph##name##NodeGetEvent, type_, eventWait.event, CUevent, sizeof *params)                                    \
  EXPORT CUresult cuGraph##name##NodeSetEvent(CUgraphNode node, CUevent event) {                                       \
    return set(node, &(CUgraphNodeParams){.type = type_, .eventWait.event = event});                                   \
  }                                                                                                                    \
  EXEC_BY_VALUE(cuGraphExec##name##NodeSetEvent, type_, eventWait.event, CUevent)
EVENT(EventRecord, CU_GRAPH_NODE_TYPE_EVENT_RECORD)
EVENT(EventWait, CU_GRAPH_NODE_TYPE_WAIT_EVENT)
BY_VALUE(cuGraphAddChildGraphNode, CU_GRAPH_NODE_TYPE_GRAPH, graph.graph, CUgraph)
EXEC_BY_VALUE(cuGraphExecChildGraphNodeSetParams, CU_GRAPH_NODE_TYPE_GRAPH, graph.graph, CUgraph)
BY_VALUE(cuGraphAddMemFreeNode, CU_GRAPH_NODE_TYPE_MEM_FREE, free.dptr, CUdeviceptr)

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *params) {
  CUgraphNodeParams own = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
  if (!params)
    return CUDA_ERROR_INVALID_VALUE;
  own.alloc = *params;
  CUresult result = add(out, graph, on, count, &own);
  params->dptr = own.alloc.dptr;
  return result;
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, CUgraphNode const *on, size_t count) {
  return add(out, graph, on, count, &(CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EMPTY});
}
