#ifndef SIMGPU_SYMBOLS_H
#define SIMGPU_SYMBOLS_H

#define DRIVER_VERSION 13000 /* the CUDA version of the simulated driver */

enum lookup { SYMBOL_FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT }; /* as cuGetProcAddress tells them */

/* The newest variant of a function that a program of this CUDA version knows, for streams of its threads' own if it
 * wants that; NULL unless SYMBOL_FOUND is returned. */
enum lookup find_symbol(const char *name, int version, int own_stream, int (**function)(void));

#endif
