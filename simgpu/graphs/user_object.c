/* User objects that graphs keep. Dropping the last reference calls the program's function: the real driver calls it
 * in a thread of its own, here the thread that drops the reference does. CUDA's documentation tells what the exported
 * functions do; a comment at one tells only what is special here. */
#include "simgpu/graphs/graph.h"

#include <limits.h>
#include <stdlib.h>

struct user_object {
  struct handle handle;
  CUhostFn destroy;
  void *data;
  uint64_t references;
};

/* The references that a graph has to one object. */
struct kept {
  struct kept *next;
  struct user_object *object;
  uint64_t count;
};

/* Whether the driver is usable, this is an object, and a call may name so many references. */
static CUresult check(const struct user_object *object, uint64_t count) {
  CUresult result = ready();
  bool valid = is_handle(object, USER_OBJECT_HANDLE) && count && count <= INT_MAX;
  return result ? result : valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Add `count` references to the object. */
static void retain(struct user_object *object, uint64_t count) {
  __atomic_fetch_add(&object->references, count, __ATOMIC_RELAXED);
}

/* Drop references. With the last one the object is freed, and the program's function is called. */
static void release(struct user_object *object, uint64_t count) {
  if (__atomic_sub_fetch(&object->references, count, __ATOMIC_ACQ_REL))
    return;
  CUhostFn destroy = object->destroy;
  void *data = object->data;
  handle_free(object);
  destroy(data);
}

/* Note that the graph has `count` more references to the object. The caller counts them in the object (retain), or
 * hands over its own. False: there is no memory. */
static bool note_kept(struct graph *graph, struct user_object *object, uint64_t count) {
  struct kept *kept = graph->kept;
  while (kept && kept->object != object)
    kept = kept->next;
  if (!kept && (kept = calloc(1, sizeof *kept))) {
    kept->object = object;
    kept->next = graph->kept;
    graph->kept = kept;
  }
  if (kept)
    kept->count += count;
  return kept != NULL;
}

/* Let a graph also refer to the objects that another one refers to. False: there is no memory, and some are missing. */
bool graph_keep_all(struct graph *graph, const struct graph *from) {
  bool complete = true;
  for (const struct kept *kept = from->kept; complete && kept; kept = kept->next)
    if ((complete = note_kept(graph, kept->object, kept->count)))
      retain(kept->object, kept->count);
  return complete;
}

/* Drop all references of a graph. This may call functions of the program. */
void graph_drop_all(struct graph *graph) {
  for (struct kept *kept = graph->kept; kept;) {
    struct kept *next = kept->next;
    if (kept->count)
      release(kept->object, kept->count);
    free(kept);
    kept = next;
  }
}

EXPORT CUresult cuUserObjectCreate(struct user_object **out, void *data, CUhostFn destroy, unsigned count,
                                   unsigned flags) {
  CUresult result = ready();
  if (result || !out || !destroy || !count || count > INT_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  struct user_object *object = handle_new(USER_OBJECT_HANDLE, sizeof *object);
  if (!object)
    return CUDA_ERROR_OUT_OF_MEMORY;
  object->destroy = destroy;
  object->data = data;
  object->references = count;
  *out = object;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuUserObjectRetain(struct user_object *object, unsigned count) {
  CUresult result = check(object, count);
  if (!result)
    retain(object, count);
  return result;
}

EXPORT CUresult cuUserObjectRelease(struct user_object *object, unsigned count) {
  CUresult result = check(object, count);
  if (!result && count > object->references)
    result = CUDA_ERROR_INVALID_VALUE;
  if (!result)
    release(object, count);
  return result;
}

/* With CU_GRAPH_USER_OBJECT_MOVE the graph takes over references of the caller; else it gets new ones. */
EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, struct user_object *object, unsigned count, unsigned flags) {
  CUresult result = check(object, count);
  if (!result && (!is_handle(graph, GRAPH_HANDLE) || flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE))
    result = CUDA_ERROR_INVALID_VALUE;
  if (!result && !note_kept(graph, object, count))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  if (!result && !(flags & CU_GRAPH_USER_OBJECT_MOVE))
    retain(object, count);
  return result;
}

EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, struct user_object *object, unsigned count) {
  CUresult result = check(object, count);
  struct kept *kept = !result && is_handle(graph, GRAPH_HANDLE) ? graph->kept : NULL;
  while (kept && kept->object != object)
    kept = kept->next;
  if (!kept || kept->count < count)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  kept->count -= count;
  release(object, count);
  return CUDA_SUCCESS;
}
