/*
 * cupti: counts what NVIDIA's own tracing interface sees. The driver loads this library at cuInit when
 * CUDA_INJECTION64_PATH names it. CUPTI_LIBRARY names the libcupti to use.
 *
 * Every piece of work on the device carries the correlation id of the call that launched it; the kernels of one graph
 * launch share one. So the number of different ids is the number of launches that reached the device, by whatever
 * path they came. Only fields that have kept their place since CUDA 11 are read.
 *
 * `cupti_report(path)` waits for outstanding records and writes one JSON object.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT       __attribute__((visibility("default")))
#define BUFFER_BYTES ((size_t)4 << 20)
#define SUCCESS      0
#define FLUSH_FORCED 1u

enum { KIND_MEMCPY = 1, KIND_MEMSET = 2, KIND_KERNEL = 3, KIND_CONCURRENT_KERNEL = 10 };
enum { COPY_WITHIN_DEVICE = 8, COPY_BETWEEN_DEVICES = 10 };

/* Offsets in CUpti_ActivityKernel4 and later, CUpti_ActivityMemcpy4 and later, CUpti_ActivityMemset3 and later: packed
 * structs that have only grown at their ends. */
enum { KERNEL_START = 16, KERNEL_END = 24, KERNEL_CORRELATION = 92, COPY_KIND = 4, OTHER_CORRELATION = 44 };

static struct {
  int (*cuptiActivityRegisterCallbacks)(void (*)(uint8_t **, size_t *, size_t *),
                                        void (*)(void *, uint32_t, uint8_t *, size_t, size_t));
  int (*cuptiActivityEnable)(int);
  int (*cuptiActivityFlushAll)(uint32_t);
  int (*cuptiActivityGetNextRecord)(uint8_t *, size_t, void **);
  int (*cuptiActivityGetNumDroppedRecords)(void *, uint32_t, size_t *);
} cupti;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  uint32_t *ids;
  size_t count, room;
  uint64_t kernels, kernel_ns, memsets, copies, dropped;
  const char *fault;
} seen = {.fault = "it was not started"}; /* guarded by lock */

static uint32_t word_at(const unsigned char *record, size_t offset) {
  uint32_t value;
  memcpy(&value, record + offset, sizeof value);
  return value;
}
static uint64_t long_at(const unsigned char *record, size_t offset) {
  uint64_t value;
  memcpy(&value, record + offset, sizeof value);
  return value;
}

/* With the lock: note the correlation id of a piece of work. */
static void remember(uint32_t id) {
  if (seen.count == seen.room) {
    size_t room = seen.room ? 2 * seen.room : 65536;
    uint32_t *ids = realloc(seen.ids, room * sizeof *ids);
    if (!ids) {
      seen.dropped++;
      return;
    }
    seen.ids = ids;
    seen.room = room;
  }
  seen.ids[seen.count++] = id;
}

/* With the lock: count one record of CUPTI: a kernel, a memset, or a copy inside or between devices. */
static void take(const unsigned char *record) {
  switch (word_at(record, 0)) {
  case KIND_KERNEL:
  case KIND_CONCURRENT_KERNEL:
    seen.kernels++;
    seen.kernel_ns += long_at(record, KERNEL_END) - long_at(record, KERNEL_START);
    remember(word_at(record, KERNEL_CORRELATION));
    break;
  case KIND_MEMSET:
    seen.memsets++;
    remember(word_at(record, OTHER_CORRELATION));
    break;
  case KIND_MEMCPY:
    if (record[COPY_KIND] == COPY_WITHIN_DEVICE || record[COPY_KIND] == COPY_BETWEEN_DEVICES) {
      seen.copies++;
      remember(word_at(record, OTHER_CORRELATION));
    }
    break;
  default:
    break;
  }
}

static void give_buffer(uint8_t **buffer, size_t *bytes, size_t *records) {
  *buffer = aligned_alloc(64, BUFFER_BYTES);
  *bytes = *buffer ? BUFFER_BYTES : 0;
  *records = 0;
}

/* CUPTI's callback for a full buffer, which give_buffer made: count its records, and free it. */
static void take_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes) {
  void *record = NULL;
  size_t dropped = 0;
  (void)bytes;
  pthread_mutex_lock(&lock);
  while (valid_bytes && cupti.cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == SUCCESS)
    take(record);
  if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == SUCCESS)
    seen.dropped += dropped;
  pthread_mutex_unlock(&lock);
  free(buffer);
}

/* Start the tracing. Returns NULL, or why it cannot start. */
static const char *begin(void) {
  const char *path = getenv("CUPTI_LIBRARY");
  void *library = path ? dlopen(path, RTLD_NOW) : NULL;
  if (!library)
    return "its library cannot be loaded";
#define FIND(name)                                                                                                     \
  *(void **)&cupti.name = dlsym(library, #name);                                                                       \
  if (!cupti.name)                                                                                                     \
    return "its library lacks " #name;
  FIND(cuptiActivityRegisterCallbacks)
  FIND(cuptiActivityEnable)
  FIND(cuptiActivityFlushAll)
  FIND(cuptiActivityGetNextRecord)
  FIND(cuptiActivityGetNumDroppedRecords)
  static char said[96];
  int result = cupti.cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  if (result != SUCCESS) {
    snprintf(said, sizeof said, "cuptiActivityRegisterCallbacks returned %d: another tool may be tracing", result);
    return said;
  }
  static const int kinds[] = {KIND_CONCURRENT_KERNEL, KIND_MEMSET, KIND_MEMCPY};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    result = cupti.cuptiActivityEnable(kinds[i]);
    if (result != SUCCESS) {
      snprintf(said, sizeof said, "cuptiActivityEnable(%d) returned %d", kinds[i], result);
      return said;
    }
  }
  return NULL;
}

/* The driver calls this at cuInit. */
EXPORT int InitializeInjection(void);
EXPORT int InitializeInjection(void) {
  static bool begun;
  if (!begun) {
    begun = true;
    seen.fault = begin();
  }
  return 1; /* the program runs on without its trace */
}

static int ascending(const void *left, const void *right) {
  uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
  return a < b ? -1 : a > b;
}

EXPORT int cupti_report(const char *path);
EXPORT int cupti_report(const char *path) {
  /* First the complete records, then the rest: the device is idle, so only times can be missing. */
  if (!seen.fault &&
      (cupti.cuptiActivityFlushAll(0) != SUCCESS || cupti.cuptiActivityFlushAll(FLUSH_FORCED) != SUCCESS))
    seen.fault = "cuptiActivityFlushAll failed";
  FILE *file = fopen(path, "w");
  if (!file)
    return -1;
  pthread_mutex_lock(&lock);
  qsort(seen.ids, seen.count, sizeof *seen.ids, ascending);
  size_t different = 0;
  for (size_t i = 0; i < seen.count; i++)
    different += i == 0 || seen.ids[i] != seen.ids[i - 1];
  fprintf(file,
          "{\"launches\": %zu, \"kernels\": %" PRIu64 ", \"kernel_ns\": %" PRIu64 ", \"memsets\": %" PRIu64
          ", \"copies\": %" PRIu64 ", \"dropped\": %" PRIu64 ", \"fault\": \"%s\"}\n",
          different, seen.kernels, seen.kernel_ns, seen.memsets, seen.copies, seen.dropped,
          seen.fault ? seen.fault : "");
  pthread_mutex_unlock(&lock);
  return fclose(file) ? -1 : 0;
}
