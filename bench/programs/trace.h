/*
 * trace: reads from a file what a program did. traces/README.md has the format.
 *
 * A malformed trace ends the program with the line and what is wrong there. Nothing here calls the driver: replay.c
 * makes what is declared, and does the steps.
 */
#ifndef SHAREPOD_BENCH_TRACE_H
#define SHAREPOD_BENCH_TRACE_H

#include "client.h"

#define STREAM_BLOCKING 0u
#define STREAMS_MAX     64u
#define TABLE_MAX       4096u /* kernels, graphs */
#define MARKS_MAX       8u
#define LOOPS_MAX       8u
#define LINE_MAX        65536u
#define COPY_MAX        ((size_t)256 << 20)

enum verb { CPU, EVERY, LAUNCH, RUN, SYNC_STREAM, COPY, COPY_SYNC, ALLOC, BEGIN, END, REPEAT, AGAIN };
enum direction { HTOD, DTOH };
enum stream_type { LEGACY, BLOCKING, NON_BLOCKING };

static const char *const directions[] = {"htod", "dtoh", NULL};
static const char *const stream_types[] = {"legacy", "blocking", "nonblocking", NULL};

/* A line: its arguments as numbers, in the order that `verbs` tells. A loop has its count (0: endless) in `a`, and both
 * its ends have the index of the other one in `b`. */
struct step {
  enum verb verb;
  uint64_t a, b, c, d;
};

static struct {
  uint64_t kernel_ns[TABLE_MAX];
  char *graph_nodes[TABLE_MAX];
  enum stream_type streams[STREAMS_MAX];
  size_t kernels, graph_count, stream_count, mark_count;
  size_t copy_bytes; /* of the largest copy */
  char mark_names[MARKS_MAX][32];
  struct step *steps; /* what the program does */
  size_t count, room;
} trace;

static void wrong(size_t line, const char *what) {
  die("line %zu: %s", line, what);
}

/* The number in the text; it must be below `bound`. */
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

/* The number of the mark with this name, which is added if it is new. */
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

/* Read a declaration: of a kernel, a stream or a graph. Those of a kind have the numbers 0, 1, ... in order. */
static void declare(size_t line, const char *kind) {
  uint64_t at = number(line, word(), TABLE_MAX);
  if (!strcmp(kind, "kernel") && at == trace.kernels) {
    trace.kernel_ns[trace.kernels++] = number(line, word(), UINT64_MAX);
  } else if (!strcmp(kind, "stream") && at == trace.stream_count && at < STREAMS_MAX) {
    trace.streams[trace.stream_count++] = (enum stream_type)choice(line, word(), stream_types);
  } else if (!strcmp(kind, "graph") && at == trace.graph_count) {
    char *nodes = strtok(NULL, "\n");
    trace.graph_nodes[trace.graph_count++] = nodes ? strdup(nodes) : NULL;
  } else {
    wrong(line, "a declaration is out of order");
  }
}

/* The letters tell the kind of each argument: s stream, k kernel, g graph, n number, d direction, w mark. */
static const struct {
  const char *name, *form;
} verbs[] = {
    [CPU] = {"cpu", "n"},
    [EVERY] = {"every", "n"},
    [LAUNCH] = {"launch", "sknn"},
    [RUN] = {"run", "sg"},
    [SYNC_STREAM] = {"sync-stream", "s"},
    [COPY] = {"copy", "sdn"},
    [COPY_SYNC] = {"copy-sync", "dn"},
    [ALLOC] = {"alloc", "n"},
    [BEGIN] = {"begin", "w"},
    [END] = {"end", "w"},
    [REPEAT] = {"repeat", "n"},
    [AGAIN] = {"again", ""},
};

/* An argument of the kind that the letter tells, as a number. */
static uint64_t argument(size_t line, char form, const char *text) {
  switch (form) {
  case 's':
    return number(line, text, trace.stream_count);
  case 'k':
    return number(line, text, trace.kernels);
  case 'g':
    return number(line, text, trace.graph_count);
  case 'd':
    return choice(line, text, directions);
  case 'w':
    return mark(line, text);
  default:
    return number(line, text, UINT64_MAX);
  }
}

/* Read a line of what the program does, and append it to the steps. */
static void read_step(size_t line, const char *name) {
  struct step step = {0};
  size_t verb = 0, count = sizeof verbs / sizeof *verbs;
  while (verb < count && strcmp(verbs[verb].name, name))
    verb++;
  if (verb == count)
    wrong(line, "it is nothing that a program does");
  step.verb = (enum verb)verb;
  uint64_t *places[] = {&step.a, &step.b, &step.c, &step.d};
  for (size_t i = 0; verbs[verb].form[i]; i++) {
    const char *text = word();
    if (!text && verb == LAUNCH && i == 2) { /* one launch, at once */
      step.c = 1;
      break;
    }
    *places[i] = argument(line, verbs[verb].form[i], text);
  }
  if (verb == COPY)
    trace.copy_bytes = step.c > trace.copy_bytes ? step.c : trace.copy_bytes;
  if (verb == COPY_SYNC)
    trace.copy_bytes = step.b > trace.copy_bytes ? step.b : trace.copy_bytes;
  if (trace.count == trace.room) {
    trace.room = trace.room ? 2 * trace.room : 256;
    trace.steps = realloc(trace.steps, trace.room * sizeof *trace.steps);
    if (!trace.steps)
      die("no memory for %zu steps", trace.room);
  }
  trace.steps[trace.count++] = step;
}

/* Let each end of a loop know the index of the other. */
static void join_loops(void) {
  size_t open[LOOPS_MAX], depth = 0;
  for (size_t i = 0; i < trace.count; i++) {
    if (trace.steps[i].verb == REPEAT) {
      if (depth == LOOPS_MAX)
        die("loops are more than %u deep", LOOPS_MAX);
      open[depth++] = i;
    } else if (trace.steps[i].verb == AGAIN) {
      if (!depth--)
        die("a loop ends that did not begin");
      trace.steps[i].b = open[depth];
      trace.steps[open[depth]].b = i;
    }
  }
  if (depth)
    die("a loop is not closed");
}

/* Read a whole trace: the header, the declarations, and from the line `thread` on the steps. */
static void read_trace(const char *path) {
  static char text[LINE_MAX];
  bool declared = false;
  FILE *file = fopen(path, "r");
  if (!file)
    die("%s cannot be read", path);
  if (!fgets(text, sizeof text, file) || !strstr(text, "\"sharepod_trace\": 1,"))
    die("%s is no trace of version 1", path);
  for (size_t line = 2; fgets(text, sizeof text, file); line++) {
    char *name = strtok(text, " \n");
    if (!name || *name == '#')
      continue;
    if (!strcmp(name, "thread") && !declared) {
      declared = true;
    } else if (declared) {
      read_step(line, name);
    } else {
      declare(line, name);
    }
  }
  fclose(file);
  join_loops();
  if (!declared || !trace.kernels || trace.copy_bytes > COPY_MAX)
    die("%s has no thread, no kernel, or a copy of more than %zu bytes", path, COPY_MAX);
}

#endif
