/*
 * What one client process keeps to itself: handles, contexts of its threads, the way to wait.
 *
 * Locks, in this order: process.lock (handles, memory map, captures) before the shared state's lock. Neither is held
 * while a call burns its CPU time, waits, or runs a host function.
 */
#ifndef SIMGPU_PROCESS_H
#define SIMGPU_PROCESS_H

#include "abi.h"
#include "model.h"
#include "state.h"

#include <pthread.h>
#include <stdbool.h>

enum handle_type {
  CONTEXT_HANDLE = 0x43545831,
  STREAM_HANDLE,
  EVENT_HANDLE,
  MODULE_HANDLE,
  FUNCTION_HANDLE,
  GRAPH_HANDLE,
  NODE_HANDLE,
  EXEC_HANDLE,
  LINK_HANDLE
};

/* Every handle starts with its type. Handles are recycled by type and never given back to malloc, so that a stale one
 * is seen as such instead of being undefined. */
struct handle {
  uint32_t type; /* 0 when destroyed */
  struct handle *next_free;
};

struct capture;
struct effect;
struct node;

struct stream {
  struct handle handle;
  struct context *context;
  uint32_t lane;
  uint32_t flags;
  int32_t priority;
  uint64_t id;
  struct capture *capture; /* guarded by process.lock */
  struct node **frontier;  /* what the next captured node depends on */
  uint32_t frontier_count;
};

struct context {
  struct handle handle;
  uint32_t slot; /* in the shared state; SG_NONE: a primary context that is not active */
  uint32_t device;
  uint32_t flags;
  uint32_t retained; /* primary: references */
  bool primary;
  uint64_t limits[16];
  struct stream legacy;
  struct context *next;
};

struct event {
  struct handle handle;
  struct context *context;
  uint32_t slot;
  uint32_t flags;
  uint64_t base; /* the slot's number when this event was made: not recorded while recorded == base */
  uint64_t recorded;
  uint64_t capture_id; /* last recorded inside this capture, 0 = not */
  struct node **frontier;
  uint32_t frontier_count;
};

struct settings {
  uint64_t launch_cost_ns, record_cost_ns, write_cost_ns, query_cost_ns;
};

struct process {
  pthread_mutex_t lock;
  struct sg_state state;
  struct settings settings;
  bool initialized, forked;
  int init_error;
  uint32_t device_count;            /* visible */
  uint32_t devices[SG_MAX_DEVICES]; /* ordinal -> index in the state */
  struct context *contexts;         /* all, live; guarded by lock */
  struct context *primary[SG_MAX_DEVICES];
  uint64_t next_id;  /* of streams, captures, graphs */
  uint32_t effects;  /* submitted and not yet had; atomic */
  uint32_t sleepers; /* threads asleep in a wait; guarded by the state's lock, as is the next */
  uint64_t wake_ns;  /* the earliest of their alarms; past: that thread has left, the others' are not known */
  uint32_t captures; /* open; atomic, so that calls outside capture pay one load */
};
extern struct process process;

/* process.c */
void *handle_new(enum handle_type type, size_t bytes);
void handle_free(void *handle);
static inline bool is_handle(const void *handle, enum handle_type type) {
  return (uintptr_t)handle > 4096 && ((const struct handle *)handle)->type == (uint32_t)type;
}
void burn(uint64_t from_ns, uint64_t cost_ns);
/* Is the driver usable in this process? */
CUresult ready(void);
/* ... and is there a current, healthy context? Also has due effects happen. */
CUresult enter(struct context **context);
CUresult not_supported(const char *what);
const char *setting_text(const char *name);

/* context.c */
struct context *current_context(void);
CUresult context_error(const struct context *context);
static inline struct sg_context *shared_of(const struct context *context) {
  return &process.state.shared->contexts[context->slot];
}

/* wait.c */
bool inside_host_function(void);
void run_effects(void);
/* Wait until the lane has completed `count` items. */
CUresult wait_lane(struct context *context, uint32_t lane, uint64_t count);
CUresult wait_event(struct context *context, uint32_t event, uint64_t seq);
/* With the state locked: new work in this lane has an effect. Whoever sleeps in the driver must wake for it. */
void effect_submitted(const struct context *context, uint32_t lane);
/* With the state locked: an item, waiting (unlocked meanwhile) while the context has none or the lane's queue is full.
 */
CUresult take_item(struct context *context, uint32_t lane, struct sg_item **item);

/* stream.c */
CUresult find_stream(CUstream handle, struct context *context, struct stream **stream);
/* Give one piece of work to a stream: into its capture if it has one, else to the device. `effect` (may be NULL) is
 * copied. `count` (may be NULL; zero when captured) is what wait_lane needs. */
CUresult issue(struct stream *stream, struct sg_item what, const struct effect *effect, uint64_t *count);
/* The same for what can not be captured. */
CUresult submit(struct stream *stream, struct sg_item what, const struct effect *effect, uint64_t *count);
CUresult wait_context(struct context *context);
void drop_thread_streams(struct context *context);

/* effect.c: what the owner does in its own memory when the model has passed an item */
enum effect_kind { EFFECT_COPY, EFFECT_SET, EFFECT_WRITE, EFFECT_CALL, EFFECT_CALLBACK, EFFECT_LIST };
struct effect {
  enum effect_kind kind;
  uint32_t element; /* sets and writes: bytes of one value */
  uint64_t value;
  void *dst;
  const void *src;
  void *staging;                                                           /* freed with the effect */
  size_t width, height, depth, dst_pitch, src_pitch, dst_slice, src_slice; /* bytes */
  CUhostFn call;
  CUstreamCallback callback;
  CUstream stream;
  void *data;
  struct effect *next; /* EFFECT_LIST: in order */
};
struct effect *effect_copy_of(const struct effect *effect);
void effect_apply(const struct effect *effect);
void effect_free(struct effect *effect);

/* memory.c */
struct block {
  uintptr_t address;
  size_t bytes;
  struct context *context; /* NULL: host memory */
  uint32_t device;
  uint32_t kind; /* MEMORY_HOST, MEMORY_DEVICE, MEMORY_UNIFIED (managed) */
  uint32_t flags;
  bool registered;
  uint64_t id;
};
/* The block that holds an address; false: plain host memory. */
bool find_block(uintptr_t address, struct block *block);
void free_blocks_of(struct context *context);

/* capture.c */
/* Refuse, and invalidate the captures concerned, when a call that may synchronise is not allowed here and now. */
CUresult unsafe_call(void);
/* The legacy stream would wait for a capturing stream. */
CUresult legacy_conflict(const struct stream *stream);
/* Is `stream` capturing? If so do not submit. */
bool is_capturing(const struct stream *stream);
CUresult capture_add(struct stream *stream, const struct sg_item *what, const struct effect *effect);
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event, bool *handled);
/* A stream (NULL: any of the context) that captures may not be waited for; trying invalidates the capture. */
CUresult capture_sync(const struct context *context, const struct stream *stream);
void capture_forget(struct stream *stream);

/* module.c */
struct function {
  struct handle handle;
  struct module *module;
  char name[256];
  uint64_t fixed_ns; /* duration from the name; 0 = by grid */
  bool spin;
  uint32_t shared_name; /* in the table of names */
  unsigned block[3];    /* cuFuncSetBlockShape */
  struct function *next;
};

struct function *find_function(CUfunction handle);

/* launch.c */
struct launch {
  struct function *function;
  unsigned grid[3], block[3];
  void **params, **extra;
};
/* The item for one launch: its duration, its name in the log, the word a spin kernel watches. */
CUresult launch_item(const struct context *context, const struct launch *launch, struct sg_item *item);

/* copy.c */
uint64_t copy_ns(uint64_t bytes, uint64_t bytes_per_s);
/* The item for a copy or a set: what it costs, and the words it may release. */
struct sg_item copy_item(const struct context *context, const struct effect *effect);
/* What a 3D copy does; arrays are not simulated. */
CUresult boxed(const CUDA_MEMCPY3D *box, struct effect *effect);

#endif
