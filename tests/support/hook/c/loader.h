/* For libraries that interpose on the loader itself: libc's own functions, by their version. Included first. */
#define _GNU_SOURCE
#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))
#ifdef __aarch64__
#define LIBC(name) dlvsym(RTLD_NEXT, name, "GLIBC_2.17")
#else
#define LIBC(name) dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5")
#endif
