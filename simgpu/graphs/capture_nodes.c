/* Turns the work that a capturing stream is given into nodes of its graph. A body is what a node does. */
#include "simgpu/graphs/graph.h"

/* Add a node with this body to the stream's capture. `made` is the result of making the body: an error is passed on.
 * After an error the body has been freed. */
static CUresult add_body(struct stream *stream, struct body *body, CUresult made) {
  CUresult result = made ? made : capture_node(stream, body);
  if (result)
    body_free(body);
  return result;
}

/* An item with its effect (may be NULL) becomes a node. The effect is copied. */
CUresult capture_add(struct stream *stream, const struct sg_item *what, const struct effect *effect) {
  struct body body;
  CUresult made = body_of_item(what, effect, &body);
  return add_body(stream, &body, made);
}

/* A launch becomes a node. `item` is what launch_item has made of it. */
CUresult capture_kernel(struct stream *stream, const struct launch *launch, const struct sg_item *item) {
  struct body body = {.item = *item,
                      .params = {.type = CU_GRAPH_NODE_TYPE_KERNEL,
                                 .kernel = {.func = launch->function,
                                            .gridDimX = launch->grid[0],
                                            .gridDimY = launch->grid[1],
                                            .gridDimZ = launch->grid[2],
                                            .blockDimX = launch->block[0],
                                            .blockDimY = launch->block[1],
                                            .blockDimZ = launch->block[2],
                                            .ctx = stream->context}}};
  return add_body(stream, &body, CUDA_SUCCESS);
}

/* A stream-ordered allocation becomes a node. Its address is valid from now on; the device's memory is taken later. */
CUresult capture_alloc(struct stream *stream, size_t bytes, CUdeviceptr *out) {
  CUgraphNodeParams params = {
      .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
      .alloc = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE},
                .bytesize = bytes}};
  device_ordinal(stream->context->device, &params.alloc.poolProps.location.id);
  struct body body = {.params = params, .item.kind = SG_WRITE};
  CUresult result = graph_memory_new(stream->context->device, bytes, &body.memory);
  if (!result)
    body.params.alloc.dptr = graph_memory_address(body.memory);
  CUdeviceptr address = body.params.alloc.dptr;
  result = add_body(stream, &body, result);
  if (!result)
    *out = address;
  return result;
}

/* A stream-ordered free becomes a node. An error: no graph has allocated the memory. */
CUresult capture_free(struct stream *stream, const struct block *block) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free.dptr = block->address};
  struct body body;
  CUresult made = body_make(&params, &body);
  return add_body(stream, &body, made);
}

/* A record of the event, or (without `record`) a wait for it, becomes a node of its own. */
CUresult capture_external(struct stream *stream, struct event *event, bool record) {
  CUgraphNodeParams params = {.type = record ? CU_GRAPH_NODE_TYPE_EVENT_RECORD : CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                              .eventWait.event = event};
  struct body body;
  CUresult made = body_make(&params, &body);
  return add_body(stream, &body, made);
}
