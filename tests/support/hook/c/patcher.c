/*
 * Patches the code of cuMemFree_v2, as UCX does to hear of every free. It looks the function up in the driver's handle,
 * and writes a jump over its first bytes. Then it frees by each route: by a link, by a lookup, by cuGetProcAddress.
 * Prints how many of the three frees the patch has seen. x86-64 only.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemFree_v2(unsigned long long address);
int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status);
typedef int free_function(unsigned long long address);

static int seen;

/* What the patched function does. */
static int count(unsigned long long address) {
  (void)address;
  seen++;
  return 0;
}

/* Write a jump to `target` over the first bytes of a function. */
static int patch(void *function, free_function *target) {
  unsigned char jump[14] = {0xff, 0x25, 0, 0, 0, 0}; /* jmp *0(%rip), with the address behind it */
  memcpy(jump + 6, &target, sizeof target);
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *first = (char *)((uintptr_t)function & ~(page - 1));
  if (mprotect(first, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
    return 1;
  }
  memcpy(function, jump, sizeof jump);
  return 0;
}

int main(void) {
  void *context, *asked = NULL;
  int status;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
      cuGetProcAddress_v2("cuMemFree", &asked, 12000, 0, &status)) {
    return 1;
  }
  void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemFree_v2");
  if (patch(found, count)) {
    return 1;
  }
  free_function *routes[] = {cuMemFree_v2, (free_function *)found, (free_function *)asked};
  for (int route = 0; route < 3; route++) {
    routes[route](0);
  }
  printf("%d of 3\n", seen);
  return 0;
}
