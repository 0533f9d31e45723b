/*
 * The exports of the simulated driver: the rows of driver.def that a driver for Linux has. Each of them is a weak
 * function here, which returns that it is not simulated. If another file models a function, that one is linked instead.
 * So no prototypes of these functions may be visible in this file.
 */
#include "simgpu/api/symbols.h"

#include <stdbool.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define ABSENT(...)

int not_supported(const char *what);

#define WRAPPED(name, since, class, action, subject, reason) DRIVER(name, since, class, subject, reason)
#define DRIVER(name, since, class, subject, reason)                                                                    \
  EXPORT __attribute__((weak)) int name(void);                                                                         \
  EXPORT int name(void) {                                                                                              \
    return not_supported(#name);                                                                                       \
  }
#include "driver/driver.def"
#undef DRIVER

static const struct symbol {
  const char *name;
  int since;
  int (*function)(void);
} symbols[] = {
#define DRIVER(name, since, class, subject, reason) {#name, since, name},
#include "driver/driver.def"
};

/* Is an exported name a variant of `name`, which has `length` characters: that name alone, or with _v2 and so on? */
static bool is_variant(const char *exported, const char *name, size_t length) {
  if (strncmp(exported, name, length) != 0)
    return false;
  const char *rest = exported + length;
  return !*rest || (rest[0] == '_' && rest[1] == 'v' && !rest[2 + strspn(rest + 2, "0123456789")]);
}

/* The form of a function for per-thread default streams; the function itself if there is none. */
static const struct symbol *per_thread(const struct symbol *base) {
  size_t length = strlen(base->name);
  for (size_t n = 0; n < sizeof symbols / sizeof *symbols; n++)
    if (strncmp(symbols[n].name, base->name, length) == 0 &&
        (strcmp(symbols[n].name + length, "_ptsz") == 0 || strcmp(symbols[n].name + length, "_ptds") == 0))
      return &symbols[n];
  return base;
}

/* Find the newest variant of a function that a program of this CUDA version knows. `own_stream`: of that variant, the
 * form for per-thread default streams. A name with a suffix finds nothing. Rows without a version are not searched. */
enum lookup find_symbol(const char *name, int version, int own_stream, int (**function)(void)) {
  if (strcmp(name, "cuGraphInstantiate") == 0 && version >= 12000)
    name = "cuGraphInstantiateWithFlags"; /* the only case in which the newest variant has another name */
  const struct symbol *found = NULL;
  enum lookup lookup = SYMBOL_NOT_FOUND;
  size_t length = strlen(name);
  for (size_t n = 0; n < sizeof symbols / sizeof *symbols && !strchr(name, '_'); n++) {
    if (!symbols[n].since || !is_variant(symbols[n].name, name, length))
      continue;
    /* A variant newer than the simulated driver may have no model; if an older one was found, prefer that. */
    int known = found && version > DRIVER_VERSION ? DRIVER_VERSION : version;
    if (symbols[n].since <= known && (!found || symbols[n].since > found->since))
      found = &symbols[n];
    lookup = found ? SYMBOL_FOUND : VERSION_NOT_SUFFICIENT;
  }
  if (found && own_stream)
    found = per_thread(found);
  *function = found ? found->function : NULL;
  return lookup;
}
