/* Looks up NVML names by handle; prints which library holds each, and what the first function answers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  static const char *const names[] = {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetUUID", "nvmlNone", "n"};
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!library)
    return 1;
  for (int n = 0; n < 4; n++) {
    Dl_info info;
    void *found = dlsym(library, names[n]);
    const char *file = found && dladdr(found, &info) ? strrchr(info.dli_fname, '/') : NULL;
    printf("%s ", file ? file + 1 : "-");
  }
  int (*ask)(void *, unsigned *, void *) = (int (*)(void *, unsigned *, void *))dlsym(library, names[0]);
  unsigned count = 0;
  int result = ask(NULL, &count, NULL);
  printf("%d %u\n", result, count);
  return 0;
}
