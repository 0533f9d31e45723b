/*
 * probe: the programs of the hardware bench in one. They are driver-API clients that know nothing of shares; their
 * kernels log themselves on the device's clock.
 *
 *     probe MODE [option=value ...]
 *
 *     info        the device
 *     clock       for each line on stdin: how the device's clock maps to the host's, and the memory that is free
 *     calibrate   loop iterations per microsecond (`rate`), and how long kernels of `units` then take, alone
 *     saturate    keep `depth` groups of `group` launches in flight; graph=M launches graphs of M kernels
 *     sync        launch `burst` kernels, synchronise, stay away for `gap`; again
 *     periodic    every `period`: `work` of device time in kernels of `unit`, then synchronise; prints latencies
 *     cost        the host's time per launch, in `count` batches of `group` empty launches
 *     mix         `count` rounds of everything that counts as a launch: kernels, a graph, a memset, a copy
 *     ptx         the text of the kernels of `units`; needs no device
 *     calls       the host's time of driver calls, batches of `group`, some beside a kernel of `work`
 *     latency     `count` launches on an idle device, each after `gap`
 *     records     kernels of `units` by turns: alone, with an event behind each, with a timing event behind each
 *     streams     the time of kernels of `unit` that fill the device, on one stream, and of as many on each of two
 *     commands    every `gap` what needs no multiprocessor; `command` 0: a word written, 1: an event, 2: a wait
 *     signals     how long after the end of a kernel the host knows, by each way to know
 *     capture     captures in every mode while another thread launches: the errors
 *     memory      fill the memory that is free, to the last byte, by every kind of allocation; `count` rounds
 *
 * A program that logs its kernels writes the log to the file `path`. A kernel has three 64-bit words: when its launch
 * had returned (host, ns; 0 unknown), its begin and its end (device, ns).
 *
 * Times take a suffix: ns, us, ms, s. With wait=1 it prints "ready" when its context exists, and reads "START STOP"
 * (CLOCK_MONOTONIC ns) from stdin. simulated=1: kernels last as long as their names say and log nothing. The last line
 * is one JSON object. heavy=1: kernels that use everything that a multiprocessor has. Exit 0, or 1 with the failing
 * call on stderr.
 */
#define _GNU_SOURCE
#include "probe.h"

#include "start.h"

struct options options = {.unit_ns = 500000,
                          .work_ns = 1000000,
                          .period_ns = 50000000,
                          .seconds_ns = 1000000000,
                          .depth = 8,
                          .group = 1,
                          .streams = 1,
                          .burst = 1,
                          .threads = 32,
                          .rate = 1};

static int multiprocessors;

bool running(void) {
  return goes_on(options.stop_ns);
}

/* ---- options ---- */

static void parse(int count, char **arguments) {
  const struct option known[] = {
      {"unit", &options.unit_ns, true},       {"work", &options.work_ns, true},
      {"period", &options.period_ns, true},   {"gap", &options.gap_ns, true},
      {"seconds", &options.seconds_ns, true}, {"depth", &options.depth, false},
      {"group", &options.group, false},       {"graph", &options.graph, false},
      {"burst", &options.burst, false},       {"count", &options.count, false},
      {"log", &options.log, false},           {"blocks", &options.blocks, false},
      {"threads", &options.threads, false},   {"bytes", &options.bytes, false},
      {"wait", &options.wait, false},         {"simulated", &options.simulated, false},
      {"heavy", &options.heavy, false},       {"command", &options.command, false},
      {"blocking", &options.blocking, false},
  };
  if (count < 2)
    die("usage: probe MODE [option=value ...]");
  options.mode = arguments[1];
  for (int i = 2; i < count; i++) {
    char *value = parse_option(known, sizeof known / sizeof *known, arguments[i]);
    if (!value)
      continue;
    if (!strcmp(arguments[i], "units"))
      options.unit_count = parse_list(value, options.units_ns, UNITS_MAX, parse_time);
    else if (!strcmp(arguments[i], "rate"))
      options.rate = strtod(value, NULL);
    else if (!strcmp(arguments[i], "path"))
      options.path = value;
    else
      die("unknown option `%s`", arguments[i]);
  }
  if (!options.group || !options.unit_ns || options.threads < 1 || options.threads > 1024 || options.log > 1u << 24)
    die("an option is out of range: group and unit at least 1, threads 1..1024, log at most %u", 1u << 24);
}

struct kernel kernel_of(uint64_t unit_ns) {
  double iterations = (double)unit_ns * options.rate / 1000;
  if (iterations > 4e9) /* the kernel counts in 32 bits */
    die("a kernel of %" PRIu64 " ns at %.0f iterations a microsecond does not fit", unit_ns, options.rate);
  struct kernel kernel = {.function = find_timed(options.heavy ? "heavy" : "work", unit_ns),
                          .unit_ns = unit_ns,
                          .iterations = (uint32_t)iterations,
                          .blocks = options.blocks ? (uint32_t)options.blocks : (uint32_t)multiprocessors,
                          .threads = (uint32_t)options.threads};
  if (options.heavy) {
    static device_pointer stream;
    int bytes = 0;
    if (!stream)
      CALL(cuMemAlloc, &stream, STREAM_BYTES);
    CALL(cuDeviceGetAttribute, &bytes, ATTRIBUTE_SHARED_BYTES, 0);
    bytes = bytes < HEAVY_SHARED ? bytes : HEAVY_SHARED;
    CALL(cuFuncSetAttribute, kernel.function, FUNCTION_SHARED_BYTES, bytes);
    kernel.stream = stream;
    kernel.shared_bytes = (uint32_t)bytes;
    kernel.threads = 1024;
  }
  return kernel;
}

/* ---- the result ---- */

void begin_result(uint64_t launches, uint64_t work_ns) {
  print_begin(options.start_ns, now_ns(), launches, work_ns);
}

void print_quantiles(const char *name, uint64_t *values, size_t count) {
  qsort(values, count, sizeof *values, ascending);
  size_t last = count ? count - 1 : 0;
  printf(", \"%s\": {\"p10_ns\": %" PRIu64 ", \"p50_ns\": %" PRIu64 ", \"p99_ns\": %" PRIu64 ", \"max_ns\": %" PRIu64
         ", \"count\": %zu}",
         name, count ? values[last / 10] : 0, count ? values[last / 2] : 0, count ? values[last * 99 / 100] : 0,
         count ? values[last] : 0, count);
}

/* ---- the start ---- */

static const struct {
  const char *name;
  void (*run)(void);
  bool context;
} modes[] = {
    {"saturate", run_saturate, true}, {"sync", run_sync, true},
    {"periodic", run_periodic, true}, {"cost", run_cost, true},
    {"mix", run_mix, true},           {"info", run_info, false},
    {"clock", run_clock, true},       {"calibrate", run_calibrate, true},
    {"latency", run_latency, true},   {"records", run_records, true},
    {"streams", run_streams, true},   {"commands", run_commands, true},
    {"calls", run_calls, true},       {"signals", run_signals, true},
    {"capture", run_capture, true},   {"memory", run_memory, true},
};

/* Open device 0, and load the kernels of every duration that an option names. */
static void open_device(void) {
  int device = 0;
  open_context(0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDeviceGetAttribute, &multiprocessors, ATTRIBUTE_SM_COUNT, device);
  uint64_t wanted_ns[UNITS_MAX + 2] = {options.unit_ns, options.work_ns}, units_ns[UNITS_MAX + 2];
  memcpy(wanted_ns + 2, options.units_ns, sizeof options.units_ns);
  size_t count = 0;
  for (size_t i = 0; i < options.unit_count + 2; i++) { /* each name once: it may be defined only once */
    size_t known = 0;
    while (known < count && units_ns[known] != wanted_ns[i])
      known++;
    if (known == count)
      units_ns[count++] = wanted_ns[i];
  }
  load_kernels(units_ns, count, options.heavy);
}

void await_start(void) {
  await_go(options.wait, options.seconds_ns, &options.start_ns, &options.stop_ns);
}

int main(int count, char **arguments) {
  parse(count, arguments);
  size_t mode = 0;
  while (mode < sizeof modes / sizeof *modes && strcmp(modes[mode].name, options.mode))
    mode++;
  if (!strcmp(options.mode, "ptx")) {
    fputs(write_ptx(options.units_ns, options.unit_count, options.heavy), stdout);
    return 0;
  }
  if (mode == sizeof modes / sizeof *modes)
    die("no mode `%s`", options.mode);
  stop_on_signal();
  begin_program();
  if (modes[mode].context)
    open_device();
  modes[mode].run();
  puts("}");
  return 0;
}
