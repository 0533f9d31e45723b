/* Tests what the arbiter's loop does with the event of a process's end, on a share with one process. Prints for each
 * case how many ends it has handled. */
#define sp_slots_died taken_for_dead
#define sp_step_share stepped
#include "agent/arbiter/arbiter.c"

#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int ends;

void taken_for_dead(struct sp_arbiter *arbiter, struct sp_share *share, uint32_t slot, uint64_t now_ns) {
  (void)arbiter, (void)share, (void)slot, (void)now_ns;
  ends++;
}
void stepped(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t now_ns) {
  (void)arbiter, (void)share, (void)now_ns;
}

static int pidfd_of(pid_t pid) {
  return (int)syscall(SYS_pidfd_open, pid, 0);
}

int main(void) {
  static struct sp_arbiter arbiter;
  static struct sp_share share;
  arbiter.shares[3] = &share;
  pid_t child = fork();
  if (child == 0)
    _exit(0);
  waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED | WNOWAIT); /* it has ended, and is a zombie until it is reaped */
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)SP_TAG_PIDFD << 62 | 3u << 8};
  struct {
    const char *name;
    int pidfd;
  } cases[] = {{"ended", pidfd_of(child)}, {"lives", pidfd_of(getpid())}, {"none", -1}};
  for (size_t index = 0; index < sizeof cases / sizeof *cases; index++) {
    ends = 0;
    share.tenants[0].pidfd = cases[index].pidfd;
    handle(&arbiter, &event);
    printf("%s %d\n", cases[index].name, ends);
  }
  return waitpid(child, NULL, 0) != child;
}
