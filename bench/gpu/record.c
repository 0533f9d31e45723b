/*
 * record: a preload that writes down what a program asks of the driver, for a trace that can be replayed.
 *
 * Every call that matters to a replay goes through a wrapper: which, on which stream, when it began and returned by the
 * host's clock, and how much of the time since the thread's last call the thread computed; the rest it slept. What our
 * own part takes is in no gap, as the times are read inside of it. How long work ran on the device comes from a pair of
 * events around it, unless CUPTI says it (RECORD_EVENTS=0).
 *
 * Nothing waits for the device: pairs that are done are read when the program has waited itself, or when their ring is
 * full; work that finds no free pair is written down without a duration. Work in a capture is written down as such and
 * gets no pair.
 *
 * RECORD_OUTPUT names the file; it is written at exit, or any time by `record_write`. `record_mark(begin, word)` puts
 * a mark of the program's own into it. record.py makes a trace of it.
 *
 * Its parts: how it gets between program and driver (door.c), the pairs of events (record_pairs.c), the log
 * (record_log.c), and here a wrapper per function of record.def.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "door.h"
#include "record_log.h"
#include "record_pairs.h"

#define OWN_STREAM ((void *)2) /* CU_STREAM_PER_THREAD */

/* ---- the wrappers: as many per function as it has variants ---- */

enum function {
#define RECORDED(name, ...) F_##name,
#include "record.def"
#undef RECORDED
  FUNCTIONS
};
/* A function may be asked for in several variants, which are several addresses: each gets a wrapper of its own. */
#define VARIANTS 4u
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  void *real;
  bool own_stream;               /* its stream 0 is the calling thread's own */
} variants[FUNCTIONS][VARIANTS]; /* guarded by lock, but for the calling */

static void *own_or(bool own, void *stream) {
  return own && !stream ? OWN_STREAM : stream;
}

#define BARE(...) __VA_ARGS__
/* Of the function and variant whose wrapper this stands in. */
#define STREAM(stream) own_or(variants[function][form].own_stream, stream)
#define U(value)       ((uint64_t)(uintptr_t)(value))

static uint64_t grid_of(unsigned x, unsigned y, unsigned z) {
  return (uint64_t)x | (uint64_t)(y & 0xffffu) << 32 | (uint64_t)(z & 0xffffu) << 48;
}

/* CUlaunchConfig, as far as it is read. */
struct launch_config {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
};

/* A wrapper notes what it did when the driver took it. */
#define RECORDED(name, parameters, arguments, kind, ...) RECORDED_##kind(name, parameters, arguments, __VA_ARGS__)

#define RECORDED_CALL(name, parameters, arguments, ...) RECORDED_ONE(name, parameters, arguments, (void)0, __VA_ARGS__)
#define RECORDED_SYNC(name, parameters, arguments, ...)                                                                \
  RECORDED_ONE(name, parameters, arguments, harvest_after_wait(), __VA_ARGS__)

#define RECORDED_ONE(name, parameters, arguments, after, verb, a, b, c)                                                \
  static int name##_any(unsigned form, BARE parameters) {                                                              \
    enum { function = F_##name };                                                                                      \
    (void)form;                                                                                                        \
    struct call call = enter();                                                                                        \
    int result = ((int(*) parameters)variants[F_##name][form].real)arguments;                                          \
    uint32_t record = result ? NO_RECORD : note(&call, verb, a, b, c);                                                 \
    if (!call.nested)                                                                                                  \
      after;                                                                                                           \
    leave(&call, record);                                                                                              \
    return result;                                                                                                     \
  }

#define RECORDED_WORK(name, parameters, arguments, on, verb, b, c)                                                     \
  static int name##_any(unsigned form, BARE parameters) {                                                              \
    enum { function = F_##name };                                                                                      \
    (void)form;                                                                                                        \
    struct call call = enter();                                                                                        \
    void *queue = STREAM(on);                                                                                          \
    bool capturing = !call.nested && is_capturing(queue);                                                              \
    uint32_t pair = call.nested || capturing ? NO_PAIR : open_pair(queue);                                             \
    int result = ((int(*) parameters)variants[F_##name][form].real)arguments;                                          \
    uint32_t record = result ? NO_RECORD : note(&call, capturing ? CAPTURED : verb, U(queue), b, c);                   \
    close_pair(pair, queue, record);                                                                                   \
    leave(&call, record);                                                                                              \
    return result;                                                                                                     \
  }

#define RECORDED_NAME(name, parameters, arguments, handle, text)                                                       \
  static int name##_any(unsigned form, BARE parameters) {                                                              \
    enum { function = F_##name };                                                                                      \
    (void)form;                                                                                                        \
    int result = ((int(*) parameters)variants[F_##name][form].real)arguments;                                          \
    if (!result)                                                                                                       \
      note_name(U(handle), text);                                                                                      \
    return result;                                                                                                     \
  }
#include "record.def"
#undef RECORDED

#define RECORDED(name, parameters, arguments, ...)                                                                     \
  static int name##_0 parameters {                                                                                     \
    return name##_any(0, BARE arguments);                                                                              \
  }                                                                                                                    \
  static int name##_1 parameters {                                                                                     \
    return name##_any(1, BARE arguments);                                                                              \
  }                                                                                                                    \
  static int name##_2 parameters {                                                                                     \
    return name##_any(2, BARE arguments);                                                                              \
  }                                                                                                                    \
  static int name##_3 parameters {                                                                                     \
    return name##_any(3, BARE arguments);                                                                              \
  }
#include "record.def"
#undef RECORDED

static const struct {
  const char *name;
  void *wrappers[VARIANTS];
} table[] = {
#define RECORDED(name, ...) {#name, {(void *)name##_0, (void *)name##_1, (void *)name##_2, (void *)name##_3}},
#include "record.def"
#undef RECORDED
};

/* ---- what is handed out ---- */

static bool ends(const char *text, size_t length, const char *suffix) {
  size_t size = strlen(suffix);
  return length >= size && !strncmp(text + length - size, suffix, size);
}

/* The wrapper for one address of a function; the address itself when it has more variants than there is room for. */
static void *wrapper_of(size_t function, void *found, bool own_stream) {
  void *handed = found;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < VARIANTS && handed == found; i++)
    if (!variants[function][i].real || variants[function][i].real == found) {
      variants[function][i].real = found;
      variants[function][i].own_stream = own_stream;
      handed = table[function].wrappers[i];
    }
  pthread_mutex_unlock(&lock);
  return handed;
}

/* What the log says of the device it is from. */
static struct {
  int (*cuDriverGetVersion)(int *);
  int (*cuDeviceGetName)(char *, int, int);
} about;

/* The wrapper of a function by whatever variant's name it was asked for; what is not recorded goes out as it is. */
void *replaced(const char *name, void *found, uint64_t flags) {
  pairs_learn_driver();
  if (!about.cuDeviceGetName) {
    *(void **)&about.cuDriverGetVersion = door_find("cuDriverGetVersion");
    *(void **)&about.cuDeviceGetName = door_find("cuDeviceGetName");
  }
  size_t length = strlen(name);
  bool own = ends(name, length, "_ptsz") || ends(name, length, "_ptds");
  length -= own ? 5 : 0;
  length -= ends(name, length, "_v2") ? 3 : 0;
  for (size_t i = 0; log_is_open() && i < FUNCTIONS; i++)
    if (strlen(table[i].name) == length && !strncmp(table[i].name, name, length))
      return wrapper_of(i, found, own || flags & PER_THREAD);
  return found;
}

/* ---- the file ---- */

EXPORT void record_mark(int begin, const char *word);
EXPORT void record_mark(int begin, const char *word) {
  struct call call = enter();
  uint64_t handle = 0;
  for (const char *at = word; *at; at++) /* marks are told apart by a number made of their letters */
    handle = handle * 131 + (unsigned char)*at;
  note_name(handle, word);
  leave(&call, note(&call, begin ? BEGIN : END, handle, 0, 0));
}

static void write_header(FILE *file) {
  int version = 0;
  char name[128] = "";
  if (about.cuDriverGetVersion)
    about.cuDriverGetVersion(&version);
  if (about.cuDeviceGetName && about.cuDeviceGetName(name, sizeof name, 0))
    *name = 0;
  fprintf(file, "{\"record\": 1, \"device\": \"%s\", \"cuda\": %d, \"lost\": %" PRIu64 "}\n", name, version,
          log_lost());
}

EXPORT int record_write(const char *path);
EXPORT int record_write(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file)
    return -1;
  log_suspend(true);
  harvest_after_wait();
  write_header(file);
  log_print(file);
  log_suspend(false);
  return fclose(file);
}

__attribute__((constructor)) static void begin(void) {
  const char *events = getenv("RECORD_EVENTS");
  if (!getenv("RECORD_OUTPUT"))
    return;
  if (events && strcmp(events, "0") == 0)
    pairs_switch_off();
  log_open();
}

__attribute__((destructor)) static void write_at_exit(void) {
  const char *path = getenv("RECORD_OUTPUT");
  if (path && !log_is_empty())
    record_write(path);
}
