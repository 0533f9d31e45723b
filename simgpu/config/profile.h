/* The profile of a simulated machine: the rows of profile.def as numbers. */
#ifndef SIMGPU_PROFILE_H
#define SIMGPU_PROFILE_H

#include <stdint.h>

struct sg_profile {
#define PROPERTY(name, ideal, typical, harsh) int64_t name;
#include "simgpu/config/profile.def"
#undef PROPERTY
};

/* Fill the profile from $SIMGPU_PROFILE: `ideal`, `typical` (the default), `harsh`, or the path of a JSON file. The
 * variable of a property overrides it. In a file the numbers are members of the object `profile`, or of the only
 * object; a missing one is as in `typical`. Returns 0 or -errno. -EINVAL: no such profile or property, not a number, or
 * a number out of range. */
int sg_profile_read(struct sg_profile *profile);

/* The time that an event on device `index` gets at instant `now_ns`, in nanoseconds: the clock of that device. */
int64_t sg_event_clock(const struct sg_profile *profile, uint32_t index, uint64_t now_ns);

#endif
