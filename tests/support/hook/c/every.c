/*
 * Calls every wrapped symbol, with valid arguments (valid.def), by one route to the driver. On the simulated driver
 * each call does its work. Prints a line for each, "name result shown", where `shown` is the size of the device's
 * memory as the call told it. It waits for a line of input while it holds the memory that the calls have obtained
 * ("held"), and again when it has given that memory back ("freed").
 *
 * `runtime` asks as the CUDA runtime does: for everything at once, before the driver is initialised, by a
 * cuGetProcAddress that it got from cuGetProcAddress. It asks for the per-thread forms by their flag.
 *
 *   every linked|default|soname|path|soname-deepbind|path-deepbind|gpa1|gpa2|gpa2-legacy|runtime
 *
 * With PLUGIN=FILE a plugin does the same: this source as a shared object, opened with RTLD_DEEPBIND.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "every.h"

#define VALID(name, call)                                                                                              \
  static CUresult call_##name(any_function *f) {                                                                       \
    return call;                                                                                                       \
  }
#define LAST(name, call) VALID(name, call)
#include "valid.def"
#undef VALID
#undef LAST

static const struct {
  const char *name;
  CUresult (*call)(any_function *);
  int last;
} calls[] = {
#define VALID(name, call) {#name, call_##name, 0},
#define LAST(name, call)  {#name, call_##name, 1},
#include "valid.def"
#undef VALID
#undef LAST
};

#ifdef LINKED
#define WRAPPED(name, since, class, action, subject, reason) extern any_function name __attribute__((weak));
#include "driver/wrapped.h"
#define ADDRESS(name) name
#else
#define ADDRESS(name) NULL
#endif

static const struct symbol {
  const char *name;
  int since;
  any_function *linked;
} symbols[] = {
#define WRAPPED(name, since, class, action, subject, reason) {#name, since, ADDRESS(name)},
#include "driver/wrapped.h"
};

static any_function *asked[sizeof(symbols) / sizeof(*symbols)]; /* what the route "runtime" has got */

/* Ask `lookup`, a cuGetProcAddress, as a program does that was built for this symbol. The name has no suffix for its
 * version or for per-thread streams; `flags` stand for these streams (0, or 1 for "legacy"). */
static any_function *ask(any_function *lookup, const struct symbol *symbol, unsigned long long flags) {
  char base[64];
  void *found = NULL;
  strcpy(base, symbol->name);
  for (char *tail; (tail = strstr(base, "_pt")) != NULL || (tail = strstr(base, "_v")) != NULL; *tail = '\0') {
    flags = tail[1] == 'p' ? 2 : flags;
  }
  lookup(base, &found, symbol->since, flags, &world.status);
  return (any_function *)found;
}

static void ask_as_the_runtime(void) {
  any_function *first = driver("cuGetProcAddress_v2");
  void *own = NULL;
  must(first("cuGetProcAddress", &own, 12000, 0ull, &world.status), "cuGetProcAddress");
  for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
    asked[i] = ask((any_function *)own, &symbols[i], 0);
  }
}

static any_function *find(const char *route, const struct symbol *symbol) {
  if (strcmp(route, "runtime") == 0) {
    return asked[symbol - symbols];
  }
  if (strcmp(route, "linked") == 0) {
    return symbol->linked;
  }
  if (strcmp(route, "default") == 0) {
    return (any_function *)dlsym(RTLD_DEFAULT, symbol->name);
  }
  if (strncmp(route, "gpa", 3) == 0) {
    const char *lookup = strcmp(route, "gpa1") == 0 ? "cuGetProcAddress" : "cuGetProcAddress_v2";
    return ask(driver(lookup), symbol, strstr(route, "legacy") != NULL);
  }
  return driver(symbol->name);
}

static const struct symbol *symbol_of(const char *name) {
  for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
    if (strcmp(symbols[i].name, name) == 0) {
      return &symbols[i];
    }
  }
  return NULL;
}

static void call_all(const char *route, int last) {
  for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
    const struct symbol *symbol = symbol_of(calls[i].name);
    if (symbol == NULL || calls[i].last != last) {
      continue;
    }
    any_function *function = find(route, symbol);
    world.total = 0;
    int by_asking = strncmp(route, "gpa", 3) == 0 || strcmp(route, "runtime") == 0;
    if (function == NULL || (by_asking && function != driver(symbol->name))) {
      printf("%s another 0\n", symbol->name);
    } else {
      CUresult result = calls[i].call(function);
      printf("%s %d %zu\n", symbol->name, result, world.total);
    }
  }
}

static void start(const char *route) {
  const char *path = strncmp(route, "path", 4) == 0 ? getenv("DRIVER") : "libcuda.so.1";
  int visible = strcmp(route, "default") == 0 ? RTLD_GLOBAL : strstr(route, "deepbind") != NULL ? RTLD_DEEPBIND : 0;
  world.driver = dlopen(path, RTLD_NOW | visible);
  if (world.driver == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  if (strcmp(route, "runtime") == 0) {
    ask_as_the_runtime();
  }
  void *module;
  static const unsigned char image[72] = {0x7f, 'E', 'L', 'F'};
  MUST(cuInit, 0);
  MUST(cuDeviceGet, &world.device, 0);
  MUST(cuDevicePrimaryCtxRetain, &world.context, world.device);
  MUST(cuCtxSetCurrent, world.context);
  MUST(cuModuleLoadData, &module, image);
  MUST(cuModuleGetFunction, &world.kernel, module, "unit_20us");
  MUST(cuFuncSetBlockShape, world.kernel, 32, 1, 1);
  MUST(cuStreamCreate, &world.stream, 1);
  MUST(cuEventCreate, &world.event, 0);
  MUST(cuMemAllocHost_v2, &world.host, SIZE);
  MUST(cuStreamBeginCapture_v2, world.stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  MUST(cuLaunchKernel, KERNEL, world.stream, NULL, NULL);
  MUST(cuStreamEndCapture, world.stream, &world.graph);
  MUST(cuGraphInstantiateWithFlags, &world.executable, world.graph, 0ull);
  world.array = new_array();
  world.a = world.targets[0] = allocated();
  world.b = world.sources[0] = allocated();
  world.piece = PIECE;
  world.attributes.order = 1;
}

static void wait_for_a_line(const char *word) {
  char line[8];
  puts(word);
  fflush(stdout);
  if (fgets(line, sizeof(line), stdin) == NULL) {
    exit(1);
  }
}

__attribute__((visibility("default"))) int every(const char *route);
int every(const char *route) {
  start(route);
  call_all(route, 0);
  MUST(cuCtxSynchronize);
  wait_for_a_line("held");
  for (size_t i = 0; i < world.held_count; i++) {
    if (world.held[i] != 0) {
      MUST(cuMemFree_v2, world.held[i]);
    }
  }
  if (world.array != NULL) {
    MUST(cuArrayDestroy, world.array);
  }
  MUST(cuMemFree_v2, world.a);
  MUST(cuMemFree_v2, world.b);
  wait_for_a_line("freed");
  call_all(route, 1);
  return 0;
}

int main(int argc, char **argv) {
  const char *route = argc > 1 ? argv[1] : "soname", *file = getenv("PLUGIN");
  if (file == NULL) {
    return every(route);
  }
  void *plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (plugin == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  return ((int (*)(const char *))dlsym(plugin, "every"))(route);
}
