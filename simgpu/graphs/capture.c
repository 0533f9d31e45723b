/* Stream capture, with the driver's rules on the calls that are forbidden while one is open. The frontier of a stream
 * (or of a captured event) is the set of nodes on which the stream's next captured node depends. CUDA's documentation
 * tells what the exported functions do; a comment at one tells only what is special here. */
#include "simgpu/graphs/graph.h"

#include <stdlib.h>
#include <string.h>

/* One capture sequence; all guarded by process.lock. */
struct capture {
  uint64_t id;
  int mode;
  const void *thread; /* the thread that began it: the address of its thread_mark */
  bool invalid;
  bool into; /* into a graph that existed before */
  struct graph *graph;
  struct stream *origin;
  struct stream **streams; /* the origin and the streams that joined */
  uint32_t count;
  struct capture *next;
};
static struct capture *captures;

static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static __thread char thread_mark; /* its address names the thread */

/* Whether the stream takes part in a capture. It is read without process.lock: whether the capture is valid is
 * checked under the lock, when a node is added. */
bool is_capturing(const struct stream *stream) {
  return __atomic_load_n(&stream->capture, __ATOMIC_RELAXED);
}

/* Whether the process has no open capture: then most calls need not take process.lock. */
static bool none_open(void) {
  return !__atomic_load_n(&process.captures, __ATOMIC_ACQUIRE);
}

/* Replace a frontier by a copy of `with`. False: there is no memory, and the frontier stays as it was. */
static bool set_frontier(struct node ***nodes, uint32_t *count, struct node *const *with, uint32_t with_count) {
  struct node **copy = malloc((with_count + 1) * sizeof *copy);
  if (!copy)
    return false;
  if (with_count)
    memcpy(copy, with, with_count * sizeof *copy);
  free(*nodes);
  *nodes = copy;
  *count = with_count;
  return true;
}

/* Add to a stream's frontier those nodes of `more` that it lacks. False: there is no memory. */
static bool add_frontier(struct stream *stream, struct node *const *more, uint32_t more_count) {
  struct node **grown = realloc(stream->frontier, (stream->frontier_count + more_count + 1) * sizeof *grown);
  if (!grown)
    return false;
  stream->frontier = grown;
  for (uint32_t n = 0; n < more_count; n++) {
    bool there = false;
    for (uint32_t m = 0; m < stream->frontier_count; m++)
      there |= stream->frontier[m] == more[n];
    if (!there)
      stream->frontier[stream->frontier_count++] = more[n];
  }
  return true;
}

/* Let a stream take part in a capture, with no frontier yet. False: there is no memory. */
static bool join(struct capture *capture, struct stream *stream) {
  struct stream **grown = realloc(capture->streams, (capture->count + 1) * sizeof *grown);
  if (!grown)
    return false;
  capture->streams = grown;
  capture->streams[capture->count++] = stream;
  stream->frontier_count = 0;
  __atomic_store_n(&stream->capture, capture, __ATOMIC_RELAXED);
  return true;
}

/* End a capture and free it: its streams are free again. The graph is left to the caller. */
static void close_capture(struct capture *capture) {
  capture->graph->capturing--;
  for (uint32_t n = 0; n < capture->count; n++) {
    __atomic_store_n(&capture->streams[n]->capture, NULL, __ATOMIC_RELAXED);
    free(capture->streams[n]->frontier);
    capture->streams[n]->frontier = NULL;
    capture->streams[n]->frontier_count = 0;
  }
  for (struct capture **link = &captures; *link; link = &(*link)->next)
    if (*link == capture) {
      *link = capture->next;
      break;
    }
  free(capture->streams);
  free(capture);
  __atomic_fetch_sub(&process.captures, 1, __ATOMIC_RELEASE);
}

/* A stream ends: take it out of its capture, if it is in one. If it is the origin, the capture ends and is freed; else
 * the capture becomes invalid. The caller holds process.lock or is alone with the stream. */
void capture_forget(struct stream *stream) {
  struct capture *capture = stream->capture;
  if (!capture)
    return;
  if (capture->origin == stream) {
    struct graph *graph = capture->into ? NULL : capture->graph;
    close_capture(capture);
    if (graph)
      graph_free(graph);
    return;
  }
  capture->invalid = true;
  for (uint32_t n = 0; n < capture->count; n++)
    if (capture->streams[n] == stream)
      capture->streams[n] = capture->streams[--capture->count];
  stream->capture = NULL;
  free(stream->frontier);
  stream->frontier = NULL;
}

/* Refuse a call that may synchronise, if an open capture forbids it. Such a capture becomes invalid. A thread in mode
 * RELAXED may always call. Else a capture of this thread forbids the call unless it is RELAXED itself. If the thread
 * is in mode GLOBAL, every capture in mode GLOBAL forbids it, too. */
CUresult unsafe_call(void) {
  if (none_open() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&process.lock);
  for (struct capture *capture = captures; capture; capture = capture->next) {
    bool of_thread = capture->thread == &thread_mark && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (of_thread || global) {
      capture->invalid = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  pthread_mutex_unlock(&process.lock);
  return result;
}

/* With process.lock: whether the capture holds a stream of this context that the legacy stream would wait for. */
static bool blocks_legacy(const struct capture *capture, const struct context *context) {
  for (uint32_t n = 0; n < capture->count; n++)
    if (capture->streams[n]->context == context && !(capture->streams[n]->flags & CU_STREAM_NON_BLOCKING))
      return true;
  return false;
}

/* Refuse work in the legacy stream that would wait for a capture. `invalidate`: that capture becomes invalid. */
static CUresult check_legacy(const struct stream *stream, bool invalidate) {
  if (stream->lane || none_open())
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&process.lock);
  for (struct capture *capture = captures; capture; capture = capture->next)
    if (blocks_legacy(capture, stream->context)) {
      capture->invalid |= invalidate;
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  pthread_mutex_unlock(&process.lock);
  return result;
}

/* Refuse work for the legacy stream that would wait for a capturing stream; the captures concerned become invalid.
 * For any other stream nothing is checked. */
CUresult legacy_conflict(const struct stream *stream) {
  return check_legacy(stream, /* invalidate */ true);
}

/* Refuse to wait for a stream that captures; NULL: for a context with such a stream. The capture becomes invalid. */
CUresult capture_sync(const struct context *context, const struct stream *stream) {
  if (none_open())
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&process.lock);
  for (struct capture *capture = captures; capture; capture = capture->next)
    for (uint32_t n = 0; n < capture->count; n++)
      if (stream ? capture->streams[n] == stream : capture->streams[n]->context == context) {
        capture->invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      }
  pthread_mutex_unlock(&process.lock);
  return result;
}

/* Add a node with this body to the stream's capture. It depends on the stream's frontier, and is the frontier from
 * then on. On success the body is the node's. */
CUresult capture_node(struct stream *stream, const struct body *body) {
  pthread_mutex_lock(&process.lock);
  struct capture *capture = stream->capture;
  CUresult result = !capture || capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  if (!result && body->params.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
    result = graph_memory_freed_by(body->memory, capture->graph);
  if (!result) {
    struct node *node = graph_add(capture->graph, body, stream->frontier, stream->frontier_count);
    if (!node || !set_frontier(&stream->frontier, &stream->frontier_count, &node, 1))
      result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  pthread_mutex_unlock(&process.lock);
  return result;
}

/* The error for a query of a captured event. If its capture is still open, it becomes invalid. */
CUresult captured_event(const struct event *event) {
  pthread_mutex_lock(&process.lock);
  for (struct capture *capture = captures; capture; capture = capture->next)
    capture->invalid |= capture->id == event->capture_id;
  pthread_mutex_unlock(&process.lock);
  return CUDA_ERROR_CAPTURED_EVENT;
}

/* Record an event in a capture: it stands for the nodes on which the stream's next captured node depends. */
CUresult capture_record(struct stream *stream, struct event *event) {
  pthread_mutex_lock(&process.lock);
  struct capture *capture = stream->capture;
  CUresult result = !capture || capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  if (!result) {
    event->capture_id = capture->id;
    if (!set_frontier(&event->frontier, &event->frontier_count, stream->frontier, stream->frontier_count))
      result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  pthread_mutex_unlock(&process.lock);
  return result;
}

/* Let a stream wait for an event in a capture: the stream joins the event's capture, and its later work depends on the
 * event's nodes. An error: captures would mix, or one is invalid. *handled becomes true if the event is captured or
 * the stream captures: no wait may be submitted then. */
CUresult capture_wait(struct stream *stream, struct event *event, bool *handled) {
  if (!event->capture_id && !is_capturing(stream))
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&process.lock);
  struct capture *of_stream = stream->capture, *of_event = captures;
  while (of_event && of_event->id != event->capture_id)
    of_event = of_event->next;
  *handled = true;
  if (of_stream && of_stream->invalid) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (of_stream && !event->capture_id) {
    of_stream->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  } else if (!of_event) {
    result = CUDA_ERROR_CAPTURED_EVENT; /* its capture is over */
  } else if (of_event->invalid) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (of_stream && of_stream != of_event) {
    of_stream->invalid = of_event->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
  } else if (!of_stream && !stream->lane) { /* the legacy stream cannot be captured */
    of_event->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  } else if ((!of_stream && !join(of_event, stream)) || !add_frontier(stream, event->frontier, event->frontier_count)) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  pthread_mutex_unlock(&process.lock);
  return result;
}

/* --- calls ------------------------------------------------------------------------------------------------------- */

/* Begin a call for a stream: declare `stream`, the current `context` and `result`. An error is returned from the call.
 */
#define FIND_STREAM(handle)                                                                                            \
  struct context *context;                                                                                             \
  struct stream *stream;                                                                                               \
  CUresult result = enter(&context);                                                                                   \
  if (!result)                                                                                                         \
    result = find_stream(handle, context, &stream);                                                                    \
  if (result)                                                                                                          \
  return result

/* Whether all of these are nodes of the graph. */
static bool nodes_of(const struct graph *graph, CUgraphNode const *nodes, size_t count) {
  for (size_t n = 0; n < count; n++)
    if (!is_handle(nodes[n], NODE_HANDLE) || nodes[n]->graph != graph)
      return false;
  return true;
}

/* Begin a capture in a stream. `into`: the graph to capture into; NULL: a new one. `on`: the `count` nodes of that
 * graph on which the first captured node depends. */
static CUresult begin(CUstream handle, struct graph *into, CUgraphNode const *on, size_t count, int mode) {
  FIND_STREAM(handle);
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED || (count && !on) ||
      (into && !nodes_of(into, on, count)))
    return CUDA_ERROR_INVALID_VALUE;
  if (!stream->lane) /* the legacy stream */
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  struct capture *capture = calloc(1, sizeof *capture);
  struct graph *graph = into ? into : graph_new();
  pthread_mutex_lock(&process.lock);
  if (stream->capture) {
    stream->capture->invalid = true;
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else if (!capture || !graph || !join(capture, stream) ||
             !set_frontier(&stream->frontier, &stream->frontier_count, on, (uint32_t)count)) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    capture->id = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED);
    capture->mode = mode;
    capture->thread = &thread_mark;
    capture->graph = graph;
    capture->into = into != NULL;
    capture->origin = stream;
    capture->next = captures;
    captures = capture;
    graph->capturing++;
    __atomic_fetch_add(&process.captures, 1, __ATOMIC_RELEASE); /* pairs with none_open */
  }
  pthread_mutex_unlock(&process.lock);
  if (result) {
    free(capture);
    if (graph && !into)
      graph_free(graph);
  }
  return result;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  return begin(stream, NULL, NULL, 0, mode);
}
EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, CUgraphNode const *on,
                                            const CUgraphEdgeData *edges, size_t count, int mode) {
  CUresult result = graph_valid(graph);
  (void)edges;
  return result ? result : begin(stream, graph, on, count, mode);
}
EXPORT CUresult cuStreamBeginCapture(CUstream stream) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* With process.lock: whether the origin waits for the last work of every stream that joined the capture. A node gets
 * the mark `visit` if the origin's frontier depends on it, directly or not. */
static bool all_joined(struct capture *capture) {
  struct graph *graph = capture->graph;
  for (uint32_t n = 0; n < graph->count; n++)
    graph->nodes[n]->visit = 0;
  for (uint32_t n = 0; n < capture->origin->frontier_count; n++)
    capture->origin->frontier[n]->visit = 1;
  /* Captured nodes depend on earlier ones, so one pass from the end reaches all ancestors. Edges that the program added
   * by hand may need more passes. */
  for (bool again = true; again;) {
    again = false;
    for (uint32_t n = graph->count; n-- > 0;)
      for (uint32_t m = 0; graph->nodes[n]->visit && m < graph->nodes[n]->dependency_count; m++) {
        struct node *on = graph->nodes[n]->dependencies[m];
        again |= !on->visit && graph_index(graph, on) > n;
        on->visit = 1;
      }
  }
  for (uint32_t n = 0; n < capture->count; n++)
    for (uint32_t m = 0; m < capture->streams[n]->frontier_count; m++)
      if (!capture->streams[n]->frontier[m]->visit)
        return false;
  return true;
}

/* Only the origin ends a capture, and unless the mode is relaxed only the thread that began it. A capture that is
 * invalid or not joined ends, too, but with an error; its graph is freed if the capture made it. */
EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
  FIND_STREAM(handle);
  struct graph *lost = NULL;
  pthread_mutex_lock(&process.lock);
  struct capture *capture = stream->capture;
  if (!capture) {
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &thread_mark) {
    result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  } else if (capture->origin != stream) {
    capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  } else {
    result = capture->invalid       ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : !all_joined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                    : CUDA_SUCCESS;
    struct graph *graph = capture->graph;
    lost = result && !capture->into ? graph : NULL;
    close_capture(capture);
    if (out)
      *out = result ? NULL : graph;
  }
  pthread_mutex_unlock(&process.lock);
  if (lost)
    graph_free(lost); /* which may call the program */
  return result;
}

/* For the legacy stream this is an error while a capture is open that its work would wait for. Nothing becomes
 * invalid. */
EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status) {
  FIND_STREAM(handle);
  result = check_legacy(stream, /* invalidate */ false);
  if (result || !status)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&process.lock);
  *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  pthread_mutex_unlock(&process.lock);
  return CUDA_SUCCESS;
}

/* *nodes is the stream's frontier itself: it is valid until the next call for the stream. */
EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                          struct node *const **nodes, size_t *count) {
  FIND_STREAM(handle);
  result = check_legacy(stream, /* invalidate */ false);
  if (result || !status)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&process.lock);
  struct capture *capture = stream->capture;
  *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id)
    *id = capture ? capture->id : 0;
  if (graph)
    *graph = capture ? capture->graph : NULL;
  if (nodes)
    *nodes = stream->frontier;
  if (count)
    *count = stream->frontier_count;
  pthread_mutex_unlock(&process.lock);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                          struct node *const **nodes, const void **edges, size_t *count) {
  if (edges)
    *edges = NULL;
  return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id) {
  return cuStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

/* Replace or extend the stream's frontier. The nodes must be of the captured graph. */
EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *nodes, size_t count, unsigned flags) {
  FIND_STREAM(handle);
  if (flags > 1 || (count && !nodes)) /* 1: replace the dependencies; 0: add to them */
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&process.lock);
  if (!stream->capture)
    result = CUDA_ERROR_ILLEGAL_STATE;
  else if (stream->capture->invalid)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (!nodes_of(stream->capture->graph, nodes, count))
    result = CUDA_ERROR_INVALID_VALUE;
  else if (!(flags ? set_frontier(&stream->frontier, &stream->frontier_count, nodes, (uint32_t)count)
                   : add_frontier(stream, nodes, (uint32_t)count)))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_unlock(&process.lock);
  return result;
}
EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                                     size_t count, unsigned flags) {
  (void)edges;
  return cuStreamUpdateCaptureDependencies(stream, nodes, count, flags);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  CUresult result = ready();
  if (result || !mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}
