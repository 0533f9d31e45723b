/*
 * ring: collectives as a collectives library makes them, on several devices of one process.
 *
 *     ring DEVICES [option=value ...]      steps (4), work (200us), group (1): collectives between two waits
 *
 * One thread per device. A collective is a number of steps. In each step a rank writes its word with a memset (device
 * time, after its own last step), and then spins in a kernel for the word of the next rank. So no rank gets more than
 * one step ahead of another: a collective ends only if all of them run together. Then each rank works on its own.
 *
 * Prints "ready", reads "START STOP" (CLOCK_MONOTONIC ns) from stdin. The last line printed is one JSON object: the
 * number of collectives of rank 0, and how long the longest took, from its first launch until its rank knew its end.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "start.h"

#define DEVICES_MAX 4u
#define STEPS_MAX   16u
#define WORDS       (1u << 24) /* fresh words for every step: none is ever cleared */
#define GROUP_MAX   64u

struct rank {
  pthread_t thread;
  uint32_t device;
  void *context, *stream, *spin, *work;
  uint64_t collectives, launches, longest_ns;
};

static struct {
  uint64_t devices, steps, work_ns, group;
  uint64_t start_ns, stop_ns;
  uint64_t last; /* no rank begins a later group; set by rank 0 */
  uint32_t *words;
} ring = {.steps = 4, .work_ns = 200000, .group = 1, .last = UINT64_MAX};

static struct rank ranks[DEVICES_MAX];

/* The word that a device's rank writes in this step of this collective. */
static uint32_t *word_of(uint64_t collective, uint64_t step, uint64_t device) {
  uint64_t index = (collective * ring.steps + step) * ring.devices + device;
  if (index >= WORDS)
    die("ring: more collectives than words: make it shorter");
  return &ring.words[index];
}

/* Launch a rank's part of a collective, and the work of its own behind it. */
static void launch_collective(struct rank *rank, uint64_t number) {
  for (uint64_t step = 0; step < ring.steps; step++) {
    uint32_t *own = word_of(number, step, rank->device);
    uint32_t *next = word_of(number, step, (rank->device + 1) % ring.devices);
    CALL(cuMemsetD32Async, (device_pointer)(uintptr_t)own, 1, 1, rank->stream);
    launch_spin(rank->spin, rank->stream, (uintptr_t)next);
  }
  launch_one(rank->work, rank->stream, 1);
  rank->launches += 2 * ring.steps + 1;
}

/* Whether a rank makes another group. All ranks make the same number: rank 0 names the last group before it begins that
 * group, and no other rank can have finished it by then. */
static bool another(const struct rank *rank, uint64_t group) {
  if (rank->device == 0 && now_ns() >= ring.stop_ns)
    __atomic_store_n(&ring.last, group, __ATOMIC_SEQ_CST);
  return group <= __atomic_load_n(&ring.last, __ATOMIC_SEQ_CST);
}

/* The thread of a rank: group after group, each of `group` collectives, with a wait at its end. */
static void *run(void *argument) {
  struct rank *rank = argument;
  CALL(cuCtxSetCurrent, rank->context);
  for (uint64_t group = 0; another(rank, group); group++) {
    uint64_t began_ns = now_ns();
    for (uint64_t index = 0; index < ring.group; index++)
      launch_collective(rank, rank->collectives + index);
    CALL(cuStreamSynchronize, rank->stream);
    uint64_t took_ns = now_ns() - began_ns;
    rank->collectives += ring.group;
    if (took_ns > rank->longest_ns)
      rank->longest_ns = took_ns;
    if (rank->device == 0 && __atomic_load_n(&ring.last, __ATOMIC_SEQ_CST) == group)
      break;
  }
  return NULL;
}

static void open_rank(struct rank *rank, uint32_t device) {
  rank->device = device;
  rank->context = open_context((int)device);
  void *module = load_module(&ring.work_ns, 1);
  CALL(cuModuleGetFunction, &rank->spin, module, "spin_until");
  rank->work = find_kernel(module, ring.work_ns);
  CALL(cuStreamCreate, &rank->stream, STREAM_NON_BLOCKING);
}

int main(int count, char **arguments) {
  const struct option options[] = {
      {"steps", &ring.steps, false}, {"work", &ring.work_ns, true}, {"group", &ring.group, false}};
  if (count < 2)
    die("usage: ring DEVICES [option=value ...]");
  ring.devices = parse_number(arguments[1]);
  for (int index = 2; index < count; index++)
    if (parse_option(options, sizeof options / sizeof *options, arguments[index]))
      die("ring: no option `%s`", arguments[index]);
  if (ring.devices < 2 || ring.devices > DEVICES_MAX || ring.steps < 1 || ring.steps > STEPS_MAX || ring.group < 1 ||
      ring.group > GROUP_MAX)
    die("ring: 2..%u devices, 1..%u steps, groups of 1..%u", DEVICES_MAX, STEPS_MAX, GROUP_MAX);
  begin_program();
  for (uint32_t device = 0; device < ring.devices; device++)
    open_rank(&ranks[device], device);
  CALL(cuMemHostAlloc, (void **)&ring.words, WORDS * sizeof *ring.words, HOST_PORTABLE_MAPPED);
  await_go(true, 0, &ring.start_ns, &ring.stop_ns);
  for (uint32_t device = 0; device < ring.devices; device++)
    if (pthread_create(&ranks[device].thread, NULL, run, &ranks[device]))
      die("ring: no thread");
  uint64_t launches = 0, longest_ns = 0;
  for (uint32_t device = 0; device < ring.devices; device++) {
    pthread_join(ranks[device].thread, NULL);
    launches += ranks[device].launches;
    if (ranks[device].longest_ns > longest_ns)
      longest_ns = ranks[device].longest_ns;
  }
  uint64_t collectives = ranks[0].collectives;
  print_begin(ring.start_ns, now_ns(), launches, collectives * ring.work_ns * ring.devices);
  printf(", \"collectives\": %" PRIu64 ", \"longest_ns\": %" PRIu64 "}\n", collectives, longest_ns);
  return 0;
}
