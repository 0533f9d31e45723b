/*
 * replay: does to the driver what a trace says a program did. The format is in traces/README.md.
 *
 *     replay TRACE [seconds=10s] [warm=300ms] [rate=N] [wait=1]
 *
 * It knows nothing of shares: the same binary runs bare, under the hook, on the simulated device, which goes by the
 * names of the kernels, and on a real one, which runs `rate` loop iterations per microsecond (load.c, `calibrate`).
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
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "client.h"

#define STREAM_BLOCKING 0u
#define ATTACH_GLOBAL   1u
#define THREADS_MAX     16u
#define STREAMS_MAX     64u
#define TABLE_MAX       4096u /* kernels, graphs, events, buffers */
#define MARKS_MAX       8u
#define LOOPS_MAX       8u
#define LINE_MAX        65536u
#define COPY_MAX        ((size_t)256 << 20)
#define SPIN_NS         100000u /* what is left of an idle time that is shorter is not worth a timer's wake-up */

enum verb {
  CPU,
  IDLE,
  EVERY,
  LAUNCH,
  RUN,
  RECORD,
  WAIT,
  SYNC_STREAM,
  SYNC_EVENT,
  SYNC_CONTEXT,
  COPY,
  COPY_SYNC,
  ALLOC,
  FREE,
  BEGIN,
  END,
  REPEAT,
  AGAIN
};
enum direction { HTOD, DTOH, DTOD, SET };
enum memory { LINEAR, MANAGED, PITCHED, ASYNC, HOST };

static const char *const directions[] = {"htod", "dtoh", "dtod", "set", NULL};
static const char *const memories[] = {"linear", "managed", "pitched", "async", "host", NULL};

/* Every number of a line in its order; of a loop: how often, and the place of its other end. */
struct step {
  enum verb verb;
  uint64_t a, b, c, d;
};

struct series {
  uint64_t begun_ns, *values_ns;
  size_t count, room;
};

struct thread {
  pthread_t id;
  struct step *steps;
  size_t count, room;
  uint64_t due_ns; /* of an `every` that the next `begin` counts from; 0: none */
  uint64_t next_ns, warm_until_ns, launches, work_ns;
  bool met; /* it has had its go */
  struct series marks[MARKS_MAX];
};

static struct {
  uint64_t seconds_ns, warm_ns, rate, wait;
  uint64_t start_ns, stop_ns;
} options = {.seconds_ns = 10000000000u, .warm_ns = 300000000, .rate = 1};

static struct {
  uint64_t kernel_ns[TABLE_MAX], graph_ns[TABLE_MAX];
  char *graph_nodes[TABLE_MAX];
  void *functions[TABLE_MAX], *graphs[TABLE_MAX], *streams[STREAMS_MAX], *events[TABLE_MAX];
  unsigned stream_flags[STREAMS_MAX];
  bool stream_is_legacy[STREAMS_MAX];
  size_t kernels, graph_count, stream_count, thread_count, mark_count;
  char mark_names[MARKS_MAX][32];
  struct thread threads[THREADS_MAX];
} trace;

static struct {
  device_pointer pointers[TABLE_MAX];
  size_t bytes[TABLE_MAX];
  enum memory kinds[TABLE_MAX];
  _Atomic uint64_t now, peak;
} memory;

/* What copies move: of no meaning, as large as the largest of them. */
static struct {
  void *host;
  device_pointer device, other;
  size_t bytes;
} scratch;

static void *context;
static pthread_barrier_t ready, begun;
static volatile sig_atomic_t stopped;

static bool running(void) {
  return !stopped && now_ns() < options.stop_ns;
}

/* ---- reading ---- */

static void wrong(size_t line, const char *what) {
  die("line %zu: %s", line, what);
}

static uint64_t number(size_t line, const char *text, uint64_t bound) {
  if (!text)
    wrong(line, "a number is missing");
  uint64_t value = parse_number(text);
  if (value >= bound)
    wrong(line, "a number is larger than any that is declared, or than what this holds");
  return value;
}

static uint64_t choice(size_t line, const char *text, const char *const *names) {
  for (uint64_t i = 0; text && names[i]; i++)
    if (!strcmp(text, names[i]))
      return i;
  wrong(line, "a word is none of those that may stand there");
  return 0;
}

static uint64_t mark(size_t line, const char *name) {
  for (uint64_t i = 0; i < trace.mark_count; i++)
    if (name && !strcmp(trace.mark_names[i], name))
      return i;
  if (!name || trace.mark_count == MARKS_MAX || strlen(name) >= sizeof *trace.mark_names)
    wrong(line, "a mark has no name, a long one, or there are too many");
  strcpy(trace.mark_names[trace.mark_count], name);
  return trace.mark_count++;
}

static char *word(void) {
  return strtok(NULL, " \n");
}

static void declare(size_t line, const char *kind) {
  uint64_t at = number(line, word(), TABLE_MAX);
  if (!strcmp(kind, "kernel") && at == trace.kernels) {
    trace.kernel_ns[trace.kernels++] = number(line, word(), UINT64_MAX);
  } else if (!strcmp(kind, "stream") && at == trace.stream_count && at < STREAMS_MAX) {
    const char *type = word();
    trace.stream_is_legacy[at] = type && !strcmp(type, "legacy");
    trace.stream_flags[at] = type && !strcmp(type, "nonblocking") ? STREAM_NON_BLOCKING : STREAM_BLOCKING;
    trace.stream_count++;
  } else if (!strcmp(kind, "graph") && at == trace.graph_count) {
    char *nodes = strtok(NULL, "\n");
    trace.graph_nodes[trace.graph_count++] = nodes ? strdup(nodes) : NULL;
  } else {
    wrong(line, "a declaration is out of order");
  }
}

/* Letters say what each argument is: s stream, k kernel, g graph, e event or buffer, n number, d direction,
 * m memory, w mark; small things first. */
static const struct {
  const char *name, *form;
} verbs[] = {
    [CPU] = {"cpu", "n"},
    [IDLE] = {"idle", "n"},
    [EVERY] = {"every", "n"},
    [LAUNCH] = {"launch", "sknn"},
    [RUN] = {"run", "sg"},
    [RECORD] = {"record", "es"},
    [WAIT] = {"wait", "es"},
    [SYNC_STREAM] = {"sync-stream", "s"},
    [SYNC_EVENT] = {"sync-event", "e"},
    [SYNC_CONTEXT] = {"sync-context", ""},
    [COPY] = {"copy", "sdn"},
    [COPY_SYNC] = {"copy-sync", "dn"},
    [ALLOC] = {"alloc", "emn"},
    [FREE] = {"free", "e"},
    [BEGIN] = {"begin", "w"},
    [END] = {"end", "w"},
    [REPEAT] = {"repeat", "n"},
    [AGAIN] = {"again", ""},
};

static uint64_t argument(size_t line, char form, const char *text) {
  switch (form) {
  case 's':
    return number(line, text, trace.stream_count);
  case 'k':
    return number(line, text, trace.kernels);
  case 'g':
    return number(line, text, trace.graph_count);
  case 'e':
    return number(line, text, TABLE_MAX);
  case 'd':
    return choice(line, text, directions);
  case 'm':
    return choice(line, text, memories);
  case 'w':
    return mark(line, text);
  default:
    return number(line, text, UINT64_MAX);
  }
}

static void read_step(size_t line, struct thread *thread, const char *name) {
  struct step step = {0};
  size_t verb = 0, count = sizeof verbs / sizeof *verbs;
  while (verb < count && strcmp(verbs[verb].name, name))
    verb++;
  if (verb == count)
    wrong(line, "it is nothing that a thread does");
  step.verb = (enum verb)verb;
  uint64_t *places[] = {&step.a, &step.b, &step.c, &step.d};
  for (size_t i = 0; verbs[verb].form[i]; i++) {
    const char *text = word();
    if (!text && verb == LAUNCH && i == 2) { /* one, at once */
      step.c = 1;
      break;
    }
    *places[i] = argument(line, verbs[verb].form[i], text);
  }
  if (verb == COPY)
    scratch.bytes = step.c > scratch.bytes ? step.c : scratch.bytes;
  if (verb == COPY_SYNC)
    scratch.bytes = step.b > scratch.bytes ? step.b : scratch.bytes;
  if (thread->count == thread->room) {
    thread->room = thread->room ? 2 * thread->room : 256;
    thread->steps = realloc(thread->steps, thread->room * sizeof *thread->steps);
    if (!thread->steps)
      die("no memory for %zu steps", thread->room);
  }
  thread->steps[thread->count++] = step;
}

/* Each end of a loop learns where the other one is. */
static void join_loops(struct thread *thread) {
  size_t open[LOOPS_MAX], depth = 0;
  for (size_t i = 0; i < thread->count; i++) {
    if (thread->steps[i].verb == REPEAT) {
      if (depth == LOOPS_MAX)
        die("loops are more than %u deep", LOOPS_MAX);
      open[depth++] = i;
    } else if (thread->steps[i].verb == AGAIN) {
      if (!depth--)
        die("a loop ends that did not begin");
      thread->steps[i].b = open[depth];
      thread->steps[open[depth]].b = i;
    }
  }
  if (depth)
    die("a loop is not closed");
}

static void read_trace(const char *path) {
  static char text[LINE_MAX];
  struct thread *thread = NULL;
  FILE *file = fopen(path, "r");
  if (!file)
    die("%s cannot be read", path);
  if (!fgets(text, sizeof text, file) || !strstr(text, "\"sharepod_trace\": 1,"))
    die("%s is no trace of version 1", path);
  for (size_t line = 2; fgets(text, sizeof text, file); line++) {
    char *name = strtok(text, " \n");
    if (!name || *name == '#')
      continue;
    if (!strcmp(name, "thread")) {
      if (number(line, word(), THREADS_MAX) != trace.thread_count)
        wrong(line, "a thread is out of order");
      thread = &trace.threads[trace.thread_count++];
    } else if (thread) {
      read_step(line, thread, name);
    } else {
      declare(line, name);
    }
  }
  fclose(file);
  for (size_t i = 0; i < trace.thread_count; i++)
    join_loops(&trace.threads[i]);
  if (!thread || !trace.kernels || scratch.bytes > COPY_MAX)
    die("%s has no thread, no kernel, or a copy of more than %zu bytes", path, COPY_MAX);
}

/* ---- making what it needs ---- */

static void launch_kernel(uint64_t kernel, void *stream) {
  launch_one(trace.functions[kernel], stream, trace.kernel_ns[kernel] * options.rate / 1000);
}

static void make_graph(size_t index) {
  void *stream, *graph;
  CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  CALL(cuStreamBeginCapture, stream, CAPTURE_RELAXED);
  for (char *part = strtok(trace.graph_nodes[index], " "); part; part = strtok(NULL, " ")) {
    char *times = strchr(part, '*');
    if (times)
      *times++ = 0;
    uint64_t kernel = parse_number(part), count = times ? parse_number(times) : 1;
    if (kernel >= trace.kernels)
      die("graph %zu has a kernel that is not declared", index);
    for (uint64_t i = 0; i < count; i++)
      launch_kernel(kernel, stream);
    trace.graph_ns[index] += count * trace.kernel_ns[kernel];
  }
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuGraphInstantiateWithFlags, &trace.graphs[index], graph, 0);
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
    trace.functions[i] = find_kernel(module, trace.kernel_ns[i]);
}

static void make_events(const struct thread *thread) {
  for (size_t i = 0; i < thread->count; i++) {
    const struct step *step = &thread->steps[i];
    if ((step->verb == RECORD || step->verb == WAIT || step->verb == SYNC_EVENT) && !trace.events[step->a])
      CALL(cuEventCreate, &trace.events[step->a], EVENT_DISABLE_TIMING);
  }
}

static void prepare(void) {
  CALL(cuInit, 0);
  context = open_context(0);
  make_kernels();
  for (size_t i = 0; i < trace.stream_count; i++)
    if (!trace.stream_is_legacy[i])
      CALL(cuStreamCreate, &trace.streams[i], trace.stream_flags[i]);
  for (size_t i = 0; i < trace.graph_count; i++)
    make_graph(i);
  for (size_t i = 0; i < trace.thread_count; i++)
    make_events(&trace.threads[i]);
  if (scratch.bytes) {
    CALL(cuMemHostAlloc, &scratch.host, scratch.bytes, HOST_PORTABLE_MAPPED);
    CALL(cuMemAlloc, &scratch.device, scratch.bytes);
    CALL(cuMemAlloc, &scratch.other, scratch.bytes);
  }
}

/* ---- doing ---- */

static void spin_until(uint64_t until_ns) {
  while (now_ns() < until_ns)
    ;
}

static void account(enum memory kind, size_t bytes) {
  if (kind == HOST)
    return;
  uint64_t now = atomic_fetch_add(&memory.now, bytes) + bytes, peak = atomic_load(&memory.peak);
  while (now > peak && !atomic_compare_exchange_weak(&memory.peak, &peak, now))
    ;
}

static void take(uint64_t buffer, enum memory kind, size_t bytes) {
  size_t pitch;
  if (memory.bytes[buffer])
    die("buffer %" PRIu64 " is allocated twice", buffer);
  switch (kind) {
  case LINEAR:
    CALL(cuMemAlloc, &memory.pointers[buffer], bytes);
    break;
  case MANAGED:
    CALL(cuMemAllocManaged, &memory.pointers[buffer], bytes, ATTACH_GLOBAL);
    break;
  case PITCHED:
    CALL(cuMemAllocPitch, &memory.pointers[buffer], &pitch, bytes, 1, 4);
    break;
  case ASYNC:
    CALL(cuMemAllocAsync, &memory.pointers[buffer], bytes, trace.streams[0]);
    break;
  case HOST:
    CALL(cuMemHostAlloc, (void **)&memory.pointers[buffer], bytes, HOST_PORTABLE_MAPPED);
    break;
  }
  memory.bytes[buffer] = bytes;
  memory.kinds[buffer] = kind;
  account(kind, bytes);
}

static void give(uint64_t buffer) {
  if (!memory.bytes[buffer])
    die("buffer %" PRIu64 " is freed and was not allocated", buffer);
  if (memory.kinds[buffer] == ASYNC)
    CALL(cuMemFreeAsync, memory.pointers[buffer], trace.streams[0]);
  else if (memory.kinds[buffer] == HOST)
    CALL(cuMemFreeHost, (void *)(uintptr_t)memory.pointers[buffer]);
  else
    CALL(cuMemFree, memory.pointers[buffer]);
  if (memory.kinds[buffer] != HOST)
    atomic_fetch_sub(&memory.now, memory.bytes[buffer]);
  memory.bytes[buffer] = 0;
}

static void copy(enum direction direction, size_t bytes, void *stream, bool blocking) {
  if (!bytes)
    return;
  if (direction == HTOD && blocking)
    CALL(cuMemcpyHtoD, scratch.device, scratch.host, bytes);
  else if (direction == HTOD)
    CALL(cuMemcpyHtoDAsync, scratch.device, scratch.host, bytes, stream);
  else if (direction == DTOH && blocking)
    CALL(cuMemcpyDtoH, scratch.host, scratch.device, bytes);
  else if (direction == DTOH)
    CALL(cuMemcpyDtoHAsync, scratch.host, scratch.device, bytes, stream);
  else if (direction == DTOD)
    CALL(cuMemcpyDtoDAsync, scratch.other, scratch.device, bytes, stream);
  else
    CALL(cuMemsetD8Async, scratch.device, 0, bytes, stream);
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
    launch_kernel(step->b, trace.streams[step->a]);
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
    CALL(cuGraphLaunch, trace.graphs[step->b], trace.streams[step->a]);
    thread->launches++;
    thread->work_ns += trace.graph_ns[step->b];
    break;
  case RECORD:
    CALL(cuEventRecord, trace.events[step->a], trace.streams[step->b]);
    break;
  case WAIT:
    CALL(cuStreamWaitEvent, trace.streams[step->b], trace.events[step->a], 0);
    break;
  case SYNC_STREAM:
    CALL(cuStreamSynchronize, trace.streams[step->a]);
    break;
  case SYNC_EVENT:
    CALL(cuEventSynchronize, trace.events[step->a]);
    break;
  case SYNC_CONTEXT:
    CALL(cuCtxSynchronize);
    break;
  case COPY:
    copy((enum direction)step->b, step->c, trace.streams[step->a], false);
    break;
  case COPY_SYNC:
    copy((enum direction)step->a, step->b, NULL, true);
    break;
  case ALLOC:
    take(step->a, (enum memory)step->b, step->c);
    break;
  case FREE:
    give(step->a);
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
  const struct step *step = &thread->steps[at];
  if (!step->a && *endless == SIZE_MAX) {
    *endless = at;
    thread->warm_until_ns = now_ns() + options.warm_ns;
  }
  if (*endless != SIZE_MAX && !thread->met && now_ns() >= thread->warm_until_ns) {
    CALL(cuCtxSynchronize);
    meet(thread);
  }
  if (*endless != SIZE_MAX && thread->met && !running())
    return (size_t)thread->steps[*endless].b;
  if (!step->a || rounds[at] < step->a) {
    rounds[at]++;
    return at;
  }
  rounds[at] = 0;
  return (size_t)step->b;
}

static void *run_thread(void *argument) {
  struct thread *thread = argument;
  uint64_t *rounds = allocate(thread->count, sizeof *rounds);
  size_t endless = SIZE_MAX;
  bool has_endless = false;
  CALL(cuCtxSetCurrent, context);
  for (size_t i = 0; i < thread->count; i++)
    has_endless = has_endless || (thread->steps[i].verb == REPEAT && !thread->steps[i].a);
  if (!has_endless)
    meet(thread);
  for (size_t at = 0; at < thread->count; at++) {
    const struct step *step = &thread->steps[at];
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

static int ascending(const void *left, const void *right) {
  uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return a < b ? -1 : a > b;
}

static uint64_t nearest_rank(const uint64_t *values, size_t count, size_t percent) {
  return count ? values[(count * percent + 99) / 100 - 1] : 0;
}

/* All threads' values of a mark, in the order of the threads. */
static uint64_t *gather(size_t index, size_t *count) {
  *count = 0;
  for (size_t i = 0; i < trace.thread_count; i++)
    *count += trace.threads[i].marks[index].count;
  uint64_t *values = allocate(*count, sizeof *values), *place = values;
  for (size_t i = 0; i < trace.thread_count; i++) {
    const struct series *series = &trace.threads[i].marks[index];
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

static void print_result(const char *path) {
  uint64_t launches = 0, work_ns = 0, end_ns = now_ns();
  for (size_t i = 0; i < trace.thread_count; i++) {
    launches += trace.threads[i].launches;
    work_ns += trace.threads[i].work_ns;
  }
  printf("{\"trace\": \"%s\", \"pid\": %d, \"start_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 ", \"launches\": %" PRIu64
         ", \"work_ns\": %" PRIu64 ", \"peak_bytes\": %" PRIu64,
         strrchr(path, '/') ? strrchr(path, '/') + 1 : path, getpid(), options.start_ns, end_ns, launches, work_ns,
         (uint64_t)memory.peak);
  print_marks(end_ns);
  puts("}");
}

static void await_start(void) {
  options.start_ns = now_ns();
  options.stop_ns = options.start_ns + options.seconds_ns;
  if (!options.wait)
    return;
  puts("ready");
  fflush(stdout);
  if (scanf("%" SCNu64 " %" SCNu64, &options.start_ns, &options.stop_ns) != 2)
    die("no start and stop time on stdin");
}

static void on_signal(int signal_number) {
  (void)signal_number;
  stopped = 1;
}

int main(int count, char **arguments) {
  const struct option known[] = {
      {"seconds", &options.seconds_ns, true},
      {"warm", &options.warm_ns, true},
      {"rate", &options.rate, false},
      {"wait", &options.wait, false},
  };
  if (count < 2)
    die("usage: replay TRACE [option=value ...]");
  for (int i = 2; i < count; i++)
    if (parse_option(known, sizeof known / sizeof *known, arguments[i]))
      die("unknown option `%s`", arguments[i]);
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigaction(SIGTERM, &action, NULL);
  prctl(PR_SET_TIMERSLACK, 1);
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a bench that dies leaves no load behind */
  read_trace(arguments[1]);
  load_driver();
  prepare();
  pthread_barrier_init(&ready, NULL, (unsigned)trace.thread_count + 1);
  pthread_barrier_init(&begun, NULL, (unsigned)trace.thread_count + 1);
  for (size_t i = 0; i < trace.thread_count; i++)
    if (pthread_create(&trace.threads[i].id, NULL, run_thread, &trace.threads[i]))
      die("no thread");
  pthread_barrier_wait(&ready);
  await_start();
  pthread_barrier_wait(&begun);
  for (size_t i = 0; i < trace.thread_count; i++)
    pthread_join(trace.threads[i].id, NULL);
  print_result(arguments[1]);
  return 0;
}
