/* Repairs variables of the program that have the names of our functions. */
#ifndef SHAREPOD_OWN_NAMES_H
#define SHAREPOD_OWN_NAMES_H

/* Bind such variables of the objects that were loaded since the last call to their own definitions. May be called by
 * any thread; does not change errno. */
void sp_own_names_return(void) __attribute__((visibility("hidden")));

#endif
