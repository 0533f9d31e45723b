/* Tests the barrier that the keeper imposes on all threads, when the kernel refuses the system call later on. */
#include "region/uncancelled.h"

static void slept_for(uint64_t ns);
long refused_from(long number, ...);
#define syscall     refused_from
#define sp_sleep_ns slept_for
#include "hook/gate/thread.c"
#undef syscall
#undef sp_sleep_ns

#include <stdio.h>

struct sp_this_process sp_this_process;
static int allowed = 2, asked, sleeps;

long refused_from(long number, ...) {
  asked += number == SYS_membarrier;
  return allowed-- > 0 ? 0 : -1;
}

static void slept_for(uint64_t ns) {
  (void)ns;
  sleeps++;
}

void sp_record_left(struct sp_thread *one) {
  (void)one;
}
void sp_wait_left(struct sp_thread *thread) {
  (void)thread;
}

int main(void) {
  records[0] = (struct sp_thread){.used = 1, .patience_ns = 32000000, .passed_ns = 1, .stood_ns = 2, .closed = 3};
  records[0].event_launches = 4;
  release_record(&records[0]);
  printf("next used %u patience %d passed %d stood %d closed %u launches %d\n", records[0].used,
         (int)records[0].patience_ns, (int)records[0].passed_ns, (int)records[0].stood_ns, records[0].closed,
         (int)records[0].event_launches);
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
