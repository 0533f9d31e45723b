/* The map of all memory that the driver knows, by address. */
#include "simgpu/api/process.h"

#include <stdlib.h>
#include <string.h>

/* Sorted by address; guarded by its own lock. */
static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block **blocks;
static size_t block_count, block_room;

/* With map_lock: the index of the first block above `address`, or block_count. Only the block before it can hold the
 * address. */
static size_t above(uintptr_t address) {
  size_t low = 0, high = block_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (blocks[middle]->address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The block that holds an address. False: plain host memory. */
bool find_block(uintptr_t address, struct block *block) {
  pthread_mutex_lock(&map_lock);
  size_t at = above(address);
  bool found = at && address < blocks[at - 1]->address + blocks[at - 1]->bytes;
  if (found)
    *block = *blocks[at - 1];
  pthread_mutex_unlock(&map_lock);
  return found;
}

/* Add a copy of the block, with an id of its own. False: there is no memory. */
bool add_block(struct block block) {
  struct block *copy = malloc(sizeof *copy);
  pthread_mutex_lock(&map_lock);
  if (block_count == block_room) {
    size_t room = block_room ? 2 * block_room : 256;
    struct block **grown = realloc(blocks, room * sizeof *grown);
    if (grown) {
      blocks = grown;
      block_room = room;
    }
  }
  bool fits = copy && block_count < block_room;
  if (fits) {
    size_t at = above(block.address);
    memmove(&blocks[at + 1], &blocks[at], (block_count - at) * sizeof *blocks);
    block.id = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED);
    *copy = block;
    blocks[at] = copy;
    block_count++;
  }
  pthread_mutex_unlock(&map_lock);
  if (!fits)
    free(copy);
  return fits;
}

/* Remove the block that starts at `address`, and copy it to `block`. False: none starts there. */
bool take_block(uintptr_t address, struct block *block) {
  struct block *removed = NULL;
  pthread_mutex_lock(&map_lock);
  size_t at = above(address);
  if (at && blocks[at - 1]->address == address) {
    removed = blocks[at - 1];
    memmove(&blocks[at - 1], &blocks[at], (block_count - at) * sizeof *blocks);
    block_count--;
  }
  pthread_mutex_unlock(&map_lock);
  if (!removed)
    return false;
  *block = *removed;
  free(removed);
  return true;
}

/* Replace the block that starts where this one does, if it is still there. */
void change_block(const struct block *block) {
  pthread_mutex_lock(&map_lock);
  size_t at = above(block->address);
  if (at && blocks[at - 1]->address == block->address)
    *blocks[at - 1] = *block;
  pthread_mutex_unlock(&map_lock);
}

/* Of the context's blocks that start above `from`, the first one. False: there is none. */
bool next_block_of(const struct context *context, uintptr_t from, struct block *block) {
  bool found = false;
  pthread_mutex_lock(&map_lock);
  for (size_t n = above(from); n < block_count && !found; n++)
    if (blocks[n]->context == context) {
      *block = *blocks[n];
      found = true;
    }
  pthread_mutex_unlock(&map_lock);
  return found;
}
