/* Graphs: nodes are the same items and effects that streams take, with dependencies instead of an order. */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "simgpu/api/abi.h"
#include "simgpu/api/process.h"

/* What a node does. */
struct body {
  CUgraphNodeParams params; /* as given; a batch's array is our own */
  struct sg_item item;
  struct effect *effect; /* NULL: none */
  struct graph *child;
  struct graph_memory *memory;
};

struct node {
  struct handle handle;
  struct graph *graph;
  struct body body;
  struct node **dependencies;
  uint32_t dependency_count;
  uint64_t id;
  uint64_t origin; /* the id of the node that this is a clone of */
  bool disabled;
  uint32_t visit;    /* scratch of one walk: a mark, or the index of the node's copy */
  uint32_t level;    /* scratch of steps.c: the level at which the node ends */
  uint64_t until_ns; /* and the device work in that level up to its end, on the longest path */
};

struct graph {
  struct handle handle;
  struct node **nodes;
  uint32_t count, room;
  uint32_t capturing; /* captures into it that are open */
  struct node *owner; /* of a child graph: its node */
  struct kept *kept;  /* the user objects that it has references to */
};

/* One piece of the work that a launch of an executable gives to its stream. */
struct step {
  enum { STEP_WORK, STEP_RECORD, STEP_WORDS, STEP_HOST, STEP_WAIT } kind;
  const struct node *node;  /* steps other than work: of the executable's own graph */
  uint64_t duration_ns;     /* work: of the longest path */
  uint64_t whole_device_ns; /* work: of all of it, if each part had every SM */
  uint64_t watch;           /* work with a spin node: the word */
  bool spin;
  struct effect *effects; /* in order; NULL: none */
};

/* graph.c */
struct graph *graph_new(void);
void graph_free(struct graph *graph);
/* Add a node that depends on `on`. The body is the node's on success. NULL: out of memory. */
struct node *graph_add(struct graph *graph, const struct body *body, struct node *const *on, uint32_t count);
/* Copy a graph with its nodes, their children and its user objects; NULL: there is no memory. */
struct graph *graph_clone(struct graph *graph);
uint32_t graph_index(const struct graph *graph, const struct node *node); /* graph->count: the graph lacks it */
bool graph_has_memory(const struct graph *graph);
struct node *graph_find(struct graph *graph, const struct node *node);
/* The nodes in an order that respects their dependencies; false: there is a cycle. */
bool graph_order(struct graph *graph, struct node **order);
CUresult graph_valid(CUgraph graph);

/* graphs/nodes.c */
/* Make the body of a node from its parameters. The caller frees the body (body_free), also after an error. */
CUresult body_make(const CUgraphNodeParams *params, struct body *body);
bool body_copy(const struct body *from, struct body *to);
void body_free(struct body *body);
/* The body for an item that a stream was about to get. Its parameters are filled in as far as they are known. */
CUresult body_of_item(const struct sg_item *item, const struct effect *effect, struct body *body);

/* conditional.c */
CUresult conditional_body(struct body *body);
/* Whether the node's work runs with its graph: false for a condition that is not met. */
bool body_runs(const struct body *body);

/* user_object.c */
/* Let a graph refer to all user objects that another graph refers to. false: out of memory. */
bool graph_keep_all(struct graph *graph, const struct graph *from);
void graph_drop_all(struct graph *graph);

/* graphs/memory.c: allocations that belong to graphs. Their addresses are fixed when the node is made; the device's
 * memory behind them is taken when an executable of the graph is uploaded or first launched. */
CUresult graph_memory_new(uint32_t device, size_t bytes, struct graph_memory **out);
uintptr_t graph_memory_address(const struct graph_memory *memory);
void graph_memory_hold(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);
/* Note that `graph` gets a node that frees the memory; an error: it may not have one. */
CUresult graph_memory_freed_by(struct graph_memory *memory, struct graph *graph);
CUresult graph_memory_instantiate(struct graph *graph);
/* Note that the executable ends, and give the device memory of its allocations back where they are not alive. */
void graph_memory_retire(struct graph *graph);
/* Take the device's memory for all allocations of an executable's graph; an error: it does not fit. */
CUresult graph_memory_reserve(struct graph *graph, struct context *context);
/* Note what one launch of the graph allocates and frees. `auto_free`: an allocation of an earlier launch that is not
 * freed yet is kept, and is no error. An error: the graph cannot be launched, and nothing has changed. */
CUresult graph_memory_launch(struct graph *graph, bool auto_free);
/* Free the memory once: the device has reached a free of it. Called as an EFFECT_CALL. */
void graph_memory_over(void *memory);

/* batch.c */
/* Whether this is a list of operations that can be simulated. */
CUresult check_operations(const CUstreamBatchMemOpParams *operations, unsigned count);
CUresult submit_operation(struct stream *stream, const CUstreamBatchMemOpParams *operation);
/* Whether the operation waits for a word. */
static inline bool waits_for_word(const CUstreamBatchMemOpParams *operation) {
  return operation->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
         operation->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

/* capture.c */
/* Add a node to the stream's capture; the body is the node's on success. */
CUresult capture_node(struct stream *stream, const struct body *body);

/* graphs/steps.c: what an executable does, in order. The steps point to nodes of the graph. */
CUresult steps_read(struct graph *graph, struct step **steps, uint32_t *count);
void steps_free(struct step *steps, uint32_t count);

/* exec.c */
CUresult exec_rebuild(CUgraphExec exec);
struct node *exec_node(CUgraphExec exec, CUgraphNode node);

#endif
