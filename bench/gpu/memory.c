/*
 * The memory cap, by every kind of allocation; plain allocations only, and nothing is ever oversubscribed: what is past
 * the cap is far below what the device has.
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
