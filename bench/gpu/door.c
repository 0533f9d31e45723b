#include "door.h"

#include <stddef.h>
#include <string.h>

/* The form of CUDA 11.3 has no status; both take what the other takes in the same registers. */
typedef int get_function(const char *, void **, int, uint64_t, int *);
static get_function *real_get, *real_get_v2;
static void *driver_handle;

static void *handed_out(const char *name, void *found, uint64_t flags, int version);

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

static void *handed_out(const char *name, void *found, uint64_t flags, int version) {
  if (!strcmp(name, "cuGetProcAddress_v2") || (!strcmp(name, "cuGetProcAddress") && version >= 12000)) {
    real_get_v2 = (get_function *)found;
    return (void *)get_any_v2;
  }
  if (!strcmp(name, "cuGetProcAddress")) {
    real_get = (get_function *)found;
    return (void *)get_any;
  }
  return replaced(name, found, flags);
}

void *door_find(const char *name) {
  return driver_handle ? sp_chain_dlsym(driver_handle, name) : NULL;
}

/* Called by the trampoline of dlsym for a real handle and a name that begins with "cu". */
void *sp_filter(void *handle, const char *name);
void *sp_filter(void *handle, const char *name) {
  if (name[2] < 'A' || name[2] > 'Z') /* cudaMalloc, cublasCreate, cuptiActivityEnable: not the driver's */
    return NULL;
  if (!sp_chain_dlsym)
    sp_resolve();
  void *found = sp_chain_dlsym ? sp_chain_dlsym(handle, name) : NULL;
  if (!found)
    return NULL;
  driver_handle = handle;
  return handed_out(name, found, 0, 0);
}
