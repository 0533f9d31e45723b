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
  uint64_t block;        /* id of the block that it lies in: another one at the same address is not its */
  struct mipmap *mipmap; /* of a level: where it belongs */
};

struct mipmap {
  struct handle handle;
  CUDA_ARRAY3D_DESCRIPTOR descriptor;
  unsigned count;
  struct array *levels[32];
};

/* Bytes of one element, all channels; 0: not a format that is simulated. */
size_t array_element(unsigned format, unsigned channels);
size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
/* A mipmap whose levels lie one after the other. With a descriptor of memory: mapped from there, at no charge. */
CUresult mipmap_new(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, int fd,
                    uint64_t offset, struct mipmap **out);
/* The bytes of a mipmap with so many levels. */
size_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

#endif
