/* The loads: a known amount of work, logged by the device, and the host's side of every launch. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "probe.h"

#define LOG_DEFAULT     (1u << 20)
#define LATENCIES_MAX   1000000u
#define CAPTURE_RELAXED 2
#define MIX_NODES       4u
#define MIX_BYTES       65536u
#define COUNTED_NS      400000000u /* after which what the hook counted has been read */

static struct {
  void *stream, *graph;
  struct kernel kernel;
  struct log log;
  uint64_t *submitted_ns; /* when launch i had returned */
  uint64_t launches, nodes;
} load;

static void *make_graph(uint64_t nodes) {
  void *graph = NULL, *executable = NULL;
  CALL(cuStreamBeginCapture, load.stream, CAPTURE_RELAXED);
  for (uint64_t i = 0; i < nodes; i++)
    check(launch_work(&load.kernel, &load.log, load.stream), "cuLaunchKernel");
  CALL(cuStreamEndCapture, load.stream, &graph);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  return executable;
}

static void prepare(uint64_t graph_nodes) {
  load.kernel = kernel_of(options.unit_ns);
  load.log = make_log(options.log ? (uint32_t)options.log : options.simulated ? 1 : LOG_DEFAULT);
  load.nodes = graph_nodes ? graph_nodes : 1;
  load.submitted_ns = allocate(load.log.capacity / load.nodes + 1, sizeof *load.submitted_ns);
  CALL(cuStreamCreate, &load.stream, STREAM_NON_BLOCKING);
  if (graph_nodes)
    load.graph = make_graph(graph_nodes);
  await_start();
}

static void launch(void) {
  if (load.graph)
    CALL(cuGraphLaunch, load.graph, load.stream);
  else
    check(launch_work(&load.kernel, &load.log, load.stream), "cuLaunchKernel");
  if (load.launches <= load.log.capacity / load.nodes)
    load.submitted_ns[load.launches] = now_ns();
  load.launches++;
}

static void drain(void) {
  CALL(cuStreamSynchronize, load.stream);
}

/* Write the log to the file of the option `path`; print how many kernels it has and how many it could not take. */
static void write_log(void) {
  if (!options.path)
    return;
  struct log_slot *slots;
  struct log_header head = read_log(&load.log, &slots);
  FILE *file = fopen(options.path, "wb");
  if (!file)
    die("%s cannot be written", options.path);
  uint32_t kernels = head.tickets / load.kernel.blocks;
  uint32_t logged = kernels < load.log.capacity ? kernels : load.log.capacity;
  for (uint32_t i = 0; i < logged; i++) {
    uint64_t record[3] = {load.submitted_ns[i / load.nodes], ~slots[i].not_started, slots[i].ended};
    fwrite(record, sizeof record, 1, file);
  }
  if (fclose(file))
    die("%s cannot be written", options.path);
  free(slots);
  printf(", \"logged\": %" PRIu32 ", \"not_logged\": %" PRIu32, logged, kernels - logged);
}

static void begin(void) {
  begin_result(load.launches, load.launches * options.unit_ns * load.nodes);
}

void run_saturate(void) {
  prepare(options.graph);
  void **events = allocate(options.depth, sizeof *events);
  for (uint64_t i = 0; i < options.depth; i++)
    CALL(cuEventCreate, &events[i], EVENT_DISABLE_TIMING);
  for (uint64_t round = 0; running(); round++) {
    void *event = options.depth ? events[round % options.depth] : NULL;
    if (options.depth && round >= options.depth)
      CALL(cuEventSynchronize, event);
    for (uint64_t i = 0; i < options.group && running(); i++)
      launch();
    if (options.depth)
      CALL(cuEventRecord, event, load.stream);
  }
  drain();
  begin();
  write_log();
  free(events);
}

void run_sync(void) {
  uint64_t *latencies = allocate(LATENCIES_MAX, sizeof *latencies), done = 0;
  prepare(options.graph);
  while (running()) {
    uint64_t began_ns = now_ns();
    for (uint64_t i = 0; i < options.burst; i++)
      launch();
    drain();
    if (done < LATENCIES_MAX)
      latencies[done++] = now_ns() - began_ns;
    if (options.gap_ns)
      sleep_until(now_ns() + options.gap_ns);
  }
  begin();
  print_list("latencies_ns", latencies, done);
  write_log();
  free(latencies);
}

void run_periodic(void) {
  uint64_t limit = options.count && options.count < LATENCIES_MAX ? options.count : LATENCIES_MAX;
  uint64_t *latencies = allocate(limit, sizeof *latencies), done = 0;
  prepare(0);
  for (; done < limit && running(); done++) {
    uint64_t arrival_ns = options.start_ns + done * options.period_ns;
    sleep_until(arrival_ns);
    for (uint64_t worked_ns = 0; worked_ns < options.work_ns; worked_ns += options.unit_ns)
      launch();
    drain();
    latencies[done] = now_ns() - arrival_ns;
  }
  begin();
  print_list("latencies_ns", latencies, done);
  write_log();
  free(latencies);
}

void run_cost(void) {
  uint64_t batches = options.count ? options.count : 200;
  uint64_t *batch_ns = allocate(batches, sizeof *batch_ns);
  options.log = 1; /* nothing is logged: the kernels are empty */
  prepare(0);
  load.kernel.iterations = 0;
  load.kernel.blocks = 1;
  for (uint64_t i = 0; i < batches; i++) {
    uint64_t begin_ns = now_ns();
    for (uint64_t j = 0; j < options.group; j++)
      check(launch_work(&load.kernel, &load.log, load.stream), "cuLaunchKernel");
    batch_ns[i] = now_ns() - begin_ns;
    load.launches += options.group;
    drain();
  }
  begin();
  printf(", \"group\": %" PRIu64, options.group);
  print_list("batch_ns", batch_ns, batches);
  free(batch_ns);
}

/* CUPTI's count, when the driver was told to load the library that has it. */
static void report_cupti(void) {
  const char *path = getenv("CUDA_INJECTION64_PATH"), *report = getenv("CUPTI_REPORT");
  void *library = path && report ? dlopen(path, RTLD_NOW) : NULL;
  int (*write_report)(const char *) = NULL;
  if (library)
    *(void **)&write_report = dlsym(library, "cupti_report");
  if (write_report && write_report(report))
    die("%s cannot be written", report);
}

/* How long the logged kernels ran in sum, by their own stamps. */
static uint64_t stamped_ns(void) {
  struct log_slot *slots;
  uint64_t total_ns = 0;
  read_log(&load.log, &slots);
  for (uint32_t i = 0; i < load.log.capacity; i++)
    total_ns += slots[i].ended ? slots[i].ended - ~slots[i].not_started : 0;
  free(slots);
  return total_ns;
}

/* What each round launches: two kernels, a graph, a memset, a copy inside the device. Captured kernels do not run. */
void run_mix(void) {
  uint64_t rounds = options.count ? options.count : 10;
  device_pointer from, to;
  prepare(MIX_NODES);
  CALL(cuMemAlloc, &from, MIX_BYTES);
  CALL(cuMemAlloc, &to, MIX_BYTES);
  uint64_t before = 1; /* the log was cleared by a memset */
  for (uint64_t i = 0; i < rounds; i++) {
    check(launch_work(&load.kernel, &load.log, load.stream), "cuLaunchKernel");
    check(launch_work(&load.kernel, &load.log, load.stream), "cuLaunchKernel");
    CALL(cuGraphLaunch, load.graph, load.stream);
    CALL(cuMemsetD32Async, from, 1, MIX_BYTES / 4, load.stream);
    CALL(cuMemcpyDtoDAsync, to, from, MIX_BYTES, load.stream);
    drain();
  }
  load.launches = before + 5 * rounds;
  sleep_until(now_ns() + COUNTED_NS);
  report_cupti();
  begin();
  printf(", \"captured\": %u, \"stamped_ns\": %" PRIu64, MIX_NODES, stamped_ns());
}
