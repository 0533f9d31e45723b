/*
 * door: how a preload gets between a program and the driver: whatever address of the driver the program is handed, by
 * dlsym or by cuGetProcAddress, goes through `replaced` first.
 *
 * The door is the hook's own: its dlsym as a tail call, and its reading of the loader's tables (hook/resolve.c).
 */
#ifndef SHAREPOD_GPU_DOOR_H
#define SHAREPOD_GPU_DOOR_H

#include <stdint.h>

#include "resolve.h"

#define EXPORT     __attribute__((visibility("default")))
#define PER_THREAD 2u /* the flag of cuGetProcAddress for the per-thread default stream */

/* The preload's own: what the program gets in place of `found`, which it asked for by that name, with those flags. */
void *replaced(const char *name, void *found, uint64_t flags);

/* A function of the driver that the preload calls itself: as dlsym finds it where the program found its own. */
void *door_find(const char *name);

#endif
