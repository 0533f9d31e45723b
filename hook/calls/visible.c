/*
 * Makes the numbers in CUDA_VISIBLE_DEVICES count the share's devices, as they would in a container that has no other
 * devices. The driver reads the variable during its initialisation, and would count all devices of the machine. So for
 * that time the entry of the environment is replaced by one with UUIDs. Nothing else in the environment is touched.
 */
#include "hook/calls/visible.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hook/nvml/nvml.h"

#define NAME "CUDA_VISIBLE_DEVICES="

extern char **environ;

static char
    text[sizeof NAME + SP_DEVICES_MAX * (SP_UUID_ROOM + 1)]; /* shared by all threads: each writes the same text */

/* The number at the beginning of a list's entry, as the driver reads it: "1gpu2" is 1. -1: it is no number of a device
 * that a share could have. */
static int number_at(const char *entry) {
  char *rest;
  long number = strtol(entry, &rest, 10);
  return rest == entry || number < 0 || number >= SP_DEVICES_MAX ? -1 : (int)number;
}

/* Append `more` to `list`, which is as large as `text`, if there is room. A list that does not fit names a device
 * twice, and from such a list the driver selects no device. */
static void append(char *list, const char *more) {
  size_t length = strlen(list), more_length = strlen(more);
  if (length + more_length < sizeof text)
    memcpy(list + length, more, more_length + 1);
}

/* Write to `text` the environment's entry with the UUIDs of the devices that `list` numbers. It ends before the first
 * number that names no device, as the driver's reading of a list does. */
static void write_text(const struct sp_view *view, const char *list) {
  char uuid[SP_UUID_ROOM], named[sizeof text] = NAME;
  for (bool first = true; *list; first = false) {
    int number = number_at(list);
    if (number < 0 || !sp_view_uuid(view, (uint32_t)number, uuid, sizeof uuid))
      break;
    append(named, first ? "" : ",");
    append(named, uuid);
    list += strcspn(list, ",");
    list += *list == ','; /* not past the end */
  }
  memcpy(text, named, sizeof text); /* another thread's driver may read it already: the bytes are the same */
}

/* Called before the driver's cuInit: if the list has numbers, put `text` into the environment instead of the program's
 * entry. Returns the entry that it replaces, for sp_visible_end; NULL: nothing was replaced. errno stays. */
char *sp_visible_begin(void) {
  struct sp_view view;
  int saved = errno;
  char **entry = environ, *before = NULL;
  while (entry && *entry && strncmp(*entry, NAME, sizeof NAME - 1) != 0)
    entry++;
  const char *list = entry && *entry ? *entry + sizeof NAME - 1 : "";
  /* The first entry decides how the driver reads all entries. */
  if (*list && strncmp(list, "GPU-", 4) != 0 && strncmp(list, "MIG-", 4) != 0 && sp_view_open(&view)) {
    write_text(&view, list);
    sp_view_close(&view);
    before = *entry;
    *entry = text;
  }
  errno = saved;
  return before;
}

/* Called after cuInit: put the program's own entry `before` back; NULL: nothing is to be done. */
void sp_visible_end(char *before) {
  /* Search again: another thread may have added variables, and then the entries have moved. */
  for (char **entry = environ; before && entry && *entry; entry++)
    if (*entry == text)
      *entry = before;
}
