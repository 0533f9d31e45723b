/*
 * smi ROUTE: asks NVML what nvidia-smi asks, and never touches CUDA. ROUTE: how it comes to NVML's functions: `linked`,
 * `default` (by name, everywhere), or the library to open, after "deepbind:" with RTLD_DEEPBIND.
 *
 * For every device a line with its memory by both calls, and for every list of processes what it says without room,
 * with one entry too little, and with room, between two guards.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 0x5a

struct memory_v1 {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct structured { /* process details: version, mode, count, entries */
  unsigned version, mode, count;
  void *entries;
};
struct utilizations {
  unsigned version, count;
  unsigned long long last_seen_us;
  void *entries;
};

#ifdef LINKED
int nvmlInit_v2(void), nvmlDeviceGetCount_v2(unsigned *), nvmlDeviceGetHandleByIndex_v2(unsigned, void **),
    nvmlDeviceGetUUID(void *, char *, unsigned), nvmlDeviceGetMemoryInfo(void *, struct memory_v1 *),
    nvmlDeviceGetMemoryInfo_v2(void *, struct memory_v2 *), nvmlDeviceGetProcessUtilization(),
    nvmlDeviceGetProcessesUtilizationInfo(void *, struct utilizations *),
    nvmlDeviceGetRunningProcessDetailList(void *, struct structured *);
#define LIST(name) int nvmlDeviceGet##name(void *, unsigned *, void *)
LIST(ComputeRunningProcesses);
LIST(ComputeRunningProcesses_v2);
LIST(ComputeRunningProcesses_v3);
LIST(GraphicsRunningProcesses);
LIST(GraphicsRunningProcesses_v2);
LIST(GraphicsRunningProcesses_v3);
LIST(MPSComputeRunningProcesses);
LIST(MPSComputeRunningProcesses_v2);
LIST(MPSComputeRunningProcesses_v3);
LIST(AccountingPids);
#undef LIST
#define FIND(name) ((void *)(nvml##name))
#else
static void *library;
#define FIND(name) find("nvml" #name)
static void *find(const char *name) {
  void *function = dlsym(library, name);
  if (!function) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return function;
}
#endif

static int (*list_of)(void *, unsigned *, void *);
static int (*details_of)(void *, struct structured *);
static int (*utilizations_of)(void *, struct utilizations *);
static int (*samples_of)(void *, void *, unsigned *, unsigned long long);

static int plain(void *device, unsigned *count, void *entries) {
  return list_of(device, count, entries);
}
static int details(void *device, unsigned *count, void *entries) {
  struct structured asked = {sizeof asked | 1u << 24, 0, *count, entries};
  int result = details_of(device, &asked);
  *count = asked.count;
  return result;
}
static int utilizations(void *device, unsigned *count, void *entries) {
  struct utilizations asked = {sizeof asked | 1u << 24, *count, 0, entries};
  int result = utilizations_of(device, &asked);
  *count = asked.count;
  return result;
}
static int samples(void *device, unsigned *count, void *entries) {
  return samples_of(device, entries, count, 0);
}

static void show(const char *name, void *device, int (*ask)(void *, unsigned *, void *), size_t bytes, size_t pid_at) {
  unsigned char room[64 * 40 + 1];
  unsigned none = 0, many = 64, less, exact;
  memset(room, GUARD, sizeof room);
  int first = ask(device, &none, NULL), all = ask(device, &many, room);
  unsigned found = all ? 0 : many;
  printf("%s %d %u %d", name, first, none, all);
  for (unsigned n = 0; n < found; n++) {
    unsigned pid;
    memcpy(&pid, room + n * bytes + pid_at, sizeof pid);
    printf(" %u", pid);
  }
  for (unsigned n = found * (unsigned)bytes; n < sizeof room; n++)
    if (room[n] != GUARD) {
      printf(" touched %u", n);
      break;
    }
  if (found) {
    less = found - 1;
    exact = found;
    memset(room, GUARD, sizeof room);
    int refused = ask(device, &less, room);
    int untouched = room[0] == GUARD;
    printf(" less %d %u %d", refused, less, untouched);
    printf(" exact %d", ask(device, &exact, room));
  }
  printf("\n");
}

#define SHOW(name, bytes)                                                                                              \
  list_of = FIND(DeviceGet##name);                                                                                     \
  show(#name, device, plain, bytes, 0)

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
#ifdef LINKED
  (void)argv;
#else
  const char *route = argv[1];
  int flags = RTLD_NOW;
  if (!strncmp(route, "deepbind:", 9)) {
    flags |= RTLD_DEEPBIND;
    route += 9;
  }
  library = dlopen(!strcmp(route, "default") ? "libnvidia-ml.so.1" : route,
                   !strcmp(route, "default") ? RTLD_NOW | RTLD_GLOBAL : flags);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  if (!strcmp(route, "default"))
    library = RTLD_DEFAULT;
#endif
  int (*init)(void) = FIND(Init_v2);
  int (*count_of)(unsigned *) = FIND(DeviceGetCount_v2);
  int (*handle_of)(unsigned, void **) = FIND(DeviceGetHandleByIndex_v2);
  int (*uuid_of)(void *, char *, unsigned) = FIND(DeviceGetUUID);
  int (*memory_v1_of)(void *, struct memory_v1 *) = FIND(DeviceGetMemoryInfo);
  int (*memory_v2_of)(void *, struct memory_v2 *) = FIND(DeviceGetMemoryInfo_v2);
  details_of = FIND(DeviceGetRunningProcessDetailList);
  utilizations_of = FIND(DeviceGetProcessesUtilizationInfo);
  samples_of = FIND(DeviceGetProcessUtilization);
  unsigned count;
  if (init() || count_of(&count))
    return 1;
  for (unsigned n = 0; n < count; n++) {
    void *device;
    char uuid[96];
    struct memory_v1 one;
    struct memory_v2 two = {.version = sizeof two | 2u << 24};
    errno = 77;
    if (handle_of(n, &device) || uuid_of(device, uuid, sizeof uuid) || memory_v1_of(device, &one) ||
        memory_v2_of(device, &two))
      return 1;
    printf("%s %llu %llu %llu %llu %llu %llu %llu\n", uuid, one.total, one.used, one.free, two.total, two.used,
           two.free, two.reserved);
    SHOW(ComputeRunningProcesses, 16);
    SHOW(ComputeRunningProcesses_v2, 24);
    SHOW(ComputeRunningProcesses_v3, 24);
    SHOW(GraphicsRunningProcesses, 16);
    SHOW(GraphicsRunningProcesses_v2, 24);
    SHOW(GraphicsRunningProcesses_v3, 24);
    SHOW(MPSComputeRunningProcesses, 16);
    SHOW(MPSComputeRunningProcesses_v2, 24);
    SHOW(MPSComputeRunningProcesses_v3, 24);
    SHOW(AccountingPids, 4);
    show("RunningProcessDetailList", device, details, 32, 0);
    show("ProcessUtilization", device, samples, 32, 0);
    show("ProcessesUtilizationInfo", device, utilizations, 40, 8);
    if (errno != 77)
      printf("errno %d\n", errno);
  }
  return 0;
}
