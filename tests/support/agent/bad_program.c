/*
 * A program in a share that meets bad input. It calls the driver through dlsym, as most programs do, and prints what
 * every call answered. A crash shows in its exit status. See main for what it does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MISSING       (-1)
#define OUT_OF_MEMORY 2
#define BYTES         (1u << 20)

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k_20us()\n{\n ret;\n}\n";

static void *find(const char *name) {
  static void *driver;
  if (!driver)
    driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver ? dlsym(driver, name) : NULL;
}

/* What the function answers, or MISSING if the driver lacks it. */
#define CALL(name, types, ...) (find(#name) ? ((int(*) types)find(#name))(__VA_ARGS__) : MISSING)

/* Whether each answer is printed. */
static int loud;

static int say(const char *call, int answer) {
  if (loud)
    printf("%s %d ", call, answer);
  return answer;
}

static int launch(void *function) {
  return CALL(cuLaunchKernel,
              (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
              function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static int allocate(uint64_t *address, size_t bytes) {
  return CALL(cuMemAlloc_v2, (uint64_t *, size_t), address, bytes);
}

static int give_back(uint64_t *address) {
  int result = *address ? CALL(cuMemFree_v2, (uint64_t), *address) : 0;
  *address = 0;
  return result;
}

/* Makes a context on the device of that number and loads a module; returns a kernel of it, or NULL if a call failed. */
static void *begin(int ordinal) {
  void *context = NULL, *module = NULL, *function = NULL;
  int device = ordinal, result;
  if (say("init", CALL(cuInit, (unsigned), 0)))
    return NULL;
  result = say("device", CALL(cuDeviceGet, (int *, int), &device, ordinal));
  if (result && result != MISSING)
    return NULL;
  if (say("retain", CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, device)))
    return NULL;
  if (CALL(cuCtxSetCurrent, (void *), context) == MISSING)
    CALL(cuCtxPushCurrent_v2, (void *), context);
  result = CALL(cuModuleLoadData, (void **, const void *), &module, ptx);
  if (!result)
    result = CALL(cuModuleGetFunction, (void **, void *, const char *), &function, module, "k_20us");
  return say("load", result) ? NULL : function;
}

/* Lives a whole short life and prints what each call answered. */
static void once(int ordinal) {
  uint64_t address = 0;
  void *event;
  loud = 1;
  void *function = begin(ordinal);
  if (function) {
    say("alloc", allocate(&address, BYTES));
    for (int count = 0; count < 4; count++)
      say("launch", launch(function));
    if (!CALL(cuEventCreate, (void **, unsigned), &event, 0))
      say("record", CALL(cuEventRecord, (void *, void *), event, NULL));
    say("sync", CALL(cuCtxSynchronize, (void)));
    say("free", give_back(&address));
    say("release", CALL(cuDevicePrimaryCtxRelease_v2, (int), 0));
  }
  putchar('\n');
  fflush(stdout);
}

/* What the test sees of a program that works on: rounds made, allocations refused, first error that was no refusal. */
struct rounds {
  uint64_t made, refused, error, stop;
};

static void work_on(const char *path) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  struct rounds *rounds = mmap(NULL, sizeof *rounds, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  void *function = begin(0);
  puts(function ? "ready" : "failed");
  fflush(stdout);
  uint64_t small[2] = {0, 0}, large = 0;
  while (function && !__atomic_load_n(&rounds->stop, __ATOMIC_ACQUIRE)) {
    /* The program holds more than it asks for next, so an account that was lost would fall below zero. */
    int answers[] = {
        allocate(&small[0], BYTES),  give_back(&large), allocate(&small[1], BYTES), give_back(&small[1]),
        allocate(&large, 4 * BYTES), launch(function),  launch(function),           CALL(cuCtxSynchronize, (void)),
        give_back(&small[0])};
    for (size_t call = 0; call < sizeof answers / sizeof *answers; call++) {
      rounds->refused += answers[call] == OUT_OF_MEMORY;
      if (!rounds->error && answers[call] != OUT_OF_MEMORY)
        rounds->error = (uint64_t)answers[call];
    }
    __atomic_fetch_add(&rounds->made, 1, __ATOMIC_RELEASE);
  }
}

/* For each line of input a child lives once; the answer is the child's exit status. */
static void children(void) {
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      once(0);
      exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("status %d\n", status);
    fflush(stdout);
  }
}

/* Keeps `count` processes that have started CUDA until stdin ends. */
static void crowd(int count) {
  int said[2], failed = 0, result;
  if (pipe(said))
    exit(5);
  for (int started = 0; started < count; started++) {
    if (fork() == 0) {
      char end;
      result = CALL(cuInit, (unsigned), 0);
      if (write(said[1], &result, sizeof result) != sizeof result || read(STDIN_FILENO, &end, 1))
        _exit(5);
      _exit(0);
    }
    failed += read(said[0], &result, sizeof result) != sizeof result || result;
  }
  puts(failed ? "failed" : "ready");
  fflush(stdout);
  for (int ended = 0; ended < count; ended++)
    wait(NULL);
}

static void own_handler(int number) {
  static const char text[] = "own handler\n";
  ssize_t put = write(STDOUT_FILENO, text, sizeof text - 1);
  (void)put;
  _exit(number == SIGBUS ? 3 : 4);
}

/* Causes a fault that the hook has no part in: a page of the program's own file is gone. */
static void fault(void) {
  int fd = memfd_create("own", MFD_CLOEXEC);
  if (ftruncate(fd, 4096))
    exit(5);
  volatile char *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  if (ftruncate(fd, 0))
    exit(5);
  (void)page[0];
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  const char *with = count > 2 ? arguments[2] : "";
  if (!strcmp(what, "once")) { /* ORDINAL: one short life on that device */
    once(atoi(with));
  } else if (!strcmp(what, "rounds")) { /* FILE: works until it is told to stop */
    work_on(with);
  } else if (!strcmp(what, "children")) { /* one short life per line */
    children();
  } else if (!strcmp(what, "crowd")) { /* COUNT */
    crowd(atoi(with));
  } else if (!strcmp(what, "lacks")) { /* NAME: calls what the loader gives it under that name */
    void *function = begin(0) ? dlsym(RTLD_DEFAULT, with) : NULL;
    printf("%d\n", function ? ((int (*)(void *, size_t, unsigned))function)(&what, 4096, 1) : MISSING);
  } else if (!strcmp(what, "fault")) { /* the program's own fault, "handled" or not, or a SIGBUS that is "sent" */
    if (!strcmp(with, "handled"))
      signal(SIGBUS, own_handler);
    puts(begin(0) ? "ready" : "failed");
    fflush(stdout);
    if (!strcmp(with, "sent"))
      raise(SIGBUS);
    fault();
  }
  return 0;
}
