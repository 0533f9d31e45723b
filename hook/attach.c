/* Attach: find the share's region, claim a slot, know the devices. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate.h"
#include "guest.h"
#include "memory.h"
#include "mps.h"

#define DEFAULT_DIRECTORY "/run/sharepod/share"

struct sp_guest sp_guest;
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

/* glibc has the first (its pthread_atfork is a static stub of it), musl the second: weak, so that the hook loads under
 * both. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *object)
    __attribute__((weak));
#pragma weak pthread_atfork

/* A forked child cannot use CUDA and does not hold our record lock: it is not this slot's process. */
static void after_fork_in_child(void) {
  sp_guest.attached = 0;
}

/* The 32 hexadecimal digits of an NVML UUID ("GPU-…", "MIG-…") as 16 bytes. */
static bool parse_uuid(const char *text, unsigned char bytes[16]) {
  int digits = 0;
  const char *at = memchr(text, '-', SP_UUID_BYTES);
  if (!at)
    return false;
  for (; at < text + SP_UUID_BYTES && *at && digits < 32; at++) {
    int value;
    if (*at >= '0' && *at <= '9')
      value = *at - '0';
    else if (*at >= 'a' && *at <= 'f')
      value = *at - 'a' + 10;
    else if (*at >= 'A' && *at <= 'F')
      value = *at - 'A' + 10;
    else if (*at == '-')
      continue;
    else
      return false;
    bytes[digits / 2] = (unsigned char)(digits % 2 ? (bytes[digits / 2] << 4 | value) : value);
    digits++;
  }
  return digits == 32;
}

static void map_devices(void) {
  const struct sp_driver *driver = sp_driver();
  int count = 0;
  if (driver->cuDeviceGetCount)
    driver->cuDeviceGetCount(&count);
  sp_guest.device_count = sp_guest.region.header->grant_count;
  sp_guest.single_device = count == 1;
  for (uint32_t index = 0; index < sp_guest.device_count; index++) {
    struct sp_device *device = &sp_guest.devices[index];
    device->index = index;
    device->bit = 1u << index;
    device->ordinal = -1;
    device->grant = &sp_guest.region.grants[index];
    device->slot = &sp_guest.region.slot->devices[index];
    pthread_mutex_init(&device->turn_lock, NULL);
    pthread_mutex_init(&device->queue_lock, NULL);
    unsigned char wanted[16];
    if (!parse_uuid(device->grant->uuid, wanted))
      continue;
    for (int ordinal = 0; ordinal < count && driver->cuDeviceGetUuid && driver->cuDeviceGet; ordinal++) {
      CUdevice handle;
      CUuuid uuid;
      if (driver->cuDeviceGet(&handle, ordinal) || driver->cuDeviceGetUuid(&uuid, handle))
        continue;
      if (memcmp(uuid.bytes, wanted, sizeof wanted) == 0)
        device->ordinal = handle;
    }
  }
}

const char *sp_share_directory(void) {
  const char *directory = getenv("SHAREPOD_REGION");
  return directory && *directory ? directory : DEFAULT_DIRECTORY;
}

static int attach(void) {
  if (sp_mps_client())
    return -EOPNOTSUPP; /* the device's time would be the server's, whoever's work it is */
  int error = sp_region_attach(&sp_guest.region, sp_share_directory());
  if (error)
    return error;
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0))
    sp_guest.no_membarrier = 1;
  map_devices();
  if (__register_atfork) {
    __register_atfork(NULL, NULL, after_fork_in_child, NULL);
  } else if (pthread_atfork) {
    pthread_atfork(NULL, NULL, after_fork_in_child);
  }
  __atomic_store_n(&sp_guest.attached, 1, __ATOMIC_RELEASE);
  return 0;
}

bool sp_attach(void) {
  static bool tried;
  int saved = errno;
  pthread_mutex_lock(&attach_lock);
  bool usable = true;
  if (!tried) {
    tried = true;
    const char *policy = getenv("SHAREPOD_POLICY");
    usable = attach() == 0 || !policy || strcmp(policy, "closed") != 0;
    tried = usable; /* under `closed` every cuInit tries again and fails again */
  }
  pthread_mutex_unlock(&attach_lock);
  errno = saved;
  return usable;
}

struct sp_device *sp_device_current(void) {
  const struct sp_driver *driver = sp_driver();
  CUdevice ordinal = 0;
  if (!sp_guest.single_device && (!driver->cuCtxGetDevice || driver->cuCtxGetDevice(&ordinal)))
    return NULL;
  for (uint32_t index = 0; index < sp_guest.device_count; index++)
    if (sp_guest.devices[index].ordinal == ordinal)
      return &sp_guest.devices[index];
  return NULL;
}
