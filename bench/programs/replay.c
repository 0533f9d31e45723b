/*
 * replay: repeats towards the driver what a trace says a program did. traces/README.md has the format.
 *
 *     replay TRACE [seconds=10s] [warm=300ms] [wait=1]
 *
 * It knows nothing of shares: the same binary runs bare and under the hook, on the simulated device, which reads the
 * durations from the names of the kernels.
 *
 * The host's part between calls is repeated: the replay spins where the program computed, and sleeps until a request is
 * due. The cost of calls and their waits are those of the present driver and device.
 *
 * It prints "ready" when the endless loop has run for `warm`: the beginning of a program is not measured. The replay
 * stops where a loop, of any depth, begins its next round. Marks that are open then do not count. The last line printed
 * is one JSON object.
 */
#define _GNU_SOURCE
#include "start.h"
#include "trace.h"

struct series {
  uint64_t begun_ns, *values_ns;
  size_t count, room;
};

static struct {
  uint64_t seconds_ns, warm_ns, wait;
  uint64_t start_ns, stop_ns;
} options = {.seconds_ns = 10000000000u, .warm_ns = 300000000};

/* The trace's declarations, by their numbers in the trace. */
static struct {
  uint64_t graph_ns[TABLE_MAX];
  void *functions[TABLE_MAX], *graphs[TABLE_MAX], *streams[STREAMS_MAX];
  void *host; /* the bytes that copies move: their content has no meaning; as large as the largest copy */
  device_pointer device;
} made;

static struct {
  uint64_t due_ns; /* of an `every`; the next `begin` counts from it; 0: none */
  uint64_t next_ns, warm_until_ns, launches, work_ns;
  bool met; /* the go has come */
  struct series marks[MARKS_MAX];
} doing;

/* ---- making what it needs ---- */

/* Make the executable of a graph from its text: kernels by number, each as often as its factor says ("3 5*2"). */
static void make_graph(size_t index) {
  void *stream;
  CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  begin_capture(stream);
  for (char *part = strtok(trace.graph_nodes[index], " "); part; part = strtok(NULL, " ")) {
    char *times = strchr(part, '*');
    if (times)
      *times++ = 0;
    uint64_t kernel = parse_number(part), count = times ? parse_number(times) : 1;
    if (kernel >= trace.kernels)
      die("graph %zu has a kernel that is not declared", index);
    for (uint64_t i = 0; i < count; i++)
      launch_one(made.functions[kernel], stream, 1);
    made.graph_ns[index] += count * trace.kernel_ns[kernel];
  }
  made.graphs[index] = end_capture(stream);
}

/* Make a kernel per duration: kernels of one duration are one. */
static void make_kernels(void) {
  uint64_t distinct[TABLE_MAX];
  size_t count = 0, place;
  for (size_t i = 0; i < trace.kernels; i++) {
    for (place = 0; place < count && distinct[place] != trace.kernel_ns[i]; place++)
      ;
    if (place == count)
      distinct[count++] = trace.kernel_ns[i];
  }
  void *module = load_module(distinct, count);
  for (size_t i = 0; i < trace.kernels; i++)
    made.functions[i] = find_kernel(module, trace.kernel_ns[i]);
}

static void prepare(void) {
  open_context(0);
  make_kernels();
  for (size_t i = 0; i < trace.stream_count; i++)
    if (trace.streams[i] != LEGACY)
      CALL(cuStreamCreate, &made.streams[i], trace.streams[i] == BLOCKING ? STREAM_BLOCKING : STREAM_NON_BLOCKING);
  for (size_t i = 0; i < trace.graph_count; i++)
    make_graph(i);
  if (trace.copy_bytes) {
    CALL(cuMemHostAlloc, &made.host, trace.copy_bytes, HOST_PORTABLE_MAPPED);
    CALL(cuMemAlloc, &made.device, trace.copy_bytes);
  }
}

/* ---- doing ---- */

static void spin_until(uint64_t until_ns) {
  while (now_ns() < until_ns)
    ;
}

/* Add the time since the mark's begin to its series, if it has begun. */
static void end_mark(struct series *series) {
  if (!series->begun_ns)
    return;
  if (series->count == series->room) {
    series->room = series->room ? 2 * series->room : 1024;
    series->values_ns = realloc(series->values_ns, series->room * sizeof *series->values_ns);
    if (!series->values_ns)
      die("no memory for %zu marks", series->room);
  }
  series->values_ns[series->count++] = now_ns() - series->begun_ns;
  series->begun_ns = 0;
}

/* Launch kernel `b` into stream `a`, `c` times, each after `d` ns of the host's computing. */
static void do_launches(const struct step *step) {
  for (uint64_t i = 0; i < step->c; i++) {
    if (step->d)
      spin_until(now_ns() + step->d);
    launch_one(made.functions[step->b], made.streams[step->a], 1);
  }
  doing.launches += step->c;
  doing.work_ns += step->c * trace.kernel_ns[step->b];
}

static void copy(uint64_t direction, size_t bytes, void *stream) {
  if (direction == HTOD)
    CALL(cuMemcpyHtoDAsync, made.device, made.host, bytes, stream);
  else
    CALL(cuMemcpyDtoHAsync, made.host, made.device, bytes, stream);
}

static void copy_and_wait(uint64_t direction, size_t bytes) {
  if (direction == HTOD)
    CALL(cuMemcpyHtoD, made.device, made.host, bytes);
  else
    CALL(cuMemcpyDtoH, made.host, made.device, bytes);
}

/* Do one step, but for those of loops. */
static void do_step(const struct step *step) {
  device_pointer kept;
  switch (step->verb) {
  case CPU: /* a: ns */
    spin_until(now_ns() + step->a);
    break;
  case EVERY: /* a: the period in ns */
    doing.due_ns = doing.next_ns ? doing.next_ns : now_ns();
    doing.next_ns = doing.due_ns + step->a;
    sleep_until(doing.due_ns);
    break;
  case LAUNCH:
    do_launches(step);
    break;
  case RUN: /* a: the stream; b: the graph */
    CALL(cuGraphLaunch, made.graphs[step->b], made.streams[step->a]);
    doing.launches++;
    doing.work_ns += made.graph_ns[step->b];
    break;
  case SYNC_STREAM:
    CALL(cuStreamSynchronize, made.streams[step->a]);
    break;
  case COPY: /* a: the stream; b: the direction; c: bytes */
    copy(step->b, step->c, made.streams[step->a]);
    break;
  case COPY_SYNC: /* a: the direction; b: bytes */
    copy_and_wait(step->a, step->b);
    break;
  case ALLOC: /* a: bytes */
    CALL(cuMemAlloc, &kept, step->a);
    break;
  case BEGIN: /* a: the mark, as for END */
    doing.marks[step->a].begun_ns = doing.due_ns ? doing.due_ns : now_ns();
    doing.due_ns = 0;
    break;
  case END:
    end_mark(&doing.marks[step->a]);
    break;
  case REPEAT:
  case AGAIN:
    break;
  }
}

/* Wait for the go. Forget what was counted so far. */
static void meet(void) {
  CALL(cuCtxSynchronize);
  doing.next_ns = doing.due_ns = doing.launches = doing.work_ns = 0;
  for (size_t i = 0; i < MARKS_MAX; i++)
    doing.marks[i].count = doing.marks[i].begun_ns = 0;
  doing.met = true;
  await_go(options.wait, options.seconds_ns, &options.start_ns, &options.stop_ns);
}

/* At the begin of the loop at `at`: return where to go on, there or at the loop's end. `rounds`: the rounds begun, by
 * the loop's index. *endless: the index of the endless loop once it has begun; SIZE_MAX before. Its first rounds warm
 * up, then the program waits for the go. At the stop time every loop leads to the end of the endless one. */
static size_t go_round(size_t at, uint64_t *rounds, size_t *endless) {
  const struct step *step = &trace.steps[at];
  if (!step->a && *endless == SIZE_MAX) {
    *endless = at;
    doing.warm_until_ns = now_ns() + options.warm_ns;
  }
  if (*endless != SIZE_MAX && !doing.met && now_ns() >= doing.warm_until_ns)
    meet();
  if (*endless != SIZE_MAX && doing.met && !goes_on(options.stop_ns))
    return (size_t)trace.steps[*endless].b;
  if (!step->a || rounds[at] < step->a) {
    rounds[at]++;
    return at;
  }
  rounds[at] = 0;
  return (size_t)step->b;
}

/* Do the steps of the trace. Without an endless loop nothing warms up: the go comes first. */
static void do_all(void) {
  uint64_t *rounds = allocate(trace.count, sizeof *rounds);
  size_t endless = SIZE_MAX;
  bool has_endless = false;
  for (size_t i = 0; i < trace.count; i++)
    has_endless = has_endless || (trace.steps[i].verb == REPEAT && !trace.steps[i].a);
  if (!has_endless)
    meet();
  for (size_t at = 0; at < trace.count; at++) {
    const struct step *step = &trace.steps[at];
    if (step->verb == REPEAT)
      at = go_round(at, rounds, &endless);
    else if (step->verb == AGAIN)
      at = (size_t)step->b - 1;
    else
      do_step(step);
  }
  free(rounds);
  CALL(cuCtxSynchronize);
}

/* ---- the result ---- */

static uint64_t nearest_rank(const struct series *series, size_t percent) {
  return series->count ? series->values_ns[(series->count * percent + 99) / 100 - 1] : 0;
}

/* Print the result with the rate and the percentiles of every mark. */
static void print_result(void) {
  uint64_t end_ns = now_ns();
  print_begin(options.start_ns, end_ns, doing.launches, doing.work_ns);
  printf(", \"marks\": {");
  for (size_t i = 0; i < trace.mark_count; i++) {
    const struct series *series = &doing.marks[i];
    if (series->count)
      qsort(series->values_ns, series->count, sizeof *series->values_ns, ascending);
    printf("%s\"%s\": {\"count\": %zu, \"per_s\": %.3f, \"p50_ns\": %" PRIu64 ", \"p99_ns\": %" PRIu64 "}",
           i ? ", " : "", trace.mark_names[i], series->count,
           (double)series->count * 1e9 / (double)(end_ns - options.start_ns), nearest_rank(series, 50),
           nearest_rank(series, 99));
  }
  puts("}}");
}

int main(int count, char **arguments) {
  const struct option known[] = {
      {"seconds", &options.seconds_ns, true},
      {"warm", &options.warm_ns, true},
      {"wait", &options.wait, false},
  };
  if (count < 2)
    die("usage: replay TRACE [option=value ...]");
  for (int i = 2; i < count; i++)
    if (parse_option(known, sizeof known / sizeof *known, arguments[i]))
      die("unknown option `%s`", arguments[i]);
  stop_on_signal();
  read_trace(arguments[1]);
  begin_program();
  prepare();
  do_all();
  print_result();
  return 0;
}
