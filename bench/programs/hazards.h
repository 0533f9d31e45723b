/*
 * hazards: what correct programs do but a meter of launches may not expect: work that waits for something outside the
 * device, work in a context that is not current, kernels with durations that depend on their data, threads that are
 * cancelled, jumps out of calls, streams that are replaced, full queues, closed descriptors, and a kernel that faults.
 */
#ifndef SHAREPOD_BENCH_HAZARDS_H
#define SHAREPOD_BENCH_HAZARDS_H

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interrupted.h"
#include "storm.h"

#define QUEUE_MAX 1100u   /* more than a driver's queue for one stream holds */
#define PAUSE_NS  2000000 /* the longest wait for the host */
#define SELDOM    24      /* one hazard of so many fills a queue, which takes long */
#define FIRST_OWN 3       /* descriptors: the first after the standard ones, and one that no program here reaches */
#define LAST_OWN  4096

/* A second context on each device, like one that a library makes for itself. */
static struct {
  void *context, *kernel, *stream;
  device_pointer memory;
} others[DEVICES_MAX];

static char file_name[] = "/tmp/storm-XXXXXX";
static int file = -1;

/* Make the second context of a device, with what is used in it. */
static void open_other(uint32_t device) {
  static const uint64_t unit_ns = 50000;
  CALL(cuCtxCreate, &others[device].context, NULL, 0, (int)device);
  others[device].kernel = find_kernel(load_module(&unit_ns, 1), unit_ns);
  CALL(cuStreamCreate, &others[device].stream, STREAM_NON_BLOCKING);
  CALL(cuMemAlloc, &others[device].memory, HAUL_BYTES);
  use(device);
}

static void pause_some(struct worker *worker) {
  sleep_until(now_ns() + draw(worker, PAUSE_NS));
}

/* A copy before kernels, as in every training loop. */
static void upload(struct worker *worker, uint32_t device) {
  void *stream = any_stream(worker, device);
  for (uint32_t i = draw(worker, 3) + 1; i; i--) {
    CALL(cuMemcpyHtoDAsync, storm.memory[device], storm.haul, draw(worker, HAUL_BYTES) + 1, stream);
    launch_any(worker, device, stream);
  }
  if (draw(worker, 2))
    CALL(cuMemcpyDtoHAsync, storm.haul, storm.memory[device], draw(worker, HAUL_BYTES) + 1, stream);
}

static void sleep_on_host(void *pause_ns) {
  sleep_until(now_ns() + (uintptr_t)pause_ns);
}

/* Work that waits for a function of the host. */
static void host_function(struct worker *worker, uint32_t device) {
  void *stream = any_stream(worker, device);
  if (draw(worker, 2))
    launch_any(worker, device, stream);
  CALL(cuLaunchHostFunc, stream, sleep_on_host, (void *)(uintptr_t)draw(worker, PAUSE_NS));
  launch_any(worker, device, stream);
}

/* Work that waits for a word, which this thread writes later. */
static void wait_for_word(struct worker *worker, uint32_t device) {
  uint32_t *word = fresh_words(worker, 1);
  if (!word)
    return;
  void *stream = any_stream(worker, device);
  CALL(cuStreamWaitValue32, stream, (device_pointer)(uintptr_t)word, 1, 0);
  launch_any(worker, device, stream);
  pause_some(worker);
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
}

/* A stream waits for work of another stream or another device. */
static void wait_for_event(struct worker *worker, uint32_t device) {
  uint32_t before = draw(worker, storm.devices);
  use(before);
  void *stream = any_stream(worker, before);
  launch_any(worker, before, stream);
  CALL(cuEventRecord, worker->events[before], stream);
  use(device);
  stream = any_stream(worker, device);
  CALL(cuStreamWaitEvent, stream, worker->events[before], 0);
  launch_any(worker, device, stream);
}

/* One function with one grid that takes 20 us or 1 ms, by its data. */
static void vary(struct worker *worker, uint32_t device) {
  void *stream = any_stream(worker, device);
  for (uint32_t i = draw(worker, 12) + 1; i; i--, worker->launches++)
    launch_one(storm.varied[device], stream, draw(worker, 4) ? 20000 : 1000000);
}

/* Work for the other context while this thread's own is current, and vice versa. */
static void work_elsewhere(struct worker *worker, uint32_t device) {
  CALL(cuMemsetD8Async, others[device].memory, 0, HAUL_BYTES, others[device].stream);
  launch_one(others[device].kernel, others[device].stream, 1);
  CALL(cuCtxSetCurrent, others[device].context);
  launch_any(worker, device, any_stream(worker, device));
  CALL(cuMemsetD8Async, storm.memory[device], 0, HAUL_BYTES, any_stream(worker, device));
  launch_one(others[device].kernel, others[device].stream, 1);
  worker->launches += 2;
  if (draw(worker, 2))
    CALL(cuStreamSynchronize, others[device].stream);
  use(device);
}

/* What a helper thread launches for. */
struct stray {
  struct worker *worker;
  uint32_t device;
  void *stream;
};

/* A thread that launches until it is cancelled. */
static void *launch_for_ever(void *argument) {
  struct stray *stray = argument;
  use(stray->device);
  for (;;) {
    launch_one(storm.kernels[stray->device][1], stray->stream, 1);
    __atomic_fetch_add(&stray->worker->launches, 1, __ATOMIC_RELAXED);
    pthread_testcancel();
  }
  return NULL;
}

/* A launching thread is cancelled, wherever it is. */
static void cancel(struct worker *worker, uint32_t device) {
  struct stray stray = {worker, device, any_stream(worker, device)};
  pthread_t thread;
  if (pthread_create(&thread, NULL, launch_for_ever, &stray))
    die("storm: no thread");
  pause_some(worker);
  pthread_cancel(thread);
  pthread_join(thread, NULL);
}

/* The next stream may get the address of one that is gone. */
static void replace_stream(struct worker *worker, uint32_t device) {
  void **stream = &worker->streams[device][draw(worker, STREAMS)];
  launch_any(worker, device, *stream);
  CALL(cuStreamDestroy, *stream);
  CALL(cuStreamCreate, stream, STREAM_NON_BLOCKING);
  launch_any(worker, device, *stream);
}

static void *fill(void *argument) {
  struct stray *stray = argument;
  use(stray->device);
  for (uint32_t i = 0; i < QUEUE_MAX; i++)
    launch_one(storm.kernels[stray->device][0], stray->stream, 1);
  return NULL;
}

/* A thread fills a stream that waits for a word, and blocks in the driver until this thread writes the word. Meanwhile
 * this thread launches into other streams. */
static void fill_queue(struct worker *worker, uint32_t device) {
  uint32_t *word = fresh_words(worker, 1);
  if (!word)
    return;
  struct stray stray = {worker, device, worker->streams[device][0]};
  pthread_t thread;
  CALL(cuStreamWaitValue32, stray.stream, (device_pointer)(uintptr_t)word, 1, 0);
  if (pthread_create(&thread, NULL, fill, &stray))
    die("storm: no thread");
  pause_some(worker);
  launch_any(worker, device, worker->streams[device][1]);
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  worker->launches += QUEUE_MAX;
}

/* ---- a signal handler jumps out of a call ---- */

static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t armed;

static void jump_out(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  if (armed && interrupted_in_wait(context))
    siglongjmp(back, 1);
}

struct interrupter {
  pthread_t target;
  struct worker dice; /* only its random numbers */
  uint32_t over;
};

static void *interrupt(void *argument) {
  struct interrupter *interrupter = argument;
  while (!__atomic_load_n(&interrupter->over, __ATOMIC_ACQUIRE)) {
    sleep_until(now_ns() + draw(&interrupter->dice, PAUSE_NS));
    pthread_kill(interrupter->target, SIGUSR1);
  }
  return NULL;
}

/* A thread jumps out of a launch, or out of its wait for work that goes on only after that: another thread sends it a
 * signal again and again, until it has jumped. */
static void jump(struct worker *worker, uint32_t device) {
  uint32_t *word = fresh_words(worker, 1);
  if (!word)
    return;
  struct interrupter interrupter = {.target = pthread_self(), .dice.random = worker->random | 1u};
  void *stream = any_stream(worker, device);
  pthread_t thread;
  synchronise(worker, device); /* in a full stream a call of the hook's own would wait with a timeout, under a lock */
  CALL(cuStreamWaitValue32, stream, (device_pointer)(uintptr_t)word, 1, 0);
  launch_any(worker, device, stream);
  if (pthread_create(&thread, NULL, interrupt, &interrupter))
    die("storm: no thread");
  if (!sigsetjmp(back, 1)) {
    armed = 1;
    for (uint32_t i = draw(worker, 4); i; i--)
      launch_any(worker, device, any_stream(worker, device));
    CALL(cuStreamSynchronize, stream);
    die("storm: a wait ended before its word was written");
  }
  armed = 0;
  __atomic_store_n(&interrupter.over, 1, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
}

static void expect_jumps(void) {
  struct sigaction action = {.sa_sigaction = jump_out, .sa_flags = SA_SIGINFO};
  sigaction(SIGUSR1, &action, NULL);
}

/* ---- a kernel faults ---- */

/* Every call fails after that. The program notices late, as one that does not look at errors, and goes on calling. */
static void fault(struct worker *worker) {
  static const char text[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry fault_50us() { ret; }\n";
  void *module, *kernel;
  use(0);
  CALL(cuModuleLoadData, &module, text);
  CALL(cuModuleGetFunction, &kernel, module, "fault_50us");
  void *stream = any_stream(worker, 0);
  launch_any(worker, 0, stream);
  CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
  for (uint32_t i = draw(worker, 200); i; i--) {
    void *parameters[] = {&(uint64_t){1}};
    if (TRY(cuLaunchKernel, storm.kernels[0][1], 1, 1, 1, 1, 1, 1, 0, any_stream(worker, 0), parameters, NULL) ==
        SUCCESS)
      worker->launches++;
    if (!draw(worker, 8))
      TRY(cuStreamSynchronize, any_stream(worker, 0));
    if (!draw(worker, 8))
      TRY(cuEventRecord, worker->events[0], stream);
    if (!draw(worker, 4))
      pause_some(worker);
  }
}

static void hazard(struct worker *worker, uint32_t device) {
  static void (*const hazards[])(struct worker *, uint32_t) = {
      upload, host_function, wait_for_word, wait_for_event, vary, work_elsewhere, cancel, jump, replace_stream,
  };
  uint32_t count = sizeof hazards / sizeof *hazards;
  if (!draw(worker, SELDOM))
    fill_queue(worker, device);
  else
    hazards[draw(worker, count)](worker, device);
}

/* Close all descriptors but the three standard ones, after the driver has begun, and open a file of the program's own.
 */
static void become_daemon(void) {
  for (int descriptor = FIRST_OWN; descriptor < LAST_OWN; descriptor++)
    close(descriptor);
  for (int i = 0; i < 8; i++) { /* takes as many numbers as another component may have had */
    file = i ? dup(file) : mkstemp(file_name);
    if (file < 0)
      die("storm: no file in /tmp");
  }
  unlink(file_name);
}

/* The program has not written into its file, so the file must be empty: no other component has used its descriptor. */
static void check_file(void) {
  struct stat status;
  if (file >= 0 && (fstat(file, &status) || status.st_size))
    die("storm: %lld bytes in a file that this program has not written", (long long)status.st_size);
}

#endif
