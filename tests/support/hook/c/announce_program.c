/*
 * Tests the gate's half of a revocation step by step: what a launching thread has announced when it reads its grant's
 * word, when it waits and when it has left. It runs gate.c itself, on a process of one thread and one device, and
 * prints a word per fact.
 */
#define sp_grant_word looked_at
#define sp_now_ns     told_time
#include "hook/gate/gate.c"
#undef sp_grant_word
#undef sp_now_ns

#include <inttypes.h>
#include <stdio.h>

struct sp_this_process sp_this_process;
static struct sp_thread thread;
static struct sp_stream_state state;
static struct sp_work_profile profile = {.predicted_ns = 1000};
static struct sp_slot_device slot;
static struct sp_grant grant = {.word = 1, .budget_ns = 50000000, .lookahead_ns = 50000000};
static bool crowded; /* other streams have all states */
static int looks, announced_at_looks, waits, announced_at_waits, finds, pauses, kicks, gave_up, progress_waits;
static int announced_at_progress;
static int shut_for;    /* the gate stays closed for this many waits, and then opens */
static bool drained;    /* the turn has been left */
static bool agent_gone; /* the wait for a turn ends because there is no agent */
static enum sp_progress progress;

uint64_t told_time(void) {
  return 5000000000;
}

uint32_t looked_at(const struct sp_grant *of) {
  looks++;
  announced_at_looks += thread.inside == 1;
  return of->word;
}
struct sp_thread *sp_thread_self(void) {
  return &thread;
}
struct sp_device *sp_device_current(void) {
  return &sp_this_process.devices[0];
}
struct sp_work_profile *sp_profile_find(uint64_t key) {
  (void)key;
  return &profile;
}
void sp_thread_forget_streams(struct sp_thread *one) {
  one->looks++;
}
struct sp_stream_state *sp_stream_find(struct sp_device *device, struct sp_thread *by, void *stream, bool per_thread) {
  (void)by, (void)stream, (void)per_thread;
  finds++;
  state.device = device;
  return crowded ? NULL : &state;
}
bool sp_streams_full(void) {
  return crowded;
}
void sp_share_crowded(uint32_t most) {
  (void)most;
}
bool sp_wait_turn(struct sp_device *device, struct sp_thread *by, struct sp_stream_state *in, bool *entered) {
  (void)by, (void)in;
  waits++;
  announced_at_waits += thread.inside != 0;
  *entered = false;
  if (agent_gone)
    return true;
  if (shut_for-- > 0)
    return false;
  grant.word |= 1u;
  device->entered = grant.word;
  return false;
}
enum sp_progress sp_wait_progress(struct sp_device *device, struct sp_thread *by, struct sp_stream_state *in,
                                  uint64_t predicted_ns) {
  (void)device, (void)by, (void)in, (void)predicted_ns;
  progress_waits++;
  announced_at_progress += thread.inside != 0;
  return progress;
}
void sp_wait_gave_up(struct sp_device *device, struct sp_thread *by) {
  (void)device, (void)by;
  gave_up++;
}
void sp_keeper_kick(struct sp_device *device) {
  (void)device;
  kicks++;
}
void sp_record_left(struct sp_thread *one) {
  (void)one;
}
void sp_wait_left(struct sp_thread *by) {
  (void)by;
}
void sp_keeper_pause(struct sp_device *device) {
  (void)device;
  pauses++;
}
bool sp_stream_measure(struct sp_stream_state *of, bool edged) {
  (void)of;
  return edged;
}

static void launch_once(const char *what) {
  struct sp_device *device = &sp_this_process.devices[0];
  struct sp_pass pass;
  looks = announced_at_looks = waits = announced_at_waits = finds = pauses = kicks = gave_up = progress_waits = 0;
  announced_at_progress = 0;
  device->passed = 0;
  sp_gate_enter(&pass, NULL, false, 1);
  printf("%s looks %d announced %d waits %d announced %d inside %u finds %d pauses %d kicks %d passed %u", what, looks,
         announced_at_looks, waits, announced_at_waits, thread.inside, finds, pauses, kicks, device->passed);
  printf(" progress_waits %d progress_announced %d gave_up %d entered %d stood %d", progress_waits,
         announced_at_progress, gave_up, pass.device ? pass.entered : 0, (int)thread.stood_ns);
  sp_gate_leave(&pass, CUDA_SUCCESS);
  printf(" left %u\n", thread.inside);
}

/* Launches behind work in flight, in a turn with this end told so far. Prints the end that is told then, after the
 * beginning of that work; of an empty device, after now. */
static void launch_behind(const char *what, uint64_t in_flight_ns, uint64_t pending_ns, uint32_t unit_ns,
                          uint64_t told_ns) {
  struct sp_device *device = &sp_this_process.devices[0];
  struct sp_pass pass;
  uint64_t began_ns = in_flight_ns || pending_ns ? 1000000000 : told_time();
  device->report = (struct sp_report){.held_turn = device->entered, .drained_turn = drained ? device->entered : 0};
  device->report.residue_until_ns = told_ns ? 1000000000 + told_ns : 0;
  slot.residue_until_ns = 0;
  device->marked_ns = device->completed_ns + in_flight_ns;
  device->began_ns = 1000000000;
  device->eta_published = told_ns != 0;
  state.pending_ns = pending_ns;
  profile.predicted_ns = unit_ns;
  sp_gate_enter(&pass, NULL, false, 1);
  uint64_t until_ns = slot.residue_until_ns;
  printf("%s until %" PRIu64 " eta_published %u\n", what, until_ns ? until_ns - began_ns : 0, device->eta_published);
  thread.inside = 0;
}

/* Prints what an unknown unit counts for, by the budget and the longest unit so far. */
static void unknown(uint64_t budget_ns, uint64_t longest_ns) {
  struct sp_device *device = &sp_this_process.devices[0];
  grant.budget_ns = budget_ns;
  device->longest_ns = longest_ns;
  printf("unknown-%" PRIu64 "-%" PRIu64 " ns %" PRIu64 "\n", budget_ns, longest_ns, unknown_ns(device));
  grant.budget_ns = 50000000;
  device->longest_ns = 0;
}

static void fit(uint64_t in_flight_ns, uint64_t pending_ns, uint64_t predicted_ns, uint64_t lookahead_ns) {
  struct sp_device *device = &sp_this_process.devices[0];
  grant.budget_ns = 4000000;
  grant.lookahead_ns = lookahead_ns;
  device->marked_ns = device->completed_ns + in_flight_ns;
  state.pending_ns = pending_ns;
  printf("fits-%" PRIu64 "-%" PRIu64 "-%" PRIu64 "-%" PRIu64 " fits %d\n", in_flight_ns, pending_ns, predicted_ns,
         lookahead_ns, fits(device, &state, predicted_ns));
  grant.budget_ns = grant.lookahead_ns = 50000000;
  device->marked_ns = device->completed_ns;
  state.pending_ns = 0;
}

int main(void) {
  struct sp_device *device = &sp_this_process.devices[0];
  sp_this_process.attached = sp_this_process.single_device = sp_this_process.device_count = 1;
  device->grant = &grant;
  device->slot = &slot;
  device->bit = 1;
  device->keeper = SP_KEEPER_RUNS;
  device->entered = grant.word;
  crowded = true;
  launch_once("crowded");
  crowded = false;
  launch_once("open");
  launch_once("again");
  grant.word = 2; /* closed; another turn is granted while the launch waits */
  launch_once("closed");
  grant.word += 1;
  device->entered = 0;
  shut_for = 2;
  grant.word += 1;
  launch_once("closed-for-long");
  device->marked_ns = device->completed_ns + grant.budget_ns; /* all of the budget is in flight */
  thread.stood_ns = 5;
  progress = SP_STUCK;
  launch_once("full");
  thread.stood_ns = 5;
  progress = SP_NEAR;
  launch_once("behind-one");
  device->marked_ns = device->completed_ns;
  thread.stood_ns = 0;
  grant.word = 100;
  agent_gone = true;
  launch_once("agent-gone");
  agent_gone = false;
  grant.word = 101;
  device->entered = 101;
  for (uint64_t longest_ns = 1000; longest_ns <= 100000000; longest_ns *= 10)
    unknown(50000000, longest_ns);
  unknown(50000000, 0);
  unknown(200000, 5000000);
  fit(3000000, 0, 5000000, 8000000);
  fit(3000000, 1000000, 5000000, 8000000);
  fit(4000000, 0, 5000000, 8000000);
  fit(4000000, 0, 4000000, 8000000);
  fit(4000000, 0, 4000000, 7999999);
  fit(4000000, 1000000, 4000000, 9000000);
  launch_behind("alone-waits", 3000000, 200000, 700000, 0);
  grant.flags = SP_GRANT_CONTENDED;
  launch_behind("long", 3000000, 200000, 700000, 0);
  launch_behind("short", 3000000, 200000, 5000, 0);
  launch_behind("empty", 0, 0, 700000, 0);
  launch_behind("near", 3000000, 200000, 5000, 3205000 - 40000);
  launch_behind("far", 3000000, 200000, 5000, 3205000 - 60000);
  drained = true;
  launch_behind("drained", 3000000, 200000, 700000, 0);
  drained = false;
  device->stretch = 256;
  launch_behind("stretched", 3000000, 200000, 700000, 0);
  return 0;
}
