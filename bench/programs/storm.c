/*
 * storm: a driver-API program that does random things, for the stress test. The same seed does the same things.
 *
 *     storm SEED THREADS DEVICES [faults]
 *
 * Each thread has its own streams on every device, and runs one random episode after another: a burst of kernels of
 * random lengths over random streams, a graph, a pause, a round of kernels that wait for each other across streams or
 * devices, or an unusual but correct action (hazards.h). Then it may or may not synchronise. A third of the programs
 * close all their descriptors after their begin, and keep a file of their own, as daemons do. One that `faults` has one
 * thread, and ends with a kernel that faults.
 *
 * Prints "ready", reads "START STOP" (CLOCK_MONOTONIC ns) from stdin. The last line printed is one JSON object: the
 * number of episodes, and those that took long ("slow": began, ended, ...), so that the caller can compare the device.
 */
#define _GNU_SOURCE
#include "hazards.h"

#define EPISODES_BEFORE 40u /* a fault, on average */
#define GRAPH_KERNELS   6u
#define SLOW_NS         100000000u /* an episode that takes longer is told */
#define BURST_BUDGET_NS 8000000u   /* device time of one burst, so that a small share still ends its episodes */

/* Launch kernels of random lengths into random streams, of BURST_BUDGET_NS together at most. */
static void burst(struct worker *worker, uint32_t device) {
  uint64_t left_ns = draw(worker, BURST_BUDGET_NS) + 1;
  for (uint32_t i = 0; i < 64 && left_ns; i++) {
    uint32_t unit = draw(worker, UNITS);
    launch_one(storm.kernels[device][unit], worker->streams[device][draw(worker, STREAMS)], 1);
    worker->launches++;
    left_ns -= left_ns < units_ns[unit] ? left_ns : units_ns[unit];
  }
}

/* Launch the worker's graph on this device, which is made at its first use. */
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

/* Two kernels, on one device or on two. Each ends when the other's stream has got as far. The second launch is made
 * while the first kernel runs, and must not be withheld for ever. */
static void spin(struct worker *worker, uint32_t device) {
  uint32_t *words = fresh_words(worker, 2);
  if (!words)
    return;
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

/* Do one random thing on a random device. */
static void episode(struct worker *worker) {
  uint32_t device = draw(worker, storm.devices), kind = draw(worker, 16);
  use(device);
  if (kind < 6)
    burst(worker, device);
  else if (kind < 8)
    graph(worker, device);
  else if (kind < 10)
    spin(worker, device);
  else
    hazard(worker, device);
  if (draw(worker, 4))
    synchronise(worker, device);
}

/* A thread: one episode after another, until the stop time or a fault. */
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
    if (storm.faults && !draw(worker, EPISODES_BEFORE)) {
      fault(worker);
      return NULL;
    }
  }
  for (uint32_t device = 0; device < storm.devices; device++)
    synchronise(worker, device);
  return NULL;
}

/* Make what all threads need: per device a context, kernels and memory; per thread streams, events, words and dice. */
static void open_all(uint64_t seed) {
  for (uint32_t device = 0; device < storm.devices; device++) {
    storm.contexts[device] = open_context((int)device);
    void *module = load_module(units_ns, UNITS);
    CALL(cuModuleGetFunction, &storm.spins[device], module, "spin_until");
    CALL(cuModuleGetFunction, &storm.varied[device], module, "k_var");
    CALL(cuMemAlloc, &storm.memory[device], HAUL_BYTES);
    open_other(device);
    for (uint32_t i = 0; i < UNITS; i++)
      storm.kernels[device][i] = find_kernel(module, units_ns[i]);
    for (uint32_t t = 0; t < storm.threads; t++) {
      CALL(cuEventCreate, &workers[t].events[device], EVENT_DISABLE_TIMING);
      for (uint32_t i = 0; i < STREAMS; i++)
        CALL(cuStreamCreate, &workers[t].streams[device][i], STREAM_NON_BLOCKING);
    }
  }
  CALL(cuMemHostAlloc, &storm.haul, HAUL_BYTES, HOST_PORTABLE_MAPPED);
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
  storm.faults = count == 5 && !strcmp(arguments[4], "faults");
  if (count != 4 && !storm.faults)
    die("usage: storm SEED THREADS DEVICES [faults]");
  storm.threads = (uint32_t)parse_number(arguments[2]);
  storm.devices = (uint32_t)parse_number(arguments[3]);
  if (storm.threads < 1 || storm.threads > THREADS_MAX || storm.devices < 1 || storm.devices > DEVICES_MAX)
    die("storm: 1..%u threads, 1..%u devices", THREADS_MAX, DEVICES_MAX);
  if (storm.faults && storm.threads != 1)
    die("storm: a program that faults has one thread");
  expect_jumps();
  begin_program();
  uint64_t seed = parse_number(arguments[1]);
  open_all(seed);
  if (seed % 3 == 0)
    become_daemon();
  await_go(true, 0, &storm.start_ns, &storm.stop_ns);
  for (uint32_t t = 0; t < storm.threads; t++)
    if (pthread_create(&workers[t].thread, NULL, run, &workers[t]))
      die("storm: no thread");
  for (uint32_t t = 0; t < storm.threads; t++)
    pthread_join(workers[t].thread, NULL);
  check_file();
  print_result();
  return 0;
}
