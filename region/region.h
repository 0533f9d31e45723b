/*
 * The region: the shared-memory files of one share, the only thing that both a hooked process and the agent touch.
 *
 * A region is a directory on tmpfs with three files, split by writer:
 *
 *   terms   written by the agent, read-only to the tenant. One header, then one grant per device of the share.
 *           The tenant maps it; a futex wait works on a read-only shared mapping.
 *   slots   written by the tenant's processes, one slot each. Preallocated, never grown. The agent never maps it:
 *           it reads with pread (coherent with mappings on tmpfs), so a tenant that truncates the file gives the agent
 *           a short read and not a SIGBUS. Everything read is range-checked; a lie harms only its author.
 *   bell    the doorbell, a FIFO of mode 0622. A process writes a byte to say "look at my slots". The byte is the index
 *           of its slot, which is only a hint, or SP_DOORBELL_FULL if it has found no free slot.
 *
 * A process that maps one of these files is guarded against its truncation: guard.c.
 *
 * No file is writable by two shares.
 *
 * Turns. A grant's `word` is the turn: odd = open, even = closed. Opening and closing each add one, so a turn is named
 * by the odd value that opened it, and names are compared for equality only (they wrap after 2^31 turns; 0 is never a
 * word).
 *
 *   process: held_turn = T, drained_turn not T; fence; word still T?  → launch        (sp_slot_enter)
 *   agent:   word = T + 1; fence; any slot with held_turn == T and drained_turn != T?  → wait for it to drain
 *
 * Either the process sees the closed word or the agent sees the entered slot (store, fence, load on both sides): no
 * launch is lost. When its work has drained, a process writes drained_turn = T. While the word still is T, it may enter
 * again. When it enters the next turn, drained_turn keeps the name of the turn before, which the agent may not have
 * read yet.
 *
 * A process holds an fcntl record lock on one byte of `slots` (offset = slot index). F_GETLK tells the agent the
 * holder's pid, in the agent's own namespace.
 *
 * Every field has a fixed width; times are CLOCK_MONOTONIC ns; the layout is asserted below and in tests.
 */
#ifndef SHAREPOD_REGION_H
#define SHAREPOD_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SP_ABI         1u
#define SP_MAGIC       0x31306e6f69676572u /* "region01" */
#define SP_DEVICES_MAX 16u
#define SP_SLOTS_MAX   64u
#define SP_UUID_BYTES  48u

#define SP_TERMS_FILE    "terms"
#define SP_SLOTS_FILE    "slots"
#define SP_DOORBELL_FILE "bell"
#define SP_DOORBELL_FULL 0xffu

/* The agent writes heartbeat_ns at least every 100 ms; a hook that sees none for this long opens its gates. It looks
 * every 100 ms, so the gates of a crashed agent are open within 1 s. */
#define SP_STALE_NS 900000000u

struct sp_header {
  uint64_t magic;
  uint32_t abi;
  uint32_t header_size; /* sizeof(struct sp_header) */
  uint32_t grant_size;  /* sizeof(struct sp_grant) */
  uint32_t grant_count; /* devices of this share, 1..SP_DEVICES_MAX; never changes */
  uint32_t slot_size;   /* sizeof(struct sp_slot) */
  uint32_t slot_count;  /* SP_SLOTS_MAX */
  uint32_t flags;       /* none yet */
  uint32_t reserved[7];
  uint64_t heartbeat_ns; /* the agent was alive at this time; 0 after a planned stop or release: gates are open */
  uint64_t reserved_line[7];
};

#define SP_PAGE_BYTES 4096u /* the unit of sp_grant.spare_pages */

/* sp_grant.flags */
#define SP_GRANT_CONTENDED 1u /* others wait for this device: return the turn when idle */
#define SP_GRANT_PAUSED    2u /* paused by an operator: the gate stays closed even if the agent is gone */
#define SP_GRANT_LIMITED   4u /* its quanta are short even alone: notice soon when it is idle */

struct sp_grant {
  char uuid[SP_UUID_BYTES];      /* the device, as NVML prints it, NUL-padded */
  uint64_t memory_limit_bytes;   /* 0: no cap */
  uint32_t request_millipercent; /* the terms; for adoption and for tools, the gate does not read them */
  uint32_t limit_millipercent;
  /* second cache line: what the gate reads at every launch */
  uint32_t word;         /* the turn: odd = open; also the futex that waiters sleep on */
  uint32_t flags;        /* SP_GRANT_* */
  uint64_t budget_ns;    /* predicted work that may be in flight under this turn */
  uint64_t lookahead_ns; /* a second unit may follow the first while both are predicted to end within this */
  uint64_t granted_ns;   /* when the word was last opened; information only */
  uint32_t share_class;  /* enum sp_class of policy.h; information only */
  uint32_t spare_pages;  /* memory reserved for contexts and not taken by them, of all processes, in 4 KiB */
  uint64_t used_ns; /* device time used so far: if the agent is killed, the next one continues the bill from here */
  uint64_t context_bytes; /* device memory that a context takes, learned by the agent; 0: not known yet */
  int64_t overhead_bytes; /* memory that the share's processes take beyond what their slots report, from NVML */
};

/* What one process reports about one device: two cache lines. Waiting threads and the keeper write the fields of the
 * first line, each by itself. The holder of the process's turn lock writes the second line, as a whole under
 * `sequence`. */
struct sp_slot_device {
  uint32_t waiting;    /* threads asleep at the closed gate */
  uint32_t put_off_us; /* by how much work of known length took longer, in all: the device ran other work; wraps */
  uint64_t waiting_since_ns;  /* when the first of these threads began to wait */
  uint64_t memory_used_bytes; /* charged against the cap by this process */
  uint64_t first_ended_ns;    /* when the first work of a turn had ended; of the last turn that had work */
  uint64_t context_bytes;     /* the part of memory_used_bytes that was reserved for contexts: an estimate */
  uint64_t refused_bytes;     /* the last allocation that did not fit under the cap */
  uint32_t refusals;          /* how many allocations did not fit */
  uint32_t beside_until_us;   /* when the last work of beside_ns had ended: CLOCK_MONOTONIC in us, the lower 32 bits */
  uint64_t beside_ns;         /* time of work that stood behind a wait and ran outside every turn, in all */
  uint32_t sequence;          /* counts writes; odd while the fields below are being written */
  uint32_t held_turn;         /* the last turn entered */
  uint32_t drained_turn;      /* == held_turn: nothing of this process is on the device any more */
  uint32_t check;             /* a hash of the fields below and of the two turns: shows whether a copy is whole */
  uint64_t drained_ns;        /* the work had certainly drained by then */
  uint64_t entered_ns;        /* when the first launch under held_turn passed the gate */
  uint64_t residue_until_ns;  /* predicted end of the work in flight, 0 = unknown; once drained, its real end */
  uint64_t idle_ns;           /* time inside held_turn, from its entry to its drain, without work on the device */
  uint64_t launches;          /* launches that passed the gate */
  uint32_t passed;            /* launches that passed a closed gate, an exhausted budget, or no gate at all */
  uint32_t longest_unit_us;   /* the longest single launch seen, µs, saturated */
};

/* What one process has copied between host memory and the memory of one device. It has a cache line of its own, because
 * every copy writes it, in any thread, and the agent reads it only when it is asked for usage. */
struct sp_slot_copies {
  uint64_t to_device_bytes;
  uint64_t to_host_bytes;
  uint64_t to_device_count; /* copies that the driver accepted */
  uint64_t to_host_count;
  uint64_t reserved[4];
};

/* The head of `slots`: one byte per slot, so that the agent finds all claimed slots in one read. */
struct sp_slots_header {
  uint8_t claimed[64]; /* 0 free, 1 in use */
};

/* What can go wrong in a process. The hook may not print it, so the agent logs it, once per process and kind. */
enum sp_diagnostic_kind {
  SP_DIAGNOSTIC_INIT = 0,     /* cuInit, or the making of a context, failed with this CUresult */
  SP_DIAGNOSTIC_DEVICE = 1,   /* the program asked for this ordinal, and there is no such device */
  SP_DIAGNOSTIC_OUTSIDE = 2,  /* refused: a context on this ordinal, which the share does not hold (policy `closed`) */
  SP_DIAGNOSTIC_FUNCTION = 3, /* the program called a function that the driver lacks: sp_name_hash of it */
  SP_DIAGNOSTIC_DRIVER = 4,   /* not metered: the driver lacks this function, which the hook needs */
  SP_DIAGNOSTIC_VERSION = 5,  /* the driver is for this version of CUDA, older than what SharePod is tested with */
  SP_DIAGNOSTIC_FULL = 6,     /* turned away: none of this many slots is free. Not in a slot, as the process has none */
  SP_DIAGNOSTIC_KEEPER = 7,   /* not metered for now: its helper thread could not be started, with this errno */
  SP_DIAGNOSTIC_CROWDED = 8,  /* partly not metered: the process has more threads or streams than this */
  SP_DIAGNOSTIC_RINGS = 9,    /* the doorbell rang more than this many times in a second. Not in a slot */
  SP_DIAGNOSTIC_LOCKS = 10,   /* its locks took this many milliseconds of a second of the agent's. Not in a slot */
  SP_DIAGNOSTIC_KINDS = 12,
};
#define SP_OLDEST_DRIVER 11080 /* the oldest version of CUDA in driver/driver.def */

struct sp_slot {
  uint32_t index;
  int32_t pid; /* in the tenant's pid namespace; the record lock is what counts */
  uint64_t claimed_ns;
  uint32_t diagnostics[SP_DIAGNOSTIC_KINDS]; /* the detail of each kind, plus one; 0: it has not happened */
  struct sp_slot_device devices[SP_DEVICES_MAX];
  struct sp_slot_copies copies[SP_DEVICES_MAX];
};

#define SP_ASSERT_OFFSET(type, field, offset)                                                                          \
  _Static_assert(offsetof(struct type, field) == (offset), "ABI 1: " #type "." #field)
SP_ASSERT_OFFSET(sp_header, magic, 0);
SP_ASSERT_OFFSET(sp_header, abi, 8);
SP_ASSERT_OFFSET(sp_header, header_size, 12);
SP_ASSERT_OFFSET(sp_header, grant_size, 16);
SP_ASSERT_OFFSET(sp_header, grant_count, 20);
SP_ASSERT_OFFSET(sp_header, slot_size, 24);
SP_ASSERT_OFFSET(sp_header, slot_count, 28);
SP_ASSERT_OFFSET(sp_header, flags, 32);
SP_ASSERT_OFFSET(sp_header, heartbeat_ns, 64);
_Static_assert(sizeof(struct sp_header) == 128, "ABI 1: sp_header");
SP_ASSERT_OFFSET(sp_grant, uuid, 0);
SP_ASSERT_OFFSET(sp_grant, memory_limit_bytes, 48);
SP_ASSERT_OFFSET(sp_grant, request_millipercent, 56);
SP_ASSERT_OFFSET(sp_grant, limit_millipercent, 60);
SP_ASSERT_OFFSET(sp_grant, word, 64);
SP_ASSERT_OFFSET(sp_grant, flags, 68);
SP_ASSERT_OFFSET(sp_grant, budget_ns, 72);
SP_ASSERT_OFFSET(sp_grant, lookahead_ns, 80);
SP_ASSERT_OFFSET(sp_grant, granted_ns, 88);
SP_ASSERT_OFFSET(sp_grant, share_class, 96);
SP_ASSERT_OFFSET(sp_grant, spare_pages, 100);
SP_ASSERT_OFFSET(sp_grant, used_ns, 104);
SP_ASSERT_OFFSET(sp_grant, context_bytes, 112);
SP_ASSERT_OFFSET(sp_grant, overhead_bytes, 120);
_Static_assert(sizeof(struct sp_grant) == 128, "ABI 1: sp_grant");
SP_ASSERT_OFFSET(sp_slot_device, waiting, 0);
SP_ASSERT_OFFSET(sp_slot_device, put_off_us, 4);
SP_ASSERT_OFFSET(sp_slot_device, waiting_since_ns, 8);
SP_ASSERT_OFFSET(sp_slot_device, memory_used_bytes, 16);
SP_ASSERT_OFFSET(sp_slot_device, first_ended_ns, 24);
SP_ASSERT_OFFSET(sp_slot_device, context_bytes, 32);
SP_ASSERT_OFFSET(sp_slot_device, refused_bytes, 40);
SP_ASSERT_OFFSET(sp_slot_device, refusals, 48);
SP_ASSERT_OFFSET(sp_slot_device, beside_until_us, 52);
SP_ASSERT_OFFSET(sp_slot_device, beside_ns, 56);
SP_ASSERT_OFFSET(sp_slot_device, sequence, 64);
SP_ASSERT_OFFSET(sp_slot_device, held_turn, 68);
SP_ASSERT_OFFSET(sp_slot_device, drained_turn, 72);
SP_ASSERT_OFFSET(sp_slot_device, check, 76);
SP_ASSERT_OFFSET(sp_slot_device, drained_ns, 80);
SP_ASSERT_OFFSET(sp_slot_device, entered_ns, 88);
SP_ASSERT_OFFSET(sp_slot_device, residue_until_ns, 96);
SP_ASSERT_OFFSET(sp_slot_device, idle_ns, 104);
SP_ASSERT_OFFSET(sp_slot_device, launches, 112);
SP_ASSERT_OFFSET(sp_slot_device, passed, 120);
SP_ASSERT_OFFSET(sp_slot_device, longest_unit_us, 124);
_Static_assert(sizeof(struct sp_slot_device) == 128, "ABI 1: sp_slot_device");
SP_ASSERT_OFFSET(sp_slot_copies, to_device_bytes, 0);
SP_ASSERT_OFFSET(sp_slot_copies, to_host_bytes, 8);
SP_ASSERT_OFFSET(sp_slot_copies, to_device_count, 16);
SP_ASSERT_OFFSET(sp_slot_copies, to_host_count, 24);
_Static_assert(sizeof(struct sp_slot_copies) == 64, "ABI 1: sp_slot_copies");
SP_ASSERT_OFFSET(sp_slots_header, claimed, 0);
_Static_assert(sizeof(struct sp_slots_header) == SP_SLOTS_MAX, "ABI 1: sp_slots_header");
SP_ASSERT_OFFSET(sp_slot, index, 0);
SP_ASSERT_OFFSET(sp_slot, pid, 4);
SP_ASSERT_OFFSET(sp_slot, claimed_ns, 8);
SP_ASSERT_OFFSET(sp_slot, diagnostics, 16);
SP_ASSERT_OFFSET(sp_slot, devices, 64);
SP_ASSERT_OFFSET(sp_slot, copies, 2112);
_Static_assert(sizeof(struct sp_slot) == 64 + (128 + 64) * SP_DEVICES_MAX, "ABI 1: sp_slot");

#define SP_TERMS_BYTES (sizeof(struct sp_header) + sizeof(struct sp_grant) * SP_DEVICES_MAX)
#define SP_SLOTS_BYTES (sizeof(struct sp_slots_header) + sizeof(struct sp_slot) * SP_SLOTS_MAX)

uint64_t sp_now_ns(void); /* CLOCK_MONOTONIC; after sp_clock_agree, the agent's */
/* Adopt the agent's clock, which showed about `heartbeat_ns` at its last heartbeat (0: there was none). */
void sp_clock_agree(uint64_t heartbeat_ns);
/* 0 if this code can serve the header, else -EPROTO. There is only ABI 1. From ABI 2 on the agent also serves the ABI
 * before, because programs outlive an upgrade of the agent; a hook knows only its own. */
int sp_header_check(const struct sp_header *header);

/* ---- both sides: mappings that outlive their file's pages, guard.c ---- */

/* Any process that may write a file may truncate it, and then an access to a mapping of it raises SIGBUS. A guarded
 * mapping gets other pages instead: its `spare`, or zeros. No other process sees these pages: the region is lost. */
struct sp_guard {
  void *start[2];
  size_t bytes[2]; /* 0: there is no such mapping */
  void *spare;     /* pages for start[0], prepared; NULL: zeros */
  uint32_t lost;   /* 1: being replaced, 2: replaced */
};
/* Guard the mappings; the struct must not move until it is dropped. Installs the handler unless the program has its own
 * for SIGBUS. False: there is no room, and nothing is guarded. */
bool sp_guard_add(struct sp_guard *guard);
/* End the guard. The mappings stay. */
void sp_guard_drop(struct sp_guard *guard);

/* ---- the tenant's side: no allocation, no locale, errno untouched ---- */

struct sp_region {
  const struct sp_header *header; /* read-only mapping of `terms` */
  const struct sp_grant *grants;
  struct sp_slots_header *claims; /* shared mapping of `slots` */
  struct sp_slot *slots;
  struct sp_slot *slot; /* our own */
  int slots_fd;         /* holds the record lock: never closed while the slot is ours */
  int doorbell_fd;
  uint64_t doorbell_file; /* identifies the doorbell: the program may close our descriptor and get its number for
                             another file */
  int32_t pid;            /* the process that claimed the slot: a forked child has a copy of this struct, but no slot */
  struct {                /* this process's memory account, from which a wiped slot is restored */
    uint64_t memory_bytes, context_bytes;
  } charged[SP_DEVICES_MAX];
  uint32_t slot_index;
  char directory[256];
  struct sp_guard guard;
};

/* region/attach.c. Map the files in `directory` and claim a slot. 0, or -errno: -ENOENT no region, -EPROTO another ABI,
 * -EUSERS no free slot (which the agent is told), -EPIPE the doorbell is no FIFO. */
int sp_region_attach(struct sp_region *region, const char *directory);
/* Take the slot's record lock again (some programs close every descriptor), and claim a wiped slot again. 0 or -errno;
 * -ESRCH: this is a forked child, which has no slot. */
int sp_region_relock(struct sp_region *region);
/* Tell the agent to look at our slots. */
void sp_region_ring(struct sp_region *region);

/* region/look.c. Copy the files in the directory `path`, for a process that asks about its share without using a
 * device. No slot is claimed, and the agent does not notice. 0 or -errno as above; `slot` is NULL and there are no
 * descriptors. */
int sp_region_look(struct sp_region *region, const char *path);
/* Free the copies of a look that has succeeded. */
void sp_region_unlook(struct sp_region *region);

/* region.c, from here on. Is the slot in use? */
bool sp_slot_claimed(const struct sp_slots_header *claims, uint32_t slot); /* acquire */
/* Claim the slot. The caller has its record lock and has written its head. */
void sp_slot_claim(struct sp_slots_header *claims, uint32_t slot); /* release */
/* Does a process with this pid, in its own pid namespace, have a claimed slot? */
bool sp_region_has_pid(const struct sp_region *region, int32_t pid);

uint32_t sp_grant_word(const struct sp_grant *grant); /* acquire */
uint32_t sp_grant_flags(const struct sp_grant *grant);
uint64_t sp_grant_budget_ns(const struct sp_grant *grant);
uint64_t sp_grant_lookahead_ns(const struct sp_grant *grant);
/* Sleep until the word is no longer `word`, a wake-up, or `timeout_ns`. */
void sp_grant_wait(const struct sp_grant *grant, uint32_t word, uint64_t timeout_ns);
/* As above, and until *local is no longer `value`. Before Linux 5.16 it returns after 500 µs at the latest. */
void sp_grant_wait_or(const struct sp_grant *grant, uint32_t word, const uint32_t *local, uint32_t value,
                      uint64_t timeout_ns);
uint64_t sp_header_heartbeat_ns(const struct sp_header *header);

/* Report a diagnostic to the agent; a later one of the same kind replaces it. Does nothing if another process has the
 * slot.
 */
void sp_region_diagnose(struct sp_region *region, enum sp_diagnostic_kind kind, uint32_t detail);
/* The `detail` of a diagnostic about a driver's function: a hash of its name (FNV-1a). */
static inline uint32_t sp_name_hash(const char *name) {
  uint32_t hash = 2166136261u;
  while (*name)
    hash = (hash ^ (unsigned char)*name++) * 16777619u;
  return hash;
}

/* A count of waiting threads beyond this is damage. */
#define SP_WAITING_MAX (1u << 20)
/* A thread counts itself while it waits at the closed gate. */
void sp_slot_wait_begin(struct sp_slot_device *slot);
/* Repair the count while the calling thread still waits. True: it was damaged, and this thread has repaired it. */
bool sp_slot_wait_again(struct sp_slot_device *slot);
void sp_slot_wait_end(struct sp_slot_device *slot);

/* What a process publishes about its turn. The caller holds the process's turn lock for the device. */
struct sp_report {
  uint32_t held_turn;
  uint32_t drained_turn;
  uint64_t drained_ns;
  uint64_t entered_ns;
  uint64_t residue_until_ns;
  uint64_t idle_ns;
  uint64_t launches;
  uint32_t passed;
  uint32_t longest_unit_us;
};
void sp_slot_publish(struct sp_slot_device *slot, const struct sp_report *report);
/* The check word of a report: a torn copy does not match it. */
uint32_t sp_slot_check(const uint64_t words[7]);
/* Enter the turn report->held_turn: publish the report, then a full fence. 1: the word still names that turn, and work
 * may be launched; 0: the turn has ended. */
int sp_slot_enter(struct sp_slot_device *slot, const struct sp_report *report, const struct sp_grant *grant);
/* Count `count` copies of `bytes` in all. Any thread may call this; the two counters need not change together. */
void sp_slot_copied_to_device(struct sp_slot_copies *slot, uint64_t bytes, uint64_t count);
void sp_slot_copied_to_host(struct sp_slot_copies *slot, uint64_t bytes, uint64_t count);
/* Add to memory_used_bytes if the share's total stays within `limit_bytes` (0: no cap). 0: added; -1: over the cap, and
 * nothing has changed. */
int sp_region_memory_try(struct sp_region *region, uint32_t device, uint64_t bytes, uint64_t limit_bytes);
/* Subtract from memory_used_bytes. A negative number, in two's complement, adds to it, whatever the cap says. */
void sp_region_memory_sub(struct sp_region *region, uint32_t device, uint64_t bytes);
/* Add to context_bytes what is now reserved for contexts; negative: that much is no longer reserved. */
void sp_region_context_add(struct sp_region *region, uint32_t device, int64_t bytes);
/* Memory used by all processes of the share, including the overhead that the agent has found. */
uint64_t sp_region_memory_used(const struct sp_region *region, uint32_t device);
/* The same figure as programs are shown it: as if each context took at least what was reserved for it. What it does not
 * take can be allocated, but is not shown as free: a program that measures an allocation by the free memory would be
 * misled if free memory grew without a free. */
uint64_t sp_region_memory_shown(const struct sp_region *region, uint32_t device);

/* ---- the agent's side; the files are made in region/files.c, the slots read in region/slots.c ---- */

struct sp_region_owner {
  struct sp_header *header; /* writable mapping of `terms` */
  struct sp_grant *grants;
  int slots_fd;
  int doorbell_fd; /* read end, non-blocking */
  struct sp_guard guard;
};

/* Create the three files in `directory`, or open those that are there with the same ABI and device count (adoption).
 * Returns 1 when adopted, 0 when created, -errno. */
int sp_region_create(struct sp_region_owner *owner, const char *directory, uint32_t grant_count);
void sp_region_close(struct sp_region_owner *owner);
/* 0 if the files in `directory` are a region that a hook of this ABI can use; -ENOENT if it is gone, -EPROTO if it has
 * another ABI or is damaged, -EPIPE if its doorbell is missing or no FIFO; else -errno. */
int sp_region_error(const char *directory);
/* Set heartbeat_ns: the agent is alive at `now_ns`; 0: the gates open, unless paused. */
void sp_region_heartbeat(struct sp_region_owner *owner, uint64_t now_ns);

/* Open: set the next odd word. Close: set the next even one, then a full fence. Both return the new word. Waiters
 * notice it, or a change of flags or budget, only after sp_grant_wake. */
uint32_t sp_grant_open(struct sp_grant *grant, uint64_t budget_ns, uint64_t lookahead_ns, uint32_t flags,
                       uint64_t now_ns);
uint32_t sp_grant_close(struct sp_grant *grant, uint32_t flags);
/* Restore a damaged word. */
void sp_grant_mend(struct sp_grant *grant, uint32_t word);
/* Change what an open turn allows. */
void sp_grant_set(struct sp_grant *grant, uint64_t budget_ns, uint64_t lookahead_ns, uint32_t flags);
void sp_grant_wake(struct sp_grant *grant);
/* Keep the bill, for the next agent. */
void sp_grant_account(struct sp_grant *grant, uint64_t used_ns);
/* Tell the processes what the agent has learned from NVML: see the fields. */
void sp_grant_overhead(struct sp_grant *grant, uint64_t context_bytes, int64_t overhead_bytes, uint64_t spare_bytes);
uint64_t sp_grant_spare_bytes(const struct sp_grant *grant); /* as it was set last, rounded to SP_PAGE_BYTES */

/* Read what slot `slot` reports of device `device`. 0; 1: torn (a writer died, writes, or lies); -errno. */
int sp_slot_read(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_device *out);
/* Read what the process in `slot` has copied from and to device `device`. 0 or -errno. */
int sp_slot_copies(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_copies *out);
/* The head of the slots and, in the same read, the report of slot 0 on device 0: most shares have no other. */
struct sp_slots_look {
  uint64_t claimed;            /* a bit per slot */
  bool whole;                  /* `first` was not torn */
  struct sp_slot_device first; /* the report of slot 0 on device 0 */
};
/* Fill `look`. 0; -errno: nothing was read, and `claimed` is 0. */
int sp_slots_look(const struct sp_region_owner *owner, struct sp_slots_look *look);
/* The pid, in the agent's namespace, of the process that holds the record lock of `slot`; 0: none is known. */
int32_t sp_slot_owner(const struct sp_region_owner *owner, uint32_t slot);
/* Read the diagnostics of the process in `slot`, SP_DIAGNOSTIC_KINDS words. 0 or -errno. */
int sp_slot_diagnostics(const struct sp_region_owner *owner, uint32_t slot, uint32_t diagnostics[]);
/* Restore the file's length, and the claims of the slots in the mask `live`. */
void sp_slots_mend(const struct sp_region_owner *owner, uint64_t live);
/* Clear the slot of a process that is gone. 0, or -EIO: it stays claimed. */
int sp_slot_clear(const struct sp_region_owner *owner, uint32_t slot);
/* Read everything from the doorbell. Returns a mask of the slots that claim to have rung it: a hint, for a tenant may
 * lie. *full: a process claims that it found no free slot. Adds the number of rings to *rings. */
uint64_t sp_doorbell_drain(const struct sp_region_owner *owner, bool *full, uint64_t *rings);

#endif
