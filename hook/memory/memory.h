/*
 * Memory accounting: what this process holds on each device, checked against its share's cap.
 *
 * An allocation: reserve the bytes (atomic over all threads and processes of the share), allocate, then commit the row
 * or roll back the reservation. A free: take the row out first (as soon as the address is free, the driver may give it
 * to another thread), free, then end the charge; if the driver refuses, restore the row. Between reserve and commit,
 * and between take and uncharge, the bytes count as used: so the cap is never exceeded.
 */
#ifndef SHAREPOD_MEMORY_H
#define SHAREPOD_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "hook/memory/allocation_table.h"

/* memory/account.c; device_ordinal is the CUdevice. errno survives all of them. */

#define SP_NO_DEVICE (-1) /* the device is not known, or not in the share: nothing is charged */

/* Reserve. False: the share would exceed its cap, or there is no memory for the row. */
bool sp_memory_reserve(int device_ordinal, uint64_t bytes);
void sp_memory_rollback(int device_ordinal, uint64_t bytes);
/* Change the size of an open reservation. False: over the cap, nothing has changed. */
bool sp_memory_resize(int device_ordinal, uint64_t from_bytes, uint64_t to_bytes);
/* Keep a reservation under the allocation's key; a key of 0 rolls it back. */
void sp_memory_commit(const struct sp_allocation *allocation);

/* Take a row out. False: there is no such row. */
bool sp_memory_take(enum sp_memory_kind kind, uint64_t key, struct sp_allocation *taken);
/* The driver has freed the memory of a row that was taken out: end its charge; or has refused: put the row back. */
void sp_memory_uncharge(const struct sp_allocation *taken);
void sp_memory_restore(const struct sp_allocation *taken);

/* End all charges of a context: the driver has destroyed it, and its memory with it. */
void sp_memory_forget_context(const void *context);

/* Lower the driver's answer to the share's view: total = min(total, cap), free = min(cap - used, free).
 * Either pointer may be NULL. Returns false, and changes nothing, for a share without a cap. */
bool sp_memory_view(int device_ordinal, uint64_t *free_bytes, uint64_t *total_bytes);

/* memory/pool.c: pools of stream-ordered memory, and those of graphs */

/* If some pool holds more than its allocations, ask the driver again. Called when pools may have shrunk (waiting for
 * work has succeeded), and before a figure is used. */
void sp_pools_look(void);
/* A context was destroyed: correct the charges of the pools. Graphs that have lost their memory take it again. */
void sp_pools_context_gone(void);
/* An allocation of the pool has been freed. */
void sp_pool_freed(const struct sp_allocation *taken);
/* Before a refusal: correct the charges of the device's pools, then have the pools return what they do not use. */
void sp_pools_shrink(int device_ordinal);

/* share.c: the account of the share in its region. Without a region `try` succeeds and the limit is UINT64_MAX. */

int sp_share_memory_try(int device_ordinal, uint64_t bytes); /* 0: charged to this slot; -1: over the cap */
/* Change what this slot is charged with, whatever the cap says. */
void sp_slot_memory(int device_ordinal, int64_t delta_bytes);
/* Change the part of the slot's use that was charged in advance for contexts: once they exist, the agent knows better.
 */
void sp_slot_context_memory(int device_ordinal, int64_t delta_bytes);
/* Count a refusal: the program got an out-of-memory error, and the driver was not called, or its memory was returned.
 */
void sp_slot_memory_refused(int device_ordinal, uint64_t bytes);
uint64_t sp_share_memory_limit(int device_ordinal);
uint64_t sp_share_memory_shown(int device_ordinal);  /* of all processes of the share, as programs are shown it */
uint64_t sp_share_context_bytes(int device_ordinal); /* what a context takes; 0: the agent does not know */

#endif
