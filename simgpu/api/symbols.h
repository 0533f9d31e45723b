/* Lookup of the driver's functions by name, CUDA version and kind of default stream. */
#ifndef SIMGPU_SYMBOLS_H
#define SIMGPU_SYMBOLS_H

#define DRIVER_VERSION 13000 /* the CUDA version of the simulated driver */

enum lookup { SYMBOL_FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT }; /* as cuGetProcAddress tells them */

/* Find the newest variant of a function that a program of this CUDA version knows. `own_stream`: of that variant, the
 * form for per-thread default streams. *function is NULL unless SYMBOL_FOUND is returned. */
enum lookup find_symbol(const char *name, int version, int own_stream, int (**function)(void));

#endif
