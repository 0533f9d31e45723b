/*
 * Declares what gang_program.c makes its schedules of: devices, and gangs of ranks, all in virtual time.
 */
#ifndef SHAREPOD_TESTS_GANG_WORLD_H
#define SHAREPOD_TESTS_GANG_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/arbiter/node.h"

#define TICK_NS     50000u
#define MS          1000000u
#define RUN_NS      1200000000u
#define HANG_NS     4000000000u /* a collective that is not done by then hangs */
#define SLICE_NS    2000000u
#define LINGER_NS   200000u
#define PATIENCE_NS 2000000u
#define SHARES      10u
#define DEVICES     4u
#define QUEUE       64u
#define STEPS       4u

/* The work of one share on one device: one process, one thread, one stream. */
struct rank {
  struct sp_share *share;
  struct sp_member *member;
  struct sp_grant grant;
  struct sp_slot_device said;
  struct gang *gang;
  uint32_t device;
  uint64_t unit_ns, burst, pause_ns; /* length of a kernel, kernels in a burst, pause after a burst */
  uint64_t left, resume_ns;
  uint64_t queue_ns[QUEUE]; /* lengths of what is in flight; 0: a step of a collective */
  uint32_t head, tail;
  uint64_t done_ns;      /* how long the head has run */
  uint64_t predicted_ns; /* the predicted time of all in flight */
  uint64_t progress_ns, idle_since_ns;
  uint64_t waits_since_ns, longest_wait_ns, ran_ns;
  uint32_t step; /* how far it is in the collective */
  bool launched; /* it has launched its part of the collective */
};

struct gang {
  struct rank ranks[DEVICES];
  uint32_t count;
  bool lock_step, dead, rung;
  uint64_t begin_ns, end_ns, pause_at_ns, resume_at_ns, die_at_ns;
  uint64_t began_ns; /* when the collective under way began */
  uint64_t collectives, longest_ns;
};

struct world {
  struct sp_arbiter arbiter;
  struct gang gangs[SHARES];
  uint32_t gang_count, device_count;
  struct {
    struct rank *active;
    uint64_t slice_ns;
  } devices[DEVICES];
};

extern struct world *world;
extern uint64_t clock_ns;

/* Returns the schedule's next random number, from 0 and below `below`. */
uint32_t draw(uint32_t below);

/* gang_rank.c: what the processes and the devices do in one tick. */
void run_gang(struct gang *gang);
void work(uint32_t device);

#endif
