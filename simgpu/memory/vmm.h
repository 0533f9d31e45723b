/*
 * Virtual memory management: physical memory, and reserved addresses at which it is mapped.
 *
 * Physical memory lives in a file (the arena, or one of its own when it may be exported), so that it can be mapped at
 * several addresses and in several processes. It goes when neither a reference nor a mapping is left.
 */
#ifndef SIMGPU_VMM_H
#define SIMGPU_VMM_H

#include "simgpu/api/process.h"

#define GRANULARITY (2ull << 20)

/* Guarded by vmm_lock, except for what is set once when it is made. */
struct physical {
  struct handle handle;
  CUmemAllocationProp prop;
  uint32_t device; /* SG_NONE: host memory, which no device counts */
  uint64_t bytes;
  int fd;
  bool own_file;
  uint64_t offset;
  uint32_t references, mappings;
  uint32_t piece; /* SG_NONE: never exported, so it counts for this process alone */
  uint64_t id;    /* of the piece */
  struct physical *next;
};

struct mapping {
  uintptr_t address;
  uint64_t bytes;
  struct physical *physical;
  int access[SG_MAX_DEVICES + 1]; /* by device; the last is the host's */
  struct mapping *next;
};

extern pthread_mutex_t vmm_lock;

void physical_end(struct physical *physical);
/* The memory of a handle; NULL: there is none. */
struct physical *find_physical(CUmemGenericAllocationHandle handle);

#endif
