/*
 * The arbiter: the node-local scheduler that grants turns on all devices of the node.
 *
 * It is one native thread with an epoll loop: doorbells come in, grants go out. The thread reads the tenants' slots
 * with pread, asks the policy (policy.c) which share is next, bills on CLOCK_MONOTONIC, and never takes Python's GIL.
 * Every function here may be called from any thread; each takes the arbiter's lock for microseconds. Integers are ns
 * and bytes. Functions return 0 or a handle >= 0, or -errno.
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
  struct sp_copies gone_copies; /* of the host copies above, the part of processes that have ended */
  uint32_t state;               /* 0 idle, 1 waiting, 2 holding, 3 draining, 4 paused */
  int32_t gang_device;          /* the device for which its gang waits before it may have this one; -1: none */
};

/* A histogram of durations, since this arbiter has had the share or device. */
struct sp_histogram {
  uint64_t counts[12]; /* for each bound, durations up to it but above the bound before; the last: the rest */
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
  uint64_t context_bytes; /* the part of that which was reserved for contexts: an estimate */
};

/* Something that went wrong in a process of a share. */
struct sp_diagnostic {
  uint64_t number; /* counts from 1 in each share */
  int32_t pid;     /* in the agent's pid namespace; 0: not known, for example because the process was gone */
  uint32_t kind;   /* enum sp_diagnostic_kind of region/region.h */
  uint32_t detail;
};

/* What a region says of its share on one device, for an agent that has no record of the share. */
struct sp_found {
  char uuid[48];
  struct sp_terms terms; /* without the device's handle */
  uint32_t paused;       /* the share or its gang is */
};

/* Read the terms in a region: fill up to 16 of `found`. Returns how many, or -errno if the region cannot be used. */
int sp_region_terms(const char *directory, struct sp_found *found);
/* 2: a process has a slot of the region; 1: a slot is claimed, but no process holds its lock, because it is gone or has
 * just lost its descriptors; 0: no slot is claimed. */
int sp_region_tenants(const char *directory);

/* NULL: there is no memory, or no descriptor. */
struct sp_arbiter *sp_arbiter_new(void);
/* Start the threads. */
int sp_arbiter_start(struct sp_arbiter *arbiter);
/* Planned stop: opens every gate that is not paused within 50 ms, ends the threads, frees everything. NULL, and an
 * arbiter that was never started, are allowed. */
void sp_arbiter_free(struct sp_arbiter *arbiter);

/* `uuid` as NVML prints it ("GPU-…" / "MIG-…"). Returns the device's handle. */
int sp_arbiter_add_device(struct sp_arbiter *arbiter, const char *uuid);

/* Create (or, when `directory` holds a live region, adopt) a share's region. `directory` must exist, owned by the
 * agent. `used_ns` (one per term, may be NULL) continues an earlier account, unless an adopted region has a later one.
 * Returns the share's handle. */
int sp_arbiter_add_share(struct sp_arbiter *arbiter, const char *directory, const struct sp_terms *terms,
                         uint32_t term_count, const uint64_t *used_ns);
/* Change the terms of a share: one for each of its devices, in the same order. A turn under the old terms is judged
 * anew. */
int sp_arbiter_update_share(struct sp_arbiter *arbiter, int share, const struct sp_terms *terms, uint32_t term_count);
/* Pause a share, or resume it. Its gang is paused while any of its shares is. */
int sp_arbiter_pause_share(struct sp_arbiter *arbiter, int share, int paused);
/* Make shares with the same key one gang, as far as they are on different devices: they get their devices together, and
 * all are paused while one of them is. Key 0: the share is a gang of its own. */
int sp_arbiter_join_gang(struct sp_arbiter *arbiter, int share, uint32_t key);
/* Forget a share. Its turns end, its gates open (the processes that are left run unmetered), and its gang goes on
 * without it. The caller removes the directory. */
int sp_arbiter_remove_share(struct sp_arbiter *arbiter, int share);

/* The account of the share on its `term`-th device, as of now. */
int sp_arbiter_read_usage(struct sp_arbiter *arbiter, int share, uint32_t term, struct sp_usage *usage);
/* The bounds of the histograms of waits and turns, and of hand-offs. */
extern const uint64_t sp_turn_bounds_ns[11], sp_hand_off_bounds_ns[11];
/* The share's finished turns: `waits` from the request to the grant, `turns` from the grant to the drain. */
int sp_arbiter_read_turn_times(struct sp_arbiter *arbiter, int share, uint32_t term, struct sp_histogram *waits,
                               struct sp_histogram *turns);
/* The device's hand-offs: from the end of a turn to the grant of a share that had waited for that end; 0 where the
 * grant came first. Grants to shares that a limit or a gang may have kept waiting, too, are not counted. */
int sp_arbiter_read_hand_offs(struct sp_arbiter *arbiter, int device, struct sp_histogram *hand_offs);
/* Up to `capacity` live processes of the share, as of the last sp_arbiter_read_usage; returns how many. */
int sp_arbiter_read_processes(struct sp_arbiter *arbiter, int share, struct sp_process *processes, uint32_t capacity);
/* Up to `capacity` finished turns with a sequence above `after`, oldest first; the last 65,536 are kept. */
int sp_arbiter_read_turns(struct sp_arbiter *arbiter, uint64_t after, struct sp_turn *turns, uint32_t capacity);
/* Up to `capacity` of the share's last diagnostics with a number above `after`, oldest first. */
int sp_arbiter_read_diagnostics(struct sp_arbiter *arbiter, int share, uint64_t after,
                                struct sp_diagnostic *diagnostics, uint32_t capacity);
/* The name of the driver function that a diagnostic's detail stands for; "" if it is not known here. */
const char *sp_function_of(uint32_t detail);
/* Since the start, for the whole device: time charged to shares, decisions made, and the time that these took. */
int sp_arbiter_read_device(struct sp_arbiter *arbiter, int device, uint64_t *charged_ns, uint64_t *decisions,
                           uint64_t *decision_ns);
/* Up to `capacity` live processes of the share with what they hold of its `term`-th device, as the slots say now. */
int sp_arbiter_read_holdings(struct sp_arbiter *arbiter, int share, uint32_t term, struct sp_holding *holdings,
                             uint32_t capacity);
/* Set how much more of the device the process in `slot` takes than it is charged with. Negative: less, but at most as
 * much less as was reserved for its contexts. Ignored if another process has the slot by now. */
int sp_arbiter_set_overhead(struct sp_arbiter *arbiter, int share, uint32_t term, uint32_t slot, int32_t pid,
                            int64_t overhead_bytes);
/* Tell the device's shares how much memory a context takes there; 0: tell them nothing new. Returns what they have been
 * told, by this agent or an earlier one; 0: nothing yet, or no such device. */
uint64_t sp_arbiter_context_bytes(struct sp_arbiter *arbiter, int device, uint64_t context_bytes);
/* Forget what contexts take, on all devices: another driver has been loaded. */
void sp_arbiter_forget_contexts(struct sp_arbiter *arbiter);
/* cdef end */

#endif
