/* Arrays and mipmaps: their handles, their formats and their size in bytes. */
#ifndef SIMGPU_ARRAY_H
#define SIMGPU_ARRAY_H

#include "simgpu/api/process.h"

enum { /* of CUDA_ARRAY3D_DESCRIPTOR */
       ARRAY_LAYERED = 0x01,
       ARRAY_CUBEMAP = 0x04,
       ARRAY_SPARSE = 0x40,
       ARRAY_DEFERRED_MAPPING = 0x80,
};

struct array {
  struct handle handle;
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  struct context *context;
  uintptr_t address;
  uint64_t block;        /* id of its block: a block at the same address with another id is not this array's */
  struct mipmap *mipmap; /* for a level: the mipmap that it belongs to */
};

#define MIPMAP_LEVELS 32 /* the most levels of a mipmap */
struct mipmap {
  struct handle handle;
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  unsigned count; /* levels */
  struct array *levels[MIPMAP_LEVELS];
};

/* The size in bytes of one element: all its channels. 0: the format (a CUarray_format) is not simulated. */
size_t array_element(unsigned format, unsigned channels);
size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
/* Make a mipmap with its levels one after the other. `fd`: the file that they are mapped from at `offset`, uncharged;
 * -1: the memory is new and charged. */
CUresult mipmap_new(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, int fd,
                    uint64_t offset, struct mipmap **out);
size_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

#endif
