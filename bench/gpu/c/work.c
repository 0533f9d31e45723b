/* The loads: a known amount of work that the device logs, and the host's time of every launch. */
#define _GNU_SOURCE

#include "probe.h"

#define EVENT_FLAGS (EVENT_DISABLE_TIMING | (options.blocking ? EVENT_BLOCKING_SYNC : 0))
#include "loads.h"

#define LOG_DEFAULT (1u << 20)
#define MIX_NODES   4u
#define MIX_BYTES   65536u
#define COUNTED_NS  400000000u /* after this time the hook's count has been read */

static struct {
  void *stream, *graph;
  struct kernel kernel;
  struct log log;
  uint64_t *submitted_ns; /* when launch i had returned */
  uint64_t nodes;
} load;

/* Make the stream, the kernel of `unit`, its log, and (unless 0) a graph of so many of it. Then wait for the start. */
static void prepare(uint64_t graph_nodes) {
  load.kernel = kernel_of(options.unit_ns);
  load.log = make_log(options.log ? (uint32_t)options.log : options.simulated ? 1 : LOG_DEFAULT);
  load.nodes = graph_nodes ? graph_nodes : 1;
  load.submitted_ns = allocate(load.log.capacity / load.nodes + 1, sizeof *load.submitted_ns);
  CALL(cuStreamCreate, &load.stream, STREAM_NON_BLOCKING);
  if (graph_nodes)
    load.graph = graph_of(&load.kernel, &load.log, load.stream, graph_nodes);
  await_start();
}

/* For loads.h: launch the kernel or the graph, and note when the launch has returned. */
static void put(uint64_t stream) {
  (void)stream;
  if (load.graph)
    CALL(cuGraphLaunch, load.graph, load.stream);
  else
    check(launch_work(&load.kernel, &load.log, load.stream), "cuLaunchKernel");
  if (launches <= load.log.capacity / load.nodes)
    load.submitted_ns[launches - 1] = now_ns();
}

static void *stream_of(uint64_t stream) {
  (void)stream;
  return load.stream;
}

/* Write the log to the file of the option `path`. Print how many kernels it has and how many did not fit. */
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
  begin_result(launches, launches * options.unit_ns * load.nodes);
}

void run_saturate(void) {
  prepare(options.graph);
  saturate();
  write_log();
}

void run_sync(void) {
  prepare(options.graph);
  synchronise_bursts();
  write_log();
}

void run_periodic(void) {
  prepare(0);
  serve();
  write_log();
}

void run_cost(void) {
  options.log = 1; /* the kernels are empty, so nothing is logged */
  prepare(0);
  load.kernel.iterations = 0;
  load.kernel.blocks = 1;
  time_launches();
}

void run_latency(void) {
  prepare(0);
  for (uint64_t i = 0; i < options.count && running(); i++) {
    sleep_until(now_ns() + options.gap_ns);
    launch(0);
    drain();
  }
  begin();
  write_log();
}

/* ---- events, streams, and commands that need no multiprocessor ---- */

#define RECORDED 120u /* kernels of each kind: with their events fewer than the launches that a driver queues */
#define AHEAD_NS 20000000u

static void *event_with(unsigned flags) {
  void *event = NULL;
  CALL(cuEventCreate, &event, flags);
  return event;
}

/* Three times RECORDED kernels in one stream: alone, with an event behind each, with a timing event behind each. */
void run_records(void) {
  void *timed[RECORDED], *plain = event_with(EVENT_DISABLE_TIMING);
  prepare(0);
  struct kernel kernels[UNITS_MAX];
  for (size_t i = 0; i < options.unit_count; i++)
    kernels[i] = kernel_of(options.units_ns[i]);
  for (uint32_t i = 0; i < RECORDED; i++)
    timed[i] = event_with(EVENT_DEFAULT);
  load.kernel = kernel_of(AHEAD_NS); /* while it runs the host queues all the rest */
  launch(0);
  for (uint32_t i = 0; i < 3 * RECORDED; i++) {
    load.kernel = kernels[i % options.unit_count];
    launch(0);
    if (i >= RECORDED)
      CALL(cuEventRecord, i < 2 * RECORDED ? plain : timed[i % RECORDED], load.stream);
  }
  drain();
  begin();
  printf(", \"steps_ms\": [");
  for (uint32_t i = 1; i < RECORDED; i++) {
    float ms = 0;
    CALL(cuEventElapsedTime, &ms, timed[i - 1], timed[i]);
    printf("%s%.9g", i > 1 ? ", " : "", (double)ms);
  }
  putchar(']');
  write_log();
}

/* Measure `depth` kernels that fill the device on one stream, and as many on each of two, `count` times in turn. On two
 * they take twice as long unless streams have multiprocessors of their own. */
void run_streams(void) {
  void *streams[2];
  options.threads = 1024;
  options.log = 1;
  prepare(0);
  for (int i = 0; i < 2; i++)
    CALL(cuStreamCreate, &streams[i], STREAM_NON_BLOCKING);
  uint64_t took_ns[2][16], repeats = options.count < 16 ? options.count : 16;
  for (uint64_t i = 0; i < 2 * repeats; i++) {
    uint64_t began_ns = now_ns();
    for (uint64_t n = 0; n < options.depth; n++)
      for (uint64_t s = 0; s <= i % 2; s++)
        check(launch_work(&load.kernel, &load.log, streams[s]), "cuLaunchKernel");
    for (uint64_t s = 0; s <= i % 2; s++)
      CALL(cuStreamSynchronize, streams[s]);
    took_ns[i % 2][i / 2] = now_ns() - began_ns;
  }
  begin();
  print_quantiles("one", took_ns[0], repeats);
  print_quantiles("two", took_ns[1], repeats);
}

/* Give a stream one command after every `gap`. */
void run_commands(void) {
  device_pointer address;
  void *event = event_with(EVENT_DISABLE_TIMING);
  mapped(64, &address);
  options.log = 1;
  prepare(0);
  CALL(cuEventRecord, event, load.stream);
  for (; running(); launches++) {
    sleep_until(now_ns() + options.gap_ns);
    if (options.command == 0)
      CALL(cuStreamWriteValue32, load.stream, address, 1, 0);
    else if (options.command == 1)
      CALL(cuEventRecord, event, load.stream);
    else
      CALL(cuStreamWaitEvent, load.stream, event, 0);
  }
  drain();
  begin();
}

/* ---- how soon the host knows ---- */

#define SIGNALS       60u
#define WORD_LIMIT_NS 1000000000u

enum way { BY_WRITE, BY_BLOCKING_EVENT, BY_SPINNING_EVENT, BY_SYNCHRONIZE, WAYS };

/* Have a word written after all work in the stream, and wait until the host sees it. */
static void await_word(uint32_t value) {
  static device_pointer address;
  static uint32_t *word;
  if (!word)
    word = mapped(64, &address);
  CALL(cuStreamWriteValue32, load.stream, address, value, 0);
  uint64_t limit_ns = now_ns() + WORD_LIMIT_NS;
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
    if (options.simulated) /* the simulated device only moves on during a call */
      TRY(cuStreamQuery, load.stream);
    else if (now_ns() > limit_ns)
      die("a word written by cuStreamWriteValue32 was not seen within %u ms", WORD_LIMIT_NS / 1000000);
  }
}

/* Launch SIGNALS kernels for each way to know of their end, and note when the host knew. */
void run_signals(void) {
  uint64_t learnt_ns[WAYS * SIGNALS], word_ns[SIGNALS];
  void *events[WAYS] = {[BY_BLOCKING_EVENT] = event_with(EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING),
                        [BY_SPINNING_EVENT] = event_with(EVENT_DISABLE_TIMING)};
  prepare(0);
  for (uint32_t i = 0; i < WAYS * SIGNALS; i++) {
    void *event = events[i / SIGNALS];
    launch(0);
    if (i / SIGNALS == BY_WRITE) {
      await_word(i + 1);
    } else if (event) {
      CALL(cuEventRecord, event, load.stream);
      CALL(cuEventSynchronize, event);
    } else {
      drain();
    }
    learnt_ns[i] = now_ns();
    drain();
  }
  for (uint32_t i = 0; i < SIGNALS; i++) { /* only a word, on an idle stream */
    uint64_t call_ns = now_ns();
    await_word(WAYS * SIGNALS + i + 1);
    word_ns[i] = now_ns() - call_ns;
    drain();
  }
  begin();
  print_list("word_ns", word_ns, SIGNALS);
  print_list("learnt_ns", learnt_ns, WAYS * SIGNALS);
  write_log();
}

/* Write CUPTI's count, if the driver was told to load the library for it. */
static void report_cupti(void) {
  const char *path = getenv("CUDA_INJECTION64_PATH"), *report = getenv("CUPTI_REPORT");
  void *library = path && report ? dlopen(path, RTLD_NOW) : NULL;
  int (*write_report)(const char *) = NULL;
  if (library)
    *(void **)&write_report = dlsym(library, "cupti_report");
  if (write_report && write_report(report))
    die("%s cannot be written", report);
}

/* The sum of the logged kernels' durations, by their own stamps. */
static uint64_t stamped_ns(void) {
  struct log_slot *slots;
  uint64_t total_ns = 0;
  read_log(&load.log, &slots);
  for (uint32_t i = 0; i < load.log.capacity; i++)
    total_ns += slots[i].ended ? slots[i].ended - ~slots[i].not_started : 0;
  free(slots);
  return total_ns;
}

/* Each round launches two kernels, a graph, a memset and a copy inside the device. Captured kernels do not run. */
void run_mix(void) {
  uint64_t rounds = options.count ? options.count : 10;
  device_pointer from, to;
  prepare(MIX_NODES);
  CALL(cuMemAlloc, &from, MIX_BYTES);
  CALL(cuMemAlloc, &to, MIX_BYTES);
  uint64_t before = 1; /* the memset that cleared the log */
  for (uint64_t i = 0; i < rounds; i++) {
    check(launch_work(&load.kernel, &load.log, load.stream), "cuLaunchKernel");
    check(launch_work(&load.kernel, &load.log, load.stream), "cuLaunchKernel");
    CALL(cuGraphLaunch, load.graph, load.stream);
    CALL(cuMemsetD32Async, from, 1, MIX_BYTES / 4, load.stream);
    CALL(cuMemcpyDtoDAsync, to, from, MIX_BYTES, load.stream);
    drain();
  }
  launches = before + 5 * rounds;
  sleep_until(now_ns() + COUNTED_NS);
  report_cupti();
  begin();
  printf(", \"captured\": %u, \"stamped_ns\": %" PRIu64, MIX_NODES, stamped_ns());
}
