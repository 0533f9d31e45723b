/*
 * Runs hook and arbiter as threads of one program, so that ThreadSanitizer sees both sides of the region.
 *
 * Share 0 is the real hook (gate, lanes, keeper), driven by several launching threads on a driver of a few lines. The
 * driver has one device; its work is only a point in time up to which it is busy. Share 1 is a tenant that speaks the
 * region's protocol by hand. A launch that starts while its share holds no turn is a failure, and so is a thread that
 * makes no progress.
 *
 * Usage: threads DIRECTORY MILLISECONDS. Prints "launches A B turns N outside M passed P cogrants C". Ends with 7, and
 * says what, if something of a launch or of a wait is left when all work has ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/arbiter/arbiter.h"
#include "hook/gate/gate.h"
#include "hook/gate/process.h"

#define THREADS   3
#define KERNEL_NS 30000u

/* Record locks of one process do not conflict with each other, so this answers which process owns the slots. */
int32_t __wrap_sp_slot_owner(const struct sp_region_owner *owner, uint32_t slot);
int32_t __wrap_sp_slot_owner(const struct sp_region_owner *owner, uint32_t slot) {
  (void)owner;
  (void)slot;
  return (int32_t)getpid();
}

/* ---- the device ---- */

static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t busy_until_ns;
static uint32_t stop, hand_turn_open;
static uint64_t outside, launches[2];

struct CUevent_st {
  uint64_t at_ns;
};

static void sleep_until(uint64_t at_ns) {
  struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
  }
}

static void launch(int share) {
  pthread_mutex_lock(&device_lock);
  uint64_t now_ns = sp_now_ns();
  busy_until_ns = (busy_until_ns > now_ns ? busy_until_ns : now_ns) + KERNEL_NS;
  launches[share]++;
  pthread_mutex_unlock(&device_lock);
}

static CUresult event_create(CUevent *event, unsigned int flags) {
  (void)flags;
  *event = calloc(1, sizeof **event);
  return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult event_record(CUevent event, CUstream stream) {
  (void)stream;
  pthread_mutex_lock(&device_lock);
  uint64_t now_ns = sp_now_ns();
  event->at_ns = busy_until_ns > now_ns ? busy_until_ns : now_ns;
  pthread_mutex_unlock(&device_lock);
  return CUDA_SUCCESS;
}
static uint64_t event_time(CUevent event) {
  pthread_mutex_lock(&device_lock);
  uint64_t at_ns = event->at_ns;
  pthread_mutex_unlock(&device_lock);
  return at_ns;
}
static CUresult event_synchronize(CUevent event) {
  sleep_until(event_time(event));
  return CUDA_SUCCESS;
}
static CUresult event_elapsed(float *ms, CUevent left, CUevent right) {
  *ms = (float)((double)(int64_t)(event_time(right) - event_time(left)) / 1e6);
  return CUDA_SUCCESS;
}
static CUresult context_current(CUcontext *context) {
  static char only;
  *context = (CUcontext)(void *)&only;
  return CUDA_SUCCESS;
}
static CUresult context_set(CUcontext context) {
  (void)context;
  return CUDA_SUCCESS;
}
static CUresult context_device(CUdevice *device) {
  *device = 0;
  return CUDA_SUCCESS;
}
static CUresult device_count(int *count) {
  *count = 1;
  return CUDA_SUCCESS;
}
static CUresult device_get(CUdevice *device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
static CUresult device_uuid(CUuuid *uuid, CUdevice device) {
  (void)device;
  memset(uuid->bytes, 0x11, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}

const struct sp_driver *sp_driver(void) {
  static const struct sp_driver driver = {.cuCtxGetCurrent = context_current,
                                          .cuCtxSetCurrent = context_set,
                                          .cuCtxGetDevice = context_device,
                                          .cuDeviceGetCount = device_count,
                                          .cuDeviceGet = device_get,
                                          .cuDeviceGetUuid = device_uuid,
                                          .cuEventCreate = event_create,
                                          .cuEventRecord = event_record,
                                          .cuEventSynchronize = event_synchronize,
                                          .cuEventElapsedTime = event_elapsed};
  return &driver;
}

/* ---- share 0: programs under the hook ---- */

static void *program(void *argument) {
  uintptr_t number = (uintptr_t)argument;
  uint64_t count = 0;
  while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
    struct sp_pass pass;
    sp_gate_enter(&pass, (void *)(0x1000 + number), false, sp_work_key((void *)0x5000, number, 1));
    /* From the gate to the drain the turn is this share's, so the other share must not hold an entered turn now. */
    if (pass.device && __atomic_load_n(&hand_turn_open, __ATOMIC_SEQ_CST) &&
        !__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) /* after the planned stop every launch passes */
      __atomic_fetch_add(&outside, 1, __ATOMIC_RELAXED);
    launch(0);
    sp_gate_leave(&pass, CUDA_SUCCESS);
    if (++count % 50 == 0)
      usleep((useconds_t)(count % 7 * 100));
  }
  return NULL;
}

/* ---- share 1: the protocol by hand ---- */

static void *by_hand(void *argument) {
  struct sp_region region;
  if (sp_region_attach(&region, argument))
    abort();
  struct sp_slot_device *slot = &region.slot->devices[0];
  const struct sp_grant *grant = &region.grants[0];
  struct sp_report report = {0};
  while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
    uint32_t word = sp_grant_word(grant);
    if (!(word & 1u)) {
      sp_slot_wait_begin(slot);
      sp_region_ring(&region);
      sp_grant_wait(grant, word, 100000000);
      sp_slot_wait_end(slot);
      continue;
    }
    report.held_turn = word;
    report.drained_turn = 0;
    if (!sp_slot_enter(slot, &report, grant)) {
      report.drained_turn = word;
      sp_slot_publish(slot, &report);
      continue;
    }
    __atomic_store_n(&hand_turn_open, 1, __ATOMIC_SEQ_CST);
    while (sp_grant_word(grant) == word && !__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
      launch(1);
      usleep(200);
    }
    pthread_mutex_lock(&device_lock);
    uint64_t until_ns = busy_until_ns;
    pthread_mutex_unlock(&device_lock);
    sleep_until(until_ns);
    __atomic_store_n(&hand_turn_open, 0, __ATOMIC_SEQ_CST);
    report.drained_turn = word;
    report.drained_ns = sp_now_ns();
    sp_slot_publish(slot, &report);
    sp_region_ring(&region);
  }
  return NULL;
}

/* What must be zero when all threads have ended and the device is idle. */
static int left_over(void) {
  const struct sp_device *device = &sp_this_process.devices[0];
  for (int look = 0; look < 500 && (sp_device_in_flight(device) || sp_streams_pending(device)); look++)
    usleep(10000);
  uint64_t in_flight_ns = sp_device_in_flight(device);
  uint32_t waiters = __atomic_load_n(&device->gate_waiters, __ATOMIC_SEQ_CST);
  bool pending = sp_streams_pending(device), inside = sp_threads_inside(device->index);
  if (!in_flight_ns && !waiters && !pending && !inside)
    return 0;
  fprintf(stderr, "left: %llu ns in flight, %u gate waiters, %s work without a marker, %s thread inside\n",
          (unsigned long long)in_flight_ns, waiters, pending ? "some" : "no", inside ? "a" : "no");
  return 7;
}

int main(int count, char **arguments) {
  if (count != 3)
    return 2;
  char directories[2][200];
  struct sp_arbiter *arbiter = sp_arbiter_new();
  int device = sp_arbiter_add_device(arbiter, "GPU-11111111-1111-1111-1111-111111111111");
  int shares[2];
  for (int index = 0; index < 2; index++) {
    snprintf(directories[index], sizeof directories[index], "%s/share%d", arguments[1], index);
    if (mkdir(directories[index], 0755))
      return 3;
    struct sp_terms terms = {
        .device = device, .request_millipercent = 50000, .limit_millipercent = 100000, .share_class = 1};
    shares[index] = sp_arbiter_add_share(arbiter, directories[index], &terms, 1, NULL);
    if (shares[index] < 0)
      return 4;
  }
  if (sp_arbiter_start(arbiter))
    return 5;
  setenv("SHAREPOD_REGION", directories[0], 1);
  if (!sp_attach() || !sp_this_process.attached)
    return 6;
  pthread_t threads[THREADS + 1];
  for (uintptr_t index = 0; index < THREADS; index++)
    pthread_create(&threads[index], NULL, program, (void *)index);
  pthread_create(&threads[THREADS], NULL, by_hand, directories[1]);
  uint64_t end_ns = sp_now_ns() + (uint64_t)atoi(arguments[2]) * 1000000u;
  while (sp_now_ns() < end_ns) { /* calls from beside the arbiter's thread, as Python's are */
    struct sp_usage usage;
    struct sp_process processes[4];
    for (int index = 0; index < 2; index++) {
      sp_arbiter_read_usage(arbiter, shares[index], 0, &usage);
      sp_arbiter_read_processes(arbiter, shares[index], processes, 4);
    }
    usleep(20000);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST); /* first: no launch counts as outside after the co-grants are read */
  struct sp_usage usage[2];
  for (int index = 0; index < 2; index++)
    sp_arbiter_read_usage(arbiter, shares[index], 0, &usage[index]);
  sp_arbiter_free(arbiter); /* a planned stop: threads that wait at a gate go on, or the joins below never end */
  for (int index = 0; index <= THREADS; index++)
    pthread_join(threads[index], NULL);
  printf("launches %llu %llu turns %llu outside %llu passed %llu cogrants %llu\n", (unsigned long long)launches[0],
         (unsigned long long)launches[1], (unsigned long long)(usage[0].turns + usage[1].turns),
         (unsigned long long)outside, (unsigned long long)usage[0].passed,
         (unsigned long long)(usage[0].cogrants + usage[1].cogrants));
  return left_over();
}
