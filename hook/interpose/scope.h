/* What a caller would have found without this library, where that is no global definition. */
#ifndef SHAREPOD_SCOPE_H
#define SHAREPOD_SCOPE_H

/* The function that `name` is to the library with the address `caller` and to those that it needs, or NULL. Calls libc.
 */
void *sp_scope_symbol(const void *caller, const char *name) __attribute__((visibility("hidden")));

#endif
