/*
 * The arbiter's state: shares, their members (a share on one device) and devices. Everything is guarded by
 * sp_arbiter.lock; the thread holds it while it handles a batch of events, callers for the length of one call.
 *
 *   arbiter.c  the thread, its events, the functions of arbiter.h
 *   slots.c    what the tenants' slots say, and who is alive
 *   identity.c who they are, on a thread of its own
 *   step.c     what is due on a device
 *   gang.c     the devices that a share gets together, or several shares
 *   join.c     which shares those are
 *   turn.c     open, close, drain: the life of a turn
 *   lead.c     how early the next one is granted
 *   bill.c     who pays for the time that passes
 *   report.c   what is told of all that
 *   pressure.c what a grant tells the gate about the others
 *   region/files.c  the files of a share's region
 *   region/slots.c  what the tenants have written there
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

#define SP_TICK_NS           100000000u         /* safety scan */
#define SP_BEAT_NS           150000000u         /* heartbeat: at the first tick after this; see SP_STALE_NS */
#define SP_BUDGET_ALONE_NS   50000000u          /* predicted work in flight while nobody else waits */
#define SP_BUDGET_SHARED_NS  4000000u           /* … while others wait */
#define SP_BUDGET_END_NS     1000000u           /* … at the end of a turn */
#define SP_BUDGET_LIMITED_NS 2000000u           /* … of a share with a limit */
#define SP_BUDGET_LATENCY_NS 200000u            /* … beside a latency share */
#define SP_BUDGET_FOLLOW_NS  200000u            /* … of a follower: what another device spins for is short */
#define SP_LENT_NS           2000000u           /* a turn on a device that a gang has reserved */
#define SP_PAIR_NS           16000000u          /* two units may be in flight when both end within this */
#define SP_PAIR_LATENCY_NS   1100000u           /* … beside a latency share */
#define SP_ADOPTED_MAX_BYTES ((int64_t)1 << 50) /* no device has as much: it is damage */
#define SP_MISHAPS_KEPT      16u                /* per share */
#define SP_WATCH_NS          1000000000u        /* how often a share that does not ring is looked at all the same */
#define SP_DRAIN_MIN_NS      20000000u
#define SP_DRAIN_MAX_NS      100000000u
#define SP_STUCK_NS          10000000u  /* the turn of a share whose drain is late and that waits */
#define SP_STUCK_AFTER_NS    50000000u  /* … so long after its bound */
#define SP_FREE_NS           500000     /* idle time of a turn that is nobody's: a wake-up, a pause of the host */
#define SP_GRACE_NS          10000000   /* … saved up over turns, up to this */
#define SP_RECENT_NS         100000000u /* a share that had a turn so lately is reckoned with */
#define SP_ENTER_NS          10000000u  /* a granted share that has not entered by then loses the turn */

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

/* What the live slots of a share say about one device, added up and clamped. */
struct sp_view {
  bool waiting;
  bool entered; /* some process has entered the current turn */
  bool busy;    /* … and has not drained it */
  uint64_t waiting_since_ns;
  uint64_t entered_ns;       /* the first launch under the current turn */
  uint64_t drained_ns;       /* the latest drain of the current turn */
  uint64_t residue_until_ns; /* the latest predicted end; 0 unknown */
  uint64_t first_ended_ns;   /* when the first work of the current turn had ended, at the latest; 0: it has not */
  bool torn;                 /* some slot could not be read whole */
  uint64_t ended_ns;         /* when the last work ended, or the time of the scan: the nearest guess */
  uint64_t used_ns;          /* device time that the processes used in the current turn so far, added up */
  uint32_t running;          /* processes for which that goes on */
  uint64_t last_ended_ns;    /* when the work of the turn before had ended, if that was not known at the grant; 0 */
  bool last_runs;            /* … but not that of every process */
  uint64_t launches, passed, memory_used_bytes, longest_unit_ns, refusals;
};

/* Of what the process in a slot says of one device, the last that was believed. */
struct sp_said {
  uint64_t launches, memory_bytes, context_bytes, beside_ns;
  struct sp_copies copies;
  int64_t overhead_bytes; /* NVML's figure less that */
  uint32_t passed, refusals, put_off_us;
  uint64_t writing_ns; /* since when its report has been found half written; 0: it was whole */
  bool deaf; /* it said that it waits, was granted a turn and did not come: not believed until it rings again */
};

struct sp_member {
  struct sp_share *share;
  struct sp_gang *gang; /* that of its share */
  struct sp_node_device *device;
  struct sp_grant *grant;
  uint32_t index; /* in the region */
  int policy;     /* index in the device's policy */
  struct sp_terms terms;
  struct sp_view view;                                    /* as last scanned */
  uint64_t scanned_ns;                                    /* when that was */
  bool counted_waiting, counted_latency, counted_present; /* what it adds to its device's counts */
  /* the turn; valid while holding or draining */
  bool holding;
  bool draining;
  bool late;             /* granted while its last turn had not drained */
  bool overdue;          /* … and others ran beside that */
  bool cogranted;        /* its drain is late: others run beside it, … */
  uint64_t cogranted_ns; /* … since then */
  bool reserves;         /* the device, for its gang: the policy has chosen it, and counts it as idle */
  bool lent;             /* its turn is on a device that another one reserves */
  bool follows;          /* its turn is for what another device of its gang spins for */
  uint32_t turn;         /* the odd word */
  uint64_t requested_ns, granted_ns, closed_ns, deadline_ns, bound_ns;
  uint64_t slices_ns; /* when the hardware's slices of the turn began: with the end of the work before it */
  /* the turn's account, see bill.c */
  uint64_t turn_used_ns, turn_charged_ns;
  uint64_t begun_ns;        /* since when it pays for the device's time; 0: not yet */
  int64_t others_ns;        /* what others have paid of the time since then */
  int64_t others_late_ns;   /* … of which since its drain was late */
  uint64_t last_until_ns;   /* up to then it has paid for the turn before, had others paid for none of that */
  int64_t last_used_ns;     /* of the turn before, if its drain was not over; 0: that is put right */
  int64_t unpaid_ns;        /* > 0: used in its last turn while an earlier one's drain lasted, they said */
  int64_t turn_alone_ns;    /* charged as used while nobody waited */
  int64_t turn_idle_ns;     /* while others waited: not used */
  int64_t turn_forgiven_ns; /* of that, not charged */
  int64_t grace_ns;         /* how much more would not be */
  int64_t owed_used_ns, owed_charged_ns; /* <= 0: counted too much, to be left out of what comes next */
  uint64_t beside_ns;                    /* so much ran outside every turn and is not billed yet */
  uint32_t beside_until_us;              /* … and had ended then: the lower half */
  uint64_t beside_billed_ns;             /* up to when that is billed: no more than passed since is believed */
  int64_t put_off_ns;                    /* by which its processes' work of known lengths took longer */
  int64_t beside_turn_ns;                /* work of others beside this turn */
  int64_t changes_ns;                    /* for so long at most the device has changed to that and back */
  bool by_clock;                         /* what its processes say does not tell what was used: what passes is */
  struct sp_member *cut;                 /* whose drain outlived what was foretold, into this turn */
  int64_t cut_ns;                        /* by so much */
  uint64_t predecessor_ns; /* when the turn before had drained, if this one was granted before that; else 0 */
  uint64_t foretold_ns;    /* when it would drain, as known when the next share was granted; 0: none was */
  uint64_t lead_max_ns;    /* a longer lead and its residue is cut; learned */
  uint32_t cuts;           /* so many residues in a row were */
  bool lead_cut;           /* granted later than the device's lead, for that of whoever drained */
  uint64_t refused_ns;     /* it was too far ahead to follow; asked again then */
  uint32_t reason;
  uint64_t waiting_ns;                                         /* since when the wait is counted; 0 = not waiting */
  uint64_t retired_launches, retired_passed, retired_refusals; /* of processes that are gone */
  struct sp_usage usage;
  struct sp_histogram waits, turns;
  struct sp_said said[SP_SLOTS_MAX];
};

/* What the agent knows of the process in a slot. */
struct sp_tenant {
  int pidfd; /* -1: none */
  int32_t pid;
  uint64_t orphaned_ns;  /* claimed, but nobody held the lock since */
  uint32_t mishaps_told; /* a bit per kind: of a process each is taken once */
};

/* What gets its devices together: the members of one share, or of several. They are on different devices. */
struct sp_gang {
  uint32_t count;
  bool paused;          /* one of its shares is: the others could only spin for it */
  uint32_t key;         /* what its shares were joined by; 0: it is a share's own */
  struct sp_gang *next; /* of those that shares were joined to */
  struct sp_member *members[SP_NODE_DEVICES_MAX];
};

/* What a turn needs stands together, at the end: a node with many shares finds little of the rest in its caches. */
struct sp_share {
  uint64_t mishap_count; /* taken so far */
  struct sp_mishap mishaps[SP_MISHAPS_KEPT];
  struct sp_tenant tenants[SP_SLOTS_MAX];
  bool paused;
  bool full_told; /* since it was full */
  int handle;
  struct sp_region_owner region;
  uint64_t claimed;    /* slots in use, as last read */
  uint64_t watched;    /* of them, those with a pidfd */
  uint64_t watched_ns; /* when a tick last looked at the slots: what others read of them in between does not count */
  uint64_t gone;       /* slots of the dead, which are to be cleared: nobody has them */
  bool mend;           /* the file, or its claims, are to be put right */
  /* identity.c */
  bool asked, clear;
  uint64_t serial; /* of all shares, for handles are given out again */
  uint64_t looked; /* slots of this look that are done */
  uint64_t looking_ns, rest_until_ns;
  struct sp_gang *gang; /* its own, or that of several shares */
  struct sp_gang own;   /* its members; empty while they are in another one */
  uint32_t member_count;
  struct sp_member members[];
};

struct sp_node_device {
  char uuid[SP_UUID_BYTES];
  int handle;
  _Alignas(64) struct sp_policy policy;        /* a share's hot half is one cache line */
  struct sp_member *members[SP_POLICY_SHARES]; /* by policy index */
  struct sp_member *holder;                    /* the open grant */
  /* what the members add up to, kept by sp_member_count: a step need not ask all of them */
  uint32_t waiting, latency_waiting, latency_present;
  struct { /* the last two different members whose turns ended */
    const struct sp_member *member;
    uint64_t ended_ns;
  } recent[2];
  uint32_t gang_members;     /* of gangs on several devices */
  uint32_t reserved;         /* members that reserve it */
  struct sp_gang *called_by; /* whom it is kept for, of those that reserve it; NULL: it is lent */
  /* Closed, not drained, the oldest first. Nearly always none or one. */
  struct sp_member *drains[SP_POLICY_SHARES];
  uint32_t draining;
  uint64_t billed_until_ns;
  uint64_t beaten_ns;            /* when we last showed that we are there; 0: not yet */
  uint64_t lead_ns;              /* learned, lead.c */
  uint64_t retry_ns;             /* when a limit lets somebody run; UINT64_MAX */
  uint64_t drained_ns, ended_ns; /* when the last turn drained, and when its work ended: the nearest guess */
  uint64_t charged_ns, decisions, decision_ns;
  struct sp_histogram hand_offs;
  uint64_t context_bytes; /* what a context takes, as far as it is known */
};

struct sp_arbiter {
  pthread_mutex_t lock;
  pthread_t thread;
  bool running, stopping;
  pthread_t identity_thread;
  pthread_cond_t identity_asked;
  int identity_next;
  uint64_t serial;
  int epoll_fd, timer_fd, wake_fd;
  uint64_t ticked_ns, beaten_ns;
  uint32_t device_count;
  struct sp_node_device devices[SP_NODE_DEVICES_MAX];
  struct sp_share *shares[SP_SHARES_MAX];
  uint64_t stirred; /* a bit per device: something elsewhere has changed what is due there */
  uint32_t gang_count;
  struct sp_gang *gangs[SP_SHARES_MAX]; /* that reserve something, the oldest first */
  struct sp_gang *joint;                /* those that shares were joined to */
  uint64_t turn_count;
  struct sp_turn *turns; /* ring of SP_TURNS_KEPT */
  uint32_t wake_count;
  struct sp_grant *wakes[SP_WAKES_MAX]; /* who has to hear of what was decided: after the decision */
};

/* arbiter.c */
struct sp_share *sp_share_of(const struct sp_arbiter *arbiter, int share); /* NULL: there is none */
/* Decided first, told afterwards: a wake-up costs more than a decision. */
void sp_arbiter_unlock(struct sp_arbiter *arbiter);
/* Make the thread look at what another one has changed. */
void sp_arbiter_poke(struct sp_arbiter *arbiter);

/* slots.c */
void sp_slots_watch(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns); /* who came, who left */
void sp_slots_died(struct sp_arbiter *arbiter, struct sp_share *share, uint32_t slot, uint64_t now_ns);
void sp_slots_scan(struct sp_member *member, uint64_t now_ns);
void sp_slots_watch_and_scan(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns); /* in one read */
/* Bring the device's counts up to date. After any change of view, pause, class or claims; `there` false: it leaves. */
void sp_member_count(struct sp_member *member, bool there);
/* Its tenant has damaged the slots. */
void sp_slots_fault(struct sp_share *share);
/* Nobody has entered the turn: who says that it waits is stopped, or dying. */
void sp_slots_deafen(struct sp_member *member);
/* The slots `rung`, a bit each, are heard again. */
void sp_slots_hear(struct sp_share *share, uint64_t rung);
void sp_slots_close(struct sp_share *share);

/* identity.c */
/* Find out who has the slots that are not watched, take back those of processes that have become another program
 * (exec), mend and clear what is to be: later, by the thread of that. */
void sp_identity_ask(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns);
/* Clear the slots that are `gone`, and put right what is to be, without that. */
void sp_identity_clear(struct sp_arbiter *arbiter, struct sp_share *share);
int sp_identity_start(struct sp_arbiter *arbiter); /* 0 or -errno */
void sp_identity_stop(struct sp_arbiter *arbiter); /* `stopping` is set */

/* copies.c; beside the scans, for a line of the slots that nothing but usage wants */
/* What the member's slots say of host copies, into its usage. */
void sp_copies_scan(struct sp_member *member);
/* The process in `slot` is gone: what it copied stays. Before the slot is cleared. */
void sp_copies_retire(struct sp_member *member, uint32_t slot);

/* A process has another overhead, or is gone: grants carry the sum over the live ones. */
void sp_holdings_changed(struct sp_share *share);

/* arbiter/diagnostics.c */
/* What the process in `slot` says of its mishaps: those that are new are kept. */
void sp_mishaps_take(struct sp_share *share, uint32_t slot);
/* A process says that it was turned away: believed while there is no free slot, and told once until there was one. */
void sp_mishap_full(struct sp_share *share);

/* mend.c */
/* The agent alone writes `terms`, and knows what it says: whatever says otherwise is written again. */
void sp_terms_mend(struct sp_arbiter *arbiter, struct sp_share *share);

static inline uint64_t clamp_u64(uint64_t value, uint64_t low, uint64_t high) {
  return value < low ? low : value > high ? high : value;
}

/* bill.c */
/* A turn has been granted. */
void sp_bill_begin(struct sp_member *member);
/* Charge the time since the last bill to whoever has the device. */
void sp_bill(struct sp_node_device *device, uint64_t until_ns);
/* `member` has drained, the holder was granted before that. */
void sp_bill_outlived(struct sp_node_device *device, struct sp_member *member, uint64_t drained_ns);
/* The turn is about to drain. Not later: what the next one's work takes of its residue would look like its own. */
void sp_bill_closed(struct sp_node_device *device, struct sp_member *member);
/* The turn is over and its processes have said all: put right what was counted as used meanwhile. */
void sp_bill_beside(struct sp_node_device *device, struct sp_member *member, uint64_t now_ns);
void sp_bill_correct(struct sp_node_device *device, struct sp_member *member);
void sp_bill_last(struct sp_node_device *device, struct sp_member *member);

/* pressure.c */
/* Others want the device now. */
static inline bool sp_others_wait(const struct sp_node_device *device, const struct sp_member *member) {
  return device->waiting > (uint32_t)member->counted_waiting;
}
/* Somebody else had a turn a moment ago and will want one soon: what is queued now delays that. */
bool sp_others_recent(const struct sp_node_device *device, const struct sp_member *member, uint64_t now_ns);
/* Does its turn end at its deadline? */
static inline bool sp_turn_ends(const struct sp_node_device *device, const struct sp_member *member) {
  return sp_others_wait(device, member) || member->terms.limit_millipercent < SP_POLICY_WHOLE;
}
/* Open the grant of `member`, whose deadline is set; returns the turn's word. */
uint32_t sp_pressure_open(const struct sp_node_device *device, const struct sp_member *member, uint64_t now_ns);
/* Tell the holder what has changed around it; wake its keeper if it has to hurry. */
void sp_pressure_update(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);
/* When the holder's budget has to be lowered for the end of its turn, then the deadline; UINT64_MAX: it does not end.
 */
uint64_t sp_pressure_due_ns(const struct sp_node_device *device);

/* lead.c */
void sp_lead_init_device(struct sp_node_device *device);
void sp_lead_init_member(struct sp_member *member);
uint64_t sp_lead_ns(const struct sp_member *member); /* so long before its residue's end the next share is granted */
void sp_lead_granted(struct sp_node_device *device); /* to device->holder */
void sp_lead_drained(struct sp_member *member, uint64_t drained_ns);
void sp_lead_closed(struct sp_member *member);
/* Move the holder's deadline to where the end of its turn is not cut. After each change of the deadline. */
void sp_lead_aim(struct sp_member *holder);

/* turn.c */
/* Scan the member and act on what its slots say. */
void sp_turn_update(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns);
/* `member`, which holds in its policy, has the device, which is free. */
void sp_turn_grant(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t quantum_ns, uint64_t now_ns);
void sp_turn_close(struct sp_arbiter *arbiter, struct sp_member *member, uint32_t reason, uint64_t now_ns);
/* Its drain is late. */
void sp_turn_cogrant(struct sp_member *member, uint64_t now_ns);
/* A region with its gate open from an earlier agent: that turn drains like any other. */
void sp_turn_adopt(struct sp_member *member, uint64_t now_ns);
/* Its waiters are woken with the next sp_turn_wake. */
void sp_turn_wake_later(struct sp_arbiter *arbiter, struct sp_grant *grant);
/* Wake those whose grants have changed. Before the lock is given back, and before a share is freed. */
void sp_turn_wake(struct sp_arbiter *arbiter);
/* The turn is over whatever the slots say: the share is being released. */
void sp_turn_drop(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns);

/* step.c */
/* Close, drain, grant: whatever is due on the device. */
void sp_step(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);
/* Scan all members of the share and of its gang, then step their devices. */
void sp_step_share(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns);
/* Step every device on which something is due; returns when the next one is. */
uint64_t sp_step_due(struct sp_arbiter *arbiter, uint64_t now_ns);
/* May the next share be granted? */
bool sp_step_is_free(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);
/* The choice wants the account of who drains. */
void sp_step_settle(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);

/* join.c */
/* The share is new: its members are a gang of their own. */
void sp_gang_init(struct sp_share *share);
/* From now on the share's members are one gang with those of the shares that have the same key, as far as they are on
 * other devices; key 0: a gang of their own. Returns 0 or -ENOMEM, and nothing has changed. */
int sp_gang_join(struct sp_arbiter *arbiter, struct sp_share *share, uint32_t key, uint64_t now_ns);
/* A share of the gang is paused or goes on, or another one is in the gang. */
void sp_gang_pause(struct sp_arbiter *arbiter, struct sp_gang *gang, uint64_t now_ns);

/* gang.c; `member` is one of a gang on several devices */
/* Something has changed that concerns all of its devices. */
void sp_gang_stir(struct sp_arbiter *arbiter, const struct sp_gang *gang);
/* The device is free: true when a gang has had it, or it is kept for one. */
bool sp_gang_first(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns);
/* Let those that may call their devices: who is complete depends on what goes on on any of them. */
void sp_gang_call(struct sp_arbiter *arbiter);
/* The policy has chosen `member`. True: it waits for the rest of its gang. */
bool sp_gang_reserve(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns);
/* It does not, or no longer. */
void sp_gang_leave(struct sp_arbiter *arbiter, struct sp_member *member, uint64_t now_ns);
void sp_gang_dissolve(struct sp_arbiter *arbiter, struct sp_gang *gang, uint64_t now_ns);
/* Does the holder's turn end for a gang's sake, or because it was one? */
bool sp_gang_ends(const struct sp_node_device *device, uint64_t now_ns);
/* When that may next be so, or somebody is missed on a device that nobody holds; UINT64_MAX: never. */
uint64_t sp_gang_due_ns(const struct sp_node_device *device);
/* Close the turn of `member`, and with it those of its gang. */
void sp_gang_close(struct sp_arbiter *arbiter, struct sp_member *member, uint32_t reason, uint64_t now_ns);
/* When the turns that the gang holds end, together; UINT64_MAX: it holds none, or they do not. */
uint64_t sp_gang_deadline_ns(const struct sp_gang *gang);
/* The device that its gang waits for, -1: none. For whoever asks why it waits. */
int32_t sp_gang_waits_for(const struct sp_member *member);

#endif
