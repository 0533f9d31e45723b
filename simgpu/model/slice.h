/* Which context holds a device, and how fast its work goes meanwhile. All functions need the lock. */
#ifndef SIMGPU_SLICE_H
#define SIMGPU_SLICE_H

#include "simgpu/model/state.h"

/* Choose the context that holds the device from now on. */
void sg_dispatch(struct sg_shared *shared, uint32_t device);
/* The next instant at which anything changes; SG_NEVER if nothing will. */
uint64_t sg_next_change(struct sg_shared *shared);
/* Let the contexts that hold their device work until `to_ns`. Nothing may change before that instant. */
void sg_run(struct sg_shared *shared, uint64_t to_ns);

#endif
