/* What a module's PTX declares: its kernels, their parameters, and its global variables. */
#ifndef SIMGPU_PTX_H
#define SIMGPU_PTX_H

#include <stdbool.h>
#include <stddef.h>

/* A copy of the image's text, which the caller frees, if it is PTX; else NULL. */
char *ptx_copy(const void *image);

/* Where the parameters of kernel `name` begin; NULL if the text has no such kernel. */
const char *ptx_entry(const char *text, const char *name);

/* Where parameter `index` of a kernel lies among its parameters, and its size. False: the kernel has fewer. */
bool ptx_parameter(const char *entry, size_t index, size_t *offset, size_t *bytes);

/* Where the global or constant variable `name` lies among the module's, its size, and the size of all of them. */
bool ptx_variable(const char *text, const char *name, size_t *offset, size_t *bytes, size_t *total);

#endif
