/*
 * A gate that lets everything pass and remembers: linked with the interposition sources into a test library in place
 * of the real one, and into it alone.
 */
#include <stdlib.h>
#include <string.h>

#include "../../../../hook/gate.h"
#include "../../../../hook/memory.h"
#include "../../../../hook/nvml.h"

#define EXPORT __attribute__((visibility("default")))

struct gate_log {
  uint64_t enters, leaves, synced, captures_begun, captures_ended, streams_forgotten, contexts_forgotten, attaches,
      context_changes, units_changed, copied_bytes[2], copied[2];
  uint64_t key, stream, per_thread, left_with, forgotten, passed;
};
EXPORT struct gate_log test_log;
EXPORT uint64_t test_memory_limit_bytes = UINT64_MAX, test_memory_used_bytes[8];
EXPORT int test_attach_fails;

bool sp_gate_attached(void) {
  return true;
}

void sp_gate_enter(struct sp_pass *pass, void *stream, bool per_thread, uint64_t key) {
  memset(pass, 0, sizeof(*pass));
  test_log.enters++;
  test_log.key = key;
  test_log.stream = (uint64_t)stream;
  test_log.per_thread = per_thread;
}

void sp_gate_leave(struct sp_pass *pass, int result) {
  (void)pass;
  test_log.leaves++;
  test_log.left_with = (uint64_t)result;
}

void sp_gate_passed(void) {
  test_log.passed++;
}

void sp_attach_failed(int result) {
  (void)result;
}

void sp_share_no_device(int ordinal) {
  (void)ordinal;
}

void sp_share_no_function(const char *name) {
  (void)name;
}

bool sp_share_refuses(int ordinal) {
  (void)ordinal;
  return false;
}

void sp_gate_syncing(void *stream, bool per_thread, enum sp_sync sync) {
  (void)stream;
  (void)per_thread;
  (void)sync;
}

void sp_gate_synced(void) {
  test_log.synced++;
}

void sp_copied(void *stream, bool per_thread, enum sp_way way, uint64_t bytes, uint64_t count) {
  (void)stream;
  (void)per_thread;
  test_log.copied_bytes[way] += bytes;
  test_log.copied[way] += count;
}

void sp_gate_capture_begin(void *stream, bool per_thread) {
  test_log.captures_begun++;
  test_log.stream = (uint64_t)stream;
  test_log.per_thread = per_thread;
}

void sp_gate_capture_end(void *stream, bool per_thread) {
  test_log.captures_ended++;
  test_log.stream = (uint64_t)stream;
  test_log.per_thread = per_thread;
}

EXPORT int test_captures;
bool sp_gate_captures(void) {
  return test_captures != 0;
}

void sp_gate_unit_changed(uint64_t key, bool gone) {
  test_log.units_changed++;
  test_log.key = key;
  test_log.left_with = gone;
}

void sp_gate_forget_stream(void *stream) {
  test_log.streams_forgotten++;
  test_log.stream = (uint64_t)stream;
}

void sp_gate_forget_context(void *context) {
  test_log.contexts_forgotten++;
  test_log.forgotten = (uint64_t)context;
}

void sp_gate_context_changed(void) {
  test_log.context_changes++;
}

bool sp_attach(void) {
  test_log.attaches++;
  return !test_attach_fails;
}

int sp_share_memory_try(int device_ordinal, uint64_t bytes) {
  uint64_t *used = &test_memory_used_bytes[device_ordinal & 7];
  uint64_t before = __atomic_load_n(used, __ATOMIC_RELAXED);
  do {
    if (test_memory_limit_bytes != UINT64_MAX &&
        (before > test_memory_limit_bytes || bytes > test_memory_limit_bytes - before)) {
      return -1;
    }
  } while (!__atomic_compare_exchange_n(used, &before, before + bytes, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return 0;
}

void sp_slot_memory(int device_ordinal, int64_t delta_bytes) {
  __atomic_fetch_add(&test_memory_used_bytes[device_ordinal & 7], (uint64_t)delta_bytes, __ATOMIC_RELAXED);
}

uint64_t sp_share_memory_limit(int device_ordinal) {
  (void)device_ordinal;
  return test_memory_limit_bytes;
}

uint64_t sp_share_memory_used(int device_ordinal) {
  return __atomic_load_n(&test_memory_used_bytes[device_ordinal & 7], __ATOMIC_RELAXED);
}

EXPORT uint64_t test_context_bytes, test_context_memory_bytes, test_refusals, test_refused_bytes;

void sp_slot_context_memory(int device_ordinal, int64_t delta_bytes) {
  (void)device_ordinal;
  __atomic_fetch_add(&test_context_memory_bytes, (uint64_t)delta_bytes, __ATOMIC_RELAXED);
}

void sp_slot_memory_refused(int device_ordinal, uint64_t bytes) {
  (void)device_ordinal;
  __atomic_fetch_add(&test_refusals, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&test_refused_bytes, bytes, __ATOMIC_RELAXED);
}

uint64_t sp_share_context_bytes(int device_ordinal) {
  (void)device_ordinal;
  return test_context_bytes;
}

/* NVML's answers are cut down to a share's with the whole hook: here nobody is in one. */
bool sp_view_open(struct sp_view *view) {
  view->region = NULL;
  return false;
}

void sp_view_close(struct sp_view *view) {
  (void)view;
}

bool sp_view_has_pid(const struct sp_view *view, uint32_t pid) {
  (void)view, (void)pid;
  return false;
}

void sp_view_memory(const struct sp_view *view, const char *uuid, uint64_t *total_bytes, uint64_t *used_bytes,
                    uint64_t *free_bytes) {
  (void)view, (void)uuid, (void)total_bytes, (void)used_bytes, (void)free_bytes;
}
