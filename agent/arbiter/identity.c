/* Who has a slot? The answer takes as long as a tenant likes: it may hold thousands of locks on its slots, map
 * thousands of files, or keep the file busy. A thread of its own asks, without the arbiter's lock, one share after the
 * other and each for a bounded time; the arbiter's own thread only reads. What writes to the slots waits for their
 * inode, which a tenant can hold: that is done here, too. */
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
#include <unistd.h>

#include "agent/arbiter/node.h"

#define MAPS_MAX    4000        /* lines of /proc/PID/maps */
#define ORPHAN_NS   1000000000u /* a claim whose lock nobody holds for this long is a dead process's */
#define LOOK_MAX_NS 5000000u    /* then the next share is looked at, and this one goes on later */
#define REST_MIN_NS 10000000u   /* so long a share is let be, */
#define REST_FACTOR 4u          /* or so many times as long as it took: a tenant gets a fifth of the thread */

/* One look at a share, as it was when the look began. */
struct look {
  struct sp_region_owner region; /* its slots_fd is a copy: the share may go meanwhile */
  int handle;
  uint64_t serial;
  uint64_t claimed, watched, gone; /* a bit per slot; gone: to be cleared */
  bool mend;
  bool asked;                 /* who has the slots; else it only clears and mends */
  int32_t pids[SP_SLOTS_MAX]; /* of the watched; found: of the others */
  /* what was found */
  int pidfds[SP_SLOTS_MAX];
  uint64_t done, found, nobody, replaced, cleared;
  bool grown;
};

void sp_identity_ask(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns) {
  if (share->asked || now_ns < share->rest_until_ns)
    return; /* every tick asks again for as long as something is not known, or not done */
  share->asked = true;
  share->looked = 0;
  pthread_cond_signal(&arbiter->identity_asked);
}

void sp_identity_clear(struct sp_arbiter *arbiter, struct sp_share *share) {
  share->clear = true;
  pthread_cond_signal(&arbiter->identity_asked);
}

static void find(struct look *look, uint32_t slot) {
  int32_t pid = sp_slot_owner(&look->region, slot);
  if (pid <= 0) {
    look->nobody |= (uint64_t)1 << slot;
    return;
  }
  int fd = (int)syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0)
    return; /* gone between the two calls, or no descriptors left: it is tried again */
  /* The lock may have passed to another process meanwhile: only a pid that still holds it is believed. */
  if (sp_slot_owner(&look->region, slot) != pid) {
    close(fd);
    return;
  }
  look->pids[slot] = pid;
  look->pidfds[slot] = fd;
  look->found |= (uint64_t)1 << slot;
}

/* Does the process map the slots? Only of one whose lock is lost: it has closed our descriptor, or become another. */
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
  return found || lines == MAPS_MAX; /* who has more may keep its slot: others are to be looked at */
}

static bool is_replaced(const struct look *look, uint32_t slot) {
  int32_t pid = look->pids[slot];
  if (pid <= 0 || sp_slot_owner(&look->region, slot) != 0)
    return false;
  for (uint64_t others = look->claimed & ~((uint64_t)1 << slot); others; others &= others - 1)
    if (sp_slot_owner(&look->region, (uint32_t)__builtin_ctzll(others)) == pid)
      return true; /* it has become another program, and that one has attached */
  return !maps_slots(look, pid);
}

/* Without the arbiter's lock. */
static void go_through(struct look *look, uint64_t began_ns) {
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
      find(look, slot);
    else if (is_replaced(look, slot))
      look->replaced |= rest & -rest;
    look->done |= rest & -rest;
    if (sp_now_ns() - began_ns > LOOK_MAX_NS)
      break;
  }
}

static void watch(struct sp_arbiter *arbiter, struct sp_share *share, uint32_t slot, const struct look *look) {
  struct sp_tenant *tenant = &share->tenants[slot];
  uint64_t bit = (uint64_t)1 << slot;
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 2ull << 62 | (uint64_t)share->handle << 8 | slot};
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

/* With the arbiter's lock: what was found becomes what is known. */
static void take(struct sp_arbiter *arbiter, const struct look *look, uint64_t began_ns) {
  struct sp_share *share = sp_share_of(arbiter, look->handle);
  uint64_t now_ns = sp_now_ns();
  if (!share || share->serial != look->serial) {
    for (uint64_t rest = look->found; rest; rest &= rest - 1)
      close(look->pidfds[__builtin_ctzll(rest)]);
    return;
  }
  if (look->grown)
    sp_slots_fault(share);
  share->mend = share->mend && !look->mend;
  share->gone &= ~look->cleared;
  for (uint64_t rest = look->found; rest; rest &= rest - 1)
    watch(arbiter, share, (uint32_t)__builtin_ctzll(rest), look);
  uint64_t died = 0;
  for (uint64_t rest = look->nobody & share->claimed & ~share->watched; rest; rest &= rest - 1) {
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
    share->looked = look->done;
    share->looking_ns += now_ns - began_ns;
    share->asked = (look->claimed & ~look->done) != 0; /* it goes on after the others */
  }
  if (look->asked && !share->asked) {
    uint64_t rest_ns = share->looking_ns * REST_FACTOR;
    share->rest_until_ns = now_ns + (rest_ns > REST_MIN_NS ? rest_ns : REST_MIN_NS);
    share->looking_ns = 0;
  }
  if (died) {
    sp_step_share(arbiter, share, now_ns);
    sp_arbiter_poke(arbiter);
  }
}

/* The next share that is asked about, each in its turn; NULL: none is. */
static struct sp_share *next_asked(struct sp_arbiter *arbiter) {
  for (int count = 0; count < SP_SHARES_MAX; count++) {
    struct sp_share *share = arbiter->shares[arbiter->identity_next];
    arbiter->identity_next = (arbiter->identity_next + 1) % SP_SHARES_MAX;
    if (share && (share->asked || share->clear))
      return share;
  }
  return NULL;
}

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
                        .asked = share->asked,
                        .done = share->asked ? share->looked : share->claimed};
    share->clear = false;
    for (uint64_t rest = look.watched; rest; rest &= rest - 1)
      look.pids[__builtin_ctzll(rest)] = share->tenants[__builtin_ctzll(rest)].pid;
    look.region.slots_fd = fcntl(share->region.slots_fd, F_DUPFD_CLOEXEC, 0);
    sp_arbiter_unlock(arbiter);
    uint64_t began_ns = sp_now_ns();
    if (look.region.slots_fd >= 0) {
      go_through(&look, began_ns);
      close(look.region.slots_fd); /* which goes through the locks, too */
    } else {
      look.done = look.claimed; /* no descriptors left */
    }
    pthread_mutex_lock(&arbiter->lock);
    take(arbiter, &look, began_ns);
  }
  sp_arbiter_unlock(arbiter);
  return NULL;
}

int sp_identity_start(struct sp_arbiter *arbiter) {
  return -pthread_create(&arbiter->identity_thread, NULL, run, arbiter);
}

void sp_identity_stop(struct sp_arbiter *arbiter) {
  pthread_mutex_lock(&arbiter->lock);
  pthread_cond_signal(&arbiter->identity_asked);
  pthread_mutex_unlock(&arbiter->lock);
  pthread_join(arbiter->identity_thread, NULL);
}
