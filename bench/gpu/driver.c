#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct driver driver;
static void *context;

void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sleep_until(uint64_t time_ns) {
  struct timespec time = {.tv_sec = (time_t)(time_ns / 1000000000u), .tv_nsec = (long)(time_ns % 1000000000u)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

void *allocate(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory)
    die("no memory for %zu values", count);
  return memory;
}

const char *error_name(int result) {
  const char *name = NULL;
  if (driver.cuGetErrorName)
    driver.cuGetErrorName(result, &name);
  return name ? name : "unknown error";
}

void check(int result, const char *call) {
  if (result != SUCCESS)
    die("%s returned %d (%s)", call, result, error_name(result));
}

void load_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library)
    die("%s", dlerror());
  int (*get_v2)(const char *, void **, int, uint64_t, int *) = NULL;
  int (*get_v1)(const char *, void **, int, uint64_t) = NULL;
  *(void **)&get_v2 = dlsym(library, "cuGetProcAddress_v2");
  *(void **)&get_v1 = dlsym(library, "cuGetProcAddress");
  if (!get_v2 && !get_v1)
    die("the driver has no cuGetProcAddress");
  void *address;
  int status, result;
#define FIND(name, arguments)                                                                                          \
  address = NULL;                                                                                                      \
  result = get_v2 ? get_v2(#name, &address, CUDA_VERSION, 0, &status) : get_v1(#name, &address, CUDA_VERSION, 0);      \
  *(void **)&driver.name = result == SUCCESS ? address : NULL;
#define REQUIRE(name, arguments)                                                                                       \
  FIND(name, arguments)                                                                                                \
  if (!driver.name)                                                                                                    \
    die("the driver lacks " #name);
  DRIVER(REQUIRE)
  DRIVER_OPTIONAL(FIND)
  CALL(cuInit, 0);
}

void use_context(void) {
  CALL(cuCtxSetCurrent, context);
}

void open_context(void) {
  int device = 0;
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  use_context();
}

void *mapped(size_t bytes, device_pointer *address) {
  void *memory = NULL;
  CALL(cuMemHostAlloc, &memory, bytes, HOST_PORTABLE_MAPPED);
  CALL(cuMemHostGetDevicePointer, address, memory, 0);
  memset(memory, 0, bytes);
  return memory;
}
