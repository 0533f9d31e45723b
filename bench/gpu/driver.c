#define _GNU_SOURCE
#include "driver.h"

struct driver driver;
static void *context;

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
#define ONE_REQUIRED(name, arguments) REQUIRE(driver.name, #name);
#define ONE_OPTIONAL(name, arguments) FIND(driver.name, #name);
  DRIVER(ONE_REQUIRED)
  DRIVER_OPTIONAL(ONE_OPTIONAL)
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
