/* Simulates the ranks of gangs behind their gates, what hook and keeper do for them, and the devices below. */
#include <stddef.h>

#include "gang_world.h"

static bool lives(const struct gang *gang) {
  return !gang->dead && clock_ns >= gang->begin_ns && clock_ns < gang->end_ns;
}

static bool in_flight(const struct rank *rank) {
  return rank->head != rank->tail;
}

static void wait_at_gate(struct rank *rank) {
  if (rank->said.waiting)
    return;
  rank->said.waiting = 1;
  rank->said.waiting_since_ns = rank->waits_since_ns = clock_ns;
  rank->gang->rung = true;
}

/* The slow half of the gate. */
static bool enter(struct rank *rank) {
  uint32_t word = rank->grant.word;
  if (!(word & 1)) {
    wait_at_gate(rank);
    return false;
  }
  if (rank->said.waiting) {
    if (clock_ns - rank->waits_since_ns > rank->longest_wait_ns)
      rank->longest_wait_ns = clock_ns - rank->waits_since_ns;
    rank->said.waiting = 0;
  }
  if (rank->said.held_turn != word || rank->said.drained_turn == word) {
    if (rank->said.held_turn != word) {
      rank->said.idle_ns = 0;
      rank->said.entered_ns = clock_ns;
    } else if (clock_ns > rank->said.residue_until_ns) {
      rank->said.idle_ns += clock_ns - rank->said.residue_until_ns;
    }
    rank->said.held_turn = word;
    rank->said.drained_turn = 0;
    rank->said.residue_until_ns = 0;
    rank->idle_since_ns = 0;
  }
  return true;
}

static void launch(struct rank *rank, uint64_t length_ns) {
  if (!in_flight(rank))
    rank->progress_ns = clock_ns;
  rank->queue_ns[rank->tail++ % QUEUE] = length_ns;
  rank->predicted_ns += length_ns ? length_ns : TICK_NS;
  rank->said.launches++;
}

/* Whether a launch may pass: less than the budget is in flight, or nothing moves, as what runs may spin for it. */
static bool fits(struct rank *rank) {
  if (rank->tail - rank->head >= QUEUE)
    return false;
  if (!in_flight(rank) || rank->predicted_ns < rank->grant.budget_ns)
    return true;
  if (clock_ns - rank->progress_ns < PATIENCE_NS + rank->predicted_ns)
    return false;
  rank->progress_ns = clock_ns;
  return true;
}

static void run_lock_step(struct rank *rank) {
  struct gang *gang = rank->gang;
  if (rank->launched || clock_ns < rank->resume_ns || (!lives(gang) && !gang->began_ns) || !enter(rank))
    return;
  if (!gang->began_ns)
    gang->began_ns = clock_ns;
  launch(rank, 0);
  launch(rank, rank->unit_ns);
  rank->launched = true;
}

static void run_alone(struct rank *rank) {
  for (int launches = 0; launches < 64; launches++) {
    if (clock_ns < rank->resume_ns)
      return;
    if (!rank->left) {
      if (in_flight(rank))
        return; /* the rank waits until its burst has ended */
      rank->left = rank->burst;
      if (rank->pause_ns) {
        rank->resume_ns = clock_ns + rank->pause_ns;
        return;
      }
    }
    if (!lives(rank->gang) || !enter(rank) || !fits(rank))
      return;
    launch(rank, rank->unit_ns);
    rank->left--;
  }
}

/* When all ranks have done their part, the next collective begins, each rank a little later. */
static void collect(struct gang *gang) {
  if (!gang->began_ns)
    return;
  for (uint32_t rank = 0; rank < gang->count; rank++)
    if (!gang->ranks[rank].launched || in_flight(&gang->ranks[rank]))
      return;
  uint64_t took_ns = clock_ns - gang->began_ns;
  gang->collectives++;
  if (took_ns > gang->longest_ns)
    gang->longest_ns = took_ns;
  gang->began_ns = 0;
  for (uint32_t rank = 0; rank < gang->count; rank++) {
    gang->ranks[rank].launched = false;
    gang->ranks[rank].step = 0;
    gang->ranks[rank].resume_ns = clock_ns + (draw(20) ? draw(3) * TICK_NS : draw(3 * MS));
  }
}

/* Does what the keeper does: gives an idle turn back, and drains a closed one. */
static void keep(struct rank *rank) {
  struct sp_slot_device *said = &rank->said;
  if (said->held_turn == 0 || said->drained_turn == said->held_turn)
    return;
  bool open = rank->grant.word == said->held_turn;
  if (in_flight(rank)) {
    rank->idle_since_ns = 0;
    if (!open && !said->residue_until_ns) {
      said->residue_until_ns = clock_ns + rank->predicted_ns - (rank->done_ns < rank->predicted_ns ? rank->done_ns : 0);
      rank->gang->rung = true;
    }
    return;
  }
  if (!rank->idle_since_ns)
    rank->idle_since_ns = clock_ns;
  if (open && clock_ns - rank->idle_since_ns < LINGER_NS)
    return;
  said->drained_turn = said->held_turn;
  said->drained_ns = clock_ns;
  said->residue_until_ns = rank->idle_since_ns;
  if (!open || rank->grant.flags & SP_GRANT_CONTENDED)
    rank->gang->rung = true;
}

void run_gang(struct gang *gang) {
  for (uint32_t rank = 0; rank < gang->count; rank++) {
    if (gang->lock_step)
      run_lock_step(&gang->ranks[rank]);
    else
      run_alone(&gang->ranks[rank]);
    keep(&gang->ranks[rank]);
  }
  if (gang->lock_step)
    collect(gang);
}

/* ---- the devices */

static bool head_done(struct rank *rank) {
  uint64_t length_ns = rank->queue_ns[rank->head % QUEUE];
  if (length_ns) {
    rank->done_ns += TICK_NS;
    return rank->done_ns >= length_ns;
  }
  for (uint32_t other = 0; other < rank->gang->count; other++)
    if (rank->gang->ranks[other].step < rank->step)
      return false; /* the kernel spins for another rank */
  return ++rank->step == STEPS + 1;
}

void work(uint32_t device) {
  struct rank *working[SHARES], *active = NULL;
  uint32_t count = 0, at = 0;
  for (uint32_t index = 0; index < world->gang_count; index++)
    for (uint32_t rank = 0; rank < world->gangs[index].count; rank++)
      if (world->gangs[index].ranks[rank].device == device && in_flight(&world->gangs[index].ranks[rank]))
        working[count++] = &world->gangs[index].ranks[rank];
  if (!count)
    return;
  for (uint32_t index = 0; index < count; index++)
    if (working[index] == world->devices[device].active) {
      active = working[index];
      at = index;
    }
  if (!active || clock_ns >= world->devices[device].slice_ns + SLICE_NS) {
    active = working[active ? (at + 1) % count : draw(count)];
    world->devices[device].active = active;
    world->devices[device].slice_ns = clock_ns;
  }
  active->ran_ns += TICK_NS;
  uint64_t length_ns = active->queue_ns[active->head % QUEUE];
  if (!head_done(active))
    return;
  active->predicted_ns -= length_ns ? length_ns : TICK_NS;
  active->done_ns = 0;
  active->head++;
  active->progress_ns = clock_ns;
  if (!active->said.first_ended_ns || active->said.first_ended_ns < active->said.entered_ns)
    active->said.first_ended_ns = clock_ns;
}
