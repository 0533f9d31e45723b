/*
 * The identity of a process: a number for the model, a pid for people and other tools.
 *
 * In containers many processes are pid 1, so processes are told apart by a number of their own. A reader is told the
 * pid that a process has in the reader's own pid namespace. The real driver asks the kernel for it. Here a process
 * outside the initial namespace holds a record lock on one byte of <state file>.pids for as long as it lives, and
 * F_GETLK tells every reader the holder's pid in the reader's namespace. A process of the initial namespace is seen
 * only by readers of that namespace. They know its pid anyway, so it takes no lock. Where all processes are in the
 * initial namespace there is no such file.
 */
#ifndef SIMGPU_OWNER_H
#define SIMGPU_OWNER_H

#include <stdint.h>

struct sg_state;

struct sg_owner {
  uint32_t id;            /* never reused in a state file, 0 = no process */
  int32_t pid;            /* in the process's own pid namespace */
  uint32_t pid_namespace; /* inode of /proc/self/ns/pid, 0 = not known, or the lock failed */
};

/* The pid namespace of this process, 0 = not known. */
uint32_t sg_pid_namespace(void);
/* With the lock: this process as an owner. After the first call other processes can find out its pid. */
const struct sg_owner *sg_owner_own(struct sg_state *state);
#define SG_UNSEEN 0    /* the process has no pid here */
#define SG_GONE   (-1) /* it has ended; its contexts go a moment later, when their locks are released */
/* With the lock: the pid of an owner in the namespace of this process, or one of these two. */
int32_t sg_seen_pid(struct sg_state *state, const struct sg_owner *owner);
/* The same for a caller that needs a pid in any case: where it is unseen or gone, the pid in its own namespace. */
int32_t sg_pid_of(struct sg_state *state, const struct sg_owner *owner);

#endif
