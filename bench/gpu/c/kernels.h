/*
 * The probe's own kernels, as PTX text that the driver compiles at load, so that no CUDA toolkit is needed.
 *
 * work    a fixed number of loop iterations in every block, so the amount of work is fixed: if it is sliced out or
 *         slowed, it takes longer. The first thread of each block stamps %globaltimer, the device's clock, at begin and
 *         end into the log: the device's own record of what ran when, comparable between processes.
 * heavy   the same with everything that a context can have on a multiprocessor: 64 registers in each of 1,024 threads,
 *         all available shared memory, and a stream of reads.
 * ticks   writes %globaltimer to host memory again and again: maps the device's clock to the host's.
 *
 * On the simulated device kernels compute nothing and last as long as their names say (`work_500us`).
 */
#ifndef SHAREPOD_GPU_KERNELS_H
#define SHAREPOD_GPU_KERNELS_H

#include "client.h"

/* The log in device memory: this header, then one slot per kernel. All zero at first. */
struct log_header {
  uint32_t tickets; /* ended blocks; work kernels of one stream run one after the other */
  uint32_t sink;    /* keeps the compiler from folding the loop away */
  uint32_t reserved[14];
};
struct log_slot {
  /* ~(the least start of its blocks): atomics can only take the greatest, and memory begins as zero */
  uint64_t not_started;
  uint64_t ended; /* the greatest end */
};
_Static_assert(sizeof(struct log_header) == 64 && sizeof(struct log_slot) == 16, "the PTX has these numbers");

struct log {
  device_pointer address;
  uint32_t capacity; /* slots; later kernels are counted, not logged */
};

struct kernel {
  void *function;
  uint64_t unit_ns;
  uint32_t iterations, blocks, threads, shared_bytes;
  device_pointer stream; /* STREAM_BYTES that a heavy kernel reads */
};
#define STREAM_BYTES (256u << 20) /* more than any cache holds; a power of two */

/* The text of a module with a work kernel for every duration, heavy or not. The caller frees it. */
char *write_ptx(const uint64_t *units_ns, size_t count, bool heavy);
void load_kernels(const uint64_t *units_ns, size_t count, bool heavy);
void *find_timed(const char *prefix, uint64_t unit_ns);

struct log make_log(uint32_t capacity);
/* Clear the log. The stream must be idle. */
void clear_log(const struct log *log);
/* Copy the header and the slots to the host. The caller frees `*slots`. */
struct log_header read_log(const struct log *log, struct log_slot **slots);

/* Launch a work kernel. Returns 0 or the driver's error. */
int launch_work(const struct kernel *kernel, const struct log *log, void *stream);
/* An executable graph of `nodes` such kernels, one after the other. */
void *graph_of(const struct kernel *kernel, const struct log *log, void *stream, uint64_t nodes);

#endif
