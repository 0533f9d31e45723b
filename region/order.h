/*
 * The orders of all atomic operations, named once: no other file of region/, hook/ and agent/ names one.
 *
 * Relaxed: sp_load, sp_store, sp_add, sp_sub. The word says nothing about another word. These are counters, hints, and
 * words that a lock or another operation of this page orders.
 *
 * One way: sp_store_release, sp_load_acquire. A thread prepares something and then stores the word. A thread that loads
 * this value sees what was prepared.
 *
 * Two ways: sp_store_full, sp_add_full or sp_sub_full, then sp_load_full. Each of two threads writes a word of its own
 * and then reads the other's. At least one of the two sees the other's write, and acts on it. An sp_fence between the
 * write and the read does the same. The pairs:
 *
 *   a thread's announce, `inside`   device->entered       gate.c; thread.c (membarrier is the fence of both sides)
 *   device->kick: there is work     device->asleep        keeper.c
 *   device->progress: there is room device->gate_waiters  keeper.c; wait.c
 *   `waiting_state`: keeper waits   state->dead           keeper.c; stream_state.c
 *   `records`: threads that record  captures              capture.c
 *   a process enters its turn       grant->word           sp_slot_enter; sp_grant_close
 *   a process has returned its turn grant->flags          keeper.c; sp_pressure_update
 *   a process's memory_used_bytes   that of the others    sp_region_memory_try
 *
 * One only: sp_exchange, sp_compare_exchange. Of several threads only one gets the old value. Ordered both ways.
 */
#ifndef SHAREPOD_ORDER_H
#define SHAREPOD_ORDER_H

#define sp_load(pointer)         __atomic_load_n(pointer, __ATOMIC_RELAXED)
#define sp_store(pointer, value) __atomic_store_n(pointer, value, __ATOMIC_RELAXED)
/* These two, and the two `full` ones below, return the value before. */
#define sp_add(pointer, value) __atomic_fetch_add(pointer, value, __ATOMIC_RELAXED)
#define sp_sub(pointer, value) __atomic_fetch_sub(pointer, value, __ATOMIC_RELAXED)

#define sp_load_acquire(pointer)         __atomic_load_n(pointer, __ATOMIC_ACQUIRE)
#define sp_store_release(pointer, value) __atomic_store_n(pointer, value, __ATOMIC_RELEASE)

#define sp_load_full(pointer)         __atomic_load_n(pointer, __ATOMIC_SEQ_CST)
#define sp_store_full(pointer, value) __atomic_store_n(pointer, value, __ATOMIC_SEQ_CST)
#define sp_add_full(pointer, value)   __atomic_fetch_add(pointer, value, __ATOMIC_SEQ_CST)
#define sp_sub_full(pointer, value)   __atomic_fetch_sub(pointer, value, __ATOMIC_SEQ_CST)

/* Returns the value before. */
#define sp_exchange(pointer, value) __atomic_exchange_n(pointer, value, __ATOMIC_SEQ_CST)
/* Store `value` if *pointer is *expected. False: it is not, and *expected becomes what it is. */
#define sp_compare_exchange(pointer, expected, value)                                                                  \
  __atomic_compare_exchange_n(pointer, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

/* No load or store moves across it. */
#define sp_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
/* What was written before it is seen by each thread that sees a later store. */
#define sp_fence_release() __atomic_thread_fence(__ATOMIC_RELEASE)
/* The compiler moves nothing across it; the processor may. For one side of a pair, if the other side makes all threads
 * pass a barrier. */
#define sp_fence_compiler() __atomic_signal_fence(__ATOMIC_SEQ_CST)

#endif
