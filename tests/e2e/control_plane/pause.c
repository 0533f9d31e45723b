/* Is the first process of a pod: holds its namespaces and collects its orphans until it gets a signal to end. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void collect(int number) {
  (void)number;
  while (waitpid(-1, NULL, WNOHANG) > 0)
    ;
}

static void end(int number) {
  (void)number;
  _exit(0);
}

int main(void) {
  signal(SIGCHLD, collect);
  signal(SIGINT, end);
  signal(SIGTERM, end);
  for (;;)
    pause();
}
