/*
 * The orders of all atomic operations, named once. No other file of the hook, the region and the arbiter names an
 * order.
 *
 *   relaxed   sp_load, sp_store, sp_add, sp_sub: the word says nothing about any other. Counters, hints, and words that
 *             a lock or another operation of this page orders.
 *   one way   sp_store_release, sp_load_acquire: one thread prepares something and then stores the word; a thread that
 *             loads this value sees what was prepared.
 *   two ways  sp_store_full, sp_add_full, sp_sub_full, then sp_load_full: each of two threads writes a word of its own
 *             and then reads the other's word. At least one of the two sees the other's write, so that at least one
 * acts on it. sp_fence between a write and a read does the same. one only  sp_exchange, sp_compare_exchange: of several
 * threads only one gets the old value. Ordered both ways.
 *
 * The pairs that go two ways:
 *   a thread's announce, `inside`         device->entered       gate.c; sp_barrier: membarrier is the fence of both sides
 *   device->kick, there is more to do     device->asleep        keeper.c
 *   device->progress, the budget has room device->gate_waiters  keeper.c; wait.c
 *   the keeper waits, `waiting_state`     state->dead           keeper.c; stream_state.c
 *   threads that record, `records`        captures              capture.c
 *   a process reports that it enters      grant->word           sp_slot_enter; sp_grant_close
 *   a process reports that a turn is over grant->flags          keeper.c; sp_pressure_update
 *   memory_used_bytes of one process      that of the others    sp_region_memory_try
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
