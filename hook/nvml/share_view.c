/* What a share may see of itself through NVML. Asked by programs that may never touch CUDA: nvidia-smi has no slot. */
#include <errno.h>
#include <string.h>

#include "hook/gate/process.h"
#include "hook/nvml/nvml.h"

/* View the region that this process is attached to, or else a copy of it. False: the process is in no share, or its
 * region cannot be used; then there is nothing to close. errno stays. */
bool sp_view_open(struct sp_view *view) {
  if (sp_load_acquire(&sp_this_process.attached)) {
    view->region = &sp_this_process.region;
    return true;
  }
  int saved = errno;
  bool usable = sp_region_look(&view->looked, sp_share_directory()) == 0;
  errno = saved;
  view->region = &view->looked;
  return usable;
}

/* End the view; a copy is freed. errno stays. */
void sp_view_close(struct sp_view *view) {
  if (view->region == &view->looked) {
    int saved = errno;
    sp_region_unlook(&view->looked);
    errno = saved;
  }
}

/* Does a process of the share have this pid, in the pid namespace of the share? */
bool sp_view_has_pid(const struct sp_view *view, uint32_t pid) {
  return pid != 0 && sp_region_has_pid(view->region, (int32_t)pid);
}

/* Write the UUID of the share's device with that number (its place in the region) to `uuid`. False: the share has fewer
 * devices, or `room` is too small. */
bool sp_view_uuid(const struct sp_view *view, uint32_t number, char *uuid, size_t room) {
  uint32_t count = sp_load(&view->region->header->grant_count); /* it may have changed since it was checked */
  if (number >= count || number >= SP_DEVICES_MAX || room <= sizeof view->region->grants->uuid)
    return false;
  memcpy(uuid, view->region->grants[number].uuid, sizeof view->region->grants->uuid);
  uuid[sizeof view->region->grants->uuid] = '\0';
  return true;
}

/* Lower the library's figures of the device with this UUID to the share's: its cap, what the share uses, and what is
 * left of the cap. Nothing changes if the share does not hold the device or has no cap. */
void sp_view_memory(const struct sp_view *view, const char *uuid, uint64_t *total_bytes, uint64_t *used_bytes,
                    uint64_t *free_bytes) {
  uint32_t count = sp_load(&view->region->header->grant_count); /* it may have changed since it was checked */
  for (uint32_t device = 0; device < count && device < SP_DEVICES_MAX; device++) {
    const struct sp_grant *grant = &view->region->grants[device];
    uint64_t limit_bytes = sp_load(&grant->memory_limit_bytes);
    if (strncmp(grant->uuid, uuid, sizeof grant->uuid) != 0 || limit_bytes == 0) {
      continue;
    }
    uint64_t used = sp_region_memory_shown(view->region, device);
    *total_bytes = *total_bytes < limit_bytes ? *total_bytes : limit_bytes;
    uint64_t left = *total_bytes > used ? *total_bytes - used : 0;
    *free_bytes = *free_bytes < left ? *free_bytes : left;
    *used_bytes = used;
    return;
  }
}
