/* This process as a client of the driver: handles, start, and the checks at the begin of every call. */
#define _GNU_SOURCE
#include "simgpu/api/process.h"

#include "simgpu/config/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct process process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- handles ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
static struct handle *free_handles[HANDLE_END - CONTEXT_HANDLE];

/* Make a zeroed handle: a destroyed one of the type, else new memory. NULL: there is no memory. All handles of a type
 * have the same size. */
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

/* Destroy a handle. Its memory stays with the handles of its type, so that the use of a stale handle is recognised. */
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

/* A forked child shares nothing with the driver it inherited: as with the real one, every call fails. */
static void in_child(void) {
  process.forked = true;
  if (process.initialized)
    sg_abandon(&process.state);
}

/* The first call maps the state and finds the visible devices. If that fails, or no device is visible, every later call
 * of cuInit returns the same error. */
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
      const struct sg_profile *profile = &process.state.shared->model.profile;
      process.settings = (struct settings){
          .launch_cost_ns = sg_setting("SIMGPU_LAUNCH_COST_NS", (uint64_t)profile->launch_cost_ns),
          .record_cost_ns = sg_setting("SIMGPU_RECORD_COST_NS", (uint64_t)profile->record_cost_ns),
          .plain_record_cost_ns = sg_setting("SIMGPU_PLAIN_RECORD_COST_NS", (uint64_t)profile->plain_record_cost_ns),
          .write_cost_ns = sg_setting("SIMGPU_WRITE_COST_NS", (uint64_t)profile->write_cost_ns),
          .query_cost_ns = sg_setting("SIMGPU_QUERY_COST_NS", (uint64_t)profile->query_cost_ns),
      };
      if (sg_find_hidden(&process.state))
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

/* Whether the driver is usable in this process. CUDA_ERROR_NOT_INITIALIZED: no cuInit has mapped the state, or this is
 * a forked child. CUDA_ERROR_NO_DEVICE: no device is visible. */
CUresult ready(void) {
  if (process.forked || !__atomic_load_n(&process.initialized, __ATOMIC_ACQUIRE))
    return CUDA_ERROR_NOT_INITIALIZED;
  return process.init_error;
}

/* Is the driver usable, and the thread outside of host functions? CUDA permits no call inside one. */
static CUresult permitted(void) {
  CUresult result = ready();
  return result ? result : inside_host_function() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

/* Begin a call that needs no current context: check that it may be made here, and apply the effects that are due. */
CUresult enter_anywhere(void) {
  CUresult result = permitted();
  if (!result)
    run_effects();
  return result;
}

/* Begin a call: find the current context, which has to be healthy, and apply the effects that are due. */
CUresult enter(struct context **context) {
  CUresult result = permitted();
  if (result)
    return result;
  *context = current_context();
  if (!*context)
    return CUDA_ERROR_INVALID_CONTEXT;
  result = context_error(*context);
  if (!result)
    run_effects();
  return result;
}

/* Spin until `cost_ns` after `from_ns`, the begin of a driver call. Such a call costs CPU time. Without this cost,
 * extra calls would look free. */
void burn(uint64_t from_ns, uint64_t cost_ns) {
  while (sg_now() < from_ns + cost_ns)
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Note in the file that SIMGPU_LOG names that `what` is not simulated. Return the error for the caller. A client's own
 * standard output and error are not written to. */
CUresult not_supported(const char *what) {
  const char *path = sg_setting_text("SIMGPU_LOG");
  FILE *log = path ? fopen(path, "ae") : NULL;
  if (log) {
    fprintf(log, "simgpu: not simulated: %s\n", what);
    fclose(log);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}
