/*
 * Captures in one thread while another launches: the errors that a program sees, with the hook and without it.
 *
 * The other thread only launches into a stream of its own, which every capture mode allows. It never waits or queries,
 * which a capture forbids. So without the hook there is no error, and with it none may appear.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "probe.h"

#define MODES       3 /* global, thread local, relaxed */
#define NODES       4u
#define ERRORS_KEPT 16u
#define ROUNDS      40u

static struct {
  struct kernel kernel;
  struct log log;
  void *captured, *beside;
  atomic_bool over;
  atomic_uint launches;
  pthread_mutex_t lock;
  struct {
    const char *call;
    int result;
    uint32_t count;
  } errors[ERRORS_KEPT]; /* guarded by lock */
  uint32_t error_count;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Whether the call has failed. If so, count its error. */
static bool failed(int result, const char *call) {
  if (result == SUCCESS)
    return false;
  pthread_mutex_lock(&state.lock);
  uint32_t row = 0;
  while (row < state.error_count && (state.errors[row].result != result || state.errors[row].call != call))
    row++;
  if (row < ERRORS_KEPT) {
    state.errors[row].call = call;
    state.errors[row].result = result;
    state.errors[row].count++;
    if (row == state.error_count)
      state.error_count++;
  }
  pthread_mutex_unlock(&state.lock);
  return true;
}

/* The other thread: launch into a stream of its own, a little slower than the kernels take, until all is over. */
static void *launch_beside(void *unused) {
  use_context();
  while (!atomic_load(&state.over)) {
    failed(launch_work(&state.kernel, &state.log, state.beside), "cuLaunchKernel beside the capture");
    atomic_fetch_add(&state.launches, 1);
    sleep_until(now_ns() + options.unit_ns + options.unit_ns / 4); /* this thread may not wait for the device */
  }
  return unused;
}

/* Capture a few kernels in this mode, and launch the graph. */
static void capture_once(int mode) {
  void *graph = NULL, *executable = NULL;
  if (failed(TRY(cuStreamBeginCapture, state.captured, mode), "cuStreamBeginCapture"))
    return;
  for (uint32_t i = 0; i < NODES; i++)
    failed(launch_work(&state.kernel, &state.log, state.captured), "cuLaunchKernel into the capture");
  if (options.gap_ns)
    sleep_until(now_ns() + options.gap_ns); /* so that turns end and markers are due while the capture is open */
  if (failed(TRY(cuStreamEndCapture, state.captured, &graph), "cuStreamEndCapture"))
    return;
  if (!failed(TRY(cuGraphInstantiateWithFlags, &executable, graph, 0), "cuGraphInstantiateWithFlags")) {
    failed(TRY(cuGraphLaunch, executable, state.captured), "cuGraphLaunch");
    failed(cuStreamSynchronize(state.captured), "cuStreamSynchronize");
    failed(TRY(cuGraphExecDestroy, executable), "cuGraphExecDestroy");
  }
  failed(TRY(cuGraphDestroy, graph), "cuGraphDestroy");
}

void run_capture(void) {
  pthread_t beside;
  state.kernel = kernel_of(options.unit_ns);
  state.log = make_log(1);
  CALL(cuStreamCreate, &state.captured, STREAM_NON_BLOCKING);
  CALL(cuStreamCreate, &state.beside, STREAM_NON_BLOCKING);
  await_start();
  if (pthread_create(&beside, NULL, launch_beside, NULL))
    die("no thread could be made");
  uint64_t rounds = options.count ? options.count : ROUNDS;
  for (int mode = 0; mode < MODES; mode++)
    for (uint64_t round = 0; round < rounds; round++)
      capture_once(mode);
  atomic_store(&state.over, true);
  pthread_join(beside, NULL);
  CALL(cuStreamSynchronize, state.beside);
  uint32_t launches = atomic_load(&state.launches);
  begin_result(launches, launches * options.unit_ns);
  printf(", \"captures\": %" PRIu64 ", \"errors\": {", rounds * MODES);
  for (uint32_t i = 0; i < state.error_count; i++)
    printf("%s\"%s: %s\": %" PRIu32, i ? ", " : "", state.errors[i].call, error_name(state.errors[i].result),
           state.errors[i].count);
  putchar('}');
}
