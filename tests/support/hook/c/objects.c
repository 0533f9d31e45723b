/* Reads the tables of a loaded library by the hook's own object.c, for a test that has its handle. */
#include "hook/interpose/object.c"

static struct sp_object object_of(const void *handle) {
  const struct link_map *map = handle; /* a handle of glibc's dlopen points to it */
  struct sp_object found;
  sp_object_read(map->l_addr, map->l_ld, &found);
  return found;
}

/* The address of a symbol; NULL: the library does not define it with that kind of type. */
__attribute__((visibility("default"))) void *lab_find(const void *handle, const char *name, bool variable) {
  struct sp_object object = object_of(handle);
  const ElfW(Sym) *symbol = sp_object_find(&object, name, variable ? SP_VARIABLES : SP_FUNCTIONS);
  return symbol ? (void *)(object.base + symbol->st_value) : NULL;
}

__attribute__((visibility("default"))) const char *lab_soname(const void *handle) {
  return object_of(handle).soname;
}

__attribute__((visibility("default"))) size_t lab_relocations(const void *handle, bool relative) {
  struct sp_object object = object_of(handle);
  return relative ? object.relative_count : object.relocation_count;
}

/* 0: of nothing, or of a dynamic section without symbols, nothing is read. */
__attribute__((visibility("default"))) int lab_reads_nothing(void) {
  ElfW(Dyn) empty[] = {{.d_tag = DT_NULL}}, strings[] = {{.d_tag = DT_STRTAB, .d_un.d_ptr = 1}, {.d_tag = DT_NULL}};
  struct sp_object object;
  return sp_object_read(0, NULL, &object) + sp_object_read(0, empty, &object) + sp_object_read(0, strings, &object);
}
