/* Reads a module's PTX text: entries, parameters and global variables. */
#include "simgpu/api/ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE_ALIGNMENT 256

/* One declaration, as in ".param .u64 .ptr .align 8 name[3]". */
struct declaration {
  const char *name;
  size_t length;  /* of the name */
  size_t natural; /* bytes of its type; the next one after a comma has the same type if it names none */
  size_t alignment;
  size_t bytes;
};

/* Are the `length` characters at `at` this name? */
static bool is_named(const char *at, size_t length, const char *name) {
  return strlen(name) == length && strncmp(at, name, length) == 0;
}

/* Is the image text, as far as its first nine bytes tell? Only text has a terminating zero, up to which it may be read:
 * ELF files and fat binaries have none. */
static bool is_text(const void *image) {
  const unsigned char *at = image;
  for (int n = 0; n < 9; n++)
    if (at[n] >= 0x80 || (at[n] < 0x20 && !isspace(at[n])))
      return false;
  return true;
}

/* The image's text, which the caller frees. NULL: it is not PTX, or there is no memory. */
char *ptx_copy(const void *image) {
  return is_text(image) && strstr(image, ".version") && strstr(image, ".target") ? strdup(image) : NULL;
}

/* Where the parameters of the kernel `name` begin. NULL: the text has no such kernel. */
const char *ptx_entry(const char *text, const char *name) {
  for (const char *at = text; (at = strstr(at, ".entry"));) {
    at += strlen(".entry");
    at += strspn(at, " \t\r\n");
    size_t length = strcspn(at, " \t\r\n(");
    if (is_named(at, length, name))
      return at + length;
    at += length;
  }
  return NULL;
}

/* Read one declaration into `out`. Return where it ends: at one of ",;=)", or at the end of the text. After a comma a
 * name without a type has the type of the declaration before, which the caller leaves in `out->natural`. */
static const char *declare(const char *at, struct declaration *out) {
  size_t element = 0, vector = 1, count = 1;
  bool points = false;
  *out = (struct declaration){.natural = out->natural};
  while (*at && !strchr(",;=)", *at)) {
    size_t length = strcspn(at, " \t\r\n,;=)[");
    if (is_named(at, length, ".align")) {
      char *end;
      size_t alignment = strtoul(at + length, &end, 10);
      out->alignment = points ? 0 : alignment;
      at = end;
    } else if (is_named(at, length, ".ptr")) {
      points = true; /* what follows describes the memory that it points to */
      at += length;
    } else if (*at == '.') { /* a type as .u64, a vector as .v4, or a word that does not matter here */
      size_t bits = length > 2 && isdigit((unsigned char)at[2]) ? strtoul(at + 2, NULL, 10) : 0;
      vector = at[1] == 'v' ? strtoul(at + 2, NULL, 10) : vector;
      element = bits && strchr("bfsu", at[1]) ? bits / 8 : element;
      at += length;
    } else if (*at == '[') {
      count *= strtoul(at + 1, NULL, 10);
      at += strcspn(at, "],;=)");
      at += *at == ']';
    } else if (length) {
      out->name = at;
      out->length = length;
      at += length;
    } else {
      at++;
    }
  }
  if (element > 0)
    out->natural = element * vector;
  out->bytes = out->natural * count;
  if (!out->alignment)
    out->alignment = out->natural > 0 ? out->natural : 1;
  return at;
}

/* The first multiple of `alignment` that is not below `offset`. */
static size_t aligned(size_t offset, size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

/* Where parameter `index` lies among a kernel's parameters, and its size. `entry` is from ptx_entry. False: the kernel
 * has fewer parameters. */
bool ptx_parameter(const char *entry, size_t index, size_t *offset, size_t *bytes) {
  size_t end = 0, n = 0;
  const char *at = entry + strspn(entry, " \t\r\n");
  while (*at == '(' || *at == ',') {
    struct declaration parameter = {0};
    at = declare(at + 1, &parameter);
    if (!parameter.name)
      return false;
    *offset = aligned(end, parameter.alignment);
    *bytes = parameter.bytes;
    end = *offset + parameter.bytes;
    if (n++ == index)
      return true;
  }
  return false;
}

/* The text after the next ".global" or ".const" that declares variables of the module. Comments, kernels and their
 * parameters are passed over. NULL: there is none. */
static const char *next_variables(const char *at) {
  size_t depth = 0; /* of parentheses and braces */
  while (*at) {
    size_t length = strcspn(at, " \t\r\n");
    if (strncmp(at, "//", 2) == 0) {
      at += strcspn(at, "\n");
    } else if (depth == 0 && (is_named(at, length, ".global") || is_named(at, length, ".const"))) {
      return at + length;
    } else {
      depth += *at == '(' || *at == '{';
      depth -= depth > 0 && (*at == ')' || *at == '}');
      at++;
    }
  }
  return NULL;
}

/* Where the variable `name` lies among the module's variables, its size, and the size of all of them. False: there is
 * no such variable. */
bool ptx_variable(const char *text, const char *name, size_t *offset, size_t *bytes, size_t *total) {
  bool found = false;
  *total = 0;
  for (const char *at = text; (at = next_variables(at));) {
    struct declaration variable = {0};
    for (bool more = true; more;) { /* also after the name is found: `total` needs all */
      at = declare(at, &variable);
      size_t start = aligned(*total, VARIABLE_ALIGNMENT);
      if (variable.name && is_named(variable.name, variable.length, name)) {
        *offset = start;
        *bytes = variable.bytes;
        found = true;
      }
      *total = start + variable.bytes;
      more = *at == ',';
      at += more;
    }
  }
  return found;
}
