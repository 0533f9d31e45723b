/*
 * interrupted: tells a signal handler whether it may jump out of the interrupted call into the driver.
 *
 * It may jump out of a wait that has a timeout. A wait for a lock has none, and a thread in it may hold another lock. A
 * thread that does not wait may hold any lock. After a jump such a lock would be held for ever, also without the hook.
 */
#ifndef SHAREPOD_RIG_INTERRUPTED_H
#define SHAREPOD_RIG_INTERRUPTED_H

#include <errno.h>
#include <stdbool.h>
#include <ucontext.h>

/* `context`: the third argument of a handler that was installed with SA_SIGINFO and without SA_RESTART. */
static bool interrupted_in_wait(const void *context) {
  const mcontext_t *machine = &((const ucontext_t *)context)->uc_mcontext;
#if defined(__x86_64__)
  long result = machine->gregs[REG_RAX], timeout = machine->gregs[REG_R10];
#elif defined(__aarch64__)
  long result = (long)machine->regs[0], timeout = (long)machine->regs[3];
#else
#error "on this machine it is not known where a system call has its result and its fourth argument"
#endif
  return result == -EINTR && timeout; /* the fourth argument of futex and futex_waitv */
}

#endif
