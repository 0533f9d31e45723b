/*
 * Who a process is: to the model a number, to people and other tools a pid.
 *
 * In containers many processes are pid 1, so processes are told apart by a number of their own. A pid is told as the
 * reader's pid namespace has it, as the real driver does, who asks the kernel: a process outside the initial namespace
 * holds a record lock on one byte of <state file>.pids for as long as it lives, and F_GETLK tells every reader the
 * holder's pid in the reader's own namespace. A process of the initial namespace is seen by readers of that one alone,
 * who know its pid anyway: it takes no lock, and there is no such file where all are in it.
 */
#ifndef SIMGPU_OWNER_H
#define SIMGPU_OWNER_H

#include <stdint.h>

struct sg_state;

struct sg_owner {
  uint32_t id;            /* never reused in a state file, 0 = nobody */
  int32_t pid;            /* as the process's own pid namespace has it */
  uint32_t pid_namespace; /* inode of /proc/self/ns/pid, 0 = not known, or the lock could not be had */
};

/* The pid namespace of this process, 0 = not known. */
uint32_t sg_pid_namespace(void);
/* With the lock: this process as an owner; from the first call on its pid can be told elsewhere. */
const struct sg_owner *sg_owner_own(struct sg_state *state);
#define SG_UNSEEN 0    /* the process has no pid here */
#define SG_GONE   (-1) /* it has ended; its contexts go within a moment, with locks that fall later */
/* With the lock: the pid of an owner in the namespace of this process, or one of these two. */
int32_t sg_seen_pid(struct sg_state *state, const struct sg_owner *owner);
/* The same for who wants a name in any case: else the pid in its own namespace. */
int32_t sg_pid_of(struct sg_state *state, const struct sg_owner *owner);

#endif
