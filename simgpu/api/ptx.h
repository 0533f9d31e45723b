/* What a module's PTX says of it: its kernels, their parameters, and its global variables. */
#ifndef SIMGPU_PTX_H
#define SIMGPU_PTX_H

#include <stdbool.h>
#include <stddef.h>

/* The image's text, to be freed, where it is PTX; NULL otherwise. */
char *ptx_copy(const void *image);

/* Where the parameters of kernel `name` begin, or NULL where the text has no such kernel. */
const char *ptx_entry(const char *text, const char *name);

/* Where parameter `index` of a kernel lies among its parameters, and its bytes. False: it has not as many. */
bool ptx_parameter(const char *entry, size_t index, size_t *offset, size_t *bytes);

/* Where the global or constant variable `name` lies among the module's, its bytes, and those of all of them. */
bool ptx_variable(const char *text, const char *name, size_t *offset, size_t *bytes, size_t *total);

#endif
