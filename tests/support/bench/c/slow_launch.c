/*
 * A minimal foreign interposer: every cuLaunchKernel begins PAUSE_US late. It gets between a program and the driver as
 * such tools do, by a dlsym of its own.
 */
#include "../../hook/c/loader.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int launch_kernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                          void **);
typedef int get_address(const char *, void **, int, uint64_t, int *);
static launch_kernel *real_launch;
static get_address *real_get;

static int launch_late(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned bytes, void *stream, void **parameters, void **extra) {
  const char *pause_us = getenv("PAUSE_US");
  struct timespec pause = {.tv_nsec = pause_us ? atol(pause_us) * 1000 : 0};
  nanosleep(&pause, NULL);
  return real_launch(function, gx, gy, gz, bx, by, bz, bytes, stream, parameters, extra);
}

static int get_late(const char *name, void **address, int version, uint64_t flags, int *status) {
  int result = real_get(name, address, version, flags, status);
  if (result || strcmp(name, "cuLaunchKernel") != 0)
    return result;
  *(void **)&real_launch = *address;
  *address = (void *)launch_late;
  return 0;
}

EXPORT void *dlsym(void *handle, const char *name) {
  static void *(*next)(void *, const char *);
  if (!next)
    *(void **)&next = LIBC("dlsym");
  void *found = next(handle, name);
  if (!found || strcmp(name, "cuGetProcAddress_v2") != 0)
    return found;
  *(void **)&real_get = found;
  return (void *)get_late;
}
