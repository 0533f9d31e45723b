/*
 * The simulated libnvidia-ml: what its files share.
 *
 * The library is a reader of the shared state with a handful of event sets of its own. Types and numbers are those of
 * NVML's public ABI; what is not simulated says NVML_ERROR_NOT_SUPPORTED (nvml/symbols.c).
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

/* Ids of an instance as real drivers give them: a GPU instance each, with one compute instance in it. */
static inline uint32_t nvml_gpu_instance(const struct sg_device *device) {
  return device->parent == SG_NONE ? NVML_NO_INSTANCE : device->number + 1;
}
static inline uint32_t nvml_compute_instance(const struct sg_device *device) {
  return device->parent == SG_NONE ? NVML_NO_INSTANCE : 0;
}

/* A device handle is the address of its entry in nvml.handles: stable over init and shutdown, and easy to check. */
typedef struct nvml_handle {
  uint32_t index;
} *nvmlDevice_t;

struct nvml {
  pthread_mutex_t lock;  /* held through every call, so that a shutdown cannot unmap the state under one */
  uint32_t users;        /* inits less shutdowns; the state is mapped while it is above 0 */
  uint32_t driver_loads; /* when it was opened */
  struct sg_state state;
  struct nvml_handle handles[SG_MAX_DEVICES];
  /* Handles of what MIG cuts: the addresses of these. */
  struct nvml_handle gpu_instances[SG_MAX_DEVICES], compute_instances[SG_MAX_DEVICES];
};
extern struct nvml nvml;

/* Begin a call: lock the library and the state, which then stands at now. Every success needs nvml_leave. */
nvmlReturn_t nvml_enter(void);
/* The same for a call about one device, a GPU or a MIG instance. `LIVE` calls talk to the hardware and fail when it has
 * fallen off the bus; what the driver knows by heart (names, numbers) is still told. `BOARD` calls are about what only
 * a whole GPU has, and not supported by instances; `LOAD` calls not by GPUs in MIG mode either. */
enum nvml_need { NVML_KNOWN, NVML_LIVE, NVML_BOARD, NVML_LOAD };
nvmlReturn_t nvml_enter_device(nvmlDevice_t handle, enum nvml_need need, const struct sg_device **device);
/* Whether a device has fallen off the bus: no handle of it is given out then, and `LIVE` calls fail. Inside a call. */
bool nvml_lost(const struct sg_device *device);
/* A whole call that tells one number of a device. */
nvmlReturn_t nvml_number(nvmlDevice_t handle, enum nvml_need need, uint32_t *value,
                         uint32_t (*read)(const struct sg_device *));
#define NVML_NUMBER(name, need, read)                                                                                  \
  NVML_EXPORT nvmlReturn_t name(nvmlDevice_t handle, unsigned int *value) {                                            \
    return nvml_number(handle, need, value, read);                                                                     \
  }
/* A name of before, for a function whose interface has not changed since. */
#define NVML_OLDER(name, newer) NVML_EXPORT __typeof(newer) name __attribute__((alias(#newer)));
/* End a call; gives back `result` for convenience. */
nvmlReturn_t nvml_leave(nvmlReturn_t result);
/* Copy text into a caller's buffer of `length` bytes. */
nvmlReturn_t nvml_text(char *buffer, uint32_t length, const char *text);
/* Where a device stands in the state: contexts and handles are numbered so. Inside a call. */
uint32_t nvml_place(const struct sg_device *device);
/* GPUs that the process may use. Inside a call. */
uint32_t nvml_gpu_count(void);
/* "GPU-53474750-..." or "MIG-...": what clients call the device. `text` holds 64 bytes. */
void nvml_uuid_text(const struct sg_device *device, char *text);
/* Share of the time, 0 to 100, that the device was busy lately. Inside a call. */
uint32_t nvml_busy_percent(const struct sg_device *device);

#endif
