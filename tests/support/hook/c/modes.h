/*
 * A program of several modes, `PROGRAM MODE [ARGUMENT]`: runs the one that is named, with a context and two kernels,
 * one of 5 us and one of 0.5 ms.
 */
#include <unistd.h>

#include "client.h"

#define STREAM_ROOM 1024 /* pieces of work that the driver takes before a call waits for room */
#define PATIENCE_S  40

struct mode {
  const char *name;
  void (*run)(const char *argument); /* NULL: none was given */
};

static const uint64_t units_ns[] = {5000, 500000};
static void *brief, *usual;

static void work(void *function, void *stream, int count) {
  for (int i = 0; i < count; i++)
    launch_one(function, stream, 1);
}

static int run_mode(int count, char **arguments, const struct mode *modes, size_t mode_count) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  alarm(PATIENCE_S); /* a program that hangs is killed */
  load_driver();
  open_context(0);
  void *module = load_module(units_ns, 2);
  brief = find_kernel(module, units_ns[0]);
  usual = find_kernel(module, units_ns[1]);
  for (size_t i = 0; i < mode_count; i++)
    if (count > 1 && !strcmp(arguments[1], modes[i].name))
      return modes[i].run(count > 2 ? arguments[2] : NULL), 0;
  die("usage: %s MODE [ARGUMENT]", arguments[0]);
}
