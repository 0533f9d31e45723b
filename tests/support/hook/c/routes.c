/*
 * Calls every wrapped symbol by one route to the driver and prints what the driver and the gate saw, one line each:
 *   name  calls-the-driver-saw  arguments-arrived  result  enters leaves synced begun ended streams contexts attaches
 * changes units to_device to_host per_thread stream Built as a program (linked lazily, or with -fno-plt -z now) and as
 * a plugin.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../../hook/cuda_abi.h"

#ifndef RTLD_DEEPBIND /* glibc's alone */
#define RTLD_DEEPBIND 0
#endif

#define P(n) uint64_t a##n
typedef int any_function(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10));
typedef int gpa_function(const char *symbol, void **address, int version, uint64_t flags);
typedef int gpa2_function(const char *symbol, void **address, int version, uint64_t flags, int *status);

struct seen {
  const char *name;
  int calls;
  int result;
  uint64_t arguments[11];
};
struct gate_log {
  uint64_t enters, leaves, synced, captures_begun, captures_ended, streams_forgotten, contexts_forgotten, attaches,
      context_changes, units_changed, copied_bytes[2], copied[2];
  uint64_t key, stream, per_thread, left_with, forgotten;
};

#ifdef LINKED
#define SP_SYMBOL(name, since, per_thread, action) extern any_function name;
#include "../../../../hook/symbols.def"
#undef SP_SYMBOL
/* Real call sites, so that the linkage under test (PLT or GOT) is what is used. */
#define SP_SYMBOL(name, since, per_thread, action)                                                                     \
  static int linked_##name(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10)) {                        \
    return name(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10);                                                          \
  }
#include "../../../../hook/symbols.def"
#undef SP_SYMBOL
#define LINKED_CALL(name) linked_##name
#else
#define LINKED_CALL(name) NULL
#endif

#define CALL(name, signature) static const char signature_##name[] = signature;
#include "calls.def"
#undef CALL

static const struct row {
  const char *name, *signature;
  int since, per_thread;
  any_function *linked;
} rows[] = {
#define SP_SYMBOL(name, since, per_thread, action) {#name, signature_##name, since, per_thread, LINKED_CALL(name)},
#include "../../../../hook/symbols.def"
#undef SP_SYMBOL
};

static uint64_t scratch[11][256];

static uint64_t argument(char kind, size_t position) {
  switch (kind) {
  case 'p':
    return (uint64_t)scratch[position];
  case 's':
    return 0x5000 + position;
  case 'i':
    return 3 + position;
  case 'k':
    return 1000 + position;
  default:
    return 0x100000001u + position;
  }
}

static void *driver_handle(const char *route) {
  const char *path = strstr(route, "path") != NULL ? getenv("FAKE_DRIVER") : "libcuda.so.1";
  return dlopen(path, RTLD_NOW | (strstr(route, "deepbind") != NULL ? RTLD_DEEPBIND : 0));
}

static void base_name(char *base, const char *name) {
  strcpy(base, name);
  for (const char *const *end = (const char *const[]){"_ptsz", "_ptds", "_v2", NULL}; *end != NULL; end++) {
    size_t length = strlen(base), tail = strlen(*end);
    if (length > tail && strcmp(base + length - tail, *end) == 0) {
      base[length - tail] = '\0';
    }
  }
}

static any_function *by_address(const char *route, const struct row *row) {
  void *handle = driver_handle(route), *found = NULL;
  char base[64];
  base_name(base, row->name);
  uint64_t flags = row->per_thread ? 2 : 0;
  int status = -1;
  gpa2_function *ask2 = (gpa2_function *)dlsym(handle, "cuGetProcAddress_v2");
  if (strstr(route, "gpa1") != NULL) {
    ((gpa_function *)dlsym(handle, "cuGetProcAddress"))(base, &found, row->since, flags);
  } else if (strstr(route, "gpaself") != NULL) {
    gpa2_function *again = NULL;
    ask2("cuGetProcAddress", (void **)&again, 12000, 0, &status);
    again(base, &found, row->since, flags, &status);
  } else {
    ask2(base, &found, row->since, flags, &status);
  }
  return (any_function *)found;
}

static any_function *find(const char *route, const struct row *row) {
  if (strncmp(route, "linked", 6) == 0) {
    return row->linked;
  }
  if (strncmp(route, "default", 7) == 0) {
    return (any_function *)dlsym(RTLD_DEFAULT, row->name);
  }
  if (strncmp(route, "gpa", 3) == 0) {
    return by_address(route, row);
  }
  return (any_function *)dlsym(driver_handle(route), row->name);
}

/* A batch, or a copy with attributes, is from device memory to device memory: its list of copies says so. */
static int describe_batch(const char *name) {
  if (strncmp(name, "cuFabricCpyBatch", 16) == 0) {
    CUDA_FABRIC_COPY_BATCH_OP *copy = (CUDA_FABRIC_COPY_BATCH_OP *)scratch[1];
    copy->src.type = CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT;
    copy->dst.type = CU_FABRIC_COPY_OPERAND_TYPE_POINTER;
    return 1;
  }
  int batch = strncmp(name, "cuMemcpy3DBatch", 15) == 0;
  if (!batch && strncmp(name, "cuMemcpy3DWith", 14) != 0) {
    return 0;
  }
  CUDA_MEMCPY3D_BATCH_OP *copy = (CUDA_MEMCPY3D_BATCH_OP *)scratch[batch];
  copy->src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  copy->dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  return 1;
}

/* A copy of two or three dimensions likewise: its first argument says so. */
static void describe_copy(const char *name) {
  if (describe_batch(name)) {
    return;
  }
  int newer = strstr(name, "_v2") != NULL || strstr(name, "Peer") != NULL;
  if (strncmp(name, "cuMemcpy2D", 10) == 0 && newer) {
    CUDA_MEMCPY2D *box = (CUDA_MEMCPY2D *)scratch[0];
    box->srcMemoryType = box->dstMemoryType = CU_MEMORYTYPE_DEVICE;
  } else if (strncmp(name, "cuMemcpy2D", 10) == 0) {
    CUDA_MEMCPY2D_v1 *box = (CUDA_MEMCPY2D_v1 *)scratch[0];
    box->srcMemoryType = box->dstMemoryType = CU_MEMORYTYPE_DEVICE;
  } else if (strncmp(name, "cuMemcpy3D", 10) == 0 && newer) {
    CUDA_MEMCPY3D *box = (CUDA_MEMCPY3D *)scratch[0];
    box->srcMemoryType = box->dstMemoryType = CU_MEMORYTYPE_DEVICE;
  } else if (strncmp(name, "cuMemcpy3D", 10) == 0) {
    CUDA_MEMCPY3D_v1 *box = (CUDA_MEMCPY3D_v1 *)scratch[0];
    box->srcMemoryType = box->dstMemoryType = CU_MEMORYTYPE_DEVICE;
  }
}

static void call(const char *route, const struct row *row) {
  struct seen *(*fake_seen)(const char *) = (struct seen * (*)(const char *)) dlsym(driver_handle(route), "fake_seen");
  struct gate_log *log = (struct gate_log *)dlsym(RTLD_DEFAULT, "test_log");
  int *primary_active = (int *)dlsym(driver_handle(route), "fake_primary_active");
  struct seen *seen = fake_seen(row->name);
  any_function *function = find(route, row);
  uint64_t a[11] = {0};
  memset(scratch, 0, sizeof(scratch));
  size_t count = strlen(row->signature);
  for (size_t i = 0; i < count; i++) {
    a[i] = argument(row->signature[i], i);
  }
  if (strcmp(row->name, "cuLaunchKernelEx") == 0 || strcmp(row->name, "cuLaunchKernelEx_ptsz") == 0) {
    scratch[0][4] = 0x5000; /* config->hStream */
  }
  describe_copy(row->name);
  if (log != NULL) {
    memset(log, 0, sizeof(*log));
  }
  *primary_active = 1;
  seen->calls = 0;
  int result = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
  int arrived = 1;
  for (size_t i = 0; i < count; i++) {
    uint64_t mask = row->signature[i] == 'i' ? 0xffffffffu : UINT64_MAX;
    arrived &= (seen->arguments[i] & mask) == (a[i] & mask);
  }
  struct gate_log none = {0};
  log = log != NULL ? log : &none;
  printf("%s %d %d %d %lu %lu %lu %lu %lu %lu %lu %lu %lu %lu %lu %lu %lu %lu\n", row->name, seen->calls, arrived,
         result, log->enters, log->leaves, log->synced, log->captures_begun, log->captures_ended,
         log->streams_forgotten, log->contexts_forgotten, log->attaches, log->context_changes, log->units_changed,
         log->copied[0], log->copied[1], log->per_thread, log->stream);
}

__attribute__((visibility("default"))) int run_route(const char *route);
int run_route(const char *route) {
  for (size_t row = 0; row < sizeof(rows) / sizeof(*rows); row++) {
    call(route, &rows[row]);
  }
  fflush(stdout);
  return 0;
}

#ifdef PROGRAM
/* routes ROUTE, or routes plugin:ROUTE for the same inside a plugin opened with RTLD_DEEPBIND */
int main(int argc, char **argv) {
  const char *route = argc > 1 ? argv[1] : "linked";
  if (strncmp(route, "plugin:", 7) != 0) {
    return run_route(route);
  }
  void *plugin = dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (plugin == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  return ((int (*)(const char *))dlsym(plugin, "run_route"))(route + 7);
}
#endif
