#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct process process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- handles ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
static struct handle *free_handles[LINK_HANDLE - CONTEXT_HANDLE + 1];

void *handle_new(enum handle_type type, size_t bytes) {
  pthread_mutex_lock(&handles_lock);
  struct handle **list = &free_handles[type - CONTEXT_HANDLE], *handle = *list;
  if (handle)
    *list = handle->next_free;
  pthread_mutex_unlock(&handles_lock);
  if (handle)
    memset(handle, 0, bytes);
  else
    handle = calloc(1, bytes);
  if (handle)
    handle->type = (uint32_t)type;
  return handle;
}

void handle_free(void *pointer) {
  struct handle *handle = pointer;
  pthread_mutex_lock(&handles_lock);
  struct handle **list = &free_handles[handle->type - CONTEXT_HANDLE];
  handle->type = 0;
  handle->next_free = *list;
  *list = handle;
  pthread_mutex_unlock(&handles_lock);
}

/* --- start ------------------------------------------------------------------------------------------------------- */

const char *setting_text(const char *name) {
  const char *text = getenv(name);
  return text && *text ? text : NULL;
}

static uint64_t setting(const char *name, uint64_t otherwise) {
  const char *text = setting_text(name);
  return text ? strtoull(text, NULL, 0) : otherwise;
}

/* A forked child shares nothing with the driver it inherited: as with the real one, every call fails. */
static void in_child(void) {
  process.forked = true;
  if (process.initialized)
    sg_abandon(&process.state);
}

static bool names_uuid(const char *text, size_t length, const uint8_t *uuid) {
  char full[48];
  int at = snprintf(full, sizeof full, "GPU-");
  for (int n = 0; n < 16; n++)
    at += snprintf(full + at, sizeof full - (size_t)at, "%s%02x", n == 4 || n == 6 || n == 8 || n == 10 ? "-" : "",
                   uuid[n]);
  return length >= 5 && length <= 40 && !strncmp(full, text, length);
}

/* CUDA_VISIBLE_DEVICES: indices or UUID prefixes; what follows the first wrong one is invisible, as the driver has it.
 */
static void find_visible(void) {
  struct sg_shared *shared = process.state.shared;
  const char *text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    for (uint32_t n = 0; n < shared->device_count; n++)
      process.devices[process.device_count++] = n;
    return;
  }
  while (*text && process.device_count < SG_MAX_DEVICES) {
    char *rest;
    size_t length = strcspn(text, ",");
    uint32_t index = SG_NONE;
    unsigned long number = strtoul(text, &rest, 10);
    if (rest == text + length && length && number < shared->device_count)
      index = (uint32_t)number;
    for (uint32_t n = 0; rest == text && n < shared->device_count; n++)
      if (names_uuid(text, length, shared->devices[n].uuid))
        index = n;
    for (uint32_t n = 0; n < process.device_count; n++)
      if (process.devices[n] == index)
        index = SG_NONE;
    if (index == SG_NONE)
      return;
    process.devices[process.device_count++] = index;
    text += length + (text[length] == ',');
  }
}

EXPORT CUresult cuInit(unsigned flags) {
  if (process.forked)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (flags)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&process.lock);
  if (!process.initialized && !process.init_error) {
    int error = sg_open(&process.state, NULL);
    if (error) {
      process.init_error = error == -EINVAL ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_OPERATING_SYSTEM;
      not_supported(error == -EPROTO ? "a state file of another build: remove it"
                                     : "these settings or this state file");
    } else {
      process.settings = (struct settings){
          .launch_cost_ns = setting("SIMGPU_LAUNCH_COST_NS", 2500),
          .record_cost_ns = setting("SIMGPU_RECORD_COST_NS", 1000),
          .write_cost_ns = setting("SIMGPU_WRITE_COST_NS", 1000),
          .query_cost_ns = setting("SIMGPU_QUERY_COST_NS", 300),
      };
      find_visible();
      if (!process.device_count)
        process.init_error = CUDA_ERROR_NO_DEVICE;
      pthread_atfork(NULL, NULL, in_child);
      __atomic_store_n(&process.initialized, true, __ATOMIC_RELEASE);
    }
  }
  pthread_mutex_unlock(&process.lock);
  return process.init_error;
}

CUresult ready(void) {
  if (process.forked || !__atomic_load_n(&process.initialized, __ATOMIC_ACQUIRE))
    return CUDA_ERROR_NOT_INITIALIZED;
  return process.init_error;
}

CUresult enter(struct context **context) {
  CUresult result = ready();
  if (result)
    return result;
  if (inside_host_function())
    return CUDA_ERROR_NOT_PERMITTED;
  *context = current_context();
  if (!*context)
    return CUDA_ERROR_INVALID_CONTEXT;
  result = context_error(*context);
  if (!result)
    run_effects();
  return result;
}

/* A driver call costs CPU time from its entry on; without it, extra calls would look free. */
void burn(uint64_t from_ns, uint64_t cost_ns) {
  while (sg_now() < from_ns + cost_ns)
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* $SIMGPU_LOG names the file; a client's own output is not ours to write to. */
CUresult not_supported(const char *what) {
  const char *path = setting_text("SIMGPU_LOG");
  FILE *log = path ? fopen(path, "ae") : NULL;
  if (log) {
    fprintf(log, "simgpu: not simulated: %s\n", what);
    fclose(log);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}
