/* The slow half of the gate: a launch waits for a turn of its share, or for less work in flight. */
#ifndef SHAREPOD_WAIT_H
#define SHAREPOD_WAIT_H

#include "hook/gate/process.h"

/* Is at most one unit of the predicted length in flight? A quarter more still counts as one. */
static inline bool sp_one_in_flight(uint64_t in_flight_ns, uint64_t predicted_ns) {
  return in_flight_ns <= predicted_ns + predicted_ns / 4;
}

enum sp_progress {
  SP_MADE,  /* some work has finished: check again */
  SP_NEAR,  /* the running work is about to finish: let the next unit follow, so that the device does not idle */
  SP_STUCK, /* nothing has finished for too long: let the launch pass, the running work may be spinning for it */
};

/* Wait until this process may launch. True: pass although the gate is closed, because no agent could open it.
 * False: look at the grant again. *entered becomes true if this call has entered the turn: then the keeper must be told
 * once the launch is made. */
bool sp_wait_turn(struct sp_device *device, struct sp_thread *thread, struct sp_stream_state *state, bool *entered);
/* Wait until less work is in flight. `predicted_ns`: of the launch; 0: not known. A thread's patience continues across
 * turns: the work that it waits for may need more than one turn, or this very launch. */
enum sp_progress sp_wait_progress(struct sp_device *device, struct sp_thread *thread, struct sp_stream_state *state,
                                  uint64_t predicted_ns);
/* Undo what the thread's wait has counted, however that wait has ended. */
void sp_wait_left(struct sp_thread *thread);
/* The launch passes without progress: the next wait is longer. */
void sp_wait_gave_up(struct sp_device *device, struct sp_thread *thread);

#endif
