/*
 * CUDA_VISIBLE_DEVICES inside a share: numbers count the share's devices, as they do in a container that has no others.
 * The driver reads the variable while it is initialised, and would count all devices of the machine. So for that time
 * the entry of the environment is one with UUIDs; the entry itself is replaced, and nothing else is touched.
 */
#include "hook/calls/visible.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hook/nvml/nvml.h"

#define NAME "CUDA_VISIBLE_DEVICES="

extern char **environ;

static char text[sizeof NAME + SP_DEVICES_MAX * (SP_UUID_ROOM + 1)]; /* of all threads: it is the same of each */

/* The number at the begin of an entry of the list, as the driver reads it: "1gpu2" is 1. -1: there is none that a share
 * could have. */
static int number_at(const char *entry) {
  char *rest;
  long number = strtol(entry, &rest, 10);
  return rest == entry || number < 0 || number >= SP_DEVICES_MAX ? -1 : (int)number;
}

/* It ends where there is no more room: a list that long names a device twice, and so none. */
static void append(char *list, const char *more) {
  size_t length = strlen(list), adds = strlen(more);
  if (length + adds < sizeof text)
    memcpy(list + length, more, adds + 1);
}

/* The same list by UUID. Like the driver's it ends before the first entry that names nothing. */
static void by_uuid(const struct sp_view *view, const char *list) {
  char uuid[SP_UUID_ROOM], named[sizeof text] = NAME;
  for (bool first = true; *list; first = false) {
    int number = number_at(list);
    if (number < 0 || !sp_view_uuid(view, (uint32_t)number, uuid, sizeof uuid))
      break;
    append(named, first ? "" : ",");
    append(named, uuid);
    list += strcspn(list, ",");
    list += *list == ',';
  }
  memcpy(text, named, sizeof text); /* which changes nothing where the driver reads it already */
}

char *sp_visible_begin(void) {
  struct sp_view view;
  int saved = errno;
  char **entry = environ, *before = NULL;
  while (entry && *entry && strncmp(*entry, NAME, sizeof NAME - 1) != 0)
    entry++;
  const char *list = entry && *entry ? *entry + sizeof NAME - 1 : "";
  /* Its first entry says what all of them are. */
  if (*list && strncmp(list, "GPU-", 4) != 0 && strncmp(list, "MIG-", 4) != 0 && sp_view_open(&view)) {
    by_uuid(&view, list);
    sp_view_close(&view);
    before = *entry;
    *entry = text;
  }
  errno = saved;
  return before;
}

void sp_visible_end(char *before) {
  /* Looked for anew: another thread may have added variables, and then the entries lie elsewhere. */
  for (char **entry = environ; before && entry && *entry; entry++)
    if (*entry == text)
      *entry = before;
}
