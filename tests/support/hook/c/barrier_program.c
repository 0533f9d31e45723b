/* Tests the barrier that the keeper imposes on all threads, when the kernel refuses the system call later on. */
#define syscall   refused_from
#define nanosleep slept_for
#include "hook/gate/thread.c"
#undef syscall
#undef nanosleep

#include <stdio.h>

struct sp_this_process sp_this_process;
static int allowed = 2, asked, sleeps;

long refused_from(long number, ...) {
  asked += number == SYS_membarrier;
  return allowed-- > 0 ? 0 : -1;
}

int slept_for(const struct timespec *span, struct timespec *rest) {
  (void)span, (void)rest;
  sleeps++;
  return 0;
}

int main(void) {
  record_count = 2;
  for (uint32_t inside = 0; inside < 4; inside++) { /* the second thread is inside the driver on some devices */
    records[1].inside = inside;
    printf("inside-%u first %d second %d\n", inside, sp_threads_inside(0), sp_threads_inside(1));
  }
  for (int time = 0; time < 4; time++) {
    sp_barrier();
    printf("%d asked %d fences %u sleeps %d\n", time, asked, sp_this_process.no_membarrier, sleeps);
  }
  return 0;
}
