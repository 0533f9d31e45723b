/*
 * Wrappers of the functions that change an executable graph. Its duration is learned per handle, so what was learned
 * must be dropped when the graph behind the handle changes. (Graph launches are in launch.c, graph memory in
 * memory/graph.c.)
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include "hook/gate/gate.h"
#include "hook/interpose/intercept.h"

/* The wrapper of one of these functions; `executable` is the name of its parameter for the executable graph. */
#define CHANGE(name, parameters, arguments)                                                                            \
  SP_WRAPPER(name, parameters, arguments) {                                                                            \
    CUresult result;                                                                                                   \
    SP_CALL(result, real arguments);                                                                                   \
    if (result == CUDA_SUCCESS) {                                                                                      \
      sp_gate_work_changed(sp_work_key(executable, 0, 0), false);                                                      \
    }                                                                                                                  \
    return result;                                                                                                     \
  }

CHANGE(cuGraphExecUpdate, (CUgraphExec executable, CUgraph graph, void *wrong, int *verdict),
       (executable, graph, wrong, verdict))
CHANGE(cuGraphExecUpdate_v2, (CUgraphExec executable, CUgraph graph, void *verdict), (executable, graph, verdict))

#define SET(name) CHANGE(name, (CUgraphExec executable, void *node, const void *what), (executable, node, what))
SET(cuGraphExecKernelNodeSetParams)
SET(cuGraphExecKernelNodeSetParams_v2)
SET(cuGraphExecHostNodeSetParams)
SET(cuGraphExecChildGraphNodeSetParams)
SET(cuGraphExecBatchMemOpNodeSetParams)
SET(cuGraphExecNodeSetParams)

#define SET_IN(name)                                                                                                   \
  CHANGE(name, (CUgraphExec executable, void *node, const void *what, CUcontext context),                              \
         (executable, node, what, context))
SET_IN(cuGraphExecMemcpyNodeSetParams)
SET_IN(cuGraphExecMemsetNodeSetParams)

CHANGE(cuGraphNodeSetEnabled, (CUgraphExec executable, void *node, unsigned int enabled), (executable, node, enabled))
