/* The accessors of a region, the shared-memory files of one share; region.h has the layout and the protocol of turns.
 * For each device of the share the agent writes a grant, of which `word` is the turn: odd = open, even = closed. Each
 * process of the share (the tenant) writes a slot of its own, with a part for each device. Every memory order that the
 * protocol needs is named here. */
#define _GNU_SOURCE
#include "region/region.h"
#include "region/order.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FAKED_NS 1000000u /* clock_gettime is faked if it differs by more than this from the kernel's clock */

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* the same number on every architecture since Linux 5.16 */
#endif

/* ---- the clock ---- */

/* This process's clock less the agent's. It is 0, unless the two are in different time namespaces. */
static int64_t ahead_ns;
static bool by_call; /* clock_gettime is not the kernel's, as under libfaketime: the kernel is asked by a system call */

static uint64_t ns_of(const struct timespec *time) {
  return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

/* CLOCK_MONOTONIC, asked of the kernel by a system call, because a library may have replaced clock_gettime. */
static uint64_t called_ns(void) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return ns_of(&now);
}

/* This process's own time, on the clock of the kernel's timeouts. It may differ from the agent's: see sp_now_ns. */
static uint64_t own_now_ns(void) {
  struct timespec now;
  if (__builtin_expect(sp_load(&by_call), 0))
    return called_ns();
  clock_gettime(CLOCK_MONOTONIC, &now);
  return ns_of(&now);
}

/* The time in ns on the agent's CLOCK_MONOTONIC, on which all times in a region are. Before sp_clock_agree, and in the
 * agent, it is the process's own. */
uint64_t sp_now_ns(void) {
  return own_now_ns() - (uint64_t)sp_load(&ahead_ns);
}

/* By how many ns this process's time namespace moves the clock; 0 without a namespace, or if the kernel has none. The
 * file has a line "monotonic SECONDS NANOSECONDS". */
static int64_t namespace_ns(void) {
  char text[256], *at;
  int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
  ssize_t bytes = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
  if (fd >= 0)
    close(fd);
  text[bytes < 0 ? 0 : bytes] = 0;
  at = strstr(text, "monotonic");
  if (!at)
    return 0;
  int64_t seconds = strtoll(at + strlen("monotonic"), &at, 10);
  return seconds * 1000000000 + strtoll(at, NULL, 10);
}

/* The distance of two times. */
static uint64_t apart(uint64_t one, uint64_t other) {
  return one > other ? one - other : other - one;
}

/* Decide how sp_now_ns tells the time; called when a process attaches. It finds out whether a library fakes
 * clock_gettime, and whether our clock differs from the agent's by the offset of our time namespace. It differs if the
 * agent's last heartbeat (0: there was none) is nearer to our clock without this offset than with it. */
void sp_clock_agree(uint64_t heartbeat_ns) {
  uint64_t before_ns = called_ns();
  struct timespec told = {0};
  clock_gettime(CLOCK_MONOTONIC, &told);
  uint64_t after_ns = called_ns();
  bool faked = ns_of(&told) + FAKED_NS < before_ns || ns_of(&told) > after_ns + FAKED_NS;
  int64_t moved_ns = namespace_ns();
  bool agrees = apart(after_ns - (uint64_t)moved_ns, heartbeat_ns) < apart(after_ns, heartbeat_ns);
  sp_store(&by_call, faked);
  /* If the heartbeat does not agree, the agent is in the same namespace, or gone. */
  sp_store(&ahead_ns, heartbeat_ns && agrees ? moved_ns : 0);
}

/* The system call itself. For FUTEX_WAIT_BITSET `timeout` is a time of CLOCK_MONOTONIC, and not a span; for FUTEX_WAKE
 * `value` is how many threads to wake. */
static long futex(const uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, NULL, FUTEX_BITSET_MATCH_ANY);
}

static struct timespec timespec_of(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* Can this code serve a region with this header? 0 if the ABI and all sizes are its own; else -EPROTO. */
int sp_header_check(const struct sp_header *header) {
  if (header->magic != SP_MAGIC || header->abi != SP_ABI)
    return -EPROTO;
  if (header->header_size != sizeof(struct sp_header) || header->grant_size != sizeof(struct sp_grant))
    return -EPROTO;
  if (header->slot_size != sizeof(struct sp_slot) || header->slot_count != SP_SLOTS_MAX)
    return -EPROTO;
  if (header->grant_count == 0 || header->grant_count > SP_DEVICES_MAX)
    return -EPROTO;
  return 0;
}

/* ---- the tenant's side ---- */

/* Is the slot (0 to SP_SLOTS_MAX - 1) in use? If so, its head can be read: the acquire pairs with sp_slot_claim. */
bool sp_slot_claimed(const struct sp_slots_header *claims, uint32_t slot) {
  return sp_load_acquire(&claims->claimed[slot]);
}

/* Mark the slot as in use. The caller holds the slot's record lock and has written its pid. */
void sp_slot_claim(struct sp_slots_header *claims, uint32_t slot) {
  sp_store_release(&claims->claimed[slot], 1); /* pairs with the pread in sp_slots_look */
}

/* Does a process with this pid, a number of its own pid namespace, have a slot? NVML's lists are reduced by it. */
bool sp_region_has_pid(const struct sp_region *region, int32_t pid) {
  for (uint32_t index = 0; index < SP_SLOTS_MAX; index++)
    if (sp_slot_claimed(region->claims, index) && sp_load(&region->slots[index].pid) == pid)
      return true;
  return false;
}

/* The turn: odd = open, even = closed. The acquire pairs with sp_grant_open: what is read of the grant after this is at
 * least as new as the word. */
uint32_t sp_grant_word(const struct sp_grant *grant) {
  return sp_load_acquire(&grant->word);
}
/* What the agent says beside the turn: SP_GRANT_*. It may change while the turn is open. */
uint32_t sp_grant_flags(const struct sp_grant *grant) {
  return sp_load(&grant->flags);
}
/* How much predicted work the process may have in flight under the turn. */
uint64_t sp_grant_budget_ns(const struct sp_grant *grant) {
  return sp_load(&grant->budget_ns);
}
/* Past the budget, a second unit may follow one in flight while both are predicted to end within this. */
uint64_t sp_grant_lookahead_ns(const struct sp_grant *grant) {
  return sp_load(&grant->lookahead_ns);
}
/* When the agent last said that it is alive; 0: it has stopped as planned, or the share is released. */
uint64_t sp_header_heartbeat_ns(const struct sp_header *header) {
  return sp_load(&header->heartbeat_ns);
}

/* Sleep while the grant's word is `word`, for at most `timeout_ns`. It may return early: the caller looks again. errno
 * stays. */
void sp_grant_wait(const struct sp_grant *grant, uint32_t word, uint64_t timeout_ns) {
  int saved = errno;
  struct timespec deadline = timespec_of(own_now_ns() + timeout_ns);
  futex(&grant->word, FUTEX_WAIT_BITSET, word, &deadline);
  errno = saved;
}

/* The kernel's struct futex_waitv, which older headers lack. */
struct waitv {
  uint64_t value;
  uint64_t address;
  uint32_t flags; /* FUTEX2_SIZE_U32 and FUTEX2_PRIVATE */
  uint32_t reserved;
};

#define ONE_WORD_NS 500000u /* the longest sleep where the kernel can wait for one word only */

/* Sleep while the grant's word is `word` and *local, a futex of this process alone, is `value`, for at most
 * `timeout_ns`. Where the kernel can wait for only one word at a time, that is `local`, and the sleep is at most
 * ONE_WORD_NS. It may return early: the caller looks again. errno stays. */
void sp_grant_wait_or(const struct sp_grant *grant, uint32_t word, const uint32_t *local, uint32_t value,
                      uint64_t timeout_ns) {
  enum { SIZE_U32 = 2, PRIVATE = 128 };
  static uint32_t waitv_missing; /* 1 after the kernel or a seccomp filter refused */
  int saved = errno;
  if (!sp_load_acquire(&waitv_missing)) {
    struct waitv waits[2] = {{.value = word, .address = (uint64_t)(uintptr_t)&grant->word, .flags = SIZE_U32},
                             {.value = value, .address = (uint64_t)(uintptr_t)local, .flags = SIZE_U32 | PRIVATE}};
    /* The kernel reads a 64-bit timespec here on every architecture. */
    struct {
      int64_t seconds, ns;
    } deadline;
    uint64_t at_ns = own_now_ns() + timeout_ns;
    deadline.seconds = (int64_t)(at_ns / 1000000000u);
    deadline.ns = (int64_t)(at_ns % 1000000000u);
    if (syscall(SYS_futex_waitv, waits, 2, 0, &deadline, CLOCK_MONOTONIC) < 0 && (errno == ENOSYS || errno == EPERM))
      sp_store_release(&waitv_missing, 1);
    else {
      errno = saved;
      return;
    }
  }
  if (timeout_ns > ONE_WORD_NS)
    timeout_ns = ONE_WORD_NS;
  if (sp_load_acquire(&grant->word) == word) {
    struct timespec deadline = timespec_of(own_now_ns() + timeout_ns);
    futex(local, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, value, &deadline);
  }
  errno = saved;
}

/* The calling thread is about to sleep at the closed gate: count it. The first one also notes since when. */
void sp_slot_wait_begin(struct sp_slot_device *slot) {
  if (sp_add_full(&slot->waiting, 1) == 0)
    sp_store(&slot->waiting_since_ns, sp_now_ns());
}

/* The calling thread, which has counted itself, has slept and still waits. So a count of 0, or of more than
 * SP_WAITING_MAX, is damage: set it to 1. True: this call has repaired it. */
bool sp_slot_wait_again(struct sp_slot_device *slot) {
  uint32_t waiting = sp_load(&slot->waiting);
  return (waiting == 0 || waiting > SP_WAITING_MAX) && sp_compare_exchange(&slot->waiting, &waiting, 1);
}

/* The calling thread waits no more. */
void sp_slot_wait_end(struct sp_slot_device *slot) {
  sp_sub_full(&slot->waiting, 1);
}

/* Write a diagnostic, with a number that its kind gives a meaning, into our slot. A later one of the same kind replaces
 * it. The caller then rings the doorbell, so that the agent reads it. */
void sp_region_diagnose(struct sp_region *region, enum sp_diagnostic_kind kind, uint32_t detail) {
  if (!region->slot || region->slot->pid != (int32_t)getpid() || detail == UINT32_MAX)
    return; /* the slot is not ours; or the detail plus one would be 0, which means that nothing has happened */
  sp_store(&region->slot->diagnostics[kind], detail + 1);
}

/* The check word of a report: a hash of its fields. `words`: the fields, packed as in sp_slot_publish. A reader packs
 * the fields of its copy in the same way: if the copy is torn, their hash differs from the copy's check word. */
uint32_t sp_slot_check(const uint64_t words[7]) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (int index = 0; index < 7; index++) {
    hash = (hash ^ words[index]) * 0x9ddfea08eb382d69u; /* CityHash's factor */
    hash ^= hash >> 29;
  }
  return (uint32_t)(hash >> 32);
}

/* Write the report and its check word into our slot. Meanwhile `sequence` is odd, which tells the agent that a writer
 * is at work. The caller holds the turn lock. */
void sp_slot_publish(struct sp_slot_device *slot, const struct sp_report *report) {
  const uint64_t words[7] = {(uint64_t)report->drained_turn << 32 | report->held_turn,
                             report->drained_ns,
                             report->entered_ns,
                             report->residue_until_ns,
                             report->idle_ns,
                             report->launches,
                             (uint64_t)report->longest_unit_us << 32 | report->passed};
  uint32_t sequence = slot->sequence; /* one writer at a time: the caller holds the turn lock */
  sp_store(&slot->sequence, sequence | 1u);
  sp_fence_release();
  sp_store(&slot->check, sp_slot_check(words)); /* pairs with sp_slot_read: a copy of old and new fields fails it */
  sp_store(&slot->held_turn, report->held_turn);
  sp_store(&slot->drained_turn, report->drained_turn);
  sp_store(&slot->drained_ns, report->drained_ns);
  sp_store(&slot->entered_ns, report->entered_ns);
  sp_store(&slot->residue_until_ns, report->residue_until_ns);
  sp_store(&slot->idle_ns, report->idle_ns);
  sp_store(&slot->launches, report->launches);
  sp_store(&slot->passed, report->passed);
  sp_store(&slot->longest_unit_us, report->longest_unit_us);
  sp_store_release(&slot->sequence, (sequence | 1u) + 1u);
}

/* Enter the turn report->held_turn: publish the report, then read the grant's word again. 1: it still names that turn,
 * so work may be launched. 0: the turn has been closed, and the caller withdraws its report. The caller holds the turn
 * lock. */
int sp_slot_enter(struct sp_slot_device *slot, const struct sp_report *report, const struct sp_grant *grant) {
  sp_slot_publish(slot, report);
  sp_fence(); /* pairs with the fence in sp_grant_close: one of the two sees the other */
  return sp_load_acquire(&grant->word) == report->held_turn;
}

/* Count `count` copies from host memory to the device, of `bytes` in all. Any thread may call it. */
void sp_slot_copied_to_device(struct sp_slot_copies *slot, uint64_t bytes, uint64_t count) {
  sp_add(&slot->to_device_bytes, bytes);
  sp_add(&slot->to_device_count, count);
}

/* Count `count` copies from the device to host memory, of `bytes` in all. Any thread may call it. */
void sp_slot_copied_to_host(struct sp_slot_copies *slot, uint64_t bytes, uint64_t count) {
  sp_add(&slot->to_host_bytes, bytes);
  sp_add(&slot->to_host_count, count);
}

typedef uint64_t __attribute__((may_alias, aligned(8))) eight_claims;

/* The memory that a slot reports on the device. If its account was overwritten while memory was charged, the account
 * falls below zero when that memory is freed. Then it counts as 0 until the process claims its slot again. */
static uint64_t memory_of(const struct sp_slot *slot, uint32_t device) {
  uint64_t bytes = sp_load(&slot->devices[device].memory_used_bytes);
  return bytes >> 63 ? 0 : bytes; /* bit 63: as a signed number it is negative */
}

/* The sum of the memory that the claimed slots report on the device. *overhead_bytes: what the processes take beyond
 * that, by the agent's last look at NVML; it may be negative. */
static uint64_t slots_memory(const struct sp_region *region, uint32_t device, int64_t *overhead_bytes) {
  uint64_t total = 0;
  for (uint32_t group = 0; group < SP_SLOTS_MAX; group += 8) {
    /* eight slots at a time: most shares have one process */
    uint64_t claimed = sp_load_acquire((const eight_claims *)(const void *)&region->claims->claimed[group]);
    for (uint32_t index = group; claimed; index++, claimed >>= 8)
      if (claimed & 0xff)
        total += memory_of(&region->slots[index], device);
  }
  *overhead_bytes = (int64_t)sp_load((const uint64_t *)&region->grants[device].overhead_bytes);
  return total;
}

/* How much of the device's memory the share's processes use, as the cap counts it: with the overhead, and at least
 * 0. */
uint64_t sp_region_memory_used(const struct sp_region *region, uint32_t device) {
  int64_t overhead_bytes; /* added in two's complement: a negative one is subtracted */
  uint64_t total = slots_memory(region, device, &overhead_bytes);
  return overhead_bytes < 0 && total < -(uint64_t)overhead_bytes ? 0 : total + (uint64_t)overhead_bytes;
}

/* The memory used, as programs are shown it: with what was reserved for contexts and is not taken by them. Without it
 * free memory would grow without a free, and mislead a program that measures an allocation by the free memory. */
uint64_t sp_region_memory_shown(const struct sp_region *region, uint32_t device) {
  int64_t overhead_bytes;
  uint64_t total = slots_memory(region, device, &overhead_bytes);
  int64_t taken_bytes = overhead_bytes + (int64_t)sp_grant_spare_bytes(&region->grants[device]);
  return taken_bytes < 0 ? total : total + (uint64_t)taken_bytes;
}

/* Charge the bytes to our slot if the share's total on the device stays within the cap, `limit_bytes`. 0: charged; -1:
 * over the cap, and nothing is charged. A cap of 0 is none. */
int sp_region_memory_try(struct sp_region *region, uint32_t device, uint64_t bytes, uint64_t limit_bytes) {
  uint64_t *used = &region->slot->devices[device].memory_used_bytes;
  /* What cannot fit is not added at all: another process that looks meanwhile would be refused memory that is free. */
  if (limit_bytes != 0 && (bytes > limit_bytes || sp_region_memory_used(region, device) > limit_bytes - bytes))
    return -1;
  /* Add first, then look. If two processes race, at least one sees the bytes of both, so the cap is never exceeded. At
   * worst both are refused although one would fit: so the caller tries twice. */
  sp_add_full(used, bytes);
  if (limit_bytes == 0 || sp_region_memory_used(region, device) <= limit_bytes) {
    sp_add(&region->charged[device].memory_bytes, bytes); /* for claim_again in attach.c */
    return 0;
  }
  sp_sub_full(used, bytes);
  return -1;
}

/* Lower our slot's charge by `bytes`. A negative number, in two's complement, raises it, whatever the cap says. */
void sp_region_memory_sub(struct sp_region *region, uint32_t device, uint64_t bytes) {
  sp_sub_full(&region->slot->devices[device].memory_used_bytes, bytes);
  sp_sub(&region->charged[device].memory_bytes, bytes);
}

/* Add `bytes` to the part of our slot's charge that is reserved for contexts; a negative number is subtracted. The
 * charge itself does not change here. */
void sp_region_context_add(struct sp_region *region, uint32_t device, int64_t bytes) {
  sp_add(&region->slot->devices[device].context_bytes, (uint64_t)bytes);
  sp_add(&region->charged[device].context_bytes, (uint64_t)bytes);
}

/* ---- the agent's side ---- */

/* Tell the processes that the agent is alive at `now_ns`; 0: it stops, and the gates open, unless paused. */
void sp_region_heartbeat(struct sp_region_owner *owner, uint64_t now_ns) {
  sp_store(&owner->header->heartbeat_ns, now_ns);
}

/* Wake all threads that sleep on the grant's word, so that they look at the grant again. */
void sp_grant_wake(struct sp_grant *grant) {
  futex(&grant->word, FUTEX_WAKE, INT_MAX, NULL);
}

/* Change what the turn allows. For the meaning see sp_grant_budget_ns, sp_grant_lookahead_ns and SP_GRANT_*. Threads
 * that sleep notice it only after sp_grant_wake. */
void sp_grant_set(struct sp_grant *grant, uint64_t budget_ns, uint64_t lookahead_ns, uint32_t flags) {
  sp_store(&grant->lookahead_ns, lookahead_ns);
  sp_store(&grant->budget_ns, budget_ns);
  sp_store_release(&grant->flags, flags);
}

/* The word was overwritten: write back `word`, the open turn that the agent remembers. */
void sp_grant_mend(struct sp_grant *grant, uint32_t word) {
  sp_store_release(&grant->word, word); /* pairs with sp_grant_word, like the store in sp_grant_open */
}

/* Keep the bill in the region: if this agent is killed, the next one continues from there. */
void sp_grant_account(struct sp_grant *grant, uint64_t used_ns) {
  sp_store(&grant->used_ns, used_ns);
}

/* Tell the processes what the agent has learned from NVML. `context_bytes`: how much memory a context takes on the
 * device; 0: not known. `overhead_bytes`: how much all processes of the share together take beyond what their slots
 * report. `spare_bytes`, rounded down to SP_PAGE_BYTES: how much some of them take less than was reserved for them. */
void sp_grant_overhead(struct sp_grant *grant, uint64_t context_bytes, int64_t overhead_bytes, uint64_t spare_bytes) {
  sp_store(&grant->context_bytes, context_bytes);
  /* Before the sum, which often falls by as much: what programs are shown should not be smaller meanwhile. */
  sp_store_release(&grant->spare_pages, (uint32_t)(spare_bytes / SP_PAGE_BYTES));
  sp_store((uint64_t *)&grant->overhead_bytes, (uint64_t)overhead_bytes);
}

/* How much of what was reserved for contexts the share's processes do not take, as sp_grant_overhead has set it. */
uint64_t sp_grant_spare_bytes(const struct sp_grant *grant) {
  return (uint64_t)sp_load_acquire(&grant->spare_pages) * SP_PAGE_BYTES;
}

/* Open the gate: set the next odd word and return it; `now_ns` is noted as the time. The turn allows what sp_grant_set
 * is told. Threads that sleep notice it only after sp_grant_wake. */
uint32_t sp_grant_open(struct sp_grant *grant, uint64_t budget_ns, uint64_t lookahead_ns, uint32_t flags,
                       uint64_t now_ns) {
  uint32_t word = grant->word | 1u; /* only the arbiter writes it */
  sp_grant_set(grant, budget_ns, lookahead_ns, flags);
  sp_store(&grant->granted_ns, now_ns);
  sp_store_release(&grant->word, word); /* pairs with sp_grant_word: budget and flags are there when the gate is open */
  return word;
}

/* Close the gate: set the next even word and return it. `flags`: SP_GRANT_PAUSED or 0. Slots that are read after this
 * show every process that has entered the turn. */
uint32_t sp_grant_close(struct sp_grant *grant, uint32_t flags) {
  uint32_t word = (grant->word | 1u) + 1u;
  if (word == 0)
    word = 2; /* 0 means "no turn" */
  sp_store_release(&grant->flags, flags);
  sp_store_release(&grant->word, word);
  sp_fence(); /* pairs with sp_slot_enter */
  return word;
}
