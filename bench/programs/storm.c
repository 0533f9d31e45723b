/*
 * storm: a driver-API program that does random things, for the stress test. The same seed does the same things.
 *
 *     storm SEED THREADS DEVICES
 *
 * Each thread has streams of its own on every device, and runs one random episode after another: a burst of kernels of
 * random lengths over random streams, a graph, copies of nothing but time (pauses), or a round of kernels that wait for
 * each other across streams or devices; then it may or may not synchronise.
 *
 * Prints "ready", reads "START STOP" (CLOCK_MONOTONIC ns) from stdin. The last line printed is one JSON object: how
 * many episodes, and which took long ("slow": began, ended, ...), so that the caller can ask what the device did then.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "start.h"

#define THREADS_MAX     4u
#define DEVICES_MAX     4u
#define STREAMS         3u
#define UNITS           5u
#define GRAPH_KERNELS   6u
#define WORDS           4096u
#define SLOW_NS         100000000u
#define SLOW_MAX        1024u
#define BURST_BUDGET_NS 8000000u /* device time of one burst, so that a small share still ends its episodes */

static const uint64_t units_ns[UNITS] = {5000, 50000, 200000, 1000000, 4000000};

struct worker {
  pthread_t thread;
  uint64_t random;
  void *streams[DEVICES_MAX][STREAMS];
  void *graphs[DEVICES_MAX];
  uint32_t *words; /* fresh ones for every round of spinning; never reused */
  uint32_t words_used;
  uint64_t episodes, launches;
  uint64_t slow[SLOW_MAX]; /* began, ended, ... */
  uint32_t slow_count;
};

static struct {
  uint32_t threads, devices;
  void *contexts[DEVICES_MAX];
  void *kernels[DEVICES_MAX][UNITS];
  void *spins[DEVICES_MAX];
  uint64_t start_ns, stop_ns;
} storm;

static struct worker workers[THREADS_MAX];

/* xorshift64*: small, seeded, the same everywhere. */
static uint32_t draw(struct worker *worker, uint32_t below) {
  worker->random ^= worker->random >> 12;
  worker->random ^= worker->random << 25;
  worker->random ^= worker->random >> 27;
  return (uint32_t)((worker->random * 0x2545f4914f6cdd1du) >> 33) % below;
}

static void use(uint32_t device) {
  CALL(cuCtxSetCurrent, storm.contexts[device]);
}

static void synchronise(struct worker *worker, uint32_t device) {
  use(device);
  for (uint32_t i = 0; i < STREAMS; i++)
    CALL(cuStreamSynchronize, worker->streams[device][i]);
}

static void burst(struct worker *worker, uint32_t device) {
  uint64_t left_ns = draw(worker, BURST_BUDGET_NS) + 1;
  for (uint32_t i = 0; i < 64 && left_ns; i++) {
    uint32_t unit = draw(worker, UNITS);
    launch_one(storm.kernels[device][unit], worker->streams[device][draw(worker, STREAMS)], 1);
    worker->launches++;
    left_ns -= left_ns < units_ns[unit] ? left_ns : units_ns[unit];
  }
}

static void graph(struct worker *worker, uint32_t device) {
  void **executable = &worker->graphs[device], *stream = worker->streams[device][0];
  if (!*executable) {
    begin_capture(stream);
    for (uint32_t i = 0; i < GRAPH_KERNELS; i++)
      launch_one(storm.kernels[device][1], stream, 1);
    *executable = end_capture(stream);
  }
  CALL(cuGraphLaunch, *executable, stream);
  worker->launches++;
}

/* Two kernels, each of which ends when the other's stream has come as far: on one device or on two. The second launch
 * is made while the first kernel is running, and must not be withheld for ever. */
static void spin(struct worker *worker, uint32_t device) {
  if (worker->words_used + 2 > WORDS)
    return;
  uint32_t *words = worker->words + worker->words_used;
  worker->words_used += 2;
  uint32_t places[2] = {device, draw(worker, storm.devices)};
  for (uint32_t i = 0; i < 2; i++) {
    use(places[i]);
    void *stream = worker->streams[places[i]][i];
    CALL(cuStreamWriteValue32, stream, (device_pointer)(uintptr_t)&words[i], 1, 0);
    launch_spin(storm.spins[places[i]], stream, (uintptr_t)&words[!i]);
    launch_one(storm.kernels[places[i]][draw(worker, 3)], stream, 1);
    worker->launches += 2;
  }
  synchronise(worker, places[1]);
  synchronise(worker, places[0]);
}

static void episode(struct worker *worker) {
  uint32_t device = draw(worker, storm.devices), kind = draw(worker, 10);
  use(device);
  if (kind < 6)
    burst(worker, device);
  else if (kind < 8)
    graph(worker, device);
  else
    spin(worker, device);
  if (draw(worker, 4))
    synchronise(worker, device);
}

static void *run(void *argument) {
  struct worker *worker = argument;
  while (now_ns() < storm.stop_ns) {
    uint64_t began = now_ns();
    episode(worker);
    uint64_t ended = now_ns();
    worker->episodes++;
    if (ended - began > SLOW_NS && worker->slow_count + 2 <= SLOW_MAX) {
      worker->slow[worker->slow_count++] = began;
      worker->slow[worker->slow_count++] = ended;
    }
    if (!draw(worker, 3))
      sleep_until(now_ns() + draw(worker, 4000000));
  }
  for (uint32_t device = 0; device < storm.devices; device++)
    synchronise(worker, device);
  return NULL;
}

static void open_all(uint64_t seed) {
  for (uint32_t device = 0; device < storm.devices; device++) {
    storm.contexts[device] = open_context((int)device);
    void *module = load_module(units_ns, UNITS);
    CALL(cuModuleGetFunction, &storm.spins[device], module, "spin_until");
    for (uint32_t i = 0; i < UNITS; i++)
      storm.kernels[device][i] = find_kernel(module, units_ns[i]);
    for (uint32_t t = 0; t < storm.threads; t++)
      for (uint32_t i = 0; i < STREAMS; i++)
        CALL(cuStreamCreate, &workers[t].streams[device][i], STREAM_NON_BLOCKING);
  }
  for (uint32_t t = 0; t < storm.threads; t++) {
    workers[t].random = (seed * 0x9e3779b97f4a7c15u + t) | 1u;
    CALL(cuMemHostAlloc, (void **)&workers[t].words, WORDS * sizeof(uint32_t), HOST_PORTABLE_MAPPED);
    memset(workers[t].words, 0, WORDS * sizeof(uint32_t));
  }
}

static void print_result(void) {
  uint64_t episodes = 0, launches = 0;
  for (uint32_t t = 0; t < storm.threads; t++) {
    episodes += workers[t].episodes;
    launches += workers[t].launches;
  }
  print_begin(storm.start_ns, now_ns(), launches, 0);
  printf(", \"episodes\": %" PRIu64 ", \"slow\": [", episodes);
  const char *separator = "";
  for (uint32_t t = 0; t < storm.threads; t++)
    for (uint32_t i = 0; i < workers[t].slow_count; i++, separator = ", ")
      printf("%s%" PRIu64, separator, workers[t].slow[i]);
  puts("]}");
}

int main(int count, char **arguments) {
  if (count != 4)
    die("usage: storm SEED THREADS DEVICES");
  storm.threads = (uint32_t)parse_number(arguments[2]);
  storm.devices = (uint32_t)parse_number(arguments[3]);
  if (storm.threads < 1 || storm.threads > THREADS_MAX || storm.devices < 1 || storm.devices > DEVICES_MAX)
    die("storm: 1..%u threads, 1..%u devices", THREADS_MAX, DEVICES_MAX);
  begin_program();
  open_all(parse_number(arguments[1]));
  await_go(true, 0, &storm.start_ns, &storm.stop_ns);
  for (uint32_t t = 0; t < storm.threads; t++)
    if (pthread_create(&workers[t].thread, NULL, run, &workers[t]))
      die("storm: no thread");
  for (uint32_t t = 0; t < storm.threads; t++)
    pthread_join(workers[t].thread, NULL);
  print_result();
  return 0;
}
