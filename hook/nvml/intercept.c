/*
 * Decides which addresses of NVML the program gets. It does for libnvidia-ml.so.1 what interpose/intercept.c does for
 * the driver; this library has neither symbol versions nor a lookup function of its own. It runs as early, and has the
 * same rule: no call of libc before a name is known to be one of ours.
 */
#include <errno.h>
#include <stddef.h>

#include "hook/interpose/resolve.h"
#include "hook/nvml/nvml.h"

#define SP_RTLD_LAZY   1
#define SP_RTLD_NOLOAD 4
#define SP_RTLD_NEXT   ((void *)-1l)
#define SP_NVML_FILE   "libnvidia-ml.so.1"

#define NVML_WRAPPED(name) extern void sp_wrap_##name(void) __attribute__((visibility("hidden")));
#include "driver/nvml_wrapped.h"

static const struct {
  const char *name;
  void (*wrapper)(void);
} symbols[SP_NVML_COUNT] = {
#define NVML_WRAPPED(name) {#name, sp_wrap_##name},
#include "driver/nvml_wrapped.h"
#include "region/order.h"
};

typedef int uuid_function(void *device, char *text, unsigned int length);
typedef int by_uuid_function(const char *uuid, void **device);
typedef int gpu_function(void *instance, void **gpu);

static void *real[SP_NVML_COUNT]; /* the library's own exports */
static uuid_function *get_uuid;
static by_uuid_function *get_device;
static gpu_function *get_gpu;
static int loaded; /* set with release when those above are filled */

/* Fill the addresses above from the library's handle, if it is loaded. As in load_driver of interpose/intercept.c,
 * threads may race, and all write the same values; the handle is kept. */
static void load_library(void) {
  int saved = errno;
  sp_dlopen_function *open = sp_libc_dlopen();
  void *handle = open != NULL ? open(SP_NVML_FILE, SP_RTLD_LAZY | SP_RTLD_NOLOAD) : NULL;
  if (handle != NULL) {
    for (int row = 0; row < SP_NVML_COUNT; row++) {
      sp_store(&real[row], sp_object_symbol(handle, symbols[row].name));
    }
    sp_store((void **)&get_uuid, sp_object_symbol(handle, "nvmlDeviceGetUUID"));
    sp_store((void **)&get_device, sp_object_symbol(handle, "nvmlDeviceGetHandleByUUID"));
    sp_store((void **)&get_gpu, sp_object_symbol(handle, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"));
    sp_store_release(&loaded, 1); /* pairs with the loads of have_library */
  }
  errno = saved;
}

/* Is the library loaded, and are the addresses filled in? They are filled in here if it has been loaded since the last
 * call. */
static bool have_library(void) {
  if (sp_load_acquire(&loaded) == 0) {
    load_library();
  }
  return sp_load_acquire(&loaded) != 0;
}

/* The library's own export of this row; NULL: the library is not loaded, or lacks it. */
void *sp_nvml_real(enum sp_nvml_row row) {
  return have_library() ? sp_load(&real[row]) : NULL;
}

/* What the program would have found for this row's name without us; NULL: nothing. It is not remembered: these calls
 * are rare, and the library may be loaded in between. errno stays. */
void *sp_nvml_next(enum sp_nvml_row row) {
  int saved = errno;
  sp_dlsym_function *lookup = sp_libc_dlsym();
  void *found = lookup != NULL ? lookup(SP_RTLD_NEXT, symbols[row].name) : NULL;
  errno = saved;
  return found != NULL ? found : sp_nvml_real(row);
}

/* The error of a wrapper that has nothing to call: the library lacks the function, or is not loaded. */
int sp_nvml_unavailable(void) {
  return have_library() ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
}

/* The library's own nvmlDeviceGetUUID: write the device's UUID to `text`, which has `length` bytes. Returns
 * NVML_SUCCESS or an error. */
int sp_nvml_uuid(void *device, char *text, unsigned int length) {
  uuid_function *function = have_library() ? sp_load(&get_uuid) : NULL;
  return function != NULL ? function(device, text, length) : NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* The library's handle of the device with this UUID, in *device. For a MIG instance ("MIG-…") it is the handle of the
 * instance's GPU, which is what the lists show. Returns NVML_SUCCESS or an error. */
int sp_nvml_device(const char *uuid, void **device) {
  by_uuid_function *by_uuid = have_library() ? sp_load(&get_device) : NULL;
  gpu_function *gpu_of = sp_load(&get_gpu);
  void *gpu = NULL;
  int result = by_uuid != NULL ? by_uuid(uuid, device) : NVML_ERROR_FUNCTION_NOT_FOUND;
  if (result == NVML_SUCCESS && uuid[0] == 'M' && gpu_of != NULL && gpu_of(*device, &gpu) == NVML_SUCCESS) {
    *device = gpu;
  }
  return result;
}

/* The wrapper that a lookup of `name` in `handle` gets; NULL: the real dlsym answers. */
void *sp_nvml_filter(void *handle, const char *name) {
  for (int row = 0; row < SP_NVML_COUNT; row++) {
    if (!sp_text_equal(symbols[row].name, name)) {
      continue;
    }
    sp_dlsym_function *lookup = sp_libc_dlsym();
    void *own = sp_nvml_real((enum sp_nvml_row)row);
    /* The real lookup comes last, so that dlerror returns what the program expects. */
    return own != NULL && lookup != NULL && lookup(handle, name) == own ? (void *)symbols[row].wrapper : NULL;
  }
  return NULL;
}
