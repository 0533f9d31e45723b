/* Waits at the gate: for a turn of the share, which is then entered, or until less work is in flight. A turn is open
 * while the grant's word is odd; the word is its name. A process has entered it once its slot says so; then its threads
 * may launch. Work is in flight until the marker behind it has finished, which raises the device's `progress`. */
#define _GNU_SOURCE
#include "hook/gate/wait.h"
#include "region/uncancelled.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PROGRESS_NS     2000000u  /* a wait for progress ends this long after the predicted end of the work in flight */
#define PROGRESS_MAX_NS 32000000u /* … doubled at each pass without progress, up to here */
#define STALE_LOOK_NS   100000000u /* how often a waiting thread looks at the agent's heartbeat */
#define UNMOVED_NS      300000000u /* twice the time between two heartbeats of an agent on a busy machine */
#define EXPECTED_MAX_NS 100000000u /* no predicted end is believed that lies further ahead */
#define FOLLOW_NS 300000u /* if two units are too long to be in flight, the second follows this long before the end */

/* Sleep while *word, which other threads of this process change, is `value`, for at most `timeout_ns`. errno stays. */
static void futex_wait_private(const uint32_t *word, uint32_t value, uint64_t timeout_ns) {
  int saved = errno;
  struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &timeout, NULL, 0);
  errno = saved;
}

/* Is the agent gone? It is if its heartbeat is old and does not change. Age alone is not enough: the clock of a process
 * that was restored on another machine differs from the agent's. A heartbeat from the future counts as old: it is
 * damage, and a living agent would overwrite it. */
static bool agent_gone(void) {
  static uint64_t seen_ns, moved_ns; /* the heartbeat that was seen last, and when it was first seen */
  uint64_t heartbeat_ns = sp_header_heartbeat_ns(sp_this_process.region.header);
  if (heartbeat_ns == 0)
    return true; /* a planned stop sets it to 0 */
  uint64_t now_ns = sp_now_ns();
  uint64_t apart_ns = now_ns > heartbeat_ns ? now_ns - heartbeat_ns : heartbeat_ns - now_ns;
  if (heartbeat_ns != sp_load(&seen_ns)) {
    sp_store(&seen_ns, heartbeat_ns);
    sp_store(&moved_ns, now_ns);
  }
  return apart_ns > SP_STALE_NS && now_ns - sp_load(&moved_ns) > UNMOVED_NS;
}

/* Enter the open turn `word` by a report in the slot, unless another thread has done so already; takes turn_lock.
 * `state`: the stream of the launch, which gets the turn's start event: it shows when the turn's first work began.
 * True: device->entered is `word`. False: the turn has closed meanwhile. */
static bool enter_turn(struct sp_device *device, struct sp_stream_state *state, uint32_t word) {
  /* Record the start event before the lock is taken: the stream may be full of work that the hook does not count, and
   * then the driver waits for room. If several threads come here at once, only one enters. */
  bool with_event = !sp_device_in_flight(device); /* else the turn does not begin with this launch */
  if (with_event)
    sp_stream_start(state);
  SP_UNCANCELLED;
  pthread_mutex_lock(&device->turn_lock);
  bool entered = sp_load(&device->entered) == word;
  if (entered && with_event) /* our event may have replaced that of the thread that entered */
    sp_store_release(&device->start_state, NULL);
  /* Another thread may have entered a later turn meanwhile: its report must not be overwritten. */
  if (!entered && sp_grant_word(device->grant) == word) {
    struct sp_report *report = &device->report;
    struct sp_report before = *report;
    /* The process comes back from a drain within the same turn: the time in between is its idle time. */
    uint64_t now_ns = sp_now_ns();
    if (report->held_turn == word && report->drained_turn == word && now_ns > report->residue_until_ns)
      report->idle_ns += now_ns - report->residue_until_ns;
    if (report->held_turn != word) { /* the turn is new */
      report->idle_ns = 0;
      sp_store(&device->starved_ns, 0); /* it belongs to an earlier turn, and is too late */
      report->entered_ns = now_ns;
    }
    bool empty = !sp_device_in_flight(device);
    uint64_t entry_before_ns = device->entry_ns;
    sp_store(&device->entry_ns, now_ns);
    if (empty) {
      /* The next launch begins now, and not when the last work ended. */
      sp_store(&device->began_ns, now_ns);
      sp_store(&device->back_ns, 0);
      sp_store_release(&device->fresh_ns, now_ns);
    } else if (device->aside) {
      /* The turn was returned while work stood behind a wait. Until now that work ran outside every turn: marker.c. */
      sp_store(&device->began_ns, now_ns);
      sp_store_release(&device->back_ns, now_ns);
    }
    bool aside_before = device->aside;
    sp_store_release(&device->aside, false); /* after back_ns: pairs with account in marker.c */
    /* drained_turn and drained_ns keep the drain of the turn before, which the agent may not have read. */
    report->held_turn = word;
    if (report->drained_turn == word)
      report->drained_turn = 0;
    report->residue_until_ns = 0;
    sp_store(&device->eta_published, 0);
    entered = sp_slot_enter(device->slot, report, device->grant);
    if (entered) {
      if (!empty || !with_event) /* no event shows the begin of the turn's work */
        sp_store_release(&device->start_state, NULL);
      sp_store_release(&device->entered, word);
    } else {
      /* The turn has closed, and nothing was launched. An earlier turn may still drain: publish its report again. */
      *report = before;
      sp_store(&device->entry_ns, entry_before_ns);
      device->aside = aside_before;
      if (report->held_turn == 0) /* there is no earlier turn: this one is reported as drained */
        report->held_turn = report->drained_turn = word;
      sp_slot_publish(device->slot, report);
      sp_region_ring(&sp_this_process.region);
    }
  }
  pthread_mutex_unlock(&device->turn_lock);
  return entered;
}

/* Undo what a wait of the thread has counted: the wait is over, or was left by a jump, or the thread has ended. */
void sp_wait_left(struct sp_thread *thread) {
  struct sp_device *turn = thread->awaits_turn, *progress = thread->awaits_progress;
  thread->awaits_turn = thread->awaits_progress = NULL;
  if (turn)
    sp_slot_wait_end(turn->slot);
  if (progress)
    sp_sub_full(&progress->gate_waiters, 1);
}

/* Enter the turn if the gate is open: *entered is true if that succeeds. Else sleep until the gate opens. False: the
 * caller looks at the grant again. True: the launch may pass the closed gate, because the agent is gone. */
bool sp_wait_turn(struct sp_device *device, struct sp_thread *thread, struct sp_stream_state *state, bool *entered) {
  uint32_t word = sp_grant_word(device->grant);
  if (word & 1u) {
    *entered = enter_turn(device, state, word);
    return false; /* the caller looks again */
  }
  sp_slot_wait_begin(device->slot);
  thread->awaits_turn = device;
  sp_region_ring(&sp_this_process.region);
  bool pass = false;
  while (sp_grant_word(device->grant) == word) {
    if (!(sp_grant_flags(device->grant) & SP_GRANT_PAUSED) && agent_gone()) {
      pass = true;
      break;
    }
    sp_grant_wait(device->grant, word, STALE_LOOK_NS);
    if (sp_slot_wait_again(device->slot)) /* its count of waiting threads was damaged: the agent did not know of us */
      sp_region_ring(&sp_this_process.region);
  }
  sp_wait_left(thread);
  return pass;
}

/* Wait until less work is in flight. `predicted_ns`: the launch's length; 0: not known. SP_MADE: some work has
 * finished, and the caller checks again. In the other cases the launch may go: SP_NEAR, the running unit is about to
 * end; SP_STUCK, nothing has ended for too long. */
enum sp_progress sp_wait_progress(struct sp_device *device, struct sp_thread *thread, struct sp_stream_state *state,
                                  uint64_t predicted_ns) {
  if (sp_load(&state->pending_ns))
    sp_stream_mark(state, /* launching */ true, /* edged */ false); /* so that progress can be seen */
  uint32_t progress = sp_load_acquire(&device->progress);
  uint64_t in_flight_ns = sp_device_in_flight(device), now_ns = sp_now_ns();
  if (in_flight_ns == 0)
    return SP_STUCK; /* there is no marker (the driver refused one), so nothing to wait for */
  if (thread->progress_seen != progress || !thread->patience_ns) { /* there was progress: its patience begins anew */
    thread->progress_seen = progress;
    thread->patience_ns = PROGRESS_NS;
    thread->passed_ns = thread->stood_ns = 0;
  }
  /* Work in flight may take as long as predicted: the patience begins after that, or after the last launch that passed
   * without progress. */
  uint64_t end_ns = sp_load(&device->began_ns) + in_flight_ns;
  if (end_ns > now_ns + EXPECTED_MAX_NS)
    end_ns = now_ns + EXPECTED_MAX_NS;
  uint64_t until_ns = (end_ns > thread->passed_ns ? end_ns : thread->passed_ns) + thread->patience_ns;
  bool is_second = predicted_ns && sp_one_in_flight(in_flight_ns, predicted_ns);
  if (is_second) { /* the budget is small beside a latency share, and this unit delays that share: so it goes late */
    uint64_t half_ns = sp_grant_budget_ns(device->grant) / 2;
    until_ns = end_ns - (half_ns < FOLLOW_NS ? half_ns : FOLLOW_NS);
  }
  /* Work that waits for something else gives its turn back, perhaps before this wait is over, and the next turn begins
   * anew with a predicted end. What the thread has waited in earlier turns counts, or it would wait for ever. */
  until_ns -= thread->stood_ns;
  if (until_ns > now_ns) {
    sp_add_full(&device->gate_waiters, 1);
    thread->awaits_progress = device;
    if (sp_load_full(&device->progress) == progress)
      futex_wait_private(&device->progress, progress, until_ns - now_ns);
    sp_wait_left(thread);
    if (sp_load_acquire(&device->progress) != progress)
      return SP_MADE;
    thread->stood_ns += sp_now_ns() - now_ns;
  }
  return is_second ? SP_NEAR : SP_STUCK;
}

/* Count a launch that passes although nothing has finished, and double the thread's patience. */
void sp_wait_gave_up(struct sp_device *device, struct sp_thread *thread) {
  sp_add(&device->passed, 1);
  thread->passed_ns = sp_now_ns();
  if (thread->patience_ns < PROGRESS_MAX_NS)
    thread->patience_ns *= 2;
}
