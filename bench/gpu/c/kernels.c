/* The probe's kernels: writes their PTX, loads and launches them, and reads their log. */
#define _GNU_SOURCE
#include "kernels.h"
#include "start.h"

static const char header[] = ".version 6.0\n"
                             ".target sm_50\n"
                             ".address_size 64\n"
                             ".extern .shared .align 16 .b8 own[];\n";

/*
 * A work kernel: its prefix and name, its directives, its setup, the work of each iteration, and the rest.
 * Each block takes a ticket when it ends. Its kernel's slot is ticket / blocks, because no block of a launch ends
 * before all blocks of the previous launch have ended.
 */
static const char work[] = ".visible .entry %s_%s(.param .u64 log, .param .u32 capacity, .param .u32 iterations,\n"
                           "    .param .u64 stream) %s {\n"
                           "  .reg .pred %%p;\n"
                           "  .reg .u32 %%x, %%i, %%n, %%t, %%slot, %%room;\n"
                           "  .reg .u64 %%at, %%log, %%start, %%end;\n"
                           "  ld.param.u64 %%log, [log];\n"
                           "  ld.param.u32 %%room, [capacity];\n"
                           "  ld.param.u32 %%n, [iterations];\n"
                           "  cvta.to.global.u64 %%log, %%log;\n"
                           "  mov.u64 %%start, %%globaltimer;\n"
                           "  mov.u32 %%x, %%tid.x;\n"
                           "  mov.u32 %%i, 0;\n"
                           "%s"
                           "again:\n"
                           "  setp.ge.u32 %%p, %%i, %%n;\n"
                           "  @%%p bra worked;\n"
                           "  mad.lo.u32 %%x, %%x, 1664525, 1013904223;\n"
                           "%s"
                           "  add.u32 %%i, %%i, 1;\n"
                           "  bra again;\n"
                           "worked:\n"
                           "%s"
                           "  setp.eq.u32 %%p, %%x, 305419896;\n"
                           "  @%%p st.global.u32 [%%log+4], %%x;\n"
                           "  mov.u32 %%t, %%tid.x;\n"
                           "  setp.ne.u32 %%p, %%t, 0;\n"
                           "  @%%p bra done;\n"
                           "  mov.u64 %%end, %%globaltimer;\n"
                           "  mov.u32 %%t, %%nctaid.x;\n"
                           "  atom.global.add.u32 %%slot, [%%log], 1;\n"
                           "  div.u32 %%slot, %%slot, %%t;\n"
                           "  setp.ge.u32 %%p, %%slot, %%room;\n"
                           "  @%%p bra done;\n"
                           "  mul.wide.u32 %%at, %%slot, 16;\n"
                           "  add.u64 %%at, %%at, %%log;\n"
                           "  not.b64 %%start, %%start;\n"
                           "  red.global.max.u64 [%%at+64], %%start;\n"
                           "  red.global.max.u64 [%%at+72], %%end;\n"
                           "done:\n"
                           "  ret;\n"
                           "}\n";

/* What makes a kernel heavy: HEAVY_LIVE values that stay in registers (with the rest about 64, all that a block of
 * 1,024 threads can have), a store into the block's dynamic shared memory, and a read that no cache holds. */
#define HEAVY_LIVE 50u
static const char heavy_setup[] = "  .reg .u32 %%h<%u>, %%v, %%o, %%s;\n"
                                  "  .reg .u64 %%from, %%w;\n"
                                  "  ld.param.u64 %%from, [stream];\n"
                                  "  cvta.to.global.u64 %%from, %%from;\n"
                                  "  mov.u32 %%s, own;\n"
                                  "  mad.lo.u32 %%s, %%x, 4, %%s;\n"
                                  "  mov.u32 %%o, %%ctaid.x;\n"
                                  "  shl.b32 %%o, %%o, 12;\n"
                                  "  mad.lo.u32 %%o, %%x, 4, %%o;\n";
static const char heavy_step[] = "  and.b32 %%o, %%o, %u;\n"
                                 "  cvt.u64.u32 %%w, %%o;\n"
                                 "  add.u64 %%w, %%w, %%from;\n"
                                 "  ld.global.cs.u32 %%v, [%%w];\n"
                                 "  add.u32 %%o, %%o, 1048576;\n"
                                 "  add.u32 %%h0, %%h0, %%v;\n"
                                 "  st.volatile.shared.u32 [%%s], %%h1;\n";

static const char ticks[] = ".visible .entry ticks_1ms(.param .u64 ticks, .param .u32 count) {\n"
                            "  .reg .pred %p;\n"
                            "  .reg .u32 %i, %n;\n"
                            "  .reg .u64 %at, %now;\n"
                            "  ld.param.u64 %at, [ticks];\n"
                            "  ld.param.u32 %n, [count];\n"
                            "  cvta.to.global.u64 %at, %at;\n"
                            "  mov.u32 %i, 0;\n"
                            "again:\n"
                            "  setp.ge.u32 %p, %i, %n;\n"
                            "  @%p bra done;\n"
                            "  mov.u64 %now, %globaltimer;\n"
                            "  st.volatile.global.u64 [%at], %now;\n"
                            "  membar.sys;\n"
                            "  add.u64 %at, %at, 8;\n"
                            "  add.u32 %i, %i, 1;\n"
                            "  bra again;\n"
                            "done:\n"
                            "  ret;\n"
                            "}\n";

#define PREFIX 2 /* `k_`, at the start of the names that client.h makes of a duration */

static void *module;

/* Write one line of PTX for every live value of a heavy kernel. `line` takes its number, and then the next number. */
static void each_live(char *to, size_t size, const char *line) {
  size_t used = 0;
  for (unsigned i = 0; i < HEAVY_LIVE; i++)
    used += (size_t)snprintf(to + used, size - used, line, i, i, (i + 1) % HEAVY_LIVE);
}

char *write_ptx(const uint64_t *units_ns, size_t count, bool heavy) {
  static char setup[4096], step[8192], rest[4096];
  if (heavy) {
    size_t used = (size_t)snprintf(setup, sizeof setup, heavy_setup, HEAVY_LIVE);
    each_live(setup + used, sizeof setup - used, "  add.u32 %%h%u, %%x, %u; // %u\n");
    used = (size_t)snprintf(step, sizeof step, heavy_step, STREAM_BYTES - 1);
    each_live(step + used, sizeof step - used, "  mad.lo.u32 %%h%u, %%h%u, 1664525, %%h%u;\n");
    each_live(rest, sizeof rest, "  xor.b32 %%x, %%x, %%h%u; // %u %u\n");
  }
  size_t size = sizeof header + sizeof ticks + count * (sizeof work + sizeof setup + sizeof step + sizeof rest);
  char *ptx = allocate(size, 1), name[48];
  size_t used = (size_t)snprintf(ptx, size, "%s%s", header, ticks);
  for (size_t i = 0; i < count; i++) {
    kernel_name(name, sizeof name, units_ns[i]);
    used += (size_t)snprintf(ptx + used, size - used, work, heavy ? "heavy" : "work", name + PREFIX,
                             heavy ? ".maxntid 1024, 1, 1" : "", setup, step, rest);
  }
  return ptx;
}

void load_kernels(const uint64_t *units_ns, size_t count, bool heavy) {
  char *ptx = write_ptx(units_ns, count, heavy);
  CALL(cuModuleLoadData, &module, ptx);
  free(ptx);
}

void *find_timed(const char *prefix, uint64_t unit_ns) {
  char name[96], duration[48];
  void *function = NULL;
  kernel_name(duration, sizeof duration, unit_ns);
  snprintf(name, sizeof name, "%s_%s", prefix, duration + PREFIX);
  CALL(cuModuleGetFunction, &function, module, name);
  return function;
}

static size_t log_bytes(uint32_t capacity) {
  return sizeof(struct log_header) + capacity * sizeof(struct log_slot);
}

void clear_log(const struct log *log) {
  CALL(cuMemsetD32, log->address, 0, log_bytes(log->capacity) / 4);
  CALL(cuStreamSynchronize, NULL);
}

struct log make_log(uint32_t capacity) {
  struct log log = {.capacity = capacity};
  CALL(cuMemAlloc, &log.address, log_bytes(capacity));
  clear_log(&log);
  return log;
}

struct log_header read_log(const struct log *log, struct log_slot **slots) {
  char *copy = allocate(log_bytes(log->capacity), 1);
  struct log_header head;
  CALL(cuMemcpyDtoH, copy, log->address, log_bytes(log->capacity));
  memcpy(&head, copy, sizeof head);
  *slots = allocate(log->capacity, sizeof **slots);
  memcpy(*slots, copy + sizeof head, log->capacity * sizeof **slots);
  free(copy);
  return head;
}

int launch_work(const struct kernel *kernel, const struct log *log, void *stream) {
  uint64_t address = log->address, from = kernel->stream;
  uint32_t capacity = log->capacity, iterations = kernel->iterations;
  void *parameters[] = {&address, &capacity, &iterations, &from};
  return cuLaunchKernel(kernel->function, kernel->blocks, 1, 1, kernel->threads, 1, 1, kernel->shared_bytes, stream,
                        parameters, NULL);
}

void *graph_of(const struct kernel *kernel, const struct log *log, void *stream, uint64_t nodes) {
  begin_capture(stream);
  for (uint64_t i = 0; i < nodes; i++)
    check(launch_work(kernel, log, stream), "cuLaunchKernel");
  return end_capture(stream);
}
