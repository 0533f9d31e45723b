/* When a context is off the device: one kernel that watches the device's clock, see kernels.h. */
#define _GNU_SOURCE

#include "probe.h"

#define GAPS 8192u

/* `gap` is the least time off the device that counts as one; the clock's own steps must be well below it. */
void run_slices(void) {
  struct log log = make_log(GAPS);
  struct log_slot *slots;
  void *stream, *function = find_timed("slices", options.work_ns);
  CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  await_start();
  uint64_t address = log.address, threshold = options.gap_ns ? options.gap_ns : 5000, duration = options.work_ns;
  uint32_t capacity = log.capacity;
  void *parameters[] = {&address, &capacity, &threshold, &duration};
  uint32_t blocks = options.blocks ? (uint32_t)options.blocks : 1, threads = (uint32_t)options.threads;
  CALL(cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
  CALL(cuStreamSynchronize, stream);
  struct log_header head = read_log(&log, &slots);
  begin_result(1, duration);
  printf(", \"began\": %" PRIu64 ", \"ended\": %" PRIu64 ", \"gaps\": [", head.started, head.ended);
  for (uint32_t i = 0; i < head.gaps && i < capacity; i++)
    printf("%s[%" PRIu64 ", %" PRIu64 "]", i ? ", " : "", ~slots[i].not_started, slots[i].ended);
  putchar(']');
  free(slots);
}
