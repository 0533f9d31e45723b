/* Where a launch waits: for the turn of its share, or for less work in flight. The slow half of the gate. */
#ifndef SHAREPOD_WAIT_H
#define SHAREPOD_WAIT_H

#include "hook/gate/guest.h"

/* What is in flight is one unit of the length predicted, or less. */
static inline bool sp_one_in_flight(uint64_t in_flight_ns, uint64_t predicted_ns) {
  return in_flight_ns <= predicted_ns + predicted_ns / 4;
}

enum sp_progress {
  SP_MADE,  /* something has finished: look again */
  SP_NEAR,  /* what runs is about to finish: the next unit may follow, or the device would idle while we are told */
  SP_STUCK, /* nothing for too long: let the launch pass, what runs may be spinning for it */
};

/* Wait until this process may launch. True: pass although the gate is closed (there is no agent to open it).
 * `*entered`: the turn has been entered just now, and the keeper must hear of it once the launch is made. */
bool sp_wait_turn(struct sp_device *device, struct sp_thread *thread, struct sp_lane *lane, bool *entered);
/* Wait until less work is in flight. The patience of a thread runs on across turns: what it waits for may need longer
 * than one, or this very launch. */
enum sp_progress sp_wait_progress(struct sp_device *device, struct sp_thread *thread, struct sp_lane *lane,
                                  uint64_t predicted_ns);
/* The thread waits no longer, in whatever way its wait has ended. */
void sp_wait_left(struct sp_thread *thread);
/* The launch passes without progress: the next wait is longer. */
void sp_wait_gave_up(struct sp_device *device, struct sp_thread *thread);

#endif
