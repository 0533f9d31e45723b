/* Physical memory: makes it, counts references to it, hands it to other processes. CUDA's documentation tells what
 * the exported functions do; a comment at one tells only what is special here. */
#define _GNU_SOURCE
#include "simgpu/memory/vmm.h"

#include <fcntl.h>
#include <unistd.h>

pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct physical *all; /* guarded by vmm_lock */

/* The physical memory behind a handle. NULL: there is none, or all references to it were dropped. */
struct physical *find_physical(CUmemGenericAllocationHandle handle) {
  struct physical *physical = (struct physical *)(uintptr_t)handle;
  return is_handle(physical, PHYSICAL_HANDLE) ? physical : NULL;
}

/* The device that memory with these properties is made on; SG_NONE: on the host. */
static CUresult device_of(const CUmemAllocationProp *prop, uint32_t *device) {
  CUresult result = ready();
  if (result || !prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  result = location_place(&prop->location, device);
  if (*device == SG_MAX_DEVICES)
    *device = SG_NONE;
  return result;
}

/* Make the record, with one reference, of memory that is charged already. NULL: there is no memory for it. The caller
 * adds the file. */
static struct physical *physical_new(const CUmemAllocationProp *prop, uint32_t device, uint64_t bytes) {
  struct physical *physical = handle_new(PHYSICAL_HANDLE, sizeof *physical);
  if (!physical)
    return NULL;
  physical->prop = *prop;
  physical->device = device;
  physical->bytes = bytes;
  physical->references = 1;
  physical->piece = SG_NONE;
  physical->fd = -1;
  return physical;
}

/* Add physical memory to the list of all. */
static void enlist(struct physical *physical) {
  pthread_mutex_lock(&vmm_lock);
  physical->next = all;
  all = physical;
  pthread_mutex_unlock(&vmm_lock);
}

/* With the lock: end the memory if no reference and no mapping is left. The caller does not use it afterwards. */
void physical_end(struct physical *physical) {
  if (physical->references)
    return;
  physical->handle.type = 0; /* it may still be mapped, but no handle names it any more */
  if (physical->mappings)
    return;
  for (struct physical **link = &all; *link; link = &(*link)->next)
    if (*link == physical) {
      *link = physical->next;
      break;
    }
  if (physical->own_file)
    close(physical->fd);
  else
    file_forget(physical->fd, physical->offset, physical->bytes);
  if (physical->piece != SG_NONE)
    drop_shared(physical->piece);
  else if (physical->device != SG_NONE)
    refund_process(physical->device, SG_PHYSICAL, physical->bytes);
  physical->handle.type = PHYSICAL_HANDLE; /* handle_free goes by it */
  handle_free(physical);
}

/* Take the pages: from a file of their own if another process may get them, else from the arena. False: it failed. */
static bool take_pages(struct physical *physical) {
  struct exported exported = {.magic = EXPORTED_MAGIC,
                              .kind = EXPORTED_PHYSICAL,
                              .device = physical->device == SG_NONE ? 0 : physical->device,
                              .bytes = physical->bytes,
                              .piece = SG_NONE,
                              .location = physical->prop.location.type};
  physical->own_file = physical->prop.requestedHandleTypes;
  physical->fd = physical->own_file ? exported_file("simgpu-physical", physical->bytes, &exported)
                                    : arena_take(physical->bytes, &physical->offset);
  return physical->fd >= 0;
}

/* The bytes are charged to the process; host memory is not charged. */
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                            unsigned long long flags) {
  uint32_t device;
  CUresult result = device_of(prop, &device);
  if (result || !out || !bytes || bytes % GRANULARITY || flags)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return not_supported("physical memory with handles other than file descriptors");
  if (device != SG_NONE)
    result = charge_process(device, SG_PHYSICAL, bytes);
  if (result)
    return result;
  struct physical *physical = physical_new(prop, device, bytes);
  if (!physical || !take_pages(physical)) {
    if (physical)
      handle_free(physical);
    if (device != SG_NONE)
      refund_process(device, SG_PHYSICAL, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  enlist(physical);
  *out = (uintptr_t)physical;
  return CUDA_SUCCESS;
}

/* Drop a reference. The memory ends with its last reference or mapping. */
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUresult result = ready();
  if (result)
    return result;
  pthread_mutex_lock(&vmm_lock);
  struct physical *physical = find_physical(handle);
  if (physical) {
    physical->references--;
    physical_end(physical);
  }
  pthread_mutex_unlock(&vmm_lock);
  return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The handle of the memory mapped there, even if all its references were gone. */
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
  CUresult result = ready();
  struct block block;
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&vmm_lock);
  if (find_block((uintptr_t)address, &block) && block.source == BLOCK_MAPPED) {
    struct physical *physical = ((struct mapping *)block.owner)->physical;
    physical->references++;
    physical->handle.type = PHYSICAL_HANDLE;
    *out = (uintptr_t)physical;
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  pthread_mutex_unlock(&vmm_lock);
  return result;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, int option) {
  uint32_t device;
  CUresult result = device_of(prop, &device);
  if (result || !out || option < 0 || option > 1)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *out = GRANULARITY;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle) {
  CUresult result = ready();
  const struct physical *physical = find_physical(handle);
  if (result || !out || !physical)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *out = physical->prop;
  return CUDA_SUCCESS;
}

/* --- between processes ------------------------------------------------------------------------------------------- */

/* The first export of device memory makes a piece of it, which other processes may hold. The descriptor is a copy,
 * which the caller closes. */
EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                             unsigned long long flags) {
  CUresult result = ready();
  if (result || !out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&vmm_lock);
  struct physical *physical = find_physical(handle);
  struct exported exported;
  if (!physical || !physical->own_file)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (physical->device != SG_NONE && physical->piece == SG_NONE)
    result = exported_read(physical->fd, EXPORTED_PHYSICAL, &exported) ? charge_shared(physical->fd, &exported)
                                                                       : CUDA_ERROR_OPERATING_SYSTEM;
  if (!result && physical->device != SG_NONE && physical->piece == SG_NONE) {
    physical->piece = exported.piece;
    physical->id = exported.id;
  }
  int fd = result ? -1 : fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
  pthread_mutex_unlock(&vmm_lock);
  if (!result && fd < 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  if (!result)
    *(int *)out = fd;
  return result;
}

/* Add a reference to physical memory that this process has already, found by its piece: a process holds a piece only
 * once. NULL: it does not have it. */
static struct physical *retain_known(const struct exported *exported) {
  pthread_mutex_lock(&vmm_lock);
  struct physical *physical = all;
  while (physical && (physical->piece == SG_NONE || physical->piece != exported->piece || physical->id != exported->id))
    physical = physical->next;
  if (physical) {
    physical->references++;
    physical->handle.type = PHYSICAL_HANDLE;
  }
  pthread_mutex_unlock(&vmm_lock);
  return physical;
}

/* Make a reference to the memory behind the descriptor that another process has exported. This process becomes a holder
 * of the piece, if it is not one; host memory is no piece, and is not counted. The descriptor stays the caller's. */
static CUresult import(int fd, struct physical **out) {
  struct exported exported;
  if (!exported_read(fd, EXPORTED_PHYSICAL, &exported))
    return CUDA_ERROR_INVALID_VALUE;
  bool host = exported.location != CU_MEM_LOCATION_TYPE_DEVICE;
  if (!host && (*out = retain_known(&exported)))
    return CUDA_SUCCESS;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = exported.location}};
  if (!host && device_ordinal(exported.device, &prop.location.id))
    return CUDA_ERROR_INVALID_DEVICE;
  CUresult result = host ? CUDA_SUCCESS : hold_shared(fd, &exported);
  if (result)
    return result;
  struct physical *physical = physical_new(&prop, host ? SG_NONE : exported.device, exported.bytes);
  int own = physical ? fcntl(fd, F_DUPFD_CLOEXEC, 512) : -1;
  if (own < 0) {
    if (physical)
      handle_free(physical);
    if (!host)
      drop_shared(exported.piece);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  physical->fd = own;
  physical->own_file = true;
  physical->piece = host ? SG_NONE : exported.piece;
  physical->id = exported.id;
  enlist(physical);
  *out = physical;
  return CUDA_SUCCESS;
}

/* The caller keeps its descriptor. */
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle, int type) {
  CUresult result = ready();
  struct physical *physical;
  if (result || !out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  result = import((int)(intptr_t)handle, &physical);
  if (!result)
    *out = (uintptr_t)physical;
  return result;
}
