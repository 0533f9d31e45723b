/*
 * The arbiter: the node-local scheduler that grants turns on all devices of the node.
 *
 * One native thread, an epoll loop: bells in, grants out. It reads tenants' slots with pread, asks the policy
 * (policy.c) who is next, bills on CLOCK_MONOTONIC, and never takes Python's GIL. Every function here may be called
 * from any thread; each takes the arbiter's lock for microseconds. Integers are ns and bytes. Functions return 0 or a
 * handle >= 0, or -errno.
 */
#ifndef SHAREPOD_ARBITER_H
#define SHAREPOD_ARBITER_H

#include <stdint.h>

/* cdef begin: the block between the markers is read by agent/build_native.py for cffi */
struct sp_arbiter;

/* The terms of one share on one of its devices. */
struct sp_terms {
  int32_t device;                /* handle from sp_arbiter_add_device */
  uint32_t request_millipercent; /* guaranteed device time, 1/1000 %: 30 % = 30000; 0 = best effort */
  uint32_t limit_millipercent;   /* the most it may use: 1000..100000 */
  uint32_t share_class;          /* 0 latency, 1 standard, 2 batch */
  uint64_t memory_limit_bytes;   /* 0 = no cap */
};

/* Copies between the host's memory and a device's. */
struct sp_copies {
  uint64_t to_device_bytes, to_host_bytes;
  uint64_t to_device_count, to_host_count;
};

/* The account of one share on one device. */
struct sp_usage {
#define SP_USAGE(type, name, metric, meaning) type name;
#include "agent/arbiter/usage.def"
  struct sp_copies gone_copies; /* of the host copies, those of processes that are gone */
  uint32_t state;               /* 0 idle, 1 waiting, 2 holding, 3 draining, 4 paused */
  int32_t gang_device;          /* the device for which its gang waits before it may have this one; -1: none */
};

/* How often something took how long, since this arbiter has the share or device. */
struct sp_histogram {
  uint64_t counts[12]; /* by the first of the bounds that it does not exceed; the last: by none */
  uint64_t sum_ns;
};

/* One finished turn, for traces. */
struct sp_turn {
  uint64_t sequence; /* 1, 2, 3, … without gaps */
  int32_t share;
  int32_t device;
  uint64_t requested_ns; /* when the share began to wait (CLOCK_MONOTONIC) */
  uint64_t granted_ns;
  uint64_t closed_ns; /* when the grant was closed */
  uint64_t drained_ns;
  uint64_t charged_ns;
  uint32_t reason; /* why it ended: 0 idle (early yield), 1 quantum, 2 limit, 3 preempted by latency, 4 dead, 5 paused,
                      6 released */
  uint32_t cogranted; /* 1: another share was granted before it drained */
};

/* One live process of a share. */
struct sp_process {
  int32_t pid; /* in the agent's pid namespace */
  uint32_t slot;
  uint64_t launches;
  uint64_t memory_used_bytes;
};

/* What one live process of a share is charged with on one device. */
struct sp_holding {
  int32_t pid; /* in the agent's pid namespace */
  uint32_t slot;
  uint64_t memory_used_bytes;
  uint64_t context_bytes; /* of that, what was reserved for contexts: an estimate */
};

/* What befell a process of a share. */
struct sp_mishap {
  uint64_t number; /* 1, 2, 3, … of the share */
  int32_t pid;     /* in the agent's pid namespace; 0: it was gone before it could be told */
  uint32_t kind;   /* enum sp_mishap_kind of region/region.h */
  uint32_t detail;
};

/* What the region of a share says of it on one device, where nobody has a record of the share. */
struct sp_found {
  char uuid[48];
  struct sp_terms terms; /* without the device's handle */
  uint32_t paused;       /* it, or its gang */
};

/* Of a region that can be used: fill up to 16 of `found`, return how many, or -errno. */
int sp_region_terms(const char *directory, struct sp_found *found);
/* 2: a process has a slot of the region; 1: one has claimed a slot and has no lock there, for it is gone, or has just
 * lost its descriptors; 0: none. */
int sp_region_tenants(const char *directory);

struct sp_arbiter *sp_arbiter_new(void);
int sp_arbiter_start(struct sp_arbiter *arbiter);
/* Planned stop: opens every gate that is not paused within 50 ms, ends the thread, frees everything. */
void sp_arbiter_free(struct sp_arbiter *arbiter);

/* `uuid` as NVML prints it ("GPU-…" / "MIG-…"). Returns the device's handle. */
int sp_arbiter_add_device(struct sp_arbiter *arbiter, const char *uuid);

/* Create (or, when `directory` holds a live region, adopt) a share's region. `directory` must exist, owned by the
 * agent. `used_ns` (one per term, may be NULL) continues an earlier account, unless an adopted region has a later one.
 * Returns the share's handle. */
int sp_arbiter_add_share(struct sp_arbiter *arbiter, const char *directory, const struct sp_terms *terms,
                         uint32_t term_count, const uint64_t *used_ns);
int sp_arbiter_update_share(struct sp_arbiter *arbiter, int share, const struct sp_terms *terms, uint32_t term_count);
int sp_arbiter_pause_share(struct sp_arbiter *arbiter, int share, int paused);
/* Shares with the same key get those devices together that none of the others has: one gang, which is paused while one
 * of them is. 0: the share's devices alone are its gang. */
int sp_arbiter_join_gang(struct sp_arbiter *arbiter, int share, uint32_t key);
/* Forget a share. Its gates open (the processes that are left run unmetered); the caller removes the directory. */
int sp_arbiter_remove_share(struct sp_arbiter *arbiter, int share);

int sp_arbiter_read_usage(struct sp_arbiter *arbiter, int share, uint32_t term, struct sp_usage *usage);
/* The bounds of waits and turns, and those of hand-offs. */
extern const uint64_t sp_turn_bounds_ns[11], sp_hand_off_bounds_ns[11];
/* Of the share's finished turns: from the request to the grant, and from that to the drain. */
int sp_arbiter_read_turn_times(struct sp_arbiter *arbiter, int share, uint32_t term, struct sp_histogram *waits,
                               struct sp_histogram *turns);
/* Of the device: from the end of one share's turn to the grant of the next one's, who had waited for that; 0 where the
 * grant came first. Without shares that a limit or the rest of a gang may have kept waiting as well. */
int sp_arbiter_read_hand_offs(struct sp_arbiter *arbiter, int device, struct sp_histogram *hand_offs);
/* Up to `capacity` live processes of the share, as of the last sp_arbiter_read_usage; returns how many. */
int sp_arbiter_read_processes(struct sp_arbiter *arbiter, int share, struct sp_process *processes, uint32_t capacity);
/* Up to `capacity` finished turns with a sequence above `after`, oldest first; the last 65,536 are kept. */
int sp_arbiter_read_turns(struct sp_arbiter *arbiter, uint64_t after, struct sp_turn *turns, uint32_t capacity);
/* Up to `capacity` of the share's last mishaps with a number above `after`, oldest first. */
int sp_arbiter_read_mishaps(struct sp_arbiter *arbiter, int share, uint64_t after, struct sp_mishap *mishaps,
                            uint32_t capacity);
/* The driver's function whose name a mishap's detail stands for; "" for one that is not known here. */
const char *sp_function_of(uint32_t detail);
/* Of the whole device, since start: time charged to shares, decisions made, time that they took. */
int sp_arbiter_read_device(struct sp_arbiter *arbiter, int device, uint64_t *charged_ns, uint64_t *decisions,
                           uint64_t *decision_ns);
/* Up to `capacity` live processes of the share with what they hold of its `term`-th device, as the slots say now. */
int sp_arbiter_read_holdings(struct sp_arbiter *arbiter, int share, uint32_t term, struct sp_holding *holdings,
                             uint32_t capacity);
/* The process in `slot` takes so much more of the device than it is charged with (less when negative, but never less
 * than its contexts were reserved with). Ignored when another process has the slot by now. */
int sp_arbiter_set_overhead(struct sp_arbiter *arbiter, int share, uint32_t term, uint32_t slot, int32_t pid,
                            int64_t overhead_bytes);
/* What a context takes of the device, told to its shares; 0: read back what was told them, by an earlier agent too. */
uint64_t sp_arbiter_context_bytes(struct sp_arbiter *arbiter, int device, uint64_t context_bytes);
/* What was learned of another driver. */
void sp_arbiter_forget_contexts(struct sp_arbiter *arbiter);
/* cdef end */

#endif
