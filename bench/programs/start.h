/*
 * start: the begin and the end of programs that put work on a device, the begin of their results, and their graphs.
 */
#ifndef SHAREPOD_BENCH_START_H
#define SHAREPOD_BENCH_START_H

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "client.h"

static volatile sig_atomic_t stopped;

static inline void on_signal(int signal_number) {
  (void)signal_number;
  stopped = 1;
}

/* Whether the program goes on: it was not asked to stop, and its time is not up. */
static inline bool goes_on(uint64_t stop_ns) {
  return !stopped && now_ns() < stop_ns;
}

/* On SIGTERM the program drains its work and prints its result. */
static inline void stop_on_signal(void) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigaction(SIGTERM, &action, NULL);
}

static inline void begin_program(void) {
  prctl(PR_SET_TIMERSLACK, 1);
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a bench that dies leaves no load behind */
  load_driver();
}

/* Return at the start time: the one read from stdin, or now with the stop `seconds_ns` later. */
static inline void await_go(bool told, uint64_t seconds_ns, uint64_t *start_ns, uint64_t *stop_ns) {
  *start_ns = now_ns();
  *stop_ns = *start_ns + seconds_ns;
  if (told)
    hear_start(start_ns, stop_ns);
  sleep_until(*start_ns);
}

/* Read a list with commas. Return its length. */
static inline size_t parse_list(char *text, uint64_t *values, size_t most, uint64_t (*read)(const char *)) {
  size_t count = 0;
  for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
    if (count == most)
      die("more than %zu values in a list", most);
    values[count++] = read(part);
  }
  return count;
}

/* Print the common part of every result, without the closing brace. */
static inline void print_begin(uint64_t start_ns, uint64_t end_ns, uint64_t launches, uint64_t work_ns) {
  printf("{\"pid\": %d, \"start_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 ", \"launches\": %" PRIu64
         ", \"work_ns\": %" PRIu64,
         getpid(), start_ns, end_ns, launches, work_ns);
}

static inline void begin_capture(void *stream) {
  CALL(cuStreamBeginCapture, stream, CAPTURE_RELAXED);
}

/* The executable graph of the work launched into the stream since `begin_capture`. */
static inline void *end_capture(void *stream) {
  void *graph = NULL, *executable = NULL;
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  return executable;
}

#endif
