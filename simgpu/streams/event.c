/* Events: records, queries, waits and times. CUDA's documentation tells what the exported functions do; a comment at
 * one tells only what is special here. */
#include "simgpu/api/process.h"

#include <stdlib.h>

#define EXTERNAL     1u /* flag of a record or a wait: in a capture it becomes a node of the graph, not an edge */
#define INTERPROCESS 4u /* CU_EVENT_INTERPROCESS */
#define EVENT_FLAGS  7u /* all that an event may have */

/* An event has a slot of the current context. While the slot's count of records is `base`, the event was not recorded
 * yet. Events for other processes are not simulated. */
EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags) {
  struct context *context;
  CUresult result = enter(&context);
  if (result)
    return result;
  if (!out || flags & ~EVENT_FLAGS || (flags & INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags & INTERPROCESS)
    return not_supported("interprocess events");
  struct event *event = handle_new(EVENT_HANDLE, sizeof *event);
  if (!event)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sg_lock(&process.state);
  event->slot = sg_event_new(shared_of(context));
  if (event->slot != SG_NONE)
    event->base = event->recorded = shared_of(context)->events[event->slot].recorded;
  sg_unlock(&process.state);
  if (event->slot == SG_NONE) {
    handle_free(event);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  event->context = context;
  event->flags = flags;
  *out = event;
  return CUDA_SUCCESS;
}

/* The slot may go to a new event while a record of this one is pending. That does no harm: the number of this record is
 * below those of the new event's records. */
EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  CUresult result = enter_anywhere();
  if (result)
    return result;
  if (!is_handle(event, EVENT_HANDLE))
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->context->slot != SG_NONE) {
    result = context_error(event->context);
    if (result)
      return result;
    sg_lock(&process.state);
    sg_event_free(shared_of(event->context), event->slot);
    sg_unlock(&process.state);
  }
  free(event->frontier);
  handle_free(event);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventDestroy(CUevent event) {
  return cuEventDestroy_v2(event);
}

/* Give the device a record of the event. From now on this record is the event's newest one. */
CUresult submit_record(struct stream *stream, struct event *event) {
  struct sg_item *item;
  if (!is_handle(event, EVENT_HANDLE) || event->context != stream->context)
    return CUDA_ERROR_INVALID_HANDLE;
  sg_lock(&process.state);
  CUresult result = take_item(stream->context, stream->lane, &item);
  if (!result) {
    item->kind = SG_RECORD;
    item->name = event->slot;
    item->duration_ns =
        event->flags & CU_EVENT_DISABLE_TIMING ? 0 : (uint64_t)process.state.shared->model.profile.record_gap_ns;
    sg_submit(process.state.shared, stream->context->slot, stream->lane, item, sg_now());
    event->recorded = shared_of(stream->context)->events[event->slot].recorded;
    event->capture_id = 0; /* the newest record is not a captured one */
  }
  sg_unlock(&process.state);
  return result;
}

/* Record an event in a stream. In a capture the event marks the nodes captured before; with EXTERNAL the record itself
 * becomes a node. */
static CUresult record(CUevent event, CUstream handle, unsigned flags) {
  uint64_t entry_ns = sg_now();
  struct context *context;
  struct stream *stream;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (result)
    return result;
  if (!is_handle(event, EVENT_HANDLE) || event->context != stream->context)
    return CUDA_ERROR_INVALID_HANDLE;
  bool timed = !(event->flags & CU_EVENT_DISABLE_TIMING);
  /* Spend the call's cost first: what other threads do in that time then comes before the record. */
  burn(entry_ns, timed ? process.settings.record_cost_ns : process.settings.plain_record_cost_ns);
  result = legacy_conflict(stream);
  if (result)
    return result;
  if (is_capturing(stream))
    return flags & EXTERNAL ? capture_external(stream, event, /* record */ true) : capture_record(stream, event);
  if (flags & EXTERNAL) /* the flag only has a meaning in a capture */
    return CUDA_ERROR_INVALID_VALUE;
  return submit_record(stream, event);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  return record(event, stream, 0);
}
EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return flags > EXTERNAL ? CUDA_ERROR_INVALID_VALUE : record(event, stream, flags);
}

/* Whether the event can be queried or waited for. Any thread may do that, whatever context is current in it. For a
 * captured event the answer is an error, and its capture becomes invalid. */
static CUresult usable(CUevent event) {
  CUresult result = enter_anywhere();
  if (result)
    return result;
  if (!is_handle(event, EVENT_HANDLE) || event->context->slot == SG_NONE)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture_id)
    return captured_event(event);
  return context_error(event->context);
}

/* With the state locked: whether the event's newest record is complete. An event that was never recorded counts as
 * complete. */
static bool complete(CUevent event) {
  return event->recorded == event->base || shared_of(event->context)->events[event->slot].completed >= event->recorded;
}

/* Tell whether the newest record is complete. An event that was never recorded counts as complete. */
EXPORT CUresult cuEventQuery(CUevent event) {
  uint64_t entry_ns = sg_now();
  CUresult result = usable(event);
  if (!result || result == CUDA_ERROR_CAPTURED_EVENT) {
    CUresult unsafe = unsafe_call(); /* also for a captured event: it makes other captures invalid */
    result = result ? result : unsafe;
  }
  if (result)
    return result;
  burn(entry_ns, process.settings.query_cost_ns);
  sg_lock_advanced(&process.state);
  bool over = complete(event);
  sg_unlock(&process.state);
  if (over)
    run_effects();
  return over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* Wait for the newest record. An event that was never recorded counts as complete. */
EXPORT CUresult cuEventSynchronize(CUevent event) {
  CUresult result = usable(event);
  if (!result || result == CUDA_ERROR_CAPTURED_EVENT) {
    CUresult unsafe = unsafe_call(); /* also for a captured event: it makes other captures invalid */
    result = result ? result : unsafe;
  }
  if (result || event->recorded == event->base)
    return result;
  result = wait_event(event->context, event->slot, event->recorded);
  if (!result)
    pools_synchronized();
  return result;
}

/* With the state locked: the timestamp of the event's newest completed record, by the clock of its device. */
static int64_t time_of(CUevent event) {
  const struct sg_context *context = shared_of(event->context);
  return sg_event_clock(&process.state.shared->model.profile, context->device,
                        context->events[event->slot].completed_ns);
}

/* The time goes by the clocks of the events' devices, which run in steps and drift: see sg_event_clock. */
EXPORT CUresult cuEventElapsedTime_v2(float *out_ms, CUevent start, CUevent end) {
  CUresult result = usable(start);
  if (!result)
    result = usable(end);
  if (result)
    return result;
  if (!out_ms || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || start->recorded == start->base ||
      end->recorded == end->base)
    return CUDA_ERROR_INVALID_HANDLE;
  sg_lock_advanced(&process.state);
  bool over = complete(start) && complete(end);
  int64_t from_ns = time_of(start), to_ns = time_of(end);
  sg_unlock(&process.state);
  if (!over)
    return CUDA_ERROR_NOT_READY;
  *out_ms = (float)((double)(to_ns - from_ns) / 1e6);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventElapsedTime(float *out_ms, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(out_ms, start, end);
}

/* Let the stream wait for the newest record of the event. */
CUresult submit_wait(struct stream *stream, const struct event *event) {
  if (!is_handle(event, EVENT_HANDLE))
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->recorded == event->base || event->context->slot == SG_NONE) /* never recorded, or its context has ended */
    return CUDA_SUCCESS;
  struct sg_item wait = {.kind = SG_WAIT, .name = event->slot, .peer = event->context->slot, .seq = event->recorded};
  return submit(stream, wait, NULL, NULL);
}

/* In a capture the wait becomes edges of the graph, or with EXTERNAL a node of its own. */
EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  struct context *context;
  struct stream *stream;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (result)
    return result;
  if (flags > EXTERNAL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_handle(event, EVENT_HANDLE))
    return CUDA_ERROR_INVALID_HANDLE;
  bool handled = false;
  result = legacy_conflict(stream);
  if (!result && flags & EXTERNAL)
    return is_capturing(stream) ? capture_external(stream, event, /* record */ false) : CUDA_ERROR_INVALID_VALUE;
  if (!result)
    result = capture_wait(stream, event, &handled); /* handled: it became edges of a captured graph */
  return result || handled ? result : submit_wait(stream, event);
}
