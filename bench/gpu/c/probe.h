/* Shared by the parts of the probe: the options of this run, its stream and kernel, and the printing of results. */
#ifndef SHAREPOD_GPU_PROBE_H
#define SHAREPOD_GPU_PROBE_H

#include "kernels.h"

#define UNITS_MAX    16u
#define HEAVY_SHARED (200 << 10) /* bytes of shared memory that a heavy kernel takes, or as many as there are */

struct options {
  const char *mode;
  uint64_t unit_ns, work_ns, period_ns, gap_ns, seconds_ns;
  uint64_t depth, group, streams, graph, burst, count, log, blocks, threads, bytes, wait, simulated, heavy, command,
      blocking;
  uint64_t units_ns[UNITS_MAX];
  size_t unit_count;
  double rate; /* loop iterations per microsecond of the device */
  const char *path;
  uint64_t start_ns, stop_ns;
};
extern struct options options;

/* Print "ready", and with wait=1 wait for the start. The work of a mode follows. */
void await_start(void);
/* Whether the program goes on: it was not asked to stop, and its time is not up. */
bool running(void);

/* A work kernel of a duration, on every multiprocessor unless `blocks` says otherwise. */
struct kernel kernel_of(uint64_t unit_ns);

/* Print the common part of the result, without its closing brace. */
void begin_result(uint64_t launches, uint64_t work_ns);
/* Print nearest-rank percentiles of the values. Sorts them. */
void print_quantiles(const char *name, uint64_t *values, size_t count);

/* The host's time (CLOCK_MONOTONIC) at a time of the device's clock, and the resolution of that clock. */
struct clock_map {
  uint64_t host_ns, device_ns, resolution_ns;
};
struct clock_map map_clock(void);

/* The modes; see probe.c for what they do. */
void run_saturate(void);
void run_sync(void);
void run_periodic(void);
void run_cost(void);
void run_mix(void);
void run_info(void);
void run_clock(void);
void run_calibrate(void);
void run_latency(void);
void run_records(void);
void run_streams(void);
void run_commands(void);
void run_calls(void);
void run_signals(void);
void run_capture(void);
void run_memory(void);

#endif
