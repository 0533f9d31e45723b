/* Reads a loaded object's dynamic section, and finds symbols by its hash tables. Calls no libc. */
#include "hook/interpose/object.h"

/* Is it the same text? libc's strcmp cannot be used here. */
bool sp_text_equal(const char *left, const char *right) {
  while (*left != '\0' && *left == *right) {
    left++;
    right++;
  }
  return *left == *right;
}

/* The absolute address of a pointer in the dynamic section: glibc relocates these in place; musl and the vdso do not.
 */
static const void *absolute(ElfW(Addr) base, ElfW(Addr) pointer) {
  return (const void *)(pointer < base ? base + pointer : pointer);
}

/* Fill `object` from the section `dynamic`, which may be NULL, of the object that is loaded at `base`. False: the
 * object has no symbols. */
bool sp_object_read(ElfW(Addr) base, const ElfW(Dyn) * dynamic, struct sp_object *object) {
  *object = (struct sp_object){.base = base, .dynamic = dynamic};
  ElfW(Addr) soname = 0;
  bool named = false;
  if (dynamic == NULL) {
    return false;
  }
  for (const ElfW(Dyn) *entry = dynamic; entry->d_tag != DT_NULL; entry++) {
    switch (entry->d_tag) {
    case DT_SYMTAB:
      object->symbols = absolute(base, entry->d_un.d_ptr);
      break;
    case DT_STRTAB:
      object->strings = absolute(base, entry->d_un.d_ptr);
      break;
    case DT_GNU_HASH:
      object->gnu_hash = absolute(base, entry->d_un.d_ptr);
      break;
    case DT_HASH:
      object->sysv_hash = absolute(base, entry->d_un.d_ptr);
      break;
    case DT_RELA:
      object->relocations = absolute(base, entry->d_un.d_ptr);
      break;
    case DT_RELASZ:
      object->relocation_count = entry->d_un.d_val / sizeof(ElfW(Rela));
      break;
    case DT_RELACOUNT:
      object->relative_count = entry->d_un.d_val;
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

/* Does the symbol define `name`? `types`: a bit for each allowed STT_ type. */
static bool is_definition(const struct sp_object *object, const ElfW(Sym) * symbol, const char *name,
                          unsigned int types) {
  return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
         (types >> ELF64_ST_TYPE(symbol->st_info) & 1u) != 0 && sp_text_equal(object->strings + symbol->st_name, name);
}

/* Look the name up in the GNU hash table (DT_GNU_HASH). `types`: a bit for each allowed STT_ type. NULL: the object
 * does not define it. */
static const ElfW(Sym) * find_gnu(const struct sp_object *object, const char *name, unsigned int types) {
  const uint32_t *table = object->gnu_hash;
  uint32_t buckets = table[0];
  uint32_t first = table[1]; /* the index of the first hashed symbol */
  /* Behind a head of four words is a Bloom filter of table[2] addresses, which is not used here. */
  const uint32_t *bucket = table + 4 + (size_t)table[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *chain = bucket + buckets;
  uint32_t hash = 5381; /* the format's hash function: start with this, times 33 plus each byte */
  for (const char *c = name; *c != '\0'; c++) {
    hash = hash * 33 + (unsigned char)*c;
  }
  uint32_t index = buckets == 0 ? 0 : bucket[hash % buckets];
  if (index < first) {
    return NULL;
  }
  for (;; index++) {
    uint32_t stored = chain[index - first];
    if ((stored | 1u) == (hash | 1u) && is_definition(object, &object->symbols[index], name, types)) {
      return &object->symbols[index];
    }
    if ((stored & 1u) != 0) { /* the low bit ends the bucket */
      return NULL;
    }
  }
}

/* Look the name up in the old hash table (DT_HASH). `types`: a bit for each allowed STT_ type. NULL: the object does
 * not define it. */
static const ElfW(Sym) * find_sysv(const struct sp_object *object, const char *name, unsigned int types) {
  const uint32_t *table = object->sysv_hash;
  uint32_t buckets = table[0];
  const uint32_t *bucket = table + 2;
  const uint32_t *chain = bucket + buckets;
  uint32_t hash = 0; /* the hash function of the ELF standard */
  for (const char *c = name; *c != '\0'; c++) {
    hash = (hash << 4) + (unsigned char)*c;
    hash = (hash ^ ((hash & 0xf0000000u) >> 24)) & 0x0fffffffu;
  }
  for (uint32_t index = buckets == 0 ? 0 : bucket[hash % buckets]; index != 0; index = chain[index]) {
    if (is_definition(object, &object->symbols[index], name, types)) {
      return &object->symbols[index];
    }
  }
  return NULL;
}

/* The symbol by which the object defines `name`, of one of the `types` (a bit for each STT_ type); NULL: it has
 * none. */
const ElfW(Sym) * sp_object_find(const struct sp_object *object, const char *name, unsigned int types) {
  if (object->gnu_hash != NULL) {
    return find_gnu(object, name, types);
  }
  return object->sysv_hash != NULL ? find_sysv(object, name, types) : NULL;
}
