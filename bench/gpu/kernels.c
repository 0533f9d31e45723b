#define _GNU_SOURCE
#include "kernels.h"
#include "start.h"

static const char header[] = ".version 6.0\n"
                             ".target sm_50\n"
                             ".address_size 64\n";

/* slot = ticket / blocks: no block of a launch ends before all those of the launch before it have. */
static const char work[] = ".visible .entry work_%s(.param .u64 log, .param .u32 capacity, .param .u32 iterations) {\n"
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
                           "again:\n"
                           "  setp.ge.u32 %%p, %%i, %%n;\n"
                           "  @%%p bra worked;\n"
                           "  mad.lo.u32 %%x, %%x, 1664525, 1013904223;\n"
                           "  add.u32 %%i, %%i, 1;\n"
                           "  bra again;\n"
                           "worked:\n"
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

/* The first thread of each block watches the clock. Its warp has no other; further warps wait at the barrier, so that
 * their registers are there to be saved and nobody crowds the clock. */
static const char slices[] = ".visible .entry slices_%s(.param .u64 log, .param .u32 capacity,\n"
                             "    .param .u64 threshold, .param .u64 duration) {\n"
                             "  .reg .pred %%p, %%logs;\n"
                             "  .reg .u32 %%room, %%t, %%b, %%gaps;\n"
                             "  .reg .u64 %%log, %%at, %%over, %%stop, %%start, %%last, %%now, %%gap;\n"
                             "  ld.param.u64 %%log, [log];\n"
                             "  ld.param.u32 %%room, [capacity];\n"
                             "  ld.param.u64 %%over, [threshold];\n"
                             "  ld.param.u64 %%stop, [duration];\n"
                             "  cvta.to.global.u64 %%log, %%log;\n"
                             "  mov.u32 %%t, %%tid.x;\n"
                             "  setp.ge.u32 %%p, %%t, 32;\n"
                             "  @%%p bra wait;\n"
                             "  setp.ne.u32 %%p, %%t, 0;\n"
                             "  @%%p bra done;\n"
                             "  mov.u32 %%b, %%ctaid.x;\n"
                             "  setp.eq.u32 %%logs, %%b, 0;\n"
                             "  mov.u32 %%gaps, 0;\n"
                             "  mov.u64 %%start, %%globaltimer;\n"
                             "  add.u64 %%stop, %%stop, %%start;\n"
                             "  mov.u64 %%last, %%start;\n"
                             "again:\n"
                             "  mov.u64 %%now, %%globaltimer;\n"
                             "  sub.u64 %%gap, %%now, %%last;\n"
                             "  setp.gt.and.u64 %%p, %%gap, %%over, %%logs;\n"
                             "  @!%%p bra went_on;\n"
                             "  setp.ge.u32 %%p, %%gaps, %%room;\n"
                             "  @%%p bra went_on;\n"
                             "  mul.wide.u32 %%at, %%gaps, 16;\n"
                             "  add.u64 %%at, %%at, %%log;\n"
                             "  not.b64 %%last, %%last;\n"
                             "  st.global.u64 [%%at+64], %%last;\n"
                             "  st.global.u64 [%%at+72], %%now;\n"
                             "  add.u32 %%gaps, %%gaps, 1;\n"
                             "went_on:\n"
                             "  mov.u64 %%last, %%now;\n"
                             "  setp.lt.u64 %%p, %%now, %%stop;\n"
                             "  @%%p bra again;\n"
                             "  @!%%logs bra wait;\n"
                             "  st.global.u32 [%%log+8], %%gaps;\n"
                             "  st.global.u64 [%%log+16], %%start;\n"
                             "  st.global.u64 [%%log+24], %%now;\n"
                             "wait:\n"
                             "  bar.sync 0;\n"
                             "done:\n"
                             "  ret;\n"
                             "}\n";

#define PREFIX 2 /* of the names that client.h makes of a duration: `k_` */

static void *module;

void load_kernels(const uint64_t *units_ns, size_t count) {
  size_t size = sizeof header + sizeof ticks + count * (sizeof work + sizeof slices + 128);
  char *ptx = allocate(size, 1), name[48];
  size_t used = (size_t)snprintf(ptx, size, "%s%s", header, ticks);
  for (size_t i = 0; i < count; i++) {
    kernel_name(name, sizeof name, units_ns[i]);
    used += (size_t)snprintf(ptx + used, size - used, work, name + PREFIX);
    used += (size_t)snprintf(ptx + used, size - used, slices, name + PREFIX);
  }
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
  uint64_t address = log->address;
  uint32_t capacity = log->capacity, iterations = kernel->iterations;
  void *parameters[] = {&address, &capacity, &iterations};
  return cuLaunchKernel(kernel->function, kernel->blocks, 1, 1, kernel->threads, 1, 1, 0, stream, parameters, NULL);
}

void *graph_of(const struct kernel *kernel, const struct log *log, void *stream, uint64_t nodes) {
  begin_capture(stream);
  for (uint64_t i = 0; i < nodes; i++)
    check(launch_work(kernel, log, stream), "cuLaunchKernel");
  return end_capture(stream);
}
