/* Facts about the device, and its clock: the modes info, clock and calibrate. */
#define _GNU_SOURCE

#include "probe.h"

#define TICKS          2048u
#define TICKS_LIMIT_NS 2000000000u /* within this time the kernel that writes the ticks must run, beside other work */
#define WARM_NS        300000000u  /* a cold device raises its clocks for about this long */
#define KERNELS        31u
#define TRIES          8u

void run_info(void) {
  char name[128] = "";
  struct uuid uuid = {{0}};
  size_t bytes = 0;
  int device = 0, version = 0, major = 0, minor = 0, count = 0, mode = 0;
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDeviceGetName, name, sizeof name, device);
  CALL(cuDeviceGetUuid, &uuid, device);
  CALL(cuDeviceTotalMem, &bytes, device);
  CALL(cuDriverGetVersion, &version);
  TRY(cuDeviceGetAttribute, &count, ATTRIBUTE_SM_COUNT, device);
  TRY(cuDeviceGetAttribute, &mode, ATTRIBUTE_MODE, device);
  TRY(cuDeviceGetAttribute, &major, ATTRIBUTE_MAJOR, device);
  TRY(cuDeviceGetAttribute, &minor, ATTRIBUTE_MINOR, device);
  begin_result(0, 0);
  printf(", \"name\": \"%s\", \"uuid\": \"GPU-", name);
  for (size_t i = 0; i < sizeof uuid.bytes; i++)
    printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid.bytes[i]);
  printf("\", \"memory_bytes\": %zu, \"cuda_version\": %d, \"capability\": \"%d.%d\", \"multiprocessors\": %d, "
         "\"compute_mode\": %d",
         bytes, version, major, minor, count, mode);
}

static uint64_t common_divisor(uint64_t left, uint64_t right) {
  while (right) {
    uint64_t remainder = left % right;
    left = right;
    right = remainder;
  }
  return left;
}

/*
 * A kernel writes the device's time to host memory again and again, and the host takes its own time as each arrives.
 * The host can see a write late, never early. So the smallest difference is the map. It is late by the time of one
 * write over the bus (about a microsecond, always the same).
 */
struct clock_map map_clock(void) {
  struct clock_map map = {.host_ns = now_ns(), .device_ns = now_ns(), .resolution_ns = 1};
  if (options.simulated)
    return map; /* its clock is the host's */
  static uint64_t *seen;
  static device_pointer address;
  static void *stream, *function;
  if (!seen) {
    seen = mapped(TICKS * sizeof *seen, &address);
    CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
    function = find_timed("ticks", 1000000);
  }
  memset(seen, 0, TICKS * sizeof *seen);
  uint32_t count = TICKS;
  void *parameters[] = {&address, &count};
  uint64_t limit_ns = now_ns() + TICKS_LIMIT_NS, before_ns = 0, divisor = 0;
  CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
  for (uint32_t i = 0; i < TICKS; i++) {
    uint64_t device_ns, host_ns;
    do {
      device_ns = __atomic_load_n(&seen[i], __ATOMIC_ACQUIRE);
      host_ns = now_ns();
    } while (!device_ns && host_ns < limit_ns);
    if (!device_ns)
      die("the device's clock was not seen within %u ms", TICKS_LIMIT_NS / 1000000);
    /* Both clocks are far from wrapping. Their difference may have either sign, so it is compared as signed. */
    if (i == 0 || (int64_t)(host_ns - device_ns) < (int64_t)(map.host_ns - map.device_ns)) {
      map.host_ns = host_ns;
      map.device_ns = device_ns;
    }
    if (before_ns && device_ns > before_ns)
      divisor = common_divisor(divisor, device_ns - before_ns);
    before_ns = device_ns;
  }
  CALL(cuStreamSynchronize, stream);
  map.resolution_ns = divisor ? divisor : 1;
  return map;
}

/* When an event took its time: by the host's clock, and by the event's own clock since the first event. The host's time
 * is that of the shortest of several calls: the event is somewhere inside it. */
static void sample_event(uint64_t *host_ns, double *event_ms) {
  static void *stream, *events[2][TRIES], *last;
  static unsigned turn;
  static double passed_ms; /* summed from event to event: a float cannot hold the nanoseconds of an hour */
  if (!stream)
    CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  void *best = NULL;
  turn = !turn;
  for (uint64_t i = 0, shortest_ns = UINT64_MAX; i < TRIES; i++) {
    if (!events[turn][i])
      CALL(cuEventCreate, &events[turn][i], EVENT_DEFAULT);
    uint64_t began_ns = now_ns();
    CALL(cuEventRecord, events[turn][i], stream);
    CALL(cuEventSynchronize, events[turn][i]);
    uint64_t took_ns = now_ns() - began_ns;
    if (took_ns < shortest_ns) {
      shortest_ns = took_ns;
      *host_ns = began_ns;
      best = events[turn][i];
    }
  }
  float step_ms = 0;
  if (last)
    CALL(cuEventElapsedTime, &step_ms, last, best);
  last = best;
  *event_ms = passed_ms += (double)step_ms;
}

/* For each line on stdin print both clocks at one instant, those of an event, and the memory that is free. */
void run_clock(void) {
  char line[64];
  map_clock(); /* the first is slow */
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    size_t free_bytes = 0, total_bytes = 0;
    CALL(cuMemGetInfo, &free_bytes, &total_bytes);
    uint64_t event_host_ns = 0;
    double event_ms = 0;
    struct clock_map map = map_clock();
    sample_event(&event_host_ns, &event_ms);
    printf("{\"host_ns\": %" PRIu64 ", \"device_ns\": %" PRIu64 ", \"resolution_ns\": %" PRIu64
           ", \"free_bytes\": %zu, \"event_host_ns\": %" PRIu64 ", \"event_ms\": %.6f}\n",
           map.host_ns, map.device_ns, map.resolution_ns, free_bytes, event_host_ns, event_ms);
    fflush(stdout);
  }
  printf("{\"mode\": \"clock\"");
}

/* The durations of the logged kernels, in order. Clears the log. */
static size_t spans_of(const struct log *log, uint64_t *spans_ns, size_t limit) {
  struct log_slot *slots;
  read_log(log, &slots);
  size_t count = 0;
  for (; count < limit && slots[count].ended; count++)
    spans_ns[count] = slots[count].ended - ~slots[count].not_started;
  free(slots);
  clear_log(log);
  return count;
}

/* The median duration of kernels that run back to back, as in the loads. */
static uint64_t span_ns(struct kernel kernel, const struct log *log, void *stream) {
  uint64_t spans_ns[KERNELS];
  for (uint32_t i = 0; i < KERNELS; i++)
    check(launch_work(&kernel, log, stream), "cuLaunchKernel");
  CALL(cuStreamSynchronize, stream);
  size_t count = spans_of(log, spans_ns, KERNELS);
  qsort(spans_ns, count, sizeof *spans_ns, ascending);
  return count ? spans_ns[count / 2] : kernel.unit_ns;
}

/* Measure the loop's rate by one kernel, after a guess of it, and then how long kernels of `units` take. */
void run_calibrate(void) {
  struct log log = make_log(KERNELS);
  void *stream;
  CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  options.rate = options.heavy ? 2 : 100; /* a first guess, of the right order for all devices of the last ten years */
  struct kernel kernel = kernel_of(options.unit_ns);
  for (uint64_t until_ns = now_ns() + WARM_NS; !options.simulated && now_ns() < until_ns;)
    span_ns(kernel, &log, stream);
  if (!options.simulated) {
    uint64_t guess_ns = span_ns(kernel, &log, stream);
    options.rate = (double)kernel.iterations * 1000 / (double)guess_ns;
    kernel = kernel_of(options.unit_ns); /* once more, at the final length */
    options.rate = (double)kernel.iterations * 1000 / (double)span_ns(kernel, &log, stream);
  }
  begin_result(0, 0);
  printf(", \"rate\": %.6f, \"units\": {", options.rate);
  for (size_t i = 0; i < options.unit_count; i++)
    printf("%s\"%" PRIu64 "\": %" PRIu64, i ? ", " : "", options.units_ns[i],
           span_ns(kernel_of(options.units_ns[i]), &log, stream));
  putchar('}');
}
