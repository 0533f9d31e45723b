/*
 * Plays random schedules of gangs in virtual time. The arbiter's own code (step.c, gang.c, turn.c, slots.c, pressure.c,
 * bill.c, lead.c, policy*.c, and region.c's grants) runs on simulated devices, with simulated processes behind their
 * gates (gang_rank.c). The slots of these processes are in no region (gang_region.c).
 *
 *     gang_program FIRST_SEED SCHEDULES [apart | joined]
 *
 * A schedule is 2 to 4 devices and random shares, with limits and of every class. Some shares have one device; others
 * are gangs on two or more. Some gangs work in lock step: every collective is a kernel on each of its devices, and no
 * kernel gets more than a step ahead of the others. Other gangs work on each device independently. Shares come, pause,
 * go, are paused, and die; the agent is replaced by another. A device slices between the work of different shares.
 *
 * `apart`: for the arbiter each device of a share is a share of its own, as if there were no gangs. `joined`: these
 * shares are joined to one gang, and a pause pauses one of them.
 *
 * Prints one JSON object: see main.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gang_world.h"
#include "valid_node.h"

#define POLICY_TICKS 64 /* how seldom the policies' sums are looked at */

struct world *world;
uint64_t clock_ns;
static uint64_t state;
static uint64_t spins; /* steps after which another is due at once: with these the arbiter would never sleep */
static uint64_t ticks;
static uint64_t invalid; /* ticks after which the arbiter's state does not hold */
static struct sp_turn *turns;
static bool apart, joined;

uint32_t draw(uint32_t below) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (uint32_t)((state * 0x2545f4914f6cdd1du) >> 33) % below;
}

/* ------------------------------------------------------------------------------------------- the agent's part */

static void join(struct rank *rank, struct sp_share *share, const struct sp_terms *terms) {
  struct sp_member *member = &share->members[share->member_count - 1];
  struct sp_node_device *device = &world->arbiter.devices[rank->device];
  *member = (struct sp_member){.device = device, .grant = &rank->grant, .terms = *terms};
  member->index = share->member_count - 1;
  sp_lead_init_member(member);
  member->policy = sp_policy_add(&device->policy, terms->request_millipercent, terms->limit_millipercent,
                                 terms->share_class, clock_ns);
  device->members[member->policy] = member;
  rank->grant.word = 2;
  rank->member = member;
}

static void open_devices(void) {
  world->arbiter.device_count = world->device_count;
  for (uint32_t index = 0; index < world->device_count; index++) {
    struct sp_node_device *device = &world->arbiter.devices[index];
    memset(device, 0, sizeof *device);
    snprintf(device->uuid, sizeof device->uuid, "GPU-%u", (index * 7 + 3) % DEVICES);
    device->handle = (int)index;
    device->retry_ns = UINT64_MAX;
    device->billed_until_ns = clock_ns;
    sp_lead_init_device(device);
    sp_policy_init(&device->policy);
  }
}

/* Makes the share known to the arbiter once it has all of its members. */
static void enter(const struct gang *gang, struct sp_share *share) {
  share->own.count = 0;
  sp_gang_init(share);
  for (uint32_t index = 0; index < share->member_count; index++)
    share->members[index].device->gang_members += share->member_count > 1;
  if (joined)
    sp_gang_join(&world->arbiter, share, (uint32_t)(gang - world->gangs) + 1, clock_ns);
}

static void forget_joint(void) {
  for (struct sp_gang *gang = world->arbiter.joint, *next; gang; gang = next) {
    next = gang->next;
    free(gang);
  }
}

static struct sp_share *new_share(void) {
  struct sp_share *share = calloc(1, sizeof *share + DEVICES * sizeof *share->members);
  if (!share)
    abort();
  share->claimed = share->watched = 1;
  share->tenants[0].pidfd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  while (world->arbiter.shares[share->handle])
    share->handle++;
  world->arbiter.shares[share->handle] = share;
  return share;
}

/* Replaces the agent: the new one takes over the regions and the open grants that it finds. */
static void restart(void) {
  struct sp_share *shares[SP_SHARES_MAX];
  memcpy(shares, world->arbiter.shares, sizeof shares);
  forget_joint();
  memset(&world->arbiter, 0, sizeof world->arbiter);
  memcpy(world->arbiter.shares, shares, sizeof shares);
  world->arbiter.turns = turns;
  open_devices();
  for (uint32_t index = 0; index < world->gang_count; index++) {
    struct gang *gang = &world->gangs[index];
    for (uint32_t rank = 0; rank < gang->count; rank++)
      gang->ranks[rank].share->member_count = 0;
    for (uint32_t rank = 0; rank < gang->count; rank++) {
      struct sp_share *share = gang->ranks[rank].share;
      struct sp_terms terms = gang->ranks[rank].member->terms;
      uint32_t word = gang->ranks[rank].grant.word;
      share->member_count++;
      join(&gang->ranks[rank], share, &terms);
      gang->ranks[rank].grant.word = word;
    }
    for (uint32_t rank = 0; rank < gang->count; rank++)
      if (rank == 0 || gang->ranks[rank].share != gang->ranks[rank - 1].share)
        enter(gang, gang->ranks[rank].share);
    for (uint32_t rank = 0; rank < gang->count; rank++) {
      if (gang->ranks[rank].grant.word & 1)
        sp_turn_adopt(gang->ranks[rank].member, clock_ns);
      sp_gang_pause(&world->arbiter, gang->ranks[rank].share->gang, clock_ns);
    }
    gang->rung = true;
  }
}

static void pause_gang(struct gang *gang, bool paused) {
  for (uint32_t rank = 0; rank < gang->count; rank++) {
    struct sp_share *share = gang->ranks[rank].share;
    share->paused = paused && (rank == 0 || !joined);
    sp_gang_pause(&world->arbiter, share->gang, clock_ns);
  }
  gang->rung = true;
}

static void die(struct gang *gang) {
  gang->dead = true;
  for (uint32_t rank = 0; rank < gang->count; rank++) {
    gang->ranks[rank].head = gang->ranks[rank].tail;
    gang->ranks[rank].predicted_ns = 0;
    if (gang->ranks[rank].share->claimed)
      sp_slots_died(&world->arbiter, gang->ranks[rank].share, 0, clock_ns);
  }
  gang->began_ns = 0;
  gang->rung = true;
}

static void happen(struct gang *gang) {
  if (gang->pause_at_ns && clock_ns >= gang->pause_at_ns) {
    gang->pause_at_ns = 0;
    pause_gang(gang, true);
  }
  if (gang->resume_at_ns && clock_ns >= gang->resume_at_ns) {
    gang->resume_at_ns = 0;
    pause_gang(gang, false);
    if (gang->began_ns)
      gang->began_ns = clock_ns; /* the arbiter is not to blame for the time of the pause */
  }
  if (gang->die_at_ns && clock_ns >= gang->die_at_ns && !gang->dead)
    die(gang);
}

/* ------------------------------------------------------------------------------------------- a schedule */

/* Adds a gang. A steady schedule has only saturating shares without limits, so that every share gets its target. */
static void add_gang(bool steady, uint32_t mask, uint32_t request, bool lock_step) {
  struct gang *gang = &world->gangs[world->gang_count++];
  struct sp_share *share = NULL;
  gang->lock_step = lock_step;
  gang->end_ns = UINT64_MAX;
  struct sp_terms terms = {.request_millipercent = request, .limit_millipercent = SP_POLICY_WHOLE, .share_class = 1};
  if (!steady) {
    if (!draw(4))
      terms.limit_millipercent = request + draw(SP_POLICY_WHOLE - request);
    if (!draw(4))
      terms.share_class = draw(3);
    gang->begin_ns = clock_ns + (draw(3) ? 0 : draw(RUN_NS / 2));
    if (!draw(4))
      gang->end_ns = clock_ns + RUN_NS / 2 + draw(RUN_NS / 2);
    if (!draw(6)) {
      gang->pause_at_ns = clock_ns + draw(RUN_NS / 2);
      gang->resume_at_ns = gang->pause_at_ns + 1 + draw(RUN_NS / 4);
    }
    if (!draw(6))
      gang->die_at_ns = clock_ns + draw(RUN_NS);
  }
  static const uint64_t units_ns[] = {TICK_NS, 200000, 500000, 2000000, 8000000};
  for (uint32_t device = 0; device < world->device_count; device++) {
    if (!(mask >> device & 1))
      continue;
    if (!share || apart || joined) {
      if (share)
        enter(gang, share);
      share = new_share();
    }
    struct rank *rank = &gang->ranks[gang->count++];
    rank->gang = gang;
    rank->share = share;
    rank->device = device;
    rank->unit_ns = units_ns[draw(steady ? 3 : 5)];
    rank->burst = steady || draw(2) ? 1u << 30 : 1 + draw(40);
    rank->pause_ns = rank->burst == 1u << 30 ? 0 : draw(20 * MS);
    rank->left = rank->burst;
    share->member_count++;
    join(rank, share, &terms);
  }
  enter(gang, share);
}

static void open_world(bool steady) {
  world->device_count = 2 + draw(DEVICES - 1);
  open_devices();
  uint32_t gangs = 1 + draw(3), all = (1u << world->device_count) - 1;
  for (uint32_t index = 0; index < gangs; index++) {
    uint32_t mask = draw(all) + 1;
    while (!(mask & (mask - 1))) /* a gang has at least two devices */
      mask |= 1u << draw(world->device_count);
    add_gang(steady, mask, 5000 + draw(20) * 1000, steady || draw(3));
  }
  for (uint32_t device = 0; device < world->device_count; device++)
    for (uint32_t index = steady ? 1 : draw(3); index-- > 0 && world->gang_count < SHARES;)
      add_gang(steady, 1u << device, steady ? 30000 : 5000 + draw(15) * 1000, false);
}

static void tick(void) {
  for (uint32_t device = 0; device < world->device_count; device++)
    work(device);
  for (uint32_t index = 0; index < world->gang_count; index++) {
    struct gang *gang = &world->gangs[index];
    happen(gang);
    if (!gang->dead)
      run_gang(gang);
  }
  clock_ns += TICK_NS / 2; /* the arbiter hears later what the processes said */
  for (uint32_t index = 0; index < world->gang_count; index++) {
    struct gang *gang = &world->gangs[index];
    if (!gang->rung)
      continue;
    gang->rung = false;
    struct sp_share *last = NULL;
    for (uint32_t rank = 0; rank < gang->count; rank++) {
      struct sp_share *share = gang->ranks[rank].share;
      if (share == last)
        continue;
      sp_slots_mark_responsive(share, UINT64_MAX);
      sp_step_share(&world->arbiter, share, clock_ns);
      last = share;
    }
  }
  spins += sp_step_due(&world->arbiter, clock_ns) <= clock_ns || world->arbiter.stirred;
  sp_wake(&world->arbiter);
  const char *broken = broken_node(&world->arbiter, ++ticks % POLICY_TICKS == 0);
  if (broken && !invalid)
    fprintf(stderr, "it does not hold that %s\n", broken);
  invalid += broken != NULL;
  clock_ns += TICK_NS - TICK_NS / 2;
}

struct sums {
  uint64_t collectives, hangs, longest_ns, wait_longest_ns, invalid;
  uint64_t steady_collectives, steady_longest_ns;
  double worst_part; /* the least that a steady share of one device got, as a part of what it was due */
};

static void judge(struct sums *sums, bool steady) {
  sums->invalid += spins + invalid;
  spins = invalid = 0;
  for (uint32_t index = 0; index < world->gang_count; index++) {
    struct gang *gang = &world->gangs[index];
    sums->collectives += gang->collectives;
    uint64_t *longest_ns = steady ? &sums->steady_longest_ns : &sums->longest_ns;
    if (gang->longest_ns > *longest_ns)
      *longest_ns = gang->longest_ns;
    if (steady)
      sums->steady_collectives += gang->collectives;
    if (!steady || gang->count > 1)
      continue;
    uint64_t wait_ns = gang->ranks[0].longest_wait_ns;
    if (wait_ns > sums->wait_longest_ns)
      sums->wait_longest_ns = wait_ns;
    double part = (double)gang->ranks[0].ran_ns / (double)RUN_NS / 0.30;
    if (part < sums->worst_part)
      sums->worst_part = part;
  }
}

static void run_schedule(struct sums *sums, uint64_t seed) {
  state = (seed * 0x9e3779b97f4a7c15u) | 1u;
  draw(2);
  bool steady = seed % 2;
  clock_ns = 1000000000;
  memset(world, 0, sizeof *world);
  world->arbiter.turns = turns;
  open_world(steady);
  uint64_t end_ns = clock_ns + RUN_NS;
  uint64_t restart_ns = steady || draw(4) ? 0 : clock_ns + draw(RUN_NS);
  while (clock_ns < end_ns) {
    if (restart_ns && clock_ns >= restart_ns) {
      restart_ns = 0;
      restart();
    }
    tick();
  }
  judge(sums, steady);
  /* No collective begins any more; all else goes on, so those under way must end. */
  for (uint32_t index = 0; index < world->gang_count; index++)
    if (world->gangs[index].lock_step)
      world->gangs[index].end_ns = 0;
  bool under_way = true;
  for (end_ns = clock_ns + HANG_NS; under_way && clock_ns < end_ns;) {
    tick();
    under_way = false;
    for (uint32_t index = 0; index < world->gang_count; index++)
      under_way = under_way || world->gangs[index].began_ns;
  }
  for (uint32_t index = 0; index < world->gang_count; index++)
    if (world->gangs[index].began_ns) {
      sums->hangs++;
      fprintf(stderr, "seed %" PRIu64 ": gang %u hangs\n", seed, index);
    }
  forget_joint();
  for (int handle = 0; handle < SP_SHARES_MAX; handle++) {
    if (!world->arbiter.shares[handle])
      continue;
    sp_slots_close(world->arbiter.shares[handle]);
    free(world->arbiter.shares[handle]);
  }
}

int main(int count, char **arguments) {
  if (count < 3)
    return 2;
  apart = count > 3 && !strcmp(arguments[3], "apart");
  joined = count > 3 && !strcmp(arguments[3], "joined");
  world = aligned_alloc(_Alignof(struct world), (sizeof *world + 63) / 64 * 64);
  if (!world)
    return 2;
  memset(world, 0, sizeof *world);
  turns = calloc(SP_TURNS_KEPT, sizeof *turns);
  struct sums sums = {.worst_part = 1e9};
  uint64_t first = strtoull(arguments[1], NULL, 10), last = first + strtoull(arguments[2], NULL, 10);
  for (uint64_t seed = first; seed < last; seed++)
    run_schedule(&sums, seed);
  printf("{\"collectives\": %" PRIu64 ", \"hangs\": %" PRIu64 ", \"longest_ms\": %.1f, "
         "\"steady_collectives\": %" PRIu64
         ", \"steady_longest_ms\": %.1f, \"longest_wait_ms\": %.1f, \"least_part\": %.4f, \"invalid\": %" PRIu64 "}\n",
         sums.collectives, sums.hangs, (double)sums.longest_ns / MS, sums.steady_collectives,
         (double)sums.steady_longest_ns / MS, (double)sums.wait_longest_ns / MS, sums.worst_part, sums.invalid);
  free(turns);
  free(world);
  return 0;
}
