/*
 * NVML inside a share: the wrappers, and how a program gets to them.
 *
 *   nvml/intercept.c   decides which address the program gets, as interpose/intercept.c does for the driver
 *   nvml/devices.c     wrappers that list and find devices
 *   nvml/answers.c     the other wrappers: ask the library, then reduce its answer to the share
 *   nvml/share_view.c  reads the share from its region; the asking process need not have a slot in it
 */
#ifndef SHAREPOD_NVML_H
#define SHAREPOD_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "region/region.h"

#pragma GCC visibility push(hidden)

enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

enum sp_nvml_row {
#define NVML_WRAPPED(name) SP_NVML_##name,
#include "driver/nvml_wrapped.h"
  SP_NVML_COUNT
};

/* The library's own export, and the function that the exported name calls: see interpose/intercept.h. NULL: there is
 * none. Neither changes errno. */
void *sp_nvml_real(enum sp_nvml_row row);
void *sp_nvml_next(enum sp_nvml_row row);
/* The result of a wrapper that has no function to call. */
int sp_nvml_unavailable(void);
/* The library's own nvmlDeviceGetUUID, or an error. */
int sp_nvml_uuid(void *device, char *text, unsigned int length);
/* The library's own handle of the device with this UUID; for a MIG instance, the handle of its GPU. */
int sp_nvml_device(const char *uuid, void **device);
/* For sp_filter: the wrapper to return for a lookup of `name` in `handle`, or NULL. */
void *sp_nvml_filter(void *handle, const char *name);

/* What this process may see: its share's region, to which it is attached or which it only reads. */
struct sp_view {
  const struct sp_region *region;
  struct sp_region looked; /* the copy that is read if the process is not attached */
};
/* Open the view. False: this process is in no share, or its region cannot be used. Every success needs sp_view_close.
 * Neither changes errno. */
bool sp_view_open(struct sp_view *view);
void sp_view_close(struct sp_view *view);
#define SP_UUID_ROOM 96u
/* The UUID of the share's device with that number, in CUDA's default order. False: the share has fewer devices, or
 * `room` is too small: SP_UUID_ROOM is enough. */
bool sp_view_uuid(const struct sp_view *view, uint32_t number, char *uuid, size_t room);
/* Does a process of the share have this pid, in the pid namespace of the share? */
bool sp_view_has_pid(const struct sp_view *view, uint32_t pid);
/* Lower the library's figures for the device to the share's. Nothing changes if the share does not hold the device or
 * has no cap. */
void sp_view_memory(const struct sp_view *view, const char *uuid, uint64_t *total_bytes, uint64_t *used_bytes,
                    uint64_t *free_bytes);

#pragma GCC visibility pop

#endif
