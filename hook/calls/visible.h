/* The devices that the driver numbers: those that CUDA_VISIBLE_DEVICES names. */
#ifndef SHAREPOD_VISIBLE_H
#define SHAREPOD_VISIBLE_H

#pragma GCC visibility push(hidden)

/* Before the driver is initialised: if the list is one of numbers, let the driver read UUIDs instead. Returns the entry
 * of the environment that was replaced, or NULL, for the call afterwards. */
char *sp_visible_begin(void);
void sp_visible_end(char *before);

#pragma GCC visibility pop

#endif
