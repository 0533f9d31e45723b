/*
 * Runs the gate's waits in virtual time. wait.c is the hook's own; a sleep ends at its timeout, or at the time at which
 * a test lets the next marker finish or the grant change.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long called(long number, ...);
#define syscall called
#include "hook/gate/wait.c"
#undef syscall
#include "tests/support/hook/c/field.h"

struct sp_this_process sp_this_process;
int rings, begun, ended, again, started, marked, published, sleeps;
static struct sp_grant grant;
static struct sp_slot_device slot;
static struct sp_stream_state state;
static struct sp_thread thread;
/* Each test begins later than the one before: wait.c remembers when a heartbeat last moved. */
static int64_t begins_ns, now_ns, heartbeat_ns, finishes_ns, opens_ns;
static uint32_t opens_word, enters_word, next_word;
static bool beats, refuses, wakes_again;

static struct sp_device *device_of(void) {
  return &sp_this_process.devices[0];
}

/* Let time pass until then. */
static void pass(int64_t until_ns) {
  now_ns = now_ns > until_ns ? now_ns : until_ns;
}

static long called(long number, ...) {
  (void)number;
  va_list list;
  va_start(list, number);
  const uint32_t *word = va_arg(list, const uint32_t *);
  int operation = va_arg(list, int);
  uint32_t value = va_arg(list, uint32_t);
  const struct timespec *span = va_arg(list, const struct timespec *);
  va_end(list);
  int64_t until_ns = now_ns + span->tv_sec * 1000000000 + span->tv_nsec;
  if (operation != FUTEX_WAIT_PRIVATE || *word != value)
    return 0;
  sleeps++;
  if (finishes_ns && finishes_ns <= until_ns) {
    pass(finishes_ns);
    device_of()->progress++;
  } else {
    pass(until_ns);
  }
  return 0;
}

/* ---- what a wait asks the rest of the hook ---- */

void sp_grant_wait(const struct sp_grant *of, uint32_t word, uint64_t timeout_ns) {
  (void)of;
  int64_t before_ns = now_ns, until_ns = now_ns + (int64_t)timeout_ns;
  sleeps++;
  if (opens_ns && opens_ns <= until_ns && word != opens_word) {
    pass(opens_ns);
    grant.word = opens_word;
  } else {
    pass(until_ns);
  }
  if (beats)
    heartbeat_ns += now_ns - before_ns;
}

uint32_t sp_grant_word(const struct sp_grant *of) {
  return of->word;
}

uint32_t sp_grant_flags(const struct sp_grant *of) {
  return of->flags;
}

uint64_t sp_grant_budget_ns(const struct sp_grant *of) {
  return of->budget_ns;
}

uint64_t sp_header_heartbeat_ns(const struct sp_header *header) {
  (void)header;
  return (uint64_t)heartbeat_ns;
}

uint64_t sp_now_ns(void) {
  return (uint64_t)now_ns;
}

void sp_slot_wait_begin(struct sp_slot_device *of) {
  (void)of;
  begun++;
}

void sp_slot_wait_end(struct sp_slot_device *of) {
  (void)of;
  ended++;
}

bool sp_slot_wait_again(struct sp_slot_device *of) {
  (void)of;
  again++;
  return wakes_again;
}

void sp_region_ring(struct sp_region *region) {
  (void)region;
  rings++;
}

void sp_stream_start(struct sp_stream_state *of) {
  started++;
  device_of()->start_state = of;
  if (enters_word) /* another thread enters meanwhile */
    device_of()->entered = enters_word;
  if (next_word) /* the turn ends meanwhile, and another one is granted */
    grant.word = next_word;
}

bool sp_stream_mark(struct sp_stream_state *of, bool launching, bool edged) {
  (void)of;
  marked += launching && !edged;
  return true;
}

void sp_slot_publish(struct sp_slot_device *of, const struct sp_report *report) {
  (void)of, (void)report;
  published++;
}

int sp_slot_enter(struct sp_slot_device *of, const struct sp_report *report, const struct sp_grant *granted) {
  (void)of;
  return !refuses && granted->word == report->held_turn;
}

/* ---- what a test does; times are since the beginning ---- */

void lab_begin(void) {
  sp_this_process = (struct sp_this_process){.attached = 1, .device_count = 1, .single_device = 1};
  *device_of() = (struct sp_device){.grant = &grant, .slot = &slot, .bit = 1, .keeper = SP_KEEPER_RUNS};
  grant = (struct sp_grant){.word = 2, .budget_ns = 4000000};
  state = (struct sp_stream_state){.device = device_of()};
  thread = (struct sp_thread){.device = device_of()};
  rings = begun = ended = again = started = marked = published = sleeps = 0;
  begins_ns += 1000000000000;
  now_ns = heartbeat_ns = begins_ns;
  finishes_ns = opens_ns = 0;
  opens_word = enters_word = next_word = 0;
  beats = refuses = wakes_again = false;
}

int64_t lab_began(void) {
  return begins_ns;
}

int64_t lab_now(void) {
  return now_ns - begins_ns;
}

void lab_sleep(int64_t ns) {
  pass(now_ns + ns);
}

/* The next marker finishes at that time. */
void lab_finishes(int64_t ns) {
  finishes_ns = begins_ns + ns;
}

/* The arbiter grants this turn at that time. */
void lab_opens(int64_t ns, uint32_t word) {
  opens_ns = begins_ns + ns;
  opens_word = word;
}

/* The agent's heartbeat is now this old by its clock, and goes on or does not. */
void lab_heartbeat(int64_t old_ns, bool goes_on) {
  heartbeat_ns = now_ns - old_ns;
  beats = goes_on;
}

/* The agent has stopped as planned. */
void lab_stopped(void) {
  heartbeat_ns = 0;
}

void lab_in_flight(int64_t ns) {
  device_of()->marked_ns = device_of()->completed_ns + (uint64_t)ns;
  device_of()->began_ns = (uint64_t)now_ns;
}

int64_t lab_progress(int64_t predicted_ns) {
  return sp_wait_progress(device_of(), &thread, &state, (uint64_t)predicted_ns);
}

void lab_gave_up(void) {
  sp_wait_gave_up(device_of(), &thread);
}

/* Wait for a turn: 1: the launch passes; 2: the turn was entered; 0: look again. */
int64_t lab_turn(void) {
  bool entered = false;
  bool passes = sp_wait_turn(device_of(), &thread, &state, &entered);
  return passes ? 1 : entered ? 2 : 0;
}

FIELD(aside, device_of()->aside)
FIELD(back_ns, device_of()->back_ns)
FIELD(began_ns, device_of()->began_ns)
FIELD(budget_ns, grant.budget_ns)
FIELD(drained_turn, device_of()->report.drained_turn)
FIELD(entered, device_of()->entered)
FIELD(entered_ns, device_of()->report.entered_ns)
FIELD(enters_word, enters_word)
FIELD(entry_ns, device_of()->entry_ns)
FIELD(eta_published, device_of()->eta_published)
FIELD(flags, grant.flags)
FIELD(fresh_ns, device_of()->fresh_ns)
FIELD(gate_waiters, device_of()->gate_waiters)
FIELD(held_turn, device_of()->report.held_turn)
FIELD(idle_ns, device_of()->report.idle_ns)
FIELD(next_word, next_word)
FIELD(passed, device_of()->passed)
FIELD(pending_ns, state.pending_ns)
FIELD(refuses, refuses)
FIELD(residue_until_ns, device_of()->report.residue_until_ns)
FIELD(starved_ns, device_of()->starved_ns)
FIELD(stood_ns, thread.stood_ns)
FIELD(wakes_again, wakes_again)
FIELD(word, grant.word)
/* 1: this launch's start event tells when the turn's work began; 0: none does */
int64_t lab_get_start(void) {
  return device_of()->start_state == &state;
}
