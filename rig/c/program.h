/*
 * program: the common part of all C programs of benches and tests: time, options, errors, lists of results, and the
 * driver's functions, found as real programs find them (dlopen, then cuGetProcAddress). client.h includes it.
 */
#ifndef SHAREPOD_RIG_PROGRAM_H
#define SHAREPOD_RIG_PROGRAM_H

#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

/* A zeroed array. Without memory the program ends. */
static inline void *allocate(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory)
    die("no memory for %zu values", count);
  return memory;
}

/* ---- time: CLOCK_MONOTONIC ---- */

static inline uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void sleep_until(uint64_t time_ns) {
  struct timespec time = {.tv_sec = (time_t)(time_ns / 1000000000u), .tv_nsec = (long)(time_ns % 1000000000u)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

/* Print that the work may begin, then read from stdin when it has to begin and when to stop. */
static inline void hear_start(uint64_t *start_ns, uint64_t *stop_ns) {
  puts("ready");
  fflush(stdout);
  if (scanf("%" SCNu64 " %" SCNu64, start_ns, stop_ns) != 2)
    die("no start and stop time on stdin");
}

/* ---- options: `program MODE [option=value ...]` ---- */

struct option {
  const char *name;
  uint64_t *value;
  bool time; /* with a suffix: ns, us, ms, s */
};

/* The nanoseconds of a text like `500us`. Any other text ends the program. */
static inline uint64_t parse_time(const char *text) {
  static const struct {
    const char *suffix;
    uint64_t ns;
  } suffixes[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
  char *end;
  double value = strtod(text, &end);
  for (size_t i = 0; end != text && i < sizeof suffixes / sizeof *suffixes; i++)
    if (!strcmp(end, suffixes[i].suffix))
      return (uint64_t)(value * (double)suffixes[i].ns + 0.5);
  die("`%s` is not a time: give ns, us, ms or s", text);
}

/* The value of decimal digits. Any other text ends the program. */
static inline uint64_t parse_number(const char *text) {
  char *end;
  uint64_t value = strtoull(text, &end, 10);
  if (end == text || *end)
    die("`%s` is not a number", text);
  return value;
}

/* Read "name=value" into the option of that name, and return NULL. If the table has no such option, return the value;
 * `argument` is then the name alone. */
static inline char *parse_option(const struct option *known, size_t count, char *argument) {
  char *value = strchr(argument, '=');
  if (!value)
    die("`%s` is not option=value", argument);
  *value++ = 0;
  for (size_t row = 0; row < count; row++)
    if (!strcmp(known[row].name, argument)) {
      *known[row].value = known[row].time ? parse_time(value) : parse_number(value);
      return NULL;
    }
  return value;
}

/* ---- results ---- */

/* A comparison for qsort. */
static inline int ascending(const void *left, const void *right) {
  uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return a < b ? -1 : a > b;
}

/* Print a list as one more member of a JSON object that is being printed. */
static inline void print_list(const char *name, const uint64_t *values, size_t count) {
  printf(", \"%s\": [", name);
  for (size_t i = 0; i < count; i++)
    printf(i ? ", %" PRIu64 : "%" PRIu64, values[i]);
  putchar(']');
}

/* ---- the driver ---- */

/* The driver's function of that name, in the variant for `version` (12000 is CUDA 12.0); NULL: it has none. */
static inline void *find_function(const char *name, int version) {
  static void *library;
  static int (*get_v2)(const char *, void **, int, uint64_t, int *);
  static int (*get_v1)(const char *, void **, int, uint64_t);
  if (!library) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
      die("%s", dlerror());
    *(void **)&get_v2 = dlsym(library, "cuGetProcAddress_v2");
    *(void **)&get_v1 = dlsym(library, "cuGetProcAddress");
    if (!get_v2 && !get_v1)
      die("the driver has no cuGetProcAddress");
  }
  void *address = NULL;
  int status;
  int result = get_v2 ? get_v2(name, &address, version, 0, &status) : get_v1(name, &address, version, 0);
  return result == 0 ? address : NULL;
}

#define FIND(place, name) *(void **)&(place) = find_function(name, CUDA_VERSION)

#endif
