/* Finds libc's own loader functions by their version, for libraries that interpose on the loader. Included first. */
#define _GNU_SOURCE
#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))
#ifdef __aarch64__
#define LIBC(name) dlvsym(RTLD_NEXT, name, "GLIBC_2.17")
#else
#define LIBC(name) dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5")
#endif
