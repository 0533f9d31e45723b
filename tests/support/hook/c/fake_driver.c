/*
 * A libcuda.so.1 that only records how it is called: for the tests of interposition, where the driver must be able to
 * say which of its exports was reached and with what. It computes nothing; the simulated driver is for that.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT        __attribute__((visibility("default")))
#define MAX_ARGUMENTS 11

struct seen {
  const char *name;
  int calls;
  int result; /* what the next calls return */
  uint64_t arguments[MAX_ARGUMENTS];
};

enum {
#define SP_SYMBOL(name, since, per_thread, action) ROW_##name,
#include "../../../../hook/symbols.def"
#undef SP_SYMBOL
  ROW_COUNT
};

static struct seen seen[ROW_COUNT] = {
#define SP_SYMBOL(symbol, since, per_thread, action) {.name = #symbol},
#include "../../../../hook/symbols.def"
#undef SP_SYMBOL
};

EXPORT struct seen *fake_seen(const char *name);
EXPORT struct seen *fake_seen(const char *name) {
  for (int row = 0; row < ROW_COUNT; row++) {
    if (strcmp(seen[row].name, name) == 0) {
      return &seen[row];
    }
  }
  return NULL;
}

EXPORT int fake_current_device, fake_capture_status, fake_primary_active = 1, fake_retained;
EXPORT unsigned int fake_memory_type = 2;
EXPORT uint64_t fake_current_context = 0xc0, fake_next_address = 0x10000;
EXPORT uint64_t fake_free_bytes = 3u << 30, fake_total_bytes = 0xf0000000u;

static int lookup(const char *symbol, void **address, int version, uint64_t flags);
static int starts(const char *name, const char *prefix) {
  return strncmp(name, prefix, strlen(prefix)) == 0;
}
static int is_narrow(const char *name) {
  return strstr(name, "_v2") == NULL;
}

static void store(uint64_t pointer, uint64_t value, int narrow) {
  if (narrow) {
    *(unsigned int *)pointer = (unsigned int)value;
  } else {
    *(uint64_t *)pointer = value;
  }
}

static int record(int row, const uint64_t *arguments) {
  struct seen *one = &seen[row];
  one->calls++;
  memcpy(one->arguments, arguments, sizeof(one->arguments));
  if (one->result != 0) {
    return one->result;
  }
  if (starts(one->name, "cuMemAlloc")) {
    int narrow = strcmp(one->name, "cuMemAlloc") == 0 || strcmp(one->name, "cuMemAllocPitch") == 0;
    store(arguments[0], fake_next_address, narrow);
    fake_next_address += 0x1000;
    if (starts(one->name, "cuMemAllocPitch")) {
      store(arguments[1], (arguments[2] + 1023) / 1024 * 1024, narrow);
    }
  } else if (starts(one->name, "cuMemGetInfo")) {
    store(arguments[0], fake_free_bytes, is_narrow(one->name));
    store(arguments[1], fake_total_bytes, is_narrow(one->name));
  } else if (starts(one->name, "cuDeviceTotalMem")) {
    store(arguments[0], fake_total_bytes, is_narrow(one->name));
  } else if (starts(one->name, "cuDevicePrimaryCtxRelease") && fake_retained > 0) {
    fake_retained--;
  } else if (starts(one->name, "cuDevicePrimaryCtxRetain")) {
    *(uint64_t *)arguments[0] = fake_current_context;
    fake_retained++;
  } else if (starts(one->name, "cuDevicePrimaryCtxRe")) {
    fake_primary_active = 0;
  } else if (starts(one->name, "cuGetProcAddress")) {
    return lookup((const char *)arguments[0], (void **)arguments[1], (int)arguments[2], arguments[3]);
  }
  return 0;
}

#define P(n) uint64_t a##n
#define SP_SYMBOL(name, since, per_thread, action)                                                                     \
  EXPORT int name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10));                                  \
  EXPORT int name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10)) {                                 \
    return record(ROW_##name, (uint64_t[]){a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10});                              \
  }
#include "../../../../hook/symbols.def"
#undef SP_SYMBOL

static const struct {
  const char *name;
  int (*function)(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10));
  int since, per_thread;
} table[] = {
#define SP_SYMBOL(name, since, per_thread, action) {#name, name, since, per_thread},
#include "../../../../hook/symbols.def"
#undef SP_SYMBOL
};

EXPORT int cuDeviceGetCount(int *count);

/* As the driver does it: the newest variant that the asked version knows, per-thread if flag 2 asks and there is one.
 */
static int lookup(const char *symbol, void **address, int version, uint64_t flags) {
  int best = -1;
  for (int row = 0; row < ROW_COUNT; row++) {
    size_t length = strlen(symbol);
    const char *rest = table[row].name + length;
    int same = strncmp(table[row].name, symbol, length) == 0 &&
               (*rest == '\0' || starts(rest, "_v2") || starts(rest, "_pt")) && table[row].since <= version;
    int wanted = flags == 2 || !table[row].per_thread;
    if (same && wanted &&
        (best < 0 || table[row].per_thread > table[best].per_thread ||
         (table[row].per_thread == table[best].per_thread && table[row].since >= table[best].since))) {
      best = row;
    }
  }
  *address = best >= 0 ? (void *)table[best].function : NULL;
  if (strcmp(symbol, "cuDeviceGetCount") == 0) {
    *address = (void *)cuDeviceGetCount;
  }
  return *address != NULL ? 0 : 500;
}

/* What the hook itself calls, and one symbol that it must leave alone. */
EXPORT int cuDeviceGetCount(int *count) {
  *count = 1;
  return 0;
}
EXPORT int cuCtxGetDevice(int *device);
EXPORT int cuCtxGetDevice(int *device) {
  *device = fake_current_device;
  return fake_current_device < 0 ? 201 : 0;
}
EXPORT int cuCtxGetCurrent(uint64_t *context);
EXPORT int cuCtxGetCurrent(uint64_t *context) {
  *context = fake_current_context;
  return 0;
}
EXPORT int cuCtxFromGreenCtx(uint64_t *context, void *green);
EXPORT int cuCtxFromGreenCtx(uint64_t *context, void *green) {
  (void)green;
  *context = fake_current_context;
  return 0;
}
EXPORT int cuStreamGetCtx(void *stream, uint64_t *context);
EXPORT int cuStreamGetCtx(void *stream, uint64_t *context) {
  (void)stream;
  *context = fake_current_context;
  return 0;
}
EXPORT int cuStreamIsCapturing(void *stream, int *status);
EXPORT int cuStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  *status = fake_capture_status;
  return 0;
}
EXPORT int cuStreamIsCapturing_ptsz(void *stream, int *status);
EXPORT int cuStreamIsCapturing_ptsz(void *stream, int *status) {
  return cuStreamIsCapturing(stream, status);
}
EXPORT int cuPointerGetAttribute(void *out, int attribute, uint64_t address);
EXPORT int cuPointerGetAttribute(void *out, int attribute, uint64_t address) {
  (void)address;
  if (attribute != 2) {
    return 1;
  }
  *(unsigned int *)out = fake_memory_type;
  return 0;
}
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active);
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active) {
  (void)device;
  *flags = 0;
  *active = fake_primary_active;
  return 0;
}
