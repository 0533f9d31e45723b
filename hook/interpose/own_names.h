/* The program's own variables that have the names of functions here. */
#ifndef SHAREPOD_OWN_NAMES_H
#define SHAREPOD_OWN_NAMES_H

/* Bind the variables of the objects that came since the last time to their own definitions. Any thread; errno survives.
 */
void sp_own_names_return(void) __attribute__((visibility("hidden")));

#endif
