/*
 * Searches the local scope of a library that was opened with RTLD_LOCAL, as Python opens everything: its own
 * definitions and those of the libraries that it needs. The loader finds our names before them. So a stub that loads
 * the driver at its first call is found only here.
 */
#define _GNU_SOURCE
#include "hook/interpose/scope.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#include "hook/interpose/resolve.h"

/* The object that has `caller` in one of its segments. */
struct place {
  ElfW(Addr) caller;
  char path[PATH_MAX];
};

/* A callback of dl_iterate_phdr, `data` is a struct place: at the object that has `caller`, note its path and end the
 * walk. A path that is too long stays empty. */
static int find_place(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct place *place = data;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    ElfW(Addr) begin = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type != PT_LOAD || place->caller - begin >= segment->p_memsz) {
      continue;
    }
    size_t length = info->dlpi_name != NULL ? strlen(info->dlpi_name) : 0;
    if (length < sizeof(place->path)) {
      memcpy(place->path, info->dlpi_name != NULL ? info->dlpi_name : "", length + 1);
    }
    return 1;
  }
  return 0;
}

/* The function `name` that the library with the code at `caller` would have found without us: in itself, or in the
 * libraries that it needs. NULL: there is none. Called if no driver is loaded yet. */
void *sp_scope_symbol(const void *caller, const char *name) {
  struct place place = {.caller = (ElfW(Addr))caller};
  sp_iterate_function *iterate = sp_libc_iterate();
  sp_dlopen_function *open = sp_libc_dlopen();
  sp_dlsym_function *lookup = sp_libc_dlsym();
  if (iterate == NULL || open == NULL || lookup == NULL || !iterate(find_place, &place) || place.path[0] == '\0') {
    return NULL; /* the program itself has the global scope and no other */
  }
  void *handle = open(place.path, RTLD_LAZY | RTLD_NOLOAD);
  void *found = handle != NULL ? lookup(handle, name) : NULL;
  if (handle != NULL) {
    dlclose(handle);
  }
  return found == sp_object_symbol(sp_own_handle(), name) ? NULL : found; /* our own function is not sought */
}
