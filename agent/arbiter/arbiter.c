/*
 * The arbiter's thread, and the functions of arbiter.h that add, change and remove devices and shares. node.h lists
 * which file does what.
 *
 * The public functions take the arbiter's lock, the static ones run under it. After a change of a share the thread is
 * poked, which then steps the devices. `now_ns` is CLOCK_MONOTONIC. A member is a share on one of its devices.
 */
#define _GNU_SOURCE
#include "agent/arbiter/arbiter.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "agent/arbiter/node.h"

#define EVENTS 64

/* The tag of the events of a share's doorbell: see SP_TAG_DOORBELL. `share` is its handle. */
static uint64_t doorbell_tag(int share) {
  return (uint64_t)SP_TAG_DOORBELL << 62 | (uint64_t)share << 8;
}

/* Processes of the share have rung: look at those that are new, and step the share's devices. */
static void on_doorbell(struct sp_arbiter *arbiter, struct sp_share *share) {
  bool full; /* a process says that it found no free slot */
  /* Before the scan, so that a change that the scan misses rings again. */
  uint64_t rung = sp_doorbell_drain(&share->region, &full, &share->rings);
  uint64_t now_ns = sp_now_ns();
  sp_slots_mark_responsive(share, rung);
  if (rung & ~share->watched || full) /* a process that is not known yet */
    sp_slots_watch(arbiter, share, now_ns);
  if (full)
    sp_diagnostic_full(share);
  sp_step_share(arbiter, share, now_ns);
}

/* Bill the device after a standstill: the agent's threads stood still for longer than SP_STALE_NS, so all gates opened.
 * Each turn is scanned before its time is billed: one that drained meanwhile pays until its drain, not until now. */
static void bill_standstill(struct sp_arbiter *arbiter, struct sp_node_device *device, uint64_t now_ns) {
  for (uint32_t index = device->draining; index-- > 0;) /* downwards: an update may end a drain */
    sp_turn_update(arbiter, device->drains[index], now_ns);
  if (device->holder)
    sp_turn_update(arbiter, device->holder, now_ns);
  sp_bill(device, now_ns);
}

/* Do what is due without an event: write the heartbeat if it is due, look at what rings no doorbell, and step every
 * device. Called every SP_TICK_NS, and after a standstill. */
static void tick(struct sp_arbiter *arbiter, uint64_t now_ns) {
  arbiter->ticked_ns = now_ns;
  bool beat = now_ns - arbiter->heartbeat_ns > SP_BEAT_NS;
  if (beat) {
    arbiter->heartbeat_ns = now_ns;
    for (uint32_t index = 0; index < arbiter->device_count; index++) {
      struct sp_node_device *device = &arbiter->devices[index];
      if (device->heartbeat_ns && now_ns - device->heartbeat_ns > SP_STALE_NS)
        bill_standstill(arbiter, device, now_ns);
      device->heartbeat_ns = now_ns;
    }
  }
  for (int handle = 0; handle < SP_SHARES_MAX; handle++) {
    struct sp_share *share = arbiter->shares[handle];
    if (!share)
      continue;
    if (beat) { /* not at every tick, because it touches a page of every share */
      sp_region_heartbeat(&share->region, now_ns);
      sp_terms_mend(arbiter, share);
    }
    /* Look once in SP_WATCH_NS, but at each tick while the process of some slot is not known. */
    bool look = now_ns - share->watched_ns >= SP_WATCH_NS || share->watched != share->claimed;
    bool late = false; /* a drain is late: its process may have become another program */
    for (uint32_t index = 0; index < share->member_count; index++)
      late = late || (share->members[index].draining && share->members[index].cogranted);
    sp_diagnostics_flood(share, now_ns);
    if (look || late)
      sp_identity_ask(arbiter, share, now_ns);
    if (share->gone) /* a slot could not be cleared at once */
      sp_identity_clear(arbiter, share);
    if (look) {
      share->watched_ns = now_ns;
      sp_slots_watch(arbiter, share, now_ns);
      sp_slots_mark_responsive(share, UINT64_MAX); /* all: a process that was stopped may run again */
    }
    for (uint32_t index = 0; index < share->member_count; index++) {
      struct sp_member *member = &share->members[index];
      if (look || member->holding || member->draining)
        sp_turn_update(arbiter, member, now_ns);
      if (member->holding)
        sp_bill(member->device, now_ns); /* the account of a long turn stays current */
    }
  }
  for (uint32_t index = 0; index < arbiter->device_count; index++)
    sp_step(arbiter, &arbiter->devices[index], now_ns); /* a step can be due by the passing of time alone */
}

/* Handle one event of epoll_wait. Its tag (SP_TAG_*) tells what it is: the timer or a poke, which only ends the wait;
 * a doorbell; or the end of a process. */
static void handle(struct sp_arbiter *arbiter, const struct epoll_event *event) {
  uint64_t tag = event->data.u64;
  if (tag >> 62 == SP_TAG_LOOP) {
    uint64_t count; /* read to reset it */
    ssize_t got = read((int)(tag & 0xffffffff), &count, sizeof count);
    (void)got;
    return;
  }
  struct sp_share *share = arbiter->shares[(tag >> 8) & 0xffffff];
  if (!share)
    return; /* removed in this batch */
  if (tag >> 62 == SP_TAG_DOORBELL) {
    on_doorbell(arbiter, share);
  } else if (sp_slots_is_dead(share, (uint32_t)(tag & 0xff))) {
    uint64_t now_ns = sp_now_ns();
    sp_slots_died(arbiter, share, (uint32_t)(tag & 0xff), now_ns);
    sp_step_share(arbiter, share, now_ns);
  }
}

/* The arbiter's thread, until `stopping`: does what is due, then sleeps until the next moment at which something is, or
 * an event. It holds the lock except while it waits for events. */
static void *run(void *argument) {
  struct sp_arbiter *arbiter = argument;
  prctl(PR_SET_NAME, "sharepod-arbiter");
  prctl(PR_SET_TIMERSLACK, 1);
  struct epoll_event events[EVENTS];
  uint64_t armed_ns = 0;
  pthread_mutex_lock(&arbiter->lock);
  while (!arbiter->stopping) {
    uint64_t now_ns = sp_now_ns();
    if (now_ns - arbiter->ticked_ns >= SP_TICK_NS)
      tick(arbiter, now_ns);
    uint64_t due_ns = arbiter->ticked_ns + SP_TICK_NS;
    uint64_t device_due_ns = sp_step_due(arbiter, now_ns);
    if (device_due_ns < due_ns)
      due_ns = device_due_ns;
    sp_wake(arbiter); /* before the timer is set, so that the waiters go on at once */
    if (due_ns != armed_ns) {
      struct itimerspec timer = {
          .it_value = {.tv_sec = (time_t)(due_ns / 1000000000u), .tv_nsec = (long)(due_ns % 1000000000u)}};
      timerfd_settime(arbiter->timer_fd, TFD_TIMER_ABSTIME, &timer, NULL);
      armed_ns = due_ns;
    }
    sp_arbiter_unlock(arbiter);
    int count = epoll_wait(arbiter->epoll_fd, events, EVENTS, -1);
    now_ns = sp_now_ns();
    if (now_ns >= armed_ns)
      armed_ns = 0; /* the timer has run out */
    pthread_mutex_lock(&arbiter->lock);
    if (now_ns - arbiter->heartbeat_ns > SP_STALE_NS)
      tick(arbiter, now_ns); /* it bills the standstill, before an event bills that time as if the gates were closed */
    for (int index = 0; index < count; index++)
      handle(arbiter, &events[index]);
  }
  sp_arbiter_unlock(arbiter);
  return NULL;
}

/* Add a descriptor to the loop's epoll; its events carry `tag`. 0 or -errno. It is edge-triggered, because all that has
 * come is read before the next epoll_wait. Needs no lock. */
static int add_to_epoll(struct sp_arbiter *arbiter, int fd, uint64_t tag) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = tag};
  return epoll_ctl(arbiter->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

/* Make an arbiter without devices, shares and threads. NULL: there is no memory, or no descriptor. */
struct sp_arbiter *sp_arbiter_new(void) {
  struct sp_arbiter *arbiter = aligned_alloc(_Alignof(struct sp_arbiter), sizeof *arbiter);
  if (!arbiter)
    return NULL;
  memset(arbiter, 0, sizeof *arbiter);
  arbiter->turns = calloc(SP_TURNS_KEPT, sizeof *arbiter->turns);
  arbiter->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  arbiter->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  arbiter->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  pthread_mutex_init(&arbiter->lock, NULL);
  pthread_cond_init(&arbiter->identity_asked, NULL);
  if (!arbiter->turns || arbiter->epoll_fd < 0 || arbiter->timer_fd < 0 || arbiter->wake_fd < 0 ||
      add_to_epoll(arbiter, arbiter->timer_fd, (uint64_t)arbiter->timer_fd) ||
      add_to_epoll(arbiter, arbiter->wake_fd, (uint64_t)arbiter->wake_fd)) {
    sp_arbiter_free(arbiter);
    return NULL;
  }
  return arbiter;
}

/* Start the identity thread, then the arbiter's. 0; -EALREADY; or -errno, and then no thread runs. */
int sp_arbiter_start(struct sp_arbiter *arbiter) {
  if (arbiter->running)
    return -EALREADY;
  sigset_t all, before; /* the threads leave signals to Python's, except SIGBUS: guard.c handles it */
  sigfillset(&all);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  int error = sp_identity_start(arbiter);
  if (!error && (error = -pthread_create(&arbiter->thread, NULL, run, arbiter))) {
    arbiter->stopping = true;
    sp_identity_stop(arbiter);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  arbiter->running = error == 0;
  return error;
}

/* Open a share's gates for good: launches that wait pass, unless the share is paused. Called when the share is removed,
 * and when the agent stops. */
static void open_gates(struct sp_share *share) {
  sp_region_heartbeat(&share->region, 0); /* 0: the gates are open */
  for (uint32_t index = 0; index < share->member_count; index++)
    sp_grant_wake(share->members[index].grant);
}

/* Close the share's descriptors and mappings, and free it. Its files stay. It needs no lock. */
static void free_share(struct sp_share *share) {
  sp_slots_close(share);
  sp_region_close(&share->region);
  free(share);
}

/* Planned stop: end the arbiter's thread, open the gates, end the identity thread, free everything. `arbiter` may be
 * NULL, or never started. No other call may be under way or follow. */
void sp_arbiter_free(struct sp_arbiter *arbiter) {
  if (!arbiter)
    return;
  if (arbiter->running) {
    pthread_mutex_lock(&arbiter->lock);
    arbiter->stopping = true;
    sp_arbiter_unlock(arbiter);
    sp_arbiter_poke(arbiter);
    pthread_join(arbiter->thread, NULL);
  }
  for (int handle = 0; handle < SP_SHARES_MAX; handle++)
    if (arbiter->shares[handle])
      open_gates(arbiter->shares[handle]);
  if (arbiter->running)
    sp_identity_stop(arbiter); /* after the gates are open, because it may be in the middle of a long look */
  for (int handle = 0; handle < SP_SHARES_MAX; handle++)
    if (arbiter->shares[handle])
      free_share(arbiter->shares[handle]);
  while (arbiter->joint) {
    struct sp_gang *gang = arbiter->joint;
    arbiter->joint = gang->next;
    free(gang);
  }
  if (arbiter->epoll_fd >= 0)
    close(arbiter->epoll_fd);
  if (arbiter->timer_fd >= 0)
    close(arbiter->timer_fd);
  if (arbiter->wake_fd >= 0)
    close(arbiter->wake_fd);
  pthread_cond_destroy(&arbiter->identity_asked);
  pthread_mutex_destroy(&arbiter->lock);
  free(arbiter->turns);
  free(arbiter);
}

/* Add a device by its UUID, which is copied. Returns its handle; -ENAMETOOLONG; -ENOSPC: too many devices. */
int sp_arbiter_add_device(struct sp_arbiter *arbiter, const char *uuid) {
  if (strlen(uuid) >= SP_UUID_BYTES)
    return -ENAMETOOLONG;
  pthread_mutex_lock(&arbiter->lock);
  int handle = -ENOSPC;
  if (arbiter->device_count < SP_NODE_DEVICES_MAX) {
    handle = (int)arbiter->device_count;
    struct sp_node_device *device = &arbiter->devices[handle];
    memcpy(device->uuid, uuid, strlen(uuid) + 1);
    device->handle = handle;
    device->retry_ns = UINT64_MAX;
    sp_lead_init_device(device);
    device->billed_until_ns = sp_now_ns();
    sp_policy_init(&device->policy);
    arbiter->device_count++;
  }
  sp_arbiter_unlock(arbiter);
  return handle;
}

/* Check the `count` terms of one share. 0; -EINVAL: too few or too many, or a value is out of range; -ENODEV: no such
 * device. */
static int check_terms(const struct sp_arbiter *arbiter, const struct sp_terms *terms, uint32_t count) {
  if (count == 0 || count > SP_DEVICES_MAX)
    return -EINVAL;
  for (uint32_t index = 0; index < count; index++) {
    const struct sp_terms *term = &terms[index];
    if (term->device < 0 || (uint32_t)term->device >= arbiter->device_count)
      return -ENODEV;
    if (term->limit_millipercent < 1000 || term->limit_millipercent > SP_POLICY_WHOLE)
      return -EINVAL;
    if (term->request_millipercent > term->limit_millipercent || term->share_class > SP_CLASS_BATCH)
      return -EINVAL;
  }
  return 0;
}

/* Set the member's terms, also in its grant, which its processes read. The caller tells the policy. */
static void write_terms(struct sp_member *member, const struct sp_terms *terms) {
  member->terms = *terms;
  member->grant->memory_limit_bytes = terms->memory_limit_bytes;
  member->grant->request_millipercent = terms->request_millipercent;
  member->grant->limit_millipercent = terms->limit_millipercent;
  member->grant->share_class = terms->share_class;
}

/* Add the member to the device and its policy, and adopt what an earlier agent left in its grant: the memory figures,
 * and an open turn, which drains. 0; -EUSERS: the policy is full. */
static int join_device(struct sp_member *member, struct sp_node_device *device, const struct sp_terms *terms,
                       uint64_t now_ns) {
  member->device = device;
  sp_lead_init_member(member);
  member->scanned_ns = now_ns; /* no wait of its processes can have begun before this */
  member->policy = sp_policy_add(&device->policy, terms->request_millipercent, terms->limit_millipercent,
                                 terms->share_class, now_ns);
  if (member->policy < 0)
    return -EUSERS;
  device->members[member->policy] = member;
  device->gang_members += member->gang->count > 1;
  write_terms(member, terms);
  /* The figures of an earlier agent, unless they are damaged. */
  uint64_t context_bytes = member->grant->context_bytes;
  int64_t overhead_bytes = member->grant->overhead_bytes;
  if (!device->context_bytes && context_bytes < SP_MEMORY_MAX_BYTES)
    device->context_bytes = context_bytes;
  if (overhead_bytes < SP_MEMORY_MAX_BYTES && overhead_bytes > -SP_MEMORY_MAX_BYTES)
    member->usage.memory_overhead_bytes = overhead_bytes;
  if (sp_grant_spare_bytes(member->grant) < SP_SPARE_MAX_BYTES)
    member->spare_bytes = sp_grant_spare_bytes(member->grant);
  sp_grant_overhead(member->grant, device->context_bytes, member->usage.memory_overhead_bytes, member->spare_bytes);
  memcpy(member->grant->uuid, device->uuid, SP_UUID_BYTES);
  if (sp_grant_word(member->grant) & 1u) {
    sp_turn_adopt(member, now_ns);
  } else {
    uint32_t flags = member->gang->paused ? SP_GRANT_PAUSED : 0;
    sp_grant_close(member->grant, flags); /* a fresh region's word must become one that no process can hold */
    sp_grant_set(member->grant, SP_BUDGET_ALONE_NS, SP_BUDGET_ALONE_NS, flags);
  }
  return 0;
}

/* End the share's turns, and take its members off the devices. Members that have not joined their device are left out:
 * so this also undoes an sp_arbiter_add_share that has failed midway. */
static void leave_devices(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns) {
  for (uint32_t index = 0; index < share->member_count; index++) {
    struct sp_member *member = &share->members[index];
    if (!member->device || member->policy < 0)
      continue;
    sp_turn_drop(arbiter, member, now_ns);
    sp_member_count(member, false);
    member->device->members[member->policy] = NULL;
    member->device->gang_members -= member->gang->count > 1;
    sp_policy_remove(&member->device->policy, member->policy, now_ns);
  }
}

/* Make the region in `directory`, or adopt a live one, and add the share to its devices. `used_ns`: by term, what an
 * earlier agent has billed; NULL: 0. Returns the handle, or -errno: then all is undone, but files that were made stay.
 * After a failure `error` is set, and the later steps are passed over. */
int sp_arbiter_add_share(struct sp_arbiter *arbiter, const char *directory, const struct sp_terms *terms,
                         uint32_t term_count, const uint64_t *used_ns) {
  pthread_mutex_lock(&arbiter->lock);
  uint64_t now_ns = sp_now_ns();
  int handle = 0, error = check_terms(arbiter, terms, term_count);
  struct sp_share *share = NULL;
  while (handle < SP_SHARES_MAX && arbiter->shares[handle])
    handle++;
  if (!error && handle == SP_SHARES_MAX)
    error = -EUSERS;
  if (!error && !(share = calloc(1, sizeof *share + term_count * sizeof *share->members)))
    error = -ENOMEM;
  if (!error) {
    share->handle = handle;
    share->serial = ++arbiter->serial;
    share->member_count = term_count;
    sp_gang_init(share);
    for (uint32_t slot = 0; slot < SP_SLOTS_MAX; slot++)
      share->tenants[slot].pidfd = -1;
    error = sp_region_create(&share->region, directory, term_count); /* 1: adopted */
    /* An adopted share stays paused until the agent resumes it. Until the agent's first heartbeat a waiter believes
     * that the agent is gone, and only this flag keeps it from passing. */
    for (uint32_t index = 0; error > 0 && index < term_count; index++)
      share->paused = share->paused || sp_grant_flags(&share->region.grants[index]) & SP_GRANT_PAUSED;
    share->own.paused = share->paused;
    if (error > 0)
      error = 0;
  }
  for (uint32_t index = 0; !error && index < term_count; index++) {
    struct sp_member *member = &share->members[index];
    member->index = index;
    member->policy = -1;
    member->grant = &share->region.grants[index];
    error = join_device(member, &arbiter->devices[terms[index].device], &terms[index], now_ns);
    if (!error) { /* the account goes on from the later of the region's and the caller's */
      uint64_t adopted_ns = member->grant->used_ns;
      member->usage.used_ns = adopted_ns <= now_ns ? adopted_ns : 0; /* more than the uptime: it is damaged */
      if (used_ns && used_ns[index] > member->usage.used_ns)
        member->usage.used_ns = used_ns[index];
      sp_grant_account(member->grant, member->usage.used_ns);
    }
  }
  if (!error)
    error = add_to_epoll(arbiter, share->region.doorbell_fd, doorbell_tag(handle));
  if (!error) {
    arbiter->shares[handle] = share;
    if (share->paused)
      sp_gang_pause(arbiter, share->gang, now_ns);
    sp_region_heartbeat(&share->region, now_ns);
    arbiter->ticked_ns = 0; /* look at it at once: an adopted share may have waiters */
  } else if (share) {
    leave_devices(arbiter, share, now_ns);
    sp_wake(arbiter);
    free_share(share);
  }
  sp_arbiter_unlock(arbiter);
  sp_arbiter_poke(arbiter);
  return error ? error : handle;
}

/* Change the terms of a share: one for each of its devices, in the same order. 0; -ENOENT: no such share; -EINVAL,
 * -ENODEV: the terms are out of range, or for other devices. On errors nothing has changed. */
int sp_arbiter_update_share(struct sp_arbiter *arbiter, int share, const struct sp_terms *terms, uint32_t term_count) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  int error = found ? check_terms(arbiter, terms, term_count) : -ENOENT;
  if (!error && term_count != found->member_count)
    error = -EINVAL;
  for (uint32_t index = 0; !error && index < term_count; index++)
    if (terms[index].device != found->members[index].device->handle)
      error = -EINVAL; /* a share does not move */
  if (!error)
    sp_gang_dissolve(arbiter, found->gang, sp_now_ns()); /* reservations under the old terms are made anew */
  for (uint32_t index = 0; !error && index < term_count; index++) {
    struct sp_member *member = &found->members[index];
    write_terms(member, &terms[index]);
    sp_member_count(member, true);
    sp_policy_update(&member->device->policy, member->policy, terms[index].request_millipercent,
                     terms[index].limit_millipercent, terms[index].share_class, sp_now_ns());
    if (member->holding) /* its turn was granted under the old terms: the policy is asked whether it goes on */
      member->deadline_ns = sp_now_ns();
  }
  sp_arbiter_unlock(arbiter);
  sp_arbiter_poke(arbiter);
  return error;
}

/* Pause the share (`paused` is not 0) or resume it, and with it its gang. A pause closes its turns at once. 0, or
 * -ENOENT. */
int sp_arbiter_pause_share(struct sp_arbiter *arbiter, int share, int paused) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  uint64_t now_ns = sp_now_ns();
  if (found && found->paused != (paused != 0)) {
    found->paused = paused != 0;
    sp_gang_pause(arbiter, found->gang, now_ns);
    sp_step_share(arbiter, found, now_ns);
  }
  sp_arbiter_unlock(arbiter);
  sp_arbiter_poke(arbiter);
  return found ? 0 : -ENOENT;
}

/* Move the share into the gang of that key; 0: into one of its own. 0; -ENOENT: no such share; -ENOMEM. */
int sp_arbiter_join_gang(struct sp_arbiter *arbiter, int share, uint32_t key) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  int error = found ? sp_gang_join(arbiter, found, key, sp_now_ns()) : -ENOENT;
  sp_arbiter_unlock(arbiter);
  sp_arbiter_poke(arbiter);
  return error;
}

/* Forget a share: end its turns, and open its gates for good, also those of a paused share. 0, or -ENOENT. The caller
 * removes its files. */
int sp_arbiter_remove_share(struct sp_arbiter *arbiter, int share) {
  pthread_mutex_lock(&arbiter->lock);
  struct sp_share *found = sp_share_of(arbiter, share);
  if (found) {
    found->paused = false;
    sp_gang_join(arbiter, found, 0, sp_now_ns());
    leave_devices(arbiter, found, sp_now_ns());
    /* No flags: that of a pause would keep the gate closed. */
    for (uint32_t index = 0; index < found->member_count; index++)
      sp_grant_set(found->members[index].grant, SP_BUDGET_ALONE_NS, SP_BUDGET_ALONE_NS, 0);
    open_gates(found);
    epoll_ctl(arbiter->epoll_fd, EPOLL_CTL_DEL, found->region.doorbell_fd, NULL);
    arbiter->shares[share] = NULL;
  }
  sp_arbiter_unlock(arbiter);
  if (found)
    free_share(found); /* not under the lock: closing the slots' file takes as long as it has locks */
  sp_arbiter_poke(arbiter);
  return found ? 0 : -ENOENT;
}
