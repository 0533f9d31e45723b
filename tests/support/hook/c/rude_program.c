/*
 * Does what correct programs may do and few people expect: `rude_program MODE [FILE]`, see `modes` below. Prints the
 * outcome.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "modes.h"

#define STREAM_QUEUE 1100
#define ROUNDS       9
#define BEYOND_STDIO 3
#define DESCRIPTORS  4096

/* ---- threads that launch are cancelled ---- */

static void *launch_for_ever(void *unused) {
  (void)unused;
  use_context();
  for (;;) {
    work(usual, NULL, 1);
    CALL(cuCtxSynchronize);
    pthread_testcancel();
  }
  return NULL;
}

static void cancelled(const char *path) {
  (void)path;
  int count = 0;
  for (uint64_t end_ns = now_ns() + 2000000000u; now_ns() < end_ns; count++) {
    pthread_t thread;
    pthread_create(&thread, NULL, launch_for_ever, NULL);
    sleep_until(now_ns() + 3000000u + (uint64_t)count * 977000u % 9000000u);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
  }
  work(usual, NULL, 20);
  CALL(cuCtxSynchronize);
  printf("%d\n", count);
}

/* ---- the program closes all descriptors and uses their numbers ---- */

static void check_file(int file) {
  struct stat status;
  if (fstat(file, &status) || status.st_size)
    die("%lld bytes that the program has not written", (long long)status.st_size);
}

static void work_beside(int file, uint64_t seconds) {
  for (uint64_t end_ns = now_ns() + seconds * 1000000000u; now_ns() < end_ns; sleep_until(now_ns() + 5000000u)) {
    work(usual, NULL, 4);
    CALL(cuCtxSynchronize);
  }
  check_file(file);
  puts("nothing was written");
}

static int open_own(const char *path) {
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (file < 0)
    die("%s cannot be opened", path);
  return file;
}

static void closed(const char *path) {
  work(usual, NULL, 4);
  CALL(cuCtxSynchronize);
  for (int descriptor = BEYOND_STDIO; descriptor < DESCRIPTORS; descriptor++)
    close(descriptor);
  int file = open_own(path);
  for (int descriptor = BEYOND_STDIO; descriptor < DESCRIPTORS; descriptor++)
    if (descriptor != file)
      dup2(file, descriptor);
  work_beside(file, 2);
}

/* The same without a gap: every number becomes another file in one step. */
static void replaced(const char *path) {
  int file = open_own(path);
  work(usual, NULL, 4);
  CALL(cuCtxSynchronize);
  for (int descriptor = BEYOND_STDIO; descriptor < DESCRIPTORS; descriptor++)
    if (descriptor != file && fcntl(descriptor, F_GETFD) >= 0)
      dup2(file, descriptor);
  work_beside(file, 2);
}

/* ---- a waiting stream is full, and this thread will release it ---- */

static void *full_stream, *often;

/* Round 0 fills the stream with launches alone. Each other round fills it with so many event records that another one
 * of the calls after them is the first without room. */
static void *fill(void *round) {
  int rest = (int)(uintptr_t)round;
  use_context();
  if (!rest)
    work(brief, full_stream, STREAM_QUEUE);
  for (int i = 0; rest && i < STREAM_ROOM - 1 - rest; i++)
    CALL(cuEventRecord, often, full_stream);
  work(usual, full_stream, 4);
  return NULL;
}

static void full(const char *path) {
  (void)path;
  void *other = NULL;
  device_pointer at_device = 0;
  uint32_t *words = mapped(4096, &at_device);
  CALL(cuStreamCreate, &full_stream, STREAM_NON_BLOCKING);
  CALL(cuStreamCreate, &other, STREAM_NON_BLOCKING);
  CALL(cuEventCreate, &often, EVENT_DISABLE_TIMING);
  work(usual, other, 2);
  for (unsigned round = 0; round < ROUNDS; round++) {
    pthread_t thread;
    void *fresh = NULL, *event = NULL;
    CALL(cuEventCreate, &event, EVENT_DEFAULT);
    work(usual, other, 1);
    CALL(cuEventRecord, event, other);
    CALL(cuStreamWaitValue32, full_stream, at_device + 4 * round, 1, 0);
    pthread_create(&thread, NULL, fill, (void *)(uintptr_t)round);
    sleep_until(now_ns() + 30000000u);
    /* None of these calls needs the full stream, so each must return. */
    work(usual, other, 3);
    CALL(cuEventSynchronize, event);
    CALL(cuStreamSynchronize, other);
    CALL(cuStreamCreate, &fresh, STREAM_NON_BLOCKING);
    work(usual, fresh, 1);
    CALL(cuStreamSynchronize, fresh);
    CALL(cuStreamDestroy, fresh);
    __atomic_store_n(&words[round], 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    CALL(cuStreamSynchronize, full_stream);
  }
  puts("released");
}

/* ---- a thread launches behind a word that another thread writes after a launch of its own ---- */

static void *unknown; /* a kernel that was never launched before, or with an argument a long one that was */

static int behind_count;

static void *launch_behind(void *stream) {
  use_context();
  work(unknown, stream, behind_count);
  return NULL;
}

static void behind(const char *known) {
  behind_count = known ? 3 : 50;
  void *waits = NULL, *other = NULL;
  device_pointer at_device = 0;
  uint32_t *words = mapped(4096, &at_device);
  CALL(cuStreamCreate, &waits, STREAM_NON_BLOCKING);
  CALL(cuStreamCreate, &other, STREAM_NON_BLOCKING);
  for (unsigned round = 0; round < ROUNDS; round++) {
    pthread_t thread;
    const uint64_t unit_ns = known ? 60000000 : 40000 + round;
    if (!known || !round)
      unknown = find_kernel(load_module(&unit_ns, 1), unit_ns);
    if (known && !round) {
      work(unknown, other, 2);
      CALL(cuCtxSynchronize);
    }
    CALL(cuStreamWaitValue32, waits, at_device + 4 * round, 1, 0);
    pthread_create(&thread, NULL, launch_behind, waits);
    sleep_until(now_ns() + 30000000u);
    uint64_t began_ns = now_ns();
    work(unknown, other, 1);
    printf("%llu ", (unsigned long long)((now_ns() - began_ns) / 1000000u));
    fflush(stdout);
    __atomic_store_n(&words[round], 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    CALL(cuCtxSynchronize);
  }
  puts("ms");
}

/* ---- no thread can be made when the first kernel is launched; later one can ---- */

static void write_text(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  if (!file || fputs(text, file) < 0 || fclose(file))
    die("%s cannot be written", path);
}

static int launch_for(uint64_t seconds) {
  int count = 0;
  for (uint64_t end_ns = now_ns() + seconds * 1000000000u; now_ns() < end_ns; count += 4) {
    work(usual, NULL, 4);
    CALL(cuCtxSynchronize);
  }
  return count;
}

static void alone(const char *limit) {
  write_text(limit, "1");
  int before = launch_for(2);
  write_text(limit, "max");
  printf("%d\n", before);
  printf("%d\n", launch_for(3));
}

/* ---- two threads launch while the first of them starts the helper thread, which fails ---- */

static void *launch_at_once(void *go) {
  use_context();
  pthread_barrier_wait(go);
  work(usual, NULL, 100);
  return NULL;
}

static void together(const char *path) {
  (void)path;
  pthread_t thread;
  pthread_barrier_t go;
  pthread_barrier_init(&go, NULL, 2);
  pthread_create(&thread, NULL, launch_at_once, &go);
  launch_at_once(&go);
  pthread_join(thread, NULL);
  CALL(cuCtxSynchronize);
}

/* ---- the program executes another, which needs the same memory ---- */

static void becomes(const char *generation) {
  device_pointer memory = 0;
  if (TRY(cuMemAlloc, &memory, (size_t)600 << 20))
    die("600 MiB were refused in generation %s", generation);
  char next[2] = {(char)(generation[0] + 1)};
  if (generation[0] < '3')
    execl("/proc/self/exe", "rude_program", "becomes", next, (char *)NULL);
  puts("three generations");
}

/* ---- two threads ask for more memory than the cap, and one for little that is free ---- */

static void *ask_too_much(void *unused) {
  (void)unused;
  device_pointer memory = 0;
  size_t bytes = (size_t)1000 << 20; /* below the cap, which is 1 GiB, but 100 MiB of it are taken */
  use_context();
  for (;;)
    if (!TRY(cuMemAlloc, &memory, bytes) || !TRY(cuMemAlloc, &memory, (size_t)2 << 30))
      die("more than the cap was granted");
  return NULL;
}

static void beside_too_much(const char *path) {
  (void)path;
  pthread_t thread;
  int refused = 0;
  device_pointer kept = 0;
  CALL(cuMemAlloc, &kept, (size_t)100 << 20);
  for (int i = 0; i < 2; i++)
    pthread_create(&thread, NULL, ask_too_much, NULL);
  for (uint64_t end_ns = now_ns() + 1000000000u; now_ns() < end_ns;) {
    device_pointer memory = 0;
    if (TRY(cuMemAlloc, &memory, (size_t)1 << 20))
      refused++;
    else
      CALL(cuMemFree, memory);
  }
  printf("%d\n", refused);
  fflush(stdout);
  _exit(0);
}

/* ---- the first thread ends, and the other goes on ---- */

static void *work_on(void *unused) {
  (void)unused;
  use_context();
  work(usual, NULL, 40);
  CALL(cuCtxSynchronize);
  puts("the other has ended");
  return NULL;
}

static void ends_first(const char *path) {
  (void)path;
  pthread_t thread;
  pthread_create(&thread, NULL, work_on, NULL);
  pthread_detach(thread);
  pthread_exit(NULL);
}

/* ---- a primary context that has another reference is released while it works ---- */

static void releases(const char *path) {
  (void)path;
  void *same = NULL;
  uint64_t longest_ns = 0;
  for (int i = 0; i < 5; i++) {
    CALL(cuDevicePrimaryCtxRetain, &same, 0);
    work(usual, NULL, 40);
    uint64_t began_ns = now_ns();
    CALL(cuDevicePrimaryCtxRelease, 0);
    uint64_t took_ns = now_ns() - began_ns;
    longest_ns = i && took_ns > longest_ns ? took_ns : longest_ns;
    CALL(cuCtxSynchronize);
  }
  printf("%" PRIu64 "\n", longest_ns);
}

static const struct mode modes[] = {{"cancelled", cancelled},
                                    {"closed", closed},
                                    {"replaced", replaced},
                                    {"full", full},
                                    {"alone", alone},
                                    {"becomes", becomes},
                                    {"beside_too_much", beside_too_much},
                                    {"ends_first", ends_first},
                                    {"releases", releases},
                                    {"behind", behind},
                                    {"together", together}};

int main(int count, char **arguments) {
  return run_mode(count, arguments, modes, sizeof modes / sizeof *modes);
}
