/*
 * The keeper: one helper thread for each device that a process uses. It waits for markers (events behind launched
 * work), wakes the gate, learns durations, drains at the end of a turn and returns an idle turn. It may block in the
 * driver behind a kernel that never ends: the arbiter bounds every drain, so only this process depends on its keeper.
 *
 * A turn has the grant's odd word as its name. The process returns it in one of two ways. It drains the turn: the
 * arbiter has closed the grant, and the keeper waits for the end of the work. Or it parks the turn: the process is
 * idle, and may enter the same turn again while the grant is open. In both cases device->entered becomes 0 first, which
 * sends later launches to the slow half of the gate, and then the slot reports the turn drained.
 *
 * Work stands if it is in flight behind a wait of the program that is not over (stand.c). It does not run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hook/gate/process.h"
#include "region/uncancelled.h"

#define LINGER_MIN_NS     50000u      /* an idle turn is kept for at least this … */
#define LINGER_MAX_NS     200000u     /* … and at most this */
#define LOOK_MIN_NS       100000u     /* the first look after a launch */
#define LOOK_ALONE_NS     4000000u    /* the longest time between looks while no other share waits */
#define LOOK_CONTENDED_NS 200000u     /* … and while another one waits */
#define LOOK_STANDING_NS  500000u     /* between looks at a wait that work stands behind, once the turn is returned */
#define ASLEEP_NS         1000000000u /* the longest sleep without a turn; after it the slot's lock is refreshed */
#define TELL_NS           100000      /* this much idle time is published at once */
#define SPARSE_NS      1000000u   /* work with pauses in it is marked at most this often, so that the pauses are seen */
#define COUNT_NS       100000000u /* how old the published counters of a long turn may be */
#define LEAVES_NS      100000u    /* work that usually stands for longer leaves the device to another share at once */
#define INSIDE_POLL_NS 20000u     /* between looks whether threads are inside the driver */
#define BLOCKED_NS     10000u     /* a wait that takes longer than this has slept */
#define LAST_LOOKS     50         /* of INSIDE_POLL_NS, at the end of the process */
#define SAME_END_NS    50000u     /* two predictions of the end of a drain that differ by less are the same */

/* Wake the keeper if it sleeps. If it is about to sleep, it sees that `kick` has changed, and does not. errno stays. */
void sp_keeper_kick(struct sp_device *device) {
  sp_add_full(&device->kick, 1);
  if (!sp_load_full(&device->asleep))
    return; /* pairs with sleep_until_kicked */
  int saved = errno;
  syscall(SYS_futex, &device->kick, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  errno = saved;
}

/* Add a pause of the program to the moving average of its pauses, device->gap_ns, which sets the linger: how long an
 * idle turn is kept. */
static void learn_pause(struct sp_device *device, uint64_t pause_ns) {
  uint64_t gap_ns = sp_load(&device->gap_ns);
  if (pause_ns > 1000000)
    pause_ns = 1000000; /* so that one long pause does not hide the short ones for ever */
  sp_store(&device->gap_ns, gap_ns - gap_ns / 4 + pause_ns / 4);
}

/* Called before a launch that enters a turn or waits for one: if nothing is in flight, the program has paused since its
 * last work. Learn how long. */
void sp_keeper_pause(struct sp_device *device) {
  uint64_t finished_ns = sp_load(&device->finished_ns), now_ns = sp_now_ns();
  if (finished_ns && now_ns > finished_ns && !sp_device_in_flight(device))
    learn_pause(device, now_ns - finished_ns);
}

/* Sleep until a kick, for at most `timeout_ns`; `kick` is the counter as the caller has read it. While the process
 * holds a turn (`holding`), the sleep also ends when the grant changes from `word`. Otherwise the grant need not wake
 * the keeper: the thread that enters the next turn kicks it, and an earlier wake-up would take the core from that
 * thread. */
static void sleep_until_kicked(struct sp_device *device, uint32_t kick, bool holding, uint32_t word,
                               uint64_t timeout_ns) {
  struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
  sp_store_full(&device->asleep, 1);
  if (sp_load_full(&device->kick) == kick) {
    if (holding)
      sp_grant_wait_or(device->grant, word, &device->kick, kick, timeout_ns);
    else
      syscall(SYS_futex, &device->kick, FUTEX_WAIT_PRIVATE, kick, &timeout, NULL, 0);
  }
  sp_store_full(&device->asleep, 0);
}

static bool queue_empty(const struct sp_device *device) {
  return sp_load_acquire(&device->queue_tail) == sp_load(&device->queue_head);
}

/* The queue is not empty: wait for its oldest marker, take it out, and wake the threads that wait for progress. False:
 * the marker stays, because it stands behind a wait of the program that is not over, and may never be. May change the
 * current context. */
static bool wait_for_marker(struct sp_device *device) {
  const struct sp_driver *driver = sp_driver();
  struct sp_marker *marker = &device->queue[device->queue_head % SP_MARKERS_MAX];
  struct sp_stream_state *state = marker->state;
  bool waited = false;
  uint64_t began_ns = sp_now_ns();
  sp_store_full(&device->waiting_state, state); /* pairs with await_keeper in stream_state.c */
  if (sp_stands_first(device)) {
    sp_store_full(&device->waiting_state, NULL);
    return false;
  }
  if (!sp_load_full(&state->dead)) {
    if (driver->cuCtxSetCurrent) {
      driver->cuCtxSetCurrent(state->context); /* a driver may refuse an event of a context that is not current */
    }
    /* Any error counts as finished: the context is lost or the driver is being torn down. */
    waited = driver->cuEventSynchronize(marker->event) == CUDA_SUCCESS;
  }
  sp_marker_finish(device, waited, sp_now_ns() - began_ns > BLOCKED_NS);
  sp_store_full(&device->waiting_state, NULL);
  sp_add_full(&device->progress, 1);
  if (sp_load_full(&device->gate_waiters))
    syscall(SYS_futex, &device->progress, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
  return true;
}

/* Bring the report's counters up to date and publish it. The caller holds turn_lock. */
static void publish(struct sp_device *device) {
  struct sp_report *report = &device->report;
  report->launches = sp_threads_launches(device->index);
  /* Negative: that much of the reported idle time was work. It cannot be more than was reported. */
  int64_t starved_ns = sp_exchange(&device->starved_ns, 0);
  if (starved_ns < 0 && (uint64_t)-starved_ns > report->idle_ns)
    starved_ns = -(int64_t)report->idle_ns;
  report->idle_ns += (uint64_t)starved_ns;
  report->passed = sp_load(&device->passed);
  uint64_t longest_us = sp_load(&device->longest_ns) / 1000 + 1;
  report->longest_unit_us = longest_us > UINT32_MAX ? UINT32_MAX : (uint32_t)longest_us;
  sp_slot_publish(device->slot, report);
}

/* Publish the report if device->starved_ns, the correction of its idle time, is large: for the arbiter time counts as
 * work until it is reported as idle. The other counters of a long turn are published every COUNT_NS, however full the
 * device's queue is. *told_ns: when this last published. Takes turn_lock. */
static void publish_if_due(struct sp_device *device, uint64_t *told_ns) {
  uint64_t now_ns = sp_now_ns();
  int64_t starved_ns = sp_load(&device->starved_ns);
  if (starved_ns < TELL_NS && starved_ns > -TELL_NS && now_ns - *told_ns < COUNT_NS)
    return;
  *told_ns = now_ns;
  pthread_mutex_lock(&device->turn_lock);
  publish(device);
  pthread_mutex_unlock(&device->turn_lock);
}

/* Leave the entered turn: every later launch waits at the gate. True: no thread launches under it any more. The caller
 * holds turn_lock. */
static bool try_leave(struct sp_device *device) {
  sp_store_full(&device->entered, 0);
  sp_barrier(); /* pairs with announce() in gate.c */
  return !sp_threads_inside(device->index);
}

/* Leave the entered turn, and wait for the threads that are inside the driver. True: no thread launches under it any
 * more. False: the next turn has been entered meanwhile. Takes turn_lock. */
static bool leave_turn(struct sp_device *device) {
  pthread_mutex_lock(&device->turn_lock);
  bool left = try_leave(device);
  pthread_mutex_unlock(&device->turn_lock);
  while (!left) {
    sp_sleep_ns(INSIDE_POLL_NS); /* a launch may be blocked by a full queue: the drain makes room */
    if (!queue_empty(device))
      wait_for_marker(device);
    left = !sp_threads_inside(device->index);
    if (sp_load(&device->entered))
      return false;
  }
  return true;
}

/* Report the turn drained. False: a thread has entered again, and nothing was reported. The time of the drain is the
 * end of the turn's work, even if we see that late. It is the present time if the idle time since that end kept others
 * out (`idle_counts`). It also is the present time if work stands (device->aside), which was launched after that end.
 * The caller holds turn_lock and has left the turn. */
static bool say_drained(struct sp_device *device, uint32_t turn, bool idle_counts) {
  if (device->report.held_turn != turn || sp_load(&device->entered))
    return false;
  uint64_t finished_ns = sp_load(&device->finished_ns), now_ns = sp_now_ns();
  if (finished_ns < device->entry_ns) /* no work has run since the entry */
    finished_ns = device->entry_ns;
  device->aside = sp_streams_pending(device);
  device->report.drained_turn = turn;
  device->report.drained_ns = idle_counts || device->aside || finished_ns > now_ns ? now_ns : finished_ns;
  uint64_t ended_ns = sp_load(&device->ended_ns); /* the closer guess of that end, if it is in this turn */
  device->report.residue_until_ns = ended_ns > device->entry_ns && ended_ns < finished_ns ? ended_ns : finished_ns;
  publish(device);
  return true;
}

/* Is there work that has not ended, as far as is known? */
static bool has_work(const struct sp_device *device) {
  return !queue_empty(device) || sp_streams_pending(device);
}

/* Does any work of ours run? None does if all of it stands. */
static bool work_runs(struct sp_device *device) {
  return has_work(device) && !sp_stands(device);
}

/* The grant is closed: publish when the work is predicted to end, wait for its end, then report the turn drained.
 * Returns early if a thread has entered the next turn, or if some work cannot be marked: then the keeper's next round
 * drains again. */
static void drain(struct sp_device *device, uint32_t turn) {
  if (!leave_turn(device))
    return;
  bool stands = sp_stands(device);
  /* As SP_BY_KEEPER it may wait for room in a stream, which a stream that stands may never have. */
  sp_streams_mark_all(device, /* context */ NULL, stands ? SP_BY_OTHER : SP_BY_KEEPER);
  uint64_t in_flight_ns = sp_device_in_flight(device);
  if (in_flight_ns && !stands && sp_device_foresees(device)) {
    uint64_t now_ns = sp_now_ns(), end_ns = sp_load(&device->began_ns) + in_flight_ns;
    uint64_t residue_ns = end_ns > now_ns ? end_ns - now_ns : 0;
    pthread_mutex_lock(&device->turn_lock);
    uint64_t published_ns = device->report.residue_until_ns;
    if (device->report.held_turn == turn) {
      device->report.residue_until_ns = now_ns + residue_ns;
      publish(device);
    }
    pthread_mutex_unlock(&device->turn_lock);
    /* Do not wake the arbiter for what it knows: at this moment the next share is being woken. */
    bool known = published_ns + SAME_END_NS > end_ns && published_ns < end_ns + SAME_END_NS;
    if (residue_ns && !known)
      sp_region_ring(&sp_this_process.region);
  }
  while (!queue_empty(device)) {
    if (!wait_for_marker(device)) {
      if (sp_stands(device))
        break;
      sp_sleep_ns(LOOK_MIN_NS); /* another stream has work: its marker is behind this wait in the queue */
    }
    if (sp_load(&device->entered))
      return; /* the share got its next turn, and a thread has entered it: this turn is over */
  }
  if (work_runs(device)) { /* a capture forbids a marker: look again soon; the arbiter's bound limits the drain */
    sp_sleep_ns(LOOK_CONTENDED_NS);
    return;
  }
  pthread_mutex_lock(&device->turn_lock);
  bool said = say_drained(device, turn, /* idle_counts */ false); /* the arbiter bills idle time up to its close */
  pthread_mutex_unlock(&device->turn_lock);
  if (said)
    sp_region_ring(&sp_this_process.region);
}

/* Return the turn if none of our work runs and nothing was launched since `launches`. The gate may enter the turn
 * again. `contended`: others wait, so the idle time until now counts. `stands`: all work that was launched until then
 * stands. The caller holds turn_lock. */
static void park_locked(struct sp_device *device, uint32_t turn, uint64_t launches, bool contended, bool stands) {
  if (sp_load(&device->entered) != turn)
    return;
  if (!try_leave(device) || (has_work(device) && !stands) || sp_threads_launches(device->index) != launches) {
    /* Enter it again: for the agent it still is the same turn, because nothing else was published. */
    if (sp_grant_word(device->grant) == turn)
      sp_store_release(&device->entered, turn);
  } else if (say_drained(device, turn, contended)) {
    sp_fence(); /* pairs with sp_pressure_update: one of the two sees the other */
    if (sp_grant_flags(device->grant) & SP_GRANT_CONTENDED)
      sp_region_ring(&sp_this_process.region);
  }
}

/* Take turn_lock and call park_locked. `asks`: the driver may be asked whether work stands. That makes another context
 * current, so only the keeper asks. */
static void park(struct sp_device *device, uint32_t turn, uint64_t launches, bool contended, bool asks) {
  bool stands = asks && sp_stands(device);
  pthread_mutex_lock(&device->turn_lock);
  park_locked(device, turn, launches, contended, stands);
  pthread_mutex_unlock(&device->turn_lock);
}

/* Runs at the end of the process: publish its last counts and return its turns. Else it would be billed for the time in
 * which the kernel takes it apart. A thread that still runs may hold turn_lock for ever: then the last report stays. */
__attribute__((destructor)) static void say_last(void) {
  SP_UNCANCELLED;
  if (!sp_load(&sp_this_process.attached) || sp_this_process.region.slot->pid != (int32_t)getpid())
    return; /* a child that was cloned without our fork handler: the slot belongs to its parent */
  for (uint32_t index = 0; index < sp_this_process.device_count; index++) {
    struct sp_device *device = &sp_this_process.devices[index];
    for (int look = 0; look < LAST_LOOKS && has_work(device); look++) {
      sp_keeper_kick(device);      /* without a kick it looks every 4 ms only */
      sp_sleep_ns(INSIDE_POLL_NS); /* the keeper is about to see the end of work that the program has waited for */
    }
    uint64_t launches = sp_threads_launches(device->index);
    /* With a thread inside the driver the turn could not be left, and a question might wait for that thread. */
    bool asks = sp_load(&device->entered) && has_work(device) && !sp_threads_inside(device->index);
    bool stands = asks && sp_stands(device), locked = false;
    for (int look = 0; look < LAST_LOOKS && !(locked = !pthread_mutex_trylock(&device->turn_lock)); look++)
      sp_sleep_ns(INSIDE_POLL_NS);
    if (!locked)
      continue;
    publish(device);
    uint32_t turn = sp_load(&device->entered);
    if (turn) {
      park_locked(device, turn, launches, sp_grant_flags(device->grant) & SP_GRANT_CONTENDED, stands);
      sp_region_ring(&sp_this_process.region); /* the grant may have been closed meanwhile */
    }
    pthread_mutex_unlock(&device->turn_lock);
  }
}

/* Will the program pause for longer than a linger? It has waited for its work, and no thread of it is just being told
 * that it may launch. */
static bool will_pause(const struct sp_device *device) {
  return !sp_load(&device->gate_waiters) && sp_load(&device->synced);
}

/* How long an idle turn is kept for the program's next launch: twice its usual pause, within bounds. If its pauses are
 * longer than the upper bound, the turn is kept for the least time; or not at all, if others wait (`contended`) and the
 * program will pause. */
static uint64_t linger_ns(const struct sp_device *device, bool contended) {
  uint64_t gap_ns = sp_load(&device->gap_ns), linger = 2 * gap_ns;
  if (gap_ns > LINGER_MAX_NS)
    return contended && will_pause(device) ? 0 : LINGER_MIN_NS;
  return linger < LINGER_MIN_NS ? LINGER_MIN_NS : linger > LINGER_MAX_NS ? LINGER_MAX_NS : linger;
}

/* A thread has come back from a call that waits for its work, and idle time of this turn is charged: others wait
 * (`contended`), or SP_GRANT_LIMITED is set. If others wait, the program will pause and none of its work is left, this
 * thread returns the turn at once. Else it wakes the keeper, which decides. */
void sp_keeper_synced(struct sp_device *device, bool contended) {
  SP_UNCANCELLED;
  int saved = errno;
  uint64_t launches = sp_threads_launches(device->index); /* read first: park keeps the turn if there are more since */
  uint32_t turn = sp_load(&device->entered);
  sp_store(&device->synced, 1); /* for will_pause */
  if (contended && turn && linger_ns(device, /* contended */ true) == 0 && !has_work(device)) {
    park(device, turn, launches, /* contended */ true, /* asks */ false);
    sp_store(&device->synced, 0);
  } else {
    sp_keeper_kick(device); /* the end of work has woken it, but it may have looked before `synced` was set */
  }
  errno = saved;
}

/* The keeper's thread for the device `argument`, until the process is not attached any more. Each round of the loop
 * finishes a marker, drains a closed turn, returns an idle one, or sleeps. */
void *sp_keeper_run(void *argument) {
  struct sp_device *device = argument;
  const struct sp_driver *driver = sp_driver();
  prctl(PR_SET_NAME, "sharepod-keeper");
  prctl(PR_SET_TIMERSLACK, 1);
  int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (driver->cuThreadExchangeStreamCaptureMode)
    driver->cuThreadExchangeStreamCaptureMode(&relaxed);
  uint64_t launches_seen = 0, look_ns = LOOK_MIN_NS; /* the launches at the last look, and the sleep after it */
  uint64_t idle_since_ns = 0;                        /* 0: the process is not idle */
  /* When the slot's lock was last refreshed, the report published, and work with pauses marked. */
  uint64_t locked_ns = sp_now_ns(), told_ns = 0, marked_ns = 0;
  uint64_t beside_told_ns = 0; /* device->beside_ns when the agent was last told of it */
  bool believed = false;       /* that the program pauses now: believed once for each piece of work */
  while (sp_load(&sp_this_process.attached)) {
    /* Read before the state that a kick announces: so a later kick ends the sleep below at once. */
    uint32_t kick = sp_load_full(&device->kick);
    bool standing = false; /* the oldest marker stands */
    if (!queue_empty(device) && !(standing = !wait_for_marker(device))) {
      publish_if_due(device, &told_ns);
      idle_since_ns = 0;
      if (sp_grant_word(device->grant) == sp_load(&device->entered))
        continue;
    }
    uint32_t word = sp_grant_word(device->grant);
    pthread_mutex_lock(&device->turn_lock);
    uint32_t turn = device->report.held_turn;
    bool holding = turn != 0 && device->report.drained_turn != turn;
    pthread_mutex_unlock(&device->turn_lock);
    if (!holding) {
      uint64_t now_ns = sp_now_ns();
      if (now_ns - locked_ns > ASLEEP_NS) {
        sp_region_relock(&sp_this_process.region);
        locked_ns = now_ns;
        sp_keeper_last();
      }
      if (device->beside_ns != beside_told_ns) { /* no report of a turn has published it */
        beside_told_ns = device->beside_ns;
        sp_region_ring(&sp_this_process.region);
      }
      if (queue_empty(device) && sp_streams_pending(device)) /* work stood, and its stream was full */
        sp_streams_mark_all(device, /* context */ NULL, SP_BY_KEEPER);
      if (queue_empty(device) || standing)
        sleep_until_kicked(device, kick, /* holding */ false, word, standing ? LOOK_STANDING_NS : ASLEEP_NS);
      continue;
    }
    if (word != turn) {
      drain(device, turn);
      idle_since_ns = 0;
      continue;
    }
    uint32_t flags = sp_grant_flags(device->grant);
    bool contended = flags & SP_GRANT_CONTENDED;
    uint64_t launches = sp_threads_launches(device->index);
    bool at_once = standing && contended && device->stood_ns > LEAVES_NS && sp_stands(device);
    if (at_once)                /* return the turn without a linger */
      launches_seen = launches; /* the next launches will stand, too */
    if (launches != launches_seen && contended && !believed && will_pause(device)) {
      believed = true; /* no need to watch whether the program goes on launching */
      launches_seen = launches;
      idle_since_ns = 0;
    } else if (launches != launches_seen) { /* the program is launching: look again, but ever less often */
      sp_store(&device->synced, 0);
      believed = false;
      uint64_t longest_ns = contended || flags & SP_GRANT_LIMITED ? LOOK_CONTENDED_NS : LOOK_ALONE_NS;
      look_ns = launches_seen ? look_ns * 2 : LOOK_MIN_NS;
      if (look_ns > longest_ns)
        look_ns = longest_ns;
      launches_seen = launches;
      if (idle_since_ns)
        learn_pause(device, (sp_now_ns() - idle_since_ns) / 2); /* the program came back within the linger */
      idle_since_ns = 0;
      publish_if_due(device, &told_ns);
      uint64_t now_ns = sp_now_ns();
      if (now_ns - marked_ns > SPARSE_NS && queue_empty(device) && sp_streams_sparse(device, now_ns)) {
        marked_ns = now_ns;
        sp_streams_mark_all(device, /* context */ NULL, SP_BY_KEEPER); /* its idle time has not been published yet */
      }
      sleep_until_kicked(device, kick, /* holding */ true, word, look_ns);
    } else if (!standing && sp_streams_pending(device)) {
      sp_streams_mark_all(device, /* context */ NULL, SP_BY_KEEPER);
      if (queue_empty(device))
        sp_sleep_ns(LOOK_CONTENDED_NS); /* the markers were refused: a capture is open */
    } else {                            /* none of our work runs */
      uint64_t now_ns = sp_now_ns(), linger = linger_ns(device, contended);
      if (!idle_since_ns)
        idle_since_ns = now_ns;
      look_ns = LOOK_MIN_NS;
      if (standing && !sp_stands(device)) { /* the marker of work in another stream is behind it in the queue */
        idle_since_ns = 0;
        sleep_until_kicked(device, kick, /* holding */ true, word, LOOK_CONTENDED_NS);
      } else if (at_once || now_ns - idle_since_ns >= linger) {
        if (standing)
          sp_streams_mark_all(device, /* context */ NULL, SP_BY_OTHER); /* so that its end is seen */
        park(device, turn, launches, contended, /* asks */ true);
        sp_store(&device->synced, 0);
        believed = false;
        idle_since_ns = 0;
      } else {
        sleep_until_kicked(device, kick, /* holding */ true, word, linger - (now_ns - idle_since_ns));
      }
    }
  }
  return NULL;
}
