/*
 * What the hook knows inside one process: its region, its devices, its threads and streams.
 *
 *   device   one per grant of the region that this process uses; one keeper thread each
 *   lane     one per stream that launches: its unmarked work, its timing events
 *   marker   an event recorded behind work in a lane; the keeper waits for markers in order
 *   unit     one row of predictions: a function with its grid, or an executable graph
 *   thread   one record per launching thread: is it between the gate and the driver's return?
 */
#ifndef SHAREPOD_GUEST_H
#define SHAREPOD_GUEST_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "hook/gate/gate.h"
#include "hook/interpose/driver.h"
#include "region/region.h"

#define SP_THREADS_MAX      1024
#define SP_LANES_MAX        1024
#define SP_MARKERS_MAX      1024
#define SP_LANE_EVENTS      32
#define SP_STRETCH          256u
#define SP_UNKNOWN_ALONE_NS 1000000u /* the least that an unknown unit counts for while nobody else waits */

#define sp_likely(condition)     __builtin_expect(!!(condition), 1)
#define sp_unlikely(condition)   __builtin_expect(!!(condition), 0)
#define sp_load(pointer)         __atomic_load_n(pointer, __ATOMIC_RELAXED)
#define sp_store(pointer, value) __atomic_store_n(pointer, value, __ATOMIC_RELAXED)

struct sp_unit {
  uint64_t key;          /* 0: empty row */
  uint32_t predicted_ns; /* 0: not known yet */
  uint16_t launches;     /* wraps; picks the launches that are measured alone */
  uint8_t version;       /* of what it does, in steps of two: an executable graph can be changed */
  uint8_t learned;       /* the version that the prediction is of; one more when that is exact */
};
_Static_assert(sizeof(struct sp_unit) == 16, "four to a cache line");

static inline bool sp_unit_stale(const struct sp_unit *unit) {
  return (sp_load(&unit->learned) & ~1) != sp_load(&unit->version);
}

/* Was it measured alone, behind other work of its stream? Else the prediction has in it what a launch takes to arrive.
 */
static inline bool sp_unit_exact(const struct sp_unit *unit) {
  return sp_load(&unit->learned) == (sp_load(&unit->version) | 1);
}

struct sp_marker {
  struct sp_lane *lane;
  CUevent event;
  uint64_t first_ns;    /* when the first of its work was launched */
  uint64_t recorded_ns; /* when it was recorded: all of its work had been launched */
  uint64_t work_ns;     /* predicted work between the lane's previous marker and this one */
  uint32_t launches;    /* how many that were */
  struct sp_unit *unit; /* what that work was, if all of one unit; NULL otherwise */
  uint32_t pieces;      /* those of the lane up to this one */
  uint32_t stretch;     /* the device's, when it was recorded: work_ns was predicted with it, or nearly so */
  uint8_t version;      /* of the unit */
  bool guessed;         /* work_ns has a guess in it */
  bool foreign;         /* not recorded by the thread that launched */
  bool alone;           /* one launch, with an edge recorded by its thread just before it, too */
  bool awaits;          /* an edge behind a wait alone: until it is passed, what follows in the lane stands */
};

struct sp_lane {
  _Alignas(64) uint64_t pending_ns; /* predicted work launched since the last marker */
  struct sp_unit *batch_unit;       /* what it is, NULL when nothing is pending */
  uint32_t batch_launches;
  uint64_t batch_ns; /* when the first of it was about to be launched */
  uint32_t captures; /* of sp_guest.captures: begun in this stream and not ended */
  uint8_t batch_version;
  bool batch_mixed;
  bool batch_guessed; /* how long some of it takes had not been seen */
  bool awaits;        /* what it was given last waits for more than the device's work */
  struct sp_device *device;
  uint32_t outstanding; /* markers not yet finished; written under lock */
  uint64_t edged_ns;    /* when an edge was recorded into it last while it was empty */
  /* the rest is guarded by lock; what is above is a launch's, in one line of the cache */
  pthread_mutex_t lock;
  CUcontext context;
  void *stream;                   /* the handle that the launching thread used */
  bool per_thread;                /* record with the _ptsz twin */
  uint32_t owner_thread;          /* per-thread streams: index of the thread's record + 1; else 0 */
  bool live;                      /* found by lookups; else its stream may be gone: nothing is recorded */
  bool dead;                      /* its context is gone: events must not be touched */
  CUevent events[SP_LANE_EVENTS]; /* a ring: created on demand, reused in order */
  uint32_t next_event;
  uint32_t pieces;     /* launches and markers that the driver was given up to the last marker */
  uint64_t start_ns;   /* when … */
  CUevent start_event; /* recorded ahead of the first work of a turn … */
  bool start_idle;     /* … and behind nothing: it is stamped at once */
  /* the keeper's own */
  uint32_t pieces_done; /* those up to the last finished marker */
  int64_t ended_ns;     /* when its last finished marker did, on the scale of the device's clock … */
  uint32_t scale;       /* … that had this name */
  bool foreign;         /* it was recorded by another thread than launched */
  uint32_t looked;      /* the last look at what stands in which it was met */
};

/* When the device had work of ours, on the scale of its clock. Streams run side by side: their work counts once. */
#define SP_GAPS_MAX 32
struct sp_spans {
  int64_t until_ns; /* the latest end so far */
  uint32_t count;
  struct {
    int64_t from_ns, until_ns;
  } gaps[SP_GAPS_MAX]; /* the last ones without work: what another stream did then may come to be known later */
};

#define SP_CLOCKS_MAX 4
#define SP_EVENT_NS   5000 /* a timing event takes less on the device */

struct sp_device {
  /* read at every launch, written at turns and markers */
  _Alignas(64) uint32_t entered; /* the turn this process has entered; 0: every launch takes the slow path */
  uint32_t asleep;               /* the keeper sleeps and wants a kick */
  uint32_t foretold; /* the arbiter has been told when the work of this turn ends: what follows delays that */
  uint32_t stretch;  /* so many 256ths longer than its units say does work take lately; 0: it is even */
  const struct sp_grant *grant;
  uint64_t marked_ns;    /* predicted work behind recorded markers, all time */
  uint64_t completed_ns; /* of that, behind finished markers */
  uint32_t index;        /* of the grant in the region */
  uint32_t bit;          /* 1 << index: what a thread announces */
  /* futexes, private to the process */
  _Alignas(64) uint32_t kick; /* the keeper's: markers recorded, turn entered */
  uint32_t progress;          /* gate waiters': markers finished */
  uint32_t gate_waiters;
  uint32_t passed; /* deliberate passes */
  uint32_t keeper_started;
  uint64_t keeper_tried_ns; /* when it could not be started last; 0: never */
  CUdevice ordinal;
  struct sp_slot_device *slot;
  struct sp_slot_copies *copies;
  /* guarded by turn_lock */
  pthread_mutex_t turn_lock;
  struct sp_report report;
  uint64_t entry_ns; /* when the turn was entered last; report.entered_ns: for the first time */
  bool aside;        /* the turn was given back while work stood: what ends now ran beside others */
  uint64_t back_ns;  /* entered again while it was like that, and no work has ended later than then; else 0 */
  /* guarded by queue_lock */
  pthread_mutex_t queue_lock;
  struct sp_marker queue[SP_MARKERS_MAX];
  uint32_t queue_head, queue_tail;  /* head: next to wait for */
  uint32_t queue_kept;              /* places of markers that are being recorded */
  uint64_t seen_ns[SP_MARKERS_MAX]; /* of each in the queue: when a thread of the program saw its end; 0: none has */
  struct sp_lane *waiting_lane;     /* the keeper is inside the driver for this lane */
  uint32_t synced;                  /* a thread has just waited for all its work */
  uint64_t gap_ns;                  /* moving average of the pauses between work */
  /* the keeper's own */
  uint64_t finished_ns;         /* when the last marker finished on the device, as well as we can tell */
  uint64_t ended_ns;            /* … the nearest guess of that, finished_ns or less: for the account */
  uint64_t began_ns;            /* when what is in flight began to run: then, or at its launch into an empty device */
  uint64_t longest_ns;          /* longest unit seen */
  uint64_t closed_ns;           /* when the keeper was last kicked for a marker ahead of a synchronise */
  uint64_t beside_ns;           /* work that ran outside every turn, all time */
  uint64_t put_off_ns;          /* by which work of ours ended later than it would have with the device to itself */
  const struct sp_lane *sole;   /* of the last finished marker, if nothing else was in flight */
  uint64_t took_ns, thought_ns; /* the work of such lanes lately: how long it took, and as its units say */
  uint32_t looks;               /* at what stands */
  uint64_t stood_ns;            /* moving average of how long work stood behind a wait */
  struct sp_spans spans;
  uint32_t scale;        /* of the clock, that of the spans */
  int64_t ours_ns;       /* on that scale: before then this turn's work may have waited for another share's */
  int64_t told_guess_ns; /* the mapping by which the end of that work was told last */
  uint64_t fresh_ns;     /* the device was empty and the turn entered at this time, since the last finish; else 0 */
  int64_t starved_ns;    /* time without work inside a turn, not reported yet; negative: so much was too much */
  struct sp_lane *start_lane; /* its start_event tells when the turn's work began to run; NULL: seen, or not recorded */
  struct sp_clock {
    CUcontext context;
    CUevent event;            /* the last finished marker's */
    uint32_t scale;           /* the name of the scale of our own, which is sums of elapsed times */
    int64_t device_ns;        /* the last finished marker's time on it */
    int64_t latest_ns;        /* the latest end so far */
    int64_t event_ns;         /* what a timing event takes on the device; 0: not known yet */
    bool started;             /* the last finish was the first of its turn, … */
    int64_t start_ns;         /* … and this is the time of the turn's start event */
    int64_t offset_ns[2];     /* smallest (host - device) in this second and in the one before */
    int64_t least_ns[2];      /* what it is at least */
    int64_t guess_ns;         /* the nearest guess of it, … */
    bool idle[2];             /* an idle stream's event is among what least_ns is of: it is near the mapping */
    bool tight;               /* … between two such bounds near each other; else it may be too large */
    int64_t low_ns;           /* it is no less, where the bounds are near each other; else guess_ns */
    int64_t record_ns;        /* what the record of an event into an empty stream takes to be stamped, by that guess */
    int64_t arrival_ns;       /* the usual (host at a launch into an empty stream - device at its start), … */
    uint64_t arrival_seen_ns; /* … as seen for a launch at this time last; 0: never */
    bool waits[2];            /* somebody was woken by a marker: the offset is not only how seldom we looked */
    bool sure;                /* … in either second */
    uint64_t window_ns;       /* when this second began */
  } clock;
  struct sp_clock clocks[SP_CLOCKS_MAX]; /* of other contexts: what ended last was not theirs */
  uint32_t scales, changes;              /* so many scales were begun, and so often was another clock taken up */
  bool stale;                            /* a context has gone: begin every scale anew */
};

/* The lane of a stream, and what it was found by. */
struct sp_known_lane {
  void *stream;
  uint64_t
      key; /* the generation of all lanes, the look of the thread, whether NULL is the per-thread stream; 0: empty */
  struct sp_lane *lane;
};

#define SP_PAIRS_BITS 6 /* as many pairs of known lanes: a thread that uses 64 streams in turn finds each again */

struct sp_thread {
  _Alignas(64) uint32_t inside; /* the bits of the devices that it is between gate and leave of; the keeper reads it */
  uint32_t used;
  struct sp_device *device; /* of the current context; NULL: look again */
  uint32_t looks;           /* another number whenever the known lanes are to be looked up again */
  uint32_t closed;          /* the marker that its synchronising call waits for, its place in the queue + 1; 0: none */
  uint64_t launches[SP_DEVICES_MAX];
  uint64_t event_launches; /* it came back from waiting for an event after so many launches there + 1; 0: it did not */
  struct sp_device *awaits_turn, *awaits_progress; /* it waits at the gate of this device; NULL: it does not */
  /* the patience of a launch that the budget holds back */
  uint32_t progress_seen;
  uint64_t patience_ns;
  uint64_t passed_ns;
  _Alignas(64) struct sp_known_lane known[1u << SP_PAIRS_BITS][2]; /* by the stream's address */
};

struct sp_guest {
  uint32_t attached;        /* 1 when the fields below may be used; 0 in a forked child */
  uint32_t captures;        /* open captures that we saw begin */
  uint32_t host_awaited;    /* 1: some stream has waited for the host, so that one that waits for it does, too */
  uint32_t lane_generation; /* changes when a lane is forgotten: cached lanes are looked up again */
  uint32_t no_membarrier;   /* then every announce needs a full fence */
  uint32_t device_count;    /* grants in the region */
  uint32_t single_device;   /* 1: the process can see one device only */
  struct sp_region region;
  struct sp_device devices[SP_DEVICES_MAX];
};

extern struct sp_guest sp_guest;

/* attach.c */
const char *sp_share_directory(void);      /* where the share's region lies, if this process is in one */
struct sp_device *sp_device_current(void); /* of the calling thread's context; NULL: not metered */
/* Make a context current for a while. False: it is current, or cannot be; then there is nothing to leave. */
bool sp_context_enter(CUcontext context);
void sp_context_leave(void);
void sp_share_no_keeper(int error); /* the agent is told that a helper thread could not be started */

/* thread.c */
void sp_thread_forget_lanes(struct sp_thread *thread);
/* Its current context is on this device. */
static inline void sp_thread_on(struct sp_thread *thread, struct sp_device *device) {
  if (thread->device == device)
    return;
  thread->device = device;
  sp_thread_forget_lanes(thread);
}
struct sp_thread *sp_thread_self(void); /* NULL when all records are taken: not metered */
uint32_t sp_thread_index(const struct sp_thread *thread);
bool sp_threads_inside(uint32_t device_index); /* call after sp_barrier */
uint64_t sp_threads_launches(uint32_t device_index);
void sp_barrier(void); /* every thread of the process passes a full barrier */

/* predict.c */
struct sp_unit *sp_unit_find(uint64_t key);
/* `elapsed_ns` passed on the device for `launches` of the unit, one after the other, when it was of that version. Not
 * `exact`: it took no longer than that. */
void sp_unit_learn(struct sp_unit *unit, uint8_t version, uint32_t launches, uint64_t elapsed_ns, bool exact);
/* The unit does something else from now on, and what is known of it is a guess; or it is gone. */
void sp_unit_changed(uint64_t key, bool gone);

/* Who records a marker. */
enum sp_recorder {
  SP_BY_LAUNCHER, /* the thread that launches into the stream, just before or behind a launch */
  SP_BY_CALLER,   /* a thread of the program that has launched there, as a rule */
  SP_BY_OTHER,    /* another thread: a launch may be under way */
  SP_BY_KEEPER,   /* the keeper. It alone may wait for room in the stream: no thread waits for it for ever */
};

/* lane.c */
/* The lane of a stream; its device is that of the stream's own context, which need not be `device`, the current one's.
 * NULL: none is free, or that device is not of the share. */
struct sp_lane *sp_lane_find(struct sp_device *device, struct sp_thread *thread, void *stream, bool per_thread);
/* The lane of a handle, of whatever context; NULL for the default streams, which outlive every capture. */
struct sp_lane *sp_lane_of_handle(const void *stream);
/* Record markers in every lane of the device that has pending work; `context`: in those of this current one only. */
void sp_lanes_mark_all(struct sp_device *device, void *context, enum sp_recorder recorder);
/* The calling thread is about to wait for the work in `stream`, or for more: a marker behind that, where it can
 * be recorded, tells when it ends. */
void sp_lanes_close(struct sp_device *device, struct sp_thread *thread, void *stream, bool per_thread,
                    enum sp_sync sync);
/* It has come back from that. */
void sp_lanes_closed(struct sp_device *device, struct sp_thread *thread, enum sp_sync sync);
/* Has the thread seen the end of all work in the stream, by an event behind it? A marker would only tell of a later
 * time, and the program would wait for it. The driver is asked, at most once for each event that was waited for. */
bool sp_lane_over(const struct sp_lane *lane, const struct sp_thread *thread);
bool sp_lanes_pending(const struct sp_device *device);
/* Is work unmarked in a lane that has no marker in the queue? */
bool sp_lanes_unmarked(const struct sp_device *device);
/* Has any of them unmarked work that must have ended by now, as far as it is predicted? */
bool sp_lanes_sparse(const struct sp_device *device, uint64_t now_ns);
void sp_lanes_forget(void *stream, void *context);
/* A context whose lanes were forgotten has really gone: no capture in it is open any more. */
void sp_lanes_gone(const void *context);

/* record.c */
/* Record a marker behind the lane's pending work. False: not possible now (no event free, the driver refused).
 * `launching`: the caller is about to launch into this stream, or has just done so; `edged`: and has recorded one just
 * before that launch. */
bool sp_lane_mark(struct sp_lane *lane, bool launching, bool edged);
/* The same by the launching thread, to measure the work on one side of the marker. The keeper is not woken for it. */
bool sp_lane_measure(struct sp_lane *lane, bool edged);
/* Record the event that tells when what is launched next began to run: the turn may have been granted before its
 * predecessor's work was done. */
void sp_lane_start(struct sp_lane *lane);
/* The same without telling the keeper, which looks from time to time. Returns the marker's place in the queue + 1; 0:
 * none was recorded. */
uint32_t sp_lane_mark_by(struct sp_lane *lane, enum sp_recorder recorder, bool edged);

/* stand.c */
/* Does everything in flight stand behind a wait that is not over? The keeper asks. */
bool sp_stands(struct sp_device *device);
/* Is the oldest marker such a wait? */
bool sp_stands_first(const struct sp_device *device);

/* marker.c */
/* The keeper has waited for (or given up on) the queue's head; `blocked`: it had not ended before. */
void sp_marker_finish(struct sp_device *device, bool waited, bool blocked);

/* spans.c */
/* Nothing was known to run before `from_ns`, or what did is another account's. */
void sp_spans_begin(struct sp_spans *spans, int64_t from_ns);
/* Work ran from `from_ns` to `until_ns`. Returns how much longer the device was idle than was said so far; negative: so
 * much of that was work. */
int64_t sp_spans_add(struct sp_spans *spans, int64_t from_ns, int64_t until_ns);
/* Work of `work_ns` ran somewhere in between: where nothing else is known to have run, as far as there is room. */
int64_t sp_spans_fill(struct sp_spans *spans, int64_t from_ns, int64_t until_ns, int64_t work_ns);
/* On another scale, that shows so much more. */
void sp_spans_shift(struct sp_spans *spans, int64_t by_ns);

/* capture.c */
bool sp_lane_capturing(void *stream, bool per_thread);
/* Captures are counted, and how many began in each stream that can go. */
void sp_lanes_capture_begin(void *stream);
void sp_lanes_capture_end(void *stream);
/* The lane's stream goes, and with it the captures that began there. */
void sp_captures_end_with(struct sp_lane *lane);
/* Is the lane the legacy stream, or one that other threads reach through it? */
bool sp_lane_is_legacy(const struct sp_lane *lane);
/* Record an event into the lane's stream, unless that could disturb a capture. */
CUresult sp_lane_record(const struct sp_lane *lane, CUevent event, bool launching);

/* clock.c */
/* Device time from one event to another, negative when they finished the other way round; false: not known. */
bool sp_clock_elapsed_ns(CUevent from, CUevent to, int64_t *ns);
/* Work out when the marker that has just been waited for finished: on the device's scale, and on the host's clock. */
void sp_clock_finish(struct sp_device *device, const struct sp_marker *marker, bool blocked);
/* How much the host's clock is ahead of the device's scale, at most. */
int64_t sp_clock_most_ns(const struct sp_clock *clock);
/* A launch that was made then, into an empty stream, is seen to have begun at `began_ns` on the device's scale. */
void sp_clock_learn_arrival(struct sp_clock *clock, uint64_t launched_ns, int64_t began_ns);
/* When a launch that is made then, into an empty stream, begins on the device's scale. */
int64_t sp_clock_arrived_ns(const struct sp_clock *clock, uint64_t launched_ns);

/* keeper.c */
/* Start the device's keeper if there is none. False: it cannot be started now. The agent is told, and the next try is a
 * second later. */
bool sp_keeper_start(struct sp_device *device);
void *sp_keeper_run(void *device); /* the thread */
/* End the process if only keepers are left of its threads. libc counts them, so it would wait for ever. */
void sp_keeper_last(void);
void sp_keeper_kick(struct sp_device *device);
/* A thread has waited for its work while idle time counts: the turn may be given back at once. */
void sp_keeper_synced(struct sp_device *device, bool contended);
/* A launch comes after a pause: learn how long the program pauses. */
void sp_keeper_pause(struct sp_device *device);

/* How long a unit is predicted to take, given how even the work is lately; 0 stays 0. */
static inline uint64_t sp_device_predicts(const struct sp_device *device, uint64_t unit_ns) {
  return unit_ns + unit_ns * sp_load(&device->stretch) / SP_STRETCH;
}

/* Is it known when the work in flight ends? Not of work that takes as long as its data says. */
static inline bool sp_device_foresees(const struct sp_device *device) {
  return sp_load(&device->stretch) == 0;
}

static inline uint64_t sp_device_in_flight(const struct sp_device *device) {
  uint64_t completed = sp_load(&device->completed_ns), marked = sp_load(&device->marked_ns);
  return marked > completed ? marked - completed : 0;
}

#endif
