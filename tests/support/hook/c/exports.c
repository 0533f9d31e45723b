/*
 * Asks the real driver's library for every name on standard input: by dlsym, and by both forms of cuGetProcAddress with
 * many versions and all flags. Prints for each answer the library that holds the address and the offset in it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void show(const char *how, const char *name, int version, int flags, void *address) {
  Dl_info info;
  if (address == NULL || dladdr(address, &info) == 0) {
    printf("%s %s %d %d - 0\n", how, name, version, flags);
    return;
  }
  const char *file = strrchr(info.dli_fname, '/');
  printf("%s %s %d %d %s %lx\n", how, name, version, flags, file != NULL ? file + 1 : info.dli_fname,
         (unsigned long)((char *)address - (char *)info.dli_fbase));
}

int main(int argc, char **argv) {
  static const int versions[] = {2000,  3020,  4000,  5050,  6000,  7000,  8000,  9000,  10000, 10010,
                                 11000, 11020, 11030, 11060, 11080, 12000, 12030, 12080, 13000};
  void *driver = dlopen(argc > 1 ? argv[1] : "libcuda.so.1", RTLD_NOW);
  if (driver == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int (*ask)(const char *, void **, int, uint64_t) =
      (int (*)(const char *, void **, int, uint64_t))dlsym(driver, "cuGetProcAddress");
  int (*ask2)(const char *, void **, int, uint64_t, int *) =
      (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
  char name[128];
  while (scanf("%127s", name) == 1) {
    show("dlsym", name, 0, 0, dlsym(driver, name));
    for (size_t i = 0; i < sizeof(versions) / sizeof(*versions); i++) {
      for (int flags = 0; flags < 3; flags++) {
        void *found = NULL;
        int status = -1;
        int result = ask(name, &found, versions[i], (uint64_t)flags);
        show(result == 0 ? "gpa1" : "gpa1-refused", name, versions[i], flags, result == 0 ? found : NULL);
        found = NULL;
        result = ask2 != NULL ? ask2(name, &found, versions[i], (uint64_t)flags, &status) : 1;
        show(status == 0 ? "gpa2" : "gpa2-refused", name, versions[i], flags, result == 0 ? found : NULL);
      }
    }
  }
  int (*init)(unsigned int) = (int (*)(unsigned int))dlsym(driver, "cuInit");
  printf("cuInit %d\n", init(0));
  return 0;
}
