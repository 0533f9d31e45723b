/* The table of this process's device memory, a hash map with open addressing and linear probing. */
#include "hook/memory/allocation_table.h"

#include <sys/mman.h>

#include "hook/memory/memory.h"
#include "region/order.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef MADV_DONTFORK
#define MADV_DONTFORK 10
#endif
#ifndef MADV_HUGEPAGE
#define MADV_HUGEPAGE 14
#endif

#define ROWS_FIRST 4096u /* a power of two; pages are touched only when they are used */
#define HUGE_BYTES (2u << 20)

static void *shared_table;

/* The pages at *shared, which the first caller maps. They are all zero then, and again in a forked child. NULL: no
 * memory. If two threads map at once, one mapping is dropped. */
void *sp_map_wiped(void **shared, size_t bytes) {
  void *found = sp_load_acquire(shared);
  if (__builtin_expect(found != NULL, 1)) {
    return found;
  }
  void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return NULL;
  }
  madvise(page, bytes, MADV_WIPEONFORK); /* a kernel before 4.14 refuses: then the child keeps a copy */
  if (!sp_compare_exchange(shared, &found, page)) {
    munmap(page, bytes);
    return found;
  }
  return page;
}

/* Lock the table. NULL: there is none yet, so it has no rows, and nothing is locked. */
struct sp_allocation_table *sp_allocations_lock(void) {
  struct sp_allocation_table *table = sp_load_acquire(&shared_table);
  if (table != NULL) {
    pthread_mutex_lock(&table->lock);
  }
  return table;
}

/* Unlock the table that sp_allocations_lock has returned. */
void sp_allocations_unlock(struct sp_allocation_table *table) {
  pthread_mutex_unlock(&table->lock);
}

/* The key space of a kind: a row is found by key and space. Pool memory is in the space of managed memory, because the
 * same call frees both. */
static inline uint64_t space_of(uint64_t kind) {
  return kind == SP_MEMORY_POOLED ? SP_MEMORY_ADDRESS : kind;
}

/* The home row of a key: where its search begins. Two neighbours of 512 bytes, the driver's granularity, have home rows
 * side by side, which share a cache line; the hash of the higher bits says which pair of rows. */
static uint64_t home(const struct sp_allocation_table *table, uint64_t kind, uint64_t key) {
  uint64_t pair = ((key >> 10 ^ space_of(kind) << 59) * 0x9e3779b97f4a7c15u) >> 32;
  return (pair << 1 | (key >> 9 & 1)) & (table->row_count - 1);
}

/* The next row; the last one is followed by the first. */
static uint64_t after(const struct sp_allocation_table *table, uint64_t index) {
  return (index + 1) & (table->row_count - 1);
}

/* The row of a key, or the empty row in which it would be inserted. There always is an empty row. */
static struct sp_allocation *row_of(struct sp_allocation_table *table, uint64_t kind, uint64_t key) {
  uint64_t index = home(table, kind, key);
  for (;; index = after(table, index)) {
    struct sp_allocation *row = &table->rows[index];
    if (row->key == 0 || (row->key == key && space_of(row->kind) == space_of(kind))) {
      return row;
    }
  }
}

/* The row of a key, or NULL. The caller holds the lock; the pointer is void after the unlock, or when a row is taken
 * out. */
struct sp_allocation *sp_allocations_find(struct sp_allocation_table *table, enum sp_memory_kind kind, uint64_t key) {
  struct sp_allocation *row = table->row_count != 0 && key != 0 ? row_of(table, kind, key) : NULL;
  return row != NULL && row->key != 0 ? row : NULL;
}

/* Map the rows of a table; NULL: no memory. A large table uses huge pages: its rows are rarely in the cache, and with
 * small pages finding a row's page would cost as much again as reading the row. */
static struct sp_allocation *map_rows(size_t bytes) {
  size_t slack = bytes >= HUGE_BYTES ? HUGE_BYTES : 0;
  char *at = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return NULL;
  }
  if (slack != 0) { /* align the table: unmap the slack before and behind it */
    size_t before = (HUGE_BYTES - (uintptr_t)at % HUGE_BYTES) % HUGE_BYTES;
    if (before != 0) {
      munmap(at, before);
    }
    if (slack != before) {
      munmap(at + before + bytes, slack - before);
    }
    at += before;
    madvise(at, bytes, MADV_HUGEPAGE);
  }
  madvise(at, bytes, MADV_DONTFORK);
  return (struct sp_allocation *)(void *)at;
}

/* Double the table. False: no memory, and nothing has changed. The rows move, so pointers to them are void
 * afterwards. */
static bool grow(struct sp_allocation_table *table) {
  struct sp_allocation_table larger = {.row_count = table->row_count == 0 ? ROWS_FIRST : 2 * table->row_count};
  larger.rows = map_rows(larger.row_count * sizeof *larger.rows);
  if (larger.rows == NULL) {
    return false;
  }
  for (uint64_t i = 0; i < table->row_count; i++) {
    if (table->rows[i].key != 0) {
      *row_of(&larger, table->rows[i].kind, table->rows[i].key) = table->rows[i];
    }
  }
  if (table->rows != NULL) {
    munmap(table->rows, table->row_count * sizeof *table->rows);
  }
  table->rows = larger.rows;
  sp_store(&table->row_count, larger.row_count);
  return true;
}

/* Are more than half of the rows empty? May be asked without the lock. */
static bool roomy(const struct sp_allocation_table *table) {
  return 2 * sp_load(&table->used) < sp_load(&table->row_count);
}

/* Before an allocation: make the table if there is none, and make room for another row. False: no memory. */
bool sp_allocations_room(void) {
  struct sp_allocation_table *table = sp_map_wiped(&shared_table, sizeof *table);
  if (table == NULL || __builtin_expect(roomy(table), 1)) {
    return table != NULL;
  }
  pthread_mutex_lock(&table->lock);
  bool room = roomy(table) || grow(table);
  pthread_mutex_unlock(&table->lock);
  return room;
}

/* Remove a row. A search ends at an empty row, so rows behind the gap move into it, and leave a gap of their own. */
static void remove_row(struct sp_allocation_table *table, struct sp_allocation *row) {
  uint64_t gap = (uint64_t)(row - table->rows), mask = table->row_count - 1;
  for (uint64_t index = after(table, gap); table->rows[index].key != 0; index = after(table, index)) {
    uint64_t begins = home(table, table->rows[index].kind, table->rows[index].key);
    /* A row may move only if its search, which begins at its home, comes by the gap. */
    if (((index - begins) & mask) >= ((index - gap) & mask)) {
      table->rows[gap] = table->rows[index];
      gap = index;
    }
  }
  table->rows[gap].key = 0;
}

/* Insert a row. There is room: the caller has asked sp_allocations_room before the allocation. A row that has the key
 * already loses its charge. The caller holds the lock. */
void sp_allocations_insert(struct sp_allocation_table *table, const struct sp_allocation *allocation) {
  if (table->used + 1 >= table->row_count) {
    return; /* a child that was forked after the room was made: its table is empty */
  }
  struct sp_allocation *row = row_of(table, allocation->kind, allocation->key);
  if (row->key != 0) {
    sp_memory_uncharge(row); /* it was freed in a way that the hook does not see */
  } else {
    sp_store(&table->used, table->used + 1);
  }
  *row = *allocation;
}

/* Copy a row to *taken and remove it; what it is charged with stays charged. The caller holds the lock. */
void sp_allocations_take(struct sp_allocation_table *table, struct sp_allocation *row, struct sp_allocation *taken) {
  *taken = *row;
  remove_row(table, row);
  sp_store(&table->used, table->used - 1);
}
