/* The host's time of driver calls: the mode calls. */
#define _GNU_SOURCE

#include "probe.h"

#define BATCHES     60u
#define GRAPH_NODES 20u
#define BLOCKED_NS  5000000u /* a launch that takes this long has waited for room in the queue */
#define QUEUE_MAX   8192u

#define PENDING_BATCHES 10u /* of a call that is measured while a long kernel runs */

static struct {
  void *stream, *event, *pending, *done, *graph_of_1, *graph_of_20;
  struct kernel empty, longer;
  struct log log;
  uint32_t *word;
  device_pointer word_address;
} tools;

static void *make_event(unsigned flags) {
  void *event = NULL;
  CALL(cuEventCreate, &event, flags);
  return event;
}

/* Make the stream, a log of `log` kernels, an empty kernel and a long one, and a word that the device can write. */
static void prepare(uint32_t log) {
  CALL(cuStreamCreate, &tools.stream, STREAM_NON_BLOCKING);
  tools.log = make_log(log);
  tools.empty = kernel_of(options.unit_ns);
  tools.empty.iterations = 0;
  tools.empty.blocks = 1;
  tools.longer = kernel_of(options.work_ns);
  tools.word = mapped(64, &tools.word_address);
}

static void drain(void) {
  CALL(cuStreamSynchronize, tools.stream);
}

static int unless_pending(int result) {
  return result == ERROR_NOT_READY ? SUCCESS : result;
}

#define TIMED(name, expression)                                                                                        \
  static int name(void) {                                                                                              \
    return expression;                                                                                                 \
  }
TIMED(call_launch, launch_work(&tools.empty, &tools.log, tools.stream))
TIMED(call_graph_of_1, TRY(cuGraphLaunch, tools.graph_of_1, tools.stream))
TIMED(call_graph_of_20, TRY(cuGraphLaunch, tools.graph_of_20, tools.stream))
TIMED(call_record, cuEventRecord(tools.event, tools.stream))
TIMED(call_record_untimed, cuEventRecord(tools.done, tools.stream))
TIMED(call_write, TRY(cuStreamWriteValue32, tools.stream, tools.word_address, 1, 0))
TIMED(call_query_done, TRY(cuEventQuery, tools.done))
TIMED(call_query_pending, unless_pending(TRY(cuEventQuery, tools.pending)))
TIMED(call_stream_query, unless_pending(TRY(cuStreamQuery, tools.stream)))
TIMED(call_is_capturing, TRY(cuStreamIsCapturing, tools.stream, &(int){0}))
TIMED(call_get_current, TRY(cuCtxGetCurrent, &(void *){NULL}))

static const struct {
  const char *name;
  int (*call)(void);
  bool pending; /* measured while a kernel runs */
} calls[] = {
    {"cuLaunchKernel", call_launch, false},
    {"cuGraphLaunch of 1", call_graph_of_1, false},
    {"cuGraphLaunch of 20", call_graph_of_20, false},
    {"cuEventRecord", call_record, false},
    {"cuEventRecord without timing", call_record_untimed, false},
    {"cuStreamWriteValue32", call_write, false},
    {"cuEventQuery done", call_query_done, false},
    {"cuEventQuery pending", call_query_pending, true},
    {"cuStreamQuery pending", call_stream_query, true},
    {"cuStreamIsCapturing", call_is_capturing, false},
    {"cuCtxGetCurrent", call_get_current, false},
};

/* Measure one of `calls`, in batches of `group`, and print the quantiles of its time or its error. */
static void time_call(size_t row) {
  uint64_t batch_ns[BATCHES];
  int result = SUCCESS;
  size_t count = 0;
  size_t batches = calls[row].pending ? PENDING_BATCHES : BATCHES;
  for (; count < batches && result == SUCCESS; count++) {
    if (calls[row].pending) {
      check(launch_work(&tools.longer, &tools.log, tools.stream), "cuLaunchKernel");
      CALL(cuEventRecord, tools.pending, tools.stream);
    }
    uint64_t begin_ns = now_ns();
    for (uint64_t i = 0; i < options.group && result == SUCCESS; i++)
      result = calls[row].call();
    batch_ns[count] = (now_ns() - begin_ns) / options.group;
    drain();
  }
  if (result == SUCCESS)
    print_quantiles(calls[row].name, batch_ns, count);
  else
    printf(", \"%s\": {\"error\": \"%s\"}", calls[row].name, error_name(result));
}

/* The number of launches that fit behind a running kernel before one has to wait; 0: QUEUE_MAX or more. */
static uint32_t queue_depth(void) {
  uint32_t depth = 0;
  check(launch_work(&tools.longer, &tools.log, tools.stream), "cuLaunchKernel");
  for (uint64_t took_ns = 0; depth < QUEUE_MAX && took_ns < BLOCKED_NS; depth++) {
    uint64_t begin_ns = now_ns();
    call_launch();
    took_ns = now_ns() - begin_ns;
  }
  drain();
  return depth < QUEUE_MAX ? depth : 0;
}

/* The rate of a copy from pinned host memory in MB/s: the best of three. */
static uint64_t copy_mb_s(void) {
  size_t bytes = options.bytes ? options.bytes : 64u << 20;
  device_pointer target, unused;
  void *source = mapped(bytes, &unused);
  CALL(cuMemAlloc, &target, bytes);
  uint64_t best = 0;
  for (int round = 0; round < 3; round++) {
    uint64_t begin_ns = now_ns();
    CALL(cuMemcpyHtoDAsync, target, source, bytes, tools.stream);
    drain();
    uint64_t rate = bytes * 1000 / (now_ns() - begin_ns + 1);
    best = rate > best ? rate : best;
  }
  CALL(cuMemFree, target);
  return best;
}

void run_calls(void) {
  prepare(16);
  tools.event = make_event(EVENT_DEFAULT);
  tools.done = make_event(EVENT_DISABLE_TIMING);
  tools.pending = make_event(EVENT_DISABLE_TIMING);
  tools.graph_of_1 = graph_of(&tools.empty, &tools.log, tools.stream, 1);
  tools.graph_of_20 = graph_of(&tools.empty, &tools.log, tools.stream, GRAPH_NODES);
  await_start();
  begin_result(0, 0);
  printf(", \"queue_depth\": %" PRIu32 ", \"copy_mb_s\": %" PRIu64, queue_depth(), copy_mb_s());
  for (size_t row = 0; row < sizeof calls / sizeof *calls; row++)
    time_call(row);
}
