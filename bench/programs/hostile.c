/*
 * hostile: a tenant that attacks by its own region, for the stress test: noise in its slots, a doorbell that never
 * rests, locks on every record of its file, a file that is truncated or grows.
 *     hostile SEED [tame]                                       (SHAREPOD_REGION names its directory)
 *
 * A tame tenant does the same to a file of its own, which no process reads: the others are compared beside it. So it is
 * as busy, in the kernel too.
 *
 * Prints "ready", reads "START STOP" (CLOCK_MONOTONIC ns) from stdin, prints one JSON object. What happens to its own
 * share is its own fault.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program.h"

#define PAUSE_NS   300000
#define LOCKS      16000
#define GROWN      (1 << 20)
#define NOISE_MAX  4096
#define NAME_BYTES 4096

static uint64_t state;

/* xorshift64*: a random number below `below`. */
static uint32_t draw(uint32_t below) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (uint32_t)((state * 0x2545f4914f6cdd1du) >> 33) % below;
}

/* Open a file of the tenant's own region. */
static int open_file(const char *name, int flags) {
  char path[NAME_BYTES];
  const char *directory = getenv("SHAREPOD_REGION");
  if (!directory)
    die("hostile: SHAREPOD_REGION is not set");
  snprintf(path, sizeof path, "%s/%s", directory, name);
  int file = open(path, flags | O_CLOEXEC);
  if (file < 0)
    die("hostile: %s cannot be opened", path);
  return file;
}

/* Overwrite a random part of the slots: with random bytes, or at times with ones alone. */
static void write_noise(int slots, off_t bytes) {
  unsigned char noise[NOISE_MAX];
  uint32_t kind = draw(3);
  for (size_t i = 0; i < sizeof noise; i++)
    noise[i] = (unsigned char)(kind ? draw(256) : 255);
  if (pwrite(slots, noise, draw(NOISE_MAX) + 1, draw((uint32_t)bytes)) < 0)
    return; /* this call may be forbidden, but the next may be allowed */
}

/* Lock every other byte, so that no two locks merge. */
static void lock_records(int slots) {
  uint32_t count = draw(LOCKS);
  for (uint32_t i = 0; i < count; i++) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * (off_t)i, .l_len = 1};
    if (fcntl(slots, F_SETLK, &lock))
      return;
  }
}

static void unlock_records(int slots) {
  struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
  fcntl(slots, F_SETLK, &lock);
}

/* Cut the file, or let it grow. */
static void resize(int slots, off_t bytes) {
  off_t size = draw(2) ? (off_t)draw((uint32_t)bytes) : bytes + (off_t)draw(GROWN);
  if (ftruncate(slots, size))
    return;
}

int main(int count, char **arguments) {
  if (count != 2 && (count != 3 || strcmp(arguments[2], "tame")))
    die("usage: hostile SEED [tame]");
  bool tame = count == 3;
  state = parse_number(arguments[1]) * 0x9e3779b97f4a7c15u | 1u;
  int slots = open_file("slots", O_RDWR);
  struct stat status;
  if (fstat(slots, &status))
    die("hostile: its slots have no size");
  if (tame && ((slots = memfd_create("tame", MFD_CLOEXEC)) < 0 || ftruncate(slots, status.st_size)))
    die("hostile: it gets no file of its own");
  int bell = tame ? open("/dev/null", O_WRONLY | O_CLOEXEC) : open_file("bell", O_WRONLY | O_NONBLOCK);
  uint64_t start_ns, stop_ns, tricks = 0;
  hear_start(&start_ns, &stop_ns);
  sleep_until(start_ns);
  for (; now_ns() < stop_ns; tricks++) {
    uint32_t trick = draw(64);
    if (trick == 0)
      lock_records(slots);
    else if (trick == 1)
      unlock_records(slots);
    else if (trick == 2)
      resize(slots, status.st_size);
    else
      write_noise(slots, status.st_size);
    if (write(bell, "\0\0\0", 4) != 4 || !draw(4)) /* full: the agent has something to read */
      sleep_until(now_ns() + draw(PAUSE_NS));
  }
  printf("{\"pid\": %d, \"start_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64
         ", \"launches\": 0, \"work_ns\": 0, \"tricks\": %" PRIu64 "}\n",
         getpid(), start_ns, now_ns(), tricks);
  return 0;
}
