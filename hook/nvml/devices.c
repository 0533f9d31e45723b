/*
 * Wrappers of NVML that list and find devices. Inside a share they list only the share's devices, in CUDA's order. A
 * GPU with MIG instances of the share is listed once, and has only the share's instances. So a program that looks for a
 * free device finds none that it would use unmetered.
 *
 * A wrapper runs in the place of the library's function of its name, and calls that function as `real`, through
 * SP_CALL. A view is what the share may see (share_view.c).
 */
#include <string.h>

#include "hook/nvml/wrapper.h"

/* The listed devices. A device for which NVML has another error than "not found", because it is lost, keeps its place,
 * with the error. */
struct listed {
  unsigned int count;
  void *devices[SP_DEVICES_MAX];
  int results[SP_DEVICES_MAX];
};

/* List the share's devices, each GPU once even if several of its instances are the share's. Instances become the
 * handles of their GPUs. */
static void list_devices(const struct sp_view *view, struct listed *listed) {
  char uuid[SP_UUID_ROOM];
  listed->count = 0;
  for (uint32_t index = 0; sp_view_uuid(view, index, uuid, sizeof uuid); index++) {
    void *device = NULL;
    int result;
    SP_CALL(result, sp_nvml_device(uuid, &device));
    if (result == NVML_ERROR_NOT_FOUND) {
      continue;
    }
    bool known = false;
    for (unsigned int before = 0; before < listed->count; before++) {
      known = known || (result == NVML_SUCCESS && listed->devices[before] == device);
    }
    if (!known) {
      listed->devices[listed->count] = device;
      listed->results[listed->count++] = result;
    }
  }
}

/* The index of a device in the list; the list's length if the device is not in it. */
static unsigned int place_of(const struct listed *listed, const void *device) {
  unsigned int place = 0;
  while (place < listed->count && listed->devices[place] != device) {
    place++;
  }
  return place;
}

/* Does the share hold this device or instance? Its UUID tells; without one: no. */
static bool holds(const struct sp_view *view, void *device) {
  char own[SP_UUID_ROOM], uuid[SP_UUID_ROOM];
  int result;
  SP_CALL(result, sp_nvml_uuid(device, own, sizeof own));
  for (uint32_t index = 0; result == NVML_SUCCESS && sp_view_uuid(view, index, uuid, sizeof uuid); index++) {
    if (strcmp(own, uuid) == 0) {
      return true;
    }
  }
  return false;
}

/* How many devices there are: inside a share, the listed ones. */
#define COUNT(name)                                                                                                    \
  NVML_WRAPPER(name, (unsigned int *count), (count)) {                                                                 \
    struct sp_view view;                                                                                               \
    int result;                                                                                                        \
    SP_CALL(result, real(count));                                                                                      \
    if (result == NVML_SUCCESS && sp_view_open(&view)) {                                                               \
      struct listed listed;                                                                                            \
      list_devices(&view, &listed);                                                                                    \
      sp_view_close(&view);                                                                                            \
      *count = listed.count;                                                                                           \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
COUNT(nvmlDeviceGetCount)
COUNT(nvmlDeviceGetCount_v2)

/* The device at an index: inside a share, in the list, so NVML's own index is not asked. */
#define BY_INDEX(name)                                                                                                 \
  NVML_WRAPPER(name, (unsigned int index, void **device), (index, device)) {                                           \
    struct sp_view view;                                                                                               \
    struct listed listed = {0};                                                                                        \
    int result;                                                                                                        \
    if (device == NULL || !sp_view_open(&view)) {                                                                      \
      SP_CALL(result, real(index, device));                                                                            \
      return result;                                                                                                   \
    }                                                                                                                  \
    list_devices(&view, &listed);                                                                                      \
    sp_view_close(&view);                                                                                              \
    if (index >= listed.count) {                                                                                       \
      return NVML_ERROR_INVALID_ARGUMENT;                                                                              \
    }                                                                                                                  \
    *device = listed.devices[index];                                                                                   \
    return listed.results[index];                                                                                      \
  }
BY_INDEX(nvmlDeviceGetHandleByIndex)
BY_INDEX(nvmlDeviceGetHandleByIndex_v2)

/* Find a device by its UUID, serial number or PCI address: a device outside the share is not found. */
#define BY_NAME(name, parameter, argument)                                                                             \
  NVML_WRAPPER(name, (parameter, void **device), (argument, device)) {                                                 \
    struct sp_view view;                                                                                               \
    int result;                                                                                                        \
    SP_CALL(result, real(argument, device));                                                                           \
    if (result == NVML_SUCCESS && sp_view_open(&view)) {                                                               \
      struct listed listed;                                                                                            \
      list_devices(&view, &listed);                                                                                    \
      if (place_of(&listed, *device) == listed.count && !holds(&view, *device)) {                                      \
        *device = NULL;                                                                                                \
        result = NVML_ERROR_NOT_FOUND;                                                                                 \
      }                                                                                                                \
      sp_view_close(&view);                                                                                            \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
BY_NAME(nvmlDeviceGetHandleByUUID, const char *uuid, uuid)
BY_NAME(nvmlDeviceGetHandleByUUIDV, const void *uuid, uuid)
BY_NAME(nvmlDeviceGetHandleBySerial, const char *serial, serial)
BY_NAME(nvmlDeviceGetHandleByPciBusId, const char *address, address)
BY_NAME(nvmlDeviceGetHandleByPciBusId_v2, const char *address, address)

/* The reverse of BY_INDEX. The index of a device outside the list stays the library's. */
NVML_WRAPPER(nvmlDeviceGetIndex, (void *device, unsigned int *index), (device, index)) {
  struct sp_view view;
  int result;
  SP_CALL(result, real(device, index));
  if (result == NVML_SUCCESS && sp_view_open(&view)) {
    struct listed listed;
    list_devices(&view, &listed);
    sp_view_close(&view);
    unsigned int place = place_of(&listed, device);
    *index = place < listed.count ? place : *index;
  }
  return result;
}

/* An instance of a GPU: one that the share does not hold is not found. */
NVML_WRAPPER(nvmlDeviceGetMigDeviceHandleByIndex, (void *device, unsigned int index, void **instance),
             (device, index, instance)) {
  struct sp_view view;
  int result;
  SP_CALL(result, real(device, index, instance));
  if (result == NVML_SUCCESS && sp_view_open(&view)) {
    if (!holds(&view, *instance)) {
      *instance = NULL;
      result = NVML_ERROR_NOT_FOUND;
    }
    sp_view_close(&view);
  }
  return result;
}
