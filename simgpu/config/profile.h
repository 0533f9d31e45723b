/* The profile of a simulated machine: the rows of profile.def as numbers. */
#ifndef SIMGPU_PROFILE_H
#define SIMGPU_PROFILE_H

#include <stdint.h>

struct sg_profile {
#define PROPERTY(name, ideal, typical, harsh) int64_t name;
#include "simgpu/config/profile.def"
#undef PROPERTY
};

/* Fill from $SIMGPU_PROFILE, which is `ideal`, `typical` (the default), `harsh` or the path of a JSON file, and from
 * the variable of each property, which counts more. In a file the numbers are members of the object `profile`, or of
 * the only object; what is not there is as in `typical`. 0, or -EINVAL: no such profile or property, or not a number.
 */
int sg_profile_read(struct sg_profile *profile);

/* What an event on device `index` says that the time is, in nanoseconds: the clock of the device at instant `now_ns`.
 */
int64_t sg_event_clock(const struct sg_profile *profile, uint32_t index, uint64_t now_ns);

#endif
