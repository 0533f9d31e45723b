/* Arrays and mipmapped arrays: rows and slices without gaps. CUDA's documentation tells what the exported functions
 * do; a comment at one tells only what is special here. */
#define _GNU_SOURCE
#include "simgpu/memory/array.h"

#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 65536      /* of memory that is mapped into an array later */
#define SIDE_MAX  (1u << 20) /* elements of one dimension */

/* The bytes of an array: width x height x depth x channels x bytes of a channel. A dimension of 0 counts as 1. The
 * depth of a layered array or cubemap is its number of layers (a cubemap has 6). */
size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  size_t height = descriptor->Height ? descriptor->Height : 1, depth = descriptor->Depth ? descriptor->Depth : 1;
  return descriptor->Width * height * depth * array_element(descriptor->Format, descriptor->NumChannels);
}

/* The descriptor of one level of a mipmap, in which level 0 is the whole. Each level has half the width, height and
 * depth of the one before, rounded down, at least 1. Layers are not halved. */
static CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned level) {
  CUDA_ARRAY3D_DESCRIPTOR part = *whole;
  bool layers = whole->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP);
  part.Width = whole->Width >> level ? whole->Width >> level : 1;
  part.Height = whole->Height && !(whole->Height >> level) ? 1 : whole->Height >> level;
  part.Depth = layers ? whole->Depth : whole->Depth && !(whole->Depth >> level) ? 1 : whole->Depth >> level;
  return part;
}

/* The bytes of a mipmap with `levels` levels: the sum of theirs. */
size_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
  size_t sum = 0;
  for (unsigned n = 0; n < levels; n++) {
    CUDA_ARRAY3D_DESCRIPTOR level = level_of(descriptor, n);
    sum += array_bytes(&level);
  }
  return sum;
}

/* The size in bytes of one element: all its channels. `format` is a CUarray_format. 0: the format is not simulated, or
 * it never has that many channels. */
size_t array_element(unsigned format, unsigned channels) {
  static const struct {
    unsigned format;
    size_t channel_bytes;
    unsigned fixed_channels; /* 0: 1, 2 or 4, as the program says */
  } formats[] = {
      {0x01, 1, 0}, {0x02, 2, 0}, {0x03, 4, 0}, /* UNSIGNED_INT8, 16, 32 */
      {0x08, 1, 0}, {0x09, 2, 0}, {0x0a, 4, 0}, /* SIGNED_INT8, 16, 32 */
      {0x10, 2, 0}, {0x20, 4, 0},               /* HALF, FLOAT */
      {0xc0, 1, 1}, {0xc1, 1, 2}, {0xc2, 1, 4}, /* UNORM_INT8X1, X2, X4 */
      {0xc3, 2, 1}, {0xc4, 2, 2}, {0xc5, 2, 4}, /* UNORM_INT16X1, X2, X4 */
      {0xc6, 1, 1}, {0xc7, 1, 2}, {0xc8, 1, 4}, /* SNORM_INT8X1, X2, X4 */
      {0xc9, 2, 1}, {0xca, 2, 2}, {0xcb, 2, 4}, /* SNORM_INT16X1, X2, X4 */
  };
  for (size_t n = 0; n < sizeof formats / sizeof *formats; n++)
    if (formats[n].format == format && (!formats[n].fixed_channels || formats[n].fixed_channels == channels))
      return channels == 1 || channels == 2 || channels == 4 ? formats[n].channel_bytes * channels : 0;
  return 0;
}

/* May there be such an array: do its sizes, layers and channels fit together, and is its format simulated? */
static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  if (!descriptor || !descriptor->Width || descriptor->Width > SIDE_MAX || descriptor->Height > SIDE_MAX ||
      descriptor->Depth > SIDE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  bool layered = descriptor->Flags & ARRAY_LAYERED, cube = descriptor->Flags & ARRAY_CUBEMAP;
  if ((layered && !descriptor->Depth) || (!layered && descriptor->Depth && !descriptor->Height) ||
      (cube && (descriptor->Width != descriptor->Height || !descriptor->Depth ||
                (layered ? descriptor->Depth % 6 : descriptor->Depth != 6))))
    return CUDA_ERROR_INVALID_VALUE;
  if (descriptor->NumChannels != 1 && descriptor->NumChannels != 2 && descriptor->NumChannels != 4)
    return CUDA_ERROR_INVALID_VALUE;
  return array_element(descriptor->Format, descriptor->NumChannels) ? CUDA_SUCCESS
                                                                    : not_supported("arrays of this format");
}

/* Add a block for an array's bytes, and copy it to `block`. The bytes are mapped from the file `fd` at `offset`, or are
 * new if `fd` is -1. They are charged unless they count elsewhere: in that file, or as the memory that will be mapped
 * into the array later (`flags`: it is sparse, or its mapping is deferred). */
static CUresult allocate(struct context *context, size_t bytes, unsigned flags, int fd, uint64_t offset,
                         struct block *block) {
  const uint64_t page = 4096, lead = fd < 0 ? 0 : offset % page;
  size_t charged = fd >= 0 || flags & (ARRAY_SPARSE | ARRAY_DEFERRED_MAPPING) ? 0 : bytes;
  CUresult result = charged ? charge(context, charged) : CUDA_SUCCESS;
  if (result)
    return result;
  char *at = fd >= 0 ? file_map(NULL, fd, offset - lead, bytes + lead)
                     : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool mapped = at && (void *)at != MAP_FAILED;
  *block = (struct block){.address = (uintptr_t)at + lead,
                          .bytes = bytes,
                          .charged = charged,
                          .lead = lead,
                          .context = context,
                          .device = context->device,
                          .kind = CU_MEMORYTYPE_ARRAY,
                          .source = BLOCK_ARRAY,
                          .in_file = fd >= 0};
  if (mapped && add_block(*block) && find_block(block->address, block))
    return CUDA_SUCCESS;
  if (mapped)
    munmap(at, bytes + lead);
  if (charged)
    refund(context, charged);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Make the handle of an array in this block. NULL: there is no memory. */
static struct array *array_new(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                               const struct block *block) {
  struct array *array = handle_new(ARRAY_HANDLE, sizeof *array);
  if (!array)
    return NULL;
  array->descriptor = *descriptor;
  array->context = context;
  array->address = block->address;
  array->block = block->id;
  return array;
}

/* The array of a handle. NULL: there is none. When the array's context has ended, its bytes are freed and only the
 * handle is left. */
static struct array *find(const void *handle) {
  struct block block;
  struct array *array = (struct array *)handle;
  return is_handle(handle, ARRAY_HANDLE) && find_block(array->address, &block) && block.id == array->block ? array
                                                                                                           : NULL;
}

/* Where an array's bytes are. False: there is no such array. */
bool find_array(const void *handle, struct extent *extent) {
  const struct array *array = find(handle);
  if (!array)
    return false;
  const CUDA_ARRAY3D_DESCRIPTOR *descriptor = &array->descriptor;
  *extent = (struct extent){
      .address = array->address,
      .pitch = descriptor->Width * array_element(descriptor->Format, descriptor->NumChannels),
      .height = descriptor->Height ? descriptor->Height : 1,
      .depth = descriptor->Depth ? descriptor->Depth : 1,
  };
  return true;
}

/* --- arrays ------------------------------------------------------------------------------------------------------ */

/* Begin a call that may synchronise. A capture that forbids such calls is invalidated, and the call is refused. */
static CUresult enter_unsafe(struct context **context) {
  CUresult result = enter(context);
  return result ? result : unsafe_call();
}

/* The bytes are charged to the current context, unless memory is mapped into the array later: see `allocate`. */
EXPORT CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  struct context *context;
  struct block block;
  CUresult result = enter_unsafe(&context);
  if (!result)
    result = out ? check(descriptor) : CUDA_ERROR_INVALID_VALUE;
  if (!result)
    result = allocate(context, array_bytes(descriptor), descriptor->Flags, /* fd */ -1, 0, &block);
  if (result)
    return result;
  *out = array_new(context, descriptor, &block);
  if (!*out && take_block(block.address, &block))
    release_block(&block);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
  if (!descriptor)
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR whole = {.Width = descriptor->Width,
                                   .Height = descriptor->Height,
                                   .Format = descriptor->Format,
                                   .NumChannels = descriptor->NumChannels};
  return cuArray3DCreate_v2(out, &whole);
}

EXPORT CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor) {
  if (!descriptor)
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR whole = {descriptor->Width,  descriptor->Height,      descriptor->Depth,
                                   descriptor->Format, descriptor->NumChannels, descriptor->Flags};
  return cuArray3DCreate_v2(out, &whole);
}

EXPORT CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor) {
  if (!descriptor)
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY_DESCRIPTOR wide = {descriptor->Width, descriptor->Height, descriptor->Format, descriptor->NumChannels};
  return cuArrayCreate_v2(out, &wide);
}

/* Free an array's bytes, but not its handle. Like a free of linear memory, it waits for the work that may use them. */
static CUresult free_bytes(uintptr_t address, struct context *context) {
  struct block block;
  CUresult result = context->slot == SG_NONE ? CUDA_SUCCESS : wait_context(context);
  if (!result && take_block(address, &block))
    release_block(&block);
  return result;
}

/* Wait for the work of the array's context, then free the array. A level of a mipmap goes only with the mipmap. */
EXPORT CUresult cuArrayDestroy(CUarray handle) {
  struct context *context;
  CUresult result = enter_unsafe(&context);
  struct array *array = result ? NULL : find(handle);
  if (result || !array || array->mipmap)
    return result ? result : CUDA_ERROR_INVALID_HANDLE;
  result = free_bytes(array->address, array->context);
  if (!result)
    handle_free(array);
  return result;
}

/* Write an array's descriptor to `whole`. `out`: where the program wants the answer; if it is NULL, the call fails. */
static CUresult describe(CUarray handle, const void *out, CUDA_ARRAY3D_DESCRIPTOR *whole) {
  CUresult result = ready();
  const struct array *array = result ? NULL : find(handle);
  if (result || !out || !array)
    return result ? result : array ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
  *whole = array->descriptor;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle) {
  return describe(handle, out, out);
}

EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR whole;
  CUresult result = describe(handle, out, &whole);
  if (result)
    return result;
  *out = (CUDA_ARRAY_DESCRIPTOR){whole.Width, whole.Height, whole.Format, whole.NumChannels};
  return CUDA_SUCCESS;
}

EXPORT CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *out, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR whole;
  CUresult result = describe(handle, out, &whole);
  if (result)
    return result;
  *out = (CUDA_ARRAY3D_DESCRIPTOR_v1){(unsigned)whole.Width, (unsigned)whole.Height, (unsigned)whole.Depth,
                                      whole.Format,          whole.NumChannels,      whole.Flags};
  return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *out, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR whole;
  CUresult result = describe(handle, out, &whole);
  if (result)
    return result;
  *out = (CUDA_ARRAY_DESCRIPTOR_v1){(unsigned)whole.Width, (unsigned)whole.Height, whole.Format, whole.NumChannels};
  return CUDA_SUCCESS;
}

/* --- mipmaps ----------------------------------------------------------------------------------------------------- */

/* Free the handles of a mipmap and of its levels, but not their bytes. */
static void free_mipmap_handles(struct mipmap *mipmap) {
  for (unsigned n = 0; n < mipmap->count; n++)
    if (mipmap->levels[n])
      handle_free(mipmap->levels[n]);
  handle_free(mipmap);
}

/* Make a mipmap, mapped from the file `fd` at `offset`; -1: of new memory, which is charged. All levels share one
 * block. There are at most as many levels as it takes to halve the longest side to 1. */
CUresult mipmap_new(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, int fd,
                    uint64_t offset, struct mipmap **out) {
  struct block block;
  CUresult result = check(descriptor);
  if (result)
    return result;
  size_t longest = descriptor->Width > descriptor->Height ? descriptor->Width : descriptor->Height;
  if (!(descriptor->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)) && descriptor->Depth > longest)
    longest = descriptor->Depth;
  unsigned halvings = 64 - (unsigned)__builtin_clzll(longest); /* the number of its binary digits */
  levels = levels < 1 ? 1 : levels > halvings ? halvings : levels;
  result = allocate(context, mipmap_bytes(descriptor, levels), descriptor->Flags, fd, offset, &block);
  struct mipmap *mipmap = result ? NULL : handle_new(MIPMAP_HANDLE, sizeof *mipmap);
  if (result)
    return result;
  bool complete = mipmap;
  uintptr_t address = block.address;
  for (unsigned n = 0; complete && n < levels; n++) {
    CUDA_ARRAY3D_DESCRIPTOR level = level_of(descriptor, n);
    struct array *array = mipmap->levels[n] = array_new(context, &level, &block);
    mipmap->count = n + 1;
    complete = array;
    if (!complete)
      break;
    array->mipmap = mipmap;
    array->address = address;
    address += array_bytes(&level);
  }
  if (!complete) {
    if (mipmap)
      free_mipmap_handles(mipmap);
    if (take_block(block.address, &block))
      release_block(&block);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  mipmap->descriptor = *descriptor;
  *out = mipmap;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                       unsigned levels) {
  struct context *context;
  CUresult result = enter_unsafe(&context);
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  return mipmap_new(context, descriptor, levels, /* fd */ -1, 0, out);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
  struct context *context;
  CUresult result = enter_unsafe(&context);
  if (result || !is_handle(mipmap, MIPMAP_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_HANDLE;
  const struct array *first = find(mipmap->levels[0]);
  if (first)
    result = free_bytes(first->address, first->context);
  if (!result)
    free_mipmap_handles(mipmap);
  return result;
}

EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray mipmap, unsigned level) {
  CUresult result = ready();
  if (result || !is_handle(mipmap, MIPMAP_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_HANDLE;
  if (!out || level >= mipmap->count)
    return CUDA_ERROR_INVALID_VALUE;
  *out = mipmap->levels[level];
  return CUDA_SUCCESS;
}

/* --- memory that would have to be mapped into them --------------------------------------------------------------- */

/* Size and alignment of the memory that is mapped into an array later. An array with memory of its own has none. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, unsigned flags, size_t bytes) {
  if (!out || !(flags & ARRAY_DEFERRED_MAPPING))
    return CUDA_ERROR_INVALID_VALUE;
  *out =
      (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, .alignment = ALIGNMENT};
  return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle, CUdevice ordinal) {
  CUresult result = ready();
  const struct array *array = result ? NULL : find(handle);
  (void)ordinal;
  if (result || !array)
    return result ? result : CUDA_ERROR_INVALID_HANDLE;
  return requirements(out, array->descriptor.Flags, array_bytes(&array->descriptor));
}

EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray mipmap,
                                                      CUdevice ordinal) {
  CUresult result = ready();
  (void)ordinal;
  if (result || !is_handle(mipmap, MIPMAP_HANDLE))
    return result ? result : CUDA_ERROR_INVALID_HANDLE;
  return requirements(out, mipmap->descriptor.Flags, mipmap_bytes(&mipmap->descriptor, mipmap->count));
}

/* cuMemMapArrayAsync, which maps tiles, is not simulated. */
EXPORT CUresult cuArrayGetSparseProperties(void *out, CUarray handle) {
  CUresult result = ready();
  const struct array *array = result ? NULL : find(handle);
  if (result || !out || !array || !(array->descriptor.Flags & ARRAY_SPARSE))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  return not_supported("tiles of sparse arrays");
}

EXPORT CUresult cuMipmappedArrayGetSparseProperties(void *out, CUmipmappedArray mipmap) {
  CUresult result = ready();
  if (result || !out || !is_handle(mipmap, MIPMAP_HANDLE) || !(mipmap->descriptor.Flags & ARRAY_SPARSE))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  return not_supported("tiles of sparse arrays");
}
