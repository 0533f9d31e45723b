/*
 * Wrappers of NVML that restrict its answers inside a share. The library is asked first, and its errors go to the
 * program. Lists of processes are then reduced to those of the share, on every device, and memory figures to the
 * share's cap. A process without a usable region gets every answer unchanged.
 *
 * The library never answers into the program's buffer: whether that is large enough must not depend on the processes of
 * other shares. So "how many are there" and "give them to me" count the same processes.
 *
 * A wrapper runs in the place of the library's function of its name, and calls that function as `real`, through
 * SP_CALL. A view is what the share may see (share_view.c).
 */

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "hook/nvml/wrapper.h"

#define FIRST_ROOM 512u /* entries; if there are more processes, the library is asked again with more room */
#define ATTEMPTS   4    /* more processes may come while we ask */

/* ---- memory ---- */

struct memory_v1 {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};

/* Replace the device's figures, in bytes, by the share's. They stay if the process is in no share, or if the share does
 * not hold the device or has no cap. */
static void show_share(void *device, unsigned long long *total, unsigned long long *used, unsigned long long *left) {
  struct sp_view view;
  char uuid[SP_UUID_ROOM];
  int result;
  SP_CALL(result, sp_nvml_uuid(device, uuid, sizeof uuid));
  if (result != NVML_SUCCESS || !sp_view_open(&view)) {
    return;
  }
  uint64_t total_bytes = *total, used_bytes = *used, free_bytes = *left;
  sp_view_memory(&view, uuid, &total_bytes, &used_bytes, &free_bytes);
  *total = total_bytes;
  *used = used_bytes;
  *left = free_bytes;
  sp_view_close(&view);
}

/* The device's memory, reduced to the share's cap and use. */
NVML_WRAPPER(nvmlDeviceGetMemoryInfo, (void *device, struct memory_v1 *memory), (device, memory)) {
  int result;
  SP_CALL(result, real(device, memory));
  if (result == NVML_SUCCESS) {
    show_share(device, &memory->total, &memory->used, &memory->free);
  }
  return result;
}

/* The same, with the memory that the driver reserves for itself. */
NVML_WRAPPER(nvmlDeviceGetMemoryInfo_v2, (void *device, struct memory_v2 *memory), (device, memory)) {
  int result;
  SP_CALL(result, real(device, memory));
  if (result == NVML_SUCCESS) {
    unsigned long long device_total = memory->total;
    show_share(device, &memory->total, &memory->used, &memory->free);
    memory->reserved = memory->total == device_total ? memory->reserved : 0; /* the driver's own: no part of a share */
  }
  return result;
}

/* ---- lists of processes ---- */

/* The layout of a list: entries of `bytes` each, with the pid `pid_at` bytes from an entry's beginning. */
struct layout {
  size_t bytes, pid_at;
};

/* Memory of `bytes` for the library's answer; NULL: there is none. Not from malloc, which may be the program's own.
 * errno stays. */
static void *take_room(size_t bytes) {
  int saved = errno;
  void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  errno = saved;
  return room == MAP_FAILED ? NULL : room;
}

/* Give back what take_room has returned. errno stays. */
static void give_room(void *room, size_t bytes) {
  int saved = errno;
  munmap(room, bytes);
  errno = saved;
}

/* Move the entries of the share's processes to the front, in their order. Returns how many there are. */
static unsigned int keep_own(const struct sp_view *view, char *entries, unsigned int count, struct layout layout) {
  unsigned int kept = 0;
  for (unsigned int index = 0; index < count; index++) {
    uint32_t pid;
    memcpy(&pid, entries + index * layout.bytes + layout.pid_at, sizeof pid);
    if (sp_view_has_pid(view, pid)) {
      memmove(entries + kept++ * layout.bytes, entries + index * layout.bytes, layout.bytes);
    }
  }
  return kept;
}

/* Calls the library for up to *count entries into `entries`. Which function is called, and with what, is in `query`. On
 * return *count is how many the library has. */
typedef int ask_function(const void *query, unsigned int *count, void *entries);

/* Answer the program's `query` with the share's entries only: ask the library by `ask` into memory of our own, and copy
 * them to `entries`. *count: the program's room there; on return, how many entries the share has. Returns the library's
 * result, NVML_ERROR_INSUFFICIENT_SIZE if they do not fit, or NVML_ERROR_MEMORY. */
static int answer(const struct sp_view *view, ask_function *ask, const void *query, struct layout layout,
                  unsigned int *count, void *entries) {
  unsigned int room = FIRST_ROOM, found = 0;
  int result = NVML_ERROR_INSUFFICIENT_SIZE;
  for (int attempt = 0; attempt < ATTEMPTS && result == NVML_ERROR_INSUFFICIENT_SIZE; attempt++) {
    size_t bytes = room * layout.bytes;
    char *scratch = take_room(bytes);
    if (scratch == NULL) {
      return NVML_ERROR_MEMORY;
    }
    found = room;
    SP_CALL(result, ask(query, &found, scratch));
    if (result == NVML_SUCCESS) {
      unsigned int kept = keep_own(view, scratch, found < room ? found : room, layout);
      if (kept > *count || (kept != 0 && entries == NULL)) {
        result = NVML_ERROR_INSUFFICIENT_SIZE;
      } else if (kept != 0) {
        memcpy(entries, scratch, kept * layout.bytes);
      }
      *count = kept;
      give_room(scratch, bytes);
      return result;
    }
    give_room(scratch, bytes);
    room = found > room ? found + FIRST_ROOM : room * 2;
  }
  *count = 0;
  return result;
}

typedef int list_function(void *device, unsigned int *count, void *entries);

struct list_query {
  list_function *real;
  void *device;
};

/* The ask_function of plain lists; `query` is a struct list_query. */
static int ask_list(const void *query, unsigned int *count, void *entries) {
  const struct list_query *list = query;
  return list->real(list->device, count, entries);
}

/* Answer a query for a plain list of the device. `real`: the library's function. If the process is in no share, the
 * library's answer goes to the program unchanged. Returns the wrapper's result. */
static int list(list_function *real, void *device, unsigned int *count, void *entries, struct layout layout) {
  struct sp_view view;
  int result;
  if (count == NULL || (*count != 0 && entries == NULL) || !sp_view_open(&view)) {
    SP_CALL(result, real(device, count, entries)); /* the program has made an error, or is in no share */
    return result;
  }
  struct list_query query = {real, device};
  result = answer(&view, ask_list, &query, layout, count, entries);
  sp_view_close(&view);
  return result;
}

/* The wrapper of a function that fills a plain list of processes, with entries of `entry_bytes` that begin with a
 * pid. */
#define LIST(name, entry_bytes)                                                                                        \
  NVML_WRAPPER(name, (void *device, unsigned int *count, void *entries), (device, count, entries)) {                   \
    return list(real, device, count, entries, (struct layout){.bytes = (entry_bytes)});                                \
  }
#define PROCESS_V1 16 /* pid, memory */
#define PROCESS_V2 24 /* …, GPU instance, compute instance */
LIST(nvmlDeviceGetComputeRunningProcesses, PROCESS_V1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, PROCESS_V2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, PROCESS_V2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, PROCESS_V1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, PROCESS_V2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, PROCESS_V2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, PROCESS_V1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, PROCESS_V2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, PROCESS_V2)
LIST(nvmlDeviceGetAccountingPids, sizeof(unsigned int))

/* ---- lists inside structures; a version that is not known here is refused as an older library would ----
 * A version is the structure's size, with the number of the version in the highest byte. */

struct process_details {
  unsigned int version, mode, count;
  void *entries;
};
#define PROCESS_DETAILS_V1 (sizeof(struct process_details) | 1u << 24)
#define PROCESS_DETAIL     ((struct layout){.bytes = 32})

typedef int details_function(void *device, struct process_details *details);

struct details_query {
  details_function *real;
  void *device;
  unsigned int mode;
};

/* The ask_function of nvmlDeviceGetRunningProcessDetailList; `query` is a struct details_query. */
static int ask_details(const void *query, unsigned int *count, void *entries) {
  const struct details_query *asked = query;
  struct process_details details = {PROCESS_DETAILS_V1, asked->mode, *count, entries};
  int result = asked->real(asked->device, &details);
  *count = details.count;
  return result;
}

/* The program gives its room in details->count, and gets the number of entries there. */
NVML_WRAPPER(nvmlDeviceGetRunningProcessDetailList, (void *device, struct process_details *details),
             (device, details)) {
  struct sp_view view;
  int result;
  if (details == NULL || !sp_view_open(&view)) {
    SP_CALL(result, real(device, details));
    return result;
  }
  result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (details->version == PROCESS_DETAILS_V1) {
    struct details_query query = {real, device, details->mode};
    result = answer(&view, ask_details, &query, PROCESS_DETAIL, &details->count, details->entries);
  }
  sp_view_close(&view);
  return result;
}

/* ---- samples of utilisation: asked without room, the library says how many there may be at most ---- */

/* The room that a share's program is told to have: a constant, so it tells nothing about other shares. */
#define SAMPLES_ROOM SP_SLOTS_MAX

/* The result for the program after an answer was reduced to *count entries: without an entry it is that none were
 * found, as from the library. */
static int none_found(int result, const unsigned int *count) {
  return result == NVML_SUCCESS && *count == 0 ? NVML_ERROR_NOT_FOUND : result;
}

typedef int samples_function(void *device, void *samples, unsigned int *count, unsigned long long last_seen_us);

struct samples_query {
  samples_function *real;
  void *device;
  unsigned long long last_seen_us;
};

/* The ask_function of nvmlDeviceGetProcessUtilization; `query` is a struct samples_query. */
static int ask_samples(const void *query, unsigned int *count, void *entries) {
  const struct samples_query *asked = query;
  return asked->real(asked->device, entries, count, asked->last_seen_us);
}

/* Without room for samples the program asks how many there may be: inside a share the answer is SAMPLES_ROOM. */
NVML_WRAPPER(nvmlDeviceGetProcessUtilization,
             (void *device, void *samples, unsigned int *count, unsigned long long last_seen_us),
             (device, samples, count, last_seen_us)) {
  struct sp_view view;
  int result;
  if (count == NULL || samples == NULL || !sp_view_open(&view)) {
    SP_CALL(result, real(device, samples, count, last_seen_us));
    if (result == NVML_ERROR_INSUFFICIENT_SIZE && count != NULL && sp_view_open(&view)) {
      *count = SAMPLES_ROOM;
      sp_view_close(&view);
    }
    return result;
  }
  struct samples_query query = {real, device, last_seen_us};
  const struct layout layout = {.bytes = 32};
  result = answer(&view, ask_samples, &query, layout, count, samples);
  sp_view_close(&view);
  return none_found(result, count);
}

struct utilizations {
  unsigned int version, count;
  unsigned long long last_seen_us;
  void *entries;
};
#define UTILIZATIONS_V1 (sizeof(struct utilizations) | 1u << 24)
#define UTILIZATION     ((struct layout){.bytes = 40, .pid_at = 8})

typedef int utilizations_function(void *device, struct utilizations *utilizations);

struct utilizations_query {
  utilizations_function *real;
  void *device;
  unsigned long long last_seen_us;
};

/* The ask_function of nvmlDeviceGetProcessesUtilizationInfo; `query` is a struct utilizations_query. */
static int ask_utilizations(const void *query, unsigned int *count, void *entries) {
  const struct utilizations_query *asked = query;
  struct utilizations utilizations = {UTILIZATIONS_V1, *count, asked->last_seen_us, entries};
  int result = asked->real(asked->device, &utilizations);
  *count = utilizations.count;
  return result;
}

/* Without room for entries the program asks how many there may be: inside a share the answer is SAMPLES_ROOM. */
NVML_WRAPPER(nvmlDeviceGetProcessesUtilizationInfo, (void *device, struct utilizations *utilizations),
             (device, utilizations)) {
  struct sp_view view;
  int result;
  if (utilizations == NULL || !sp_view_open(&view)) {
    SP_CALL(result, real(device, utilizations));
    return result;
  }
  if (utilizations->version != UTILIZATIONS_V1) {
    result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  } else if (utilizations->entries == NULL) {
    SP_CALL(result, real(device, utilizations));
    utilizations->count = result == NVML_ERROR_INSUFFICIENT_SIZE ? SAMPLES_ROOM : utilizations->count;
  } else {
    struct utilizations_query query = {real, device, utilizations->last_seen_us};
    result = answer(&view, ask_utilizations, &query, UTILIZATION, &utilizations->count, utilizations->entries);
    result = none_found(result, &utilizations->count);
  }
  sp_view_close(&view);
  return result;
}
