/* Prints what dlsym and cuGetProcAddress give for names that the hook does not wrap, and the loader's error texts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

static void show(void *handle, const char *name) {
  (void)dlerror();
  void *found = dlsym(handle, name);
  const char *error = dlerror();
  Dl_info info = {0};
  if (found != NULL) {
    dladdr(found, &info);
  }
  printf("%s: %s %s\n", name, found != NULL ? info.dli_sname : "(nil)", error != NULL ? error : "-");
}

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  void *libc = dlopen("libc.so.6", RTLD_NOW);
  show(driver, "cuDeviceGetCount");
  show(driver, "cuNoSuchName");
  show(driver, "c");
  show(driver, "");
  show(libc, "cuInit");
  show(libc, "cuserid");
  int (*ask)(const char *, void **, int, uint64_t) =
      (int (*)(const char *, void **, int, uint64_t))dlsym(driver, "cuGetProcAddress");
  void *count = NULL, *nothing = NULL;
  int result = ask("cuDeviceGetCount", &count, 13000, 0);
  int missing = ask("cuNoSuchName", &nothing, 13000, 0);
  printf("%d %d %d %d\n", result, missing, count == dlsym(driver, "cuDeviceGetCount"), nothing == NULL);
  printf("%s\n", dlopen("libnosuch.so", RTLD_NOW) == NULL ? dlerror() : "?");
  return 0;
}
