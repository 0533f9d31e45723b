/*
 * The gate: the check that every GPU launch passes inside the user's process.
 *
 * A wrapper of a launch calls it around the driver's own function:
 *
 *     struct sp_pass pass;
 *     sp_gate_enter(&pass, stream, per_thread, sp_work_key(function, grid, block));
 *     result = driver(...);
 *     sp_gate_leave(&pass, result);
 *
 * sp_gate_enter may block until the share holds the turn. It never fails and never changes errno. Nothing here prints,
 * exits or changes signals.
 */
#ifndef SHAREPOD_GATE_H
#define SHAREPOD_GATE_H

#include <stdbool.h>
#include <stdint.h>

struct sp_device;
struct sp_stream_state;
struct sp_work_profile;

/* The state of one launch between enter and leave. It lives on the caller's stack. */
struct sp_pass {
  struct sp_device *device;        /* NULL: not metered (no region, capture, unknown device) */
  struct sp_stream_state *state;   /* the stream's state */
  struct sp_work_profile *profile; /* the prediction row of this function and grid */
  uint64_t predicted_ns;           /* what was added to the work in flight */
  bool entered;                    /* the first launch of its turn: the keeper must be told */
  bool measured;                   /* measured alone: a marker is recorded behind it … */
  bool edged;                      /* … and another one was recorded before it */
};

/* The key of a unit, under which its duration is learned: of a function (`handle`) with its grid and block, or of an
 * executable graph with 0 for both. The large odd factors spread the bits of the three. */
static inline uint64_t sp_work_key(const void *handle, uint64_t grid, uint64_t block) {
  uint64_t key = (uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15u;
  key ^= grid * 0xc2b2ae3d27d4eb4fu;
  key ^= block * 0x165667b19e3779f9u;
  return key | 1u; /* 0 marks an empty row */
}

/* Is this process in a share? If not, nothing is metered. */
bool sp_gate_attached(void);

/* Pass the gate for one launch into `stream` (0, 1 and 2 are the driver's default streams; `per_thread` is true for
 * the _ptsz variants, where 0 means the calling thread's stream). */
void sp_gate_enter(struct sp_pass *pass, void *stream, bool per_thread, uint64_t key);

/* The driver has been called, and returned the CUresult `result`: count the launch if the driver has accepted it. */
void sp_gate_leave(struct sp_pass *pass, int result);

/* The calling thread has left an earlier call by a jump: undo what that call left at the gate. */
void sp_gate_left(void);

/* The driver has accepted a launch that passes no gate: count it as passed on the current device. */
void sp_gate_passed(void);

/* The driver has accepted copies between host and device memory. They pass no gate; count them for the usage. Not
 * called for copies into a capturing stream, which are not made yet. */
enum sp_way { SP_TO_DEVICE, SP_TO_HOST };
void sp_copied(void *stream, bool per_thread, enum sp_way way, uint64_t bytes, uint64_t count);

/* The stream is about to get an item that waits for something else than the device's work: a copy of host memory, a
 * host function, a word in memory, an event. Work behind it does not run before that is over. The work in front
 * gets a marker, because it ends before, and the wait is noted. */
enum sp_awaited { SP_AWAITS_HOST, SP_AWAITS_EVENT };
void sp_gate_awaiting(void *stream, bool per_thread, enum sp_awaited awaited);

/* What a synchronising call waits for. */
enum sp_sync {
  SP_SYNC_STREAM,  /* the work in a stream */
  SP_SYNC_CONTEXT, /* all work of the current context */
  SP_SYNC_BEFORE,  /* all earlier work in the legacy stream, and in the streams that wait for it */
  SP_SYNC_EVENT,   /* work before an event: the hook does not know in which stream */
};

/* The calling thread is about to wait for its work (a synchronise, a blocking copy): record markers that show when the
 * work ends. It has just returned from that: the turn may be returned early. */
void sp_gate_syncing(void *stream, bool per_thread, enum sp_sync sync);
void sp_gate_synced(enum sp_sync sync);

/* A capture into `stream` is about to begin; it has ended or failed. While one is open, markers are recorded only where
 * they cannot disturb it. */
void sp_gate_capture_begin(void *stream, bool per_thread);
void sp_gate_capture_end(void *stream, bool per_thread);

/* Is any capture of this process open? */
bool sp_gate_captures(void);

/* The work that is launched under this key is different from now on (an executable graph was updated), or is gone. */
void sp_gate_work_changed(uint64_t key, bool gone);

/* A stream or context is about to be destroyed: forget its markers. The driver may give the handle out again. */
void sp_gate_forget_stream(void *stream);
void sp_gate_forget_context(void *context);
/* The context is gone, and so are the captures that were open in its streams. */
void sp_gate_context_gone(const void *context);

/* The calling thread's current context has changed (cuCtxSetCurrent, push, pop, create, destroy): its device and
 * stream states must be looked up again. */
void sp_gate_context_changed(void);

/* The driver's cuInit succeeded: map the region and claim a slot. Returns false if the node's policy is `closed` and
 * the process cannot be attached: then cuInit must fail with CUDA_ERROR_SYSTEM_NOT_READY (802). */
bool sp_attach(void);

/* Tell the agent what went wrong; the agent logs it, because the hook may not print. None of these changes errno. */
void sp_attach_failed(int result);           /* cuInit failed: the program may make no other call */
void sp_share_no_device(int ordinal);        /* the program asked for this device, and the driver has none */
void sp_share_kept_out(int result);          /* the driver lets the program make no context */
void sp_share_crowded(uint32_t most);        /* the program has more threads or streams than this */
void sp_share_no_function(const char *name); /* the program called this function, and the driver lacks it */
/* Must a context on this device be refused, because the policy is `closed` and the share does not hold the device?
 * Tells the agent, too. */
bool sp_share_refuses(int ordinal);

#endif
