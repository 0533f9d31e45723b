/*
 * load: an ordinary driver-API program with a known amount of GPU work, for benches and stress tests.
 *
 * It knows nothing of shares: the same binary runs bare and under the hook. On a real device gpu/c/probe.c does the
 * same, with kernels that log themselves.
 *
 *     load MODE [option=value ...]
 *
 *     saturate   keep `depth` groups of `group` launches in flight on each of `streams` streams; graph=M launches an
 *                executable graph of M kernels instead of a kernel
 *     sync       launch `burst` kernels, synchronise, stay off the device for `gap`; again
 *     periodic   every `period`: `work` of device time in kernels of `unit`, then synchronise; prints latencies
 *     spin       rounds of kernels that wait for each other, as those of collectives do: across `streams`, across
 *                `devices`, and across `ranks` processes that share the file `words`; this one is `rank`
 *     cost       the host's time per launch, in `count` batches of `group` launches over `streams`
 *
 * Times take a suffix: ns, us, ms, s. A kernel of `unit` has it in its name (`k_500us`), which the simulated device
 * reads. With `other` every kernel is `k_var`, which takes the time in its parameter: half of them, drawn at random,
 * take `other` instead of `unit`.
 *
 * With `wait=1` it prints "ready" when its context exists, and reads "START STOP" (CLOCK_MONOTONIC ns) from stdin. With
 * `warm=N` it has made N launches by then, like a program that has been running for a while.
 * The last line printed is one JSON object. Exit 0, or 1 with the failing call on stderr.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "start.h"

#define MEMBERS_MAX 64u
#define DEPTH_MAX   1024u

static struct {
  const char *mode;
  uint64_t unit_ns, other_ns, work_ns, period_ns, gap_ns, seconds_ns;
  uint64_t depth, group, streams, graph, burst, count, wait, warm, rank, ranks;
  uint64_t devices[MEMBERS_MAX];
  uint32_t device_count;
  const char *words;
  uint64_t start_ns, stop_ns;
} options = {.unit_ns = 500000,
             .work_ns = 1000000,
             .period_ns = 50000000,
             .seconds_ns = 1000000000,
             .depth = 8,
             .group = 1,
             .streams = 1,
             .burst = 1,
             .ranks = 1,
             .device_count = 1};

#include "loads.h"

/* One stream on one device, with its kernel. */
struct member {
  void *context, *stream, *function, *spin, *graph;
};

static struct member members[MEMBERS_MAX];

bool running(void) {
  return goes_on(options.stop_ns);
}

/* ---- options ---- */

static void parse(int count, char **arguments) {
  const struct option known[] = {
      {"unit", &options.unit_ns, true},     {"other", &options.other_ns, true}, {"work", &options.work_ns, true},
      {"period", &options.period_ns, true}, {"gap", &options.gap_ns, true},     {"seconds", &options.seconds_ns, true},
      {"depth", &options.depth, false},     {"group", &options.group, false},   {"streams", &options.streams, false},
      {"graph", &options.graph, false},     {"burst", &options.burst, false},   {"count", &options.count, false},
      {"wait", &options.wait, false},       {"warm", &options.warm, false},     {"rank", &options.rank, false},
      {"ranks", &options.ranks, false},
  };
  if (count < 2)
    die("usage: load MODE [option=value ...]");
  options.mode = arguments[1];
  for (int i = 2; i < count; i++) {
    char *value = parse_option(known, sizeof known / sizeof *known, arguments[i]);
    if (!value)
      continue;
    if (!strcmp(arguments[i], "devices"))
      options.device_count = (uint32_t)parse_list(value, options.devices, MEMBERS_MAX, parse_number);
    else if (!strcmp(arguments[i], "words"))
      options.words = value;
    else
      die("unknown option `%s`", arguments[i]);
  }
  if (!options.ranks || options.rank >= options.ranks)
    die("rank is 0..ranks-1");
  if (!options.streams || options.streams > MEMBERS_MAX || options.depth > DEPTH_MAX || !options.group ||
      !options.unit_ns)
    die("an option is out of range: streams 1..%u, depth 0..%u, group and unit at least 1", MEMBERS_MAX, DEPTH_MAX);
}

/* ---- the work ---- */

/* A hash of the launch's number (splitmix64) chooses the duration, so that two runs do the same work. */
static uint64_t duration_of(uint64_t number) {
  uint64_t mixed = number * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
  return options.other_ns && mixed >> 63 ? options.other_ns : options.unit_ns;
}

static void put(uint64_t stream) {
  if (members[stream].graph)
    CALL(cuGraphLaunch, members[stream].graph, members[stream].stream);
  else
    launch_one(members[stream].function, members[stream].stream, duration_of(launches));
}

static void *stream_of(uint64_t stream) {
  if (options.device_count > 1)
    CALL(cuCtxSetCurrent, members[stream].context);
  return members[stream].stream;
}

static void make_graph(struct member *member) {
  begin_capture(member->stream);
  for (uint64_t i = 0; i < options.graph; i++)
    launch_one(member->function, member->stream, 0);
  member->graph = end_capture(member->stream);
}

/* Open members 0..streams-1, spread over the devices in turn. */
static void open_devices(void) {
  void *contexts[MEMBERS_MAX] = {0}, *modules[MEMBERS_MAX];
  for (uint32_t i = 0; i < options.streams; i++) {
    uint32_t place = i % options.device_count;
    if (!contexts[place]) {
      contexts[place] = open_context((int)options.devices[place]);
      modules[place] = load_module(&options.unit_ns, 1);
    }
    members[i].context = contexts[place];
    CALL(cuCtxSetCurrent, members[i].context);
    if (options.other_ns)
      CALL(cuModuleGetFunction, &members[i].function, modules[place], "k_var");
    else
      members[i].function = find_kernel(modules[place], options.unit_ns);
    CALL(cuModuleGetFunction, &members[i].spin, modules[place], "spin_until");
    CALL(cuStreamCreate, &members[i].stream, STREAM_NON_BLOCKING);
    if (options.graph)
      make_graph(&members[i]);
  }
}

/* ---- the result ---- */

static void begin(void) {
  uint64_t kernels = launches * (options.graph ? options.graph : 1);
  uint64_t mean_ns = options.other_ns ? (options.unit_ns + options.other_ns) / 2 : options.unit_ns;
  print_begin(options.start_ns, now_ns(), launches, kernels * mean_ns);
}

/* ---- modes ---- */

/* The words of all rounds, zeroed: in the file `words`, shared with the other ranks, or in this process's own memory.
 */
static uint32_t *map_words(uint64_t count) {
  uint32_t *words = NULL;
  size_t bytes = count * sizeof *words;
  stream_of(0);
  if (!options.words) {
    CALL(cuMemHostAlloc, (void **)&words, bytes, HOST_PORTABLE_MAPPED);
    memset(words, 0, bytes);
    return words;
  }
  int file = open(options.words, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, (off_t)bytes))
    die("%s cannot be opened", options.words);
  words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (words == MAP_FAILED)
    die("%s cannot be mapped", options.words);
  CALL(cuMemHostRegister, words, bytes, HOST_PORTABLE_MAPPED);
  return words;
}

/* A ring over the streams of all ranks: every member says "I am here", and then waits for the next member to say so, as
 * the kernels of a collective do. The words of a round are fresh, so none is read before it is zero. */
static void run_spin(void) {
  uint64_t rounds = options.count ? options.count : 4096, done = 0;
  uint64_t ring = options.streams * options.ranks, first = options.streams * options.rank;
  uint32_t *words = map_words(rounds * ring);
  for (; done < rounds && running(); done++) {
    uint32_t *round = words + done * ring;
    for (uint64_t i = 0; i < options.streams; i++) {
      void *stream = stream_of(i);
      device_pointer here = (uintptr_t)&round[first + i];
      CALL(cuStreamWriteValue32, stream, here, 1, 0);
      launch_spin(members[i].spin, stream, (uintptr_t)&round[(first + i + 1) % ring]);
      launch(i);
    }
    drain();
    if (options.gap_ns)
      sleep_until(now_ns() + options.gap_ns);
  }
  for (uint64_t round = done; round < rounds; round++) /* the other ranks must not wait for one that has left */
    for (uint64_t i = 0; i < options.streams; i++)
      __atomic_store_n(&words[round * ring + first + i], 1, __ATOMIC_RELEASE);
  begin();
  printf(", \"rounds\": %" PRIu64, done);
}

static const struct {
  const char *name;
  void (*run)(void);
} modes[] = {
    {"saturate", saturate}, {"sync", synchronise_bursts}, {"periodic", serve},
    {"spin", run_spin},     {"cost", time_launches},
};

/* Make the `warm` launches, one after the other. They do not count. */
static void warm_up(void) {
  for (uint64_t i = 0; i < options.warm; i++) {
    launch(i % options.streams);
    drain();
  }
  launches = 0;
}

int main(int count, char **arguments) {
  parse(count, arguments);
  size_t mode = 0;
  while (mode < sizeof modes / sizeof *modes && strcmp(modes[mode].name, options.mode))
    mode++;
  if (mode == sizeof modes / sizeof *modes)
    die("no mode `%s`", options.mode);
  stop_on_signal();
  begin_program();
  open_devices();
  warm_up();
  await_go(options.wait, options.seconds_ns, &options.start_ns, &options.stop_ns);
  modes[mode].run();
  puts("}");
  return 0;
}
