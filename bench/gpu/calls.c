/* What driver calls cost the host, and how soon it learns of the device's progress: the modes calls, signals, budget.
 */
#define _GNU_SOURCE

#include "probe.h"

#define BATCHES       60u
#define GRAPH_NODES   20u
#define LONG_NS       20000000u /* of the kernel that keeps an event pending */
#define BLOCKED_NS    5000000u  /* a launch that takes so long has waited for room in the queue */
#define QUEUE_MAX     8192u
#define SIGNALS       60u
#define WORD_LIMIT_NS 1000000000u

static struct {
  void *stream, *event, *pending, *done, *graph_of_1, *graph_of_20;
  struct kernel empty, longer, unit;
  struct log log;
  uint32_t *word;
  device_pointer word_address;
} tools;

static void *make_event(unsigned flags) {
  void *event = NULL;
  CALL(cuEventCreate, &event, flags);
  return event;
}

static void prepare(uint32_t log) {
  CALL(cuStreamCreate, &tools.stream, STREAM_NON_BLOCKING);
  tools.log = make_log(log);
  tools.unit = tools.empty = tools.longer = kernel_of(options.unit_ns);
  tools.empty.iterations = 0;
  tools.empty.blocks = 1;
  double iterations = LONG_NS / 1000.0 * options.rate;
  tools.longer.iterations = iterations < 4e9 ? (uint32_t)iterations : UINT32_MAX;
  tools.word = mapped(64, &tools.word_address);
}

static void drain(void) {
  CALL(cuStreamSynchronize, tools.stream);
}

/* ---- calls ---- */

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

static void time_call(size_t row) {
  uint64_t batch_ns[BATCHES];
  int result = SUCCESS;
  size_t count = 0;
  for (; count < BATCHES && result == SUCCESS; count++) {
    if (calls[row].pending) {
      check(launch_work(&tools.longer, &tools.log, tools.stream), "cuLaunchKernel");
      CALL(cuEventRecord, tools.pending, tools.stream);
    }
    uint64_t begin_ns = now_ns();
    for (uint64_t i = 0; i < options.group && result == SUCCESS; i++)
      result = calls[row].call();
    batch_ns[count] = (now_ns() - begin_ns) / options.group;
    drain();
    if (calls[row].pending && count == 9) { /* they wait for a long kernel each */
      count++;
      break;
    }
  }
  if (result == SUCCESS)
    print_quantiles(calls[row].name, batch_ns, count);
  else
    printf(", \"%s\": {\"error\": \"%s\"}", calls[row].name, error_name(result));
}

/* How many launches fit behind a kernel that runs, before one has to wait. */
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

/* ---- signals ---- */

enum way { BY_WRITE, BY_BLOCKING_EVENT, BY_SPINNING_EVENT, BY_SYNCHRONIZE, WAYS };
static const char *const way_names[WAYS] = {"write", "blocking_event", "spinning_event", "synchronize"};

static void await_word(uint32_t value) {
  uint64_t limit_ns = now_ns() + WORD_LIMIT_NS;
  while (__atomic_load_n(tools.word, __ATOMIC_ACQUIRE) != value) {
    if (options.simulated) /* its device moves on when a call is made */
      call_stream_query();
    else if (now_ns() > limit_ns)
      die("a word written by cuStreamWriteValue32 was not seen within %u ms", WORD_LIMIT_NS / 1000000);
  }
}

/* Launch a kernel, learn of its end in one way; return when that was. */
static uint64_t learn_of_end(enum way way, void *event, uint32_t value) {
  check(launch_work(&tools.unit, &tools.log, tools.stream), "cuLaunchKernel");
  if (way == BY_WRITE) {
    CALL(cuStreamWriteValue32, tools.stream, tools.word_address, value, 0);
    await_word(value);
  } else if (way == BY_SYNCHRONIZE) {
    drain();
  } else {
    CALL(cuEventRecord, event, tools.stream);
    CALL(cuEventSynchronize, event);
  }
  uint64_t learnt_ns = now_ns();
  drain();
  return learnt_ns;
}

static uint64_t host_time(uint64_t device_ns, const struct clock_map *first, const struct clock_map *last) {
  double pace = last->device_ns > first->device_ns
                    ? (double)(last->host_ns - first->host_ns) / (double)(last->device_ns - first->device_ns)
                    : 1;
  return first->host_ns + (uint64_t)(int64_t)((double)(int64_t)(device_ns - first->device_ns) * pace);
}

static uint64_t after(uint64_t later_ns, uint64_t earlier_ns) {
  return later_ns > earlier_ns ? later_ns - earlier_ns : 0;
}

void run_signals(void) {
  uint64_t learnt_ns[WAYS * SIGNALS], called_ns[WAYS * SIGNALS], returned_ns[WAYS * SIGNALS], late_ns[SIGNALS];
  uint64_t begins_ns[WAYS * SIGNALS], returns_ns[WAYS * SIGNALS];
  struct log_slot *slots;
  prepare(WAYS * SIGNALS);
  void *events[WAYS] = {[BY_BLOCKING_EVENT] = make_event(EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING),
                        [BY_SPINNING_EVENT] = make_event(EVENT_DISABLE_TIMING)};
  await_start();
  struct clock_map first = map_clock();
  for (uint32_t i = 0; i < WAYS * SIGNALS; i++) {
    called_ns[i] = now_ns();
    learnt_ns[i] = learn_of_end(i / SIGNALS, events[i / SIGNALS], i + 1);
  }
  struct log launches = {.address = tools.log.address, .capacity = 0}; /* a second series: launches alone */
  for (uint32_t i = 0; i < SIGNALS; i++) {
    uint64_t call_ns = now_ns();
    check(launch_work(&tools.empty, &launches, tools.stream), "cuLaunchKernel");
    returned_ns[i] = after(now_ns(), call_ns);
    drain();
  }
  for (uint32_t i = 0; i < SIGNALS; i++) { /* a word alone, on an idle stream */
    uint64_t call_ns = now_ns();
    CALL(cuStreamWriteValue32, tools.stream, tools.word_address, 1000000 + i, 0);
    await_word(1000000 + i);
    late_ns[i] = after(now_ns(), call_ns);
    drain();
  }
  struct clock_map last = map_clock();
  read_log(&tools.log, &slots);
  begin_result(0, 0);
  print_quantiles("word_alone", late_ns, SIGNALS);
  print_quantiles("launch_call", returned_ns, SIGNALS);
  for (uint32_t i = 0; i < WAYS * SIGNALS; i++) {
    uint64_t started_ns = host_time(~slots[i].not_started, &first, &last);
    uint64_t ended_ns = host_time(slots[i].ended, &first, &last);
    if (!slots[i].ended) { /* simulated: as its name says */
      started_ns = called_ns[i];
      ended_ns = called_ns[i] + options.unit_ns;
    }
    begins_ns[i] = after(started_ns, called_ns[i]);
    returns_ns[i] = after(learnt_ns[i], ended_ns);
  }
  print_quantiles("call_to_start", begins_ns, WAYS * SIGNALS);
  for (uint32_t way = 0; way < WAYS; way++)
    print_quantiles(way_names[way], returns_ns + way * SIGNALS, SIGNALS);
  free(slots);
}

/* ---- budget ---- */

/* Throughput when at most `limit_ns` of kernels is in flight, and the host learns of each end by a blocking event. */
static double busy_under(uint64_t limit_ns) {
  uint64_t depth = limit_ns / options.unit_ns, launched = 0;
  depth = depth < 1 ? 1 : depth > 256 ? 256 : depth;
  void *events[256];
  for (uint64_t i = 0; i < depth; i++)
    events[i] = make_event(EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING);
  uint64_t begin_ns = now_ns(), until_ns = begin_ns + options.work_ns;
  for (; launched < tools.log.capacity && now_ns() < until_ns; launched++) {
    if (launched >= depth)
      CALL(cuEventSynchronize, events[launched % depth]);
    check(launch_work(&tools.unit, &tools.log, tools.stream), "cuLaunchKernel");
    CALL(cuEventRecord, events[launched % depth], tools.stream);
  }
  drain();
  uint64_t elapsed_ns = now_ns() - begin_ns, work_ns = 0;
  struct log_slot *slots;
  read_log(&tools.log, &slots);
  for (uint64_t i = 0; i < launched; i++)
    work_ns += slots[i].ended ? slots[i].ended - ~slots[i].not_started : options.unit_ns;
  free(slots);
  clear_log(&tools.log);
  for (uint64_t i = 0; i < depth; i++)
    CALL(cuEventDestroy, events[i]);
  return (double)work_ns / (double)elapsed_ns;
}

void run_budget(void) {
  prepare((uint32_t)(options.work_ns / options.unit_ns) + 256);
  await_start();
  begin_result(0, 0);
  printf(", \"busy\": {");
  for (size_t i = 0; i < options.unit_count; i++)
    printf("%s\"%" PRIu64 "\": %.5f", i ? ", " : "", options.units_ns[i], busy_under(options.units_ns[i]));
  putchar('}');
}
