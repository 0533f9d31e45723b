/* Reads the profile of the hardware: a named one or a file, then the variable of each property. */
#include "simgpu/config/profile.h"

#include "simgpu/config/settings.h"
#include "simgpu/model/state.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_PROFILES 3
#define TYPICAL        1         /* the column of the profile that counts where nothing else is said */
#define MAX_FILE       (1 << 20) /* bytes: the result of a calibration holds more than the profile */
#define MAX_DRIFT_PPM  1000

static const struct property {
  const char *name;
  size_t offset;
  int64_t values[NAMED_PROFILES];
} properties[] = {
#define PROPERTY(name, ideal, typical, harsh) {#name, offsetof(struct sg_profile, name), {ideal, typical, harsh}},
#include "simgpu/config/profile.def"
#undef PROPERTY
};
#define PROPERTIES (sizeof properties / sizeof *properties)

/* Where a profile has the value of a property. */
static int64_t *value_of(struct sg_profile *profile, const struct property *property) {
  return (int64_t *)((char *)profile + property->offset);
}

/* Set all properties to the values of the named profile in this column of profile.def. */
static void set_named(struct sg_profile *profile, int column) {
  for (size_t n = 0; n < PROPERTIES; n++)
    *value_of(profile, &properties[n]) = properties[n].values[column];
}

/* The first character of the text that is no white space. */
static const char *skip_space(const char *text) {
  return text + strspn(text, " \t\r\n");
}

/* Read one `"name": number` at the start of the text. Return what comes after it; NULL: there is none, or the name is
 * unknown. */
static const char *read_member(struct sg_profile *profile, const char *text) {
  if (*text != '"')
    return NULL;
  size_t length = strcspn(++text, "\"");
  const struct property *found = NULL;
  for (size_t n = 0; n < PROPERTIES; n++)
    if (strlen(properties[n].name) == length && !strncmp(properties[n].name, text, length))
      found = &properties[n];
  text += length;
  if (!found || *text != '"' || *(text = skip_space(text + 1)) != ':')
    return NULL;
  char *end;
  text = skip_space(text + 1);
  *value_of(profile, found) = strtoll(text, &end, 10);
  return end == text ? NULL : skip_space(end);
}

/* Read the properties in the object `profile` of the text, else in its first object. Returns 0 or -EINVAL. */
static int read_object(struct sg_profile *profile, const char *text) {
  const char *inner = strstr(text, "\"profile\"");
  text = strchr(inner ? inner : text, '{');
  if (!text)
    return -EINVAL;
  text = skip_space(text + 1);
  while (text && *text != '}') {
    text = read_member(profile, text);
    if (text && *text == ',')
      text = skip_space(text + 1);
    else if (text && *text != '}')
      text = NULL;
  }
  return text ? 0 : -EINVAL;
}

/* Read the properties in a JSON file. Returns 0, -EINVAL if it cannot be opened or read as such, or -ENOMEM. */
static int read_file(struct sg_profile *profile, const char *path) {
  FILE *file = fopen(path, "re");
  if (!file)
    return -EINVAL;
  char *text = malloc(MAX_FILE);
  size_t read = text ? fread(text, 1, MAX_FILE - 1, file) : 0;
  fclose(file);
  if (text)
    text[read] = 0;
  int result = text ? read_object(profile, text) : -ENOMEM;
  free(text);
  return result;
}

/* Whether all values are usable: none is negative but the drift, none that the model divides by is zero, and the drift
 * is too small to let time run backwards. */
static bool sane(const struct sg_profile *profile) {
  for (size_t n = 0; n < PROPERTIES; n++) {
    int64_t value = *value_of((struct sg_profile *)profile, &properties[n]);
    bool drift = properties[n].offset == offsetof(struct sg_profile, event_drift_ppm);
    if (value < (drift ? -MAX_DRIFT_PPM : 0) || value > (drift ? MAX_DRIFT_PPM : 1000000000))
      return false;
  }
  return profile->slice_us && profile->pcie_mb_s && profile->event_resolution_ns;
}

/* Start from the named profile or from `typical`, read the file over it if SIMGPU_PROFILE names one, then let the
 * variable of each property override its value. Returns 0 or -errno. */
int sg_profile_read(struct sg_profile *profile) {
  static const char *const names[NAMED_PROFILES] = {"ideal", "typical", "harsh"};
  const char *wanted = sg_setting_text("SIMGPU_PROFILE");
  int result = wanted ? -EINVAL : 0;
  set_named(profile, TYPICAL);
  for (int n = 0; wanted && n < NAMED_PROFILES; n++)
    if (!strcmp(wanted, names[n])) {
      set_named(profile, n);
      result = 0;
    }
  if (result)
    result = read_file(profile, wanted);
  for (size_t n = 0; n < PROPERTIES; n++) {
    char variable[64] = "SIMGPU_";
    for (size_t at = 0; properties[n].name[at]; at++)
      variable[strlen("SIMGPU_") + at] = (char)toupper(properties[n].name[at]);
    int64_t *value = value_of(profile, &properties[n]);
    *value = (int64_t)sg_setting(variable, (uint64_t)*value);
  }
  return result ? result : sane(profile) ? 0 : -EINVAL;
}

/* The host's clock with the drift of the device, cut to the resolution of events. Devices with an odd index drift
 * the other way. */
int64_t sg_event_clock(const struct sg_profile *profile, uint32_t index, uint64_t now_ns) {
  int64_t now = (int64_t)now_ns, drifting = now, period = profile->event_drift_period_s * 1000000000;
  if (period) { /* away from the host's clock for one period, and back to it during the next */
    int64_t within = now % (2 * period);
    drifting = within < period ? within : 2 * period - within;
  }
  int64_t drift = drifting / 1000 * profile->event_drift_ppm / 1000; /* divided twice: the product must fit */
  int64_t clock = now + (index % 2 ? -drift : drift);
  return clock - clock % profile->event_resolution_ns;
}
