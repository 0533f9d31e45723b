/* Makes an executable graph with one node of each type that can have its parameters changed: a part of every.h. */
#ifndef SHAREPOD_TEST_CHANGE_H
#define SHAREPOD_TEST_CHANGE_H

enum node_type { KERNEL_NODE, COPY_NODE, SET_NODE, HOST_NODE, CHILD_NODE, BATCH_NODE = 12, NODE_TYPES };

/* CUgraphNodeParams of cuda.h. The arguments of the call for one node type alone begin at `of`. */
struct node_params {
  int type;
  int reserved[3];
  union {
    long long room[29];
    struct {
      CUfunction function;
      unsigned grid[3], block[3], shared_bytes;
      void *parameters, *extra, *kernel;
      CUcontext context;
    } kernel;
    struct {
      int flags, reserved;
      CUcontext context;
      CUDA_MEMCPY3D of;
    } copy;
    struct {
      CUdeviceptr at;
      size_t pitch;
      unsigned value, element;
      size_t width, height;
      CUcontext context;
    } set;
    struct {
      void (*call)(void *);
      void *with;
    } host;
    struct {
      CUgraph graph;
      int ownership;
    } child;
    struct {
      CUcontext context;
      unsigned count;
      struct operation {
        int type;
        CUdeviceptr at;
        unsigned long long value;
        unsigned flags;
        unsigned long long rest[2];
      } *operations;
      unsigned flags;
    } batch;
  } of;
  long long more;
};
_Static_assert(sizeof(struct node_params) == 256 && sizeof(struct operation) == 48, "CUDA 12.2 ABI");

static CUgraphNode nodes[NODE_TYPES];

static void nothing(void *with) {
  (void)with;
}

static struct node_params *node_params(enum node_type type) {
  static struct node_params of[NODE_TYPES], *node;
  static struct operation write = {.type = 2 /* write a word of 32 bits */};
  node = &of[type];
  *node = (struct node_params){.type = type};
  switch (type) {
  case KERNEL_NODE:
    node->of.kernel.function = world.kernel;
    node->of.kernel.grid[0] = node->of.kernel.grid[1] = node->of.kernel.grid[2] = 1;
    node->of.kernel.block[0] = node->of.kernel.block[1] = node->of.kernel.block[2] = 1;
    break;
  case COPY_NODE:
    node->of.copy.context = world.context;
    node->of.copy.of = *volume();
    break;
  case SET_NODE:
    node->of.set.at = world.a;
    node->of.set.element = 1;
    node->of.set.width = PIECE;
    node->of.set.height = 1;
    node->of.set.context = world.context;
    break;
  case HOST_NODE:
    node->of.host.call = nothing;
    break;
  case CHILD_NODE:
    node->of.child.graph = world.graph;
    break;
  case BATCH_NODE:
    write.at = world.b;
    node->of.batch.context = world.context;
    node->of.batch.count = 1;
    node->of.batch.operations = &write;
    break;
  default:
    break;
  }
  return node;
}

/* Returns the executable. It is made on the first call and kept, as it holds no memory of the device. */
static CUgraphExec changeable(void) {
  static CUgraphExec executable;
  if (executable == NULL) {
    CUgraph graph = new_graph();
    for (enum node_type type = KERNEL_NODE; type < NODE_TYPES; type++) {
      if (type <= CHILD_NODE || type == BATCH_NODE) {
        MUST(cuGraphAddNode, &nodes[type], graph, NULL, (size_t)0, node_params(type));
      }
    }
    MUST(cuGraphInstantiateWithFlags, &executable, graph, 0ull);
  }
  return executable;
}

/* Arguments for the calls of one node type. The nodes exist once the executable exists, so it is made first. */
static CUgraphNode node_of(enum node_type type) {
  changeable();
  return nodes[type];
}

static void *params_of(enum node_type type) {
  return &node_params(type)->of;
}

#endif
