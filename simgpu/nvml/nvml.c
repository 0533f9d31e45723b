/* Init and shutdown of the library, and what it reports about the whole system. NVML's documentation tells what the
 * exported functions do; a comment at one tells only what is special here. */
#include "simgpu/nvml/nvml.h"
#include "simgpu/api/symbols.h"
#include "simgpu/config/settings.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A device's lost_error once it has fallen off the bus. After an ECC error it is still there. */
#define CUDA_ERROR_DEVICE_UNAVAILABLE 46

struct nvml nvml = {.lock = PTHREAD_MUTEX_INITIALIZER, .state = {.fd = -1}};

/* NVML's code for an error of sg_open. */
static nvmlReturn_t error_of(int errnum) {
  switch (errnum) {
  case 0:
    return NVML_SUCCESS;
  case -EPROTO:
    return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
  case -EINVAL:
    return NVML_ERROR_INVALID_ARGUMENT;
  default:
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
}

#define NO_GPUS 1u /* a flag: succeed without a GPU too */

/* With the library locked: map the state, which stays unmapped on failure. `without_gpus`: also succeed if the process
 * may use no GPU. */
static nvmlReturn_t open_state(bool without_gpus) {
  nvmlReturn_t result = error_of(sg_open(&nvml.state, NULL));
  if (result)
    return result;
  if (!sg_find_hidden(&nvml.state))
    result = NVML_ERROR_DRIVER_NOT_LOADED;
  else if (!nvml_gpu_count() && !without_gpus)
    result = NVML_ERROR_NOT_FOUND;
  else if (nvml.state.shared->nvml_refuses)
    result = NVML_ERROR_UNKNOWN;
  nvml.driver_loads = nvml.state.shared->driver_loads;
  if (result)
    sg_close(&nvml.state);
  return result;
}

/* The first user maps the state. Each success needs an nvmlShutdown. */
NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  pthread_mutex_lock(&nvml.lock);
  nvmlReturn_t result = nvml.users ? NVML_SUCCESS : open_state(flags & NO_GPUS);
  if (result == NVML_SUCCESS && !nvml.users++)
    for (uint32_t n = 0; n < SG_MAX_DEVICES; n++)
      nvml.handles[n].index = n;
  pthread_mutex_unlock(&nvml.lock);
  return result;
}

NVML_EXPORT nvmlReturn_t nvmlInit_v2(void) {
  return nvmlInitWithFlags(0);
}
NVML_EXPORT nvmlReturn_t nvmlInit(void) {
  return nvmlInitWithFlags(0);
}

/* The last user unmaps the state. */
NVML_EXPORT nvmlReturn_t nvmlShutdown(void) {
  pthread_mutex_lock(&nvml.lock);
  nvmlReturn_t result = nvml.users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
  if (result == NVML_SUCCESS && !--nvml.users)
    sg_close(&nvml.state);
  pthread_mutex_unlock(&nvml.lock);
  return result;
}

/* Begin a call. On success the library and the state are locked until nvml_leave; on failure the locks are free. After
 * a reload of the driver all calls fail until NVML is opened again. */
nvmlReturn_t nvml_enter(void) {
  pthread_mutex_lock(&nvml.lock);
  if (!nvml.users) {
    pthread_mutex_unlock(&nvml.lock);
    return NVML_ERROR_UNINITIALIZED;
  }
  sg_lock_advanced(&nvml.state);
  const struct sg_shared *shared = nvml.state.shared;
  bool works = nvml.driver_loads == shared->driver_loads && !shared->nvml_refuses;
  return works ? NVML_SUCCESS : nvml_leave(NVML_ERROR_UNKNOWN);
}

/* Inside a call: whether the device has fallen off the bus. */
bool nvml_lost(const struct sg_device *device) {
  return device->lost_error == CUDA_ERROR_DEVICE_UNAVAILABLE;
}

/* Wait until the device no longer hangs. The locks are free during the wait, and held again after it. False: NVML no
 * longer works, and the locks are free. */
static bool outlast_hang(uint32_t place) {
  static const struct timespec pause = {.tv_nsec = 10000000};
  while (nvml.state.shared->devices[place].hangs) {
    nvml_leave(NVML_SUCCESS);
    nanosleep(&pause, NULL);
    if (nvml_enter())
      return false;
  }
  return true;
}

/* Begin a call about one device. On success the locks are held until nvml_leave; on failure they are free. */
nvmlReturn_t nvml_enter_device(nvmlDevice_t handle, enum nvml_need need, const struct sg_device **device) {
  nvmlReturn_t result = nvml_enter();
  if (result)
    return result;
  const struct sg_shared *shared = nvml.state.shared;
  for (uint32_t n = 0; n < shared->device_count; n++) {
    if (handle != &nvml.handles[n] || sg_hidden(&nvml.state, n))
      continue;
    if (need != NVML_KNOWN && !outlast_hang(n))
      return NVML_ERROR_UNINITIALIZED;
    *device = &nvml.state.shared->devices[n];
    if (need != NVML_KNOWN && nvml_lost(*device))
      return nvml_leave(NVML_ERROR_GPU_IS_LOST);
    /* An instance has no BOARD and no LOAD; a GPU in MIG mode has no LOAD. */
    bool lacks = (need >= NVML_BOARD && (*device)->parent != SG_NONE) || (need == NVML_LOAD && (*device)->mig);
    return lacks ? nvml_leave(NVML_ERROR_NOT_SUPPORTED) : NVML_SUCCESS;
  }
  return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
}

/* End a call: release both locks. Returns `result`, so that a call can return what this returns. */
nvmlReturn_t nvml_leave(nvmlReturn_t result) {
  sg_unlock(&nvml.state);
  pthread_mutex_unlock(&nvml.lock);
  return result;
}

/* Copy a text into the caller's buffer of `length` bytes. An error: there is no buffer, or it is too small. */
nvmlReturn_t nvml_text(char *buffer, uint32_t length, const char *text) {
  if (!buffer)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (strlen(text) >= length)
    return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(buffer, text);
  return NVML_SUCCESS;
}

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
  static const char *const texts[] = {
      [NVML_SUCCESS] = "Success",
      [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
      [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
      [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
      [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
      [NVML_ERROR_NOT_FOUND] = "Not Found",
      [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
      [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
      [NVML_ERROR_TIMEOUT] = "Timeout",
      [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
      [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
      [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
      [NVML_ERROR_MEMORY] = "Insufficient Memory",
      [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
  };
  bool known = result >= 0 && (size_t)result < sizeof texts / sizeof *texts && texts[result];
  return known ? texts[result] : "Unknown Error";
}

/* "580.65.06", with `lead` in front of it. */
static nvmlReturn_t tell_version(char *version, unsigned int length, const char *lead, uint64_t release) {
  char text[48];
  snprintf(text, sizeof text, "%s%llu.65.06", lead, (unsigned long long)release);
  return nvml_text(version, length, text);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
  nvmlReturn_t result = nvml_enter();
  return result ? result : nvml_leave(tell_version(version, length, "", nvml.state.shared->model.driver_release));
}

/* The library reports its own version before it is initialised, too. */
NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
  if (nvml_enter())
    return tell_version(version, length, "13.", sg_setting("SIMGPU_DRIVER_RELEASE", 580));
  return nvml_leave(tell_version(version, length, "13.", nvml.state.shared->model.driver_release));
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
  if (!version)
    return NVML_ERROR_INVALID_ARGUMENT;
  *version = DRIVER_VERSION;
  return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* The command of a process, by /proc. The name is cut if it does not fit. */
NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
  if (!name || !length)
    return NVML_ERROR_INVALID_ARGUMENT;
  char path[32];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "re");
  if (!file)
    return NVML_ERROR_NOT_FOUND;
  size_t read = fread(name, 1, length - 1, file); /* arguments end in NUL: the text ends after the command */
  name[read] = 0;
  fclose(file);
  return NVML_SUCCESS;
}
