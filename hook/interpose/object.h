/*
 * Reads the dynamic tables of a loaded object: its symbols, the libraries that it needs, its relocations. It uses no
 * libc, because it runs before a sanitizer's runtime has made libc usable.
 */
#ifndef SHAREPOD_OBJECT_H
#define SHAREPOD_OBJECT_H

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Absolute addresses; NULL: the object has no such table. */
struct sp_object {
  ElfW(Addr) base;
  const ElfW(Dyn) * dynamic;
  const ElfW(Sym) * symbols;
  const char *strings;
  const uint32_t *gnu_hash;
  const uint32_t *sysv_hash;
  const ElfW(Rela) * relocations; /* the relocations bound at load, without calls that may be bound later */
  size_t relocation_count;
  size_t relative_count; /* how many of the first ones name no symbol */
  const char *soname;    /* "" if it has none */
};

#define SP_FUNCTIONS (1u << STT_FUNC | 1u << STT_NOTYPE)
#define SP_VARIABLES (1u << STT_OBJECT | 1u << STT_COMMON)

/* Read an object's tables. False: it has no symbols. */
bool sp_object_read(ElfW(Addr) base, const ElfW(Dyn) * dynamic, struct sp_object *object);

/* The exported definition of `name`, if it has one of the types; else NULL. */
const ElfW(Sym) * sp_object_find(const struct sp_object *object, const char *name, unsigned int types);

bool sp_text_equal(const char *left, const char *right);

#pragma GCC visibility pop

#endif
