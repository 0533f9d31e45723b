/* Words in a stream: writes, waits, and batches of both. The model gets an item for each. A write's effect is the
 * change of memory that the process makes itself once the model has passed the item. CUDA's documentation tells what
 * the exported functions do; a comment at one tells only what is special here. / */
#include "simgpu/graphs/graph.h"

enum { FLAG_NO_BARRIER = 1, FLAG_FLUSH = 1 << 30 };

/* Whether the operation writes a word. */
static bool is_write(const CUstreamBatchMemOpParams *operation) {
  return operation->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
         operation->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

/* The size of the operation's word: 8 bytes or 4. */
static uint32_t word_bytes(const CUstreamBatchMemOpParams *operation) {
  return operation->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 ||
                 operation->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64
             ? 8
             : 4;
}

/* Whether one operation can be simulated. A wait for a word outside the driver's memory is refused: the program could
 * free the word while the stream waits. */
static CUresult check_one(const CUstreamBatchMemOpParams *operation) {
  CUdeviceptr address = operation->waitValue.address;
  unsigned flags = operation->waitValue.flags;
  uint32_t bytes = word_bytes(operation);
  struct block block;
  if (operation->operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES || operation->operation == CU_STREAM_MEM_OP_BARRIER)
    return CUDA_SUCCESS;
  if ((!is_write(operation) && !waits_for_word(operation)) || !address || address % bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (is_write(operation))
    return flags & ~(unsigned)FLAG_NO_BARRIER ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  bool known = find_block(address, &block) && address + bytes <= block.address + block.bytes;
  unsigned comparison = flags & ~(unsigned)FLAG_FLUSH; /* an sg_comparison: the numbers are the driver's */
  return known && comparison <= SG_NEITHER ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Whether all operations of a list can be simulated. An empty list is an error. */
CUresult check_operations(const CUstreamBatchMemOpParams *operations, unsigned count) {
  CUresult result = count && operations ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  for (unsigned n = 0; !result && n < count; n++)
    result = check_one(&operations[n]);
  return result;
}

/* Give one operation to the stream, after check_operations has accepted it. */
CUresult submit_operation(struct stream *stream, const CUstreamBatchMemOpParams *operation) {
  uint32_t bytes = word_bytes(operation);
  CUdeviceptr address = operation->waitValue.address;
  uint64_t value = bytes == 8 ? operation->waitValue.value64 : (uint32_t)operation->waitValue.value64;
  struct sg_item item = {.kind = SG_WRITE, .watch = address, .watch_bytes = bytes, .seq = value};
  if (is_write(operation)) {
    struct effect effect = {.kind = EFFECT_WRITE, .element = bytes, .value = value, .dst = (void *)(uintptr_t)address};
    return submit(stream, item, &effect, NULL);
  }
  if (!waits_for_word(operation))
    return CUDA_SUCCESS;                       /* a barrier or a flush: the owner writes in order anyway */
  struct effect empty = {.kind = EFFECT_LIST}; /* has no effect, but makes the owner poll the word */
  item.kind = SG_WATCH;
  item.peer = operation->waitValue.flags & ~(unsigned)FLAG_FLUSH;
  return submit(stream, item, &empty, NULL);
}

/* Check a list of operations and give them to the stream. If the stream is capturing, the list becomes one node. The
 * call's cost in CPU time counts from `entry_ns`. */
static CUresult issue_operations(CUstream handle, CUstreamBatchMemOpParams *operations, unsigned count,
                                 uint64_t entry_ns) {
  struct context *context;
  struct stream *stream;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (!result)
    result = check_operations(operations, count);
  if (!result)
    result = legacy_conflict(stream);
  if (result)
    return result;
  if (is_capturing(stream)) {
    struct body body;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                                .memOp = {.ctx = stream->context, .count = count, .paramArray = operations}};
    result = body_make(&params, &body);
    if (!result)
      result = capture_node(stream, &body);
    if (result)
      body_free(&body);
    return result;
  }
  burn(entry_ns, process.settings.write_cost_ns);
  for (unsigned n = 0; !result && n < count; n++)
    result = submit_operation(stream, &operations[n]);
  return result;
}

EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations,
                                      unsigned flags) {
  uint64_t entry_ns = sg_now();
  return flags ? CUDA_ERROR_INVALID_VALUE : issue_operations(stream, operations, count, entry_ns);
}
EXPORT CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations,
                                   unsigned flags) {
  return cuStreamBatchMemOp_v2(stream, count, operations, flags);
}

/* A write of one word or a wait for one, in its newer form and the older one. */
#define ONE(name, operation_, value_type)                                                                              \
  EXPORT CUresult name##_v2(CUstream stream, CUdeviceptr address, value_type value, unsigned flags) {                  \
    uint64_t entry_ns = sg_now();                                                                                      \
    CUstreamBatchMemOpParams one = {.waitValue = {.operation = operation_, .address = address, .flags = flags}};       \
    one.waitValue.value64 = value;                                                                                     \
    return issue_operations(stream, &one, 1, entry_ns);                                                                \
  }                                                                                                                    \
  EXPORT CUresult name(CUstream stream, CUdeviceptr address, value_type value, unsigned flags) {                       \
    return name##_v2(stream, address, value, flags);                                                                   \
  }
ONE(cuStreamWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32, uint32_t)
ONE(cuStreamWriteValue64, CU_STREAM_MEM_OP_WRITE_VALUE_64, uint64_t)
ONE(cuStreamWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32, uint32_t)
ONE(cuStreamWaitValue64, CU_STREAM_MEM_OP_WAIT_VALUE_64, uint64_t)
