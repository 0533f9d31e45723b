/*
 * The hook's state in one process: its region, devices, threads and streams.
 *
 *   unit          the work of one launch: a kernel, a memset, a copy or an executable graph
 *   device        one for each grant of the region that this process uses; each has a keeper thread
 *   stream_state  one for each stream that launches: its unmarked work, its timing events
 *   marker        an event recorded behind work in a stream; the keeper waits for markers in order
 *   edge          a marker just before a launch: it shows when the stream comes to that launch
 *   work_profile  how long a unit takes: a function with its grid, or an executable graph
 *   thread        one record for each launching thread: is it between the gate and the driver's return?
 */
#ifndef SHAREPOD_PROCESS_H
#define SHAREPOD_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "hook/gate/gate.h"
#include "hook/interpose/driver.h"
#include "region/order.h"
#include "region/region.h"

#define SP_THREADS_MAX      1024
#define SP_STREAMS_MAX      1024
#define SP_MARKERS_MAX      1024
#define SP_STREAM_EVENTS    32
#define SP_STRETCH          256u     /* the unit of a device's stretch: predictions are lengthened by 256ths */
#define SP_UNKNOWN_ALONE_NS 1000000u /* the least that an unknown unit counts for while no other share waits */

#define sp_likely(condition)   __builtin_expect(!!(condition), 1)
#define sp_unlikely(condition) __builtin_expect(!!(condition), 0)

struct sp_work_profile {
  uint64_t key;          /* 0: empty row */
  uint32_t predicted_ns; /* 0: not known yet */
  uint16_t launches;     /* wraps; picks the launches that are measured alone */
  uint8_t version;       /* changes in steps of two when the unit's work changes: an executable graph can be updated */
  uint8_t learned;       /* the version that the prediction is for, plus one if the prediction is exact */
};
_Static_assert(sizeof(struct sp_work_profile) == 16, "four to a cache line");

/* Is the prediction for an earlier version of the unit's work? Then the unit must be measured again. */
static inline bool sp_profile_is_stale(const struct sp_work_profile *profile) {
  return (sp_load(&profile->learned) & ~1) != sp_load(&profile->version);
}

/* Is the prediction the unit's length, measured alone behind other work of its stream? If not, it includes the time
 * that a launch takes to arrive. */
static inline bool sp_profile_is_exact(const struct sp_work_profile *profile) {
  return sp_load(&profile->learned) == (sp_load(&profile->version) | 1);
}

struct sp_marker {
  struct sp_stream_state *state;
  CUevent event;
  uint64_t first_ns;               /* when the first part of its work was launched */
  uint64_t recorded_ns;            /* when the marker was recorded: all of its work had been launched */
  uint64_t work_ns;                /* predicted work between the stream's previous marker and this one */
  uint32_t launches;               /* the number of launches in that work */
  struct sp_work_profile *profile; /* the profile of that work, if it was all of one unit; else NULL */
  uint32_t pieces;                 /* the stream's count of pieces, up to this marker */
  uint32_t stretch; /* the device's `stretch` when it was recorded: work_ns was predicted with about this one */
  uint8_t version;  /* of the unit */
  bool guessed;     /* a part of work_ns is a guess */
  bool foreign;     /* recorded by another thread than the one that launched */
  bool alone;       /* a single launch, with an edge that its thread recorded just before it */
  bool awaits;      /* an edge behind a wait and nothing else: until it is passed, what follows in the stream stands */
};

struct sp_stream_state {
  _Alignas(64) uint64_t pending_ns;      /* predicted work launched since the last marker */
  struct sp_work_profile *batch_profile; /* the profile of that work; NULL when nothing is pending */
  uint32_t batch_launches;
  uint64_t batch_began_ns; /* when the first part of it was about to be launched */
  uint32_t captures;       /* the part of sp_this_process.captures that began in this stream and has not ended */
  uint8_t batch_version;   /* the version of that unit */
  bool batch_mixed;        /* the pending work is of several units, or of several versions */
  bool batch_guessed;      /* the length of some pending work is a guess */
  bool awaits;             /* the last item in the stream waits for something else than the device's work */
  struct sp_device *device;
  uint32_t outstanding; /* markers not yet finished; the keeper lowers it without the lock */
  uint64_t edged_ns;    /* when an edge was last recorded into it while it was empty */
  /* the rest is guarded by lock; a launch needs only the fields above, which share one cache line */
  pthread_mutex_t lock;
  CUcontext context;
  void *stream;          /* the handle that the launching thread used */
  bool per_thread;       /* record with the _ptsz twin */
  uint32_t owner_thread; /* per-thread streams: index of the thread's record + 1; else 0 */
  bool live;             /* lookups find it; if not, its stream may be gone, and nothing is recorded into it */
  bool dead;             /* its context is gone: its events must not be touched */
  CUevent events[SP_STREAM_EVENTS]; /* a ring: created on demand, reused in order */
  uint32_t next_event;
  uint32_t pieces;     /* the number of launches and markers given to the driver, up to the last marker */
  uint64_t start_ns;   /* when … */
  CUevent start_event; /* … this event was recorded ahead of the first work of a turn; */
  bool start_idle;     /* nothing was in front of it, so it is stamped at once */
  /* The keeper's. Threads that record also read pieces_done, and sp_stream_find sets a new stream's fields. */
  uint32_t pieces_done; /* `pieces` up to the last finished marker */
  int64_t ended_ns;     /* when its last finished marker finished, on a scale of the device's clock … */
  uint32_t scale;       /* … with this name */
  bool foreign;         /* that marker was recorded by another thread than the one that launched */
  uint32_t looked;      /* the device's `looks` when a look for standing work last met this stream */
};

/* When the device ran work of ours, on the scale of its clock. Work of several streams at the same time counts once. */
#define SP_GAPS_MAX 32
struct sp_busy_intervals {
  int64_t until_ns; /* the latest end so far */
  uint32_t count;
  struct {
    int64_t from_ns, until_ns;
  } gaps[SP_GAPS_MAX]; /* the last gaps without work: it may become known later that another stream had work then */
};

#define SP_CLOCKS_MAX 4
#define SP_EVENT_NS   5000 /* more than a timing event takes on the device */

/* Does the device's keeper run? */
enum sp_keeper_state { SP_KEEPER_NONE, SP_KEEPER_STARTS, SP_KEEPER_RUNS };

struct sp_device {
  /* read at every launch, written at turns and markers */
  _Alignas(64) uint32_t entered; /* the turn this process has entered; 0: every launch takes the slow path */
  uint32_t asleep;               /* the keeper sleeps and wants a kick */
  uint32_t eta_published; /* the arbiter has been told the predicted end of this turn's work: later launches delay it */
  uint32_t stretch;       /* by how many 256ths work lately takes longer than predicted by its units; 0: none */
  const struct sp_grant *grant;
  uint64_t marked_ns;    /* predicted work behind recorded markers, all time */
  uint64_t completed_ns; /* the part of it behind finished markers */
  uint32_t index;        /* the index of the grant in the region */
  uint32_t bit;          /* 1 << index: the bit that a thread announces */
  /* futexes, private to the process */
  _Alignas(64) uint32_t kick; /* the keeper waits on this: a marker was recorded, a turn entered */
  uint32_t progress;          /* gate waiters wait on this: a marker has finished */
  uint32_t gate_waiters;      /* how many threads wait for progress */
  uint32_t passed;            /* deliberate passes */
  uint32_t keeper;            /* enum sp_keeper_state */
  uint64_t keeper_tried_ns;   /* when starting the keeper last failed; 0: never */
  CUdevice ordinal;           /* -1: the driver has no such device */
  struct sp_slot_device *slot;
  struct sp_slot_copies *copies;
  /* guarded by turn_lock */
  pthread_mutex_t turn_lock;
  struct sp_report report;
  uint64_t entry_ns; /* when the turn was last entered; report.entered_ns: when it was first entered */
  bool aside; /* the turn was returned while work stood behind a wait: work that ends now ran beside other shares */
  uint64_t back_ns; /* when it was entered again in that state, until some work ends after that; else 0 */
  /* guarded by queue_lock */
  pthread_mutex_t queue_lock;
  struct sp_marker queue[SP_MARKERS_MAX];
  uint32_t queue_head, queue_tail; /* head: the marker to wait for next */
  uint32_t queue_kept;             /* places of markers that are being recorded */
  uint64_t
      seen_ns[SP_MARKERS_MAX]; /* for each marker in the queue: when a thread of the program saw its end; 0: none has */
  /* atomic, and guarded by no lock */
  struct sp_stream_state *waiting_state; /* the keeper waits inside the driver for a marker of this stream */
  uint32_t synced;                       /* a thread has just waited for all its work */
  uint64_t gap_ns;                       /* moving average of the pauses between work */
  /* The keeper's. Of the rest, other threads use `looks`, and what is loaded and stored atomically. */
  uint64_t finished_ns; /* the best estimate of when the last marker finished on the device */
  uint64_t ended_ns;    /* … a closer guess of that, at most finished_ns: for the account */
  uint64_t began_ns;   /* when the work in flight began to run: at finished_ns, or at its launch into an empty device */
  uint64_t longest_ns; /* the longest unit seen */
  uint64_t closed_ns;  /* when a thread last woke the keeper for a marker ahead of a synchronise */
  uint64_t beside_ns;  /* work that ran outside every turn, in all */
  uint64_t put_off_ns; /* by how much our work ended later than it would have alone on the device, in all */
  const struct sp_stream_state *sole; /* the stream of the last finished marker, if nothing else was in flight */
  uint64_t took_ns, unstretched_ns;   /* recent work of such streams: how long it took, and its units' predictions */
  uint32_t looks;                     /* counts the looks for standing work */
  uint64_t stood_ns;                  /* moving average of the time for which work stood behind a wait */
  struct sp_busy_intervals busy;
  uint32_t scale;        /* the name of the clock's scale that `busy` uses; 0: none yet */
  int64_t ours_ns;       /* on that scale: until then this turn's work may have waited for another share's */
  int64_t told_guess_ns; /* the clock's guess_ns when the end of our work was last reported */
  uint64_t fresh_ns;     /* when the turn was entered with an empty device, since the last finish; else 0 */
  int64_t starved_ns;    /* time without work inside a turn, not reported yet; negative: a correction */
  struct sp_stream_state
      *start_state; /* its start_event tells when the turn's work began; NULL: already known, or not recorded */
  struct sp_clock {
    CUcontext context;
    CUevent event;            /* the event of the last finished marker */
    uint32_t scale;           /* the name of this clock's scale, which consists of sums of elapsed times */
    int64_t device_ns;        /* the last finished marker's time on this scale */
    int64_t latest_ns;        /* the latest end so far */
    int64_t event_ns;         /* what a timing event takes on the device; 0: not known yet */
    bool started;             /* the last finished marker was the first of its turn, … */
    int64_t start_ns;         /* … and the turn's start event has this time */
    int64_t upper_ns[2];      /* the upper bound of (host - device), in this second and in the one before */
    int64_t lower_ns[2];      /* the lower bound of (host - device), in these two seconds */
    int64_t guess_ns;         /* the best guess of (host - device) */
    bool idle[2];             /* an idle stream's event is part of lower_ns, so that is near the true mapping */
    bool tight;               /* the guess lies between two such bounds near each other; if not, it may be too large */
    int64_t low_ns;           /* (host - device) is at least this, if the bounds are near each other; else guess_ns */
    int64_t record_ns;        /* how long after its record an event in an empty stream is stamped, by that guess */
    int64_t arrival_ns;       /* the usual (host time of a launch into an empty stream - device time of its start), … */
    uint64_t arrival_seen_ns; /* … last seen for a launch at this time; 0: never */
    bool woke[2];             /* a marker has woken a thread: so upper_ns does not only show how seldom we looked */
    bool sure;          /* the guess can be believed: it is tight, or a marker has woken a thread in either second */
    uint64_t window_ns; /* when the present second began */
  } clock;
  struct sp_clock
      clocks[SP_CLOCKS_MAX]; /* clocks of other contexts, to which the last finished marker did not belong */
  uint32_t scales, changes;  /* how many scales were begun, and how often another context's clock became `clock` */
  bool stale;                /* a context is gone: every scale must begin anew */
};

/* The state of a stream, with the key that it was found by. */
struct sp_known_stream {
  void *stream;
  uint64_t
      key; /* the generation of all states, the look of the thread, whether NULL is the per-thread stream; 0: empty */
  struct sp_stream_state *state;
};

#define SP_PAIRS_BITS 6 /* 2^6 pairs of known states: a thread that uses 64 streams in turn finds each again */

/* A record that the thread makes into a stream: a marker, or the start event of a turn. The driver may wait there for
 * room, and a signal handler may leave the call by a jump: sp_record_left then undoes it. */
struct sp_recording {
  struct sp_stream_state *state; /* the thread holds its lock; NULL: it records nothing */
  struct sp_marker marker;       /* the marker's; for a start event its `state` is NULL */
  bool entered;                  /* the stream's context was made current for it */
  bool undone;                   /* sp_record_left was called although the driver's call was under way, and returned */
  int cancel_state;              /* whether the thread could be cancelled before */
};

struct sp_thread {
  _Alignas(64)
      uint32_t inside; /* a bit for each device at which the thread is between enter and leave; the keeper reads it */
  uint32_t used;       /* 1: some thread has this record */
  struct sp_device *device; /* the device of the current context; NULL: look it up */
  uint32_t looks;           /* changes whenever the known states must be looked up again */
  uint32_t closed;          /* the marker that its synchronising call waits for: place in the queue + 1; 0: none */
  uint64_t launches[SP_DEVICES_MAX]; /* those that the driver has accepted, on each device */
  uint64_t event_launches; /* those on its device + 1, when it last came back from waiting for an event; 0: never */
  struct sp_device *awaits_turn, *awaits_progress; /* the device at the gate of which it waits; NULL: none */
  struct sp_recording recording;
  /* how long a launch that the budget holds back still waits */
  uint32_t progress_seen; /* the device's `progress` when this patience began */
  uint64_t patience_ns;   /* how long it waits beyond the predicted end of the work in flight; 0: it never waited */
  uint64_t passed_ns;     /* when a launch last passed without progress, since then; 0: none has */
  uint64_t stood_ns;      /* how long it has waited in vain for this launch, without progress */
  _Alignas(64) struct sp_known_stream known[1u << SP_PAIRS_BITS][2]; /* indexed by the stream's address */
};

struct sp_this_process {
  uint32_t attached;     /* 1: the fields below may be used; 0 in a forked child */
  uint32_t captures;     /* open captures that the hook has seen begin */
  uint32_t host_awaited; /* 1: some stream has waited for the host, so a stream that waits for that one does, too */
  uint32_t stream_generation; /* changes when a stream is forgotten: cached states must be looked up again */
  uint32_t no_membarrier;     /* 1: membarrier is missing, so every announce needs a full fence */
  uint32_t device_count;      /* grants in the region */
  uint32_t single_device;     /* 1: the process can see one device only */
  struct sp_region region;
  struct sp_device devices[SP_DEVICES_MAX];
};

extern struct sp_this_process sp_this_process;

/* attach.c */
const char *sp_share_directory(void);      /* where the share's region lies, if this process is in a share */
struct sp_device *sp_device_current(void); /* the device of the calling thread's context; NULL: not metered */
/* Make a context current until sp_context_leave. False: it is current already, or cannot be; then do not leave. */
bool sp_context_enter(CUcontext context);
void sp_context_leave(void);
void sp_share_no_keeper(int error); /* tell the agent that a helper thread could not be started */

/* thread.c */
/* Make the thread look up its streams' states anew. */
void sp_thread_forget_streams(struct sp_thread *thread);
/* Note that the thread's current context is on this device. The stream states that it remembers from another one are
 * void. */
static inline void sp_thread_on(struct sp_thread *thread, struct sp_device *device) {
  if (thread->device == device)
    return;
  thread->device = device;
  sp_thread_forget_streams(thread);
}
struct sp_thread *sp_thread_self(void);  /* NULL when all records are taken: not metered */
struct sp_thread *sp_thread_known(void); /* the same, but none is taken: NULL also if it has none */
uint32_t sp_thread_index(const struct sp_thread *thread);
/* Is any thread between the gate and the driver's return, on this device? Call it after sp_barrier. */
bool sp_threads_inside(uint32_t device_index);
/* How many launches have passed the gate, of all threads, also of those that have ended. */
uint64_t sp_threads_launches(uint32_t device_index);
void sp_barrier(void); /* every thread of the process passes a full barrier */

/* predict.c */
struct sp_work_profile *sp_profile_find(uint64_t key);
/* Learn that `launches` of the unit, in that version and one after the other, took `elapsed_ns` on the device; or at
 * most that, if it is not `exact`. */
void sp_profile_learn(struct sp_work_profile *profile, uint8_t version, uint32_t launches, uint64_t elapsed_ns,
                      bool exact);
/* The unit's work is different from now on, so its prediction is only a guess; or the unit is gone. */
void sp_profile_changed(uint64_t key, bool gone);

/* Which thread records a marker. */
enum sp_recorder {
  SP_BY_LAUNCHER, /* the thread that launches into the stream, just before or behind a launch */
  SP_BY_CALLER,   /* a thread of the program that has usually launched there */
  SP_BY_OTHER,    /* another thread: a launch may be under way */
  SP_BY_KEEPER,   /* the keeper. Only it may wait for room in the stream: no thread waits for the keeper for ever */
};

/* stream_state.c */
/* The state of a stream. Its device is that of the stream's own context, which may differ from `device`, the current
 * context's. NULL: no state is free, or the share does not hold that device. */
struct sp_stream_state *sp_stream_find(struct sp_device *device, struct sp_thread *thread, void *stream,
                                       bool per_thread);
/* The state of the stream with this handle, in any context. NULL: there is none, or it is a default stream, which has
 * the same handle in every context. */
struct sp_stream_state *sp_stream_of_handle(const void *stream);
/* Record a marker in every stream of the device that has pending work, and wake the keeper. `context`: only in streams
 * of this current context; NULL: of all, and other contexts become current, so only the keeper may ask for that. */
void sp_streams_mark_all(struct sp_device *device, void *context, enum sp_recorder recorder);
/* The calling thread is about to wait for the work in `stream`, or for more: record a marker behind that work, if
 * possible, which tells when it ends. */
void sp_streams_close(struct sp_device *device, struct sp_thread *thread, void *stream, bool per_thread,
                      enum sp_sync sync);
/* The calling thread has come back from that wait: note when it saw the end of the marked work. */
void sp_streams_closed(struct sp_device *device, struct sp_thread *thread, enum sp_sync sync);
/* Has the thread seen the end of all work in the stream, by an event behind it? Then a marker would only show a later
 * time, and the program would wait for it. The driver is not asked if the thread has launched something since. */
bool sp_stream_over(const struct sp_stream_state *state, const struct sp_thread *thread);
bool sp_streams_full(void); /* there are as many states as there may be */
/* Has any stream of the device work that has not ended, as far as is known? */
bool sp_streams_pending(const struct sp_device *device);
/* Does any stream without a marker in the queue have unmarked work? */
bool sp_streams_unmarked(const struct sp_device *device);
/* Does any such stream have unmarked work that began to be launched longer ago than twice its predicted time? */
bool sp_streams_sparse(const struct sp_device *device, uint64_t now_ns);
/* A stream (`context` is NULL) or a context (`stream` is NULL) is about to be destroyed: record last markers, then
 * forget the states. */
void sp_streams_forget(void *stream, void *context);
/* A context is really gone, after its streams were forgotten: no capture in it is open any more. */
void sp_streams_gone(const void *context);

/* record.c */
/* Record a marker behind the stream's pending work. False: not possible now (no event is free, or the driver refused).
 * `launching`: the caller is about to launch into this stream, or has just done so; `edged`: and it has also recorded a
 * marker just before that launch. */
bool sp_stream_mark(struct sp_stream_state *state, bool launching, bool edged);
/* Record a marker as the launching thread, to measure the work on one side of it. The keeper is not woken. */
bool sp_stream_measure(struct sp_stream_state *state, bool edged);
/* Record the event that shows when the next launch began to run: the turn may have been granted before its
 * predecessor's work had ended. */
void sp_stream_start(struct sp_stream_state *state);
/* Record a marker without waking the keeper, which looks from time to time. Returns the marker's place in the queue +
 * 1; 0: none was recorded. */
uint32_t sp_stream_mark_by(struct sp_stream_state *state, enum sp_recorder recorder, bool edged);
/* The thread has left a call by a jump, or ends: if it was recording, undo that. */
void sp_record_left(struct sp_thread *thread);

/* stand.c */
/* Does everything in flight stand behind a wait that is not over? The keeper asks. */
bool sp_stands(struct sp_device *device);
/* Is the oldest marker the edge behind such a wait? */
bool sp_stands_first(const struct sp_device *device);

/* marker.c */
/* The queue's head is finished: learn from it, and take it out. `waited`: the driver has waited for its event, else
 * nothing is learned. `blocked`: it had not ended when the wait began. */
void sp_marker_finish(struct sp_device *device, bool waited, bool blocked);

/* busy_intervals.c */
/* Begin anew: no work is known to have run before `from_ns`, or it belongs to another account. */
void sp_busy_begin(struct sp_busy_intervals *busy, int64_t from_ns);
/* Work ran from `from_ns` to `until_ns`. Returns the idle time that this adds to what was returned so far; negative: a
 * part of that was work. */
int64_t sp_busy_add(struct sp_busy_intervals *busy, int64_t from_ns, int64_t until_ns);
/* Work of `work_ns` ran somewhere in between: put it where no other work is known to have run, as far as there is room.
 * Returns what sp_busy_add returns. */
int64_t sp_busy_fill(struct sp_busy_intervals *busy, int64_t from_ns, int64_t until_ns, int64_t work_ns);
/* Move to another scale, on which all times are larger by `by_ns`. */
void sp_busy_shift(struct sp_busy_intervals *busy, int64_t by_ns);

/* capture.c */
bool sp_stream_capturing(void *stream, bool per_thread);
/* Count a capture, also for its stream if that is one that can be destroyed. */
void sp_streams_capture_begin(void *stream);
/* The capture has ended, so it does not count any more. */
void sp_streams_capture_end(void *stream);
/* The stream is destroyed, which ends the captures that began there. */
void sp_captures_end_with(struct sp_stream_state *state);
/* Is it the legacy stream, or a thread's own stream, which other threads reach only through the legacy
 * stream? */
bool sp_stream_is_legacy(const struct sp_stream_state *state);
/* Record an event into the stream, unless that could disturb a capture. `launching`: the thread launches there;
 * `recording`: where it notes that it is in the driver, or NULL. */
CUresult sp_stream_record(struct sp_stream_state *state, CUevent event, bool launching, struct sp_recording *recording);
void sp_stream_record_left(void); /* the driver's call of sp_stream_record was left by a jump */

/* clock.c */
/* Device time from one event to another, negative if they finished in the other order; false: not known. */
bool sp_clock_elapsed_ns(CUevent from, CUevent to, int64_t *ns);
/* Compute when the marker that has just been waited for finished, on the device's scale and on the host's clock. */
void sp_clock_finish(struct sp_device *device, const struct sp_marker *marker, bool blocked);
/* An upper bound of how far the host's clock is ahead of the device's scale. */
int64_t sp_clock_upper_ns(const struct sp_clock *clock);
/* Learn that a launch into an empty stream, made at `launched_ns`, began at `began_ns` on the device's scale. */
void sp_clock_learn_arrival(struct sp_clock *clock, uint64_t launched_ns, int64_t began_ns);
/* When a launch into an empty stream, made at `launched_ns`, begins on the device's scale. */
int64_t sp_clock_arrived_ns(const struct sp_clock *clock, uint64_t launched_ns);

/* keeper.c */
/* Start the device's keeper if there is none. False: it cannot be started now; the agent is told, and the next try is a
 * second later. */
bool sp_keeper_start(struct sp_device *device);
void *sp_keeper_run(void *device); /* the thread */
/* End the process if only keepers are left of its threads: libc counts them, so the process would never end. */
void sp_keeper_last(void);
/* Wake the keeper, or keep it from going to sleep. */
void sp_keeper_kick(struct sp_device *device);
/* A thread has waited for its work while idle time counts: return the turn at once, or wake the keeper. `contended`:
 * others wait for the device. */
void sp_keeper_synced(struct sp_device *device, bool contended);
/* A launch comes after a pause: learn how long the program's pauses are. */
void sp_keeper_pause(struct sp_device *device);

/* How long a unit is predicted to take: its profile's `unit_ns`, lengthened by the device's present `stretch`. 0, not
 * known, stays 0. */
static inline uint64_t sp_device_predicts(const struct sp_device *device, uint64_t unit_ns) {
  return unit_ns + unit_ns * sp_load(&device->stretch) / SP_STRETCH;
}

/* Can the end of the work in flight be predicted? Not while predictions are stretched: then the length of the work
 * depends on its data. */
static inline bool sp_device_foresees(const struct sp_device *device) {
  return sp_load(&device->stretch) == 0;
}

/* The predicted time of the work in front of the markers that have not finished. */
static inline uint64_t sp_device_in_flight(const struct sp_device *device) {
  uint64_t completed = sp_load(&device->completed_ns), marked = sp_load(&device->marked_ns);
  return marked > completed ? marked - completed : 0;
}

#endif
