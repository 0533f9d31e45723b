/*
 * Wrappers for virtual memory management: physical memory is made (cuMemCreate), mapped at addresses of the program's
 * choice, and freed when neither a handle nor a mapping is left. It is charged to its device from its making to its
 * end, so handles and mappings are counted. The driver may give the number of a released handle to new memory while the
 * old memory is still mapped, so each memory gets a number of our own.
 *
 * The allocation table has three kinds of rows for this: the memory under our number (SP_MEMORY_CHUNK), which has the
 * charge and counts references; its handles; and its mappings. The last two have our number as their `owner`.
 *
 * Imported memory belongs to its exporter: it is not charged, and calls on its handles and mappings pass.
 *
 * A wrapper runs in the place of the driver's function of its name, and calls that function as `real`, through SP_CALL
 * (interpose/intercept.h).
 */
#include "hook/memory/charge.h"

/* Drop a reference to the memory with that number; the last one ends its charge. The caller holds the lock. */
static void drop_reference(struct sp_allocation_table *table, uint64_t number) {
  struct sp_allocation *chunk = sp_allocations_find(table, SP_MEMORY_CHUNK, number), taken;
  if (chunk != NULL && --chunk->references == 0) {
    sp_allocations_take(table, chunk, &taken);
    sp_memory_uncharge(&taken);
  }
}

/* Note the memory of `bytes` that was made on `device`: a row with its charge, under a number of our own, and a row for
 * its handle. */
static void note_memory(uint64_t handle, uint64_t bytes, int device) {
  struct sp_allocation_table *table = sp_allocations_lock();
  if (table == NULL) {
    return;
  }
  struct sp_allocation chunk = {.key = ++table->next_number,
                                .bytes = bytes,
                                .references = 1,
                                .device_ordinal = (int16_t)device,
                                .kind = SP_MEMORY_CHUNK};
  struct sp_allocation handle_row = {
      .key = handle, .owner = chunk.key, .references = 1, .device_ordinal = (int16_t)device, .kind = SP_MEMORY_HANDLE};
  sp_allocations_insert(table, &chunk);
  sp_allocations_insert(table, &handle_row);
  sp_allocations_unlock(table);
}

/* Physical memory is charged if it is made on a device; memory of the host is not. */
SP_WRAPPER(cuMemCreate,
           (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop,
            unsigned long long flags),
           (handle, bytes, prop, flags)) {
  bool charged = prop != NULL && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  int device = charged ? prop->location.id : SP_NO_DEVICE;
  CUresult result;
  if (!sp_memory_reserve(device, bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  SP_CALL(result, real(handle, bytes, prop, flags));
  if (result != CUDA_SUCCESS) {
    sp_memory_rollback(device, bytes);
  } else if (charged) {
    note_memory(*handle, bytes, device);
  }
  return result;
}

/* The handle is about to be released: drop a reference to it; *released is its row after that. The last one removes the
 * row, before the driver can give the number to another thread. False: we do not know the handle. */
static bool release_handle(uint64_t handle, struct sp_allocation *released) {
  struct sp_allocation_table *table = sp_allocations_lock();
  if (table == NULL) {
    return false;
  }
  struct sp_allocation *row = sp_allocations_find(table, SP_MEMORY_HANDLE, handle);
  if (row != NULL && --row->references == 0) {
    sp_allocations_take(table, row, released);
  } else if (row != NULL) {
    *released = *row;
  }
  sp_allocations_unlock(table);
  return row != NULL;
}

/* The driver has released the handle (`success`), or has refused. On success the last reference to the handle also
 * drops the handle's reference to the memory. On a failure the reference to the handle comes back. `released`: from
 * release_handle. */
static void conclude_release(struct sp_allocation *released, bool success) {
  struct sp_allocation_table *table = sp_allocations_lock();
  if (table == NULL) {
    return;
  }
  bool last = released->references == 0;
  if (last && success) {
    drop_reference(table, released->owner);
  } else if (last) {
    released->references = 1;
    sp_allocations_insert(table, released);
  } else if (!success) {
    struct sp_allocation *row = sp_allocations_find(table, SP_MEMORY_HANDLE, released->key);
    if (row != NULL) {
      row->references++;
    }
  }
  sp_allocations_unlock(table);
}

/* The memory stays while it is mapped. */
SP_WRAPPER(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle)) {
  struct sp_allocation released;
  bool ours = release_handle(handle, &released);
  CUresult result;
  SP_CALL(result, real(handle));
  if (ours) {
    conclude_release(&released, result == CUDA_SUCCESS);
  }
  return result;
}

/* Note that the memory of `handle` is mapped at `address`, `bytes` long: the mapping gets a row, and the memory one
 * more reference. The row's owner is our number of the memory, which is in the handle's row; 0 if we do not know the
 * handle. */
static void note_mapping(uint64_t address, uint64_t bytes, uint64_t handle) {
  struct sp_allocation_table *table = sp_allocations_lock();
  if (table == NULL) {
    return;
  }
  struct sp_allocation *handle_row = sp_allocations_find(table, SP_MEMORY_HANDLE, handle);
  struct sp_allocation mapping = {
      .key = address, .bytes = bytes, .owner = handle_row != NULL ? handle_row->owner : 0, .kind = SP_MEMORY_MAPPING};
  struct sp_allocation *chunk = sp_allocations_find(table, SP_MEMORY_CHUNK, mapping.owner);
  if (chunk != NULL) {
    chunk->references++;
  }
  sp_allocations_insert(table, &mapping);
  sp_allocations_unlock(table);
}

/* A mapping takes no memory, so it is not charged. Without room for its row it is not noted. */
SP_WRAPPER(cuMemMap,
           (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
            unsigned long long flags),
           (address, bytes, offset, handle, flags)) {
  bool remembered = sp_allocations_room();
  CUresult result;
  SP_CALL(result, real(address, bytes, offset, handle, flags));
  if (remembered && result == CUDA_SUCCESS) {
    note_mapping(address, bytes, handle);
  }
  return result;
}

/* Any mapping that begins in [from, end), or NULL, by a search of all rows. Called only if no known mapping begins
 * where one should, because we have not seen the call that made it. The caller holds the lock. */
static struct sp_allocation *mapping_in(struct sp_allocation_table *table, uint64_t from, uint64_t end) {
  for (uint64_t index = 0; index < table->row_count; index++) {
    struct sp_allocation *row = &table->rows[index];
    if (row->key >= from && row->key < end && row->kind == SP_MEMORY_MAPPING) {
      return row;
    }
  }
  return NULL;
}

/* The driver has unmapped [from, end), which may have been several mappings: remove their rows, each with its reference
 * to the memory. The rows may be removed after the call: the program chooses the addresses of its mappings, and maps
 * nothing there before the call has returned. */
static void forget_mappings(uint64_t from, uint64_t end) {
  struct sp_allocation_table *table = sp_allocations_lock();
  if (table == NULL) {
    return;
  }
  for (uint64_t at = from; at < end;) {
    struct sp_allocation *row = sp_allocations_find(table, SP_MEMORY_MAPPING, at), taken;
    if (row == NULL && (row = mapping_in(table, from, end)) == NULL) {
      break;
    }
    sp_allocations_take(table, row, &taken);
    if (taken.owner != 0) {
      drop_reference(table, taken.owner);
    }
    if (taken.key == at) { /* else the search of all rows has found it: look for more of them */
      at += taken.bytes != 0 ? taken.bytes : 1;
    }
  }
  sp_allocations_unlock(table);
}

/* The last mapping of memory without a handle ends its charge. */
SP_WRAPPER(cuMemUnmap, (CUdeviceptr address, size_t bytes), (address, bytes)) {
  CUresult result;
  SP_CALL(result, real(address, bytes));
  if (result == CUDA_SUCCESS) {
    forget_mappings(address, address + bytes);
  }
  return result;
}

/* The driver has returned `handle` for the memory that is mapped at `address`. If we know the handle, it has one more
 * reference; else it gets a row, and the memory one more reference, if we know the memory. */
static void note_handle(uint64_t handle, uint64_t address) {
  struct sp_allocation_table *table = sp_allocations_lock();
  if (table == NULL) {
    return;
  }
  struct sp_allocation *row = sp_allocations_find(table, SP_MEMORY_HANDLE, handle);
  if (row != NULL) {
    row->references++;
    sp_allocations_unlock(table);
    return;
  }
  struct sp_allocation *mapping = sp_allocations_find(table, SP_MEMORY_MAPPING, address);
  /* The address may lie inside a mapping. */
  for (uint64_t index = 0; mapping == NULL && index < table->row_count; index++) {
    struct sp_allocation *other = &table->rows[index];
    if (other->kind == SP_MEMORY_MAPPING && other->key != 0 && address - other->key < other->bytes) {
      mapping = other;
    }
  }
  struct sp_allocation *chunk = mapping != NULL ? sp_allocations_find(table, SP_MEMORY_CHUNK, mapping->owner) : NULL;
  if (chunk != NULL) {
    chunk->references++;
    struct sp_allocation handle_row = {.key = handle,
                                       .owner = chunk->key,
                                       .references = 1,
                                       .device_ordinal = chunk->device_ordinal,
                                       .kind = SP_MEMORY_HANDLE};
    sp_allocations_insert(table, &handle_row);
  }
  sp_allocations_unlock(table);
}

/* The program gets a handle of memory that is mapped, which keeps the memory charged as any handle does. */
SP_WRAPPER(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address), (handle, address)) {
  bool remembered = sp_allocations_room();
  CUresult result;
  SP_CALL(result, real(handle, address));
  if (remembered && result == CUDA_SUCCESS) {
    note_handle(*handle, (uint64_t)(uintptr_t)address);
  }
  return result;
}
