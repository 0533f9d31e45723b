/*
 * Tests the gate's half of a revocation step by step: what a launching thread has announced when it reads its grant's
 * word, when it waits and when it has left. It runs gate.c itself, on a process of one thread and one device, and
 * prints a word per fact.
 */
#define sp_grant_word looked_at
#include "hook/gate/gate.c"
#undef sp_grant_word

#include <inttypes.h>
#include <stdio.h>

struct sp_this_process sp_this_process;
static struct sp_thread thread;
static struct sp_stream_state state;
static struct sp_work_profile profile = {.predicted_ns = 1000};
static struct sp_slot_device slot;
static struct sp_grant grant = {.word = 1, .budget_ns = 50000000, .lookahead_ns = 50000000};
static bool crowded; /* other streams have all states */
static int looks, announced_at_looks, waits, announced_at_waits;

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
  state.device = device;
  return crowded ? NULL : &state;
}
void sp_share_crowded(uint32_t most) {
  (void)most;
}
bool sp_wait_turn(struct sp_device *device, struct sp_thread *by, struct sp_stream_state *in, bool *entered) {
  (void)by, (void)in;
  waits++;
  announced_at_waits += thread.inside != 0;
  grant.word |= 1u;
  device->entered = grant.word;
  *entered = false;
  return false;
}
void sp_wait_left(struct sp_thread *by) {
  (void)by;
}
void sp_keeper_pause(struct sp_device *device) {
  (void)device;
}
bool sp_stream_measure(struct sp_stream_state *of, bool edged) {
  (void)of;
  return edged;
}

static void launch_once(const char *what) {
  struct sp_pass pass;
  looks = announced_at_looks = waits = announced_at_waits = 0;
  sp_gate_enter(&pass, NULL, false, 1);
  printf("%s looks %d announced %d waits %d announced %d inside %u", what, looks, announced_at_looks, waits,
         announced_at_waits, thread.inside);
  sp_gate_leave(&pass, CUDA_SUCCESS);
  printf(" left %u\n", thread.inside);
}

/* Launches behind work in flight and prints when all of it will end, as the slot says after the launch. */
static void launch_behind(const char *what, uint64_t in_flight_ns, uint64_t pending_ns, uint32_t unit_ns) {
  struct sp_device *device = &sp_this_process.devices[0];
  struct sp_pass pass;
  device->report = (struct sp_report){.held_turn = device->entered};
  device->marked_ns = device->completed_ns + in_flight_ns;
  device->began_ns = 1000000000;
  device->eta_published = 0;
  state.pending_ns = pending_ns;
  profile.predicted_ns = unit_ns;
  sp_gate_enter(&pass, NULL, false, 1);
  uint64_t until_ns = device->report.residue_until_ns;
  printf("%s until %" PRIu64 " eta_published %u\n", what, until_ns ? until_ns - 1000000000 : 0, device->eta_published);
  thread.inside = 0;
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
  grant.word = 2; /* closed; another turn is granted while the launch waits */
  launch_once("closed");
  launch_behind("alone-waits", 3000000, 200000, 700000);
  grant.flags = SP_GRANT_CONTENDED;
  launch_behind("long", 3000000, 200000, 700000);
  launch_behind("short", 3000000, 200000, 5000);
  return 0;
}
