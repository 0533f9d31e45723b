/*
 * What this process holds of device memory, row by row: a hash map with open addressing and linear probing, grown by
 * doubling, so that an allocation and a free cost the same whatever their number.
 *
 * It lives in pages that a fork clears in the child: the child owns no device memory of its parent, and the lock cannot
 * be left held by a thread that the child does not have.
 */
#ifndef SHAREPOD_MEMORY_ROWS_H
#define SHAREPOD_MEMORY_ROWS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Keys are addresses and handles; those of different kinds may be the same number. */
enum sp_memory_kind {
  SP_MEMORY_ADDRESS, /* linear, pitched, managed: freed by its address; the owner is its context */
  SP_MEMORY_POOLED,  /* the same keys: an allocation from a pool, which is charged for; the owner is that pool */
  SP_MEMORY_ARRAY,   /* array or mipmapped array */
  SP_MEMORY_CONTEXT, /* what the context itself takes */
  SP_MEMORY_HANDLE,  /* of physical memory: the owner is its number, references count those to the handle */
  SP_MEMORY_CHUNK,   /* physical memory, by its number: its references are a handle that lives, and every mapping */
  SP_MEMORY_MAPPING, /* by its address: the owner is the number of what is mapped there, 0 = not ours */
  SP_MEMORY_IMPORT,  /* external memory */
  SP_MEMORY_GRAPH,   /* an executable graph that allocates */
};

struct sp_allocation {
  uint64_t key; /* 0 marks an empty row */
  uint64_t bytes;
  uint64_t owner; /* see the kinds; 0 for memory that outlives contexts */
  uint32_t references;
  int16_t device_ordinal;
  uint16_t kind;
};

struct sp_rows {
  pthread_mutex_t lock; /* all zero bytes is an open lock in glibc and musl */
  struct sp_allocation *rows;
  uint64_t row_count; /* power of two, or 0 */
  uint64_t used;      /* rows that hold an allocation */
  uint64_t next_number;
};

/* A page of zeros at *shared, made by whoever comes first, that a fork clears in the child. NULL: no memory. */
void *sp_map_wiped(void **shared, size_t bytes);

/* Lock the rows. NULL when there are none. */
struct sp_rows *sp_rows_lock(void);
void sp_rows_unlock(struct sp_rows *rows);

/* Make sure that what is about to be allocated can be remembered. False: no memory for it. Half of the rows are empty
 * then, thousands: threads that have asked and not yet inserted cannot fill them. */
bool sp_rows_room(void);

/* The caller holds the lock. */
struct sp_allocation *sp_rows_find(struct sp_rows *rows, enum sp_memory_kind kind, uint64_t key); /* or NULL */
/* Of a row that had the same key the charge ends: it was freed on a way that we do not see. Nothing happens in a child
 * that was forked since there was room. */
void sp_rows_insert(struct sp_rows *rows, const struct sp_allocation *allocation);
/* Take a row out. */
void sp_rows_take(struct sp_rows *rows, struct sp_allocation *row, struct sp_allocation *taken);

#endif
