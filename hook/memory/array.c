/*
 * Wrappers for arrays, mipmapped arrays and external memory. The driver does not tell how it lays out an array, so the
 * charge is the size of its elements. The memory that it takes beyond that shows in NVML's figure for the process, and
 * the agent adds it.
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include "hook/memory/charge.h"

/* The size in bytes of one channel of an element. `format` is a CUarray_format (the names are NVIDIA's,
 * CU_AD_FORMAT_…), but no block-compressed one. */
static uint64_t channel_bytes(unsigned int format) {
  switch (format) {
  case 0x01: /* UNSIGNED_INT8 */
  case 0x08: /* SIGNED_INT8 */
    return 1;
  case 0x02: /* UNSIGNED_INT16 */
  case 0x09: /* SIGNED_INT16 */
  case 0x10: /* HALF */
    return 2;
  case 0x03: /* UNSIGNED_INT32 */
  case 0x0a: /* SIGNED_INT32 */
  case 0x20: /* FLOAT */
    return 4;
  default:
    break;
  }
  if (format >= 0xc0 && format <= 0xcb) { /* UNORM_INT8X1, X2, X4, UNORM_INT16X1, X2, X4, then the same for SNORM */
    return (format - 0xc0) / 3 % 2 == 0 ? 1 : 2;
  }
  return 4; /* a format that is not known here */
}

/* Is it a block-compressed CUarray_format (BC1 to BC7)? Its elements come in blocks of 4 by 4. */
static bool block_compressed(unsigned int format) {
  return format >= 0x91 && format <= 0x9e;
}

/* The size in bytes of a block of 4 by 4 elements, in a block-compressed format. */
static uint64_t block_bytes(unsigned int format) {
  bool is_bc1 = format == 0x91 || format == 0x92, is_bc4 = format == 0x97 || format == 0x98;
  return is_bc1 || is_bc4 ? 8 : 16;
}

/* The count, but at least 1: an extent of 0 counts as 1. */
static uint64_t least_one(uint64_t count) {
  return count == 0 ? 1 : count;
}

/* The size in bytes of one level of `array` with these extents, in elements. An extent of 0 means that the array lacks
 * this dimension. */
static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, uint64_t width, uint64_t height, uint64_t depth) {
  uint64_t layers = least_one(depth);
  if (block_compressed(array->Format)) {
    uint64_t blocks = sp_times((least_one(width) + 3) / 4, (least_one(height) + 3) / 4);
    return sp_times(sp_times(blocks, layers), block_bytes(array->Format));
  }
  uint64_t element = channel_bytes(array->Format) * least_one(array->NumChannels);
  return sp_times(sp_times(sp_times(least_one(width), least_one(height)), layers), element);
}

/* The size of an array in bytes; UINT64_MAX if it is larger. `levels`: of a mipmapped array, where each level has half
 * the extents of the one before; else 1. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels) {
  if (array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) {
    return 0; /* a sparse array has no memory of its own: memory is mapped into it */
  }
  bool layered = array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  uint64_t total = 0, width = array->Width, height = array->Height, depth = array->Depth;
  for (unsigned int level = 0; level < levels; level++) {
    uint64_t bytes = level_bytes(array, width, height, depth);
    total = total > UINT64_MAX - bytes ? UINT64_MAX : total + bytes;
    if (width <= 1 && height <= 1 && (layered || depth <= 1)) {
      break; /* this is the smallest level, even if more were asked for */
    }
    width = width > 1 ? width / 2 : width;
    height = height > 1 ? height / 2 : height;
    depth = !layered && depth > 1 ? depth / 2 : depth;
  }
  return total;
}

/* An array of one or two dimensions: charged like one of three. */
#define ARRAY_2D(name, type)                                                                                           \
  SP_WRAPPER(name, (CUarray * array, const type *asked), (array, asked)) {                                             \
    if (array == NULL || asked == NULL) {                                                                              \
      return real(array, asked);                                                                                       \
    }                                                                                                                  \
    CUDA_ARRAY3D_DESCRIPTOR wide = {                                                                                   \
        .Width = asked->Width, .Height = asked->Height, .Format = asked->Format, .NumChannels = asked->NumChannels};   \
    CHARGED(SP_MEMORY_ARRAY, array_bytes(&wide, 1), (uintptr_t)*array, real(array, asked));                            \
  }
ARRAY_2D(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1)
ARRAY_2D(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR)

#define ARRAY_3D(name, type)                                                                                           \
  SP_WRAPPER(name, (CUarray * array, const type *asked), (array, asked)) {                                             \
    if (array == NULL || asked == NULL) {                                                                              \
      return real(array, asked);                                                                                       \
    }                                                                                                                  \
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = asked->Width,                                                             \
                                    .Height = asked->Height,                                                           \
                                    .Depth = asked->Depth,                                                             \
                                    .Format = asked->Format,                                                           \
                                    .NumChannels = asked->NumChannels,                                                 \
                                    .Flags = asked->Flags};                                                            \
    CHARGED(SP_MEMORY_ARRAY, array_bytes(&wide, 1), (uintptr_t)*array, real(array, asked));                            \
  }
ARRAY_3D(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1)
ARRAY_3D(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR)

SP_WRAPPER(cuMipmappedArrayCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned int levels),
           (array, asked, levels)) {
  if (array == NULL || asked == NULL) {
    return real(array, asked, levels);
  }
  CHARGED(SP_MEMORY_ARRAY, array_bytes(asked, levels), (uintptr_t)*array, real(array, asked, levels));
}

SP_WRAPPER(cuArrayDestroy, (CUarray array), (array)) {
  FREED(SP_MEMORY_ARRAY, (uintptr_t)array, /* waits */ true, real(array));
}

SP_WRAPPER(cuMipmappedArrayDestroy, (CUarray array), (array)) {
  FREED(SP_MEMORY_ARRAY, (uintptr_t)array, /* waits */ true, real(array));
}

/* Memory of another interface (Vulkan, a capture card): no other process of the share is charged for it. */
SP_WRAPPER(cuImportExternalMemory, (CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from),
           (memory, from)) {
  if (memory == NULL || from == NULL) {
    return real(memory, from);
  }
  CHARGED(SP_MEMORY_IMPORT, from->size, (uintptr_t)*memory, real(memory, from));
}

SP_WRAPPER(cuDestroyExternalMemory, (CUexternalMemory memory), (memory)) {
  FREED(SP_MEMORY_IMPORT, (uintptr_t)memory, /* waits */ true, real(memory));
}
