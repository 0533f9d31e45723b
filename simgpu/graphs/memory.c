/*
 * Memory that belongs to graphs.
 *
 * An allocation gets its address when its node is made, and keeps it while a node, an executable or the program holds
 * it. It is alive from a launch that allocates it until the device has reached its free. Device memory is taken for it
 * when an executable is uploaded or first launched. That memory is given back when the executable ends, or when the
 * program trims (cuDeviceGraphMemTrim), but never while the allocation is alive.
 */
#define _GNU_SOURCE
#include "simgpu/graphs/graph.h"

#include <stdlib.h>
#include <sys/mman.h>

struct graph_memory {
  uintptr_t address;
  size_t bytes;
  uint32_t device;
  uint32_t refs;           /* nodes that allocate or free it, those of executables too */
  uint32_t execs;          /* executables that allocate it: one at most */
  struct context *charged; /* the context that the device memory behind it counts for; NULL: there is none */
  struct graph *freed_by;  /* the graph with its free node; NULL: there is none */
  bool freed_inside;       /* that graph also allocates it, so each launch frees what it allocates */
  bool owned;              /* by the program: allocated, and no call to free it has been made */
  uint32_t live;           /* allocations that the device has not yet freed */
  struct graph_memory *next;
};

enum { USED_CURRENT, USED_HIGH, RESERVED_CURRENT, RESERVED_HIGH, GRAPH_MEMORY_ATTRIBUTES };

/* All guarded by memory_lock, which comes after process.lock and before memory.c's and the state's. */
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph_memory *memories;
static uint64_t amounts[SG_MAX_DEVICES][GRAPH_MEMORY_ATTRIBUTES];

/* With memory_lock: add bytes (may be negative) to an amount of the device: USED_CURRENT or RESERVED_CURRENT. The
 * attribute after it is the amount's high-water mark, and is raised if need be. */
static void count(uint32_t device, int attribute, int64_t bytes) {
  uint64_t *amount = amounts[device];
  amount[attribute] += (uint64_t)bytes;
  if (amount[attribute + 1] < amount[attribute])
    amount[attribute + 1] = amount[attribute];
}

/* Whether the memory is on another device than this context, which launches the graph. Then the process is charged for
 * it, because a context only has memory of its own device. */
static bool lies_elsewhere(const struct graph_memory *memory, const struct context *context) {
  return context->device != memory->device;
}

/* With memory_lock: give the device's memory behind the allocation back, if there is any. Nothing happens while the
 * allocation is alive. */
static void give_back(struct graph_memory *memory) {
  if (!memory->charged || memory->live || memory->owned)
    return;
  if (lies_elsewhere(memory, memory->charged))
    refund_process(memory->device, SG_POOLS, memory->bytes);
  else
    refund(memory->charged, memory->bytes);
  memory->charged = NULL;
  count(memory->device, RESERVED_CURRENT, -(int64_t)memory->bytes);
}

/* With memory_lock, after something has let go of the memory: give its device memory back if no executable has it, and
 * free all of it if nothing holds it. The caller does not use `memory` afterwards. */
static void drop_if_unused(struct graph_memory *memory) {
  if (!memory->execs)
    give_back(memory);
  if (memory->refs || memory->live || memory->owned)
    return;
  struct block block;
  take_block(memory->address, &block);
  munmap((void *)memory->address, memory->bytes);
  struct graph_memory **link = &memories;
  while (*link != memory)
    link = &(*link)->next;
  *link = memory->next;
  free(memory);
}

/* With memory_lock: the memory is allocated once more, until end_life. Its bytes count once, however often it is
 * allocated. */
static void begin_life(struct graph_memory *memory) {
  if (!memory->live++)
    count(memory->device, USED_CURRENT, (int64_t)memory->bytes);
}

/* With memory_lock: the device has reached a free of the memory. The caller does not use `memory` afterwards. */
static void end_life(struct graph_memory *memory) {
  if (!--memory->live)
    count(memory->device, USED_CURRENT, -(int64_t)memory->bytes);
  drop_if_unused(memory);
}

/* --- nodes ------------------------------------------------------------------------------------------------------- */

/* Take an address for an allocation, but no device memory yet. The caller's node is its first reference. */
CUresult graph_memory_new(uint32_t device, size_t bytes, struct graph_memory **out) {
  struct graph_memory *memory = calloc(1, sizeof *memory);
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct block block = {
      .address = (uintptr_t)at, .bytes = bytes, .device = device, .kind = CU_MEMORYTYPE_DEVICE, .graph = memory};
  if (!memory || at == MAP_FAILED || !add_block(block)) {
    if (at != MAP_FAILED)
      munmap(at, bytes);
    free(memory);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *memory = (struct graph_memory){.address = (uintptr_t)at, .bytes = bytes, .device = device, .refs = 1};
  pthread_mutex_lock(&memory_lock);
  memory->next = memories;
  memories = memory;
  pthread_mutex_unlock(&memory_lock);
  *out = memory;
  return CUDA_SUCCESS;
}

/* The address of the allocation, which never changes. */
uintptr_t graph_memory_address(const struct graph_memory *memory) {
  return memory->address;
}

/* Add a reference, for a node that allocates or frees the memory. */
void graph_memory_hold(struct graph_memory *memory) {
  pthread_mutex_lock(&memory_lock);
  memory->refs++;
  pthread_mutex_unlock(&memory_lock);
}

/* Let go of one reference. With the last one the memory is freed, unless it is alive. */
void graph_memory_drop(struct graph_memory *memory) {
  pthread_mutex_lock(&memory_lock);
  memory->refs--;
  drop_if_unused(memory);
  pthread_mutex_unlock(&memory_lock);
}

/* Whether a node of the graph allocates this memory. Children are not searched. */
static bool allocates(const struct graph *graph, const struct graph_memory *memory) {
  for (uint32_t n = 0; n < graph->count; n++)
    if (graph->nodes[n]->body.memory == memory && graph->nodes[n]->body.params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
      return true;
  return false;
}

/* Note that a graph gets a free node for the memory. An error: the graph has one already; or another graph has one, and
 * one of the two graphs also allocates the memory. */
CUresult graph_memory_freed_by(struct graph_memory *memory, struct graph *graph) {
  pthread_mutex_lock(&memory_lock);
  bool inside = allocates(graph, memory);
  bool refused = memory->freed_by && (memory->freed_by == graph || memory->freed_inside || inside);
  if (!refused) {
    memory->freed_by = graph;
    memory->freed_inside = inside;
  }
  pthread_mutex_unlock(&memory_lock);
  return refused ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* --- executables: of `graph` and of the children in it ------------------------------------------------------------ */

typedef bool visitor(struct graph_memory *memory, int type, void *argument);

/* With memory_lock: call the visitor for every node with memory, of the graph and its children. False: a visitor has
 * returned false, and the rest was left out. */
static bool each(struct graph *graph, visitor *visit, void *argument) {
  for (uint32_t n = 0; n < graph->count; n++) {
    struct body *body = &graph->nodes[n]->body;
    if (body->child && !each(body->child, visit, argument))
      return false;
    if (body->memory && !visit(body->memory, body->params.type, argument))
      return false;
  }
  return true;
}

/* Take the lock, and call the visitor for every node with memory, until one returns false. True: none has. */
static bool all(struct graph *graph, visitor *visit, void *argument) {
  pthread_mutex_lock(&memory_lock);
  bool agreed = each(graph, visit, argument);
  pthread_mutex_unlock(&memory_lock);
  return agreed;
}

/* A visitor: false for an allocation that an executable has already. */
static bool has_no_exec(struct graph_memory *memory, int type, void *unused) {
  (void)unused;
  return type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !memory->execs;
}
/* A visitor: one more executable has this allocation. */
static bool instantiate(struct graph_memory *memory, int type, void *unused) {
  (void)unused;
  memory->execs += type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  return true;
}
/* A visitor: one executable less has this allocation. Without any, its device memory is given back, unless the
 * allocation is alive. */
static bool retire(struct graph_memory *memory, int type, void *unused) {
  (void)unused;
  memory->execs -= type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  if (!memory->execs)
    give_back(memory);
  return true;
}

/* Note that one more executable has the allocations of this graph. An error: another one has one of them. */
CUresult graph_memory_instantiate(struct graph *graph) {
  if (!all(graph, has_no_exec, NULL))
    return CUDA_ERROR_NOT_SUPPORTED; /* one executable at a time */
  all(graph, instantiate, NULL);
  return CUDA_SUCCESS;
}

/* Note that an executable with this graph ends. Device memory of allocations that are not alive is given back. */
void graph_memory_retire(struct graph *graph) {
  all(graph, retire, NULL);
}

/* A visitor: take the device memory for an allocation that has none. False: it does not fit. */
static bool reserve(struct graph_memory *memory, int type, void *context) {
  if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || memory->charged)
    return true;
  if (lies_elsewhere(memory, context) ? charge_process(memory->device, SG_POOLS, memory->bytes)
                                      : charge(context, memory->bytes))
    return false;
  memory->charged = context;
  count(memory->device, RESERVED_CURRENT, (int64_t)memory->bytes);
  return true;
}
/* A visitor: give back the device memory of what is not alive. */
static bool unreserve(struct graph_memory *memory, int type, void *unused) {
  (void)type, (void)unused;
  give_back(memory);
  return true;
}

/* Take the device memory for all allocations of an executable's graph that have none, charged to `context` or, on
 * other devices, to the process. An error: it does not all fit. */
CUresult graph_memory_reserve(struct graph *graph, struct context *context) {
  if (all(graph, reserve, context))
    return CUDA_SUCCESS;
  all(graph, unreserve, NULL); /* an executable that does not fit keeps nothing */
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A visitor: whether the graph can be launched, as far as this node is concerned. A free needs an allocation, in the
 * graph itself or before the launch. An allocation needs a free in the graph itself, or must not be allocated already,
 * unless `auto_free` (a bool) is true. */
static bool may_launch(struct graph_memory *memory, int type, void *auto_free) {
  if (type == CU_GRAPH_NODE_TYPE_MEM_FREE)
    return memory->owned || memory->freed_inside;
  return memory->freed_inside || !memory->owned || *(bool *)auto_free;
}
/* A visitor: what the call of a launch changes at once. A free of the graph ends the ownership now, but the memory's
 * life (`live`) only when the device reaches the free. */
static bool launch(struct graph_memory *memory, int type, void *unused) {
  (void)unused;
  if (type == CU_GRAPH_NODE_TYPE_MEM_FREE && !memory->freed_inside)
    memory->owned = false;
  if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || memory->owned)
    return true; /* owned: with auto_free it is freed and allocated again, which is the same as kept */
  begin_life(memory);
  memory->owned = !memory->freed_inside;
  return true;
}

/* Note what one launch of the graph allocates and frees, at the time of the call. An error: the graph cannot be
 * launched, and nothing has changed. */
CUresult graph_memory_launch(struct graph *graph, bool auto_free) {
  if (!all(graph, may_launch, &auto_free))
    return CUDA_ERROR_INVALID_VALUE;
  all(graph, launch, NULL);
  return CUDA_SUCCESS;
}

/* The device has reached a free of the memory: end one life of it, with which the memory itself may end. */
void graph_memory_over(void *memory) {
  pthread_mutex_lock(&memory_lock);
  end_life(memory);
  pthread_mutex_unlock(&memory_lock);
}

/* --- frees by the program ---------------------------------------------------------------------------------------- */

/* The program calls to free the memory. An error: it is not allocated, or such a call has been made. */
static CUresult disown(struct graph_memory *memory) {
  pthread_mutex_lock(&memory_lock);
  bool owned = memory->owned;
  memory->owned = false;
  pthread_mutex_unlock(&memory_lock);
  return owned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Free the memory for the program, after all work of the context that may use it. */
CUresult graph_memory_free(struct graph_memory *memory, struct context *context) {
  CUresult result = wait_context(memory->charged ? memory->charged : context);
  if (!result)
    result = disown(memory);
  if (!result)
    graph_memory_over(memory);
  return result;
}

/* Free the memory for the program, when the stream gets there. */
CUresult graph_memory_free_async(struct graph_memory *memory, struct stream *stream) {
  CUresult result = disown(memory);
  struct effect effect = {.kind = EFFECT_CALL, .call = graph_memory_over, .data = memory};
  return result ? result : issue(stream, (struct sg_item){.kind = SG_WRITE}, &effect, NULL);
}

/* A context has ended. Drop the device memory that graphs have charged to it, and end the lives of these allocations:
 * no work in the context will ever complete. Those that nothing holds any more are freed. */
void graph_memory_forget(const struct context *context) {
  pthread_mutex_lock(&memory_lock);
  for (struct graph_memory *memory = memories, *next; memory; memory = next) {
    next = memory->next;
    if (memory->charged != context)
      continue;
    if (memory->live)
      count(memory->device, USED_CURRENT, -(int64_t)memory->bytes);
    count(memory->device, RESERVED_CURRENT, -(int64_t)memory->bytes);
    /* Memory on the context's own device went with the context; memory elsewhere is charged to the process. */
    if (lies_elsewhere(memory, context))
      refund_process(memory->device, SG_POOLS, memory->bytes);
    memory->charged = NULL;
    memory->owned = false;
    memory->live = 0;
    drop_if_unused(memory);
  }
  pthread_mutex_unlock(&memory_lock);
}

/* --- calls about a device ---------------------------------------------------------------------------------------- */

/* The index in the state of the device with this ordinal. */
static CUresult find_device(CUdevice ordinal, uint32_t *device) {
  CUresult result = ready();
  if (!result && (ordinal < 0 || (uint32_t)ordinal >= process.device_count))
    result = CUDA_ERROR_INVALID_DEVICE;
  if (!result)
    *device = process.devices[ordinal];
  return result;
}

/* Forbidden while a capture is open, as cuMemPoolTrimTo is. */
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
  uint32_t device;
  CUresult result = find_device(ordinal, &device);
  if (!result)
    result = unsafe_call();
  if (result)
    return result;
  run_effects(); /* apply the frees that the device has reached */
  pthread_mutex_lock(&memory_lock);
  for (struct graph_memory *memory = memories; memory; memory = memory->next)
    if (memory->device == device)
      give_back(memory);
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void *value) {
  uint32_t device;
  CUresult result = find_device(ordinal, &device);
  if (result || attribute < 0 || attribute >= GRAPH_MEMORY_ATTRIBUTES || !value)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  run_effects();
  pthread_mutex_lock(&memory_lock);
  *(uint64_t *)value = amounts[device][attribute];
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

/* Only the high-water marks can be set, and only to the present amounts. */
EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, int attribute, void *value) {
  uint32_t device;
  CUresult result = find_device(ordinal, &device);
  if (result || (attribute != USED_HIGH && attribute != RESERVED_HIGH) || !value || *(uint64_t *)value)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  run_effects();
  pthread_mutex_lock(&memory_lock);
  amounts[device][attribute] = amounts[device][attribute - 1];
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}
