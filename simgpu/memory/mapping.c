/* Reserved addresses, and the physical memory that is mapped at them. CUDA's documentation tells what the exported
 * functions do; a comment at one tells only what is special here. */
#define _GNU_SOURCE
#include "simgpu/memory/vmm.h"

#include <stdlib.h>
#include <sys/mman.h>

#define RESERVATION_MAX (1ull << 46) /* bytes */
#define ALIGNMENT_MAX   (1ull << 40)

struct range {
  uintptr_t address;
  uint64_t bytes;
  struct mapping *mappings;
  struct range *next;
};
static struct range *ranges; /* guarded by vmm_lock */

/* With vmm_lock: the reservation that has all these bytes. NULL: there is none. */
static struct range *range_of(CUdeviceptr address, uint64_t bytes) {
  struct range *range = ranges;
  while (range &&
         !(address >= range->address && bytes <= range->bytes && address - range->address <= range->bytes - bytes))
    range = range->next;
  return range;
}

/* Reserve addresses at `at`, over what is mapped there; anywhere if `at` is NULL. They are readable and writable even
 * while nothing is mapped: work in flight under which a program unmaps memory must not crash the program. New calls
 * with such addresses are refused. MAP_FAILED: it failed. */
static void *reserve(uint64_t bytes, void *at) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
  return mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

/* Whether the address belongs to a reservation, with or without memory mapped there. */
bool is_reserved(uintptr_t address) {
  if (!__atomic_load_n(&ranges, __ATOMIC_RELAXED)) /* most programs reserve none: spare them the lock */
    return false;
  pthread_mutex_lock(&vmm_lock);
  bool reserved = range_of(address, 1);
  pthread_mutex_unlock(&vmm_lock);
  return reserved;
}

/* The hint is ignored: any address is as good. To get an aligned range, a longer one is reserved and cut at both ends.
 */
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) {
  CUresult result = ready();
  (void)hint;
  alignment = alignment > GRANULARITY ? alignment : GRANULARITY;
  if (result || !out || !bytes || bytes % GRANULARITY || bytes > RESERVATION_MAX || alignment > ALIGNMENT_MAX ||
      alignment & (alignment - 1) || flags)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  struct range *range = calloc(1, sizeof *range);
  char *area = range ? reserve(bytes + alignment, NULL) : MAP_FAILED;
  if (area == MAP_FAILED) {
    free(range);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  size_t before = (alignment - (uintptr_t)area % alignment) % alignment;
  if (before)
    munmap(area, before);
  if (alignment - before)
    munmap(area + before + bytes, alignment - before);
  range->address = (uintptr_t)area + before;
  range->bytes = bytes;
  pthread_mutex_lock(&vmm_lock);
  range->next = ranges;
  ranges = range;
  pthread_mutex_unlock(&vmm_lock);
  *out = range->address;
  return CUDA_SUCCESS;
}

/* Free a reservation: only a whole one, with nothing mapped. */
EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  CUresult result = ready();
  if (result)
    return result;
  result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&vmm_lock);
  for (struct range **link = &ranges; *link; link = &(*link)->next) {
    struct range *range = *link;
    if (range->address != address || range->bytes != bytes || range->mappings)
      continue;
    *link = range->next;
    munmap((void *)range->address, range->bytes);
    free(range);
    result = CUDA_SUCCESS;
    break;
  }
  pthread_mutex_unlock(&vmm_lock);
  return result;
}

/* Whether the mapping has any of these bytes. */
static bool overlaps(const struct mapping *mapping, uintptr_t address, uint64_t bytes) {
  return mapping->address < address + bytes && address < mapping->address + mapping->bytes;
}

/* With vmm_lock: map the first `bytes` bytes of physical memory at addresses of one reservation, where nothing may be
 * mapped yet. It fails if `physical` is NULL. No device has access to the mapping yet. */
static CUresult map(uintptr_t address, uint64_t bytes, struct physical *physical) {
  struct range *range = range_of(address, bytes);
  if (!range || !physical || bytes > physical->bytes)
    return CUDA_ERROR_INVALID_VALUE;
  for (const struct mapping *other = range->mappings; other; other = other->next)
    if (overlaps(other, address, bytes))
      return CUDA_ERROR_INVALID_VALUE;
  struct mapping *mapping = calloc(1, sizeof *mapping);
  if (!mapping || !file_map((void *)address, physical->fd, physical->offset, bytes)) {
    free(mapping);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *mapping = (struct mapping){.address = address, .bytes = bytes, .physical = physical, .next = range->mappings};
  struct block block = {.address = address,
                        .bytes = bytes,
                        .device = physical->device == SG_NONE ? 0 : physical->device,
                        .kind = physical->device == SG_NONE ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                        .source = BLOCK_MAPPED,
                        .in_file = true,
                        .no_access = true,
                        .owner = mapping};
  if (!add_block(block)) {
    reserve(bytes, (void *)address); /* undoes file_map */
    free(mapping);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  physical->mappings++;
  range->mappings = mapping;
  return CUDA_SUCCESS;
}

/* Map the front of physical memory: `offset` must be 0. Devices get access by cuMemSetAccess. */
EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
  CUresult result = ready();
  if (result || !bytes || bytes % GRANULARITY || address % GRANULARITY || offset || flags)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&vmm_lock);
  result = map(address, bytes, find_physical(handle));
  pthread_mutex_unlock(&vmm_lock);
  return result;
}

/* With vmm_lock: the sum of the mappings that lie wholly in this area. If it is `bytes`, the area consists of whole
 * mappings. */
static uint64_t mapped_bytes(const struct range *range, uintptr_t address, uint64_t bytes) {
  uint64_t sum = 0;
  for (const struct mapping *mapping = range->mappings; mapping; mapping = mapping->next)
    if (mapping->address >= address && mapping->address + mapping->bytes <= address + bytes)
      sum += mapping->bytes;
  return sum;
}

/* With vmm_lock: end the mapping in *link, and take it off the list. Its addresses stay reserved. If nothing else
 * refers to the physical memory, that ends too. */
static void unmap(struct mapping **link) {
  struct mapping *mapping = *link;
  struct block block;
  *link = mapping->next;
  take_block(mapping->address, &block);
  reserve(mapping->bytes, (void *)mapping->address);
  mapping->physical->mappings--;
  physical_end(mapping->physical);
  free(mapping);
}

/* Unmap all mappings in an area, which must consist of whole ones. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  CUresult result = ready();
  if (result)
    return result;
  pthread_mutex_lock(&vmm_lock);
  struct range *range = range_of(address, bytes);
  if (!range || !bytes || mapped_bytes(range, address, bytes) != bytes)
    result = CUDA_ERROR_INVALID_VALUE;
  for (struct mapping **link = result ? NULL : &range->mappings; !result && *link;)
    if (overlaps(*link, address, bytes))
      unmap(link);
    else
      link = &(*link)->next;
  pthread_mutex_unlock(&vmm_lock);
  return result;
}

/* --- access ------------------------------------------------------------------------------------------------------ */

/* With vmm_lock: set the access that a place (a device, or the last one: the host) has to a mapping. */
static void allow(struct mapping *mapping, uint32_t place, int flags) {
  struct block block;
  bool any = false;
  mapping->access[place] = flags;
  for (int n = 0; n <= SG_MAX_DEVICES; n++)
    any |= mapping->access[n] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (find_block(mapping->address, &block)) {
    block.no_access = !any;
    change_block(&block);
  }
}

/* Set the access to all mappings in an area, which must consist of whole ones. */
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *accesses, size_t count) {
  CUresult result = ready();
  if (result || !bytes || (count && !accesses))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&vmm_lock);
  struct range *range = range_of(address, bytes);
  if (!range || mapped_bytes(range, address, bytes) != bytes)
    result = CUDA_ERROR_INVALID_VALUE;
  for (size_t n = 0; !result && n < count; n++) {
    uint32_t place;
    result = location_place(&accesses[n].location, &place);
    for (struct mapping *mapping = range->mappings; !result && mapping; mapping = mapping->next)
      if (overlaps(mapping, address, bytes))
        allow(mapping, place, accesses[n].flags);
  }
  pthread_mutex_unlock(&vmm_lock);
  return result;
}

/* The access that cuMemSetAccess gave this location; none without such a call. */
EXPORT CUresult cuMemGetAccess(unsigned long long *out, const CUmemLocation *location, CUdeviceptr address) {
  uint32_t place;
  struct block block;
  CUresult result = ready();
  if (!result)
    result = out && location ? location_place(location, &place) : CUDA_ERROR_INVALID_VALUE;
  if (result)
    return result;
  pthread_mutex_lock(&vmm_lock);
  if (find_block(address, &block) && block.source == BLOCK_MAPPED)
    *out = (unsigned long long)((const struct mapping *)block.owner)->access[place];
  else
    result = CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_unlock(&vmm_lock);
  return result;
}
