/*
 * Which devices a process may use: with SIMGPU_DEVICE_NODES=FOLDER only those with a node in it that the process can
 * open, as with a real driver. A container that has one node of two sees one GPU.
 *
 * A node without a driver behind it (ENXIO) counts as open, and so does a plain file in its place.
 */
#define _GNU_SOURCE
#include "simgpu/config/settings.h"
#include "simgpu/model/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* Whether the process can open the node, or there is no driver behind it. */
static bool opens(const char *folder, const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0)
    close(fd);
  return fd >= 0 || errno == ENXIO;
}

/* Note in state->hidden which devices this process cannot open; an instance is hidden with its GPU. False: it cannot
 * open `nvidiactl`, the driver's own node. Without SIMGPU_DEVICE_NODES nothing is hidden. */
bool sg_find_hidden(struct sg_state *state) {
  const char *folder = sg_setting_text("SIMGPU_DEVICE_NODES");
  const struct sg_shared *shared = state->shared;
  state->hidden = 0;
  if (!folder)
    return true;
  for (uint32_t n = 0; n < shared->device_count; n++) {
    const struct sg_device *device = &shared->devices[n];
    char name[32];
    snprintf(name, sizeof name, "nvidia%u", device->number);
    bool hidden = device->parent == SG_NONE ? !opens(folder, name) : sg_hidden(state, device->parent);
    state->hidden |= (uint32_t)hidden << n;
  }
  return opens(folder, "nvidiactl");
}
