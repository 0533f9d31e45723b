/* A process that holds memory, and another that locks, checkpoints, restores and unlocks it by its pid. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "probe.h"

#define CHUNK_BYTES ((size_t)1 << 30)
#define PATTERN     0x5a5a1234u
#define LOCK_MS     10000u

/* The whole is touched, and after the go a word of each chunk must still be there. */
void run_hold(void) {
  size_t chunks = (options.bytes + CHUNK_BYTES - 1) / CHUNK_BYTES, held = 0;
  device_pointer *at = allocate(chunks, sizeof *at);
  for (size_t i = 0; i < chunks; i++) {
    size_t bytes = options.bytes - held < CHUNK_BYTES ? options.bytes - held : CHUNK_BYTES;
    CALL(cuMemAlloc, &at[i], bytes);
    CALL(cuMemsetD32, at[i], PATTERN + (unsigned)i, bytes / 4);
    held += bytes;
  }
  CALL(cuStreamSynchronize, NULL);
  await_start();
  bool intact = true;
  for (size_t i = 0; i < chunks; i++) {
    uint32_t word = 0;
    CALL(cuMemcpyDtoH, &word, at[i], sizeof word);
    intact = intact && (word == PATTERN + (unsigned)i || options.simulated);
  }
  begin_result(0, 0);
  printf(", \"intact\": %s", intact ? "true" : "false");
  free(at);
}

static int timed(const char *name, int (*step)(int, struct checkpoint_arguments *), unsigned timeout_ms) {
  struct checkpoint_arguments arguments = {.timeout_ms = timeout_ms};
  uint64_t begin_ns = now_ns();
  int result = step ? step((int)options.pid, &arguments) : ERROR_NOT_SUPPORTED;
  if (result == SUCCESS)
    printf(", \"%s_ns\": %" PRIu64, name, now_ns() - begin_ns);
  else
    printf(", \"error\": \"%s: %s\"", name, error_name(result));
  return result;
}

/* Each step only after the one before it: what has failed half way is left to the caller, who ends that process. */
void run_checkpoint(void) {
  begin_result(0, 0);
  if (timed("lock", driver.cuCheckpointProcessLock, LOCK_MS))
    return;
  if (timed("checkpoint", driver.cuCheckpointProcessCheckpoint, 0))
    return;
  if (timed("restore", driver.cuCheckpointProcessRestore, 0))
    return;
  timed("unlock", driver.cuCheckpointProcessUnlock, 0);
}
