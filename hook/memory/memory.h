/*
 * Memory accounting: what this process holds of each device, against its share's cap.
 *
 * Order of one allocation: reserve the bytes (atomic over all threads and processes of the share), allocate, then
 * commit the row or roll the reservation back. Order of one free: take the row out (the driver may hand the same
 * address to another thread the moment it is free), free, then end its charge; if the driver refuses, restore.
 * Between reserve and commit, and between take and uncharge, the bytes count as used: the cap is never passed.
 */
#ifndef SHAREPOD_MEMORY_H
#define SHAREPOD_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "hook/memory/rows.h"

/* memory/account.c; device_ordinal is the CUdevice. errno survives all of them. */

#define SP_NO_DEVICE (-1) /* cannot be told, or has no share: nothing is charged */

/* False when the share would pass its cap (or there is no memory left to remember it). */
bool sp_memory_reserve(int device_ordinal, uint64_t bytes);
void sp_memory_rollback(int device_ordinal, uint64_t bytes);
/* The open reservation turns out to need another size. False: over the cap, nothing changed. */
bool sp_memory_resize(int device_ordinal, uint64_t from_bytes, uint64_t to_bytes);
/* Keep what was reserved. A key 0 is rolled back. */
void sp_memory_commit(const struct sp_allocation *allocation);

/* False: not ours, nothing changed. */
bool sp_memory_take(enum sp_memory_kind kind, uint64_t key, struct sp_allocation *taken);
void sp_memory_uncharge(const struct sp_allocation *taken);
void sp_memory_restore(const struct sp_allocation *taken);

/* The driver has destroyed the context, and its memory with it. */
void sp_memory_forget_context(const void *context);

/* Lower the driver's answer to the share's view: total = min(total, cap), free = min(cap - used, free).
 * Either pointer may be NULL. Returns false, and changes nothing, for a share without a cap. */
bool sp_memory_view(int device_ordinal, uint64_t *free_bytes, uint64_t *total_bytes);

/* memory/pool.c: pools of stream-ordered memory, and the memory of graphs */

/* The driver may have taken memory back from pools (waiting for work has succeeded), or the answer is about to be
 * used: look, if some pool holds more than its allocations. */
void sp_pools_look(void);
/* An allocation of the pool has been freed. */
void sp_pool_freed(const struct sp_allocation *taken);
/* Before a refusal: bring the charges of the device's pools to what they hold, then have them give back what they do
 * not use. True: less is charged than before. */
bool sp_pools_shrink(int device_ordinal);

/* attach.c: the account of the share in its region. Without a region try succeeds and the limit is UINT64_MAX. */

int sp_share_memory_try(int device_ordinal, uint64_t bytes); /* 0: now part of this slot's use; -1: over the cap */
void sp_slot_memory(int device_ordinal, int64_t delta_bytes);
/* Of the slot's use, what contexts were charged with in advance: the agent knows better once they are there. */
void sp_slot_context_memory(int device_ordinal, int64_t delta_bytes);
/* The driver was not asked, or what it gave was given back: the program has been told that memory is out. */
void sp_slot_memory_refused(int device_ordinal, uint64_t bytes);
uint64_t sp_share_memory_limit(int device_ordinal);
uint64_t sp_share_memory_shown(int device_ordinal);  /* of all processes of the share, as programs are told */
uint64_t sp_share_context_bytes(int device_ordinal); /* what a context takes, as far as the agent knows */

#endif
