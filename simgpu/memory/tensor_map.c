/* Tensor maps: descriptions of tiles of a tensor, which kernels of Hopper and later copy by. A description is opaque
 * and no kernel reads it here, so only its parameters are checked, as the header says; data types of less than a byte
 * are not known. CUDA's documentation tells what the exported functions do; a comment at one tells only what is
 * special here. */
#include "simgpu/api/process.h"

#include <stdint.h>
#include <string.h>

#define MAP_BYTES     128 /* of a CUtensorMap */
#define MAP_ALIGNED   64
#define RANK_MAX      5   /* dimensions */
#define BOX_MAX       256 /* elements of a tile in one dimension */
#define FLOAT_MIN     6   /* CU_TENSOR_MAP_DATA_TYPE_FLOAT16; all types after it are floats */
#define STEP_MAX      8
#define HOPPER        9                   /* major compute capability */
#define WIDTH_MAX     (UINT64_C(1) << 32) /* elements of the tensor in one dimension */
#define STRIDE_MAX    (UINT64_C(1) << 40) /* bytes from one row, plane ... to the next */
#define PROMOTION_MAX 3                   /* CU_TENSOR_MAP_L2_PROMOTION_L2_256B */
#define FILL_MAX      1                   /* CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA */
#define SWIZZLE_32B   1                   /* CU_TENSOR_MAP_SWIZZLE_32B */
#define PLAIN         0                   /* CU_TENSOR_MAP_INTERLEAVE_NONE */
#define BY_32_BYTES   2                   /* CU_TENSOR_MAP_INTERLEAVE_32B */

/* The size of an element, by CUtensorMapDataType. */
static const uint8_t element_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

/* How wide a box may be, in bytes, by CUtensorMapSwizzle. The first, no swizzle, sets no limit. */
static const unsigned swizzle_bytes[] = {BOX_MAX * 8, 32, 64, 128, 128, 128, 128};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* Whether this CUtensorMapDataType is a floating-point type. */
static bool is_float(unsigned type) {
  return type >= FLOAT_MIN;
}

/* Whether a box may take every `step`-th element of a dimension. */
static bool is_step(uint32_t step) {
  return step && step <= STEP_MAX;
}

/* Whether a tensor of `rank` dimensions can have such a tile: widths, strides, box and steps are in their ranges. The
 * strides, of all dimensions but the last, are in bytes and multiples of `alignment`. The steps of the dimensions
 * before `first_step` are ignored. */
static bool is_tile(unsigned rank, const uint64_t *widths, const uint64_t *strides, const uint32_t *box,
                    const uint32_t *steps, unsigned first_step, unsigned alignment) {
  for (unsigned i = 0; i < rank; i++)
    if (!widths[i] || widths[i] > WIDTH_MAX || !box[i] || box[i] > BOX_MAX || (i >= first_step && !is_step(steps[i])) ||
        (i + 1 < rank && (strides[i] % alignment || strides[i] >= STRIDE_MAX)))
      return false;
  return true;
}

/* Begin a call. It also fails if the device of the current context is older than Hopper. */
static CUresult enter_hopper(void) {
  struct context *context;
  CUresult result = enter(&context);
  if (result)
    return result;
  return process.state.shared->devices[context->device].major < HOPPER ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* Check the parameters, and write a map that holds only the address. */
EXPORT CUresult cuTensorMapEncodeTiled(void *map, unsigned type, uint32_t rank, void *address, const uint64_t *widths,
                                       const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                                       unsigned interleave, unsigned swizzle, unsigned promotion, unsigned fill) {
  CUresult result = enter_hopper();
  if (result)
    return result;
  unsigned alignment = interleave == BY_32_BYTES ? 32 : 16;
  if (!map || (uintptr_t)map % MAP_ALIGNED || type >= COUNT(element_bytes) || !rank || rank > RANK_MAX || !address ||
      (uintptr_t)address % alignment || !widths || (rank > 1 && !strides) || !box || !steps ||
      interleave > BY_32_BYTES || (interleave != PLAIN && rank < 3) || swizzle >= COUNT(swizzle_bytes) ||
      (interleave == BY_32_BYTES && swizzle != SWIZZLE_32B) || promotion > PROMOTION_MAX || fill > FILL_MAX ||
      (fill && !is_float(type)) || !is_tile(rank, widths, strides, box, steps, interleave == PLAIN ? 1 : 0, alignment))
    return CUDA_ERROR_INVALID_VALUE;
  unsigned width = box[0] * element_bytes[type]; /* of a row of the tile, in bytes */
  if (interleave == PLAIN && (width % 16 || width > swizzle_bytes[swizzle]))
    return CUDA_ERROR_INVALID_VALUE;
  memset(map, 0, MAP_BYTES);
  memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

/* The address is the only thing that a map holds here. */
EXPORT CUresult cuTensorMapReplaceAddress(void *map, void *address) {
  CUresult result = enter_hopper();
  if (result)
    return result;
  if (!map || (uintptr_t)map % MAP_ALIGNED || !address || (uintptr_t)address % 16)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}
