/*
 * Runs the keeper in virtual time. keeper.c and stand.c are the hook's own; the keeper's thread is a coroutine. A test
 * plays the launches, the markers and the grant, and reads a diary of all that the keeper does: how long it sleeps and
 * for what, what it marks, reports and rings.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "region/uncancelled.h"

static void slept(uint64_t ns);
static long called(long number, ...);
static int take_lock(pthread_mutex_t *lock);
static int leave_lock(pthread_mutex_t *lock);
static int try_lock(pthread_mutex_t *lock);
static int slack_ns;
static bool named; /* prctl is not called: else the test's own thread would be renamed */
#define sp_sleep_ns           slept
#define syscall               called
#define prctl(what, to)       ((what) == PR_SET_TIMERSLACK ? (slack_ns = (int)(intptr_t)(to)) : (named = true))
#define pthread_mutex_lock    take_lock
#define pthread_mutex_trylock try_lock
#define pthread_mutex_unlock  leave_lock
#include "hook/meter/keeper.c"
#undef sp_sleep_ns
#undef syscall
#include "tests/support/hook/c/field.h"

enum { STREAMS = 2, BEGAN_NS = 1000000000, PAGES = 256, TOO_OFTEN = 10000 };
enum act { IN_DRIVER, FOR_TIME, FOR_KICK, FOR_GRANT, RANG, TOLD, MARKED, SPINS };

struct sp_this_process sp_this_process;
int64_t diary[PAGES][3]; /* when, what, and a number */
int noted, relocks, lasts, progress_woken, questions, wakes;
int broken;       /* invariants that did not hold */
static int holds; /* how often turn_lock is held */
static struct sp_grant grant;
static struct sp_slot_device line;
static struct sp_slot slot; /* of no process, so that the destructor of keeper.c leaves it alone */
static struct sp_driver driver;
static struct sp_stream_state streams[STREAMS];
static ucontext_t test_side, keeper_side;
static char stack[256 * 1024];
static bool keeping, refuses, sparse, blocked_last, waited_last;
static enum act sleeping;
static int64_t now_ns, wakes_ns, inside_until_ns, locked_until_ns, starves_ns, ends_ns[STREAMS],
    over_ns[SP_MARKERS_MAX];
static uint64_t launched;
static int looks;

static struct sp_device *device_of(void) {
  return &sp_this_process.devices[0];
}

static void note(enum act act, int64_t value) {
  if (noted < PAGES)
    memcpy(diary[noted++], (int64_t[]){now_ns - BEGAN_NS, act, value}, sizeof diary[0]);
}

/* Let time pass until then. */
void lab_until(int64_t ns) {
  int64_t until_ns = BEGAN_NS + ns;
  while (wakes_ns <= until_ns) {
    now_ns = now_ns > wakes_ns ? now_ns : wakes_ns;
    looks = 0, sleeping = FOR_TIME, keeping = true;
    swapcontext(&test_side, &keeper_side);
  }
  now_ns = until_ns;
}

static int take_lock(pthread_mutex_t *lock) {
  (void)lock;
  broken += holds++ != 0;
  return 0;
}

static int try_lock(pthread_mutex_t *lock) {
  return now_ns < locked_until_ns ? EBUSY : take_lock(lock);
}

static int leave_lock(pthread_mutex_t *lock) {
  (void)lock;
  broken += --holds != 0;
  return 0;
}

static void sleep_in(enum act how, int64_t until_ns) {
  struct sp_device *device = device_of();
  broken += holds != 0;
  if (!keeping) { /* a thread of the program sleeps, at the process's end */
    lab_until(until_ns - BEGAN_NS);
    return;
  }
  const struct sp_stream_state *first = device->queue[device->queue_head % SP_MARKERS_MAX].state;
  broken += device->waiting_state != (how == IN_DRIVER ? first : NULL);
  broken += device->asleep != (how == FOR_KICK || how == FOR_GRANT);
  note(how, until_ns - BEGAN_NS);
  sleeping = how, wakes_ns = until_ns, keeping = false;
  swapcontext(&keeper_side, &test_side);
}

static void look(void) {
  if (keeping && ++looks > TOO_OFTEN) {
    note(SPINS, 0);
    sleep_in(FOR_TIME, INT64_MAX);
  }
}

static void slept(uint64_t ns) {
  sleep_in(FOR_TIME, now_ns + (int64_t)ns);
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
  if (operation == FUTEX_WAIT_PRIVATE && *word == value)
    sleep_in(FOR_KICK, now_ns + span->tv_sec * 1000000000 + span->tv_nsec);
  else if (operation == FUTEX_WAKE_PRIVATE && word == &device_of()->progress)
    progress_woken++;
  else if (operation == FUTEX_WAKE_PRIVATE && ++wakes && (sleeping == FOR_KICK || sleeping == FOR_GRANT))
    wakes_ns = now_ns;
  return 0;
}

/* ---- what the keeper asks the rest of the hook ---- */

void sp_grant_wait_or(const struct sp_grant *of, uint32_t word, const uint32_t *local, uint32_t value, uint64_t ns) {
  if (of->word == word && *local == value)
    sleep_in(FOR_GRANT, now_ns + (int64_t)ns);
}

uint32_t sp_grant_word(const struct sp_grant *of) {
  look();
  return of->word;
}

uint32_t sp_grant_flags(const struct sp_grant *of) {
  return of->flags;
}

uint64_t sp_now_ns(void) {
  return (uint64_t)now_ns;
}

uint64_t sp_threads_launches(uint32_t index) {
  (void)index;
  return launched;
}

bool sp_threads_inside(uint32_t index) {
  (void)index;
  return inside_until_ns > now_ns;
}

void sp_barrier(void) {}

void sp_keeper_last(void) {
  lasts++;
}

int sp_region_relock(struct sp_region *region) {
  (void)region;
  relocks++;
  return 0;
}

void sp_region_ring(struct sp_region *region) {
  (void)region;
  note(RANG, 0);
}

void sp_slot_publish(struct sp_slot_device *to, const struct sp_report *report) {
  (void)to;
  broken += holds != 1;
  note(TOLD, report->drained_turn);
}

static CUresult synchronize(CUevent event) {
  int64_t at_ns = *(int64_t *)(void *)event;
  if (at_ns > now_ns)
    sleep_in(IN_DRIVER, at_ns);
  return CUDA_SUCCESS;
}

static CUresult query(CUevent event) {
  look();
  questions++;
  return *(int64_t *)(void *)event > now_ns ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

const struct sp_driver *sp_driver(void) {
  return &driver;
}

static void push(uint32_t stream, uint64_t work_ns, int64_t at_ns, bool awaits) {
  struct sp_device *device = device_of();
  uint32_t place = device->queue_tail % SP_MARKERS_MAX;
  over_ns[place] = at_ns;
  device->queue[place] = (struct sp_marker){
      .state = &streams[stream], .event = (CUevent)(void *)&over_ns[place], .work_ns = work_ns, .awaits = awaits};
  streams[stream].outstanding++;
  device->marked_ns += work_ns;
  device->queue_tail++;
}

/* Record a marker behind a stream's work, as the launching thread does. */
void lab_mark(uint32_t stream) {
  if (streams[stream].pending_ns && !refuses) {
    push(stream, streams[stream].pending_ns, ends_ns[stream], false);
    streams[stream].pending_ns = 0;
  }
  sp_keeper_kick(device_of());
}

void sp_streams_mark_all(struct sp_device *device, void *context, enum sp_recorder recorder) {
  (void)device, (void)context;
  note(MARKED, recorder);
  for (uint32_t stream = 0; stream < STREAMS; stream++)
    if (streams[stream].pending_ns)
      lab_mark(stream);
}

bool sp_streams_pending(const struct sp_device *device) {
  (void)device;
  return streams[0].pending_ns || streams[1].pending_ns || streams[0].outstanding || streams[1].outstanding;
}

bool sp_streams_unmarked(const struct sp_device *device) {
  (void)device;
  for (uint32_t stream = 0; stream < STREAMS; stream++)
    if (streams[stream].pending_ns && !streams[stream].outstanding)
      return true;
  return false;
}

bool sp_streams_sparse(const struct sp_device *device, uint64_t at_ns) {
  (void)device, (void)at_ns;
  return sparse;
}

void sp_marker_finish(struct sp_device *device, bool waited, bool blocked) {
  struct sp_marker *marker = &device->queue[device->queue_head % SP_MARKERS_MAX];
  blocked_last = blocked;
  waited_last = waited;
  device->finished_ns = device->ended_ns = device->began_ns = (uint64_t)*(int64_t *)(void *)marker->event;
  device->starved_ns += starves_ns;
  starves_ns = 0;
  device->completed_ns += marker->work_ns;
  marker->state->outstanding--;
  device->queue_head++;
}

/* ---- what a test does; times are since the beginning ---- */

static void keep(void) {
  sp_keeper_run(device_of());
  note(SPINS, 0); /* it has ended, which it never does here */
}

int64_t lab_now(void) {
  return now_ns - BEGAN_NS;
}

void lab_begin(void) {
  sp_this_process = (struct sp_this_process){.attached = 1, .device_count = 1, .single_device = 1};
  sp_this_process.region.slot = &slot;
  *device_of() = (struct sp_device){.grant = &grant, .slot = &line, .bit = 1, .keeper = SP_KEEPER_RUNS};
  grant = (struct sp_grant){.word = 2};
  driver = (struct sp_driver){.cuEventSynchronize = synchronize, .cuEventQuery = query};
  memset(streams, 0, sizeof streams);
  memset(ends_ns, 0, sizeof ends_ns);
  now_ns = BEGAN_NS;
  inside_until_ns = locked_until_ns = starves_ns = 0;
  launched = 0;
  noted = looks = relocks = lasts = progress_woken = questions = wakes = broken = holds = 0;
  refuses = sparse = blocked_last = false;
  getcontext(&keeper_side);
  keeper_side.uc_stack.ss_sp = stack;
  keeper_side.uc_stack.ss_size = sizeof stack;
  keeper_side.uc_link = &test_side;
  makecontext(&keeper_side, keep, 0);
  keeping = true;
  swapcontext(&test_side, &keeper_side);
}

/* The arbiter changes the grant, and wakes whoever waits for it. */
void lab_grant(uint32_t word, uint32_t flags) {
  grant.word = word;
  grant.flags = flags;
  if (sleeping == FOR_GRANT)
    wakes_ns = now_ns;
}

/* A thread launches; the first launch of a turn enters it, as wait.c does. */
void lab_launch(uint32_t stream, int64_t takes_ns) {
  struct sp_device *device = device_of();
  bool enters = device->entered != grant.word;
  if (enters) {
    device->report.held_turn = grant.word;
    if (device->report.drained_turn == grant.word)
      device->report.drained_turn = 0;
    device->report.residue_until_ns = 0;
    device->entry_ns = (uint64_t)now_ns;
    if (!sp_device_in_flight(device))
      device->began_ns = (uint64_t)now_ns;
    device->aside = false;
    device->entered = grant.word;
  }
  ends_ns[stream] = (ends_ns[stream] > now_ns ? ends_ns[stream] : now_ns) + takes_ns;
  streams[stream].pending_ns += (uint64_t)takes_ns;
  launched++;
  if (enters)
    sp_keeper_kick(device);
}

/* The stream waits for something else than the device until then. */
void lab_wait(uint32_t stream, int64_t until_ns) {
  ends_ns[stream] = BEGAN_NS + until_ns;
  push(stream, 0, ends_ns[stream], true);
}

void lab_synced(bool contended) {
  sp_keeper_synced(device_of(), contended);
}

void lab_pause(void) {
  sp_keeper_pause(device_of());
}

void lab_kick(void) {
  sp_keeper_kick(device_of());
}

int64_t lab_linger(bool contended) {
  return (int64_t)linger_ns(device_of(), contended);
}

void lab_publish(void) {
  take_lock(NULL);
  publish(device_of());
  leave_lock(NULL);
}

/* The process ends. */
void lab_end(void) {
  slot.pid = (int32_t)getpid();
  say_last();
  broken += holds != 0;
  slot.pid = 0;
}

FIELD(aside, device_of()->aside)
FIELD(beside_ns, device_of()->beside_ns)
FIELD(began_ns, device_of()->began_ns)
FIELD(blocked, blocked_last)
FIELD(dead, streams[0].dead)
FIELD(drained_ns, device_of()->report.drained_ns)
FIELD(drained, device_of()->report.drained_turn)
FIELD(ended_ns, device_of()->ended_ns)
FIELD(entered, device_of()->entered)
FIELD(entry_ns, device_of()->entry_ns)
FIELD(finished_ns, device_of()->finished_ns)
FIELD(gap_ns, device_of()->gap_ns)
FIELD(gate_waiters, device_of()->gate_waiters)
FIELD(idle_ns, device_of()->report.idle_ns)
FIELD(inside_until_ns, inside_until_ns)
FIELD(kick, device_of()->kick)
FIELD(launches, device_of()->report.launches)
FIELD(locked_until_ns, locked_until_ns)
FIELD(longest_ns, device_of()->longest_ns)
FIELD(longest_unit_us, device_of()->report.longest_unit_us)
FIELD(named, named)
FIELD(passed, device_of()->passed)
FIELD(told_passed, device_of()->report.passed)
FIELD(progress, device_of()->progress)
FIELD(refuses, refuses)
FIELD(residue_until_ns, device_of()->report.residue_until_ns)
FIELD(slack_ns, slack_ns)
FIELD(sparse, sparse)
FIELD(starved_ns, device_of()->starved_ns)
FIELD(starves_ns, starves_ns)
FIELD(stood_ns, device_of()->stood_ns)
FIELD(stretch, device_of()->stretch)
FIELD(synced, device_of()->synced)
FIELD(waited, waited_last)
