/*
 * Settings come from the environment. If the environment lacks one, it comes from the file simgpu.conf in the folder of
 * the loaded library: the hooks of container runtimes run without an environment.
 *
 * The file has lines NAME=VALUE. Of two lines with one name the first counts. A line without a known name, such as a
 * comment, has no effect. The file is read once, when a setting is first missing in the environment.
 */
#define _GNU_SOURCE
#include "simgpu/config/settings.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static char *lines, *lines_end; /* of the file, each line ended by a NUL; lines == lines_end: there is no file */

/* Read simgpu.conf, which lies beside this library. Without the file `lines` stays empty. */
static void read_file(void) {
  Dl_info library;
  char path[4096];
  if (!dladdr(&read_once, &library))
    return;
  const char *slash = strrchr(library.dli_fname, '/');
  int folder = slash ? (int)(slash + 1 - library.dli_fname) : 0;
  snprintf(path, sizeof path, "%.*ssimgpu.conf", folder, library.dli_fname);
  FILE *file = fopen(path, "re");
  if (!file)
    return;
  size_t room = 0;
  ssize_t length = getdelim(&lines, &room, 0, file);
  fclose(file);
  lines_end = length > 0 ? lines + length : lines;
  for (char *at = lines; at < lines_end; at++)
    if (*at == '\n' || *at == '\r')
      *at = 0;
}

/* The text of a setting: the variable of that name if it is set and not empty, else the line of simgpu.conf; NULL:
 * neither has it. */
const char *sg_setting_text(const char *name) {
  const char *text = getenv(name);
  if (text && *text)
    return text;
  pthread_once(&read_once, read_file);
  size_t length = strlen(name);
  for (const char *line = lines; line < lines_end; line += strlen(line) + 1)
    if (!strncmp(line, name, length) && line[length] == '=' && line[length + 1])
      return line + length + 1;
  return NULL;
}

/* A setting as a number, or `otherwise` if there is none. A text that is no number counts as 0. */
uint64_t sg_setting(const char *name, uint64_t otherwise) {
  const char *text = sg_setting_text(name);
  return text ? strtoull(text, NULL, 0) : otherwise;
}
