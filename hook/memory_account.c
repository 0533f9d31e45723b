/*
 * The account of this process: a hash map from address to allocation, open addressing with linear probing, grown by
 * doubling, so that an allocation and a free cost the same whatever their number.
 *
 * The map lives in pages that a fork clears in the child: the child owns no device memory of its parent, and the lock
 * cannot be left held by a thread that the child does not have.
 */
#include "memory.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef MADV_DONTFORK
#define MADV_DONTFORK 10
#endif

#define SP_ROWS_FIRST 256u /* power of two */

struct account {
  pthread_mutex_t lock;       /* all zero bytes is an open lock in glibc and musl */
  struct sp_allocation *rows; /* guarded by lock, like all below; address 0 marks an empty row */
  uint64_t row_count;         /* power of two, or 0 */
  uint64_t used;              /* rows that hold an allocation */
  uint64_t promised;          /* rows that open reservations will need: a commit cannot fail */
};

static struct account *shared_account;

static struct account *map_account(void) {
  struct account *account = mmap(NULL, sizeof(*account), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (account == MAP_FAILED) {
    return NULL;
  }
  madvise(account, sizeof(*account), MADV_WIPEONFORK); /* a kernel before 4.14 refuses: the child then keeps a copy */
  struct account *expected = NULL;
  if (!__atomic_compare_exchange_n(&shared_account, &expected, account, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    munmap(account, sizeof(*account));
    return expected;
  }
  return account;
}

/* NULL when there is none: nothing was ever reserved, or no memory for it. */
static struct account *lock_account(bool create) {
  struct account *account = __atomic_load_n(&shared_account, __ATOMIC_ACQUIRE);
  if (account == NULL && create) {
    account = map_account();
  }
  if (account != NULL) {
    pthread_mutex_lock(&account->lock);
  }
  return account;
}

static void unlock_account(struct account *account) {
  pthread_mutex_unlock(&account->lock);
}

static uint64_t home(const struct account *account, uint64_t address) {
  return (address * 0x9e3779b97f4a7c15u) >> 32 & (account->row_count - 1);
}

static uint64_t after(const struct account *account, uint64_t index) {
  return (index + 1) & (account->row_count - 1);
}

/* The row of an address, or the empty row where it would go. There is always an empty row. */
static struct sp_allocation *row_of(struct account *account, uint64_t address) {
  uint64_t index = home(account, address);
  while (account->rows[index].address != 0 && account->rows[index].address != address) {
    index = after(account, index);
  }
  return &account->rows[index];
}

static bool grow(struct account *account) {
  struct account larger = *account;
  larger.row_count = account->row_count == 0 ? SP_ROWS_FIRST : 2 * account->row_count;
  size_t bytes = larger.row_count * sizeof(*larger.rows);
  larger.rows = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (larger.rows == MAP_FAILED) {
    return false;
  }
  madvise(larger.rows, bytes, MADV_DONTFORK);
  for (uint64_t i = 0; i < account->row_count; i++) {
    if (account->rows[i].address != 0) {
      *row_of(&larger, account->rows[i].address) = account->rows[i];
    }
  }
  if (account->rows != NULL) {
    munmap(account->rows, account->row_count * sizeof(*account->rows));
  }
  account->rows = larger.rows;
  account->row_count = larger.row_count;
  return true;
}

/* Take a row out and close the gap, so that no probe sequence is cut. */
static void remove_row(struct account *account, struct sp_allocation *row) {
  uint64_t gap = (uint64_t)(row - account->rows);
  for (uint64_t index = after(account, gap); account->rows[index].address != 0; index = after(account, index)) {
    uint64_t wanted = home(account, account->rows[index].address);
    uint64_t mask = account->row_count - 1;
    if (((index - wanted) & mask) >= ((index - gap) & mask)) { /* its home is not behind the gap: it may move there */
      account->rows[gap] = account->rows[index];
      gap = index;
    }
  }
  account->rows[gap].address = 0;
  account->used--;
}

static void insert_row(struct account *account, const struct sp_allocation *allocation) {
  struct sp_allocation *row = row_of(account, allocation->address);
  if (row->address != 0) { /* freed on a way that we do not see: the address is in use again, the old charge ends */
    sp_slot_memory(row->device_ordinal, -(int64_t)row->bytes);
    account->used--;
  }
  *row = *allocation;
  account->used++;
}

int sp_memory_reserve(int device_ordinal, uint64_t bytes) {
  struct account *account = lock_account(true);
  if (account == NULL) {
    return -1;
  }
  bool room = 2 * (account->used + account->promised + 1) <= account->row_count || grow(account);
  account->promised += room ? 1 : 0;
  unlock_account(account);
  if (!room) {
    return -1;
  }
  if (bytes > INT64_MAX || sp_share_memory_try(device_ordinal, bytes) != 0) {
    sp_memory_rollback(device_ordinal, 0);
    return -1;
  }
  return 0;
}

void sp_memory_rollback(int device_ordinal, uint64_t bytes) {
  struct account *account = lock_account(false);
  if (account != NULL) {
    account->promised -= account->promised > 0 ? 1 : 0;
    unlock_account(account);
  }
  if (bytes != 0) {
    sp_slot_memory(device_ordinal, -(int64_t)bytes);
  }
}

int sp_memory_resize(int device_ordinal, uint64_t from_bytes, uint64_t to_bytes) {
  if (to_bytes > INT64_MAX) {
    return -1;
  }
  if (to_bytes > from_bytes) {
    return sp_share_memory_try(device_ordinal, to_bytes - from_bytes);
  }
  if (to_bytes < from_bytes) {
    sp_slot_memory(device_ordinal, -(int64_t)(from_bytes - to_bytes));
  }
  return 0;
}

void sp_memory_commit(int device_ordinal, uint64_t address, uint64_t bytes, void *context) {
  if (address == 0) {
    sp_memory_rollback(device_ordinal, bytes);
    return;
  }
  struct account *account = lock_account(false);
  if (account == NULL) {
    return;
  }
  if (account->promised > 0) { /* 0 only in a child that was forked between the reservation and this */
    account->promised--;
    insert_row(account, &(struct sp_allocation){
                            .address = address, .bytes = bytes, .context = context, .device_ordinal = device_ordinal});
  }
  unlock_account(account);
}

bool sp_memory_take(uint64_t address, struct sp_allocation *taken) {
  struct account *account = lock_account(false);
  if (account == NULL) {
    return false;
  }
  struct sp_allocation *row = account->row_count != 0 && address != 0 ? row_of(account, address) : NULL;
  bool found = row != NULL && row->address != 0;
  if (found) {
    *taken = *row;
    remove_row(account, row);
    account->promised++; /* the row stays ours until settle or restore */
  }
  unlock_account(account);
  return found;
}

void sp_memory_settle(const struct sp_allocation *taken) {
  sp_memory_rollback(taken->device_ordinal, taken->bytes);
}

void sp_memory_restore(const struct sp_allocation *taken) {
  sp_memory_commit(taken->device_ordinal, taken->address, taken->bytes, taken->context);
}

void sp_memory_forget_context(void *context) {
  struct account *account = lock_account(false);
  if (account == NULL) {
    return;
  }
  for (uint64_t i = 0; context != NULL && i < account->row_count;) {
    struct sp_allocation *row = &account->rows[i];
    if (row->address != 0 && row->context == context) {
      sp_slot_memory(row->device_ordinal, -(int64_t)row->bytes);
      remove_row(account, row); /* may pull another row into this place: look at it again */
    } else {
      i++;
    }
  }
  unlock_account(account);
}

bool sp_memory_view(int device_ordinal, uint64_t *free_bytes, uint64_t *total_bytes) {
  uint64_t limit = sp_share_memory_limit(device_ordinal);
  if (limit == UINT64_MAX) {
    return false;
  }
  uint64_t used = sp_share_memory_used(device_ordinal);
  uint64_t left = limit > used ? limit - used : 0;
  if (free_bytes != NULL && *free_bytes > left) {
    *free_bytes = left;
  }
  if (total_bytes != NULL && *total_bytes > limit) {
    *total_bytes = limit;
  }
  return true;
}
