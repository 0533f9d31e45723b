/*
 * Repairs libraries with variables that have the names of our functions. cuew, dynlink_cuda and slang-rhi store the
 * addresses that they look up in variables called `cuInit`, `cuMemGetInfo_v2` and so on. The loader binds a name to its
 * first definition. With LD_PRELOAD that is our function. So the library would write its pointer over our code.
 *
 * The pointers come from dlsym. So before each lookup all new objects are examined. The loader may have bound a name in
 * one of them to our function, although the object itself, or one that it needs, defines this name as a variable. Then
 * the variable's address is written there instead. All else stays unchanged, and so does a place that cannot be
 * written.
 *
 * An object is in the loader's list before it is relocated. The thread that opens an object holds the loader's lock
 * until the object is relocated. So each thread takes that lock once before it examines objects (wait_for_loader).
 */
#define _GNU_SOURCE
#include "hook/interpose/own_names.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hook/interpose/resolve.h"
#include "region/order.h"

#if defined(__x86_64__)
#define RELOCATION_POINTER R_X86_64_64
#define RELOCATION_TABLE   R_X86_64_GLOB_DAT
#define RELOCATION_COPY    R_X86_64_COPY
#elif defined(__aarch64__)
#define RELOCATION_POINTER R_AARCH64_ABS64
#define RELOCATION_TABLE   R_AARCH64_GLOB_DAT
#define RELOCATION_COPY    R_AARCH64_COPY
#else
#error "which relocations hold the address of a variable?"
#endif

#define MOST_LOOKS 3 /* if other threads open libraries all the time, the next lookup goes on */

#define NEVER ~0ull

/* How many objects had been loaded when all were last examined; under musl, without those of the program's start. */
static unsigned long long seen = NEVER;

/* An examination of the new objects. */
struct look {
  sp_iterate_function *iterate;
  unsigned long long loads; /* how many objects had ever been loaded, just before the loader's lock was taken */
  size_t count, skip;       /* objects in the list; how many of the first were examined before */
  struct sp_object own;     /* this library, … */
  ElfW(Addr) own_end;       /* … which is mapped from own.base to here */
};

/* A callback of dl_iterate_phdr, for the first object only: it tells how many objects have ever been loaded. */
static int read_loads(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  *(unsigned long long *)data = info->dlpi_adds;
  return 1;
}

/* The object's dynamic section, which leads to its symbols and relocations; NULL: it has none. */
static const ElfW(Dyn) * dynamic_of(const struct dl_phdr_info *info) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
      return (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    }
  }
  return NULL;
}

/* A callback of dl_iterate_phdr, `data` is a struct look: count the object, and read our own. The walk ends (1) if
 * another object was loaded since `loads` was read. */
static int count_objects(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct look *look = data;
  look->count++;
  if (dynamic_of(info) == _DYNAMIC) {
    sp_object_read(info->dlpi_addr, _DYNAMIC, &look->own);
    for (int i = 0; i < info->dlpi_phnum; i++) {
      const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
      ElfW(Addr) end = info->dlpi_addr + segment->p_vaddr + segment->p_memsz;
      if (segment->p_type == PT_LOAD && end > look->own_end) {
        look->own_end = end;
      }
    }
  }
  return info->dlpi_adds != look->loads;
}

/* A search for the definition of `name` in the library `file`. */
struct needed {
  const char *file, *name;
  bool found;
  ElfW(Addr) variable; /* its address, if it was found; 0: it is a function */
};

/* A callback of dl_iterate_phdr, `data` is a struct needed: at the library `file`, look the name up and end the walk.
 * 0: it is another object. */
static int find_needed(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct needed *needed = data;
  struct sp_object object;
  if (!sp_object_read(info->dlpi_addr, dynamic_of(info), &object) ||
      (!sp_text_equal(object.soname, needed->file) &&
       (info->dlpi_name == NULL || !sp_text_equal(sp_base_name(info->dlpi_name), sp_base_name(needed->file))))) {
    return 0;
  }
  const ElfW(Sym) *symbol = sp_object_find(&object, needed->name, SP_FUNCTIONS | SP_VARIABLES);
  if (symbol != NULL) {
    bool variable = (SP_VARIABLES >> ELF64_ST_TYPE(symbol->st_info) & 1u) != 0;
    needed->found = true;
    needed->variable = variable ? object.base + symbol->st_value : 0;
  }
  return 1;
}

/* Among the libraries that the object needs directly, take the first one that defines `name`. Return the address of its
 * variable; 0: it defines a function, or no library defines the name. */
static ElfW(Addr) needed_variable(const struct look *look, const struct sp_object *object, const char *name) {
  for (const ElfW(Dyn) *entry = object->dynamic; entry->d_tag != DT_NULL; entry++) {
    struct needed needed = {.file = object->strings + entry->d_un.d_val, .name = name};
    if (entry->d_tag == DT_NEEDED && look->iterate(find_needed, &needed) && needed.found) {
      return needed.variable;
    }
  }
  return 0;
}

/* Write `value` to the word at `address` in the object `info`, also if the loader has made that page read-only (RELRO).
 * Does nothing if it cannot be written. mprotect is called as a system call: sanitizers replace libc's function, and
 * theirs may not work yet. */
static void write_word(const struct dl_phdr_info *info, ElfW(Addr) address, ElfW(Addr) value) {
  ElfW(Addr) page_bytes = getauxval(AT_PAGESZ), page = address & ~(page_bytes - 1);
  bool writable = false, sealed = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    ElfW(Addr) begin = info->dlpi_addr + segment->p_vaddr, end = begin + segment->p_memsz;
    if (segment->p_type == PT_LOAD && (segment->p_flags & PF_W) != 0 && address - begin < segment->p_memsz) {
      writable = true;
    }
    /* The loader seals whole pages, and rounds both ends of the segment down. */
    if (segment->p_type == PT_GNU_RELRO && page >= (begin & ~(page_bytes - 1)) && page < (end & ~(page_bytes - 1))) {
      sealed = true;
    }
  }
  if (!writable || address % sizeof(value) != 0 ||
      (sealed && syscall(SYS_mprotect, page, page_bytes, PROT_READ | PROT_WRITE) != 0)) {
    return;
  }
  sp_store((ElfW(Addr) *)address, value);
  if (sealed) {
    syscall(SYS_mprotect, page, page_bytes, PROT_READ);
  }
}

/* The address of our function of this name; 0: we have none. */
static ElfW(Addr) own_function(const struct look *look, const char *name) {
  const ElfW(Sym) *symbol = sp_object_find(&look->own, name, SP_FUNCTIONS);
  return symbol != NULL ? look->own.base + symbol->st_value : 0;
}

/* Repair one relocation: if the loader has bound it to our function, but the name is a variable of the object or of a
 * library that it needs, write that variable's address there. A copy relocation gets the variable's value. */
static void return_name(const struct look *look, const struct dl_phdr_info *info, const struct sp_object *object,
                        const ElfW(Rela) * relocation) {
  const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(relocation->r_info)];
  const char *name = object->strings + symbol->st_name;
  ElfW(Addr) place = object->base + relocation->r_offset, addend = (ElfW(Addr))relocation->r_addend;
  const ElfW(Addr) *word = (const ElfW(Addr) *)place;
  /* Does the object itself define the name, as a variable? */
  bool own_variable = symbol->st_shndx != SHN_UNDEF && (SP_VARIABLES >> ELF64_ST_TYPE(symbol->st_info) & 1u) != 0;
  switch (ELF64_R_TYPE(relocation->r_info)) {
  case RELOCATION_POINTER:
  case RELOCATION_TABLE:
    /* It points into our library, and there to our function of this name. */
    if (*word - addend - look->own.base < look->own_end - look->own.base &&
        *word - addend == own_function(look, name)) {
      ElfW(Addr) variable = own_variable                    ? object->base + symbol->st_value
                            : symbol->st_shndx == SHN_UNDEF ? needed_variable(look, object, name)
                                                            : 0;
      if (variable != 0) {
        write_word(info, place, variable + addend);
      }
    }
    break;
  case RELOCATION_COPY: /* the program's copy of a library's variable: it begins with a copy of our code */
    if (own_variable && symbol->st_size == sizeof(*word)) {
      ElfW(Addr) function = own_function(look, name);
      ElfW(Addr) variable =
          function != 0 && *word == *(const ElfW(Addr) *)function ? needed_variable(look, object, name) : 0;
      if (variable != 0) {
        write_word(info, place, *(const ElfW(Addr) *)variable);
      }
    }
    break;
  default:
    break;
  }
}

/* A callback of dl_iterate_phdr, `data` is a struct look: repair one object, if it is new. The walk ends (1) if another
 * object was loaded since `loads` was read. */
static int return_names(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct look *look = data;
  struct sp_object object;
  if (info->dlpi_adds != look->loads) {
    return 1; /* this object may not be relocated yet */
  }
  if (look->skip > 0) { /* it was examined before */
    look->skip--;
    return 0;
  }
  const ElfW(Dyn) *dynamic = dynamic_of(info);
  if (dynamic == _DYNAMIC || !sp_object_read(info->dlpi_addr, dynamic, &object)) {
    return 0;
  }
  for (size_t i = object.relative_count; object.relocations != NULL && i < object.relocation_count; i++) {
    return_name(look, info, &object, &object.relocations[i]);
  }
  return 0;
}

/* Examine the new objects. `loads`: how many had ever been loaded, just before the loader's lock was taken. False:
 * another one has been loaded since, or our own library was not found. */
static bool look_at_new(sp_iterate_function *iterate, unsigned long long loads) {
  unsigned long long before = sp_load(&seen);
  struct look look = {.iterate = iterate, .loads = loads};
  if (iterate(count_objects, &look) != 0 || look.own.symbols == NULL) {
    return false;
  }
  /* New objects are at the end of the list. If some of them are gone again, a few old ones are examined twice. */
  look.skip = before != NEVER && look.count > loads - before ? look.count - (size_t)(loads - before) : 0;
  if (iterate(return_names, &look) != 0) {
    return false;
  }
  sp_store(&seen, loads);
  return true;
}

/* Take the loader's lock once, as each dlsym does: what another thread was loading is relocated after that. */
static void wait_for_loader(void) {
  sp_dlsym_function *lookup = sp_libc_dlsym();
  if (lookup != NULL) {
    lookup(RTLD_NEXT, "dlsym"); /* it is found, so libc records no error */
  }
}

/* Repair the variables in all objects that were loaded since the last call. Called before each lookup and dlopen. Costs
 * one callback if there are none. errno stays. */
void sp_own_names_return(void) {
  sp_iterate_function *iterate = sp_libc_iterate();
  unsigned long long loads = 0;
  for (int looks = 0; iterate != NULL && looks < MOST_LOOKS; looks++) {
    iterate(read_loads, &loads);
    if (loads == sp_load(&seen)) {
      return;
    }
    int saved = errno;
    wait_for_loader();
    bool done = look_at_new(iterate, loads);
    errno = saved;
    if (done) {
      return;
    }
  }
}
