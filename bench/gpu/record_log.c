#include "record_log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define RECORDS_MAX 2000000u
#define NAMES_MAX   16384u
#define NO_DURATION UINT64_MAX

static const char *const verbs[] = {
    "launch",  "captured", "run",   "capture", "captured-as", "instantiate", "record",    "wait",      "stream",
    "event",   "context",  "htod",  "dtoh",    "dtod",        "set",         "htod-sync", "dtoh-sync", "linear",
    "managed", "pitched",  "async", "host",    "free",        "begin",       "end"};

struct record {
  uint64_t begin_ns, end_ns, cpu_ns; /* cpu: of the thread, since its last call */
  uint64_t duration_ns, a, b, c;
  uint32_t thread, verb;
};

static struct record *records;
static _Atomic uint32_t used, threads;
static _Atomic uint64_t lost;

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

void note_name(uint64_t handle, const char *text) {
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

void log_open(void) {
  void *memory = mmap(NULL, RECORDS_MAX * sizeof *records, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  records = memory == MAP_FAILED ? NULL : memory;
}

bool log_is_open(void) {
  return records;
}

bool log_is_empty(void) {
  return !atomic_load(&used);
}

struct call enter(void) {
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

uint32_t note(const struct call *call, enum verb verb, uint64_t a, uint64_t b, uint64_t c) {
  uint32_t at = atomic_load(&used);
  if (call->nested || !records)
    return NO_RECORD;
  do {
    if (at >= RECORDS_MAX) {
      lost++;
      return NO_RECORD;
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

void leave(const struct call *call, uint32_t record) {
  if (call->nested)
    return;
  self.inside = false;
  self.cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
  if (record != NO_RECORD)
    records[record].end_ns = read_clock(CLOCK_MONOTONIC);
}

void log_suspend(bool suspended) {
  self.inside = suspended;
}

void note_duration(uint32_t record, uint64_t duration_ns) {
  records[record].duration_ns = duration_ns;
}

uint64_t log_lost(void) {
  return atomic_load(&lost);
}

void log_print(FILE *file) {
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
}
