/*
 * The gate: every launch of the program passes it before the driver is called. It waits there until the share has the
 * turn on the device, and until little enough of the process's work is in flight.
 *
 * A unit is the work of one launch: a kernel, a graph, a memset or a copy; its length is predicted (predict.c). A
 * marker is an event that is recorded behind work in a stream; the keeper, a helper thread, waits for it. Work is
 * pending until a marker is recorded behind it, and then in flight until that marker has finished. An edge is a marker
 * just before a launch.
 *
 * The path through an open gate takes no lock, makes no system call and reads no clock. It is an announce, one acquire
 * load and a compare. `device->entered` is the name of the turn that this process has entered. Comparing it with the
 * grant's word answers two questions at once: is the gate open, and does the agent know that this process has entered?
 * To return a turn, the keeper clears `entered`, makes every thread pass a barrier (membarrier) and then reads the
 * announces: either it sees a thread's announce, or that thread sees the cleared word.
 */
#include "hook/gate/gate.h"

#include "hook/gate/wait.h"

#define LONG_NS      200000u /* for a unit at least this long, the predicted end is told at its launch */
#define ETA_SLACK_NS 50000u  /* a published end may be this much too early: publishing costs time */
#define MARKERS      8u      /* a stream's unmarked work stays below the budget divided by this */
/* How often a launch is measured alone: if the number of its unit's launches times SPREAD, in 16 bits, is below one of
 * these limits. The golden ratio spreads the measured launches, so that they fall anywhere in bursts of any length. */
#define SPREAD 40503u /* 2^16 divided by the golden ratio */
#define OFTEN  4096u  /* one in 16: of a unit's first launches, behind other launches of its stream */
#define SELDOM 256u   /* one in 256: of later ones; in an empty stream it shows how long launches take to arrive */
#define RARELY 64u    /* one in 1,024: of a unit that is known exactly, behind launches of the same unit */
#define FIRST  512u   /* this many launches of a unit are its first */
/* At most this often a launch into an idle stream gets an edge in front: a marker without work, which shows the
 * difference of the clocks. */
#define EDGE_NS 50000000u

/* The length that a unit of unknown length counts for. Half of the budget, if it is small (other shares wait) or no
 * unit is known yet: two such units may be in flight. A large budget means that the share is alone: then the unit
 * counts as the longest known one, because a program that launches new units all the time must not wait for each of
 * them. */
static uint64_t unknown_ns(const struct sp_device *device) {
  uint64_t half_ns = sp_grant_budget_ns(device->grant) / 2, longest_ns = sp_load(&device->longest_ns);
  if (longest_ns == 0)
    return half_ns;
  uint64_t guess_ns = longest_ns < SP_UNKNOWN_ALONE_NS ? SP_UNKNOWN_ALONE_NS : longest_ns;
  return half_ns < guess_ns ? half_ns : guess_ns;
}

/* May a launch of `predicted_ns` go into the stream now? Yes, if the work in flight and the stream's pending work
 * together are less than the budget. Also if one unit of this length is longer than the budget, and about one is in
 * flight: a second may follow if it is predicted to end within the grant's lookahead. With only one in flight the
 * device would idle until the news of its end has come. */
static inline bool fits(const struct sp_device *device, const struct sp_stream_state *state, uint64_t predicted_ns) {
  uint64_t in_flight_ns = sp_device_in_flight(device) + sp_load(&state->pending_ns);
  if (sp_likely(in_flight_ns < sp_grant_budget_ns(device->grant))) {
    return true;
  }
  return sp_one_in_flight(in_flight_ns, predicted_ns) &&
         in_flight_ns + predicted_ns <= sp_grant_lookahead_ns(device->grant);
}

/* Announce that this thread is between the gate and the driver's return. The caller reads the grant's word only after
 * that. */
static inline void announce(struct sp_thread *thread, const struct sp_device *device) {
  sp_store(&thread->inside, device->bit);
  if (sp_unlikely(sp_load(&sp_this_process.no_membarrier)))
    sp_fence();
  else
    sp_fence_compiler(); /* the keeper's membarrier is the other half */
}

/* The stream that `sought` names is not in the thread's cache: find its state, and put it first into `pair`, its two
 * places there. NULL: the launch cannot be metered. That is not remembered: a state may become free at any time. */
static struct sp_stream_state *look_up(struct sp_known_stream pair[2], struct sp_known_stream sought,
                                       struct sp_thread *thread, struct sp_device *device, bool per_thread) {
  sought.state = sp_stream_find(device, thread, sought.stream, per_thread);
  if (sought.state) {
    pair[1] = pair[0];
    pair[0] = sought;
  }
  return sought.state;
}

/* The state of the stream, from the thread's cache or looked up; NULL: the launch cannot be metered. `device`: that of
 * the thread's context. `per_thread`: stream NULL is the thread's own. An entry of the cache has the present `key` if
 * no stream was forgotten since it was made, and the thread's context has not changed. */
static inline struct sp_stream_state *cached_state(struct sp_device *device, struct sp_thread *thread, void *stream,
                                                   bool per_thread) {
  uint64_t generation = sp_load_acquire(&sp_this_process.stream_generation);
  uint64_t key =
      generation << 32 | thread->looks << 2 | (uint32_t)per_thread << 1 | 1; /* never 0: that marks an empty place */
  uint64_t spread = (uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15u; /* 2^64 / the golden ratio: spreads neighbours */
  struct sp_known_stream *pair = thread->known[spread >> (64 - SP_PAIRS_BITS)];
  if (sp_likely(pair[0].stream == stream && pair[0].key == key))
    return pair[0].state;
  if (pair[1].stream == stream && pair[1].key == key)
    return pair[1].state;
  return look_up(pair, (struct sp_known_stream){stream, key, NULL}, thread, device, per_thread);
}

/* Is this launch to be measured alone, by a marker directly behind it? (enter records the edge in front where one is
 * needed.) `launches` counts those of the unit; `spread` is that number times SPREAD. `first`: it is the first launch
 * of a turn, which shows when the device was free for us (marker.c). */
static bool is_measured(const struct sp_stream_state *state, const struct sp_work_profile *profile, uint16_t launches,
                        uint16_t spread, bool first) {
  bool exact = sp_profile_is_exact(profile);
  if (!sp_load(&state->pending_ns) && exact) /* `outstanding`: the stream is empty only if it has no marker either */
    return first || (spread < SELDOM && !sp_load(&state->outstanding));
  if (!sp_load(&state->pending_ns) && !sp_load(&state->outstanding))
    return false; /* the measurement would include the time that a launch takes to arrive */
  return spread < (exact && sp_load(&state->batch_profile) == profile ? RARELY : launches < FIRST ? OFTEN : SELDOM);
}

/* Pass the gate: wait for a turn, and until the launch of the unit `key` fits into the budget. Then fill `pass`, and
 * record a marker in front of the launch if one is needed. On return the thread is announced, until sp_gate_leave.
 * `entered`: this launch has entered the turn. `asked`: it has come to a closed gate. `guessed`: its length is not
 * known. */
static inline __attribute__((always_inline)) void enter(struct sp_pass *pass, struct sp_thread *thread,
                                                        struct sp_device *device, struct sp_stream_state *state,
                                                        uint64_t key) {
  struct sp_work_profile *profile = sp_profile_find(key);
  uint64_t predicted_ns;
  bool entered = false, asked = false, guessed;
  for (;;) {
    predicted_ns = sp_device_predicts(device, sp_load(&profile->predicted_ns));
    guessed = predicted_ns == 0;
    if (sp_unlikely(guessed))
      predicted_ns = unknown_ns(device);
    announce(thread, device);
    uint32_t word = sp_grant_word(device->grant);
    if (sp_likely(word == sp_load_acquire(&device->entered))) {
      if (sp_likely(fits(device, state, predicted_ns))) {
        break;
      }
      /* A thread that waits takes its announce back, or the keeper would wait for it. */
      sp_store_release(&thread->inside, 0);
      enum sp_progress progress =
          sp_wait_progress(device, thread, state, sp_load(&profile->predicted_ns) ? predicted_ns : 0);
      if (progress == SP_MADE)
        continue;
      announce(thread, device);
      if (sp_grant_word(device->grant) != sp_load_acquire(&device->entered)) {
        continue; /* the turn ended meanwhile: wait for the next one */
      }
      thread->stood_ns = 0; /* its wait for this launch is over */
      if (progress == SP_STUCK)
        sp_wait_gave_up(device, thread);
      break;
    }
    sp_store_release(&thread->inside, 0);
    if (sp_unlikely(entered)) /* the gate closed before the turn's first launch: the keeper must report it drained */
      sp_keeper_kick(device);
    entered = false;
    if (!asked) /* the wait for a turn is no pause of the program */
      sp_keeper_pause(device);
    asked = true;
    if (sp_wait_turn(device, thread, state, &entered)) {
      announce(thread, device);
      sp_add(&device->passed, 1);
      break;
    }
  }
  pass->device = device;
  pass->entered = entered;
  pass->state = state;
  pass->profile = profile;
  pass->predicted_ns = predicted_ns ? predicted_ns : 1; /* 0 would say that nothing is pending */
  if (sp_unlikely(guessed))
    sp_store(&state->batch_guessed, true);
  uint16_t launches = (uint16_t)(sp_load(&profile->launches) + 1), spread = (uint16_t)(launches * SPREAD);
  sp_store(&profile->launches, launches);
  pass->measured =
      sp_unlikely(!sp_load(&profile->predicted_ns)) || sp_unlikely(sp_profile_is_stale(profile)) ||
      ((sp_unlikely(spread < OFTEN) || sp_unlikely(entered)) && is_measured(state, profile, launches, spread, entered));
  pass->edged = false;
  if (sp_unlikely(sp_load(&state->awaits))) {
    pass->edged = sp_stream_measure(state, false); /* it shows when the wait was over */
    if (pass->edged)
      sp_store(&state->awaits, false);
  } else if (sp_unlikely(pass->measured) && (sp_load(&state->pending_ns) || !sp_profile_is_exact(profile))) {
    pass->edged = sp_stream_measure(state, false); /* the left edge */
  }
  if (sp_unlikely(!sp_load(&state->pending_ns))) {
    uint64_t now_ns = sp_now_ns();
    if (sp_unlikely(now_ns - sp_load(&state->edged_ns) > EDGE_NS) && !pass->edged && !sp_load(&state->outstanding)) {
      sp_store(&state->edged_ns, now_ns);
      pass->edged = sp_stream_measure(state, false);
      now_ns = sp_now_ns(); /* the record has taken a while */
    }
    sp_store(&state->batch_began_ns, now_ns);
  }
}

/* Is this process in a share? If not, nothing is metered. */
bool sp_gate_attached(void) {
  return sp_load(&sp_this_process.attached);
}

/* Others wait: publish when the turn's work is predicted to end, with a unit of `predicted_ns` that is about to be
 * launched. The arbiter must know that when it closes the grant. Behind a long unit the keeper may be inside the driver
 * until then; short units leave it the time to publish. The launch takes a while, so this is done before it: if the
 * grant were closed meanwhile, the arbiter would not reckon with this unit. */
static void publish_drain_eta(struct sp_device *device, const struct sp_stream_state *state, uint64_t predicted_ns) {
  pthread_mutex_lock(&device->turn_lock);
  struct sp_report *report = &device->report;
  if (report->held_turn == sp_load(&device->entered) && report->drained_turn != report->held_turn) { /* still ours */
    uint64_t ahead_ns = sp_device_in_flight(device) + sp_load(&state->pending_ns);
    if (ahead_ns == 0)
      sp_store(&device->began_ns, sp_now_ns()); /* the unit finds the device empty */
    uint64_t until_ns = sp_load(&device->began_ns) + ahead_ns + predicted_ns;
    if (predicted_ns >= LONG_NS || until_ns > report->residue_until_ns + ETA_SLACK_NS) {
      report->residue_until_ns = until_ns;
      sp_store(&device->eta_published, 1);
      sp_slot_publish(device->slot, report);
    }
  }
  pthread_mutex_unlock(&device->turn_lock);
}

/* Count a launch that passes unmetered, and publish the count here: the keeper does not publish while the process holds
 * no turn. */
static void publish_pass(struct sp_device *device) {
  pthread_mutex_lock(&device->turn_lock);
  device->report.passed = sp_add(&device->passed, 1) + 1;
  sp_slot_publish(device->slot, &device->report);
  pthread_mutex_unlock(&device->turn_lock);
}

/* A table of `most` threads or streams is full: the launch passes unmetered, and the agent is told, once. `device`:
 * NULL if the current one is not the share's. */
static void pass_crowded(struct sp_device *device, uint32_t most) {
  static uint32_t told;
  if (!device)
    return;
  publish_pass(device);
  if (!sp_exchange(&told, 1))
    sp_share_crowded(most);
}

/* Pass the gate for one launch into `stream`; it may block. If pass->device is NULL afterwards, the launch is not
 * metered. `per_thread`: stream 0 is the calling thread's own; `key`: of its unit, from sp_work_key. After the driver's
 * call the caller calls sp_gate_leave. */
void sp_gate_enter(struct sp_pass *pass, void *stream, bool per_thread, uint64_t key) {
  pass->device = NULL;
  if (sp_unlikely(!sp_load(&sp_this_process.attached)))
    return;
  struct sp_thread *thread = sp_thread_self();
  if (sp_unlikely(!thread)) {
    pass_crowded(sp_device_current(), SP_THREADS_MAX);
    return;
  }
  if (sp_unlikely(sp_load(&thread->inside)))
    return; /* the driver has called its own export, which is our wrapper */
  struct sp_device *device = thread->device;
  if (sp_unlikely(!device || !sp_this_process.single_device)) {
    device = sp_device_current();
    if (!device)
      return;
    sp_thread_on(thread, device);
  }
  if (sp_unlikely(sp_load(&sp_this_process.captures)) && sp_stream_capturing(stream, per_thread))
    return;
  struct sp_stream_state *state = cached_state(device, thread, stream, per_thread);
  if (sp_unlikely(!state)) {
    if (sp_streams_full()) /* else, nearly always, the share does not hold the stream's device */
      pass_crowded(device, SP_STREAMS_MAX);
    return;
  }
  device = state->device; /* the stream's device, which may differ from the current one */
  if (sp_unlikely(sp_load(&device->keeper) != SP_KEEPER_RUNS) && !sp_keeper_start(device)) {
    publish_pass(device); /* without a keeper its turns would never end */
    return;
  }
  enter(pass, thread, device, state, key);
  bool tells_end = pass->predicted_ns >= LONG_NS || sp_load(&device->eta_published); /* a long unit, or behind one */
  if (sp_unlikely(tells_end) && sp_grant_flags(device->grant) & SP_GRANT_CONTENDED && sp_device_foresees(device))
    publish_drain_eta(device, state, pass->predicted_ns);
}

/* The driver has accepted the launch, and the announce still stands. Add the launch to the pending work of its stream.
 * Record a marker behind that work, and wake the keeper, if the work has grown long, if the unit's time is unknown or
 * stale, or if only this thread may record there. Else record one only if this launch is measured alone. */
static inline __attribute__((always_inline)) void count_launch(const struct sp_pass *pass, struct sp_thread *thread) {
  struct sp_device *device = pass->device;
  struct sp_stream_state *state = pass->state;
  struct sp_work_profile *profile = sp_load(&state->batch_profile);
  uint8_t version = sp_load(&pass->profile->version);
  if (!profile) {
    sp_store(&state->batch_version, version);
    sp_store(&state->batch_profile, pass->profile);
  } else if (sp_unlikely(profile != pass->profile || sp_load(&state->batch_version) != version)) {
    sp_store(&state->batch_mixed, true);
  }
  sp_store(&state->batch_launches, sp_load(&state->batch_launches) + 1);
  uint64_t pending_ns = sp_add_full(&state->pending_ns, pass->predicted_ns) + pass->predicted_ns;
  sp_store(&thread->launches[device->index], thread->launches[device->index] + 1);
  if (sp_unlikely(pending_ns >= sp_grant_budget_ns(device->grant) / MARKERS) ||
      sp_unlikely(!sp_load(&pass->profile->predicted_ns)) || sp_unlikely(sp_profile_is_stale(pass->profile)) ||
      /* no other thread may record there while a capture is open */
      (sp_unlikely(sp_load(&sp_this_process.captures)) && sp_stream_is_legacy(state)))
    sp_stream_mark(state, /* launching */ true, pass->edged);
  else if (sp_unlikely(pass->measured) && sp_stream_measure(state, pass->edged) && pass->edged)
    sp_stream_measure(state, false); /* a second one: it shows what an event takes, which is not part of the unit */
}

/* The driver has been called: count the launch if it was accepted, and withdraw the announce. */
void sp_gate_leave(struct sp_pass *pass, int result) {
  struct sp_device *device = pass->device;
  if (!device)
    return;
  struct sp_thread *thread = sp_thread_self();
  if (sp_likely(result == CUDA_SUCCESS))
    count_launch(pass, thread);
  sp_store_release(&thread->inside, 0);
  if (sp_unlikely(pass->entered)) /* after the launch, because a wake-up takes longer than a launch */
    sp_keeper_kick(device);
}

/* The thread has left an earlier call by a jump (siglongjmp in a signal handler): undo what that call left at the
 * gate. */
void sp_gate_left(void) {
  struct sp_thread *thread = sp_load(&sp_this_process.attached) ? sp_thread_self() : NULL;
  if (!thread)
    return;
  sp_record_left(thread);
  sp_wait_left(thread);
  uint32_t inside = sp_load(&thread->inside);
  sp_store_release(&thread->inside, 0);
  for (; inside; inside &= inside - 1) /* each bit is a device: its turn may have been entered for that very launch */
    sp_keeper_kick(&sp_this_process.devices[__builtin_ctz(inside)]);
}

/* The driver has accepted a launch that passes no gate: count it, on the current device. */
void sp_gate_passed(void) {
  struct sp_device *device = sp_load(&sp_this_process.attached) ? sp_device_current() : NULL;
  if (device)
    publish_pass(device);
}

/* The stream is about to get an item that waits for something else than the device's work (`awaited`: for what). Mark
 * the work in front of the item, and note the wait in the stream's state. */
void sp_gate_awaiting(void *stream, bool per_thread, enum sp_awaited awaited) {
  if (sp_likely(!sp_load(&sp_this_process.attached)))
    return;
  struct sp_thread *thread = sp_thread_self();
  if (!thread || sp_load(&thread->inside))
    return;
  /* A wait for an event can be a wait for work of this device, unless some stream here waits for the host. */
  if (awaited == SP_AWAITS_HOST)
    sp_store(&sp_this_process.host_awaited, 1);
  else if (sp_this_process.single_device && !sp_load(&sp_this_process.host_awaited))
    return;
  struct sp_device *device = thread->device && sp_this_process.single_device ? thread->device : sp_device_current();
  if (!device || (sp_load(&sp_this_process.captures) && sp_stream_capturing(stream, per_thread)))
    return;
  sp_thread_on(thread, device);
  struct sp_stream_state *state = cached_state(device, thread, stream, per_thread);
  if (!state)
    return;
  /* While a capture is open, a question to the driver could end it, even if another thread has begun it. */
  if (sp_load(&state->pending_ns) && (sp_load(&sp_this_process.captures) || !sp_stream_over(state, thread)))
    sp_stream_mark(state, /* launching */ true, /* edged */ false); /* behind the wait its end would be seen too late */
  sp_store(&state->awaits, true);
}

/* The calling thread is about to wait for its work, as `sync` says (`stream` counts only for SP_SYNC_STREAM): record
 * markers that show when that work ends. */
void sp_gate_syncing(void *stream, bool per_thread, enum sp_sync sync) {
  if (!sp_load(&sp_this_process.attached) || sp_load(&sp_this_process.captures))
    return; /* a record could disturb a capture, even one of another thread */
  struct sp_thread *thread = sp_thread_self();
  if (thread && thread->device)
    sp_streams_close(thread->device, thread, stream, per_thread, sync);
}

/* The thread has come back from a synchronising call: what it waited for has ended, and its turn may be returned
 * early. */
void sp_gate_synced(enum sp_sync sync) {
  if (!sp_load(&sp_this_process.attached))
    return;
  struct sp_thread *thread = sp_thread_self();
  struct sp_device *device = thread ? thread->device : NULL;
  if (device)
    sp_streams_closed(device, thread, sync);
  uint32_t flags = device ? sp_grant_flags(device->grant) : 0;
  if (flags & (SP_GRANT_CONTENDED | SP_GRANT_LIMITED)) /* only then idle time counts */
    sp_keeper_synced(device, flags & SP_GRANT_CONTENDED);
}

/* The thread has another current context: its device and stream states must be looked up again. */
void sp_gate_context_changed(void) {
  if (!sp_load(&sp_this_process.attached))
    return;
  struct sp_thread *thread = sp_thread_self();
  if (!thread)
    return;
  thread->device = NULL;
  sp_thread_forget_streams(thread);
}

/* A capture into the stream is about to begin: record markers behind all pending work of the current context, and count
 * the capture. */
void sp_gate_capture_begin(void *stream, bool per_thread) {
  if (!sp_load(&sp_this_process.attached))
    return;
  struct sp_thread *thread = sp_thread_self();
  struct sp_device *device = thread ? sp_device_current() : NULL;
  CUcontext context = NULL;
  /* Markers behind earlier work must be recorded before the capture begins: later they would become part of it. That
   * holds for other streams, too: they may join the capture, and then the keeper cannot use the legacy stream. */
  if (device && !sp_stream_capturing(stream, per_thread) && sp_driver()->cuCtxGetCurrent(&context) == CUDA_SUCCESS) {
    sp_stream_find(device, thread, stream, per_thread); /* so that its captures are counted */
    sp_streams_mark_all(device, context, SP_BY_OTHER);
  }
  sp_streams_capture_begin(stream);
}

/* A capture into the stream has ended, or has not begun after all: it does not count any more. */
void sp_gate_capture_end(void *stream, bool per_thread) {
  (void)per_thread; /* only the begin of a capture needs it */
  sp_streams_capture_end(stream);
}

/* Is any capture of this process open? */
bool sp_gate_captures(void) {
  return sp_load(&sp_this_process.attached) && sp_load(&sp_this_process.captures);
}

/* The unit `key` is other work from now on (an executable graph was updated), or is `gone`: what was learned of it does
 * not hold any more. */
void sp_gate_work_changed(uint64_t key, bool gone) {
  if (sp_load(&sp_this_process.attached))
    sp_profile_changed(key, gone);
}

/* The stream is about to be destroyed: record a last marker, then forget its state. */
void sp_gate_forget_stream(void *stream) {
  if (sp_load(&sp_this_process.attached))
    sp_streams_forget(stream, NULL);
}

/* The context is about to be destroyed: record last markers in its streams, then forget their states. */
void sp_gate_forget_context(void *context) {
  if (sp_load(&sp_this_process.attached) && context)
    sp_streams_forget(NULL, context);
}

/* The context is really gone, and so are the captures that were open in its streams. */
void sp_gate_context_gone(const void *context) {
  if (sp_load(&sp_this_process.attached))
    sp_streams_gone(context);
}
