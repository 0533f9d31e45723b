/*
 * Finds the real dlsym and dlopen, and the driver's own exports, by reading the loaded objects' symbol tables.
 *
 * Nothing declared here calls libc unless it says so: a sanitizer's runtime resolves its own libc functions through
 * our dlsym before any of them works, from constructors and even earlier.
 */
#ifndef SHAREPOD_RESOLVE_H
#define SHAREPOD_RESOLVE_H

#include "hook/interpose/object.h"

typedef void *sp_dlsym_function(void *handle, const char *name);
typedef void *sp_dlopen_function(const char *path, int flags);
struct dl_phdr_info;
typedef int sp_iterate_function(int (*look)(struct dl_phdr_info *info, size_t size, void *data), void *data);

/* The targets of the trampolines: the next definition after ours in the program's search order, so that an interposer
 * behind us is still called. NULL until sp_resolve has run. */
extern sp_dlsym_function *sp_chain_dlsym;
extern sp_dlopen_function *sp_chain_dlopen;

/* The trampoline of dlopen masks the flags with this: it removes RTLD_DEEPBIND, or nothing. */
extern int sp_dlopen_mask;

/* libc's own functions, past any other interposer, for the hook's own use. NULL until sp_resolve has run. */
sp_dlsym_function *sp_libc_dlsym(void);
sp_dlopen_function *sp_libc_dlopen(void);
sp_iterate_function *sp_libc_iterate(void); /* dl_iterate_phdr */

/* The loader's handle of this library. NULL until sp_resolve has run. */
void *sp_own_handle(void);

/* Find all of the above. Any thread may call this at any time and repeatedly: every run finds the same values. */
void sp_resolve(void);

/* The address of an exported definition in one loaded object, or NULL. A handle from libc's dlopen is the loader's
 * record of the object (struct link_map), in glibc and in musl. */
void *sp_object_symbol(void *handle, const char *name);

const char *sp_base_name(const char *path);

extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden"))); /* our own dynamic section: which object is us */

#endif
