/*
 * The memory of executable graphs. When a graph is uploaded or launched for the first time, its allocation nodes take
 * memory from a pool of the device, and keep it until the pool is trimmed. Before that call the sum of its allocation
 * nodes is reserved; after it the charge becomes what the pool has really grown by.
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include "hook/memory/graph.h"

#include <errno.h>
#include <stdlib.h>

#include "hook/gate/gate.h"

#define DEPTH_MAX 16 /* of child graphs within child graphs */

static uint32_t graphs_allocate; /* 1: some graph of this process may have allocation nodes */
static uint64_t trims =
    1; /* counts trims of the graphs' pools: a graph launched before one must take its memory again */

/* An allocation node is made, so graphs of this process may take memory from now on. */
void sp_graphs_allocate(void) {
  sp_store(&graphs_allocate, 1);
}

/* Was any allocation node made in this process? If not, graph launches skip all that is here. */
bool sp_graphs_may_allocate(void) {
  return sp_load(&graphs_allocate) != 0;
}

/* A pool of graphs was trimmed: every graph that is launched after this takes its memory again. */
void sp_graphs_trimmed(void) {
  sp_add(&trims, 1);
}

/* The sum in bytes of all allocation nodes of a graph and of its child graphs. *device is SP_NO_DEVICE before the first
 * node, which sets it: that device is charged for all, even if others are on other devices. `depth`: of the child
 * graph; 0: the graph itself. */
static uint64_t sum_of(CUgraph graph, int *device, int depth) {
  const struct sp_driver *driver = sp_driver();
  size_t count = 0;
  if (depth == DEPTH_MAX || driver->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0) {
    return 0;
  }
  CUgraphNode *nodes = calloc(count, sizeof *nodes);
  uint64_t total = 0;
  if (nodes != NULL && driver->cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS) {
    for (size_t index = 0; index < count; index++) {
      int type = 0;
      CUDA_MEM_ALLOC_NODE_PARAMS node;
      CUgraph child = NULL;
      if (driver->cuGraphNodeGetType(nodes[index], &type) != CUDA_SUCCESS) {
        continue;
      }
      if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
          driver->cuGraphMemAllocNodeGetParams(nodes[index], &node) == CUDA_SUCCESS) {
        total += node.bytesize;
        *device = *device == SP_NO_DEVICE ? node.poolProps.location.id : *device;
      } else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
                 driver->cuGraphChildGraphNodeGetGraph(nodes[index], &child) == CUDA_SUCCESS) {
        total += sum_of(child, device, depth + 1);
      }
    }
  }
  free(nodes);
  return total;
}

/* How many bytes a graph may allocate, and on which *device. 0: none, or it is not known. errno stays. */
static uint64_t allocated_bytes(CUgraph graph, int *device) {
  const struct sp_driver *driver = sp_driver();
  *device = SP_NO_DEVICE;
  if (!sp_graphs_may_allocate() || driver->cuGraphGetNodes == NULL || driver->cuGraphNodeGetType == NULL ||
      driver->cuGraphMemAllocNodeGetParams == NULL || driver->cuGraphChildGraphNodeGetGraph == NULL) {
    return 0;
  }
  int saved_errno = errno;
  uint64_t bytes = sum_of(graph, device, /* depth */ 0);
  errno = saved_errno;
  return bytes;
}

/* An executable graph has been made of `graph`: remember how much it may allocate, as a row of the allocation table.
 * errno stays. */
static void note_executable(CUgraphExec executable, CUgraph graph) {
  int saved_errno = errno, device;
  uint64_t bytes = allocated_bytes(graph, &device);
  struct sp_allocation_table *table = bytes != 0 && sp_allocations_room() ? sp_allocations_lock() : NULL;
  if (table != NULL) {
    struct sp_allocation row = {.key = (uint64_t)(uintptr_t)executable,
                                .bytes = bytes,
                                .device_ordinal = (int16_t)device,
                                .kind = SP_MEMORY_GRAPH};
    sp_allocations_insert(table, &row);
    sp_allocations_unlock(table);
  }
  errno = saved_errno;
}

/* Reserve `bytes` in the device's pool of graphs, into *growth. False: they do not fit under the cap. If there is
 * nothing to reserve, growth->pool stays NULL. */
static bool reserve(int device, uint64_t bytes, struct sp_growth *growth) {
  struct sp_pool *pool = bytes != 0 ? sp_pool_of(device, NULL) : NULL;
  return pool == NULL || sp_pool_begin_whole(growth, pool, bytes);
}

/* The graph is about to be launched or uploaded: reserve what it is about to take, into *growth, which sp_graph_end
 * needs. False: it does not fit under the cap, and the call must not be made. */
bool sp_graph_begin(CUgraphExec executable, struct sp_growth *growth) {
  growth->pool = NULL;
  struct sp_allocation_table *table = sp_allocations_lock();
  if (table == NULL) {
    return true;
  }
  struct sp_allocation *row = sp_allocations_find(table, SP_MEMORY_GRAPH, (uint64_t)(uintptr_t)executable);
  /* `owner`: the count of trims when it last took its memory. If it was none since, it still has that memory. */
  uint64_t bytes = row != NULL && row->owner != sp_load(&trims) ? row->bytes : 0;
  int device = row != NULL ? row->device_ordinal : SP_NO_DEVICE;
  sp_allocations_unlock(table);
  return reserve(device, bytes, growth);
}

/* The driver has launched or uploaded the graph, with `result`. On success the charge becomes what the pool has grown
 * by, and the row's owner notes the present count of trims. On failure the reservation ends. */
void sp_graph_end(CUgraphExec executable, struct sp_growth *growth, CUresult result) {
  if (growth->pool == NULL) {
    return;
  }
  if (result != CUDA_SUCCESS) {
    sp_pool_undone(growth, /* allocated */ false);
    return;
  }
  sp_pool_grown(growth); /* it has its memory: charge what the pool has rounded it up to */
  struct sp_allocation_table *table = sp_allocations_lock();
  struct sp_allocation *row =
      table != NULL ? sp_allocations_find(table, SP_MEMORY_GRAPH, (uint64_t)(uintptr_t)executable) : NULL;
  if (row != NULL) {
    row->owner = sp_load(&trims);
  }
  if (table != NULL) {
    sp_allocations_unlock(table);
  }
}

/* A function that makes an executable graph, *executable, of `graph`. */
#define INSTANTIATE(name, parameters, arguments)                                                                       \
  SP_WRAPPER(name, parameters, arguments) {                                                                            \
    CUresult result;                                                                                                   \
    SP_CALL(result, real arguments);                                                                                   \
    if (result == CUDA_SUCCESS) {                                                                                      \
      note_executable(*executable, graph);                                                                             \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
INSTANTIATE(cuGraphInstantiate,
            (CUgraphExec * executable, CUgraph graph, CUgraphNode *wrong, char *log, size_t log_bytes),
            (executable, graph, wrong, log, log_bytes))
INSTANTIATE(cuGraphInstantiate_v2,
            (CUgraphExec * executable, CUgraph graph, CUgraphNode *wrong, char *log, size_t log_bytes),
            (executable, graph, wrong, log, log_bytes))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * executable, CUgraph graph, unsigned long long flags),
            (executable, graph, flags))

/* With such parameters a graph may be uploaded at once: then it takes its memory here. */
#define WITH_PARAMS(name)                                                                                              \
  SP_WRAPPER(name, (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS * params),                  \
             (executable, graph, params)) {                                                                            \
    struct sp_growth growth = {.pool = NULL};                                                                          \
    CUresult result;                                                                                                   \
    if (params != NULL && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {                                      \
      int device;                                                                                                      \
      uint64_t bytes = allocated_bytes(graph, &device);                                                                \
      if (!reserve(device, bytes, &growth)) {                                                                          \
        params->hErrNode_out = NULL;                                                                                   \
        params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;                                                             \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
      }                                                                                                                \
    }                                                                                                                  \
    SP_CALL(result, real(executable, graph, params));                                                                  \
    if (result == CUDA_SUCCESS) {                                                                                      \
      note_executable(*executable, graph);                                                                             \
    }                                                                                                                  \
    sp_graph_end(result == CUDA_SUCCESS ? *executable : NULL, &growth, result);                                        \
    return result;                                                                                                     \
  }
WITH_PARAMS(cuGraphInstantiateWithParams)
WITH_PARAMS(cuGraphInstantiateWithParams_ptsz)

/* An upload takes the graph's memory as its first launch would. */
#define UPLOAD(name)                                                                                                   \
  SP_WRAPPER(name, (CUgraphExec executable, CUstream stream), (executable, stream)) {                                  \
    struct sp_growth growth = {.pool = NULL};                                                                          \
    CUresult result;                                                                                                   \
    if (sp_graphs_may_allocate() && !sp_graph_begin(executable, &growth)) {                                            \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                                                 \
    }                                                                                                                  \
    SP_CALL(result, real(executable, stream));                                                                         \
    sp_graph_end(executable, &growth, result);                                                                         \
    return result;                                                                                                     \
  }
UPLOAD(cuGraphUpload)
UPLOAD(cuGraphUpload_ptsz)

/* What was learned and noted under the handle ends with the graph. Its pool may hold less afterwards, and is asked. */
SP_WRAPPER(cuGraphExecDestroy, (CUgraphExec executable), (executable)) {
  struct sp_allocation taken;
  bool ours = sp_graphs_may_allocate() && sp_memory_take(SP_MEMORY_GRAPH, (uint64_t)(uintptr_t)executable, &taken);
  CUresult result;
  SP_CALL(result, real(executable));
  if (result == CUDA_SUCCESS) {
    sp_gate_work_changed(sp_work_key(executable, 0, 0), /* gone */ true); /* another graph may get the same handle */
  }
  if (ours && result == CUDA_SUCCESS) {
    sp_memory_uncharge(&taken);
    sp_pools_refresh_graphs(taken.device_ordinal);
  } else if (ours) {
    sp_memory_restore(&taken);
  }
  return result;
}

/* A node that allocates is added to a graph. */
SP_WRAPPER(cuGraphAddMemAllocNode,
           (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, void *params),
           (node, graph, after, count, params)) {
  sp_graphs_allocate();
  return real(node, graph, after, count, params);
}

/* A node is added to a graph: note if it allocates. The parameters of the generic functions begin with the type of the
 * node. */
static void note_type(const int *params) {
  if (params != NULL && *params == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    sp_graphs_allocate();
  }
}

SP_WRAPPER(cuGraphAddNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, int *params),
           (node, graph, after, count, params)) {
  note_type(params);
  return real(node, graph, after, count, params);
}

#define ADD_NODE(name)                                                                                                 \
  SP_WRAPPER(                                                                                                          \
      name,                                                                                                            \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int *params),     \
      (node, graph, after, edges, count, params)) {                                                                    \
    note_type(params);                                                                                                 \
    return real(node, graph, after, edges, count, params);                                                             \
  }
ADD_NODE(cuGraphAddNode_v2)
ADD_NODE(cuGraphAddNode_v3)

/* The driver takes back the memory that graphs of the device do not use. */
SP_WRAPPER(cuDeviceGraphMemTrim, (CUdevice device), (device)) {
  CUresult result;
  SP_CALL(result, real(device));
  sp_graphs_trimmed();
  sp_pools_refresh_graphs(device);
  return result;
}
