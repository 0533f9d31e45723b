/* settings.c: settings from the environment, or from the file simgpu.conf beside the library. */
#ifndef SIMGPU_SETTINGS_H
#define SIMGPU_SETTINGS_H

#include <stdint.h>

/* The text of a setting, valid as long as the process or the environment's variable; NULL: unset or empty. */
const char *sg_setting_text(const char *name);
/* A setting as a number: decimal, hexadecimal after 0x, octal after 0; `otherwise` if it is unset or empty. */
uint64_t sg_setting(const char *name, uint64_t otherwise);

#endif
