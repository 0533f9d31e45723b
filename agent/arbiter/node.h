/*
 * The arbiter's state, which its files share: shares, their members (a share on one device) and devices. Everything is
 * guarded by sp_arbiter.lock. The arbiter's thread holds it while it handles a batch of events, a caller of arbiter.h
 * for the length of one call.
 *
 *   arbiter.c       the thread, its events, the functions of arbiter.h
 *   shared.c        calls that all parts make: find a share, wake waiters, unlock
 *   slots.c         reads the tenants' slots; knows which of their processes are alive
 *   identity.c      finds out which process has a slot, on a thread of its own
 *   holdings.c      what memory the processes hold, and what they take beyond that
 *   copies.c        host copies
 *   diagnostics.c   what went wrong in processes
 *   mend.c          repairs damage to what the agent has written for the tenants
 *   step.c          decides what is due on a device
 *   gang.c          grants several devices together, to one share or to several
 *   join.c          which shares are one gang
 *   turn.c          the life of a turn: open, close, drain
 *   lead.c          how early the next turn is granted
 *   bill.c          which share pays for the time that passes
 *   report.c        answers questions about accounts, processes and turns
 *   pressure.c      what a grant tells the gate about the other shares
 *   region/files.c  the files of a share's region
 *   region/slots.c  copies what the tenants have written there
 */
#ifndef SHAREPOD_NODE_H
#define SHAREPOD_NODE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/arbiter/arbiter.h"
#include "agent/policy/policy.h"
#include "region/region.h"

#define SP_SHARES_MAX       1024
#define SP_NODE_DEVICES_MAX 64
#define SP_TURNS_KEPT       65536
#define SP_WAKES_MAX        64

#define SP_TICK_NS              100000000u /* the period of the scan that needs no ring */
#define SP_BEAT_NS              150000000u /* heartbeat: at the first tick after this; see SP_STALE_NS */
#define SP_BUDGET_ALONE_NS      50000000u  /* most predicted work in flight while no other share waits */
#define SP_BUDGET_SHARED_NS     4000000u   /* … while others wait */
#define SP_BUDGET_END_NS        1000000u   /* … at the end of a turn */
#define SP_BUDGET_LIMITED_NS    2000000u   /* … of a share with a limit */
#define SP_BUDGET_LATENCY_NS    200000u    /* … beside a latency share */
#define SP_BUDGET_FOLLOW_NS     200000u    /* … of a follower: the launch that another device spins for is short */
#define SP_LENT_NS              2000000u   /* a turn on a device that a gang has reserved */
#define SP_LOOKAHEAD_NS         16000000u  /* two units may be in flight when both end within this */
#define SP_LOOKAHEAD_LATENCY_NS 1100000u   /* … beside a latency share */
#define SP_MEMORY_MAX_BYTES     ((int64_t)1 << 50) /* no device has as much: such a number is a lie, or damaged */
#define SP_SPARE_MAX_BYTES  ((uint64_t)1 << 40) /* no share reserves as much for contexts: such a number is damaged */
#define SP_DIAGNOSTICS_KEPT 16u                 /* per share */
#define SP_WATCH_NS         1000000000u         /* how often a share is looked at that rings no doorbell */
#define SP_DRAIN_MIN_NS     20000000u           /* the least and the most that a drain's bound may be */
#define SP_DRAIN_MAX_NS     100000000u
#define SP_STUCK_AFTER_NS   50000000u  /* a share that waits for this long past the bound of its own drain is stuck */
#define SP_STUCK_NS         10000000u  /* … and gets a turn of this length without the policy */
#define SP_FREE_NS          500000     /* idle time of a turn that is not charged: a wake-up, a pause of the host */
#define SP_GRACE_NS         10000000   /* … saved up over turns, up to this */
#define SP_RECENT_NS        100000000u /* a share that had a turn this recently is expected to want another soon */
#define SP_ENTER_NS         10000000u  /* a granted share that has not entered by then loses the turn */

enum sp_state { SP_IDLE = 0, SP_WAITING = 1, SP_HOLDING = 2, SP_DRAINING = 3, SP_PAUSED = 4 };

enum sp_reason {
  SP_REASON_IDLE = 0,
  SP_REASON_QUANTUM = 1,
  SP_REASON_LIMIT = 2,
  SP_REASON_LATENCY = 3,
  SP_REASON_DEAD = 4,
  SP_REASON_PAUSED = 5,
  SP_REASON_RELEASED = 6,
};

/* What the live slots of a share say about one device: sums, clamped to what can be true. */
struct sp_view {
  bool waiting;
  bool entered; /* some process has entered the current turn */
  bool busy;    /* … and has not drained it */
  uint64_t waiting_since_ns;
  uint64_t entered_ns;       /* the first launch under the current turn */
  uint64_t drained_ns;       /* the latest drain of the current turn */
  uint64_t residue_until_ns; /* the latest predicted end of its work; 0: unknown */
  uint64_t first_ended_ns;   /* the first work of the current turn had ended by then; 0: none has ended */
  bool torn;                 /* some slot could not be read whole */
  uint64_t ended_ns;         /* when the last work ended; while work runs, the time of the scan */
  uint64_t used_ns;          /* device time that the processes used in the current turn so far, added up */
  uint32_t running;          /* processes that have work on the device now: their part of `used_ns` still grows */
  uint64_t last_ended_ns;    /* when the previous turn's work ended, if it still ran at this turn's grant; else 0 */
  bool last_runs;            /* … or it still runs, in some process */
  uint64_t launches, passed, memory_used_bytes, longest_unit_ns, refusals;
};

/* The last values that the process in a slot reported for one device and that could be true. */
struct sp_known {
  uint64_t launches, memory_bytes, context_bytes, beside_ns;
  struct sp_copies copies;
  int64_t overhead_bytes; /* NVML's figure for the process, less `memory_bytes` */
  uint32_t passed, refusals, put_off_us;
  uint64_t writing_ns; /* since when its report has been found half written; 0: it was whole */
  bool unresponsive;   /* it reported that it waits, but did not enter the turn it got: ignored until it rings again */
};

struct sp_member {
  struct sp_share *share;
  struct sp_gang *gang; /* that of its share */
  struct sp_node_device *device;
  struct sp_grant *grant;
  uint32_t index; /* in the region */
  int policy;     /* index in the device's policy */
  struct sp_terms terms;
  uint64_t spare_bytes; /* what its processes' contexts take less than was reserved for them */
  struct sp_view view;  /* as last scanned */
  uint64_t scanned_ns;  /* the time of that scan */
  bool counted_waiting, counted_latency, counted_present; /* what it adds to its device's counts */
  /* the turn; valid while holding or draining */
  bool holding;
  bool draining;
  bool late;             /* granted before its own previous turn had drained */
  bool overdue;          /* … and other shares ran beside that drain */
  bool cogranted;        /* its drain is late, so other shares run beside it, … */
  uint64_t cogranted_ns; /* … since then */
  bool reserves;         /* it reserves the device for its gang: the policy has chosen it, and counts it as idle */
  bool lent;             /* its turn is on a device that another share reserves */
  bool follows;          /* its turn is for a launch that work on another device of its gang spins for */
  uint32_t turn;         /* the grant's word while the turn is open: odd */
  uint64_t requested_ns, granted_ns, closed_ns, deadline_ns, bound_ns; /* the last: when its drain becomes late */
  uint64_t slices_ns; /* when the hardware's slices of the turn began: with the end of the work before it */
  /* the turn's account, see bill.c */
  uint64_t turn_used_ns, turn_charged_ns;
  uint64_t begun_ns;        /* since when it pays for the device's time; 0: not yet */
  int64_t others_ns;        /* of the time since then, the part that other shares have paid */
  int64_t others_late_ns;   /* … and of that, the part since this turn's drain was late */
  uint64_t last_until_ns;   /* up to when it paid for its previous turn, if it had paid that in one piece */
  int64_t last_used_ns;     /* billed for its previous turn, if that had not drained at this grant; 0 once corrected */
  int64_t unpaid_ns;        /* > 0: its ended turn used this, but the drain of another share was billed it */
  int64_t turn_alone_ns;    /* charged as used while no other share waited */
  int64_t turn_idle_ns;     /* not used while others waited */
  int64_t turn_forgiven_ns; /* … and of that, the part that is not charged */
  int64_t grace_ns;         /* how much more idle time would not be charged */
  int64_t owed_used_ns, owed_charged_ns; /* <= 0: counted too much; deducted from what is counted next */
  uint64_t beside_ns;                    /* work that ran outside every turn of the share and is not billed yet */
  uint32_t beside_until_us;              /* … when that had ended: the lower 32 bits, in us */
  uint64_t beside_billed_ns;             /* … up to when such work is billed: a bound, see sp_bill_beside */
  int64_t put_off_ns;                    /* by how much work of known length took longer in this turn, in all */
  int64_t beside_turn_ns;                /* work of other shares that ran beside this turn */
  int64_t changes_ns;                    /* at most this long the device changed to that work and back */
  bool by_clock;                         /* its processes' reports do not cover the turn: the time that passes counts */
  struct sp_member *cut_predecessor;     /* the predecessor, if its drain overran its predicted end into this turn */
  int64_t cut_by_ns;                     /* … by how much */
  uint64_t predecessor_ns;   /* when the predecessor had drained, if this turn was granted before that; else 0 */
  uint64_t predicted_end_ns; /* the predicted end of its drain, when a successor was granted early; 0: none was */
  uint64_t lead_max_ns;      /* with a longer lead its residue is cut in two; learned, see lead.c */
  uint32_t cuts;             /* how many residues in a row were cut */
  bool lead_shortened;       /* its grant came later than the device's lead says: a predecessor allows less */
  uint64_t ask_again_ns;     /* it was too far ahead of its target to follow; asked again at that time */
  uint32_t reason;
  uint64_t waiting_from_ns;                                    /* since when the wait is counted; 0: it does not wait */
  uint64_t retired_launches, retired_passed, retired_refusals; /* sums over the processes that have ended */
  struct sp_usage usage;
  struct sp_histogram waits, turns;
  struct sp_known known[SP_SLOTS_MAX];
};

/* What the agent knows of the process in a slot. */
struct sp_tenant {
  int pidfd; /* -1: none */
  int32_t pid;
  uint64_t orphaned_ns;      /* since when the slot is claimed but no process holds its lock */
  uint32_t diagnostics_told; /* a bit per kind: each kind is taken once from a process */
};

/* The members that get their devices together: those of one share, or of several. Each is on a device of its own. */
struct sp_gang {
  uint32_t count;
  bool paused;          /* one of its shares is paused: the others could only spin for it */
  uint32_t key;         /* the key that joined its shares; 0: it is the gang of one share */
  struct sp_gang *next; /* in the list of gangs that have a key */
  struct sp_member *members[SP_NODE_DEVICES_MAX];
};

/* What a turn needs stands together, at the end, because a node with many shares has little of this in its caches. */
struct sp_share {
  uint64_t diagnostic_count; /* taken so far */
  struct sp_diagnostic diagnostics[SP_DIAGNOSTICS_KEPT];
  struct sp_tenant tenants[SP_SLOTS_MAX];
  bool paused;
  bool full_told; /* a process was turned away and that was recorded; cleared when a slot becomes free */
  int handle;
  struct sp_region_owner region;
  uint64_t claimed;    /* slots in use, as last read */
  uint64_t watched;    /* of them, those with a pidfd */
  uint64_t watched_ns; /* when a tick last looked at the slots; other reads do not move this time */
  uint64_t gone;       /* slots of dead processes, not cleared yet: they count as free */
  bool mend;           /* the file, or its claims, are damaged and to be repaired */
  /* identity.c */
  bool look_asked, clear_asked; /* the thread is to look at the share; to clear slots and mend */
  uint64_t serial;              /* unique among all shares ever: handles are given out again */
  uint64_t look_done;           /* slots that the present look, which is done in parts, has finished */
  uint64_t look_took_ns;        /* what the present look has taken so far */
  uint64_t no_look_before_ns;   /* no look is asked for before this time */
  uint64_t rings, locks_ns;     /* the rings, and the thread's processor time for locks, since `counted_ns` */
  uint64_t counted_ns, rings_flood_ns, locks_flood_ns; /* and when these were last a flood; 0: never */
  struct sp_gang *gang;                                /* its own, or that of several shares */
  struct sp_gang own;                                  /* its members; empty while they are in another one */
  uint32_t member_count;
  struct sp_member members[];
};

struct sp_node_device {
  char uuid[SP_UUID_BYTES];
  int handle;
  _Alignas(64) struct sp_policy policy;        /* a share's hot half is one cache line */
  struct sp_member *members[SP_POLICY_SHARES]; /* by policy index */
  struct sp_member *holder;                    /* the open grant */
  /* counts over the members, kept by sp_member_count, so that a step need not ask all of them */
  uint32_t waiting, latency_waiting, latency_present;
  struct { /* the last two different members that have ended a turn */
    const struct sp_member *member;
    uint64_t ended_ns;
  } recent[2];
  uint32_t gang_members;        /* members of gangs that have several devices */
  uint32_t reserved;            /* members that reserve the device */
  struct sp_gang *committed_to; /* the reserving gang that the device is kept free for; NULL: it is lent to others */
  /* Members with a turn that is closed but not drained, the oldest first. Nearly always none or one. */
  struct sp_member *drains[SP_POLICY_SHARES];
  uint32_t draining;
  uint64_t billed_until_ns;
  uint64_t heartbeat_ns;         /* the last heartbeat of this agent; 0: none yet */
  uint64_t lead_ns;              /* learned, see lead.c */
  uint64_t retry_ns;             /* when a limit first lets a waiting share run again; UINT64_MAX: never */
  uint64_t drained_ns, ended_ns; /* when the last turn drained, and the best guess of when its work ended */
  uint64_t charged_ns, decisions, decision_ns;
  struct sp_histogram hand_offs;
  uint64_t context_bytes; /* the memory that a context takes on the device; 0: not known yet */
};

struct sp_arbiter {
  pthread_mutex_t lock;
  pthread_t thread;
  bool running, stopping;
  pthread_t identity_thread;
  pthread_cond_t identity_asked;
  int identity_next_handle; /* the handle at which the identity thread goes on */
  uint64_t serial;          /* of the latest share */
  int epoll_fd, timer_fd, wake_fd;
  uint64_t ticked_ns, heartbeat_ns; /* the last tick, and the last one with a heartbeat */
  uint32_t device_count;
  struct sp_node_device devices[SP_NODE_DEVICES_MAX];
  struct sp_share *shares[SP_SHARES_MAX];
  uint64_t stirred; /* a bit per device: a change on another device has changed what is due on this one */
  uint32_t gang_count;
  struct sp_gang *gangs[SP_SHARES_MAX]; /* the gangs that reserve a device, the oldest first */
  struct sp_gang *joint;                /* the list of gangs that have a key */
  uint64_t turn_count;
  struct sp_turn *turns; /* ring of SP_TURNS_KEPT */
  uint32_t wake_count;
  struct sp_grant *wakes[SP_WAKES_MAX]; /* grants that have changed; their waiters are woken after the decision */
};

/* shared.c */
struct sp_share *sp_share_of(const struct sp_arbiter *arbiter, int share); /* NULL: there is none */
/* Wake the waiters of all grants that have changed, then unlock. Waking costs more than deciding, so it is last. */
void sp_arbiter_unlock(struct sp_arbiter *arbiter);
/* Make the arbiter's thread look at what another thread has changed. */
void sp_arbiter_poke(struct sp_arbiter *arbiter);
/* Let the next sp_wake wake the waiters of this grant. */
void sp_wake_later(struct sp_arbiter *arbiter, struct sp_grant *grant);
/* Wake the waiters of all grants that have changed. Called before the lock is given back or a share is freed. */
void sp_wake(struct sp_arbiter *arbiter);

/* The two top bits of the tag of an event in the loop of arbiter.c. Below these: the share from bit 8 on, and a slot;
 * of SP_TAG_LOOP a descriptor. */
enum { SP_TAG_LOOP = 0, SP_TAG_DOORBELL = 1, SP_TAG_PIDFD = 2 };

/* slots.c */
/* Read anew which slots are claimed, and ask the identity thread about those without a known process. */
void sp_slots_watch(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns);
/* Has the process of a slot ended? False also where the slot has none. */
bool sp_slots_is_dead(const struct sp_share *share, uint32_t slot);
/* The process in `slot` is gone: bill it, keep its counts, forget it, and have its slot cleared. */
void sp_slots_died(struct sp_arbiter *arbiter, struct sp_share *share, uint32_t slot, uint64_t now_ns);
/* Read what the share's processes report of the member's device, into the member's view and usage. */
void sp_slots_scan(struct sp_member *member, uint64_t now_ns);
void sp_slots_watch_and_scan(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns); /* in one read */
/* Bring the device's counts of waiting and latency members up to date. Called after any change of view, pause, class or
 * claims; `there` is false for a member that leaves. */
void sp_member_count(struct sp_member *member, bool there);
/* Count a fault: the share's tenant has damaged the slots. */
void sp_slots_fault(struct sp_share *share);
/* No process has entered the turn. Those that report that they wait are stopped or dying: ignore them. */
void sp_slots_mark_unresponsive(struct sp_member *member);
/* The processes in the slots `rung`, a bit each, have rung: believe them again. */
void sp_slots_mark_responsive(struct sp_share *share, uint64_t rung);
/* Close the pidfds of the share's processes. The share is about to be freed. */
void sp_slots_close(struct sp_share *share);

/* identity.c */
/* Let the identity thread, later, find out which processes have the slots that are not watched, free the slots of
 * processes that have become another program (exec), clear the slots that are `gone` and repair what is damaged. Does
 * nothing while the thread rests from its last look at the share. */
void sp_identity_ask(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns);
/* Let it only clear the slots that are `gone` and repair what is damaged. */
void sp_identity_clear(struct sp_arbiter *arbiter, struct sp_share *share);
int sp_identity_start(struct sp_arbiter *arbiter); /* 0 or -errno */
void sp_identity_stop(struct sp_arbiter *arbiter); /* wait for its end; `stopping` is set */

/* copies.c; apart from the scans, for these numbers have a cache line of their own that only usage needs */
/* Add up what the member's slots say of host copies, into its usage. */
void sp_copies_scan(struct sp_member *member);
/* Keep what the process in `slot`, which is gone, has copied. Called before the slot is cleared. */
void sp_copies_retire(struct sp_member *member, uint32_t slot);

/* In slots.c. What a context takes or the overhead of a process has changed, or a process is gone: write both into the
 * share's grants, the overhead as the sum over its live processes. */
void sp_holdings_changed(struct sp_share *share);

/* diagnostics.c */
/* Keep the diagnostics that the process in `slot` reports and that are new. */
void sp_diagnostics_take(struct sp_share *share, uint32_t slot);
/* A process reports that the share had no slot for it. Believed while no slot is free, and kept once until a process of
 * the share ends. */
void sp_diagnostic_full(struct sp_share *share);
/* Record floods of the doorbell and of locks. Called at each tick. */
void sp_diagnostics_flood(struct sp_share *share, uint64_t now_ns);

/* mend.c */
/* Write again whatever in `terms` differs from what the agent knows: only the agent writes there. */
void sp_terms_mend(struct sp_arbiter *arbiter, struct sp_share *share);

/* The value, cut to low..high. */
static inline uint64_t clamp_u64(uint64_t value, uint64_t low, uint64_t high) {
  return value < low ? low : value > high ? high : value;
}

/* bill.c */
/* Begin the account of a turn that is being granted. */
void sp_bill_begin(struct sp_member *member);
/* Bill the time since the last bill, up to `until_ns`, to the shares that have the device. */
void sp_bill(struct sp_node_device *device, uint64_t until_ns);
/* `member` has drained after its successor, the holder, was granted: if it overran its predicted end, note how much. */
void sp_bill_outlived(struct sp_node_device *device, struct sp_member *member, uint64_t drained_ns);
/* The member's turn has closed: if its work has cut that of its predecessor, bill it for what the predecessor paid for
 * this. Called before the next grant, because the next turn's work would make this one's residue look longer. */
void sp_bill_closed(struct sp_node_device *device, struct sp_member *member);
/* Bill work that ran outside every turn of the member's share. */
void sp_bill_beside(struct sp_node_device *device, struct sp_member *member, uint64_t now_ns);
/* The turn is over and its processes have reported all of it: correct what was counted as used meanwhile. */
void sp_bill_correct(struct sp_node_device *device, struct sp_member *member);
/* Correct the bill of the member's previous turn, if that had not drained at the grant of the present one. */
void sp_bill_last(struct sp_node_device *device, struct sp_member *member);

/* pressure.c */
/* Does any share but that of `member` wait for the device? */
static inline bool sp_others_wait(const struct sp_node_device *device, const struct sp_member *member) {
  return device->waiting > (uint32_t)member->counted_waiting;
}
/* Did another share have a turn within SP_RECENT_NS? It will want one soon, and what is queued now delays it. */
bool sp_others_recent(const struct sp_node_device *device, const struct sp_member *member, uint64_t now_ns);
/* Does the member's turn end at its deadline? Not while no other share waits, unless the member has a limit. */
static inline bool sp_turn_ends(const struct sp_node_device *device, const struct sp_member *member) {
  return sp_others_wait(device, member) || member->terms.limit_millipercent < SP_POLICY_WHOLE;
}
/* Open the grant of `member`, after its deadline was set; returns the turn's word. */
uint32_t sp_pressure_open(const struct sp_node_device *device, const struct sp_member *member, uint64_t now_ns);
/* Tell the holder what has changed around it; wake its keeper if it has to hurry. Its deadline comes sooner if another
 * share begins to wait. */
void sp_pressure_update(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);
/* When the holder's budget has to be lowered for the end of its turn; once it is, the deadline. UINT64_MAX: the turn
 * does not end. */
uint64_t sp_pressure_due_ns(const struct sp_node_device *device);

/* lead.c */
/* Set the lead with which a new device begins, and the longest one that a new member allows. */
void sp_lead_init_device(struct sp_node_device *device);
void sp_lead_init_member(struct sp_member *member);
/* How long before the predicted end of the member's residue the next share is granted. */
uint64_t sp_lead_ns(const struct sp_member *member);
/* device->holder has just got its grant: note when the drains before that should end, and aim its deadline. */
void sp_lead_granted(struct sp_node_device *device);
/* The member has drained: learn its own longest lead, if the next share was granted before that. */
void sp_lead_drained(struct sp_member *member, uint64_t drained_ns);
/* The member's turn has closed: learn the device's lead from whether its first launch came late. */
void sp_lead_closed(struct sp_member *member);
/* Move the holder's deadline to where its residue is not cut in two. Called after each change of the deadline. */
void sp_lead_aim(struct sp_member *holder);

/* turn.c */
/* Scan the member and act on what its slots say. */
void sp_turn_update(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns);
/* Grant the device, which has no holder, to `member` for `quantum_ns`. The caller has told the policy, or grants
 * without it. */
void sp_turn_grant(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t quantum_ns, uint64_t now_ns);
/* Close the member's turn, if it holds one: from here on it drains. If none of its work runs, it is over at once. */
void sp_turn_close(struct sp_arbiter *arbiter, struct sp_member *member, uint32_t reason, uint64_t now_ns);
/* The member's drain is late: let other shares run beside it. */
void sp_turn_cogrant(struct sp_member *member, uint64_t now_ns);
/* Adopt a turn that an earlier agent left open in a region: it drains like any other. */
void sp_turn_adopt(struct sp_member *member, uint64_t now_ns);
/* End the turn, whatever the slots say: the share is being released. */
void sp_turn_drop(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns);

/* step.c */
/* Do what is due on the device: close, drain, grant. */
void sp_step(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);
/* Scan all members of the share and of its gang, then step their devices. */
void sp_step_share(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns);
/* Step every device on which something is due; returns when the next step is due. */
uint64_t sp_step_due(struct sp_arbiter *arbiter, uint64_t now_ns);
/* Bring the device's drains up to date. True: it has no holder, and no drain keeps it from the next share. */
bool sp_step_try_free(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);
/* Bill the shares that drain up to now, so that the policy chooses by their true accounts. */
void sp_step_bill_drains(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);

/* join.c */
/* Make the members of a new share a gang of their own. */
void sp_gang_init(struct sp_share *share);
/* Make the share's members one gang with those of the shares that have the same key, as far as they are on other
 * devices; key 0: a gang of their own. Returns 0, or -ENOMEM if nothing has changed. */
int sp_gang_join(struct sp_arbiter *arbiter, struct sp_share *share, uint32_t key, uint64_t now_ns);
/* A share of the gang is paused or resumed, or a share has joined it: pause or resume all of its members. */
void sp_gang_pause(struct sp_arbiter *arbiter, struct sp_gang *gang, uint64_t now_ns);

/* gang.c; `member` is one of a gang on several devices */
/* Have all devices of the gang stepped soon: something has changed that concerns them all. */
void sp_gang_stir(struct sp_arbiter *arbiter, const struct sp_gang *gang);
/* Offer the device, which is free, to the gangs. True: it is granted, to a gang or to a latency share that goes first,
 * or it is kept for a gang. */
bool sp_gang_first(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);
/* Let every gang that is complete, and may, commit its devices. Any change on any device can make a gang complete. */
void sp_gang_commit(struct sp_arbiter *arbiter);
/* The policy has chosen `member`. True: it reserves the device and waits for the rest of its gang. False: a reservation
 * would win nothing, and the caller grants the device at once. */
bool sp_gang_reserve(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns);
/* Give up the member's reservation, if it has one. If the member still waits, tell the policy so. */
void sp_gang_give_up(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns);
/* Give up all reservations of the gang. The gang itself stays. */
void sp_gang_dissolve(struct sp_arbiter *arbiter, struct sp_gang *gang, uint64_t now_ns);
/* Must the holder's turn end because a gang needs the device or, if the holder follows, because no work can spin for it
 * any more? A refusal to let another member follow is noted in that member. */
bool sp_gang_ends(const struct sp_node_device *device, uint64_t now_ns);
/* When a member may next be let in to follow on the device, which ends the turn of the holder, if there is one.
 * UINT64_MAX: no member is to follow now, the holder follows itself, or a drain keeps the device. */
uint64_t sp_gang_due_ns(const struct sp_node_device *device);
/* Close the turn of `member`, and with it the turns of its gang that have an end. A follower's turn is closed alone. */
void sp_gang_close(struct sp_arbiter *arbiter, struct sp_member *member, uint32_t reason, uint64_t now_ns);
/* When the turns of the gang end, together; UINT64_MAX: it holds none that ends, except a follower's. */
uint64_t sp_gang_deadline_ns(const struct sp_gang *gang);
/* The device that the member's gang waits for, -1: none. It answers the question why the member waits. */
int32_t sp_gang_waits_for(const struct sp_member *member);

#endif
