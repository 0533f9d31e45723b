/*
 * Tests the keeper's half of a revocation step by step: what it does before it reports that a turn has drained. It runs
 * keeper.c itself, on a process of one device; the launching thread and the streams are played. Prints a line per case.
 */
#define sp_barrier          passed_barrier
#define sp_threads_inside   asked_inside
#define sp_slot_publish     said
#define sp_streams_pending  asked_pending
#define sp_streams_mark_all marked_all
#define sp_marker_finish    finished
#define sp_region_ring      rung
#include "hook/meter/keeper.c"
#undef sp_slot_publish

#include <stdio.h>

enum { TURN = 5 };
struct sp_this_process sp_this_process;
static struct sp_grant grant;
static struct sp_slot_device slot;
static int inside_for, pending_for; /* how many more answers are yes */
static bool cleared, behind_barrier, early, marked, stands, enters;
static int barriers, asked, drained, rings, driver_asked;

static struct sp_device *device_of(void) {
  return &sp_this_process.devices[0];
}
void passed_barrier(void) {
  barriers++;
  cleared = device_of()->entered == 0;
}
bool asked_inside(uint32_t index) {
  (void)index;
  asked++;
  behind_barrier = barriers > 0;
  return inside_for-- > 0;
}
bool asked_pending(const struct sp_device *device) {
  (void)device;
  if (enters)
    device_of()->entered = TURN + 2;
  return pending_for-- > 0;
}
/* Whether work waits for something else than the device is asked of the driver, with another context current. */
bool sp_stands(struct sp_device *device) {
  (void)device;
  driver_asked++;
  return stands;
}
bool sp_stands_first(const struct sp_device *device) {
  (void)device;
  return false;
}
void marked_all(struct sp_device *device, void *context, enum sp_recorder recorder) {
  (void)device, (void)context, (void)recorder;
  marked = true;
}
void finished(struct sp_device *device, bool waited, bool blocked) {
  (void)device, (void)waited, (void)blocked;
}
void said(struct sp_slot_device *to, const struct sp_report *report) {
  (void)to;
  if (report->drained_turn != TURN)
    return;
  drained++;
  early = early || asked == 0 || inside_for > 0 || pending_for > 0 || !cleared || !behind_barrier;
}
void rung(struct sp_region *region) {
  (void)region;
  rings++;
}
uint64_t sp_threads_launches(uint32_t index) {
  (void)index;
  return 7;
}
const struct sp_driver *sp_driver(void) {
  static struct sp_driver none;
  return &none;
}

static void begin(int inside, int pending, uint32_t word) {
  struct sp_device *device = device_of();
  inside_for = inside, pending_for = pending;
  cleared = behind_barrier = early = marked = stands = enters = false;
  barriers = asked = drained = rings = driver_asked = 0;
  grant.word = word;
  grant.flags = 0;
  device->grant = &grant;
  device->slot = &slot;
  device->entered = TURN;
  device->aside = false;
  device->report = (struct sp_report){.held_turn = TURN};
}

static void end(const char *what) {
  printf("%s drained %d early %d marked %d rings %d entered %u driver_asked %d aside %d\n", what, drained, early,
         marked, rings, device_of()->entered, driver_asked, device_of()->aside);
}

int main(void) {
  struct sp_device *device = device_of();
  pthread_mutex_init(&device->turn_lock, NULL);
  begin(0, 0, TURN + 1);
  drain(device, TURN);
  end("drain");
  begin(3, 0, TURN + 1); /* a thread stays in the driver for a while */
  drain(device, TURN);
  end("drain-inside");
  begin(0, 1, TURN + 1); /* some work cannot be marked now, so its end is not known */
  drain(device, TURN);
  end("drain-pending");
  begin(0, 2, TURN + 1); /* all of the work stands */
  stands = true;
  drain(device, TURN);
  end("drain-stands");
  begin(0, 0, TURN + 1); /* the share has its next turn, and a thread enters it meanwhile */
  enters = true;
  drain(device, TURN);
  end("drain-entered");
  begin(0, 0, TURN);
  park(device, TURN, 7, true, true);
  end("park");
  begin(0, 0, TURN);
  grant.flags = SP_GRANT_CONTENDED;
  park(device, TURN, 7, true, true);
  end("park-contended");
  begin(1, 0, TURN);
  park(device, TURN, 7, true, true);
  end("park-inside");
  begin(0, 1, TURN);
  park(device, TURN, 7, true, true);
  end("park-pending");
  begin(0, 0, TURN);
  park(device, TURN, 6, true, true); /* the program has launched since */
  end("park-launched");
  begin(0, 1, TURN);
  stands = true;
  park(device, TURN, 7, true, true);
  end("park-stands");
  begin(0, 1, TURN);
  stands = true;
  park(device, TURN, 7, true, false);
  end("synced-stands");
  return 0;
}
