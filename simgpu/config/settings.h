/* settings.c: what the environment, or the file simgpu.conf beside the library, says. */
#ifndef SIMGPU_SETTINGS_H
#define SIMGPU_SETTINGS_H

#include <stdint.h>

/* The text of a setting, which lives as long as the process or the environment's variable; NULL: unset or empty. */
const char *sg_setting_text(const char *name);
/* A number: decimal, or hexadecimal after 0x. */
uint64_t sg_setting(const char *name, uint64_t otherwise);

#endif
