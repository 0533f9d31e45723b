/*
 * The state that one client process keeps to itself: handles, contexts of its threads, the way to wait.
 *
 * Locks, in this order: process.lock (handles, captures), the locks of pool.c and vmm.c, the map of blocks (block.c),
 * the shared state's lock. None is held while a call burns its CPU time, waits, or runs a host function.
 */
#ifndef SIMGPU_PROCESS_H
#define SIMGPU_PROCESS_H

#include "simgpu/api/abi.h"
#include "simgpu/model/model.h"
#include "simgpu/model/state.h"

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
  LINK_HANDLE,
  POOL_HANDLE,
  PHYSICAL_HANDLE,
  ARRAY_HANDLE,
  MIPMAP_HANDLE,
  EXTERNAL_HANDLE,
  USER_OBJECT_HANDLE,
  HANDLE_END
};

#define BLOCK_THREADS     1024 /* the most threads of a kernel's block, whatever the device */
#define GREATEST_PRIORITY (-5) /* of a stream; the least is 0 */

/* Every handle starts with its type. Handles are recycled by type and never given back to malloc, so a stale handle is
 * recognised, and its use is not undefined behaviour. */
struct handle {
  uint32_t type; /* 0 when destroyed */
  struct handle *next_free;
};

struct capture;
struct pool;
struct effect;
struct graph_memory;
struct launch;
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

#define CONTEXT_LIMITS 16
struct context {
  struct handle handle;
  uint32_t slot; /* in the shared state; SG_NONE: a primary context that is not active */
  uint32_t device;
  uint32_t flags;
  uint32_t retained; /* primary: references */
  bool primary;
  uint64_t limits[CONTEXT_LIMITS]; /* by CUlimit; only stored */
  struct stream legacy;
  struct context *next;
};

struct event {
  struct handle handle;
  struct context *context;
  uint32_t slot;
  uint32_t flags;
  uint64_t base; /* the slot's count of records when this event was made: if recorded == base, it was never recorded */
  uint64_t recorded;
  uint64_t capture_id; /* the capture that it was last recorded in, 0 = none */
  struct node **frontier;
  uint32_t frontier_count;
};

struct settings {
  uint64_t launch_cost_ns, record_cost_ns, plain_record_cost_ns, write_cost_ns, query_cost_ns;
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
  uint64_t next_id;  /* of streams, captures, nodes, conditions, blocks */
  uint32_t effects;  /* submitted and not yet applied; atomic */
  uint32_t sleepers; /* threads asleep in a wait; guarded by the state's lock, as is the next */
  uint64_t wake_ns;  /* the earliest of their alarms; if it is past, that thread has left and the others' are unknown */
  uint32_t captures; /* open; atomic, so that calls outside capture pay one load */
};
extern struct process process;

/* process.c */
/* Make a zeroed handle; NULL: there is no memory. */
void *handle_new(enum handle_type type, size_t bytes);
void handle_free(void *handle);
/* Is it a live handle of this type? Small numbers are the driver's constants in place of handles. */
static inline bool is_handle(const void *handle, enum handle_type type) {
  return (uintptr_t)handle > 4096 && ((const struct handle *)handle)->type == (uint32_t)type;
}
/* Spin until `cost_ns` after `from_ns`. */
void burn(uint64_t from_ns, uint64_t cost_ns);
/* Whether the driver is usable in this process. */
CUresult ready(void);
/* The same, and there is a current, healthy context. Also applies the effects that are due. */
CUresult enter(struct context **context);
CUresult enter_anywhere(void);
/* Note that `what` is not simulated. Returns CUDA_ERROR_NOT_SUPPORTED. */
CUresult not_supported(const char *what);

/* visible.c: fill process.devices; once, with the state mapped */
void find_visible(void);
/* The ordinal of a device of the state; CUDA_ERROR_INVALID_DEVICE: the process does not see the device. */
CUresult device_ordinal(uint32_t device, CUdevice *ordinal);
/* The index of a location in a table by device; SG_MAX_DEVICES for the host. */
CUresult location_place(const CUmemLocation *location, uint32_t *place);

/* context.c */
/* The thread's current context; NULL: it has none, or that context has ended. */
struct context *current_context(void);
/* Why the context cannot be used; CUDA_SUCCESS: it can. */
CUresult context_error(const struct context *context);
/* The shared part of a context that has not ended. */
static inline struct sg_context *shared_of(const struct context *context) {
  return &process.state.shared->contexts[context->slot];
}

/* wait.c */
bool inside_host_function(void);
void run_effects(void);
void host_function(const struct effect *effect); /* in this thread */
/* host_function.c: run it in the thread for host functions */
void host_function_call(struct effect *effect, uint32_t slot, struct sg_item *item);
/* With true: apply no effect on memory until this is called with false. Not inside a host function. */
void hold_effects(bool hold);
/* Wait until the lane has completed `count` items. */
CUresult wait_lane(struct context *context, uint32_t lane, uint64_t count);
/* Wait until the record with number `seq` of this event slot is complete. */
CUresult wait_event(struct context *context, uint32_t event, uint64_t seq);
/* With the state locked: new work in this lane has an effect. Wake the threads that sleep in the driver if it may be
 * due before they wake. */
void effect_submitted(const struct context *context, uint32_t lane);
/* With the state locked: return an item. While the context has none or the lane's queue is full, wait (unlocked
 * meanwhile). */
CUresult take_item(struct context *context, uint32_t lane, struct sg_item **item);

/* stream.c */
CUresult find_stream(CUstream handle, struct context *context, struct stream **stream);
/* Give one piece of work to a stream: into its capture if it has one, else to the device. `effect` (may be NULL) is
 * copied; on success its `staging` belongs to the copy. `count` (may be NULL; zero when captured) is what wait_lane
 * needs. */
CUresult issue(struct stream *stream, struct sg_item what, const struct effect *effect, uint64_t *count);
/* The same for work that cannot be captured. */
CUresult submit(struct stream *stream, struct sg_item what, const struct effect *effect, uint64_t *count);
CUresult wait_context(struct context *context);
void drop_thread_streams(struct context *context);

/* event.c: give the device a record, or a wait for the newest record. */
CUresult submit_record(struct stream *stream, struct event *event);
CUresult submit_wait(struct stream *stream, const struct event *event);

/* effect.c: changes that the owner makes in its own memory once the model has passed an item */
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
void effect_undo_copy(struct effect *copy);

/* block.c: all memory that the driver knows, by address */
enum block_source {
  BLOCK_LINEAR,     /* cuMemAlloc and its kin, host memory */
  BLOCK_REGISTERED, /* host memory of the program's own */
  BLOCK_POOL,
  BLOCK_MAPPED,   /* physical memory at a reserved address */
  BLOCK_IPC,      /* another process's */
  BLOCK_EXTERNAL, /* part of an external memory */
  BLOCK_ARRAY,    /* no address that a program ever sees */
};
struct block {
  uintptr_t address;
  size_t bytes;
  size_t charged;          /* bytes that `context` is charged for it */
  size_t lead;             /* bytes mapped in front of the address, so that the mapping begins with a page */
  struct context *context; /* the block is freed with it; NULL: it belongs to the process, or is host memory */
  uint32_t device;
  uint32_t kind; /* CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED (managed), CU_MEMORYTYPE_ARRAY */
  uint32_t flags;
  enum block_source source;
  bool in_file;   /* pages of the arena or another file: other processes may map them too */
  bool no_access; /* mapped, but access was not given yet */
  int fd;         /* in_file and ours: where the pages are */
  uint64_t offset;
  void *owner; /* pool memory: its chunk; mapped memory: its mapping */
  uint64_t id;
  struct graph_memory *graph; /* belongs to a graph (graphs/memory.c), and so does what is counted for it */
};
bool find_block(uintptr_t address, struct block *block);
bool add_block(struct block block);
bool take_block(uintptr_t address, struct block *block);
void change_block(const struct block *block);
/* The first block of a context above an address; false: there is none. */
bool next_block_of(const struct context *context, uintptr_t address, struct block *block);

/* charge.c: device memory is counted before it is allocated; CUDA_ERROR_OUT_OF_MEMORY when it does not fit */
CUresult charge(struct context *context, uint64_t bytes);
void refund(struct context *context, uint64_t bytes);
/* With the state locked: whether there is room for one more context. */
bool fits_context(uint32_t device);
CUresult charge_process(uint32_t device, enum sg_holding holding, uint64_t bytes);
/* The same without asking the pools to give back unused memory: for pool.c, which holds its lock. */
bool try_charge(uint32_t device, enum sg_holding holding, uint64_t bytes);
void refund_process(uint32_t device, enum sg_holding holding, uint64_t bytes);

/* arena.c: memory with a file behind it */
#define EXPORTED_MAGIC 0x6465747270787375ull
enum exported_kind { EXPORTED_PHYSICAL = 1, EXPORTED_POOL };
struct exported {
  uint64_t magic;
  uint32_t kind, device;
  uint64_t bytes; /* of the file, this page apart */
  uint64_t id;    /* of the piece */
  uint32_t piece;
  int32_t location;
  uint64_t max_bytes;
};
/* Make physical memory of this process a piece that others may hold (charge.c). */
CUresult charge_shared(int fd, struct exported *exported);
/* Hold the piece behind a descriptor for this process; and let go of it. */
CUresult hold_shared(int fd, struct exported *exported);
void drop_shared(uint32_t piece);
int memory_file(const char *name, uint64_t bytes);
int exported_file(const char *name, uint64_t bytes, const struct exported *exported);
bool exported_write(int fd, const struct exported *exported);
bool exported_read(int fd, enum exported_kind kind, struct exported *exported);
int arena_take(uint64_t bytes, uint64_t *offset);
void file_forget(int fd, uint64_t offset, uint64_t bytes);
void *file_map(void *at, int fd, uint64_t offset, uint64_t bytes);

/* memory.c: free the memory of a block that was taken off the map (take_block), and refund its charge */
void release_block(const struct block *block);
void free_blocks_of(struct context *context);

/* mapping.c: whether the address belongs to a reservation, mapped or not. */
bool is_reserved(uintptr_t address);

/* pool.c */
/* Give unused chunks of all pools back to the device; false: there were none. */
bool pools_give_back(uint32_t device);
void pools_synchronized(void);
/* A context has ended: free the memory that its streams would have freed. */
void pools_forget(const struct context *context);
struct pool *pool_of(const struct block *block);
void pool_release(const struct block *block);

/* graphs/memory.c */
CUresult graph_memory_free(struct graph_memory *memory, struct context *context);
CUresult graph_memory_free_async(struct graph_memory *memory, struct stream *stream);
/* Drop the device memory that graphs have charged to a context that has ended. */
void graph_memory_forget(const struct context *context);

/* capture.c */
/* Refuse a call that may synchronise and is not allowed here and now, and invalidate the captures concerned. */
CUresult unsafe_call(void);
/* Refuse work for the legacy stream if it would wait for a capturing stream. */
CUresult legacy_conflict(const struct stream *stream);
/* Whether `stream` is capturing. If so, do not submit. */
bool is_capturing(const struct stream *stream);
CUresult capture_add(struct stream *stream, const struct sg_item *what, const struct effect *effect);
CUresult capture_kernel(struct stream *stream, const struct launch *launch, const struct sg_item *item);
/* A stream-ordered allocation or free becomes a node of the captured graph. */
CUresult capture_alloc(struct stream *stream, size_t bytes, CUdeviceptr *out);
CUresult capture_free(struct stream *stream, const struct block *block);
CUresult capture_record(struct stream *stream, struct event *event);
/* The record or the wait itself becomes a node. */
CUresult capture_external(struct stream *stream, struct event *event, bool record);
/* Refuse a query of a captured event, which is no work, and invalidate its capture if that is still open. */
CUresult captured_event(const struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event, bool *handled);
/* A stream (NULL: any of the context) that captures may not be waited for: the attempt invalidates the capture. */
CUresult capture_sync(const struct context *context, const struct stream *stream);
void capture_forget(struct stream *stream);

/* module.c */
struct function {
  struct handle handle;
  struct module *module;
  char name[256];
  uint64_t fixed_ns; /* duration from the name; 0 = by grid */
  bool spin;
  bool faulty;          /* ends with an illegal address */
  bool varies;          /* lasts as many nanoseconds as its first parameter, 32 bits wide, says */
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
/* The item for a copy or a set: its cost, and the words that it may release. */
struct sg_item copy_item(const struct context *context, const struct effect *effect);
/* Read a 3D copy into an effect. */
CUresult boxed(const CUDA_MEMCPY3D *box, struct effect *effect);
/* Issue one copy or set to a stream. `blocking`: the call returns when host memory has been read or written. */
CUresult transfer(CUstream handle, struct effect effect, bool blocking);
struct effect flat(CUdeviceptr dst, CUdeviceptr src, size_t bytes);

/* array.c */
/* Where an array's bytes are: rows and slices without gaps; false: there is no such array. */
struct extent {
  uintptr_t address;
  size_t pitch, height, depth;
};
bool find_array(const void *handle, struct extent *extent);

#endif
