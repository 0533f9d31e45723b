/*
 * Reads the loader's list of objects and their symbol tables by hand.
 *
 * Calling dlsym through libc to find dlsym is impossible (we are dlsym), its version differs between architectures
 * and releases, and since glibc 2.34 no internal alias is left. dl_iterate_phdr, strcmp and the like are out too:
 * AddressSanitizer and ThreadSanitizer intercept them and resolve their originals through us. The loader's debugger
 * interface (_r_debug; _dl_debug_addr in musl) is a stable ABI and plain memory.
 *
 * The list is walked without the loader's lock: all objects that we look for were mapped before the program started,
 * and stay.
 */
#include "hook/interpose/resolve.h"
#include "region/order.h"

#define SP_RTLD_DEEPBIND 8 /* RTLD_DEEPBIND of glibc's dlfcn.h */

/* Weak: one of the two exists, depending on the C library. */
extern struct r_debug _r_debug __attribute__((weak));
extern struct r_debug *_dl_debug_addr __attribute__((weak));
extern char **__environ __attribute__((weak));

sp_dlsym_function *sp_chain_dlsym;
sp_dlopen_function *sp_chain_dlopen;
int sp_dlopen_mask = ~SP_RTLD_DEEPBIND;

static sp_dlsym_function *libc_dlsym;
static sp_dlopen_function *libc_dlopen;
static sp_iterate_function *libc_iterate;
static void *own_handle;

/* Does the text begin with the prefix? libc's strncmp cannot be used here. */
static bool starts_with(const char *text, const char *prefix) {
  while (*prefix != '\0') {
    if (*text++ != *prefix++) {
      return false;
    }
  }
  return true;
}

/* The part of the path behind its last slash. */
const char *sp_base_name(const char *path) {
  const char *name = path;
  for (; *path != '\0'; path++) {
    if (*path == '/') {
      name = path + 1;
    }
  }
  return name;
}

/* The address of a function that the object exports, or NULL. */
static void *find_function(const struct sp_object *object, const char *name) {
  const ElfW(Sym) *symbol = sp_object_find(object, name, SP_FUNCTIONS);
  return symbol != NULL ? (void *)(object->base + symbol->st_value) : NULL;
}

/* The address of a function that the object `handle` exports, or NULL. The handle is the loader's record of the
 * object. */
void *sp_object_symbol(void *handle, const char *name) {
  const struct link_map *map = handle;
  struct sp_object object;
  return sp_object_read(map->l_addr, map->l_ld, &object) ? find_function(&object, name) : NULL;
}

/* Is this object libc, or a part of it? Up to glibc 2.33 the two functions live in libdl; musl is one file with several
 * names. */
static bool is_libc(const struct link_map *map, const struct sp_object *object) {
  const char *file = map->l_name != NULL ? sp_base_name(map->l_name) : "";
  return sp_text_equal(object->soname, "libc.so.6") || sp_text_equal(object->soname, "libdl.so.2") ||
         starts_with(file, "ld-musl-") || starts_with(file, "libc.musl-") || sp_text_equal(file, "libc.so");
}

/* The first object of the loader's list; NULL: neither C library's list is there. */
static const struct link_map *first_object(void) {
  if (&_r_debug != NULL && _r_debug.r_map != NULL) {
    return _r_debug.r_map;
  }
  return &_dl_debug_addr != NULL && _dl_debug_addr != NULL ? _dl_debug_addr->r_map : NULL;
}

/* Does the environment say that RTLD_DEEPBIND is to be kept? Read by hand, because getenv is libc's. */
static bool keeps_deepbind(void) {
  const char *setting = "SHAREPOD_KEEP_DEEPBIND=";
  if (&__environ == NULL || __environ == NULL) {
    return false;
  }
  for (char **entry = __environ; *entry != NULL; entry++) {
    if (starts_with(*entry, setting)) {
      return sp_text_equal(*entry, "SHAREPOD_KEEP_DEEPBIND=1");
    }
  }
  return false;
}

/* Walk the list of objects once, and store what is found: our own handle; libc's dlsym, dlopen and dl_iterate_phdr,
 * wherever libc is in the list; and the chain, which is the next dlsym and dlopen behind us. Threads may race here: all
 * store the same values. */
void sp_resolve(void) {
  void *chain_dlsym = NULL;
  void *chain_dlopen = NULL;
  void *dlsym_of_libc = NULL;
  void *dlopen_of_libc = NULL;
  void *iterate_of_libc = NULL;
  bool behind_us = false;
  for (const struct link_map *map = first_object(); map != NULL; map = map->l_next) {
    struct sp_object object;
    if (map->l_ld == _DYNAMIC) {
      behind_us = true;
      sp_store(&own_handle, (void *)map);
      continue;
    }
    if (!sp_object_read(map->l_addr, map->l_ld, &object)) {
      continue;
    }
    bool libc = is_libc(map, &object);
    if (libc && dlsym_of_libc == NULL) {
      dlsym_of_libc = find_function(&object, "dlsym");
    }
    if (libc && dlopen_of_libc == NULL) {
      dlopen_of_libc = find_function(&object, "dlopen");
    }
    if (libc && iterate_of_libc == NULL) {
      iterate_of_libc = find_function(&object, "dl_iterate_phdr");
    }
    if (behind_us && chain_dlsym == NULL) {
      chain_dlsym = find_function(&object, "dlsym");
    }
    if (behind_us && chain_dlopen == NULL) {
      chain_dlopen = find_function(&object, "dlopen");
    }
  }
  /* musl lists itself before the preloaded objects. */
  chain_dlsym = chain_dlsym != NULL ? chain_dlsym : dlsym_of_libc;
  chain_dlopen = chain_dlopen != NULL ? chain_dlopen : dlopen_of_libc;
  sp_store(&sp_dlopen_mask, keeps_deepbind() ? ~0 : ~SP_RTLD_DEEPBIND);
  sp_store(&libc_iterate, (sp_iterate_function *)iterate_of_libc);
  sp_store(&libc_dlopen, (sp_dlopen_function *)dlopen_of_libc);
  sp_store_release(&libc_dlsym, (sp_dlsym_function *)dlsym_of_libc); /* resolve_once: the others are set */
  /* Last, with release: if the trampolines see these, the mask is set. */
  sp_store_release(&sp_chain_dlsym, (sp_dlsym_function *)chain_dlsym);
  sp_store_release(&sp_chain_dlopen, (sp_dlopen_function *)chain_dlopen);
}

/* Run sp_resolve unless it has run: a library's constructor may call the driver before ours. */
static void resolve_once(void) {
  if (sp_load_acquire(&libc_dlsym) == NULL) {
    sp_resolve();
  }
}

/* libc's own dlsym, past any other interposer; NULL: it was not found. */
sp_dlsym_function *sp_libc_dlsym(void) {
  resolve_once();
  return sp_load(&libc_dlsym);
}

/* libc's own dlopen; NULL: it was not found. */
sp_dlopen_function *sp_libc_dlopen(void) {
  resolve_once();
  return sp_load(&libc_dlopen);
}

/* libc's own dl_iterate_phdr; NULL: it was not found. */
sp_iterate_function *sp_libc_iterate(void) {
  resolve_once();
  return sp_load(&libc_iterate);
}

/* The loader's record of this library; NULL until sp_resolve has run. */
void *sp_own_handle(void) {
  return sp_load(&own_handle);
}
