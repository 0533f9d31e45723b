/*
 * loads: the common loads of the load program for the simulated GPU (load.c) and the probe for a real one
 * (gpu/c/work.c).
 *
 * A program that includes this has defined `options`, with the members that are read here. It also defines how one unit
 * of work is put on a stream (`put`), which stream has a number (`stream_of`, which also makes the stream's context
 * current), and how its result begins (`begin`).
 */
#ifndef SHAREPOD_BENCH_LOADS_H
#define SHAREPOD_BENCH_LOADS_H

#include "start.h"

#define LATENCIES_MAX 1000000u
#ifndef EVENT_FLAGS /* of the events by which the host learns of completed work */
#define EVENT_FLAGS EVENT_DISABLE_TIMING
#endif

static void put(uint64_t stream);
static void *stream_of(uint64_t stream);
static void begin(void);
bool running(void);

static uint64_t launches;

static inline void launch(uint64_t stream) {
  launches++;
  put(stream);
}

static inline void drain(void) {
  for (uint64_t i = 0; i < options.streams; i++)
    CALL(cuStreamSynchronize, stream_of(i));
}

/* Keep `depth` groups of `group` launches in flight on each stream. */
static inline void saturate(void) {
  void **events = allocate(options.streams * (options.depth + 1), sizeof *events);
  for (uint64_t i = 0; i < options.streams * options.depth; i++) {
    stream_of(i / options.depth);
    CALL(cuEventCreate, &events[i], EVENT_FLAGS);
  }
  for (uint64_t round = 0; running(); round++) {
    for (uint64_t i = 0; i < options.streams; i++) {
      void *stream = stream_of(i), *event = options.depth ? events[i * options.depth + round % options.depth] : NULL;
      if (options.depth && round >= options.depth)
        CALL(cuEventSynchronize, event);
      for (uint64_t j = 0; j < options.group && running(); j++)
        launch(i);
      if (options.depth)
        CALL(cuEventRecord, event, stream);
    }
  }
  drain();
  begin();
  free(events);
}

/* Launch a burst, synchronise, stay off the device for `gap`; repeat. */
static inline void synchronise_bursts(void) {
  uint64_t *latencies = allocate(LATENCIES_MAX, sizeof *latencies), done = 0;
  while (running()) {
    uint64_t began_ns = now_ns();
    for (uint64_t i = 0; i < options.burst; i++)
      launch(i % options.streams);
    drain();
    if (done < LATENCIES_MAX)
      latencies[done++] = now_ns() - began_ns;
    if (options.gap_ns)
      sleep_until(now_ns() + options.gap_ns);
  }
  begin();
  print_list("latencies_ns", latencies, done);
  free(latencies);
}

/* Every `period`: `work` of device time in kernels of `unit`, then synchronise. */
static inline void serve(void) {
  uint64_t limit = options.count && options.count < LATENCIES_MAX ? options.count : LATENCIES_MAX;
  uint64_t *latencies = allocate(limit, sizeof *latencies), done = 0;
  for (; done < limit && running(); done++) {
    uint64_t arrival_ns = options.start_ns + done * options.period_ns;
    sleep_until(arrival_ns);
    for (uint64_t worked_ns = 0; worked_ns < options.work_ns; worked_ns += options.unit_ns)
      launch(0);
    drain();
    latencies[done] = now_ns() - arrival_ns;
  }
  begin();
  print_list("latencies_ns", latencies, done);
  free(latencies);
}

/* The host's time of `count` batches of `group` launches, to the streams in turn. */
static inline void time_launches(void) {
  uint64_t batches = options.count ? options.count : 200;
  uint64_t *batch_ns = allocate(batches, sizeof *batch_ns);
  for (uint64_t i = 0; i < batches; i++) {
    uint64_t begin_ns = now_ns();
    for (uint64_t j = 0; j < options.group; j++)
      launch(j % options.streams);
    batch_ns[i] = now_ns() - begin_ns;
    drain();
  }
  begin();
  printf(", \"group\": %" PRIu64, options.group);
  print_list("batch_ns", batch_ns, batches);
  free(batch_ns);
}

#endif
