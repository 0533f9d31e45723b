/* Graphs: nodes, edges, order, clones, and the calls that read them. CUDA's documentation tells what the exported
 * functions do; a comment at one tells only what is special here. */
#include "simgpu/graphs/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Make an empty graph. NULL: there is no memory. */
struct graph *graph_new(void) {
  return handle_new(GRAPH_HANDLE, sizeof(struct graph));
}

/* Free a node with its body. The caller sees to it that no other node still depends on it. */
static void node_free(struct node *node) {
  body_free(&node->body);
  free(node->dependencies);
  handle_free(node);
}

/* Free a graph with its nodes, their children and its user objects. This may call functions of the program. */
void graph_free(struct graph *graph) {
  for (uint32_t n = 0; n < graph->count; n++)
    node_free(graph->nodes[n]);
  free(graph->nodes);
  graph_drop_all(graph);
  handle_free(graph);
}

/* Let a node depend on another one. False: there is no memory. */
static bool node_depend(struct node *node, struct node *on) {
  struct node **grown = realloc(node->dependencies, (node->dependency_count + 1) * sizeof *grown);
  if (!grown)
    return false;
  node->dependencies = grown;
  node->dependencies[node->dependency_count++] = on;
  return true;
}

/* Add a node with this body. NULL: there is no memory, and the body is still the caller's. */
struct node *graph_add(struct graph *graph, const struct body *body, struct node *const *on, uint32_t count) {
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
  for (uint32_t n = 0; n < count; n++)
    if (!node_depend(node, on[n])) {
      node_free(node);
      return NULL;
    }
  node->graph = graph;
  node->id = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED);
  node->body = *body;
  if (node->body.child)
    node->body.child->owner = node;
  graph->nodes[graph->count++] = node;
  return node;
}

/* Copy a graph with its nodes, their children and its user objects; NULL: there is no memory. In a copied node `origin`
 * is the id of the original. */
struct graph *graph_clone(struct graph *graph) {
  struct graph *clone = graph_new();
  bool complete = clone && graph_keep_all(clone, graph);
  for (uint32_t n = 0; complete && n < graph->count; n++) {
    struct body body;
    bool copied = body_copy(&graph->nodes[n]->body, &body);
    struct node *node = copied ? graph_add(clone, &body, NULL, 0) : NULL;
    if (copied && !node)
      body_free(&body);
    complete = node != NULL;
    if (!complete)
      break;
    node->origin = graph->nodes[n]->id;
    node->disabled = graph->nodes[n]->disabled;
    graph->nodes[n]->visit = n; /* the index of its copy */
  }
  for (uint32_t n = 0; complete && n < graph->count; n++)
    for (uint32_t m = 0; complete && m < graph->nodes[n]->dependency_count; m++)
      complete = node_depend(clone->nodes[n], clone->nodes[graph->nodes[n]->dependencies[m]->visit]);
  if (clone && !complete)
    graph_free(clone);
  return complete ? clone : NULL;
}

/* Whether a node of the graph, or of a child of it, allocates or frees memory. */
bool graph_has_memory(const struct graph *graph) {
  for (uint32_t n = 0; n < graph->count; n++) {
    const struct body *body = &graph->nodes[n]->body;
    if (body->memory || (body->child && graph_has_memory(body->child)))
      return true;
  }
  return false;
}

/* The node in the graph, or in a child of it, that was cloned from this node; NULL: there is none. */
struct node *graph_find(struct graph *graph, const struct node *node) {
  for (uint32_t n = 0; n < graph->count; n++) {
    if (graph->nodes[n]->origin == node->id)
      return graph->nodes[n];
    struct graph *child = graph->nodes[n]->body.child;
    struct node *found = child ? graph_find(child, node) : NULL;
    if (found)
      return found;
  }
  return NULL;
}

/* The place of a node in the graph; graph->count: the graph lacks it. */
uint32_t graph_index(const struct graph *graph, const struct node *node) {
  uint32_t n = 0;
  while (n < graph->count && graph->nodes[n] != node)
    n++;
  return n;
}

/* Order the nodes so that each comes after its dependencies. `order` has room for all. False: there is a cycle. */
bool graph_order(struct graph *graph, struct node **order) {
  uint32_t taken = 0;
  for (uint32_t n = 0; n < graph->count; n++)
    graph->nodes[n]->visit = 0;
  for (bool moved = true; moved && taken < graph->count;) {
    moved = false;
    for (uint32_t n = 0; n < graph->count; n++) {
      struct node *node = graph->nodes[n];
      bool is_next = !node->visit; /* not taken yet, while all its dependencies are */
      for (uint32_t m = 0; is_next && m < node->dependency_count; m++)
        is_next = node->dependencies[m]->visit;
      if (!is_next)
        continue;
      node->visit = 1;
      order[taken++] = node;
      moved = true;
    }
  }
  return taken == graph->count;
}

/* Whether the driver is usable and the handle is a graph; else the error for the call. */
CUresult graph_valid(CUgraph graph) {
  CUresult result = ready();
  return result ? result : is_handle(graph, GRAPH_HANDLE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- whole graphs ------------------------------------------------------------------------------------------------ */

EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned flags) {
  CUresult result = ready();
  if (result || !out || flags)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *out = graph_new();
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  CUresult result = graph_valid(graph);
  if (!result && (graph->owner || graph->capturing)) /* it belongs to a node, or to an open capture */
    result = CUDA_ERROR_INVALID_VALUE;
  if (!result)
    graph_free(graph);
  return result;
}

/* A graph with allocations or frees cannot be cloned. */
EXPORT CUresult cuGraphClone(CUgraph *out, CUgraph graph) {
  CUresult result = graph_valid(graph);
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (graph_has_memory(graph))
    return CUDA_ERROR_NOT_SUPPORTED;
  *out = graph_clone(graph);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode node, CUgraph clone) {
  CUresult result = graph_valid(clone);
  if (result || !out || !is_handle(node, NODE_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *out = graph_find(clone, node);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- edges ------------------------------------------------------------------------------------------------------- */

/* Whether both are nodes of this graph, and two different ones. */
static bool edge_valid(CUgraph graph, CUgraphNode from, CUgraphNode to) {
  return is_handle(from, NODE_HANDLE) && is_handle(to, NODE_HANDLE) && from->graph == graph && to->graph == graph &&
         from != to;
}

/* The place of `from` among the dependencies of `to`; to->dependency_count: there is no such edge. */
static uint32_t edge_index(const struct node *from, const struct node *to) {
  uint32_t n = 0;
  while (n < to->dependency_count && to->dependencies[n] != from)
    n++;
  return n;
}

/* Edges before the first invalid one of the list stay added. An edge that is there already is invalid. */
EXPORT CUresult cuGraphAddDependencies(CUgraph graph, CUgraphNode const *from, CUgraphNode const *to, size_t count) {
  CUresult result = graph_valid(graph);
  for (size_t n = 0; !result && n < count; n++) {
    if (!edge_valid(graph, from[n], to[n]) || edge_index(from[n], to[n]) < to[n]->dependency_count)
      return CUDA_ERROR_INVALID_VALUE;
    result = node_depend(to[n], from[n]) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  return result;
}
EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, CUgraphNode const *from, CUgraphNode const *to,
                                          const CUgraphEdgeData *edges, size_t count) {
  (void)edges; /* no kernel here triggers another early: every edge is a full one */
  return cuGraphAddDependencies(graph, from, to, count);
}

/* Remove the edge, if there is one. */
static void remove_edge(struct node *from, struct node *to) {
  uint32_t n = edge_index(from, to);
  if (n < to->dependency_count) /* the others keep their order: an update compares it */
    memmove(&to->dependencies[n], &to->dependencies[n + 1], (--to->dependency_count - n) * sizeof *to->dependencies);
}

/* Edges before the first invalid one of the list stay removed. A graph with memory keeps its edges. */
EXPORT CUresult cuGraphRemoveDependencies(CUgraph graph, CUgraphNode const *from, CUgraphNode const *to, size_t count) {
  CUresult result = graph_valid(graph);
  if (!result && count && graph_has_memory(graph))
    return CUDA_ERROR_NOT_SUPPORTED;
  for (size_t n = 0; !result && n < count; n++) {
    if (!edge_valid(graph, from[n], to[n]) || edge_index(from[n], to[n]) == to[n]->dependency_count)
      return CUDA_ERROR_INVALID_VALUE;
    remove_edge(from[n], to[n]);
  }
  return result;
}
EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph graph, CUgraphNode const *from, CUgraphNode const *to,
                                             const CUgraphEdgeData *edges, size_t count) {
  (void)edges;
  return cuGraphRemoveDependencies(graph, from, to, count);
}

/* Take the node out of its graph, with the edges to it and from it. A graph with memory keeps its nodes. */
EXPORT CUresult cuGraphDestroyNode(CUgraphNode node) {
  if (!is_handle(node, NODE_HANDLE))
    return CUDA_ERROR_INVALID_VALUE;
  struct graph *graph = node->graph;
  if (graph_has_memory(graph))
    return CUDA_ERROR_NOT_SUPPORTED;
  uint32_t at = graph_index(graph, node);
  for (uint32_t n = 0; n < graph->count; n++)
    remove_edge(node, graph->nodes[n]);
  memmove(&graph->nodes[at], &graph->nodes[at + 1], (--graph->count - at) * sizeof *graph->nodes);
  node_free(node);
  return CUDA_SUCCESS;
}

/* --- looking ----------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
  if (!is_handle(node, NODE_HANDLE) || !type)
    return CUDA_ERROR_INVALID_VALUE;
  *type = node->body.params.type;
  return CUDA_SUCCESS;
}

/* The caller's room for a list. `*count` is the room on entry. On return it is the number of entries written, or, if
 * `nodes` is NULL, the number of entries that there are. Room that is left over is filled with NULL. */
struct listing {
  CUgraphNode *nodes, *to;
  CUgraphEdgeData *edges;
  size_t *count, found;
};

/* Add a node to the listing, or the edge from `node` to `to`. Beyond the caller's room it is only counted. */
static void listing_add(struct listing *listing, struct node *node, struct node *to) {
  if (listing->nodes && listing->found < *listing->count) {
    listing->nodes[listing->found] = node;
    if (listing->to)
      listing->to[listing->found] = to;
    if (listing->edges)
      listing->edges[listing->found] = (CUgraphEdgeData){0};
  }
  listing->found++;
}

/* End the listing: clear the room that is left, and tell the caller the count. */
static CUresult listing_end(struct listing *listing) {
  for (size_t n = listing->found; listing->nodes && n < *listing->count; n++)
    listing->nodes[n] = NULL;
  if (!listing->nodes || listing->found < *listing->count)
    *listing->count = listing->found;
  return CUDA_SUCCESS;
}

/* List the nodes of a graph, or only those that depend on none. */
static CUresult list_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots_only) {
  CUresult result = graph_valid(graph);
  struct listing listing = {.nodes = nodes, .count = count};
  if (result || !count)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < graph->count; n++)
    if (!roots_only || !graph->nodes[n]->dependency_count)
      listing_add(&listing, graph->nodes[n], NULL);
  return listing_end(&listing);
}
EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  return list_nodes(graph, nodes, count, /* roots_only */ false);
}
EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  return list_nodes(graph, nodes, count, /* roots_only */ true);
}

EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges,
                                              size_t *count) {
  struct listing listing = {.nodes = nodes, .edges = edges, .count = count};
  if (!is_handle(node, NODE_HANDLE) || !count)
    return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < node->dependency_count; n++)
    listing_add(&listing, node->dependencies[n], NULL);
  return listing_end(&listing);
}
EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
  return cuGraphNodeGetDependencies_v2(node, nodes, NULL, count);
}

/* A node knows only its dependencies, so all nodes of the graph are searched for this one. */
EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges,
                                                size_t *count) {
  struct listing listing = {.nodes = nodes, .edges = edges, .count = count};
  if (!is_handle(node, NODE_HANDLE) || !count)
    return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < node->graph->count; n++)
    if (edge_index(node, node->graph->nodes[n]) < node->graph->nodes[n]->dependency_count)
      listing_add(&listing, node->graph->nodes[n], NULL);
  return listing_end(&listing);
}
EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
  return cuGraphNodeGetDependentNodes_v2(node, nodes, NULL, count);
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges,
                                   size_t *count) {
  CUresult result = graph_valid(graph);
  struct listing listing = {.nodes = to ? from : NULL, .to = to, .edges = edges, .count = count};
  if (result || !count)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < graph->count; n++)
    for (uint32_t m = 0; m < graph->nodes[n]->dependency_count; m++)
      listing_add(&listing, graph->nodes[n]->dependencies[m], graph->nodes[n]);
  return listing_end(&listing);
}
EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
  return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

/* --- a picture --------------------------------------------------------------------------------------------------- */

/* The name of a kernel's function; for other nodes, and kernels without a function, the type of the node. */
static const char *label_of(const struct node *node) {
  static const char *const labels[] = {"kernel",    "memcpy",     "memset",       "host",       "graph",
                                       "empty",     "event wait", "event record", "",           "",
                                       "mem alloc", "mem free",   "batch mem op", "conditional"};
  const struct function *function = node->body.params.kernel.func;
  if (node->body.params.type == CU_GRAPH_NODE_TYPE_KERNEL && find_function((CUfunction)function))
    return function->name;
  return labels[node->body.params.type];
}

/* Write the nodes with their labels, and the edges. The flags, which ask for more, are ignored. */
EXPORT CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned flags) {
  CUresult result = graph_valid(graph);
  (void)flags;
  FILE *file = !result && path ? fopen(path, "we") : NULL;
  if (!file)
    return result ? result : CUDA_ERROR_OPERATING_SYSTEM;
  fputs("digraph dot {\n", file);
  for (uint32_t n = 0; n < graph->count; n++) {
    const struct node *node = graph->nodes[n];
    fprintf(file, "  node_%llu [label=\"%s\"];\n", (unsigned long long)node->id, label_of(node));
    for (uint32_t m = 0; m < node->dependency_count; m++)
      fprintf(file, "  node_%llu -> node_%llu;\n", (unsigned long long)node->dependencies[m]->id,
              (unsigned long long)node->id);
  }
  fputs("}\n", file);
  return fclose(file) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
