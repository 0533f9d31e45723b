/* Attributes of an address. CUDA's documentation tells what the exported functions do; a comment at one tells only
 * what is special here. */
#include "simgpu/api/process.h"

#include <string.h>

enum { /* CUpointer_attribute, those with rules of their own */
       POINTER_CONTEXT = 1,
       POINTER_HOST_ADDRESS = 4,
       POINTER_SYNC_MEMOPS = 6,
       POINTER_ORDINAL = 9,
};
#define DEVICE_INVALID (-2) /* CU_DEVICE_INVALID */

/* Find the block of an address that a program may know: not an array. */
static bool find_pointer(CUdeviceptr address, struct block *block) {
  return find_block(address, block) && block->source != BLOCK_ARRAY;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  struct context *context;
  struct block block;
  CUresult result = enter(&context);
  if (result || !find_pointer(address, &block))
    return result ? result : CUDA_ERROR_NOT_FOUND;
  if (base)
    *base = block.address;
  if (bytes)
    *bytes = block.bytes;
  return CUDA_SUCCESS;
}

/* Write a CUpointer_attribute of the block at an address. `out` has the attribute's type. */
static CUresult attribute_of(const struct block *block, int attribute, CUdeviceptr address, void *out) {
  switch (attribute) {
  case POINTER_CONTEXT:
    *(CUcontext *)out = block->context;
    break;
  case 2: /* type of memory */
    *(unsigned *)out = block->kind == CU_MEMORYTYPE_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    break;
  case 3: /* address on the device */
    *(CUdeviceptr *)out = address;
    break;
  case POINTER_HOST_ADDRESS:
    *(void **)out = block->kind == CU_MEMORYTYPE_DEVICE ? NULL : (void *)(uintptr_t)address;
    break;
  case POINTER_SYNC_MEMOPS:
    *(unsigned *)out = 1;
    break;
  case 7: /* id of the block */
    *(unsigned long long *)out = block->id;
    break;
  case 8: /* managed */
    *(unsigned *)out = block->kind == CU_MEMORYTYPE_UNIFIED;
    break;
  case POINTER_ORDINAL: /* of the device; 0 if the process does not see it */
    *(int *)out = 0;
    device_ordinal(block->device, out);
    break;
  case 10: /* can be shared by legacy IPC */
    *(int *)out = block->source == BLOCK_LINEAR && block->kind == CU_MEMORYTYPE_DEVICE;
    break;
  case 11: /* begin of the block */
    *(CUdeviceptr *)out = block->address;
    break;
  case 12: /* its size */
    *(size_t *)out = block->bytes;
    break;
  case 13: /* mapped */
    *(unsigned *)out = 1;
    break;
  case 14: /* allowed handle types */
    *(unsigned *)out = 0;
    break;
  case 15: /* GPU direct RDMA */
    *(unsigned *)out = 0;
    break;
  case 16: /* access: read and write */
    *(unsigned *)out = 3;
    break;
  case 17: /* pool */
    *(void **)out = pool_of(block);
    break;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

/* Device memory has no host address, and host memory no context: these questions fail. */
EXPORT CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address) {
  struct block block;
  CUresult result = ready();
  if (result || !out || !find_pointer(address, &block) ||
      (attribute == POINTER_HOST_ADDRESS && block.kind == CU_MEMORYTYPE_DEVICE) ||
      (attribute == POINTER_CONTEXT && block.kind == CU_MEMORYTYPE_HOST))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  return attribute_of(&block, attribute, address, out);
}

/* An unknown address is no error here: its attributes are zero, but its device is CU_DEVICE_INVALID. */
EXPORT CUresult cuPointerGetAttributes(unsigned count, const int *attributes, void **out, CUdeviceptr address) {
  static const uint8_t bytes[] = {0, 8, 4, 8, 8, 0, 4, 8, 4, 4, 4, 8, 8, 4, 4, 4, 4, 8}; /* of each attribute's type */
  struct block block;
  CUresult result = ready();
  if (result || !attributes || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  bool found = find_pointer(address, &block);
  for (unsigned n = 0; !result && n < count; n++) {
    int attribute = attributes[n];
    if (found)
      result = attribute_of(&block, attribute, address, out[n]);
    else if (attribute > 0 && (size_t)attribute < sizeof bytes)
      memset(out[n], 0, bytes[attribute]);
    if (!found && attribute == POINTER_ORDINAL)
      *(int *)out[n] = DEVICE_INVALID;
  }
  return result;
}

/* Only SYNC_MEMOPS can be set, and setting it changes nothing. */
EXPORT CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
  struct block block;
  bool settable = value && attribute == POINTER_SYNC_MEMOPS && find_pointer(address, &block);
  return settable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
