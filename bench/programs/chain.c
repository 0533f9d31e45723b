/*
 * chain: measures how fast a bare hand-off through a third process can be on this machine now.
 *
 * Three processes use nothing but futexes: the giver stamps the time and wakes the middle process. That wakes the
 * taker, which stamps the time. Between two rounds all of them sleep, as between two turns.
 *
 *     chain [ROUNDS [PAUSE_US]]
 *
 * Prints one JSON object: {"hops_ns": [...]}, the time from giver to taker of every round.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

#define ROUNDS_MAX 100000ul

struct page {
  _Alignas(64) _Atomic uint32_t middle; /* rounds that the giver has given */
  _Alignas(64) _Atomic uint32_t taker;  /* rounds that the middle process has passed on */
  _Alignas(64) _Atomic uint32_t done;   /* rounds that the taker has measured: the next one starts after that */
  _Alignas(64) uint64_t given_ns;       /* published by `middle`, then `taker` (release, acquire) */
  uint64_t hops_ns[ROUNDS_MAX];
};

/* Sleep until the word has this value. */
static void await(_Atomic uint32_t *word, uint32_t value) {
  uint32_t seen;
  while ((seen = atomic_load_explicit(word, memory_order_acquire)) != value)
    syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void post(_Atomic uint32_t *word, uint32_t value) {
  atomic_store_explicit(word, value, memory_order_release);
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void pass_on(struct page *page, uint32_t rounds) {
  for (uint32_t i = 1; i <= rounds; i++) {
    await(&page->middle, i);
    post(&page->taker, i);
  }
}

static void take(struct page *page, uint32_t rounds) {
  for (uint32_t i = 1; i <= rounds; i++) {
    await(&page->taker, i);
    page->hops_ns[i - 1] = now_ns() - page->given_ns;
    atomic_store_explicit(&page->done, i, memory_order_release);
  }
}

/* Start a process that runs this function, and dies with this one. */
static pid_t start(void (*run)(struct page *, uint32_t), struct page *page, uint32_t rounds) {
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run(page, rounds);
    _exit(0);
  }
  return pid;
}

int main(int count, char **arguments) {
  unsigned long rounds = count > 1 ? strtoul(arguments[1], NULL, 10) : 1000;
  unsigned long pause_us = count > 2 ? strtoul(arguments[2], NULL, 10) : 1000;
  if (rounds < 1 || rounds > ROUNDS_MAX || pause_us > 1000000)
    die("chain: rounds 1..%lu, pause at most 1000000 µs", ROUNDS_MAX);
  struct page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    die("chain: no memory");
  pid_t middle = start(pass_on, page, (uint32_t)rounds), taker = start(take, page, (uint32_t)rounds);
  if (middle < 0 || taker < 0)
    die("chain: no process");
  struct timespec pause = {.tv_sec = (time_t)(pause_us / 1000000), .tv_nsec = (long)(pause_us % 1000000) * 1000};
  for (uint32_t i = 1; i <= rounds; i++) {
    do /* the clock alone wakes the giver, as the device wakes a keeper: a wake-up by the taker would move it */
      nanosleep(&pause, NULL);
    while (atomic_load_explicit(&page->done, memory_order_acquire) != i - 1);
    page->given_ns = now_ns();
    post(&page->middle, i);
  }
  waitpid(middle, NULL, 0);
  waitpid(taker, NULL, 0);
  fputs("{\"hops_ns\": [", stdout);
  for (uint32_t i = 0; i < rounds; i++)
    printf(i ? ", %" PRIu64 : "%" PRIu64, page->hops_ns[i]);
  puts("]}");
  return 0;
}
