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
 * The door is the hook's own (hook/resolve.c), as in census.c.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "resolve.h"

#define EXPORT        __attribute__((visibility("default")))
#define HIDDEN        __attribute__((visibility("hidden")))
#define RECORDS_MAX   2000000u
#define PAIRS         1024u
#define NAMES_MAX     16384u
#define PER_THREAD    2u          /* the flag of cuGetProcAddress for the per-thread default stream */
#define OWN_STREAM    ((void *)2) /* CU_STREAM_PER_THREAD */
#define MODE_RELAXED  2
#define NO_DURATION   UINT64_MAX
#define NO_PAIR       UINT32_MAX
#define EVENT_DEFAULT 0u

/* ---- what is written down ---- */

static const char *const verbs[] = {
    "launch",  "captured", "run",   "capture", "captured-as", "instantiate", "record",    "wait",      "stream",
    "event",   "context",  "htod",  "dtoh",    "dtod",        "set",         "htod-sync", "dtoh-sync", "linear",
    "managed", "pitched",  "async", "host",    "free",        "begin",       "end"};
enum verb {
  LAUNCH,
  CAPTURED,
  RUN,
  CAPTURE,
  CAPTURED_AS,
  INSTANTIATE,
  RECORD,
  WAIT,
  SYNC_STREAM,
  SYNC_EVENT,
  SYNC_CONTEXT,
  HTOD,
  DTOH,
  DTOD,
  SET,
  HTOD_SYNC,
  DTOH_SYNC,
  LINEAR,
  MANAGED,
  PITCHED,
  ASYNC,
  HOST,
  FREE,
  BEGIN,
  END
};

struct record {
  uint64_t begin_ns, end_ns, cpu_ns; /* cpu: of the thread, since its last call */
  uint64_t duration_ns, a, b, c;
  uint32_t thread, verb;
};

static struct record *records;
static _Atomic uint32_t used, threads;
static _Atomic uint64_t lost;
static bool with_events = true;

/* What handles are called; streams have their flags as names. guarded by lock */
static struct {
  uint64_t handle;
  char text[256];
} *names;
static uint32_t name_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static __thread struct {
  uint32_t id; /* 0: not numbered yet */
  uint64_t cpu_ns;
  bool inside;
} self;

static uint64_t read_clock(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void remember(uint64_t handle, const char *text) {
  pthread_mutex_lock(&lock);
  if (!names)
    names = calloc(NAMES_MAX, sizeof *names);
  uint32_t at = 0;
  while (names && at < name_count && names[at].handle != handle)
    at++;
  if (names && at < NAMES_MAX) {
    names[at].handle = handle;
    snprintf(names[at].text, sizeof names->text, "%s", text);
    name_count = at == name_count ? at + 1 : name_count;
  }
  pthread_mutex_unlock(&lock);
}

/* ---- the driver's functions that we call ourselves ---- */

static struct {
  int (*cuEventCreate)(void **, unsigned);
  int (*cuEventRecord)(void *, void *);
  int (*cuEventQuery)(void *);
  int (*cuEventElapsedTime)(float *, void *, void *);
  int (*cuStreamIsCapturing)(void *, int *);
  int (*cuThreadExchangeStreamCaptureMode)(int *);
  int (*cuCtxGetCurrent)(void **);
  int (*cuDriverGetVersion)(int *);
  int (*cuDeviceGetName)(char *, int, int);
  bool complete;
} driver;

static void learn_driver(void *handle) {
#define OWN(name) *(void **)&driver.name = sp_chain_dlsym(handle, #name)
  OWN(cuEventCreate);
  OWN(cuEventRecord);
  OWN(cuEventQuery);
  OWN(cuEventElapsedTime);
  OWN(cuStreamIsCapturing);
  OWN(cuThreadExchangeStreamCaptureMode);
  OWN(cuCtxGetCurrent);
  OWN(cuDriverGetVersion);
  OWN(cuDeviceGetName);
  driver.complete = driver.cuEventCreate && driver.cuEventRecord && driver.cuEventQuery && driver.cuEventElapsedTime &&
                    driver.cuStreamIsCapturing && driver.cuThreadExchangeStreamCaptureMode && driver.cuCtxGetCurrent;
}

/* ---- pairs of events ---- */

/* A ring in the order of the launches; all of one context, the first that launched. guarded by ring.lock */
static struct {
  pthread_mutex_t lock;
  void *begins[PAIRS], *ends[PAIRS], *context;
  uint32_t of[PAIRS]; /* the record that each is for */
  bool whole[PAIRS];  /* its end has been recorded */
  uint64_t head, tail;
} ring = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Read what is done, oldest first. Under ring.lock, in relaxed mode. */
static void harvest(void) {
  for (; ring.head < ring.tail; ring.head++) {
    uint32_t at = (uint32_t)(ring.head % PAIRS);
    float ms;
    if (!ring.whole[at] || driver.cuEventQuery(ring.ends[at]))
      return;
    if (ring.of[at] != NO_PAIR && !driver.cuEventElapsedTime(&ms, ring.begins[at], ring.ends[at]))
      records[ring.of[at]].duration_ns = (uint64_t)((double)ms * 1e6);
  }
}

static bool make_pair(uint32_t at) {
  return (ring.begins[at] || !driver.cuEventCreate(&ring.begins[at], EVENT_DEFAULT)) &&
         (ring.ends[at] || !driver.cuEventCreate(&ring.ends[at], EVENT_DEFAULT));
}

/* Record the first event of a pair; NO_PAIR when there is none to have. */
static uint32_t open_pair(void *stream) {
  void *context = NULL;
  uint32_t at = NO_PAIR;
  int mode = MODE_RELAXED;
  if (!with_events || !driver.complete || driver.cuCtxGetCurrent(&context) || !context)
    return NO_PAIR;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  pthread_mutex_lock(&ring.lock);
  if (!ring.context)
    ring.context = context;
  if (ring.tail - ring.head == PAIRS)
    harvest();
  if (ring.context == context && ring.tail - ring.head < PAIRS && make_pair((uint32_t)(ring.tail % PAIRS)) &&
      !driver.cuEventRecord(ring.begins[ring.tail % PAIRS], stream)) {
    at = (uint32_t)(ring.tail++ % PAIRS);
    ring.whole[at] = false;
    ring.of[at] = NO_PAIR;
  }
  pthread_mutex_unlock(&ring.lock);
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  return at;
}

static void close_pair(uint32_t at, void *stream, uint32_t record) {
  int mode = MODE_RELAXED;
  if (at == NO_PAIR)
    return;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  bool recorded = !driver.cuEventRecord(ring.ends[at], stream);
  pthread_mutex_lock(&ring.lock);
  ring.of[at] = recorded ? record : NO_PAIR;
  ring.whole[at] = true;
  pthread_mutex_unlock(&ring.lock);
  driver.cuThreadExchangeStreamCaptureMode(&mode);
}

static void harvest_after_wait(void) {
  int mode = MODE_RELAXED;
  if (!with_events || !driver.complete)
    return;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  pthread_mutex_lock(&ring.lock);
  harvest();
  pthread_mutex_unlock(&ring.lock);
  driver.cuThreadExchangeStreamCaptureMode(&mode);
}

/* ---- one call ---- */

struct call {
  uint64_t begin_ns, cpu_ns;
  bool nested; /* a wrapper below another: one of the two was asked for by the program */
};

static struct call enter(void) {
  struct call call = {.nested = self.inside};
  if (call.nested)
    return call;
  self.inside = true;
  if (!self.id)
    self.id = atomic_fetch_add(&threads, 1) + 1;
  call.begin_ns = read_clock(CLOCK_MONOTONIC);
  call.cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID) - self.cpu_ns;
  return call;
}

/* Its number, or NO_PAIR when there is no room. */
static uint32_t note(const struct call *call, enum verb verb, uint64_t a, uint64_t b, uint64_t c) {
  uint32_t at = atomic_load(&used);
  if (call->nested || !records)
    return NO_PAIR;
  do {
    if (at >= RECORDS_MAX) {
      lost++;
      return NO_PAIR;
    }
  } while (!atomic_compare_exchange_weak(&used, &at, at + 1));
  records[at] = (struct record){.begin_ns = call->begin_ns,
                                .cpu_ns = call->cpu_ns,
                                .duration_ns = NO_DURATION,
                                .a = a,
                                .b = b,
                                .c = c,
                                .thread = self.id,
                                .verb = verb};
  return at;
}

/* The time is read last: all that we did is inside the call. */
static void leave(const struct call *call, uint32_t record) {
  if (call->nested)
    return;
  self.inside = false;
  self.cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
  if (record != NO_PAIR)
    records[record].end_ns = read_clock(CLOCK_MONOTONIC);
}

static bool is_capturing(void *stream) {
  int status = 0;
  return driver.cuStreamIsCapturing && (driver.cuStreamIsCapturing(stream, &status) || status);
}

/* ---- the wrappers: as many per function as it has variants ---- */

enum function {
#define RECORDED(name, ...) F_##name,
#include "record.def"
#undef RECORDED
  FUNCTIONS
};
/* A function may be asked for in several variants, which are several addresses: each gets a wrapper of its own. */
#define VARIANTS 4u
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

#define RECORDED_CALL(name, parameters, arguments, verb, a, b, c)                                                      \
  static int name##_any(unsigned form, BARE parameters) {                                                              \
    enum { function = F_##name };                                                                                      \
    (void)form;                                                                                                        \
    struct call call = enter();                                                                                        \
    int result = ((int(*) parameters)variants[F_##name][form].real)arguments;                                          \
    uint32_t record = result ? NO_PAIR : note(&call, verb, a, b, c);                                                   \
    leave(&call, record);                                                                                              \
    return result;                                                                                                     \
  }

#define RECORDED_SYNC(name, parameters, arguments, verb, a, b, c)                                                      \
  static int name##_any(unsigned form, BARE parameters) {                                                              \
    enum { function = F_##name };                                                                                      \
    (void)form;                                                                                                        \
    struct call call = enter();                                                                                        \
    int result = ((int(*) parameters)variants[F_##name][form].real)arguments;                                          \
    uint32_t record = result ? NO_PAIR : note(&call, verb, a, b, c);                                                   \
    if (!call.nested)                                                                                                  \
      harvest_after_wait();                                                                                            \
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
    uint32_t record = result ? NO_PAIR : note(&call, capturing ? CAPTURED : verb, U(queue), b, c);                     \
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
      remember(U(handle), text);                                                                                       \
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

typedef int get_function(const char *, void **, int, uint64_t, int *);
static get_function *real_get, *real_get_v2;

static bool ends(const char *text, size_t length, const char *suffix) {
  size_t size = strlen(suffix);
  return length >= size && !strncmp(text + length - size, suffix, size);
}

static void *handed_out(const char *name, void *found, uint64_t flags, int version);

static int get_through(get_function *get, const char *symbol, void **address, int version, uint64_t flags,
                       int *status) {
  int result = get(symbol, address, version, flags, status);
  if (result == 0 && symbol && address && *address)
    *address = handed_out(symbol, *address, flags, version);
  return result;
}
static int get_any(const char *symbol, void **address, int version, uint64_t flags, int *status) {
  return get_through(real_get, symbol, address, version, flags, status);
}
static int get_any_v2(const char *symbol, void **address, int version, uint64_t flags, int *status) {
  return get_through(real_get_v2, symbol, address, version, flags, status);
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

/* The wrapper of a function by whatever variant's name it was asked for; what is not recorded goes out as it is. */
static void *handed_out(const char *name, void *found, uint64_t flags, int version) {
  if (!strcmp(name, "cuGetProcAddress_v2") || (!strcmp(name, "cuGetProcAddress") && version >= 12000)) {
    real_get_v2 = (get_function *)found;
    return (void *)get_any_v2;
  }
  if (!strcmp(name, "cuGetProcAddress")) {
    real_get = (get_function *)found;
    return (void *)get_any;
  }
  size_t length = strlen(name);
  bool own = ends(name, length, "_ptsz") || ends(name, length, "_ptds");
  length -= own ? 5 : 0;
  length -= ends(name, length, "_v2") ? 3 : 0;
  for (size_t i = 0; records && i < FUNCTIONS; i++)
    if (strlen(table[i].name) == length && !strncmp(table[i].name, name, length))
      return wrapper_of(i, found, own || flags & PER_THREAD);
  return found;
}

/* Called by the trampoline of dlsym for a real handle and a name that begins with "cu". */
HIDDEN void *sp_filter(void *handle, const char *name);
HIDDEN void *sp_filter(void *handle, const char *name) {
  if (name[2] < 'A' || name[2] > 'Z') /* cudaMalloc, cublasCreate: not the driver's */
    return NULL;
  if (!sp_chain_dlsym)
    sp_resolve();
  void *found = sp_chain_dlsym ? sp_chain_dlsym(handle, name) : NULL;
  if (found && !driver.complete)
    learn_driver(handle);
  return found ? handed_out(name, found, 0, 0) : NULL;
}

/* ---- the file ---- */

EXPORT void record_mark(int begin, const char *word);
EXPORT void record_mark(int begin, const char *word) {
  struct call call = enter();
  uint64_t handle = 0;
  for (const char *at = word; *at; at++) /* marks are told apart by a number made of their letters */
    handle = handle * 131 + (unsigned char)*at;
  remember(handle, word);
  leave(&call, note(&call, begin ? BEGIN : END, handle, 0, 0));
}

static void write_header(FILE *file) {
  int version = 0;
  char name[128] = "";
  if (driver.cuDriverGetVersion)
    driver.cuDriverGetVersion(&version);
  if (driver.cuDeviceGetName && driver.cuDeviceGetName(name, sizeof name, 0))
    *name = 0;
  fprintf(file, "{\"record\": 1, \"device\": \"%s\", \"cuda\": %d, \"lost\": %" PRIu64 "}\n", name, version,
          (uint64_t)lost);
}

EXPORT int record_write(const char *path);
EXPORT int record_write(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file)
    return -1;
  self.inside = true;
  harvest_after_wait();
  write_header(file);
  pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < name_count; i++)
    fprintf(file, "name %" PRIu64 " %s\n", names[i].handle, names[i].text);
  pthread_mutex_unlock(&lock);
  uint32_t count = atomic_load(&used);
  for (uint32_t i = 0; i < count; i++) {
    const struct record *it = &records[i];
    fprintf(file,
            "%" PRIu32 " %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
            it->thread, verbs[it->verb], it->begin_ns, it->end_ns, it->cpu_ns, (int64_t)it->duration_ns, it->a, it->b,
            it->c);
  }
  self.inside = false;
  return fclose(file);
}

__attribute__((constructor)) static void begin(void) {
  const char *events = getenv("RECORD_EVENTS");
  if (!getenv("RECORD_OUTPUT"))
    return;
  with_events = !events || strcmp(events, "0") != 0;
  void *memory = mmap(NULL, RECORDS_MAX * sizeof *records, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  records = memory == MAP_FAILED ? NULL : memory;
}

__attribute__((destructor)) static void write_at_exit(void) {
  const char *path = getenv("RECORD_OUTPUT");
  if (path && used)
    record_write(path);
}
