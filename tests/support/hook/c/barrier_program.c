/* Tests the barrier that the keeper imposes on all threads, when the kernel refuses the system call later on. */
#define syscall refused_from
#include "hook/gate/thread.c"
#undef syscall

#include <stdio.h>

struct sp_this_process sp_this_process;
static int allowed = 2, asked;

long refused_from(long number, ...) {
  asked += number == SYS_membarrier;
  return allowed-- > 0 ? 0 : -1;
}

int main(void) {
  for (int time = 0; time < 4; time++) {
    sp_barrier();
    printf("%d asked %d fences %u\n", time, asked, sp_this_process.no_membarrier);
  }
  return 0;
}
