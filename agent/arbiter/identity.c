/* Finds out which process has which slot, on a thread of its own. A tenant can make the answer take long: it can hold
 * thousands of locks on its slots, map thousands of files, or keep the file busy. So this thread asks without the
 * arbiter's lock, one share after the other, and for a bounded time each: this is a *look*. It also does all writing to
 * the slots, because a write waits for the file's inode, which a tenant can hold. The arbiter's own thread only reads.
 *
 * A set of slots is a mask with a bit per slot. A slot is *watched* while a pidfd shows the end of its process, *gone*
 * from that end until it has been cleared. A process holds the record lock of its slot, by which it is found. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "agent/arbiter/node.h"

#define MAPS_MAX    4000        /* how many lines of /proc/PID/maps are read */
#define ORPHAN_NS   1000000000u /* if no process holds a claim's lock for this long, the claim's process is dead */
#define LOOK_MAX_NS 5000000u    /* a look is interrupted after this, and goes on after the looks at other shares */
#define REST_MIN_NS 10000000u   /* a share rests after a look for at least this, */
#define REST_FACTOR 4u          /* … and for this many times what the look took: a tenant gets a fifth of the thread */

/* One look at a share: a copy of what was known when it began, and what it has found. */
struct look {
  struct sp_region_owner region; /* its slots_fd is a duplicate, because the share may be removed meanwhile */
  int handle;
  uint64_t serial;
  uint64_t claimed, watched, gone; /* a bit per slot; gone: to be cleared */
  bool mend;
  bool asked;                 /* find the processes; if false, only clear and mend */
  int32_t pids[SP_SLOTS_MAX]; /* by slot: known for watched slots; for the others once `found` */
  /* what was found; a bit per slot */
  uint64_t done;            /* finished, by this look or an earlier part of it */
  uint64_t found;           /* its process is in pids and pidfds */
  uint64_t unlocked;        /* no process holds its lock */
  uint64_t replaced;        /* its process has become another program */
  uint64_t cleared;         /* it was gone, and is free now */
  int pidfds[SP_SLOTS_MAX]; /* by slot */
  uint64_t locks_ns;        /* the processor time that the questions for locks took */
  bool grown;               /* the file was longer than its slots, and was cut back */
};

/* Have the identity thread look at the share, unless it is about to, or the share's rest after its last look is not
 * over. Called under the lock. */
void sp_identity_ask(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns) {
  if (share->look_asked || now_ns < share->no_look_before_ns)
    return; /* every tick asks again, until all processes are known */
  share->look_asked = true;
  share->look_done = 0;
  pthread_cond_signal(&arbiter->identity_asked);
}

/* Have the identity thread clear the slots of processes that are gone, and repair damage, even if the share rests.
 * Called under the lock. */
void sp_identity_clear(struct sp_arbiter *arbiter, struct sp_share *share) {
  share->clear_asked = true;
  pthread_cond_signal(&arbiter->identity_asked);
}

/* The processor time that this thread has used. */
static uint64_t thread_cpu_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The pid of the process that holds the slot's lock; 0: none is known. The kernel searches all locks on the file for
 * it, so the time is counted. */
static int32_t owner_of(struct look *look, uint32_t slot) {
  uint64_t before_ns = thread_cpu_ns();
  int32_t pid = sp_slot_owner(&look->region, slot);
  look->locks_ns += thread_cpu_ns() - before_ns;
  return pid;
}

/* Find the process that has the slot, and open a pidfd for it: then the slot is in `found`. If no process holds the
 * slot's lock, the slot is in `unlocked`. In all other cases the next look tries again. */
static void find_process(struct look *look, uint32_t slot) {
  int32_t pid = owner_of(look, slot);
  if (pid <= 0) {
    look->unlocked |= (uint64_t)1 << slot;
    return;
  }
  int fd = (int)syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0)
    return; /* the process is gone, or there are no descriptors left */
  /* The lock may have passed to another process meanwhile: only a pid that still holds it is believed. */
  if (owner_of(look, slot) != pid) {
    close(fd);
    return;
  }
  look->pids[slot] = pid;
  look->pidfds[slot] = fd;
  look->found |= (uint64_t)1 << slot;
}

/* Does the process map the file of the slots? Asked only about a process that has lost its lock. Either it has closed
 * the hook's descriptor, and then it still maps the file. Or it has become another program. If that cannot be told, the
 * answer is true: then it keeps its slot. */
static bool maps_slots(const struct look *look, int32_t pid) {
  char path[32], line[512], needle[32];
  struct stat status;
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  if (fstat(look->region.slots_fd, &status))
    return true;
  snprintf(needle, sizeof needle, " %lu ", (unsigned long)status.st_ino);
  FILE *file = fopen(path, "re");
  if (!file)
    return true;
  bool found = false;
  int lines = 0;
  while (!found && lines < MAPS_MAX && fgets(line, sizeof line, file)) {
    found = strstr(line, needle) != NULL;
    lines++;
  }
  fclose(file);
  return found || lines == MAPS_MAX; /* a process with more lines keeps its slot: others must get their look */
}

/* Has the process of the slot, which is watched, become another program (exec) that does not use the slot? */
static bool is_replaced(struct look *look, uint32_t slot) {
  int32_t pid = look->pids[slot];
  if (pid <= 0 || owner_of(look, slot) != 0)
    return false;
  for (uint64_t others = look->claimed & ~((uint64_t)1 << slot); others; others &= others - 1)
    if (owner_of(look, (uint32_t)__builtin_ctzll(others)) == pid)
      return true; /* it has become another program, and that one has attached */
  return !maps_slots(look, pid);
}

/* Do the look, without the arbiter's lock: cut back a file that has grown, repair damage, clear slots, and find
 * processes. After LOOK_MAX_NS it ends early: then some claimed slots are not in `done`. */
static void do_look(struct look *look, uint64_t began_ns) {
  struct stat status;
  if (!fstat(look->region.slots_fd, &status) && status.st_size > (off_t)SP_SLOTS_BYTES)
    look->grown = ftruncate(look->region.slots_fd, (off_t)SP_SLOTS_BYTES) == 0;
  if (look->mend)
    sp_slots_mend(&look->region, look->watched);
  for (uint64_t rest = look->gone; rest; rest &= rest - 1)
    if (sp_slot_clear(&look->region, (uint32_t)__builtin_ctzll(rest)) == 0)
      look->cleared |= rest & -rest;
  for (uint64_t rest = look->claimed & ~look->done; rest; rest &= rest - 1) {
    uint32_t slot = (uint32_t)__builtin_ctzll(rest);
    if (!(look->watched >> slot & 1))
      find_process(look, slot);
    else if (is_replaced(look, slot))
      look->replaced |= rest & -rest;
    look->done |= rest & -rest;
    if (sp_now_ns() - began_ns > LOOK_MAX_NS)
      break;
  }
}

/* Watch the process that the look has found in the slot: its end is an event for arbiter.c (SP_TAG_PIDFD). Takes the
 * pidfd over; or closes it, if the slot has been watched or given up since, or epoll does not take it. */
static void watch_process(struct sp_arbiter *arbiter, struct sp_share *share, uint32_t slot, const struct look *look) {
  struct sp_tenant *tenant = &share->tenants[slot];
  uint64_t bit = (uint64_t)1 << slot;
  struct epoll_event event = {.events = EPOLLIN,
                              .data.u64 = (uint64_t)SP_TAG_PIDFD << 62 | (uint64_t)share->handle << 8 | slot};
  if (share->watched & bit || !(share->claimed & bit) ||
      epoll_ctl(arbiter->epoll_fd, EPOLL_CTL_ADD, look->pidfds[slot], &event)) {
    close(look->pidfds[slot]);
    return;
  }
  tenant->pidfd = look->pidfds[slot];
  share->watched |= bit;
  tenant->pid = look->pids[slot];
  tenant->orphaned_ns = 0;
}

/* Apply what the look, begun at `began_ns`, has found. Called with the arbiter's lock. Processes that were found are
 * watched. A slot is given up if its process has become another program, or if no process has held its lock for
 * ORPHAN_NS. If the share was removed meanwhile, all is dropped. */
static void apply_look(struct sp_arbiter *arbiter, const struct look *look, uint64_t began_ns) {
  struct sp_share *share = sp_share_of(arbiter, look->handle);
  uint64_t now_ns = sp_now_ns();
  if (!share || share->serial != look->serial) {
    for (uint64_t rest = look->found; rest; rest &= rest - 1)
      close(look->pidfds[__builtin_ctzll(rest)]);
    return;
  }
  if (look->grown)
    sp_slots_fault(share);
  share->locks_ns += look->locks_ns;
  share->mend = share->mend && !look->mend;
  share->gone &= ~look->cleared;
  for (uint64_t rest = look->found; rest; rest &= rest - 1)
    watch_process(arbiter, share, (uint32_t)__builtin_ctzll(rest), look);
  uint64_t died = 0;
  for (uint64_t rest = look->unlocked & share->claimed & ~share->watched; rest; rest &= rest - 1) {
    struct sp_tenant *tenant = &share->tenants[__builtin_ctzll(rest)];
    if (!tenant->orphaned_ns)
      tenant->orphaned_ns = now_ns;
    else if (now_ns - tenant->orphaned_ns > ORPHAN_NS)
      died |= rest & -rest;
  }
  for (uint64_t rest = look->replaced & share->watched; rest; rest &= rest - 1)
    if (share->tenants[__builtin_ctzll(rest)].pid == look->pids[__builtin_ctzll(rest)])
      died |= rest & -rest;
  for (uint64_t rest = died; rest; rest &= rest - 1)
    sp_slots_died(arbiter, share, (uint32_t)__builtin_ctzll(rest), now_ns);
  if (look->asked) {
    share->look_done = look->done;
    share->look_took_ns += now_ns - began_ns;
    share->look_asked = (look->claimed & ~look->done) != 0; /* then it goes on after the looks at other shares */
  }
  if (look->asked && !share->look_asked) {
    uint64_t rest_ns = share->look_took_ns * REST_FACTOR;
    share->no_look_before_ns = now_ns + (rest_ns > REST_MIN_NS ? rest_ns : REST_MIN_NS);
    share->look_took_ns = 0;
  }
  if (died) {
    sp_step_share(arbiter, share, now_ns);
    sp_arbiter_poke(arbiter);
  }
}

/* The next share that needs a look, in the order of handles after the share of the last look. NULL: none needs one. */
static struct sp_share *next_asked(struct sp_arbiter *arbiter) {
  for (int count = 0; count < SP_SHARES_MAX; count++) {
    struct sp_share *share = arbiter->shares[arbiter->identity_next_handle];
    arbiter->identity_next_handle = (arbiter->identity_next_handle + 1) % SP_SHARES_MAX;
    if (share && (share->look_asked || share->clear_asked))
      return share;
  }
  return NULL;
}

/* The identity thread, until `stopping`: looks at each share that needs it, one after the other, and sleeps if none
 * does. It holds the lock except during a look and while it sleeps. */
static void *run(void *argument) {
  struct sp_arbiter *arbiter = argument;
  prctl(PR_SET_NAME, "sharepod-ident");
  pthread_mutex_lock(&arbiter->lock);
  while (!arbiter->stopping) {
    struct sp_share *share = next_asked(arbiter);
    if (!share) {
      pthread_cond_wait(&arbiter->identity_asked, &arbiter->lock);
      continue;
    }
    struct look look = {.handle = share->handle,
                        .serial = share->serial,
                        .claimed = share->claimed,
                        .watched = share->watched,
                        .gone = share->gone,
                        .mend = share->mend,
                        .asked = share->look_asked,
                        .done = share->look_asked ? share->look_done : share->claimed};
    share->clear_asked = false;
    for (uint64_t rest = look.watched; rest; rest &= rest - 1)
      look.pids[__builtin_ctzll(rest)] = share->tenants[__builtin_ctzll(rest)].pid;
    look.region.slots_fd = fcntl(share->region.slots_fd, F_DUPFD_CLOEXEC, 0);
    sp_arbiter_unlock(arbiter);
    uint64_t began_ns = sp_now_ns();
    if (look.region.slots_fd >= 0) {
      do_look(&look, began_ns);
      uint64_t before_ns = thread_cpu_ns();
      close(look.region.slots_fd); /* without the lock: the more locks the file has, the longer it takes */
      look.locks_ns += thread_cpu_ns() - before_ns;
    } else {
      look.done = look.claimed; /* no descriptors left */
    }
    pthread_mutex_lock(&arbiter->lock);
    apply_look(arbiter, &look, began_ns);
  }
  sp_arbiter_unlock(arbiter);
  return NULL;
}

/* Start the identity thread. 0 or -errno. */
int sp_identity_start(struct sp_arbiter *arbiter) {
  return -pthread_create(&arbiter->identity_thread, NULL, run, arbiter);
}

/* Wake the identity thread, and wait until it has ended. The caller has set `stopping`, and does not hold the lock. */
void sp_identity_stop(struct sp_arbiter *arbiter) {
  pthread_mutex_lock(&arbiter->lock);
  pthread_cond_signal(&arbiter->identity_asked);
  pthread_mutex_unlock(&arbiter->lock);
  pthread_join(arbiter->identity_thread, NULL);
}
