/*
 * The simulated libnvidia-ml: the declarations that its files share.
 *
 * The library reads the shared state, and has a handful of event sets of its own. Types and numbers are those of NVML's
 * public ABI. A function that is not simulated returns NVML_ERROR_NOT_SUPPORTED (nvml/symbols.c).
 */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#include "simgpu/model/state.h"

#define NVML_EXPORT __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_UNKNOWN = 999,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

#define NVML_NO_INSTANCE 0xffffffffu /* GPU and compute instance id of a device without MIG */

/* Ids of an instance as real drivers give them: one compute instance in each GPU instance. */
static inline uint32_t nvml_gpu_instance(const struct sg_device *device) {
  return device->parent == SG_NONE ? NVML_NO_INSTANCE : device->number + 1;
}
/* 0 for a MIG instance, which has only one compute instance; NVML_NO_INSTANCE for a GPU. */
static inline uint32_t nvml_compute_instance(const struct sg_device *device) {
  return device->parent == SG_NONE ? NVML_NO_INSTANCE : 0;
}

/* A device handle is the address of its entry in nvml.handles: stable over init and shutdown, and easy to check. */
typedef struct nvml_handle {
  uint32_t index;
} *nvmlDevice_t;

struct nvml {
  pthread_mutex_t lock;  /* held during every call, so that a shutdown cannot unmap the state under one */
  uint32_t users;        /* inits less shutdowns; the state is mapped while it is above 0 */
  uint32_t driver_loads; /* its value when NVML was opened */
  struct sg_state state;
  struct nvml_handle handles[SG_MAX_DEVICES];
  /* Handles of GPU instances and compute instances are the addresses of these. */
  struct nvml_handle gpu_instances[SG_MAX_DEVICES], compute_instances[SG_MAX_DEVICES];
};
extern struct nvml nvml;

/* Begin a call: lock the library and the state, advanced to now. Every success needs nvml_leave; on failure the locks
 * are free. */
nvmlReturn_t nvml_enter(void);
/* The same for a call about one device, a GPU or a MIG instance. `LIVE` calls talk to the hardware and fail when it has
 * fallen off the bus. `KNOWN` calls return what the driver remembers (names, numbers) even then. `BOARD` calls are
 * about properties of a whole GPU, and instances do not support them. `LOAD` calls are like these, and GPUs in MIG mode
 * do not support them either. */
enum nvml_need { NVML_KNOWN, NVML_LIVE, NVML_BOARD, NVML_LOAD };
nvmlReturn_t nvml_enter_device(nvmlDevice_t handle, enum nvml_need need, const struct sg_device **device);
/* Whether a device has fallen off the bus: then no handle of it is given out, and `LIVE` calls fail. Inside a call. */
bool nvml_lost(const struct sg_device *device);
/* A whole call that returns one number of a device. */
nvmlReturn_t nvml_number(nvmlDevice_t handle, enum nvml_need need, uint32_t *value,
                         uint32_t (*read)(const struct sg_device *));
#define NVML_NUMBER(name, need, read)                                                                                  \
  NVML_EXPORT nvmlReturn_t name(nvmlDevice_t handle, unsigned int *value) {                                            \
    return nvml_number(handle, need, value, read);                                                                     \
  }
/* An older name of a function that has kept its interface. */
#define NVML_OLDER(name, newer) NVML_EXPORT __typeof(newer) name __attribute__((alias(#newer)));
/* End a call. Returns `result` for convenience. */
nvmlReturn_t nvml_leave(nvmlReturn_t result);
/* Copy text into a caller's buffer of `length` bytes. */
nvmlReturn_t nvml_text(char *buffer, uint32_t length, const char *text);
/* The index of a device in the state: contexts and handles are numbered by it. Inside a call. */
uint32_t nvml_place(const struct sg_device *device);
/* The number of GPUs that the process may use. Inside a call. */
uint32_t nvml_gpu_count(void);
/* The UUID as text, "GPU-53474750-..." or "MIG-...". `text` holds 64 bytes. */
void nvml_uuid_text(const struct sg_device *device, char *text);
/* The part of the recent time, in percent, in which the device was busy. Inside a call. */
uint32_t nvml_busy_percent(const struct sg_device *device);

#endif
