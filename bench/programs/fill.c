/*
 * fill: an ordinary driver-API program that allocates, for the bench of the memory cap. It knows nothing of shares.
 *
 *     fill kinds [count=ROUNDS]             fill the memory that the driver says is free, to the byte, by every kind of
 *                                           allocation
 *     fill pairs [count=BATCHES] [live=N]   the host's time per allocation and free beside N live ones, in batches
 *     fill grow bytes=N every=TIME          take N more bytes each time until STOP, and keep them; try again if they do
 *                                           not fit
 *
 * With `wait=1` it prints "ready" when its context exists, and reads "START STOP" from stdin. The last line printed is
 * one JSON object. Exit 0, or 1 with the failing call on stderr.
 */
#define _GNU_SOURCE
#include "memory_kinds.h"
#include "start.h"

#define BATCH           1000u
#define PAIR_BYTES      512u
#define TABLE_ROW_BYTES 64u /* rows of 32 bytes, at least half of them free */
#define TABLE_BYTES     (1u << 20)

static struct {
  uint64_t count, live, bytes, every_ns, wait;
} options = {.count = 1, .live = 100000, .bytes = 1u << 20, .every_ns = 1000000000};

/* The next one of a sequence of random numbers, of which the upper bits are good (Knuth's MMIX). */
static uint64_t next_random(uint64_t number) {
  return number * 6364136223846793005u + 1442695040888963407u;
}

/* Measure the cost of reading two distant cache lines, one after the other, of a table as large as a hook's table of
 * `live` allocations. Any table has to read one line for the freed entry, and one for the entry that replaces it. */
static void time_cold_lines(uint64_t *batch_ns) {
  size_t bytes = TABLE_BYTES;
  while (bytes < options.live * TABLE_ROW_BYTES)
    bytes *= 2;
  unsigned char *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table == MAP_FAILED)
    die("no memory");
  madvise(table, bytes, MADV_HUGEPAGE);
  memset(table, 0, bytes);
  uint64_t random = 0;
  for (uint64_t batch = 0; batch < options.count; batch++) {
    uint64_t began_ns = now_ns();
    for (uint64_t line = 0; line < 2 * BATCH; line++) {
      random = next_random(random);
      unsigned char *there = &table[(random >> 20) % bytes / 64 * 64];
      random += *there; /* the next address depends on this one, so that the reads cannot overlap */
      *there = 0;
    }
    batch_ns[batch] = now_ns() - began_ns;
  }
  munmap(table, bytes);
}

/* Beside many live allocations measure two kinds of pairs: allocate one and free it; then free any of the live ones and
 * allocate another in its place, of which neither entry is in a cache. */
static void time_pairs(void) {
  device_pointer *live = allocate(options.live, sizeof *live), one;
  uint64_t *pair_ns = allocate(options.count, sizeof *pair_ns), *any_ns = allocate(options.count, sizeof *any_ns);
  uint64_t *cold_ns = allocate(options.count, sizeof *cold_ns);
  uint64_t random = 0;
  for (uint64_t i = 0; i < options.live; i++)
    CALL(cuMemAlloc, &live[i], PAIR_BYTES);
  for (uint64_t batch = 0; batch < options.count; batch++) {
    uint64_t began_ns = now_ns();
    for (uint64_t pair = 0; pair < BATCH; pair++) {
      CALL(cuMemAlloc, &one, PAIR_BYTES);
      CALL(cuMemFree, one);
    }
    pair_ns[batch] = now_ns() - began_ns;
  }
  for (uint64_t batch = 0; batch < options.count; batch++) {
    uint64_t began_ns = now_ns();
    for (uint64_t pair = 0; pair < BATCH; pair++) {
      random = next_random(random);
      device_pointer *any = &live[(random >> 33) % options.live];
      CALL(cuMemFree, *any);
      CALL(cuMemAlloc, any, PAIR_BYTES);
    }
    any_ns[batch] = now_ns() - began_ns;
  }
  printf(", \"group\": %u", BATCH);
  print_list("batch_ns", pair_ns, options.count);
  print_list("any_ns", any_ns, options.count);
  time_cold_lines(cold_ns);
  print_list("cold_ns", cold_ns, options.count);
  for (uint64_t i = 0; i < options.live; i++)
    CALL(cuMemFree, live[i]);
  free(live);
  free(pair_ns);
  free(cold_ns);
  free(any_ns);
}

/* Take `bytes` bytes more every time, and count the refusals. */
static void grow(uint64_t stop_ns) {
  uint64_t refused = 0;
  for (uint64_t due_ns = now_ns(); due_ns < stop_ns; due_ns += options.every_ns) {
    sleep_until(due_ns);
    device_pointer kept = 0;
    int result = cuMemAlloc(&kept, options.bytes);
    refused += result == ERROR_OUT_OF_MEMORY;
    if (result != ERROR_OUT_OF_MEMORY)
      check(result, "cuMemAlloc");
  }
  sleep_until(stop_ns);
  printf(", \"refused\": %" PRIu64, refused);
}

int main(int count, char **arguments) {
  const struct option known[] = {{"count", &options.count, false},
                                 {"live", &options.live, false},
                                 {"bytes", &options.bytes, false},
                                 {"every", &options.every_ns, true},
                                 {"wait", &options.wait, false}};
  const char *mode = count > 1 ? arguments[1] : "";
  bool pairs = !strcmp(mode, "pairs"), grows = !strcmp(mode, "grow");
  if (!pairs && !grows && strcmp(mode, "kinds"))
    die("usage: fill kinds|pairs|grow [option=value ...]");
  for (int i = 2; i < count; i++)
    if (parse_option(known, sizeof known / sizeof *known, arguments[i]))
      die("no option `%s`", arguments[i]);
  begin_program();
  open_context(0);
  open_kinds();
  uint64_t start_ns, stop_ns;
  await_go(options.wait, 0, &start_ns, &stop_ns);
  printf("{\"pid\": %d, \"start_ns\": %" PRIu64 ", \"launches\": 0, \"work_ns\": 0", (int)getpid(), start_ns);
  if (pairs)
    time_pairs();
  else if (grows)
    grow(stop_ns);
  else
    fill_kinds(options.count, SIZE_MAX, NULL);
  printf(", \"end_ns\": %" PRIu64 "}\n", now_ns());
  return 0;
}
