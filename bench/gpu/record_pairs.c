#include "record_pairs.h"

#include <pthread.h>
#include <stddef.h>

#include "door.h"
#include "record_log.h"

#define PAIRS         1024u
#define MODE_RELAXED  2
#define EVENT_DEFAULT 0u

static bool with_events = true;

static struct {
  int (*cuEventCreate)(void **, unsigned);
  int (*cuEventRecord)(void *, void *);
  int (*cuEventQuery)(void *);
  int (*cuEventElapsedTime)(float *, void *, void *);
  int (*cuStreamIsCapturing)(void *, int *);
  int (*cuThreadExchangeStreamCaptureMode)(int *);
  int (*cuCtxGetCurrent)(void **);
  bool complete;
} driver;

void pairs_learn_driver(void) {
  if (driver.complete)
    return;
#define OWN(name) *(void **)&driver.name = door_find(#name)
  OWN(cuEventCreate);
  OWN(cuEventRecord);
  OWN(cuEventQuery);
  OWN(cuEventElapsedTime);
  OWN(cuStreamIsCapturing);
  OWN(cuThreadExchangeStreamCaptureMode);
  OWN(cuCtxGetCurrent);
  driver.complete = driver.cuEventCreate && driver.cuEventRecord && driver.cuEventQuery && driver.cuEventElapsedTime &&
                    driver.cuStreamIsCapturing && driver.cuThreadExchangeStreamCaptureMode && driver.cuCtxGetCurrent;
}

void pairs_switch_off(void) {
  with_events = false;
}

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
    if (ring.of[at] != NO_RECORD && !driver.cuEventElapsedTime(&ms, ring.begins[at], ring.ends[at]))
      note_duration(ring.of[at], (uint64_t)((double)ms * 1e6));
  }
}

static bool make_pair(uint32_t at) {
  return (ring.begins[at] || !driver.cuEventCreate(&ring.begins[at], EVENT_DEFAULT)) &&
         (ring.ends[at] || !driver.cuEventCreate(&ring.ends[at], EVENT_DEFAULT));
}

uint32_t open_pair(void *stream) {
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
    ring.of[at] = NO_RECORD;
  }
  pthread_mutex_unlock(&ring.lock);
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  return at;
}

void close_pair(uint32_t at, void *stream, uint32_t record) {
  int mode = MODE_RELAXED;
  if (at == NO_PAIR)
    return;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  bool recorded = !driver.cuEventRecord(ring.ends[at], stream);
  pthread_mutex_lock(&ring.lock);
  ring.of[at] = recorded ? record : NO_RECORD;
  ring.whole[at] = true;
  pthread_mutex_unlock(&ring.lock);
  driver.cuThreadExchangeStreamCaptureMode(&mode);
}

void harvest_after_wait(void) {
  int mode = MODE_RELAXED;
  if (!with_events || !driver.complete)
    return;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  pthread_mutex_lock(&ring.lock);
  harvest();
  pthread_mutex_unlock(&ring.lock);
  driver.cuThreadExchangeStreamCaptureMode(&mode);
}

bool is_capturing(void *stream) {
  int status = 0;
  return driver.cuStreamIsCapturing && (driver.cuStreamIsCapturing(stream, &status) || status);
}
