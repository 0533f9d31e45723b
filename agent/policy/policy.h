/*
 * The policy: which share runs next on one device, and for how long.
 *
 * Pure: no clock, no I/O, no allocation beyond its struct, no floating point. Time comes in as `now_ns` (any monotonic
 * time base, the same one in every call; a step backwards counts as no time). docs/policy.md explains the account.
 *
 * The caller's duties, in the order of a turn:
 *   sp_policy_wait(true)   when a share begins to want the device;
 *   sp_policy_next()       when the device can be granted: the chosen share stops waiting and holds a turn;
 *   sp_policy_wait(true)   again, when the holder still wants more at the end of its quantum;
 *   sp_policy_charge()     device time that counts against a share, at any moment and in parts, but for *every* holder
 *                          up to now before the next sp_policy_next(), or the choice is made on a stale account;
 *   sp_policy_end()        when its turn is over (drained, dead, given back). Not waiting and not holding = idle.
 * Two shares may hold at once (overlap, co-grant): each is charged its part.
 *
 * Units: percentages are millipercent (1/1000 %: 100 % = 100000). Accounts are int64 in ns x millipercent
 * (1 ns of device time = 100000), so accrual is exact: rate x elapsed ns, without a division.
 */
#ifndef SHAREPOD_POLICY_H
#define SHAREPOD_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* cdef begin: the block between the markers is read by rig/virtual/policy.py for cffi */
#define SP_POLICY_SHARES       128    /* per device */
#define SP_POLICY_SHARES_WORDS 2      /* of 64 bits: one bit a share */
#define SP_POLICY_WHOLE        100000 /* 100 % in millipercent */

enum sp_class { SP_CLASS_LATENCY = 0, SP_CLASS_STANDARD = 1, SP_CLASS_BATCH = 2 };

/* Which rule made a choice. */
enum sp_rule {
  SP_RULE_NONE = 0,
  SP_RULE_LATENCY = 1, /* a latency share below its request */
  SP_RULE_REQUEST = 2, /* any share below its request */
  SP_RULE_SURPLUS = 3, /* time that the requests leave over, in proportion to request */
  SP_RULE_LEFTOVER = 4 /* batch and request 0: time that no other share can use */
};

struct sp_policy_share {
  /* The fields that a decision reads of every active share come first: 64 bytes, one cache line. */
  bool present;
  bool waiting; /* wants a turn */
  bool holding; /* from sp_policy_next to sp_policy_end */
  bool paused;  /* never chosen; earns neither credit nor lag */

  /* Terms. request <= limit; both in millipercent. */
  uint32_t request_mp;
  uint32_t limit_mp;
  uint32_t share_class;

  /* Rates in force since the last change of the active set (active: waiting or holding), millipercent. */
  uint32_t guarantee_mp; /* request, scaled when the active requests exceed 100 %, halved while in debt */
  uint32_t target_mp;    /* guarantee + its part of the surplus, never above the limit */

  /* Accounts, ns x millipercent. */
  int64_t credit;  /* guaranteed minus used: >= 0 means "below its request" */
  int64_t lag;     /* target minus used; > 0: behind. Within a rule, the share that reaches its due lag first is next */
  int64_t due_lag; /* lag at which its turn is due: half of what an ordinary turn takes away */
  int64_t bucket;  /* what the limit lets it use now; refilled at limit_mp; not kept if the limit is 100 % */
  int64_t debt;    /* overrun past the bound of the lag, >= 0; repaid out of half the request */

  uint64_t waiting_since_ns; /* valid while waiting; the tie-break */
  uint64_t updated_ns;       /* while it is idle, its accounts stand at this time */
  uint64_t longest_unit_ns;  /* as told by sp_policy_unit */
  uint64_t used_ns;          /* everything charged to it, for validation and reports */
  uint32_t rule;             /* the rule that chose the present or last turn */
  uint32_t unused[7];        /* up to two lines */
};

struct sp_policy {
  struct sp_policy_share shares[SP_POLICY_SHARES];
  int top;                                     /* shares[top..] are absent */
  uint64_t active_set[SP_POLICY_SHARES_WORDS]; /* bit i: shares[i] is active; an event costs nothing for the others */
  bool latency_present;                        /* a latency share that is not paused, active or not */
  uint64_t updated_ns;                         /* the accounts of the active shares stand at this time */
  uint64_t round_ns;                           /* each active share gets a turn within about this: docs/policy.md */
  uint64_t longest_ns;                         /* the longest ordinary quantum */
  uint32_t active;                             /* shares waiting or holding */
  uint32_t targets_mp;                         /* sum of target_mp over them, <= 100000 */
  int64_t entitled; /* what the targets have earned since the last charge; the part not charged was lost in hand-offs */
  bool stale;       /* the active set or the terms have changed: the rates must be computed again */
  uint64_t used_ns; /* everything charged to anyone */
  uint64_t decisions;
};

struct sp_choice {
  int share;           /* -1: none is eligible */
  uint64_t quantum_ns; /* how long the turn may last, cut to what the limit allows */
  uint64_t retry_ns;   /* share == -1: when a waiting share's limit first lets it run; UINT64_MAX: no share waits */
  uint32_t rule;       /* enum sp_rule */
};

/* Make the policy empty: no shares, nothing charged. Called once, before any other call. */
void sp_policy_init(struct sp_policy *policy);

/* Returns the share's index, or -1 when the table is full. request is cut to the limit, the limit to 1..100000. */
int sp_policy_add(struct sp_policy *policy, uint32_t request_mp, uint32_t limit_mp, uint32_t share_class,
                  uint64_t now_ns);
/* New terms take effect at once; the accounts stay. */
void sp_policy_update(struct sp_policy *policy, int share, uint32_t request_mp, uint32_t limit_mp, uint32_t share_class,
                      uint64_t now_ns);
/* Forget the share, and any turn that it holds. A later share may get its index. */
void sp_policy_remove(struct sp_policy *policy, int share, uint64_t now_ns);
/* Pause the share, or resume it. A turn that it holds goes on until sp_policy_end. */
void sp_policy_pause(struct sp_policy *policy, int share, bool paused, uint64_t now_ns);

/* The share begins or stops to want a turn. */
void sp_policy_wait(struct sp_policy *policy, int share, bool waiting, uint64_t now_ns);
/* Charge the device time that counts against the share since its last charge. Negative: a correction of what was
 * charged before. */
void sp_policy_charge(struct sp_policy *policy, int share, int64_t charged_ns, uint64_t now_ns);
/* End the share's turn. Charge it first. */
void sp_policy_end(struct sp_policy *policy, int share, uint64_t now_ns);
/* Choose the next share among those that wait and do not hold. The chosen share holds, and no longer waits. */
struct sp_choice sp_policy_next(struct sp_policy *policy, uint64_t now_ns);
/* Begin the turn of a member of a gang without a choice. Either the policy has chosen it before, and it was idle here
 * (sp_policy_end) while it waited for the gang's other devices; or it follows. The share holds from now on,
 * for two milliseconds at least. share == -1: it is paused, holds already, or is not known. */
struct sp_choice sp_policy_take(struct sp_policy *policy, int share, uint64_t now_ns);
/* May the share get one turn before the policy chooses it? It may if it is not paused, has no debt, is ahead of its
 * target by one turn at most, and its limit allows a turn. */
bool sp_policy_is_near(struct sp_policy *policy, int share, uint64_t now_ns);
/* End the share's turn: it waits again, and does not count as idle in between. */
void sp_policy_return(struct sp_policy *policy, int share, uint64_t now_ns);

/* Should `waiter`, a waiting latency share below its limit, end the turn of `holder` now? If the waiter is below its
 * request, yes, unless the holder was itself chosen as such a share; if not, only a holder that uses leftovers. Ask
 * when the waiter begins to wait. */
bool sp_policy_preempts(const struct sp_policy *policy, int waiter, int holder, uint64_t now_ns);

/* The share's ordinary quantum at the present rates, before its limit cuts it. But the shortest quantum, if the share
 * is not below its request and a waiting share is. Ask this about the holder when another share begins to wait: a turn
 * that was granted while no other share waited keeps no more than this, counted from its grant. */
uint64_t sp_policy_quantum(struct sp_policy *policy, int share, uint64_t now_ns);

/* The longest quantum that the share would get now. Its present one may have been granted before others waited. */
uint64_t sp_policy_longest(struct sp_policy *policy, int share, uint64_t now_ns);

/* Set the share's longest unit, as observed lately. Returns its ordinary quantum, at the rates of the last call. */
uint64_t sp_policy_unit(struct sp_policy *policy, int share, uint64_t longest_unit_ns);

/* Are all invariants kept? Only tests ask, after a call: false means a bug of the policy. */
bool sp_policy_valid(const struct sp_policy *policy);
/* cdef end */

#endif
