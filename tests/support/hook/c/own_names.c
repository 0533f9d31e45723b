/*
 * A program, or a library of one, that itself defines names of the driver's functions. It is built of these parts:
 *
 *   VARIABLES  pointers with those names, and a function that fills them
 *   STUBS      functions with those names that load the driver when they are first called
 *   IDLE       a driver with functions that do nothing
 *   WORK       the work, three memsets, which calls these pointers or functions
 *   EARLY      the same work in a constructor, before main; FILLS: the constructor fills the variables anew
 *   MAIN       a main that calls the work; OPENS: the work of a library that it opens, "global" or privately
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define DRIVER_FUNCTIONS(X)                                                                                            \
  X(cuInit, (unsigned int flags), (flags))                                                                             \
  X(cuDevicePrimaryCtxRetain, (void **context, int device), (context, device))                                         \
  X(cuCtxSetCurrent, (void *context), (context))                                                                       \
  X(cuMemAlloc_v2, (unsigned long long *address, size_t bytes), (address, bytes))                                      \
  X(cuMemsetD8_v2, (unsigned long long address, unsigned char value, size_t bytes), (address, value, bytes))           \
  X(cuCtxSynchronize, (void), ())

EXPORT void load(void);
EXPORT int work(void);

#ifdef STUBS
#define STUB(name, parameters, arguments)                                                                              \
  EXPORT int name parameters;                                                                                          \
  int name parameters {                                                                                                \
    return ((int(*) parameters)dlsym(dlopen("libcuda.so.1", RTLD_NOW), #name))arguments;                               \
  }
DRIVER_FUNCTIONS(STUB)
#elif defined(IDLE)
#define DO_NOTHING(name, ...)                                                                                          \
  EXPORT int name(void);                                                                                               \
  int name(void) {                                                                                                     \
    return 0;                                                                                                          \
  }
DRIVER_FUNCTIONS(DO_NOTHING)
#elif defined(CALLS)
#define DECLARE(name, parameters, arguments) int name parameters;
DRIVER_FUNCTIONS(DECLARE)
#else
#define DECLARE(name, parameters, arguments) extern EXPORT int(*name) parameters;
DRIVER_FUNCTIONS(DECLARE)
#endif

#ifdef VARIABLES
#define DEFINE(name, parameters, arguments) int(*name) parameters;
DRIVER_FUNCTIONS(DEFINE)
extern EXPORT int (*nvmlDeviceGetMemoryInfo)(void *device, void *memory);
int (*nvmlDeviceGetMemoryInfo)(void *device, void *memory);

static const struct {
  const char *name;
  void *variable;
} table[] = {
#define ROW(name, parameters, arguments) {#name, &name},
    DRIVER_FUNCTIONS(ROW) ROW(nvmlDeviceGetMemoryInfo, , )};

void load(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
    *(void **)table[i].variable = dlsym(driver, table[i].name);
  }
}
#endif

#ifdef WORK
int work(void) {
  void *context;
  unsigned long long address = 0;
#if !defined(STUBS) && !defined(CALLS)
  if (cuInit == NULL) { /* the variables are filled once and must be empty before */
    load();
  }
#endif
  int result = cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);
  result |= cuMemAlloc_v2(&address, 4096);
  for (unsigned char i = 0; i < 3; i++) {
    result |= cuMemsetD8_v2(address, i, 4096);
  }
  printf("%d\n", result | cuCtxSynchronize());
  return 0;
}
#endif

#ifdef EARLY
__attribute__((constructor)) static void work_early(void) {
#ifdef FILLS
  load();
#endif
  work();
}
#endif

#ifdef MAIN
int main(int argc, char **argv) {
#ifdef OPENS
  void *library = dlopen(argv[1], RTLD_LAZY | (argc > 2 && strcmp(argv[2], "global") == 0 ? RTLD_GLOBAL : 0));
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  return ((int (*)(void))dlsym(library, "work"))();
#else
  (void)argc;
  (void)argv;
  return work();
#endif
}
#endif
