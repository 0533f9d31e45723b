/*
 * Fills the memory cap by every kind of allocation. Only plain allocations are made, and nothing is oversubscribed:
 * requests past the cap are far below the device's memory.
 */
#define _GNU_SOURCE
#include "memory_kinds.h"
#include "probe.h"

static void begin(void) {
  begin_result(0, 0);
}

void run_memory(void) {
  open_kinds();
  await_start();
  fill_kinds(options.count ? options.count : 1, options.bytes, begin);
}
