/*
 * streams: a driver-API program with work of every kind on several streams, to test the bill.
 *
 *     streams [option=value ...]
 *
 * A round gives every stream its burst of kernels or executable graphs, one stream after the other. `threads` threads
 * do that in parallel, each with streams of its own.
 *
 *     kinds    one letter per stream: n non-blocking, b blocking, l the legacy stream, p the thread's own
 *     units    the length of each stream's kernels
 *     bursts   how many kernels each stream gets in a round
 *     sync     at the end of a round wait for every stream (stream), for the context (context), or for the round before
 *              the last (behind): then the streams never run empty
 *     gap      stay off the device after a round
 *     fork     the first stream's work comes before that of the others, and again after it
 *     graph    kernels in a graph, launched in place of each kernel
 *     before   what each stream waits for before its burst: an asynchronous `upload` or `download` of 4 MiB, a host
 *              `function` that takes `wait`, a `word` that the host writes after `wait`, or a kernel on the second
 *              `device`, which itself waits for the stream's previous burst
 *     wait     see `before`
 *
 * Prints "ready", reads "START STOP" (CLOCK_MONOTONIC ns) from stdin. The last line printed is one JSON object.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "start.h"

#define STREAMS_MAX   8u
#define THREADS_MAX   8u
#define DEPTH         2u /* rounds in flight with sync=behind */
#define LEGACY        ((void *)1)
#define PER_THREAD    ((void *)2)
#define STREAM_BLOCKS 0u
#define COPY_BYTES    (4u << 20)
#define AT_LEAST      0u /* the comparison of cuStreamWaitValue32 */

/* One stream of a worker, and what its work needs. */
struct lane {
  void *stream, *graph, *event;
  void *far_stream, *far_event; /* on the second device */
  void *pinned;
  device_pointer memory, word_address;
  uint32_t *word;
};

struct worker {
  pthread_t thread;
  struct lane lanes[STREAMS_MAX];
  void *begun; /* the event after the first stream's part */
  void *rounds[DEPTH][STREAMS_MAX];
  uint64_t launches, count;
};

static struct {
  const char *kinds, *sync, *before;
  uint64_t units_ns[STREAMS_MAX], bursts[STREAMS_MAX], streams;
  uint64_t threads, gap_ns, fork, graph, wait_ns;
  uint64_t start_ns, stop_ns;
  void *context, *functions[STREAMS_MAX];
  void *far_context, *far_functions[STREAMS_MAX];
} options = {.kinds = "n", .sync = "stream", .before = "", .threads = 1, .wait_ns = 5000000};

static struct worker workers[THREADS_MAX];

static bool waits_for(const char *what) {
  return !strcmp(options.before, what);
}

/* Read a value for each stream. Missing values are like the last one. */
static void parse_each(char *text, uint64_t *values, uint64_t (*read)(const char *)) {
  for (size_t count = parse_list(text, values, STREAMS_MAX, read); count && count < STREAMS_MAX; count++)
    values[count] = values[count - 1];
}

static void parse(int count, char **arguments) {
  const struct option known[] = {
      {"threads", &options.threads, false}, {"gap", &options.gap_ns, true},   {"fork", &options.fork, false},
      {"graph", &options.graph, false},     {"wait", &options.wait_ns, true},
  };
  for (uint32_t i = 0; i < STREAMS_MAX; i++)
    options.units_ns[i] = 100000, options.bursts[i] = 1;
  for (int i = 1; i < count; i++) {
    char *value = parse_option(known, sizeof known / sizeof *known, arguments[i]);
    if (!value)
      continue;
    if (!strcmp(arguments[i], "kinds"))
      options.kinds = value;
    else if (!strcmp(arguments[i], "sync"))
      options.sync = value;
    else if (!strcmp(arguments[i], "before"))
      options.before = value;
    else if (!strcmp(arguments[i], "units"))
      parse_each(value, options.units_ns, parse_time);
    else if (!strcmp(arguments[i], "bursts"))
      parse_each(value, options.bursts, parse_number);
    else
      die("unknown option `%s`", arguments[i]);
  }
  options.streams = strlen(options.kinds);
  if (!options.streams || options.streams > STREAMS_MAX || !options.threads || options.threads > THREADS_MAX)
    die("an option is out of range: streams 1..%u, threads 1..%u", STREAMS_MAX, THREADS_MAX);
  if (*options.before && !waits_for("upload") && !waits_for("download") && !waits_for("function") &&
      !waits_for("word") && !waits_for("device"))
    die("before=%s: give upload, download, function, word or device", options.before);
}

/* Make the stream of the kind that the option `kinds` has at this index. */
static void open_stream(struct lane *lane, uint32_t index) {
  char kind = options.kinds[index];
  if (kind == 'l')
    lane->stream = LEGACY;
  else if (kind == 'p')
    lane->stream = PER_THREAD;
  else
    CALL(cuStreamCreate, &lane->stream, kind == 'b' ? STREAM_BLOCKS : STREAM_NON_BLOCKING);
}

/* Make the executable graph that is launched in place of a kernel. */
static void make_graph(struct lane *lane, uint32_t index) {
  void *stream = NULL;
  CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  begin_capture(stream);
  for (uint64_t i = 0; i < options.graph; i++)
    launch_one(options.functions[index], stream, 1);
  lane->graph = end_capture(stream);
  CALL(cuStreamDestroy, stream);
}

static void open_wait(struct lane *lane) {
  if (waits_for("upload") || waits_for("download")) {
    CALL(cuMemAlloc, &lane->memory, COPY_BYTES);
    CALL(cuMemHostAlloc, &lane->pinned, COPY_BYTES, HOST_PORTABLE_MAPPED);
  } else if (waits_for("word")) {
    lane->word = mapped(sizeof *lane->word, &lane->word_address);
  } else if (waits_for("device")) {
    CALL(cuCtxSetCurrent, options.far_context);
    CALL(cuStreamCreate, &lane->far_stream, STREAM_NON_BLOCKING);
    CALL(cuEventCreate, &lane->far_event, EVENT_DISABLE_TIMING);
    CALL(cuCtxSetCurrent, options.context);
  }
}

/* Make the worker's streams and events, in the worker's own thread. */
static void open_worker(struct worker *worker) {
  CALL(cuCtxSetCurrent, options.context);
  CALL(cuEventCreate, &worker->begun, EVENT_DISABLE_TIMING);
  for (uint32_t i = 0; i < options.streams; i++) {
    open_stream(&worker->lanes[i], i);
    CALL(cuEventCreate, &worker->lanes[i].event, EVENT_DISABLE_TIMING);
    for (uint64_t round = 0; round < DEPTH; round++)
      CALL(cuEventCreate, &worker->rounds[round][i], EVENT_DISABLE_TIMING);
    if (options.graph)
      make_graph(&worker->lanes[i], i);
    open_wait(&worker->lanes[i]);
  }
}

static void take_a_while(void *unused) {
  (void)unused;
  sleep_until(now_ns() + options.wait_ns);
}

/* A kernel on the second device, between the stream's previous burst and the next one. */
static void wait_far(struct worker *worker, uint32_t index) {
  struct lane *lane = &worker->lanes[index];
  CALL(cuEventRecord, lane->event, lane->stream);
  CALL(cuCtxSetCurrent, options.far_context);
  CALL(cuStreamWaitEvent, lane->far_stream, lane->event, 0);
  launch_one(options.far_functions[index], lane->far_stream, 1);
  worker->launches++;
  CALL(cuEventRecord, lane->far_event, lane->far_stream);
  CALL(cuCtxSetCurrent, options.context);
  CALL(cuStreamWaitEvent, lane->stream, lane->far_event, 0);
}

/* Let the stream wait for what the option `before` says. */
static void wait_before(struct worker *worker, uint32_t index) {
  struct lane *lane = &worker->lanes[index];
  if (waits_for("upload"))
    CALL(cuMemcpyHtoDAsync, lane->memory, lane->pinned, COPY_BYTES, lane->stream);
  else if (waits_for("download"))
    CALL(cuMemcpyDtoHAsync, lane->pinned, lane->memory, COPY_BYTES, lane->stream);
  else if (waits_for("function"))
    CALL(cuLaunchHostFunc, lane->stream, take_a_while, NULL);
  else if (waits_for("word"))
    CALL(cuStreamWaitValue32, lane->stream, lane->word_address, (uint32_t)worker->count + 1, AT_LEAST);
  else if (waits_for("device"))
    wait_far(worker, index);
}

static void write_words(struct worker *worker) {
  sleep_until(now_ns() + options.wait_ns);
  for (uint32_t i = 0; i < options.streams; i++)
    __atomic_store_n(worker->lanes[i].word, (uint32_t)worker->count + 1, __ATOMIC_RELEASE);
}

static void give(struct worker *worker, uint32_t index) {
  struct lane *lane = &worker->lanes[index];
  for (uint64_t i = 0; i < options.bursts[index]; i++) {
    if (lane->graph)
      CALL(cuGraphLaunch, lane->graph, lane->stream);
    else
      launch_one(options.functions[index], lane->stream, 1);
    worker->launches++;
  }
}

/* A round: give every stream its burst. With `fork` the others start after the first stream's burst, and the first gets
 * a second burst after all of them. */
static void give_all(struct worker *worker) {
  for (uint32_t i = 0; i < options.streams; i++) {
    if (options.fork && i)
      CALL(cuStreamWaitEvent, worker->lanes[i].stream, worker->begun, 0);
    wait_before(worker, i);
    give(worker, i);
    if (options.fork)
      CALL(cuEventRecord, i ? worker->lanes[i].event : worker->begun, worker->lanes[i].stream);
  }
  for (uint32_t i = 1; options.fork && i < options.streams; i++)
    CALL(cuStreamWaitEvent, worker->lanes[0].stream, worker->lanes[i].event, 0);
  if (options.fork)
    give(worker, 0);
  if (waits_for("word"))
    write_words(worker);
}

/* Wait for the round DEPTH rounds ago, and record this one. */
static void wait_behind(struct worker *worker) {
  void **events = worker->rounds[worker->count % DEPTH];
  for (uint32_t i = 0; i < options.streams; i++) {
    if (worker->count >= DEPTH)
      CALL(cuEventSynchronize, events[i]);
    CALL(cuEventRecord, events[i], worker->lanes[i].stream);
  }
}

/* End a round as the option `sync` says. */
static void wait_all(struct worker *worker) {
  if (!strcmp(options.sync, "behind")) {
    wait_behind(worker);
    return;
  }
  if (!strcmp(options.sync, "context")) {
    CALL(cuCtxSynchronize);
    return;
  }
  for (uint32_t i = 0; i < options.streams; i++)
    CALL(cuStreamSynchronize, worker->lanes[i].stream);
}

static void *run(void *argument) {
  struct worker *worker = argument;
  open_worker(worker);
  for (; now_ns() < options.stop_ns; worker->count++) {
    give_all(worker);
    wait_all(worker);
    if (options.gap_ns)
      sleep_until(now_ns() + options.gap_ns);
  }
  CALL(cuCtxSynchronize);
  return NULL;
}

static void open_far(void) {
  options.far_context = open_context(1);
  void *module = load_module(options.units_ns, STREAMS_MAX);
  for (uint32_t i = 0; i < options.streams; i++)
    options.far_functions[i] = find_kernel(module, options.units_ns[i]);
  CALL(cuCtxSetCurrent, options.context);
}

int main(int count, char **arguments) {
  parse(count, arguments);
  begin_program();
  options.context = open_context(0);
  void *module = load_module(options.units_ns, STREAMS_MAX);
  for (uint32_t i = 0; i < options.streams; i++)
    options.functions[i] = find_kernel(module, options.units_ns[i]);
  if (waits_for("device"))
    open_far();
  await_go(true, 0, &options.start_ns, &options.stop_ns);
  uint64_t launches = 0, rounds = 0;
  for (uint64_t i = 0; i < options.threads; i++)
    if (pthread_create(&workers[i].thread, NULL, run, &workers[i]))
      die("no thread");
  for (uint64_t i = 0; i < options.threads; i++) {
    pthread_join(workers[i].thread, NULL);
    launches += workers[i].launches;
    rounds += workers[i].count;
  }
  print_begin(options.start_ns, now_ns(), launches, 0);
  printf(", \"rounds\": %" PRIu64 "}\n", rounds);
  return 0;
}
