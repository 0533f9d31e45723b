/* Effects: the changes of memory that a process makes itself once the model has passed an item. */
#define _GNU_SOURCE
#include "simgpu/api/process.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Copy an effect and the list behind it; what is in `staging` then belongs to the copy. NULL: there is no memory for
 * the copy, and what is in `staging` stays the caller's. */
struct effect *effect_copy_of(const struct effect *effect) {
  struct effect *copy = malloc(sizeof *copy);
  if (!copy)
    return NULL;
  *copy = *effect;
  struct effect **link = &copy->next;
  for (const struct effect *next = effect->next; next; next = next->next) {
    *link = malloc(sizeof **link);
    if (!*link) {
      effect_undo_copy(copy);
      return NULL;
    }
    **link = *next;
    (*link)->next = NULL;
    link = &(*link)->next;
  }
  return copy;
}

/* Undo effect_copy_of: free the copy, and leave what is in `staging` to the caller again. */
void effect_undo_copy(struct effect *copy) {
  for (struct effect *one = copy; one; one = one->next)
    one->staging = NULL;
  effect_free(copy);
}

/* Free an effect, the list behind it, and what is in `staging`. NULL: nothing happens. */
void effect_free(struct effect *effect) {
  while (effect) {
    struct effect *next = effect->next;
    free(effect->staging);
    free(effect);
    effect = next;
  }
}

/* Copy the rows of a box. Source and destination may overlap in a row. */
static void copy(const struct effect *effect) {
  for (size_t z = 0; z < effect->depth; z++)
    for (size_t y = 0; y < effect->height; y++)
      memmove((char *)effect->dst + z * effect->dst_slice + y * effect->dst_pitch,
              (const char *)effect->src + z * effect->src_slice + y * effect->src_pitch, effect->width);
}

/* Set bytes to zero. Zeroing must not make untouched memory resident. So in a large range of the driver's memory, whole
 * pages are given back: then they read as zero. Pages of a file have to be taken out of the file for that. */
static void zero(char *at, size_t bytes) {
  const uintptr_t page = 4096, large = 1 << 20;
  uintptr_t from = ((uintptr_t)at + page - 1) & ~(page - 1), to = ((uintptr_t)at + bytes) & ~(page - 1);
  struct block block;
  bool can_give_back = bytes > large && find_block((uintptr_t)at, &block) && block.source != BLOCK_REGISTERED &&
                       (uintptr_t)at + bytes <= block.address + block.bytes;
  if (!can_give_back || madvise((void *)from, to - from, block.in_file ? MADV_REMOVE : MADV_DONTNEED)) {
    memset(at, 0, bytes);
    return;
  }
  memset(at, 0, from - (uintptr_t)at);
  memset((void *)to, 0, (uintptr_t)at + bytes - to);
}

/* Fill rows with a value, element by element. */
static void set(const struct effect *effect) {
  for (size_t y = 0; y < effect->height; y++) {
    char *row = (char *)effect->dst + y * effect->dst_pitch;
    size_t count = effect->width / effect->element;
    if (!effect->value)
      zero(row, effect->width);
    else if (effect->element == 1)
      memset(row, (int)effect->value, count);
    else
      for (size_t n = 0; n < count; n++)
        memcpy(row + n * effect->element, &effect->value, effect->element);
  }
}

/* Make the changes of an effect and of the list behind it, in this thread. */
void effect_apply(const struct effect *effect) {
  for (; effect; effect = effect->next)
    switch (effect->kind) {
    case EFFECT_COPY:
      copy(effect);
      break;
    case EFFECT_SET:
      set(effect);
      break;
    case EFFECT_WRITE: /* pairs with the load of a thread that polls the word */
      if (effect->element == 8)
        __atomic_store_n((uint64_t *)effect->dst, effect->value, __ATOMIC_RELEASE);
      else
        __atomic_store_n((uint32_t *)effect->dst, (uint32_t)effect->value, __ATOMIC_RELEASE);
      break;
    case EFFECT_CALL:
      effect->call(effect->data);
      break;
    case EFFECT_CALLBACK:
      effect->callback(effect->stream, CUDA_SUCCESS, effect->data);
      break;
    case EFFECT_LIST: /* nothing: its item only makes the owner poll a word */
      break;
    }
}
