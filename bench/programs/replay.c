/*
 * replay: does to the driver what a trace says a program did. The format is in traces/README.md.
 *
 *     replay TRACE [seconds=10s] [warm=300ms] [wait=1]
 *
 * It knows nothing of shares: the same binary runs bare, under the hook, on the simulated device, which goes by the
 * names of the kernels.
 *
 * What the host did between calls is done again: it spins where the program computed and sleeps where it slept. What
 * calls cost and how long they wait is the driver's and the device's to say anew.
 *
 * "ready" comes when every thread has been in its endless loop for `warm`: what a program does to begin is not
 * measured. A thread stops where a loop, of any depth, goes round; marks that are open then do not count. The last line
 * printed is one JSON object.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "buffers.h"
#include "start.h"

#define SPIN_NS 100000u /* what is left of an idle time that is shorter is not worth a timer's wake-up */

struct series {
  uint64_t begun_ns, *values_ns;
  size_t count, room;
};

struct thread {
  pthread_t id;
  const struct script *script;
  uint64_t due_ns; /* of an `every` that the next `begin` counts from; 0: none */
  uint64_t next_ns, warm_until_ns, launches, work_ns;
  bool met; /* it has had its go */
  struct series marks[MARKS_MAX];
};

static struct {
  uint64_t seconds_ns, warm_ns, wait;
  uint64_t start_ns, stop_ns;
} options = {.seconds_ns = 10000000000u, .warm_ns = 300000000};

/* What the trace declares, by its numbers there. */
static struct {
  uint64_t graph_ns[TABLE_MAX];
  void *functions[TABLE_MAX], *graphs[TABLE_MAX], *streams[STREAMS_MAX], *events[TABLE_MAX];
} made;
static struct thread threads[THREADS_MAX];

static void *context;
static pthread_barrier_t ready, begun;

static bool running(void) {
  return goes_on(options.stop_ns);
}

/* ---- making what it needs ---- */

static void launch_kernel(uint64_t kernel, void *stream) {
  launch_one(made.functions[kernel], stream, 1);
}

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
      launch_kernel(kernel, stream);
    made.graph_ns[index] += count * trace.kernel_ns[kernel];
  }
  made.graphs[index] = end_capture(stream);
}

/* A kernel per duration: those of one duration are one. */
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

static void make_events(const struct script *script) {
  for (size_t i = 0; i < script->count; i++) {
    const struct step *step = &script->steps[i];
    if ((step->verb == RECORD || step->verb == WAIT || step->verb == SYNC_EVENT) && !made.events[step->a])
      CALL(cuEventCreate, &made.events[step->a], EVENT_DISABLE_TIMING);
  }
}

static void prepare(void) {
  context = open_context(0);
  make_kernels();
  for (size_t i = 0; i < trace.stream_count; i++)
    if (!trace.stream_is_legacy[i])
      CALL(cuStreamCreate, &made.streams[i], trace.stream_flags[i]);
  for (size_t i = 0; i < trace.graph_count; i++)
    make_graph(i);
  for (size_t i = 0; i < trace.thread_count; i++)
    make_events(&trace.scripts[i]);
  if (trace.copy_bytes)
    make_scratch(trace.copy_bytes);
}

/* ---- doing ---- */

static void spin_until(uint64_t until_ns) {
  while (now_ns() < until_ns)
    ;
}

static void idle(uint64_t until_ns) {
  if (until_ns > now_ns() + SPIN_NS)
    sleep_until(until_ns);
  else
    spin_until(until_ns);
}

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

static void do_launches(struct thread *thread, const struct step *step) {
  for (uint64_t i = 0; i < step->c; i++) {
    if (step->d)
      spin_until(now_ns() + step->d);
    launch_kernel(step->b, made.streams[step->a]);
  }
  thread->launches += step->c;
  thread->work_ns += step->c * trace.kernel_ns[step->b];
}

static void do_step(struct thread *thread, const struct step *step) {
  switch (step->verb) {
  case CPU:
    spin_until(now_ns() + step->a);
    break;
  case IDLE:
    idle(now_ns() + step->a);
    break;
  case EVERY:
    if (!thread->next_ns)
      thread->next_ns = now_ns();
    thread->due_ns = thread->next_ns;
    thread->next_ns += step->a;
    sleep_until(thread->due_ns);
    break;
  case LAUNCH:
    do_launches(thread, step);
    break;
  case RUN:
    CALL(cuGraphLaunch, made.graphs[step->b], made.streams[step->a]);
    thread->launches++;
    thread->work_ns += made.graph_ns[step->b];
    break;
  case RECORD:
    CALL(cuEventRecord, made.events[step->a], made.streams[step->b]);
    break;
  case WAIT:
    CALL(cuStreamWaitEvent, made.streams[step->b], made.events[step->a], 0);
    break;
  case SYNC_STREAM:
    CALL(cuStreamSynchronize, made.streams[step->a]);
    break;
  case SYNC_EVENT:
    CALL(cuEventSynchronize, made.events[step->a]);
    break;
  case SYNC_CONTEXT:
    CALL(cuCtxSynchronize);
    break;
  case COPY:
    copy((enum direction)step->b, step->c, made.streams[step->a], false);
    break;
  case COPY_SYNC:
    copy((enum direction)step->a, step->b, NULL, true);
    break;
  case ALLOC:
    take(step->a, (enum memory)step->b, step->c, made.streams[0]);
    break;
  case FREE:
    give(step->a, made.streams[0]);
    break;
  case BEGIN:
    thread->marks[step->a].begun_ns = thread->due_ns ? thread->due_ns : now_ns();
    thread->due_ns = 0;
    break;
  case END:
    end_mark(&thread->marks[step->a]);
    break;
  case REPEAT:
  case AGAIN:
    break;
  }
}

/* Meet the other threads and wait for the go; what was counted so far is forgotten. */
static void meet(struct thread *thread) {
  pthread_barrier_wait(&ready);
  pthread_barrier_wait(&begun);
  thread->next_ns = thread->due_ns = thread->launches = thread->work_ns = 0;
  for (size_t i = 0; i < MARKS_MAX; i++)
    thread->marks[i].count = thread->marks[i].begun_ns = 0;
  thread->met = true;
  idle(options.start_ns);
}

/* Where the thread goes on from a loop's begin: into its body, or to its end. Outside, the endless loop is SIZE_MAX. */
static size_t go_round(struct thread *thread, size_t at, uint64_t *rounds, size_t *endless) {
  const struct step *step = &thread->script->steps[at];
  if (!step->a && *endless == SIZE_MAX) {
    *endless = at;
    thread->warm_until_ns = now_ns() + options.warm_ns;
  }
  if (*endless != SIZE_MAX && !thread->met && now_ns() >= thread->warm_until_ns) {
    CALL(cuCtxSynchronize);
    meet(thread);
  }
  if (*endless != SIZE_MAX && thread->met && !running())
    return (size_t)thread->script->steps[*endless].b;
  if (!step->a || rounds[at] < step->a) {
    rounds[at]++;
    return at;
  }
  rounds[at] = 0;
  return (size_t)step->b;
}

static void *run_thread(void *argument) {
  struct thread *thread = argument;
  uint64_t *rounds = allocate(thread->script->count, sizeof *rounds);
  size_t endless = SIZE_MAX;
  bool has_endless = false;
  CALL(cuCtxSetCurrent, context);
  for (size_t i = 0; i < thread->script->count; i++)
    has_endless = has_endless || (thread->script->steps[i].verb == REPEAT && !thread->script->steps[i].a);
  if (!has_endless)
    meet(thread);
  for (size_t at = 0; at < thread->script->count; at++) {
    const struct step *step = &thread->script->steps[at];
    if (step->verb == REPEAT)
      at = go_round(thread, at, rounds, &endless);
    else if (step->verb == AGAIN)
      at = (size_t)step->b - 1;
    else
      do_step(thread, step);
  }
  free(rounds);
  CALL(cuCtxSynchronize);
  return NULL;
}

/* ---- the result ---- */

static uint64_t nearest_rank(const uint64_t *values, size_t count, size_t percent) {
  return count ? values[(count * percent + 99) / 100 - 1] : 0;
}

/* All threads' values of a mark, in the order of the threads. */
static uint64_t *gather(size_t index, size_t *count) {
  *count = 0;
  for (size_t i = 0; i < trace.thread_count; i++)
    *count += threads[i].marks[index].count;
  uint64_t *values = allocate(*count, sizeof *values), *place = values;
  for (size_t i = 0; i < trace.thread_count; i++) {
    const struct series *series = &threads[i].marks[index];
    if (series->count)
      memcpy(place, series->values_ns, series->count * sizeof *values);
    place += series->count;
  }
  return values;
}

static void print_marks(uint64_t end_ns) {
  size_t count;
  if (trace.mark_count) {
    uint64_t *first = gather(0, &count);
    print_list("latencies_ns", first, count);
    free(first);
  }
  printf(", \"marks\": {");
  for (size_t i = 0; i < trace.mark_count; i++) {
    uint64_t *values = gather(i, &count);
    qsort(values, count, sizeof *values, ascending);
    printf("%s\"%s\": {\"count\": %zu, \"per_s\": %.3f, \"p50_ns\": %" PRIu64 ", \"p99_ns\": %" PRIu64 "}",
           i ? ", " : "", trace.mark_names[i], count, (double)count * 1e9 / (double)(end_ns - options.start_ns),
           nearest_rank(values, count, 50), nearest_rank(values, count, 99));
    free(values);
  }
  putchar('}');
}

static void print_result(void) {
  uint64_t launches = 0, work_ns = 0, end_ns = now_ns();
  for (size_t i = 0; i < trace.thread_count; i++) {
    launches += threads[i].launches;
    work_ns += threads[i].work_ns;
  }
  print_begin(options.start_ns, end_ns, launches, work_ns);
  printf(", \"peak_bytes\": %" PRIu64, (uint64_t)memory.peak);
  print_marks(end_ns);
  puts("}");
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
  pthread_barrier_init(&ready, NULL, (unsigned)trace.thread_count + 1);
  pthread_barrier_init(&begun, NULL, (unsigned)trace.thread_count + 1);
  for (size_t i = 0; i < trace.thread_count; i++) {
    threads[i].script = &trace.scripts[i];
    if (pthread_create(&threads[i].id, NULL, run_thread, &threads[i]))
      die("no thread");
  }
  pthread_barrier_wait(&ready);
  await_go(options.wait, options.seconds_ns, &options.start_ns, &options.stop_ns);
  pthread_barrier_wait(&begun);
  for (size_t i = 0; i < trace.thread_count; i++)
    pthread_join(threads[i].id, NULL);
  print_result();
  return 0;
}
