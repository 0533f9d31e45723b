/*
 * The shared state of all simulated devices: one memory-mapped file that every process maps.
 *
 * There is no server and no thread. A process that calls into the simulator takes the lock and advances the model to
 * now; between calls the model stands still. The lock is a robust mutex: if a process dies while it holds the lock,
 * sg_lock repairs the state (repair.c lists what is derived and how it is rebuilt).
 *
 *   file:  [ header | devices | names | past contexts | clients | pieces | context 0 | context 1 | ... ]     (sparse)
 *   beside it, with SIMGPU_LOG_KERNELS=N: <file>.kernels, a ring of N records
 *   and for processes in containers: <file>.pids, see owner.h
 *
 * A context lives in a slot. Its owner holds an OFD lock on the file's byte 1 + slot, so every process in any pid
 * namespace sees when the owner dies. Byte 0 is locked while the file is made. A process that holds device memory
 * beside its contexts (pools, physical memory, imports) is a client: it has a slot and a byte of its own in the same
 * way. Times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef SIMGPU_STATE_H
#define SIMGPU_STATE_H

#include "simgpu/config/profile.h"
#include "simgpu/model/owner.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define SG_MAGIC        0x31757067736d6973ull /* "simsgpu1" */
#define SG_VERSION      8u
#define SG_MAX_DEVICES  16
#define SG_MAX_CONTEXTS 256  /* alive at a time, all devices together */
#define SG_MAX_LANES    128  /* streams of one context */
#define SG_MAX_ITEMS    8192 /* pieces of work pending in one context */
#define SG_MAX_EVENTS   8192 /* events of one context */
#define SG_MAX_CLIENTS  256  /* processes at a time that hold memory beside their contexts */
#define SG_MAX_PIECES   4096 /* exported pieces of physical memory */
#define SG_MAX_PAST     8192 /* dead contexts that are remembered; the oldest are forgotten */
#define SG_MAX_NAMES    2048 /* distinct kernel names in the log */
#define SG_NAME_BYTES   64
#define SG_QUEUE        1024 /* launches pending in one stream before the next one blocks */
#define SG_BUCKETS      64   /* utilisation history: SG_BUCKETS spans of SG_BUCKET_NS */
#define SG_BUCKET_NS    100000000ull
#define SG_MAX_XIDS     64
#define SG_NONE         UINT32_MAX
#define SG_NEVER        UINT64_MAX
#define SG_US           1000ull
#define SG_ALL_SMS      1024u /* the demand of work that fills the device */

/* Busy time per span of SG_BUCKET_NS; a span's entry is valid when its stamp equals time / SG_BUCKET_NS. */
struct sg_history {
  uint64_t stamp[SG_BUCKETS];
  uint64_t busy_ns[SG_BUCKETS];
};

enum sg_kind {
  SG_KERNEL = 1, /* these three take device time, in turns with other contexts */
  SG_GRAPH,
  SG_MEMSET,
  SG_COPY_DEVICE, /* device to device: takes device time */
  SG_COPY,        /* to or from the host: a copy engine, beside the turns */
  SG_RECORD,      /* from here on: no time of the SMs */
  SG_WAIT,
  SG_WRITE,
  SG_HOST,  /* blocks its stream until the owning process has run it */
  SG_WATCH, /* blocks its stream until a word has a value */
};

enum sg_comparison { SG_AT_LEAST, SG_EQUAL, SG_ANY_BIT, SG_NEITHER }; /* of a word with a value, as the driver does */

enum sg_phase {
  SG_VACANT,   /* not in use */
  SG_QUEUED,   /* in its lane */
  SG_READY,    /* at the head, waits for its context to hold the device */
  SG_RUNNING,  /* has started */
  SG_CALLING,  /* host function, handed to the owner */
  SG_FINISHED, /* complete; only its effect is outstanding */
  SG_TAKEN,    /* complete; the owner is just applying its effect */
};

#define SG_SPIN     1u   /* runs until released, not for duration_ns */
#define SG_RELEASED 2u   /* the word a spin kernel watches has become non-zero */
#define SG_EFFECT   4u   /* on completion the owning process has to change its own memory (effect.c) */
#define SG_LOGGED   8u   /* goes to the kernel log */
#define SG_TURN     16u  /* needs its context to hold the device; set by sg_submit */
#define SG_INLINE   32u  /* a copy among its channel's commands: it gets SG_TURN if intrusion_us is set */
#define SG_INWARD   64u  /* a copy from the host */
#define SG_FAULT    128u /* it ends with an illegal address: the context is lost */

/* One piece of work in a stream. */
struct sg_item {
  uint8_t kind;
  uint8_t phase;
  uint16_t flags;
  uint32_t next;        /* in its lane, in the effects list, or in the free list */
  uint32_t next_effect; /* the next item with an effect in its lane, later the next one in the effects list */
  uint32_t name;        /* kernels: index in names; records and waits: event slot */
  uint32_t peer;        /* waits: context slot of the event; watches: how the word compares */
  uint32_t demand;      /* of the SMs, in parts of SG_ALL_SMS; 0: runs on none */
  uint32_t lane;
  uint64_t order; /* submission number inside its context: orders the legacy stream against blocking ones */
  uint64_t duration_ns;
  uint64_t left_ns;      /* of its duration, at least 1 at first: what is still to be done */
  uint64_t part;         /* work done of the next nanosecond, not yet taken off left_ns, see slice.c */
  uint64_t mark_ns;      /* the lane's submitted_ns with this item: its done_ns once the item is complete */
  uint64_t submitted_ns; /* clock */
  uint64_t ready_ns;     /* clock: not before this (launch latency) */
  uint64_t started_ns;   /* clock: the device first worked on it */
  uint64_t busy_ns;      /* device time so far */
  uint64_t seq;          /* records and waits: the record's number in its event slot; writes, watches: the value */
  uint64_t watch;        /* spins, watches: address of the word; writes, memsets: first address written, 0 = none */
  uint64_t watch_bytes;  /* watches: of the word; writes: bytes written; memsets: with a non-zero value */
  uint64_t effect;       /* owner's pointer to what to do */
};

/* CLOSING: the program has destroyed the stream; the model frees the lane when it is empty. */
enum sg_lane_use { SG_LANE_FREE, SG_LANE_USED, SG_LANE_CLOSING };

/* One stream: a FIFO of items. Lane 0 is the legacy default stream. */
struct sg_lane {
  uint32_t used;     /* enum sg_lane_use */
  uint32_t blocking; /* synchronises with the legacy stream */
  uint32_t head, tail;
  uint32_t effect_head, effect_tail; /* items on which the owner must act (SG_EFFECT, SG_HOST), not complete yet */
  uint32_t pending;
  uint32_t blockers;     /* pending items for which sg_is_blocker holds: the rest is device time of a known length */
  uint64_t submitted_ns; /* sum of the durations of all work ever submitted */
  uint64_t done_ns;      /* sum of the durations of all work completed */
  uint64_t handle;       /* the client's stream handle, for the log */
  uint64_t completed;    /* items ever completed */
  uint64_t appended;     /* items ever appended */
};

/* One event slot. Its numbers never go back, even when another event gets the slot. */
struct sg_event {
  uint32_t lane; /* of the newest record */
  uint32_t next_free;
  uint64_t mark_ns;      /* of the newest record, see sg_item */
  uint64_t recorded;     /* records ever submitted */
  uint64_t completed;    /* the newest record completed */
  uint64_t completed_ns; /* clock: when */
};

enum sg_context_state { SG_FREE = 0, SG_ALIVE = 1 };

struct sg_context {
  uint32_t state;
  uint32_t device;
  struct sg_owner owner;
  uint32_t id;         /* never reused */
  uint32_t lost_error; /* sticky CUresult, 0 = healthy */
  uint64_t created_ns;
  uint64_t memory_bytes; /* allocations and the context's own overhead */
  uint64_t busy_ns;
  uint64_t order;
  uint64_t active[SG_MAX_LANES / 64];         /* lanes with pending items */
  uint32_t free_item, used_items, fresh_item; /* list of freed items; not kept; first item never used */
  uint32_t free_event, fresh_event;           /* the same for event slots */
  uint32_t effects_head, effects_tail; /* what the owner must do, in order, until it takes it: see sg_effect_push */
  struct sg_history history;
  struct sg_lane lanes[SG_MAX_LANES];
  struct sg_event events[SG_MAX_EVENTS];
  struct sg_item items[SG_MAX_ITEMS];
};

/* Device memory that belongs to a process, not to one of its contexts. */
enum sg_holding { SG_POOLS, SG_PHYSICAL, SG_EXTERNAL, SG_HOLDINGS };

/* One process that has such memory. Only the process itself changes its counters, each with one store. Whenever it
 * dies, its slot goes as a whole, and everything that it had counted is given back. */
struct sg_client {
  struct sg_owner owner;
  uint32_t reserved;
  uint64_t memory_bytes[SG_HOLDINGS][SG_MAX_DEVICES];
};

/* Physical memory that several processes may hold. It counts while any process holds it: for the exporter as long as
 * the exporter is a holder. A holder's bit is set last and goes with its death, so no half-made piece is counted. */
struct sg_piece {
  uint64_t id; /* never reused */
  uint64_t bytes;
  uint32_t device;
  uint32_t exporter;                     /* client slot */
  uint64_t holders[SG_MAX_CLIENTS / 64]; /* client slots; none: the entry is free */
};

/* A context that is gone. Its busy time is kept. */
struct sg_past {
  uint32_t device;
  uint32_t id;
  struct sg_owner owner;
  uint32_t reserved;
  uint64_t busy_ns;
  uint64_t ended_ns;
};

/* A GPU or a MIG instance: the model treats both as devices. */
struct sg_device {
  char name[96];
  uint8_t uuid[16];
  uint32_t sm_count;
  uint32_t major, minor; /* compute capability */
  uint32_t clock_khz, memory_clock_khz, bus_bits, l2_bytes;
  uint32_t pci_domain, pci_bus, pci_device, pci_id; /* pci_id: device id << 16 | vendor id */
  uint32_t model;                                   /* row of catalogue.inc */
  uint32_t power_limit_mw, nvlinks;
  uint32_t lost_error; /* CUresult that new calls get, 0 = healthy */
  uint64_t memory_total_bytes;
  uint64_t bandwidth_bytes_per_s; /* device memory */
  uint64_t busy_ns;
  uint64_t switches;
  uint32_t current;         /* context slot that holds or last held the device */
  uint32_t current_id;      /* and its id: a slot may have been given to another since */
  uint64_t switch_until_ns; /* the device changes contexts until then */
  uint64_t slice_end_ns;
  uint64_t worked_ns;    /* when the current context last had work */
  uint64_t hold_busy_ns; /* busy_ns when the current context got the device */
  struct sg_history history;
  uint32_t parent;       /* a MIG instance: the index of its GPU; SG_NONE: a GPU */
  uint32_t number;       /* of a GPU on the machine, of an instance on its GPU */
  uint32_t mig;          /* a GPU in MIG mode: work runs only in its instances */
  uint32_t mps_pid;      /* the MPS server that serves it, 0 = none */
  uint32_t graphics_pid; /* a process that draws on it, 0 = none */
  uint32_t compute_mode; /* 0: many processes may use it; as NVML counts them */
  uint32_t hangs;        /* calls of NVML that talk to the hardware do not return */
  uint32_t mute;         /* NVML may not tell the memory of the device */
  uint32_t profile;      /* an instance: row of mig.inc */
  uint32_t start;        /* and its first memory slice */
};

struct sg_xid {
  uint64_t seq; /* 1, 2, ...; 0 = empty */
  uint32_t device;
  uint32_t xid;
  uint64_t time_ns;
};

/* Fixed when the file is made: every process must run the same model. */
struct sg_model {
  struct sg_profile profile;
  uint64_t context_bytes; /* device memory that a context itself takes */
  uint64_t module_bytes;  /* and that each loaded module takes */
  uint64_t log_records;
  uint64_t driver_release; /* 580: the driver's release, as NVML reports it */
};

struct sg_shared {
  uint64_t magic;
  uint32_t version;
  uint32_t context_bytes; /* sizeof(struct sg_context): another build must not map this file */
  uint64_t total_bytes;
  pthread_mutex_t lock;
  uint32_t generation; /* futex: bumped when a wait may end earlier than projected */
  uint32_t device_count;
  uint32_t last_id;
  uint32_t last_owner;
  uint32_t name_count;
  uint32_t driver_loads;     /* reloads; programs that had opened NVML before: their calls fail until they reopen it */
  uint32_t nvml_refuses;     /* NVML cannot be opened */
  uint64_t made_ns;          /* the model began here */
  uint64_t now_ns;           /* the model stands here; never goes back */
  uint64_t reaped_ns;        /* last look for dead processes */
  uint64_t blocked_until_ns; /* until then some waiter cannot know when it will be done: wake it on each submission */
  uint64_t logged;           /* kernel records ever written */
  uint64_t past_count;
  uint64_t xid_seq;
  uint64_t alive[SG_MAX_CONTEXTS / 64];
  uint64_t active[SG_MAX_CONTEXTS / 64]; /* alive and with pending items */
  char devices_setting[256];
  struct sg_model model;
  struct sg_device devices[SG_MAX_DEVICES];
  struct sg_xid xids[SG_MAX_XIDS];  /* ring, entry (seq - 1) % SG_MAX_XIDS */
  struct sg_past past[SG_MAX_PAST]; /* ring, entry n % SG_MAX_PAST */
  uint64_t clients_alive[SG_MAX_CLIENTS / 64];
  uint64_t last_piece;  /* id */
  uint32_t piece_count; /* entries ever used: no piece is at or after it */
  struct sg_client clients[SG_MAX_CLIENTS];
  struct sg_piece pieces[SG_MAX_PIECES];
  char names[SG_MAX_NAMES][SG_NAME_BYTES];
  struct sg_context contexts[SG_MAX_CONTEXTS];
};

/* One record of <file>.kernels. */
struct sg_log_record {
  uint32_t context; /* id */
  uint32_t device;
  struct sg_owner owner;
  uint32_t name;
  uint64_t stream;
  uint64_t submitted_ns;
  uint64_t started_ns;
  uint64_t ended_ns;
  uint64_t busy_ns;
};
_Static_assert(sizeof(struct sg_log_record) == 64, "truth.py reads this layout");

/* This process's hold on one state file. */
struct sg_state {
  struct sg_shared *shared;
  struct sg_log_record *log; /* NULL without a log */
  int fd;
  int pids_fd;                        /* of <file>.pids, -1: not needed yet; guarded by the lock, never closed */
  uint32_t pid_namespace;             /* of this process */
  uint64_t file;                      /* inode of the state file */
  struct sg_owner owner;              /* this process, id 0: not one yet; guarded by the lock */
  uint64_t own[SG_MAX_CONTEXTS / 64]; /* slots of this hold; guarded by the lock */
  uint32_t client;                    /* of this hold, SG_NONE: not one yet; guarded by the lock */
  uint32_t hidden;                    /* bit n: device n has no node that this process can open */
  char path[240];
};

/* --- state.c: open, lock, tables ------------------------------------------------------------------------------- */

/* Map the state file. With a path: that file, which must exist. NULL: SIMGPU_STATE or /dev/shm/simgpu-<uid>. That file
 * is made from the settings if it does not exist. It is made anew if SIMGPU_DEVICES has another value than when it was
 * made and no process has it open. Returns 0 or -errno; -EPROTO: made by another build; -EINVAL: a setting is wrong. */
int sg_open(struct sg_state *state, const char *path);
/* Unmap. This releases the OFD locks, so the contexts of this process are lost. */
void sg_close(struct sg_state *state);
/* Drop the mapping and the descriptor in a forked child. The parent keeps both. */
void sg_abandon(struct sg_state *state);

/* Nanoseconds of the machine's CLOCK_MONOTONIC: the same in every time namespace. */
uint64_t sg_now(void);
/* The same instant by the clock of this process's time namespace. */
uint64_t sg_own_clock(uint64_t now_ns);
void sg_lock(struct sg_state *state);
/* sg_lock, then advance to now. At intervals it also drops the contexts of dead processes. */
void sg_lock_advanced(struct sg_state *state);
void sg_unlock(struct sg_state *state);
/* With the lock: drop every context and every client of a process that is gone. */
void sg_reap(struct sg_state *state);

/* --- catalogue.c: the devices of the machine --------------------------------------------------------------------- */

/* Fill the devices from "2xH200,1xH100:3g.40gb+4g.40gb": counts, models, and MIG instances behind a colon. An instance
 * follows its GPU. 0 or -EINVAL. */
int sg_add_devices(struct sg_shared *shared, const char *text);
/* A profile by which a GPU can be cut: a row of mig.inc. */
struct sg_mig_profile {
  const char *setting, *name;
  uint32_t compute_slices, memory_slices, sm_count;
  uint32_t number, id; /* number: NVML's, the same for every GPU. id: the GPU's own */
  uint32_t copy_engines, decoders, jpegs, ofas;
};
/* The profile of the device's model with this number, or NULL. */
const struct sg_mig_profile *sg_mig_profile_numbered(const struct sg_device *device, uint32_t number);
/* The profile of an instance. */
const struct sg_mig_profile *sg_mig_profile_of(const struct sg_device *instance);
/* The part of the GPU's memory that an instance of the profile has. */
uint64_t sg_mig_profile_memory_mib(const struct sg_device *gpu, const struct sg_mig_profile *profile);
/* The last possible start of a profile's instances. They begin at multiples of their memory slices from 0 to this one.
 */
uint32_t sg_mig_profile_last_start(const struct sg_mig_profile *profile);

/* --- nodes.c: which devices a process may use --------------------------------------------------------------------- */

/* Fill in state->hidden. False: this process cannot open the driver's own node. */
bool sg_find_hidden(struct sg_state *state);
/* Whether this process cannot open the node of the device. */
static inline bool sg_hidden(const struct sg_state *state, uint32_t device) {
  return state->hidden >> device & 1;
}

/* --- state.c: contexts, faults ----------------------------------------------------------------------------------- */

/* With the lock: take a slot for a new context of this process and lock it; SG_NONE: there is none. */
uint32_t sg_context_create(struct sg_state *state, uint32_t device);
/* With the lock: drop a context's work and memory, and remember its busy time. */
void sg_context_drop(struct sg_state *state, uint32_t slot);
/* With the lock: the index of `name` in the table of kernel names. If the table is full: the last entry, "...". */
uint32_t sg_intern(struct sg_shared *shared, const char *name);
/* With the lock: busy time between two instants, at most SG_BUCKETS spans back. A span that is only partly between them
 * counts in proportion. */
uint64_t sg_history_busy(const struct sg_history *history, uint64_t from_ns, uint64_t to_ns);
/* With the lock: wake every waiter, so that it looks again. */
void sg_kick(struct sg_shared *shared);
/* With the lock: report an XID. XIDs that lose the device (48 79 94 95 119 ...) also fail every context on it, and XIDs
 * of a GPU do the same to its instances. */
void sg_inject_xid(struct sg_state *state, uint32_t device, uint32_t xid);
/* Without the lock: sleep until an XID is reported after number `seq`, or for the timeout. */
void sg_await_xid(const struct sg_shared *shared, uint64_t seq, uint64_t timeout_ns);
/* With the lock: the device works again for new contexts. */
void sg_recover(struct sg_state *state, uint32_t device);

/* --- client.c: memory of processes ------------------------------------------------------------------------------- */

/* With the lock: this process's entry among the clients; it is made if there is none. NULL: the table is full. */
struct sg_client *sg_client_own(struct sg_state *state);
/* With the lock: drop the clients of processes that are gone. */
void sg_clients_reap(struct sg_state *state);
/* With the lock: device memory in use, by contexts, by clients and in pieces. */
uint64_t sg_memory_used(const struct sg_shared *shared, uint32_t device);
/* With the lock: the same for one process, the owner with that id: its contexts, its counters and its pieces. */
uint64_t sg_memory_of(const struct sg_shared *shared, uint32_t device, uint32_t owner);
/* With the lock: what a process has of one kind, with the pieces that are charged to it. */
uint64_t sg_holding_of(const struct sg_shared *shared, uint32_t device, uint32_t owner, enum sg_holding holding);
/* With the lock: make a piece that this process holds, or return SG_NONE. Its bytes are not checked for capacity. */
uint32_t sg_piece_new(struct sg_state *state, uint32_t device, uint64_t bytes);
/* With the lock: hold a piece that another process may have made. False: the piece is gone, or the table of clients is
 * full. */
bool sg_piece_hold(struct sg_state *state, uint32_t piece, uint64_t id);
/* With the lock: let go of a piece that this process holds. */
void sg_piece_drop(struct sg_state *state, uint32_t piece);

/* Change or query a lock on one byte of the state file. Returns 0 or -errno. */
int sg_lock_byte(int fd, short type, int64_t byte, int command);
#define SG_PRESENCE_BYTE (1 + SG_MAX_CONTEXTS)          /* read-locked by every process that has the file open */
#define SG_CLIENT_BYTE   (2 + (int64_t)SG_MAX_CONTEXTS) /* of client 0 */

/* Whether bit `n` is set. */
static inline bool sg_bit(const uint64_t *bits, uint32_t n) {
  return (bits[n / 64] >> (n % 64)) & 1;
}
/* Set bit `n`. */
static inline void sg_set(uint64_t *bits, uint32_t n) {
  bits[n / 64] |= 1ull << (n % 64);
}
/* Clear bit `n`. */
static inline void sg_clear(uint64_t *bits, uint32_t n) {
  bits[n / 64] &= ~(1ull << (n % 64));
}
/* The first set bit at or after n, or `size`. */
static inline uint32_t sg_next_bit(const uint64_t *bits, uint32_t n, uint32_t size) {
  for (; n < size; n = (n / 64 + 1) * 64) {
    uint64_t rest = bits[n / 64] >> (n % 64);
    if (rest)
      return n + (uint32_t)__builtin_ctzll(rest);
  }
  return size;
}
/* A loop over every set bit `n`, in order. Its body has braces. */
#define SG_EACH(n, bits, size)                                                                                         \
  for (uint32_t n = sg_next_bit(bits, 0, size); n < (size); n = sg_next_bit(bits, n + 1, size))

#endif
