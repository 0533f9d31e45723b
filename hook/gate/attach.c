/* Attaches the process to its share: finds the region, claims a slot, and matches grants to the driver's devices. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hook/gate/gate.h"
#include "hook/gate/mps.h"
#include "hook/gate/process.h"
#include "hook/memory/memory.h"
#include "region/uncancelled.h"

#define DEFAULT_DIRECTORY "/run/sharepod/share"

struct sp_this_process sp_this_process;
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

/* glibc has the first function (its pthread_atfork is a static stub that calls it), musl the second. Both are weak, so
 * that the hook loads under either libc. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *object)
    __attribute__((weak));
#pragma weak pthread_atfork

/* Runs in the child of a fork. It cannot use CUDA and does not hold the slot's record lock, so it is not attached. */
static void after_fork_in_child(void) {
  sp_this_process.attached = 0;
}

/* The 32 hexadecimal digits of an NVML UUID ("GPU-…", "MIG-…") as 16 bytes. False: it is none. */
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

/* Make a device for each grant of the region, and find the driver's device with the grant's UUID. `ordinal` stays -1 if
 * there is none: nothing is metered for that grant. */
static void map_devices(void) {
  const struct sp_driver *driver = sp_driver();
  int count = 0;
  if (driver->cuDeviceGetCount)
    driver->cuDeviceGetCount(&count);
  uint32_t grants =
      sp_this_process.region.header->grant_count; /* read once: it may have changed since it was checked */
  sp_this_process.device_count = grants < SP_DEVICES_MAX ? grants : SP_DEVICES_MAX;
  sp_this_process.single_device = count == 1; /* then the driver need not be asked for the current device */
  for (uint32_t index = 0; index < sp_this_process.device_count; index++) {
    struct sp_device *device = &sp_this_process.devices[index];
    device->index = index;
    device->bit = 1u << index;
    device->ordinal = -1;
    device->grant = &sp_this_process.region.grants[index];
    device->slot = &sp_this_process.region.slot->devices[index];
    device->copies = &sp_this_process.region.slot->copies[index];
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

/* The directory of the share's region, by the environment or the default; it need not exist. */
const char *sp_share_directory(void) {
  const char *directory = getenv("SHAREPOD_REGION");
  return directory && *directory ? directory : DEFAULT_DIRECTORY;
}

/* Map the region and claim a slot, unless this process has one. This is done even if nothing can be metered: the slot
 * tells the reason. 0 or -errno. The caller holds attach_lock. */
static int enter_region(void) {
  const struct sp_slot *slot = sp_this_process.region.slot;
  if (slot && slot->pid == (int32_t)getpid()) /* if the pid differs, it is the slot of a parent that could not attach */
    return 0;
  return sp_region_attach(&sp_this_process.region, sp_share_directory());
}

/* Report a diagnostic in the slot and ring, so that the agent logs it. `detail`: a number, as the kind says; the
 * callers mask it with INT32_MAX, because UINT32_MAX cannot be reported. Does nothing without a slot. */
static void tell(enum sp_diagnostic_kind kind, uint32_t detail) {
  if (!sp_this_process.region.slot)
    return;
  sp_region_diagnose(&sp_this_process.region, kind, detail);
  sp_region_ring(&sp_this_process.region);
}

/* The name of a function that the driver lacks and metering needs; NULL: it has them all. */
static const char *missing_function(const struct sp_driver *driver) {
#define NEEDED(X)                                                                                                      \
  X(cuCtxGetCurrent)                                                                                                   \
  X(cuCtxSetCurrent)                                                                                                   \
  X(cuCtxGetDevice)                                                                                                    \
  X(cuDeviceGet)                                                                                                       \
  X(cuDeviceGetCount)                                                                                                  \
  X(cuDeviceGetUuid)                                                                                                   \
  X(cuEventCreate)                                                                                                     \
  X(cuEventRecord)                                                                                                     \
  X(cuEventSynchronize)                                                                                                \
  X(cuEventElapsedTime)
#define LACKS(function)                                                                                                \
  if (!driver->function)                                                                                               \
    return #function;
  NEEDED(LACKS)
#undef LACKS
#undef NEEDED
  return NULL;
}

/* Attach the process: from now on its launches and its memory are metered. 0, or -errno: nothing is. The caller holds
 * attach_lock. */
static int attach(void) {
  if (sp_mps_client())
    return -EOPNOTSUPP; /* under MPS the device's time cannot be told apart by process */
  int error = enter_region();
  if (error)
    return error;
  const struct sp_driver *driver = sp_driver();
  const char *missing = missing_function(driver);
  if (missing) {
    tell(SP_DIAGNOSTIC_DRIVER, sp_name_hash(missing));
    return -ENOSYS;
  }
  int version;
  if (driver->cuDriverGetVersion && !driver->cuDriverGetVersion(&version) && version < SP_OLDEST_DRIVER)
    tell(SP_DIAGNOSTIC_VERSION, (uint32_t)version & INT32_MAX);
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0))
    sp_this_process.no_membarrier = 1;
  map_devices();
  if (__register_atfork) {
    __register_atfork(NULL, NULL, after_fork_in_child, NULL);
  } else if (pthread_atfork) {
    pthread_atfork(NULL, NULL, after_fork_in_child);
  }
  sp_store_release(&sp_this_process.attached, 1);
  return 0;
}

/* Must a process that cannot be metered be kept from the device? Otherwise it runs unmetered. */
static bool policy_is_closed(void) {
  const char *policy = getenv("SHAREPOD_POLICY");
  return policy && strcmp(policy, "closed") == 0;
}

/* cuInit has succeeded: attach, at the first call. False: cuInit must fail, because the policy is `closed` and the
 * process is not attached. */
bool sp_attach(void) {
  static bool tried;
  SP_UNCANCELLED;
  int saved = errno;
  pthread_mutex_lock(&attach_lock);
  bool usable = true;
  if (!tried) {
    tried = true;
    usable = attach() == 0 || !policy_is_closed();
    tried = usable; /* under `closed` every cuInit tries again, and fails again */
  }
  pthread_mutex_unlock(&attach_lock);
  errno = saved;
  return usable;
}

/* The device of the calling thread's context. NULL: the share does not hold it, or it is not known; then nothing is
 * metered. */
struct sp_device *sp_device_current(void) {
  const struct sp_driver *driver = sp_driver();
  CUdevice ordinal = 0; /* that of a single device */
  if (!sp_this_process.single_device && (!driver->cuCtxGetDevice || driver->cuCtxGetDevice(&ordinal)))
    return NULL;
  for (uint32_t index = 0; index < sp_this_process.device_count; index++)
    if (sp_this_process.devices[index].ordinal == ordinal)
      return &sp_this_process.devices[index];
  return NULL;
}

/* Push the context, unless it is current. True: it was pushed, and sp_context_leave must pop it. */
bool sp_context_enter(CUcontext context) {
  const struct sp_driver *driver = sp_driver();
  CUcontext current = NULL;
  /* Both functions are needed, or it could not be popped again. */
  return driver->cuCtxPushCurrent && driver->cuCtxPopCurrent && driver->cuCtxGetCurrent &&
         driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != context &&
         driver->cuCtxPushCurrent(context) == CUDA_SUCCESS;
}

/* Pop the context that sp_context_enter has pushed. */
void sp_context_leave(void) {
  CUcontext context;
  sp_driver()->cuCtxPopCurrent(&context);
}

/* cuInit has failed with this CUresult: tell the agent. For that a slot is claimed, although the program can make no
 * other call. */
void sp_attach_failed(int result) {
  SP_UNCANCELLED;
  int saved = errno;
  pthread_mutex_lock(&attach_lock);
  if (!sp_mps_client() && enter_region() == 0)
    tell(SP_DIAGNOSTIC_INIT, (uint32_t)result & INT32_MAX);
  pthread_mutex_unlock(&attach_lock);
  errno = saved;
}

/* Tell the agent: the program asked for the device with this ordinal, and the driver has none. */
void sp_share_no_device(int ordinal) {
  tell(SP_DIAGNOSTIC_DEVICE, (uint32_t)ordinal & INT32_MAX);
}

/* Tell the agent: the driver lets the program make no context, with this CUresult. */
void sp_share_kept_out(int result) {
  tell(SP_DIAGNOSTIC_INIT, (uint32_t)result & INT32_MAX);
}

/* Tell the agent: the process has more threads or streams than `most`, so some launches are not metered. */
void sp_share_crowded(uint32_t most) {
  tell(SP_DIAGNOSTIC_CROWDED, most);
}

/* Tell the agent: a keeper could not be started, with this errno. */
void sp_share_no_keeper(int error) {
  tell(SP_DIAGNOSTIC_KEEPER, (uint32_t)error & INT32_MAX);
}

/* Tell the agent: the program has called this function, which the driver lacks. */
void sp_share_no_function(const char *name) {
  tell(SP_DIAGNOSTIC_FUNCTION, sp_name_hash(name));
}

/* Must a context on the device with this ordinal be refused? Only under the policy `closed`, if the share does not hold
 * the device. Then the agent is told. */
bool sp_share_refuses(int ordinal) {
  if (!sp_load(&sp_this_process.attached) || !policy_is_closed())
    return false;
  for (uint32_t index = 0; index < sp_this_process.device_count; index++)
    if (sp_this_process.devices[index].ordinal == ordinal)
      return false;
  CUdevice same;
  if (sp_driver()->cuDeviceGet(&same, ordinal) != CUDA_SUCCESS)
    return false; /* there is no such device: the driver itself returns an error */
  tell(SP_DIAGNOSTIC_OUTSIDE, (uint32_t)ordinal & INT32_MAX);
  return true;
}
