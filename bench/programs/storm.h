/*
 * storm: the common state of a storm program's threads: streams, kernels, and random numbers.
 */
#ifndef SHAREPOD_BENCH_STORM_H
#define SHAREPOD_BENCH_STORM_H

#include <pthread.h>

#include "start.h"

#define THREADS_MAX 4u
#define DEVICES_MAX 4u
#define STREAMS     3u         /* of each thread on each device */
#define UNITS       5u         /* lengths of kernels */
#define WORDS       4096u      /* of each thread */
#define SLOW_MAX    1024u      /* numbers, two for each slow episode */
#define HAUL_BYTES  (4u << 20) /* the longest copy */

static const uint64_t units_ns[UNITS] = {5000, 50000, 200000, 1000000, 4000000};

struct worker {
  pthread_t thread;
  uint64_t random;
  void *streams[DEVICES_MAX][STREAMS];
  void *graphs[DEVICES_MAX];
  void *events[DEVICES_MAX];
  uint32_t *words; /* fresh words for every round of spinning or waiting; never reused */
  uint32_t words_used;
  uint64_t episodes, launches;
  uint64_t slow[SLOW_MAX]; /* began, ended, ... */
  uint32_t slow_count;
};

static struct {
  uint32_t threads, devices;
  bool faults;
  void *contexts[DEVICES_MAX];
  void *kernels[DEVICES_MAX][UNITS];
  void *spins[DEVICES_MAX], *varied[DEVICES_MAX];
  device_pointer memory[DEVICES_MAX]; /* HAUL_BYTES */
  void *haul;                         /* pinned host memory of the same size */
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

static void *any_stream(struct worker *worker, uint32_t device) {
  return worker->streams[device][draw(worker, STREAMS)];
}

/* One kernel of up to 1 ms. */
static void launch_any(struct worker *worker, uint32_t device, void *stream) {
  launch_one(storm.kernels[device][draw(worker, 4)], stream, 1);
  worker->launches++;
}

/* `count` unused words, all zero; NULL: there are no more. */
static uint32_t *fresh_words(struct worker *worker, uint32_t count) {
  if (worker->words_used + count > WORDS)
    return NULL;
  uint32_t *words = worker->words + worker->words_used;
  worker->words_used += count;
  return words;
}

/* Wait for all of the worker's streams on the device. Its context is current then. */
static void synchronise(struct worker *worker, uint32_t device) {
  use(device);
  for (uint32_t i = 0; i < STREAMS; i++)
    CALL(cuStreamSynchronize, worker->streams[device][i]);
}

#endif
