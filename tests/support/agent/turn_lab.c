/*
 * Runs the turns of a device in virtual time: step.c, turn.c, slots.c, pressure.c and what they call. Each share has
 * one process, which tests/virtual/agent/test_turns.py plays through ctypes. Shares are numbered from 0.
 */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "valid_node.h"

#define SHARES 6

static struct sp_arbiter arbiter;
static struct sp_turn turns[SP_TURNS_KEPT];
static struct {
  struct sp_share *share;
  struct sp_grant grant;
  struct sp_slot_device said;
  int cut;          /* what a look at the share's file returns */
  uint64_t claimed; /* the claimed slots, a bit each */
  int torn;         /* what a read of the slot returns */
  int parks;        /* the share gives its turn back while the arbiter writes its grant */
} played[SHARES];
static int count;
static uint64_t clock_ns;

/* ---- stand-ins for the rest of the agent */

uint64_t __wrap_sp_now_ns(void) {
  return clock_ns;
}
static int number_of(const struct sp_region_owner *owner) {
  int number = 0;
  while (&played[number].share->region != owner)
    number++;
  return number;
}
int sp_slot_read(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_device *out) {
  *out = played[number_of(owner)].said;
  return played[number_of(owner)].torn;
}
int sp_slots_look(const struct sp_region_owner *owner, struct sp_slots_look *look) {
  int number = number_of(owner);
  *look = (struct sp_slots_look){
      .claimed = played[number].claimed, .whole = !played[number].torn, .first = played[number].said};
  return played[number].cut;
}
int sp_slot_copies(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_copies *out) {
  *out = (struct sp_slot_copies){0};
  return 0;
}
void sp_diagnostics_take(struct sp_share *share, uint32_t slot) {}
void sp_identity_ask(struct sp_arbiter *of, struct sp_share *share, uint64_t asked_ns) {}
void sp_identity_clear(struct sp_arbiter *of, struct sp_share *share) {
  for (int number = 0; number < count; number++)
    if (played[number].share == share)
      played[number].claimed &= ~share->gone;
  share->gone = 0;
}

static void drain(int number, uint64_t drained_ns) {
  played[number].said.drained_turn = played[number].said.held_turn;
  played[number].said.drained_ns = played[number].said.residue_until_ns = drained_ns;
}
void __real_sp_grant_set(struct sp_grant *grant, uint64_t budget_ns, uint64_t lookahead_ns, uint32_t flags);
void __wrap_sp_grant_set(struct sp_grant *grant, uint64_t budget_ns, uint64_t lookahead_ns, uint32_t flags) {
  for (int number = 0; number < count; number++)
    if (grant == &played[number].grant && played[number].parks)
      drain(number, clock_ns);
  __real_sp_grant_set(grant, budget_ns, lookahead_ns, flags);
}

/* What holds after every event does not: the test's process ends here. */
static void check(void) {
  const char *broken = broken_node(&arbiter, true);
  if (broken) {
    fprintf(stderr, "it does not hold that %s\n", broken);
    abort();
  }
}

/* ---- what tests do */

void lab_begin(uint64_t now_ns) {
  for (int number = 0; number < count; number++)
    free(played[number].share);
  memset(played, 0, sizeof played);
  memset(&arbiter, 0, sizeof arbiter);
  count = 0;
  clock_ns = now_ns;
  arbiter.turns = turns;
  arbiter.device_count = 1;
  arbiter.devices[0].retry_ns = UINT64_MAX;
  arbiter.devices[0].billed_until_ns = now_ns;
  sp_lead_init_device(&arbiter.devices[0]);
  sp_policy_init(&arbiter.devices[0].policy);
}

/* Adds a share; `word` is the word of the grant that the arbiter finds it with. */
int lab_add(uint32_t request, uint32_t limit, uint32_t share_class, uint32_t word) {
  struct sp_share *share = calloc(1, sizeof *share + sizeof *share->members);
  struct sp_member *member = &share->members[0];
  struct sp_node_device *device = &arbiter.devices[0];
  share->claimed = share->watched = played[count].claimed = 1;
  share->tenants[0].pidfd = -1;
  share->handle = count;
  share->member_count = 1;
  played[count].share = arbiter.shares[count] = share;
  *member = (struct sp_member){.device = device, .grant = &played[count].grant};
  member->terms = (struct sp_terms){
      .request_millipercent = request, .limit_millipercent = limit, .share_class = (enum sp_class)share_class};
  sp_lead_init_member(member);
  member->policy = sp_policy_add(&device->policy, request, limit, (enum sp_class)share_class, clock_ns);
  device->members[member->policy] = member;
  played[count].grant.word = word;
  sp_gang_init(share);
  if (word & 1)
    sp_turn_adopt(member, clock_ns);
  return count++;
}

/* The share rings; then the arbiter does all that is due now. Returns when the next thing is due. */
uint64_t lab_ring(int number, uint64_t now_ns) {
  clock_ns = now_ns;
  if (number >= 0) {
    sp_slots_mark_responsive(played[number].share, 1);
    sp_slots_watch(&arbiter, played[number].share, now_ns);
    sp_step_share(&arbiter, played[number].share, now_ns);
  }
  uint64_t due_ns = sp_step_due(&arbiter, now_ns);
  arbiter.wake_count = 0;
  check();
  return due_ns;
}

/* The share's process has seen a word of its grant: it enters that turn, or has drained the turn that it held. */
void lab_enter(int number, uint64_t now_ns) {
  struct sp_slot_device *said = &played[number].said;
  said->waiting = 0;
  said->held_turn = played[number].grant.word;
  if (said->drained_turn == said->held_turn)
    said->drained_turn = 0;
  said->entered_ns = now_ns;
  said->idle_ns = said->residue_until_ns = 0;
}
void lab_drain(int number, uint64_t drained_ns) {
  drain(number, drained_ns);
}
void lab_pause(int number, int paused, uint64_t now_ns) {
  played[number].share->paused = paused;
  sp_gang_pause(&arbiter, played[number].share->gang, now_ns);
  check();
}
void lab_die(int number, uint64_t now_ns) {
  clock_ns = now_ns;
  sp_slots_died(&arbiter, played[number].share, 0, now_ns);
  check();
}

#define SAID(X)                                                                                                        \
  X(waiting)                                                                                                           \
  X(waiting_since_ns)                                                                                                  \
  X(memory_used_bytes)                                                                                                 \
  X(first_ended_ns)                                                                                                    \
  X(context_bytes)                                                                                                     \
  X(refusals)                                                                                                          \
  X(beside_ns)                                                                                                         \
  X(beside_until_us)                                                                                                   \
  X(sequence)                                                                                                          \
  X(residue_until_ns)                                                                                                  \
  X(idle_ns)                                                                                                           \
  X(launches)                                                                                                          \
  X(passed)                                                                                                            \
  X(longest_unit_us)                                                                                                   \
  X(drained_ns)                                                                                                        \
  X(entered_ns)
void lab_say(int number, const char *field, uint64_t value) {
#define SET(name)                                                                                                      \
  if (!strcmp(field, #name))                                                                                           \
    played[number].said.name = (__typeof__(played[number].said.name))value;
  SAID(SET)
  if (!strcmp(field, "torn"))
    played[number].torn = (int)value;
  if (!strcmp(field, "claimed"))
    played[number].claimed = value;
  if (!strcmp(field, "cut"))
    played[number].cut = (int)value;
  if (!strcmp(field, "parks"))
    played[number].parks = (int)value;
}

uint64_t lab_read(int number, const char *field) {
  const struct sp_member *member = &played[number].share->members[0];
  const struct sp_grant *grant = &played[number].grant;
  const struct sp_usage *usage = &member->usage;
  const struct {
    const char *name;
    uint64_t value;
  } told[] = {
#define FIELD(of, name) {#name, (uint64_t)(of)->name}
      FIELD(grant, word),          FIELD(grant, flags),
      FIELD(grant, budget_ns),     FIELD(grant, lookahead_ns),
      FIELD(member, holding),      FIELD(member, draining),
      FIELD(member, cogranted),    FIELD(member, late),
      FIELD(member, overdue),      FIELD(member, granted_ns),
      FIELD(member, deadline_ns),  FIELD(member, bound_ns),
      FIELD(member, requested_ns), FIELD(member, reason),
      FIELD(usage, used_ns),       FIELD(usage, charged_ns),
      FIELD(usage, waited_ns),     FIELD(usage, overrun_ns),
      FIELD(usage, turns),         FIELD(usage, launches),
      FIELD(usage, passed),        FIELD(usage, faults),
      FIELD(usage, cogrants),      FIELD(usage, memory_used_bytes),
      FIELD(usage, beside_ns),     FIELD(usage, memory_refusals),
      FIELD(usage, processes),     {"valid", !broken_node(&arbiter, true)},
  };
  for (size_t index = 0; index < sizeof told / sizeof *told; index++)
    if (!strcmp(field, told[index].name))
      return told[index].value;
  abort();
}
