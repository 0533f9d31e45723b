/*
 * The probe's own kernels, as PTX text that the driver compiles at load, so that no CUDA toolkit is needed.
 *
 * work    a fixed number of loop iterations in every block, so that work is work: sliced out or slowed, it takes
 *         longer. The first thread of each block stamps %globaltimer, the device's clock, at begin and end, into the
 *         log: the device's own record of what ran when, comparable between processes.
 * heavy   the same with all that a context can have on a multiprocessor: 64 registers in each of 1,024 threads, shared
 *         memory as far as there is, and a stream of reads.
 * ticks   writes %globaltimer to host memory again and again: maps the device's clock to the host's.
 *
 * On the simulated device kernels compute nothing and last as long as their names say (`work_500us`).
 */
#ifndef SHAREPOD_GPU_KERNELS_H
#define SHAREPOD_GPU_KERNELS_H

#include "client.h"

/* The log in device memory: this header, then one slot per kernel. All zero at first. */
struct log_header {
  uint32_t tickets; /* blocks that have ended; work kernels of one stream run one after the other */
  uint32_t sink;    /* keeps the compiler from folding the loop away */
  uint32_t reserved[14];
};
struct log_slot {
  /* ~the least start of its blocks: atomics can only take the greatest, and zero is memory's state */
  uint64_t not_started;
  uint64_t ended; /* the greatest end */
};
_Static_assert(sizeof(struct log_header) == 64 && sizeof(struct log_slot) == 16, "the PTX has these numbers");

struct log {
  device_pointer address;
  uint32_t capacity; /* slots; kernels past it are counted, not logged */
};

struct kernel {
  void *function;
  uint64_t unit_ns;
  uint32_t iterations, blocks, threads, shared_bytes;
  device_pointer stream; /* what a heavy one reads, of STREAM_BYTES */
};
#define STREAM_BYTES (256u << 20) /* more than any cache holds; a power of two */

/* The module with a work kernel for every duration, heavy or not, as text; the caller's to free. */
char *write_ptx(const uint64_t *units_ns, size_t count, bool heavy);
void load_kernels(const uint64_t *units_ns, size_t count, bool heavy);
void *find_timed(const char *prefix, uint64_t unit_ns);

struct log make_log(uint32_t capacity);
/* Forget what is logged; the stream must be idle. */
void clear_log(const struct log *log);
/* The header and the slots, copied to the host; `*slots` is the caller's to free. */
struct log_header read_log(const struct log *log, struct log_slot **slots);

/* Launch a work kernel; 0 or the driver's error. */
int launch_work(const struct kernel *kernel, const struct log *log, void *stream);
/* An executable graph of so many of them, one after the other. */
void *graph_of(const struct kernel *kernel, const struct log *log, void *stream, uint64_t nodes);

#endif
