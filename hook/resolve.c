/*
 * Reads the loader's list of objects and their symbol tables by hand.
 *
 * Calling dlsym through libc to find dlsym is impossible (we are dlsym), its version differs between architectures
 * and releases, and since glibc 2.34 no internal alias is left. dl_iterate_phdr, strcmp and the like are out too:
 * AddressSanitizer and ThreadSanitizer intercept them and resolve their originals through us. The loader's debugger
 * interface (_r_debug; _dl_debug_addr in musl) is a stable ABI and plain memory.
 *
 * The list is walked without the loader's lock: all that we look for was mapped before the program started and stays.
 */
#include "resolve.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

#define SP_RTLD_DEEPBIND 8

/* Weak: one of the two exists, depending on the C library. */
extern struct r_debug _r_debug __attribute__((weak));
extern struct r_debug *_dl_debug_addr __attribute__((weak));
extern char **__environ __attribute__((weak));

extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden"))); /* our own dynamic section: which object is us */

sp_dlsym_function *sp_chain_dlsym;
sp_dlopen_function *sp_chain_dlopen;
int sp_dlopen_mask = ~SP_RTLD_DEEPBIND;

static sp_dlsym_function *libc_dlsym;
static sp_dlopen_function *libc_dlopen;

/* The tables of one object; absolute addresses. */
struct object {
  ElfW(Addr) base;
  const ElfW(Sym) * symbols;
  const char *strings;
  const uint32_t *gnu_hash;
  const uint32_t *sysv_hash;
  const char *soname;
};

bool sp_text_equal(const char *left, const char *right) {
  while (*left != '\0' && *left == *right) {
    left++;
    right++;
  }
  return *left == *right;
}

static bool starts_with(const char *text, const char *prefix) {
  while (*prefix != '\0') {
    if (*text++ != *prefix++) {
      return false;
    }
  }
  return true;
}

static const char *base_name(const char *path) {
  const char *name = path;
  for (; *path != '\0'; path++) {
    if (*path == '/') {
      name = path + 1;
    }
  }
  return name;
}

/* glibc has relocated the pointers of the dynamic section in place; musl, and the vdso, have not. */
static const void *absolute(ElfW(Addr) base, ElfW(Addr) pointer) {
  return (const void *)(pointer < base ? base + pointer : pointer);
}

static bool read_object(const struct link_map *map, struct object *object) {
  *object = (struct object){.base = map->l_addr};
  ElfW(Addr) soname = 0;
  bool named = false;
  if (map->l_ld == NULL) {
    return false;
  }
  for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
    switch (entry->d_tag) {
    case DT_SYMTAB:
      object->symbols = absolute(map->l_addr, entry->d_un.d_ptr);
      break;
    case DT_STRTAB:
      object->strings = absolute(map->l_addr, entry->d_un.d_ptr);
      break;
    case DT_GNU_HASH:
      object->gnu_hash = absolute(map->l_addr, entry->d_un.d_ptr);
      break;
    case DT_HASH:
      object->sysv_hash = absolute(map->l_addr, entry->d_un.d_ptr);
      break;
    case DT_SONAME:
      soname = entry->d_un.d_val;
      named = true;
      break;
    default:
      break;
    }
  }
  if (object->symbols == NULL || object->strings == NULL) {
    return false;
  }
  object->soname = named ? object->strings + soname : "";
  return true;
}

static void *definition(const struct object *object, const ElfW(Sym) * symbol, const char *name) {
  unsigned int type = ELF64_ST_TYPE(symbol->st_info);
  if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || (type != STT_FUNC && type != STT_NOTYPE) ||
      !sp_text_equal(object->strings + symbol->st_name, name)) {
    return NULL;
  }
  return (void *)(object->base + symbol->st_value);
}

static void *find_gnu(const struct object *object, const char *name) {
  const uint32_t *table = object->gnu_hash;
  uint32_t buckets = table[0];
  uint32_t first = table[1]; /* index of the first hashed symbol */
  const uint32_t *bucket = table + 4 + (size_t)table[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *chain = bucket + buckets;
  uint32_t hash = 5381;
  for (const char *c = name; *c != '\0'; c++) {
    hash = hash * 33 + (unsigned char)*c;
  }
  uint32_t index = buckets == 0 ? 0 : bucket[hash % buckets];
  if (index < first) {
    return NULL;
  }
  for (;; index++) {
    uint32_t stored = chain[index - first];
    void *found = (stored | 1u) == (hash | 1u) ? definition(object, &object->symbols[index], name) : NULL;
    if (found != NULL || (stored & 1u) != 0) { /* the low bit ends the bucket */
      return found;
    }
  }
}

static void *find_sysv(const struct object *object, const char *name) {
  const uint32_t *table = object->sysv_hash;
  uint32_t buckets = table[0];
  const uint32_t *bucket = table + 2;
  const uint32_t *chain = bucket + buckets;
  uint32_t hash = 0;
  for (const char *c = name; *c != '\0'; c++) {
    hash = (hash << 4) + (unsigned char)*c;
    hash = (hash ^ ((hash & 0xf0000000u) >> 24)) & 0x0fffffffu;
  }
  for (uint32_t index = buckets == 0 ? 0 : bucket[hash % buckets]; index != 0; index = chain[index]) {
    void *found = definition(object, &object->symbols[index], name);
    if (found != NULL) {
      return found;
    }
  }
  return NULL;
}

static void *find(const struct object *object, const char *name) {
  if (object->gnu_hash != NULL) {
    return find_gnu(object, name);
  }
  return object->sysv_hash != NULL ? find_sysv(object, name) : NULL;
}

void *sp_object_symbol(void *handle, const char *name) {
  struct object object;
  return read_object(handle, &object) ? find(&object, name) : NULL;
}

/* Up to glibc 2.33 the two functions live in libdl; musl is one file with several names. */
static bool is_libc(const struct link_map *map, const struct object *object) {
  const char *file = map->l_name != NULL ? base_name(map->l_name) : "";
  return sp_text_equal(object->soname, "libc.so.6") || sp_text_equal(object->soname, "libdl.so.2") ||
         starts_with(file, "ld-musl-") || starts_with(file, "libc.musl-") || sp_text_equal(file, "libc.so");
}

static const struct link_map *first_object(void) {
  if (&_r_debug != NULL && _r_debug.r_map != NULL) {
    return _r_debug.r_map;
  }
  return &_dl_debug_addr != NULL && _dl_debug_addr != NULL ? _dl_debug_addr->r_map : NULL;
}

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

void sp_resolve(void) {
  void *chain_dlsym = NULL;
  void *chain_dlopen = NULL;
  void *own_dlsym = NULL;
  void *own_dlopen = NULL;
  bool behind_us = false;
  for (const struct link_map *map = first_object(); map != NULL; map = map->l_next) {
    struct object object;
    if (map->l_ld == _DYNAMIC) {
      behind_us = true;
      continue;
    }
    if (!read_object(map, &object)) {
      continue;
    }
    bool libc = is_libc(map, &object);
    if (libc && own_dlsym == NULL) {
      own_dlsym = find(&object, "dlsym");
    }
    if (libc && own_dlopen == NULL) {
      own_dlopen = find(&object, "dlopen");
    }
    if (behind_us && chain_dlsym == NULL) {
      chain_dlsym = find(&object, "dlsym");
    }
    if (behind_us && chain_dlopen == NULL) {
      chain_dlopen = find(&object, "dlopen");
    }
  }
  /* musl lists itself before the preloaded objects. */
  chain_dlsym = chain_dlsym != NULL ? chain_dlsym : own_dlsym;
  chain_dlopen = chain_dlopen != NULL ? chain_dlopen : own_dlopen;
  __atomic_store_n(&sp_dlopen_mask, keeps_deepbind() ? ~0 : ~SP_RTLD_DEEPBIND, __ATOMIC_RELAXED);
  __atomic_store_n(&libc_dlsym, (sp_dlsym_function *)own_dlsym, __ATOMIC_RELAXED);
  __atomic_store_n(&libc_dlopen, (sp_dlopen_function *)own_dlopen, __ATOMIC_RELAXED);
  /* Last, with release: the trampolines take them as the sign that the mask is set. */
  __atomic_store_n(&sp_chain_dlsym, (sp_dlsym_function *)chain_dlsym, __ATOMIC_RELEASE);
  __atomic_store_n(&sp_chain_dlopen, (sp_dlopen_function *)chain_dlopen, __ATOMIC_RELEASE);
}

sp_dlsym_function *sp_libc_dlsym(void) {
  if (__atomic_load_n(&libc_dlsym, __ATOMIC_RELAXED) == NULL) {
    sp_resolve();
  }
  return __atomic_load_n(&libc_dlsym, __ATOMIC_RELAXED);
}

sp_dlopen_function *sp_libc_dlopen(void) {
  if (__atomic_load_n(&libc_dlopen, __ATOMIC_RELAXED) == NULL) {
    sp_resolve();
  }
  return __atomic_load_n(&libc_dlopen, __ATOMIC_RELAXED);
}
