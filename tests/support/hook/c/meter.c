/*
 * The meter in virtual time. gate.c, wait.c, record.c, marker.c, clock.c, spans.c and predict.c are the hook's own. The
 * device below them is told how long each launch takes. Its clock is a day ahead, launches and records take a while to
 * arrive there, and the keeper wakes some time after an end. Each stream works by itself.
 */
#include "gate.h"
#define sp_wait_progress wait_in_real_time
#include "wait.c"
#include <string.h>
#undef sp_wait_progress

#define STREAMS 4u
#define SKEW_NS 86400000000000
#define EVENTS  4096u
#define GONE    INT64_MIN
#define CALL_NS 1000 /* of the program's time, for each call of the driver */

struct sp_guest sp_guest;
static struct sp_lane lanes[STREAMS];
static struct sp_grant grant = {.word = 1, .budget_ns = 4000000, .pair_ns = 4000000};
static struct sp_slot_device slot;
static struct sp_thread thread;
static struct sp_driver driver;
static double drift;                /* of the device's clock, as a part of the time */
static int64_t now_ns = 1000000000; /* no stream had an edge lately */
static int64_t free_ns[STREAMS], stamps[EVENTS], launch_ns, record_ns, event_ns, late_ns, slept_ns;
static uint32_t event_count;

static struct sp_device *device(void) {
  return &sp_guest.devices[0];
}

/* ---- the driver ---- */

static CUresult event_create(CUevent *event, unsigned int flags) {
  (void)flags;
  if (event_count == EVENTS)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *event = (CUevent)(void *)&stamps[event_count++];
  return CUDA_SUCCESS;
}

static int64_t later(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t host_ns(CUevent event) {
  return (int64_t)((double)(*(int64_t *)(void *)event - SKEW_NS) / (1 + drift));
}

static CUresult event_record(CUevent event, CUstream stream) {
  int64_t *free = &free_ns[(uintptr_t)stream - 3], at_ns = later(now_ns + record_ns, *free);
  *(int64_t *)(void *)event = at_ns + (int64_t)(drift * (double)at_ns) + SKEW_NS;
  *free = at_ns + event_ns;
  now_ns += CALL_NS;
  return CUDA_SUCCESS;
}

static CUresult event_elapsed(float *ms, CUevent from, CUevent to) {
  if (*(int64_t *)(void *)from == GONE || *(int64_t *)(void *)to == GONE)
    __builtin_trap(); /* it was destroyed with its context: a driver may do anything */
  *ms = (float)((double)(*(int64_t *)(void *)to - *(int64_t *)(void *)from) / 1e6);
  return CUDA_SUCCESS;
}

const struct sp_driver *sp_driver(void) {
  return &driver;
}

uint64_t sp_now_ns(void) {
  return (uint64_t)now_ns;
}

CUresult sp_lane_record(const struct sp_lane *lane, CUevent event, bool launching) {
  (void)launching;
  return event_record(event, lane->stream);
}

/* ---- what the meter asks the rest of the hook ---- */

struct sp_lane *sp_lane_find(struct sp_device *current, struct sp_thread *self, void *stream, bool per_thread) {
  (void)current, (void)self, (void)per_thread;
  return &lanes[(uintptr_t)stream - 3];
}

bool sp_lane_over(const struct sp_lane *lane, const struct sp_thread *by) {
  (void)lane, (void)by;
  return false; /* nobody waits for events here */
}
bool sp_lanes_unmarked(const struct sp_device *asked) {
  bool found = false;
  for (uint32_t index = 0; index < STREAMS; index++)
    found |= lanes[index].device == asked && lanes[index].pending_ns && !lanes[index].outstanding;
  return found;
}

struct sp_thread *sp_thread_self(void) {
  return &thread;
}

struct sp_device *sp_device_current(void) {
  return device();
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

uint64_t sp_grant_pair_ns(const struct sp_grant *of) {
  return of->pair_ns;
}

int sp_slot_enter(struct sp_slot_device *of, const struct sp_report *report, const struct sp_grant *granted) {
  (void)of;
  return granted->word == report->held_turn;
}

bool sp_context_enter(CUcontext context) {
  (void)context;
  return false; /* it is current */
}

void sp_keeper_kick(struct sp_device *of) {
  (void)of; /* it sees all by itself */
}

void sp_keeper_pause(struct sp_device *of) {
  (void)of;
}

static int64_t wakes_ns(int64_t *began_ns) {
  const struct sp_marker *marker = &device()->queue[device()->queue_head % SP_MARKERS_MAX];
  *began_ns = later(slept_ns, (int64_t)marker->recorded_ns);
  if (marker->lane->dead)
    return *began_ns;
  return later(host_ns(marker->event), *began_ns) + late_ns;
}

/* The keeper does what it can until then. */
void meter_until(int64_t until_ns) {
  while (device()->queue_head != device()->queue_tail) {
    int64_t began_ns, woken_ns = wakes_ns(&began_ns);
    if (woken_ns > until_ns)
      break;
    now_ns = later(now_ns, woken_ns);
    sp_marker_finish(device(), true, woken_ns - began_ns > 10000);
    slept_ns = now_ns;
  }
  now_ns = later(now_ns, until_ns);
}

enum sp_progress sp_wait_progress(struct sp_device *of, struct sp_thread *self, struct sp_lane *lane,
                                  uint64_t predicted_ns) {
  (void)self, (void)predicted_ns;
  int64_t began_ns;
  if (lane->pending_ns)
    sp_lane_mark(lane, true, false);
  if (of->queue_head == of->queue_tail)
    return SP_STUCK;
  meter_until(wakes_ns(&began_ns));
  return SP_MADE;
}

/* ---- what a test does ---- */

void meter_start(int64_t launch, int64_t record, int64_t event, int64_t late) {
  launch_ns = launch;
  record_ns = record;
  event_ns = event;
  late_ns = late;
  slept_ns = 0;
  drift = 0;
  event_count = 0;
  driver.cuEventCreate = event_create;
  driver.cuEventRecord = event_record;
  driver.cuEventElapsedTime = event_elapsed;
  sp_guest = (struct sp_guest){.attached = 1, .device_count = 1, .single_device = 1};
  thread = (struct sp_thread){.device = device()};
  *device() = (struct sp_device){.grant = &grant, .slot = &slot, .bit = 1, .keeper_started = 1};
  pthread_mutex_init(&device()->turn_lock, NULL);
  pthread_mutex_init(&device()->queue_lock, NULL);
  for (uintptr_t index = 0; index < STREAMS; index++) {
    lanes[index] = (struct sp_lane){.device = device(), .live = true, .stream = (void *)(index + 3)};
    pthread_mutex_init(&lanes[index].lock, NULL);
    free_ns[index] = 0;
  }
}

/* The keeper gives the turn back; `stands`: its work waits for something, and may run while others have the device. */
void meter_leave(bool stands) {
  device()->entered = 0;
  device()->report.drained_turn = device()->report.held_turn;
  device()->aside = stands;
  grant.word += grant.word & 1;
}

/* The share has the next turn, and enters it with its next launch. */
void meter_grant(bool contended) {
  grant.word |= 1;
  grant.flags = contended ? SP_GRANT_CONTENDED : 0;
}

/* Nothing runs in the stream before then: another share has the device, or the stream waits. */
void meter_hold(uint32_t stream, int64_t until_ns) {
  free_ns[stream] = later(free_ns[stream], until_ns);
}

/* The stream is one of another context from now on. */
void meter_context(uint32_t stream, uint64_t context) {
  struct sp_lane *lane = &lanes[stream];
  lane->context = (CUcontext)(void *)(uintptr_t)context;
  lane->edged_ns = 0;
  lane->dead = false;
  memset(lane->events, 0, sizeof lane->events);
  lane->start_event = NULL;
}

/* Its context is destroyed, as lane.c does it. */
void meter_destroy(uint32_t stream) {
  lanes[stream].dead = true;
  for (uint32_t index = 0; index < SP_LANE_EVENTS; index++)
    if (lanes[stream].events[index])
      *(int64_t *)(void *)lanes[stream].events[index] = GONE;
  if (lanes[stream].start_event)
    *(int64_t *)(void *)lanes[stream].start_event = GONE;
  device()->stale = true;
}

/* The next launch into it stands behind a wait. */
void meter_await(uint32_t stream) {
  lanes[stream].awaits = true;
}

/* Launch into a stream what takes so long; returns when it begins. */
int64_t meter_launch(uint32_t stream, uint64_t key, int64_t takes_ns) {
  struct sp_pass pass;
  sp_gate_enter(&pass, (void *)(uintptr_t)(stream + 3), false, key);
  int64_t begin_ns = later(now_ns + launch_ns, free_ns[stream]);
  free_ns[stream] = begin_ns + takes_ns;
  now_ns += CALL_NS;
  sp_gate_leave(&pass, CUDA_SUCCESS);
  return begin_ns;
}

/* Marks what is pending, as a thread does that waits for its work; returns when all of it has ended. */
int64_t meter_close(void) {
  int64_t end_ns = now_ns;
  for (uint32_t index = 0; index < STREAMS; index++) {
    if (lanes[index].pending_ns)
      sp_lane_mark_by(&lanes[index], SP_BY_CALLER, false);
    end_ns = later(end_ns, free_ns[index]);
  }
  return end_ns;
}

/* Markers that the keeper has not finished. */
int64_t meter_pending(void) {
  return device()->queue_tail - device()->queue_head;
}

int64_t meter_now(void) {
  return now_ns;
}

int64_t meter_began(void) {
  return (int64_t)device()->entry_ns;
}

int64_t meter_ended(void) {
  return (int64_t)device()->ended_ns;
}

int64_t meter_finished(void) {
  return (int64_t)device()->finished_ns;
}

int64_t meter_idle(void) {
  return device()->starved_ns;
}

int64_t meter_beside(void) {
  return (int64_t)device()->beside_ns;
}

int64_t meter_beside_until_us(void) {
  return slot.beside_until_us;
}

int64_t meter_first_ended(void) {
  return (int64_t)slot.first_ended_ns;
}

int64_t meter_stood(void) {
  return (int64_t)device()->stood_ns;
}

int64_t meter_put_off(void) {
  return (int64_t)device()->put_off_ns;
}

int64_t meter_in_flight(void) {
  return (int64_t)sp_device_in_flight(device());
}

int64_t meter_stretch(void) {
  return device()->stretch;
}

int64_t meter_predicted(uint64_t key) {
  return (int64_t)sp_unit_find(key)->predicted_ns;
}

void meter_drift(double part) {
  drift = part;
}
