/*
 * The table of this process's device memory: a hash map with open addressing and linear probing. It grows by doubling,
 * so an allocation and a free cost the same at any size.
 *
 * Its pages are cleared in a forked child: the child owns none of its parent's device memory, and the lock cannot stay
 * held by a thread that the child does not have.
 */
#ifndef SHAREPOD_ALLOCATION_TABLE_H
#define SHAREPOD_ALLOCATION_TABLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kinds of rows. Keys are addresses and handles; keys of different kinds may be equal. */
enum sp_memory_kind {
  SP_MEMORY_ADDRESS, /* linear, pitched, managed memory, freed by its address; the owner is its context */
  SP_MEMORY_POOLED,  /* an allocation from a pool, with keys like those of ADDRESS; the owner is the pool, which is
                        charged */
  SP_MEMORY_ARRAY,   /* array or mipmapped array */
  SP_MEMORY_CONTEXT, /* the memory that a context itself takes */
  SP_MEMORY_HANDLE,  /* a handle of physical memory: the owner is the memory's number; `references` counts those to the
                        handle */
  SP_MEMORY_CHUNK,   /* physical memory, by its number: its references are a living handle and every mapping */
  SP_MEMORY_MAPPING, /* a mapping, by its address: the owner is the number of the mapped memory; 0: it is not ours */
  SP_MEMORY_IMPORT,  /* external memory */
  SP_MEMORY_GRAPH,   /* an executable graph that allocates; the owner is the count of trims (graph.c) when it last took
                        its memory, 0: never */
};

struct sp_allocation {
  uint64_t key; /* 0 marks an empty row */
  uint64_t bytes;
  uint64_t owner; /* see the kinds; 0: memory that outlives contexts */
  uint32_t references;
  int16_t device_ordinal;
  uint16_t kind;
};

struct sp_allocation_table {
  pthread_mutex_t lock; /* all bytes zero is an open lock in glibc and musl */
  struct sp_allocation *rows;
  uint64_t row_count; /* a power of two, or 0 */
  uint64_t used;      /* how many rows are not empty */
  uint64_t next_number;
};

/* Zeroed pages at *shared, which the first caller maps and which a fork clears in the child. NULL: no memory. */
void *sp_map_wiped(void **shared, size_t bytes);

/* Lock the rows. NULL: there are none. */
struct sp_allocation_table *sp_allocations_lock(void);
void sp_allocations_unlock(struct sp_allocation_table *table);

/* Make room for another row. False: no memory. Afterwards half of the rows are empty, which are thousands: threads that
 * have asked for room and not inserted yet cannot fill them. */
bool sp_allocations_room(void);

/* The caller holds the lock. */
struct sp_allocation *sp_allocations_find(struct sp_allocation_table *table, enum sp_memory_kind kind,
                                          uint64_t key); /* or NULL */
/* Insert a row. If a row has the same key already, its charge ends: it was freed in a way that the hook does not see.
 * Does nothing in a child that was forked after the room was made. */
void sp_allocations_insert(struct sp_allocation_table *table, const struct sp_allocation *allocation);
/* Take a row out. */
void sp_allocations_take(struct sp_allocation_table *table, struct sp_allocation *row, struct sp_allocation *taken);

#endif
