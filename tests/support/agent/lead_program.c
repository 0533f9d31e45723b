/*
 * Runs lead.c on a device in virtual time: three shares with turns of constant length, and hardware that gives the
 * device to the waiting work at the end of a slice.
 *
 *     lead_program UNIT_NS TURN_NS TURN_NS TURN_NS [RESIDUE_NS]
 *
 * With a residue, the turns are deadlines, each longer or shorter by up to a fifth, which sp_lead_aim may move; the
 * residue's work ends after them. Without a residue, turns last as they are given, and nothing is aimed at.
 *
 * Of the hand-offs after the first 1,000 it prints how many first launches came with less than 100 us to go (minus the
 * unit), and for each share how many of its residues were cut.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/arbiter/node.h"

#define SHARES    3
#define SLICE_NS  2000000u
#define HAND_OFFS 11000
#define LEARNING  1000

static uint32_t seed = 1;

static uint32_t random_below(uint32_t end) {
  seed = seed * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)seed * end >> 32);
}

/* The time from a grant to the launch: 40 to 80 us, but in one of 20 cases up to 500 us. */
static uint64_t wake_up_ns(void) {
  return 40000 + random_below(random_below(20) ? 40000 : 460000);
}

int main(int count, char **arguments) {
  if (count != 2 + SHARES && count != 3 + SHARES)
    return 2;
  uint64_t residue_ns = count == 3 + SHARES ? strtoull(arguments[2 + SHARES], NULL, 10) : 0;
  static struct sp_node_device device;
  static struct sp_member members[SHARES];
  uint64_t unit_ns = strtoull(arguments[1], NULL, 10), now_ns = 1000000000, late = 0, cuts[SHARES] = {0};
  uint64_t ahead_ns = unit_ns < 100000 ? 100000 - unit_ns : 0;
  sp_lead_init_device(&device);
  for (int index = 0; index < SHARES; index++) {
    members[index].device = &device;
    members[index].view.longest_unit_ns = unit_ns;
    sp_lead_init_member(&members[index]);
    members[index].terms.limit_millipercent = residue_ns ? SP_POLICY_WHOLE : 1; /* with a limit, no deadline is moved */
  }
  members[0].deadline_ns = now_ns + 5 * SLICE_NS + 500000;
  for (int number = 0; number < HAND_OFFS; number++) {
    struct sp_member *drains = &members[number % SHARES], *next = &members[(number + 1) % SHARES];
    /* A share's slices begin when it gets the device. */
    uint64_t turn_ns = strtoull(arguments[2 + number % SHARES], NULL, 10) + random_below(20000);
    if (residue_ns)
      turn_ns = drains->deadline_ns + residue_ns + random_below(100000) - now_ns;
    uint64_t end_ns = now_ns + turn_ns;
    uint64_t slice_end_ns = now_ns + turn_ns / SLICE_NS * SLICE_NS,
             launch_ns = end_ns - sp_lead_ns(drains) + wake_up_ns();
    drains->view.residue_until_ns = end_ns;
    device.drains[0] = drains;
    device.draining = 1;
    device.holder = next;
    uint64_t next_ns = strtoull(arguments[2 + (number + 1) % SHARES], NULL, 10);
    next->granted_ns = end_ns - sp_lead_ns(drains);
    next->deadline_ns = next->granted_ns + next_ns - next_ns / 5 + random_below((uint32_t)next_ns / 5 * 2);
    sp_lead_granted(&device);
    bool cut = launch_ns < slice_end_ns || (launch_ns < end_ns && launch_ns > slice_end_ns + SLICE_NS);
    /* In one of 20 cases the keeper sees the drain late. */
    uint64_t drained_ns = cut || !random_below(20) ? end_ns + SLICE_NS : end_ns;
    sp_lead_drained(drains, drained_ns);
    next->predecessor_ns = drained_ns;
    next->view.entered = true;
    next->view.entered_ns = launch_ns;
    sp_lead_closed(next);
    now_ns = launch_ns > end_ns ? launch_ns : end_ns;
    if (number >= LEARNING) {
      cuts[number % SHARES] += cut;
      late += launch_ns + ahead_ns > end_ns;
    }
  }
  printf("{\"hand_offs\": %d, \"late\": %" PRIu64 ", \"cuts\": [%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]}\n",
         HAND_OFFS - LEARNING, late, cuts[0], cuts[1], cuts[2]);
  return 0;
}
