/*
 * Memory accounting: what this process holds of each device, against its share's cap.
 *
 * Order of one allocation: reserve the bytes (atomic over all threads and processes of the share), allocate, then
 * commit the address or roll the reservation back. Order of one free: take the entry out (the driver may hand the
 * same address to another thread the moment it is free), free, then settle; if the driver refuses, restore.
 * Between reserve and commit, and between take and settle, the bytes count as used: the cap is never passed.
 */
#ifndef SHAREPOD_MEMORY_H
#define SHAREPOD_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* memory_account.c; device_ordinal is the CUdevice. */

struct sp_allocation {
  uint64_t address;
  uint64_t bytes;
  void *context; /* freed with it; NULL for memory that outlives contexts (stream-ordered pools) */
  int device_ordinal;
};

/* 0, or nonzero when the share would pass its cap (or the account has no memory left to remember the address). */
int sp_memory_reserve(int device_ordinal, uint64_t bytes);
void sp_memory_rollback(int device_ordinal, uint64_t bytes);
/* The open reservation turns out to need another size. Nonzero: over the cap, nothing changed. */
int sp_memory_resize(int device_ordinal, uint64_t from_bytes, uint64_t to_bytes);
void sp_memory_commit(int device_ordinal, uint64_t address, uint64_t bytes, void *context);

bool sp_memory_take(uint64_t address, struct sp_allocation *taken); /* false: not ours, nothing changed */
void sp_memory_settle(const struct sp_allocation *taken);
void sp_memory_restore(const struct sp_allocation *taken);

/* The driver has destroyed the context, and its memory with it. */
void sp_memory_forget_context(void *context);

/* Lower the driver's answer to the share's view: total = min(total, cap), free = min(cap - used, free).
 * Either pointer may be NULL. Returns false, and changes nothing, for a share without a cap. */
bool sp_memory_view(int device_ordinal, uint64_t *free_bytes, uint64_t *total_bytes);

/* attach.c: the account of the share in its region. Without a region try succeeds and the limit is UINT64_MAX. */

int sp_share_memory_try(int device_ordinal, uint64_t bytes); /* 0: now part of this slot's use; -1: over the cap */
void sp_slot_memory(int device_ordinal, int64_t delta_bytes);
uint64_t sp_share_memory_limit(int device_ordinal);
uint64_t sp_share_memory_used(int device_ordinal); /* of all processes of the share */

#endif
