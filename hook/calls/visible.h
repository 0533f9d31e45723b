/* CUDA_VISIBLE_DEVICES inside a share. */
#ifndef SHAREPOD_VISIBLE_H
#define SHAREPOD_VISIBLE_H

#pragma GCC visibility push(hidden)

/* Called before the driver is initialised: if the list has numbers, let the driver read UUIDs instead. Returns the
 * entry of the environment that was replaced, or NULL; it is passed to sp_visible_end. */
char *sp_visible_begin(void);
void sp_visible_end(char *before);

#pragma GCC visibility pop

#endif
