/* Finds what a caller would have found without this library, if that is not a global definition. */
#ifndef SHAREPOD_SCOPE_H
#define SHAREPOD_SCOPE_H

/* The function `name` in the library with the code at `caller`, or in those that it needs; else NULL. Calls libc. */
void *sp_scope_symbol(const void *caller, const char *name) __attribute__((visibility("hidden")));

#endif
