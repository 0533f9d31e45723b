/* A libnvidia-ml for a machine with 2,000 processes; every call finds more of them. All of them compute, draw, and are
 * clients of MPS. The third and the 1,999th have the pids that CROWD names; the others never end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOBODY 0x40000000u /* above every possible pid */

#define EXPORT __attribute__((visibility("default")))

struct process {
  unsigned pid;
  unsigned long long memory_bytes;
  unsigned gpu_instance, compute_instance;
};

EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
  (void)device, (void)length;
  *uuid = 0;
  return 0;
}

static int list(unsigned *count, char *entries, unsigned long entry_bytes) {
  static unsigned looks;
  unsigned room = *count;
  *count = 2000 + 10 * looks++;
  if (*count > room)
    return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
  const char *crowd = getenv("CROWD");
  unsigned early = NOBODY, late = NOBODY;
  if (crowd)
    sscanf(crowd, "%u %u", &early, &late);
  for (unsigned n = 0; n < *count; n++) {
    struct process process = {n == 2 ? early : n == 1998 ? late : NOBODY + n, n, 0, 0};
    memcpy(entries + n * entry_bytes, &process, entry_bytes);
  }
  return 0;
}

#define LIST(name, entry_bytes)                                                                                        \
  EXPORT int nvmlDeviceGet##name(void *device, unsigned *count, void *entries) {                                       \
    (void)device;                                                                                                      \
    return list(count, entries, entry_bytes);                                                                          \
  }
#define LISTS(kind)                                                                                                    \
  LIST(kind##RunningProcesses, 16)                                                                                     \
  LIST(kind##RunningProcesses_v2, sizeof(struct process))                                                              \
  LIST(kind##RunningProcesses_v3, sizeof(struct process))
LISTS(Compute)
LISTS(Graphics)
LISTS(MPSCompute)
