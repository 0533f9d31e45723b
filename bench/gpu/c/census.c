/*
 * census: a preload that counts every call of a program through an address of the driver.
 *
 * dlsym and cuGetProcAddress return addresses. Each is replaced by a thunk of 16 bytes that adds one to a counter and
 * jumps on. A thunk needs no signature, so no function is missed for want of a wrapper, and the calls of a real program
 * become a list. Compared with the hook's own count and with CUPTI, the list shows whether a path bypasses the hook. In
 * front of the hook in LD_PRELOAD it counts the program's calls; the addresses are then those of the hook's wrappers.
 *
 * CENSUS_OUTPUT names the file that gets the counts at exit: [["cuInit", 1], ...]. `census_write` writes them any time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hook/interpose/resolve.h"

#define EXPORT     __attribute__((visibility("default")))
#define PER_THREAD 2u /* the flag of cuGetProcAddress for the per-thread default stream */
#define THUNKS_MAX 2048u

struct thunk {
  unsigned char code[16];
};
struct target {
  uint64_t calls;
  void *real;
  char name[64];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  struct thunk thunks[THUNKS_MAX];
  struct target targets[THUNKS_MAX];
} *table; /* code and counters in one mapping, within reach of each other; guarded by lock, except for the counting */
static uint32_t used;

#if defined(__x86_64__)
/* lock incq calls(%rip); jmp *real(%rip) */
static void assemble(struct thunk *thunk, const struct target *target) {
  static const unsigned char form[16] = {0xf0, 0x48, 0xff, 0x05, 0, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0, 0xcc, 0xcc};
  int32_t to_calls = (int32_t)((intptr_t)&target->calls - (intptr_t)(thunk->code + 8));
  int32_t to_real = (int32_t)((intptr_t)&target->real - (intptr_t)(thunk->code + 14));
  memcpy(thunk->code, form, sizeof form);
  memcpy(thunk->code + 4, &to_calls, sizeof to_calls);
  memcpy(thunk->code + 10, &to_real, sizeof to_real);
}
#else
#error "the thunk is written for x86-64"
#endif

/* The address to return for `real`; `real` itself if there is no room or no executable memory. */
static void *thunk_of(const char *name, const char *suffix, void *real) {
  char full[sizeof table->targets->name];
  snprintf(full, sizeof full, "%s%s", name, suffix);
  pthread_mutex_lock(&lock);
  if (!table) {
    void *memory = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    table = memory == MAP_FAILED ? NULL : memory;
  }
  void *handed = real;
  uint32_t index = 0;
  while (table && index < used && (table->targets[index].real != real || strcmp(table->targets[index].name, full)))
    index++;
  if (table && index < THUNKS_MAX) {
    if (index == used) {
      table->targets[index].real = real;
      memcpy(table->targets[index].name, full, sizeof full);
      assemble(&table->thunks[index], &table->targets[index]);
      used++;
    }
    handed = table->thunks[index].code;
  }
  pthread_mutex_unlock(&lock);
  return handed;
}

/* ---- between the program and the driver: the hook's own dlsym as a tail call, its own reading of the loader ---- */

/* The form of CUDA 11.3 has no status. Both forms take their common arguments in the same registers. */
typedef int get_function(const char *, void **, int, uint64_t, int *);
static get_function *real_get, *real_get_v2;

static void *handed_out(const char *name, void *found, uint64_t flags, int version);

/* Ask the driver's cuGetProcAddress, and replace the address that it returns. */
static int get_through(get_function *get, const char *symbol, void **address, int version, uint64_t flags,
                       int *status) {
  int result = get(symbol, address, version, flags, status);
  if (result == 0 && symbol && address && *address)
    *address = handed_out(symbol, *address, flags, version);
  return result;
}
static int get_any(const char *symbol, void **address, int version, uint64_t flags, int *status) {
  return get_through(real_get, symbol, address, version, flags, status);
}
static int get_any_v2(const char *symbol, void **address, int version, uint64_t flags, int *status) {
  return get_through(real_get_v2, symbol, address, version, flags, status);
}

/* The address that the program gets for a function of the driver: a thunk's, or our own cuGetProcAddress. */
static void *handed_out(const char *name, void *found, uint64_t flags, int version) {
  if (!strcmp(name, "cuGetProcAddress_v2") || (!strcmp(name, "cuGetProcAddress") && version >= 12000)) {
    real_get_v2 = (get_function *)found;
    return (void *)get_any_v2;
  }
  if (!strcmp(name, "cuGetProcAddress")) {
    real_get = (get_function *)found;
    return (void *)get_any;
  }
  return thunk_of(name, flags & PER_THREAD ? "_ptsz" : "", found);
}

/* Called by the trampoline of dlopen. */
void sp_before_dlopen(void);
void sp_before_dlopen(void) {
  sp_libc_dlopen(); /* everything is resolved */
}

/* Called by the trampoline of dlsym for a real handle. */
void *sp_filter(void *handle, const char *name);
void *sp_filter(void *handle, const char *name) {
  /* cudaMalloc, cublasCreate, cuptiActivityEnable: not the driver's */
  if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z')
    return NULL;
  if (!sp_chain_dlsym)
    sp_resolve();
  void *found = sp_chain_dlsym ? sp_chain_dlsym(handle, name) : NULL;
  if (!found)
    return NULL;
  return handed_out(name, found, 0, 0);
}

/* ---- the counts ---- */

EXPORT int census_write(const char *path);
EXPORT int census_write(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file)
    return -1;
  pthread_mutex_lock(&lock);
  fputs("[", file);
  for (uint32_t index = 0; index < used; index++)
    fprintf(file, "%s[\"%s\", %" PRIu64 "]", index ? ", " : "", table->targets[index].name,
            __atomic_load_n(&table->targets[index].calls, __ATOMIC_RELAXED));
  fputs("]\n", file);
  pthread_mutex_unlock(&lock);
  return fclose(file);
}

__attribute__((destructor)) static void write_at_exit(void) {
  const char *path = getenv("CENSUS_OUTPUT");
  if (path && used)
    census_write(path);
}
