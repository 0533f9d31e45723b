/*
 * Has a signal handler leave calls into the driver by a jump, and goes on: `jumping_program MODE [WHERE]`, see `modes`
 * below. Prints the outcome.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#include "interrupted.h"
#include "modes.h"

#define LAUNCHES 3 /* of a short kernel: the hook marks one of them at most */

static sigjmp_buf back;
static pthread_t first;
static uint32_t jumped;

static void jump(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  if (!jumped && interrupted_in_wait(context)) {
    __atomic_store_n(&jumped, 1, __ATOMIC_RELEASE);
    siglongjmp(back, 1);
  }
}

static void *interrupt(void *unused) {
  (void)unused;
  while (!__atomic_load_n(&jumped, __ATOMIC_ACQUIRE)) {
    sleep_until(now_ns() + 30000000u);
    pthread_kill(first, SIGUSR1);
  }
  return NULL;
}

/* Interrupt this thread until it has jumped out of a wait. */
static void interrupt_soon(void) {
  struct sigaction action = {.sa_sigaction = jump, .sa_flags = SA_SIGINFO};
  pthread_t thread;
  first = pthread_self();
  sigaction(SIGUSR1, &action, NULL);
  pthread_create(&thread, NULL, interrupt, NULL);
  pthread_detach(thread);
}

static void *word; /* the stream waits until it is not 0, however late the signal comes */

/* Works deeper in the stack than the call that was left. */
static int goes_on(void) {
  volatile char deeper[10000];
  deeper[0] = 0;
  __atomic_store_n((uint32_t *)word, 1, __ATOMIC_RELEASE);
  work(usual, NULL, 100);
  CALL(cuCtxSynchronize);
  device_pointer memory = 0;
  return TRY(cuMemAlloc, &memory, (size_t)2 << 30) + deeper[0];
}

static void from_wait(const char *out_of) {
  static char bytes[4];
  void *event = NULL;
  device_pointer memory = 0;
  CALL(cuMemAlloc, &memory, sizeof bytes);
  CALL(cuEventCreate, &event, EVENT_DEFAULT);
  CALL(cuMemHostAlloc, &word, sizeof(uint32_t), HOST_PORTABLE_MAPPED);
  __atomic_store_n((uint32_t *)word, 0, __ATOMIC_RELEASE);
  work(usual, NULL, 200);
  CALL(cuStreamWaitValue32, NULL, (device_pointer)(uintptr_t)word, 1, 0);
  CALL(cuEventRecord, event, NULL);
  interrupt_soon();
  if (!sigsetjmp(back, 1)) {
    if (!strcmp(out_of, "event"))
      CALL(cuEventSynchronize, event);
    else if (!strcmp(out_of, "stream"))
      CALL(cuStreamSynchronize, NULL);
    else if (!strcmp(out_of, "copy"))
      CALL(cuMemcpyDtoH, bytes, memory, sizeof bytes);
    else
      CALL(cuCtxSynchronize);
    die("it was not interrupted in a call out of %s", out_of);
  }
  printf("%d\n", goes_on());
}

/* Jumps out of a launch that waits for a turn; later launches come now and then. */
static void from_gate(const char *path) {
  (void)path;
  work(usual, NULL, 1);
  CALL(cuCtxSynchronize);
  puts("pause");
  getchar();
  interrupt_soon();
  if (!sigsetjmp(back, 1)) {
    work(usual, NULL, 1);
    die("the launch was not held back");
  }
  puts("resume");
  getchar();
  for (int i = 0; i < 20; i++) {
    sleep_until(now_ns() + 50000000u);
    work(usual, NULL, 1);
    CALL(cuCtxSynchronize);
  }
}

/* Make a stream, and let the hook know both kernels. */
static void *make_stream(void) {
  void *stream = NULL;
  CALL(cuStreamCreate, &stream, STREAM_NON_BLOCKING);
  work(usual, stream, 20);
  work(brief, stream, 20);
  CALL(cuStreamSynchronize, stream);
  return stream;
}

/* Have the stream wait for a word, launch `launches` kernels there, and record events, until `left` more pieces of work
 * have room; fewer, if the hook's helper thread has recorded some. */
static void fill(void *stream, device_pointer at_device, int launches, int left) {
  void *event = NULL;
  CALL(cuEventCreate, &event, EVENT_DISABLE_TIMING);
  CALL(cuStreamWaitValue32, stream, at_device, 1, 0);
  work(brief, stream, launches);
  for (int i = 0; i < STREAM_ROOM - 1 - left; i++)
    CALL(cuEventRecord, event, stream);
}

/* After the jump: the thread can be cancelled, and works on in the stream. */
static void works_on(void *stream) {
  int state;
  work(usual, stream, 1);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
  if (state != PTHREAD_CANCEL_ENABLE)
    die("the thread cannot be cancelled any more");
  CALL(cuStreamSynchronize, stream);
  puts("go");
  for (int i = 0; i < 40; i++)
    work(usual, stream, 4);
  CALL(cuStreamSynchronize, stream);
  puts("done");
  getchar();
}

/* Launches into a stream that is nearly full, with room for `rest` pieces, until a call waits for room: jumps out of
 * that one. Or, with "word" behind the number, waits for words fill the rest. */
static void from_full(const char *rest) {
  device_pointer at_device = 0;
  uint32_t *words = mapped(4096, &at_device);
  void *stream = make_stream();
  interrupt_soon();
  if (!sigsetjmp(back, 1)) {
    fill(stream, at_device, 0, atoi(rest));
    for (;;) {
      work(usual, stream, 1);
      if (strstr(rest, "word"))
        CALL(cuStreamWaitValue32, stream, at_device, 1, 0);
    }
  }
  __atomic_store_n(words, 1, __ATOMIC_RELEASE);
  works_on(stream);
}

/* Fills a stream that has unmarked work, but for the number of pieces that `where` begins with. Then makes the call
 * that `where` names, before which the hook records an event in that stream: jumps out if it waits. */
static void from_call(const char *where) {
  device_pointer at_device = 0;
  uint32_t *words = mapped(4096, &at_device);
  void *other = NULL, *graph = NULL, *stream = make_stream();
  void *volatile usable = stream;
  CALL(cuStreamCreate, &other, STREAM_NON_BLOCKING);
  interrupt_soon();
  if (!sigsetjmp(back, 1)) {
    fill(stream, at_device, LAUNCHES, LAUNCHES + atoi(where));
    if (strstr(where, "context")) {
      CALL(cuCtxSynchronize);
    } else if (strstr(where, "stream")) {
      CALL(cuStreamSynchronize, stream);
    } else if (strstr(where, "capture")) {
      CALL(cuStreamBeginCapture, other, CAPTURE_RELAXED);
      CALL(cuStreamEndCapture, other, &graph);
    } else if (strstr(where, "destroy")) {
      usable = other;
      CALL(cuStreamDestroy, stream);
    } else {
      die("no call is named in %s", where);
    }
  } else {
    usable = stream; /* it is still there */
  }
  __atomic_store_n(&jumped, 1, __ATOMIC_RELEASE);
  __atomic_store_n(words, 1, __ATOMIC_RELEASE);
  works_on(usable);
}

static void jump_at_once(int number) {
  (void)number;
  siglongjmp(back, 1);
}

/* Jumps out of its first launch, while the helper thread is started; prints how long the later launches take. */
static void from_start(const char *path) {
  (void)path;
  signal(SIGUSR1, jump_at_once);
  if (!sigsetjmp(back, 1)) {
    work(usual, NULL, 1);
    die("no thread was started");
  }
  uint64_t begin_ns = now_ns();
  work(usual, NULL, 20);
  CALL(cuCtxSynchronize);
  printf("%" PRIu64 "\n", now_ns() - begin_ns);
}

static const struct mode modes[] = {{"from_wait", from_wait},
                                    {"from_gate", from_gate},
                                    {"from_full", from_full},
                                    {"from_call", from_call},
                                    {"from_start", from_start}};

int main(int count, char **arguments) {
  return run_mode(count, arguments, modes, sizeof modes / sizeof *modes);
}
