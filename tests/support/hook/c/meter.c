/*
 * Runs the meter in virtual time. gate.c, stream_state.c, wait.c, record.c, marker.c, clock.c, busy_intervals.c and
 * predict.c are the hook's own. A test tells the device below them how long each launch takes. The device's clock is a
 * day ahead, launches and records take a while to arrive at the device, and the keeper wakes some time after an end.
 * Each stream works by itself.
 */
#include "region/uncancelled.h"

static void sleep_virtually(uint64_t ns);
#define sp_sleep_ns sleep_virtually
#include "hook/meter/stream_state.c"
#undef sp_sleep_ns
#include "hook/gate/gate.h"
#define sp_wait_progress wait_in_real_time
#include "hook/gate/wait.c"
#undef sp_wait_progress

#define STREAMS 4u
#define SKEW_NS 86400000000000
#define EVENTS  4096u
#define GONE    INT64_MIN

struct sp_this_process sp_this_process;
static CUcontext current, contexts[STREAMS];
static struct sp_grant grant = {.word = 1, .budget_ns = 4000000, .lookahead_ns = 4000000};
static struct sp_slot_device slot;
static struct sp_thread thread;
static struct sp_driver driver;
static double drift;                /* the drift of the device's clock, as a fraction of the time */
static int64_t now_ns = 1000000000; /* late enough that no stream had an edge lately */
static int64_t free_ns[STREAMS], stamps[EVENTS], launch_ns, record_ns, event_ns, late_ns, slept_ns;
static int64_t call_ns; /* the program's time that each call of the driver takes */
static uint32_t event_count;
static CUresult refusal; /* what the driver says to the next records of events … */
static int64_t refusals; /* … so many of them */
static int64_t kicks, queries;

static struct sp_device *device(void) {
  return &sp_this_process.devices[0];
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
  if (refusals > 0) {
    refusals--;
    return refusal;
  }
  int64_t *free = &free_ns[(uintptr_t)stream - 3], at_ns = later(now_ns + record_ns, *free);
  *(int64_t *)(void *)event = at_ns + (int64_t)(drift * (double)at_ns) + SKEW_NS;
  *free = at_ns + event_ns;
  now_ns += call_ns;
  return CUDA_SUCCESS;
}

static CUresult event_elapsed(float *ms, CUevent from, CUevent to) {
  if (*(int64_t *)(void *)from == GONE || *(int64_t *)(void *)to == GONE)
    __builtin_trap(); /* the event was destroyed with its context: a real driver may do anything here */
  *ms = (float)((double)(*(int64_t *)(void *)to - *(int64_t *)(void *)from) / 1e6);
  return CUDA_SUCCESS;
}

const struct sp_driver *sp_driver(void) {
  return &driver;
}

uint64_t sp_now_ns(void) {
  return (uint64_t)now_ns;
}

void sp_stream_record_left(void) {}
CUresult sp_stream_record(struct sp_stream_state *state, CUevent event, bool launching,
                          struct sp_recording *recording) {
  (void)recording;
  (void)launching;
  return event_record(event, state->stream);
}

static CUresult context_of(CUstream stream, CUcontext *context) {
  *context = contexts[(uintptr_t)stream - 3];
  return CUDA_SUCCESS;
}

static CUresult context_current(CUcontext *context) {
  *context = current;
  return CUDA_SUCCESS;
}

/* ---- what the meter asks the rest of the hook ---- */

uint32_t sp_thread_index(const struct sp_thread *of) {
  (void)of;
  return 0;
}

void sp_captures_end_with(struct sp_stream_state *state) {
  (void)state; /* there are no captures */
}

struct sp_thread *sp_thread_self(void) {
  return &thread;
}
struct sp_thread *sp_thread_known(void) {
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

uint64_t sp_grant_lookahead_ns(const struct sp_grant *of) {
  return of->lookahead_ns;
}

int sp_slot_enter(struct sp_slot_device *of, const struct sp_report *report, const struct sp_grant *granted) {
  (void)of;
  return granted->word == report->held_turn;
}

bool sp_context_enter(CUcontext context) {
  (void)context;
  return false; /* the context is already current */
}

void sp_keeper_kick(struct sp_device *of) {
  (void)of; /* this keeper sees everything without a kick */
  kicks++;
}

bool sp_stream_capturing(void *stream, bool per_thread) {
  (void)stream, (void)per_thread;
  return false; /* other streams do */
}

bool sp_stream_is_legacy(const struct sp_stream_state *of) {
  (void)of;
  return false;
}

void sp_keeper_synced(struct sp_device *of, bool contended) {
  (void)of, (void)contended;
}

static CUresult stream_query(CUstream stream) {
  queries++;
  return free_ns[(uintptr_t)stream - 3] <= now_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

void sp_keeper_pause(struct sp_device *of) {
  (void)of;
}

static int64_t wakes_ns(int64_t *began_ns) {
  const struct sp_marker *marker = &device()->queue[device()->queue_head % SP_MARKERS_MAX];
  *began_ns = later(slept_ns, (int64_t)marker->recorded_ns);
  if (marker->state->dead)
    return *began_ns;
  return later(host_ns(marker->event), *began_ns) + late_ns;
}

/* Let time pass until then; the keeper does what is due meanwhile. */
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

static void sleep_virtually(uint64_t ns) {
  meter_until(now_ns + (int64_t)ns);
}

enum sp_progress sp_wait_progress(struct sp_device *of, struct sp_thread *self, struct sp_stream_state *state,
                                  uint64_t predicted_ns) {
  (void)self, (void)predicted_ns;
  int64_t began_ns;
  if (state->pending_ns)
    sp_stream_mark(state, true, false);
  if (of->queue_head == of->queue_tail)
    return SP_STUCK;
  meter_until(wakes_ns(&began_ns));
  return SP_MADE;
}

/* ---- what a test does ---- */

static struct sp_stream_state *state_of(uint32_t stream) {
  return sp_stream_find(device(), &thread, (void *)(uintptr_t)(stream + 3), false);
}

void meter_start(int64_t launch, int64_t record, int64_t event, int64_t late) {
  launch_ns = launch;
  record_ns = record;
  event_ns = event;
  late_ns = late;
  slept_ns = 0;
  call_ns = 1000;
  drift = 0;
  event_count = 0;
  refusals = kicks = queries = 0;
  driver.cuEventCreate = event_create;
  driver.cuEventRecord = event_record;
  driver.cuEventElapsedTime = event_elapsed;
  driver.cuCtxGetCurrent = context_current;
  driver.cuStreamGetCtx = context_of;
  driver.cuStreamQuery = NULL;
  current = (CUcontext)(void *)(uintptr_t)1;
  sp_this_process = (struct sp_this_process){.attached = 1, .device_count = 1, .single_device = 1};
  thread = (struct sp_thread){.device = device()};
  *device() = (struct sp_device){.grant = &grant, .slot = &slot, .bit = 1, .keeper = SP_KEEPER_RUNS};
  slot = (struct sp_slot_device){0};
  pthread_mutex_init(&device()->turn_lock, NULL);
  pthread_mutex_init(&device()->queue_lock, NULL);
  memset(states, 0, sizeof states);
  state_count = 0;
  for (uint32_t stream = 0; stream < STREAMS; stream++) {
    contexts[stream] = current;
    free_ns[stream] = 0;
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

/* The stream is destroyed, and its handle is one of another context's from now on. */
void meter_context(uint32_t stream, uint64_t context) {
  sp_streams_forget((void *)(uintptr_t)(stream + 3), NULL);
  contexts[stream] = (CUcontext)(void *)(uintptr_t)context;
}

/* The stream's context is destroyed. */
void meter_destroy(uint32_t stream) {
  CUcontext before = current;
  current = contexts[stream];
  sp_streams_forget(NULL, current);
  for (uint32_t index = 0; index < state_count; index++) {
    struct sp_stream_state *state = &states[index];
    for (uint32_t event = 0; state->context == current && event < SP_STREAM_EVENTS; event++)
      if (state->events[event])
        *(int64_t *)(void *)state->events[event] = GONE;
    if (state->context == current && state->start_event)
      *(int64_t *)(void *)state->start_event = GONE;
  }
  current = before;
}

/* The next launch into the stream stands behind a wait, for the host or for an event. */
void meter_await(uint32_t stream, bool event) {
  sp_gate_awaiting((void *)(uintptr_t)(stream + 3), false, event ? SP_AWAITS_EVENT : SP_AWAITS_HOST);
}

int64_t meter_awaits(uint32_t stream) {
  return state_of(stream)->awaits;
}

/* Launch work of this length into a stream; returns when it begins. */
int64_t meter_launch(uint32_t stream, uint64_t key, int64_t takes_ns) {
  struct sp_pass pass;
  sp_gate_enter(&pass, (void *)(uintptr_t)(stream + 3), false, key);
  int64_t begin_ns = later(now_ns + launch_ns, free_ns[stream]);
  free_ns[stream] = begin_ns + takes_ns;
  now_ns += call_ns;
  sp_gate_leave(&pass, CUDA_SUCCESS);
  return begin_ns;
}

/* Mark all pending work, as a thread does that waits for all its contexts; returns when all of it has ended. */
int64_t meter_close(void) {
  int64_t end_ns = now_ns;
  CUcontext before = current;
  for (uint32_t stream = 0; stream < STREAMS; stream++) {
    current = contexts[stream];
    sp_streams_close(device(), &thread, NULL, false, SP_SYNC_CONTEXT);
    end_ns = later(end_ns, free_ns[stream]);
  }
  current = before;
  return end_ns;
}

/* From now on the thread's current context is this one. */
void meter_current(uint64_t context) {
  current = (CUcontext)(void *)(uintptr_t)context;
}

/* The thread waits for a stream's work and whatever else a call of that kind waits for; -1: the default stream. */
void meter_sync(int64_t stream, int64_t kind) {
  CUstream handle = stream < 0 ? NULL : (void *)(uintptr_t)(stream + 3);
  sp_gate_syncing(handle, false, (enum sp_sync)kind);
  int64_t end_ns = now_ns;
  for (uint32_t each = 0; each < STREAMS; each++)
    if (each == stream || (contexts[each] == current && kind != SP_SYNC_STREAM))
      end_ns = later(end_ns, free_ns[each]);
  meter_until(end_ns);
  sp_gate_synced((enum sp_sync)kind);
}

/* The predicted time of the work that is launched into the stream and not marked. */
int64_t meter_unmarked(uint32_t stream) {
  return (int64_t)state_of(stream)->pending_ns;
}

/* How many markers the keeper has not finished. */
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
  return (int64_t)slot.beside_ns;
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
  return (int64_t)slot.put_off_us * 1000;
}

/* The driver refuses the next records of events with this result. */
void meter_refuse(int64_t result, int64_t times) {
  refusal = (CUresult)result;
  refusals = times;
}

/* This many captures are open in the process. */
void meter_captures(uint32_t count) {
  sp_this_process.captures = count;
}

/* The driver can be asked whether a stream has ended. */
void meter_asks(void) {
  driver.cuStreamQuery = stream_query;
}

/* The keeper, or another thread of the hook's, marks all pending work. */
void meter_keeper_marks(bool keeper) {
  sp_streams_mark_all(device(), NULL, keeper ? SP_BY_KEEPER : SP_BY_OTHER);
}

int64_t meter_sparse(void) {
  return sp_streams_sparse(device(), (uint64_t)now_ns);
}

int64_t meter_passed(void) {
  return device()->passed;
}

int64_t meter_longest(void) {
  return (int64_t)device()->longest_ns;
}

int64_t meter_kicks(void) {
  return kicks;
}

int64_t meter_queries(void) {
  return queries;
}

int64_t meter_in_flight(void) {
  return (int64_t)sp_device_in_flight(device());
}

int64_t meter_stretch(void) {
  return device()->stretch;
}

int64_t meter_predicted(uint64_t key) {
  return (int64_t)sp_profile_find(key)->predicted_ns;
}

void meter_late(int64_t ns) {
  late_ns = ns;
}

void meter_calls(int64_t ns) {
  call_ns = ns;
}

void meter_drift(double part) {
  drift = part;
}
