/* A tool that interposes on the loader's calls themselves, as overlays and tracers do: in C, with dlvsym. */
#include "loader.h"

#include <stdio.h>
#include <string.h>

static int opens, lookups;

EXPORT void *dlopen(const char *path, int flags) {
  static void *(*next)(const char *, int);
  if (next == NULL) {
    next = (void *(*)(const char *, int))LIBC("dlopen");
  }
  opens++;
  return next(path, flags);
}

EXPORT void *dlsym(void *handle, const char *name) {
  static void *(*next)(void *, const char *);
  if (next == NULL) {
    next = (void *(*)(void *, const char *))LIBC("dlsym");
  }
  lookups += handle != RTLD_NEXT && handle != RTLD_DEFAULT && strcmp(name, "cuModuleLoadData") == 0;
  return next(handle, name);
}

__attribute__((destructor)) static void report(void) {
  if (opens > 0 && lookups > 0) {
    fprintf(stderr, "tool: opened and looked up\n");
  }
}
