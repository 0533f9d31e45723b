/* Memory limits of cgroups, as drivers from r615 on have them: who a process counts for, and what is left for it. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* The part of cgroup2's tree that a mount shows, and where. Paths with escapes are not looked for. */
struct mount {
  char root[512], point[512];
};

static bool next_mount(FILE *file, struct mount *mount) {
  char line[2048];
  while (fgets(line, sizeof line, file))
    if (strstr(line, " - cgroup2 ") && sscanf(line, "%*s %*s %*s %511s %511s", mount->root, mount->point) == 2)
      return true;
  return false;
}

/* Does the mount show the cgroup `path`? Then `directory` says where. */
static bool shows(const struct mount *mount, const char *path, char *directory, size_t room) {
  size_t length = strcmp(mount->root, "/") ? strlen(mount->root) : 0;
  bool below = !strncmp(path, mount->root, length) && (!path[length] || path[length] == '/');
  return below && (size_t)snprintf(directory, room, "%s%s", mount->point, path + length) < room;
}

static bool own_path(char *path, size_t room) {
  FILE *file = fopen("/proc/self/cgroup", "re");
  bool found = false;
  while (file && !found && fgets(path, (int)room, file))
    found = !strncmp(path, "0::/", 4);
  if (file)
    fclose(file);
  if (found) {
    memmove(path, path + 3, strlen(path + 3) + 1);
    path[strcspn(path, "\n")] = 0;
  }
  return found;
}

void sg_cgroups(uint64_t *cgroups) {
  char path[512], directory[1024];
  struct mount mount;
  struct stat info;
  bool found = false;
  memset(cgroups, 0, SG_CGROUP_DEPTH * sizeof *cgroups);
  FILE *file = own_path(path, sizeof path) ? fopen("/proc/self/mountinfo", "re") : NULL;
  while (file && !found && next_mount(file, &mount))
    found = shows(&mount, path, directory, sizeof directory) && !stat(directory, &info);
  if (file)
    fclose(file);
  for (int n = 0; found && n < SG_CGROUP_DEPTH && strlen(directory) >= strlen(mount.point); n++) {
    if (stat(directory, &info))
      return;
    cgroups[n] = info.st_ino;
    *strrchr(directory, '/') = 0;
  }
}

static uint64_t id_of(const char *path, int *error) {
  struct stat info;
  struct statfs system;
  *error = stat(path, &info) || statfs(path, &system) ? -ENOENT : 0;
  if (!*error && (*path != '/' || !S_ISDIR(info.st_mode) || system.f_type != CGROUP2_SUPER_MAGIC))
    *error = -EINVAL;
  return *error ? 0 : info.st_ino;
}

/* SG_NONE: it has none. */
static uint32_t find(const struct sg_shared *shared, uint32_t device, uint64_t cgroup) {
  for (uint32_t n = 0; n < shared->limit_count; n++) {
    const struct sg_limit *limit = &shared->limits[n];
    if (limit->used && limit->device == device && limit->cgroup == cgroup)
      return n;
  }
  return SG_NONE;
}

/* An entry that is free, or whose directory is gone. */
static uint32_t vacant(struct sg_shared *shared) {
  int error;
  for (uint32_t n = 0; n < shared->limit_count; n++)
    if (!shared->limits[n].used || id_of(shared->limits[n].path, &error) != shared->limits[n].cgroup)
      return n;
  return shared->limit_count < SG_MAX_LIMITS ? shared->limit_count++ : SG_NONE;
}

int sg_limit_set(struct sg_shared *shared, uint32_t device, const char *path, uint64_t soft_bytes,
                 uint64_t hard_bytes) {
  int error;
  uint64_t cgroup = id_of(path, &error);
  if (error || soft_bytes > hard_bytes || strlen(path) >= sizeof shared->limits->path)
    return error ? error : -EINVAL;
  uint32_t n = find(shared, device, cgroup);
  if (hard_bytes == SG_NEVER) {
    if (n != SG_NONE)
      shared->limits[n].used = 0;
    return 0;
  }
  if (n == SG_NONE)
    n = vacant(shared);
  if (n == SG_NONE)
    return -ENOSPC;
  struct sg_limit *limit = &shared->limits[n];
  limit->used = 0;
  *limit = (struct sg_limit){cgroup, soft_bytes, hard_bytes, device, 0, ""};
  strcpy(limit->path, path);
  limit->used = 1;
  return 0;
}

const struct sg_limit *sg_limit_at(const struct sg_shared *shared, uint32_t device, const char *path, int *error) {
  uint64_t cgroup = id_of(path, error);
  uint32_t n = *error ? SG_NONE : find(shared, device, cgroup);
  if (!*error && n == SG_NONE)
    *error = -ENODATA;
  return n == SG_NONE ? NULL : &shared->limits[n];
}

const struct sg_limit *sg_limit_own(const struct sg_state *state, uint32_t device) {
  for (int level = 0; level < SG_CGROUP_DEPTH && state->cgroups[level]; level++) {
    uint32_t n = find(state->shared, device, state->cgroups[level]);
    if (n != SG_NONE)
      return &state->shared->limits[n];
  }
  return NULL;
}

uint64_t sg_limit_left(const struct sg_state *state, uint32_t device) {
  const struct sg_limit *limit = sg_limit_own(state, device);
  uint64_t used = limit ? sg_memory_of_cgroup(state->shared, device, limit->cgroup) : 0;
  return !limit ? SG_NEVER : used < limit->hard_bytes ? limit->hard_bytes - used : 0;
}
