/*
 * Which devices NVML lists inside a share: the share's, in the order in which CUDA numbers them, and no others. Of MIG
 * instances the GPU is listed, once, and of its instances the share's. So a program that looks for a free device finds
 * none that it would use unmetered.
 */
#include <string.h>

#include "hook/nvml/wrapper.h"

/* The devices that are listed. One that NVML cannot look up now (it is lost) has its place, and the error. */
struct listed {
  unsigned int count;
  void *devices[SP_DEVICES_MAX];
  int results[SP_DEVICES_MAX];
};

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

/* The place of a device in the list; its length: it is not there. */
static unsigned int place_of(const struct listed *listed, const void *device) {
  unsigned int place = 0;
  while (place < listed->count && listed->devices[place] != device) {
    place++;
  }
  return place;
}

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

/* Looked up by what it is called: another device is not there. */
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
