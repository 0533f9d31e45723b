/* settings.c: settings from the environment, or from the file simgpu.conf beside the library. */
#ifndef SIMGPU_SETTINGS_H
#define SIMGPU_SETTINGS_H

#include <stdint.h>

/* The text of a setting, valid as long as the process or the environment's variable; NULL: unset or empty. */
const char *sg_setting_text(const char *name);
/* A setting as a number: decimal, or hexadecimal after 0x. */
uint64_t sg_setting(const char *name, uint64_t otherwise);

#endif
