/* Graphs: nodes are the same items and effects that streams take, with dependencies instead of an order. */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "process.h"

enum node_type { NODE_KERNEL, NODE_MEMCPY, NODE_MEMSET, NODE_HOST, NODE_GRAPH, NODE_EMPTY };

struct node {
  struct handle handle;
  struct graph *graph;
  enum node_type type;
  struct sg_item item;
  struct effect *effect; /* NULL: none */
  struct node **on;      /* dependencies */
  uint32_t on_count;
  uint32_t visit;    /* scratch of one walk */
  uint64_t until_ns; /* scratch: end of the longest path to here */
  CUDA_KERNEL_NODE_PARAMS kernel;
  CUDA_MEMSET_NODE_PARAMS memset;
  CUDA_MEMCPY3D memcpy;
};

struct graph {
  struct handle handle;
  struct node **nodes;
  uint32_t count, room;
};

struct graph *graph_new(void);
void graph_free(struct graph *graph);
/* Add a node that depends on `on`; the effect is copied. NULL: out of memory. */
struct node *graph_add(struct graph *graph, enum node_type type, const struct sg_item *item,
                       const struct effect *effect, struct node *const *on, uint32_t count);
bool node_depend(struct node *node, struct node *on);
/* The nodes in an order that respects their dependencies, with until_ns set; false: there is a cycle. */
bool graph_order(struct graph *graph, struct node **order);

#endif
