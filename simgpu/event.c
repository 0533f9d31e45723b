#include "process.h"

#include <stdlib.h>

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags) {
  struct context *context;
  CUresult result = enter(&context);
  if (result)
    return result;
  if (!out || flags & ~7u || (flags & 4 && !(flags & EVENT_DISABLE_TIMING)))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags & 4)
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

/* A pending record keeps its number, which is below those of whoever gets the slot next. */
EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  struct context *context;
  CUresult result = enter(&context);
  if (result)
    return result;
  if (!is_handle(event, EVENT_HANDLE))
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->context->slot != SG_NONE) {
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

EXPORT CUresult cuEventRecord(CUevent event, CUstream handle) {
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
  result = legacy_conflict(stream);
  if (result)
    return result;
  if (is_capturing(stream))
    return capture_record(stream, event);
  burn(entry_ns, process.settings.record_cost_ns);
  struct sg_item *item;
  sg_lock(&process.state);
  result = take_item(stream->context, stream->lane, &item);
  if (!result) {
    item->kind = SG_RECORD;
    item->name = event->slot;
    sg_submit(process.state.shared, stream->context->slot, stream->lane, item, sg_now());
    event->recorded = shared_of(stream->context)->events[event->slot].recorded;
    event->capture_id = 0;
  }
  sg_unlock(&process.state);
  return result;
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuEventRecord(event, stream);
}

static CUresult usable(CUevent event, struct context **context) {
  CUresult result = enter(context);
  if (result)
    return result;
  if (!is_handle(event, EVENT_HANDLE) || event->context->slot == SG_NONE)
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture_id)
    return CUDA_ERROR_CAPTURED_EVENT;
  return context_error(event->context);
}

/* With the state locked. An event that was never recorded counts as complete. */
static bool complete(CUevent event) {
  return event->recorded == event->base || shared_of(event->context)->events[event->slot].completed >= event->recorded;
}

EXPORT CUresult cuEventQuery(CUevent event) {
  uint64_t entry_ns = sg_now();
  struct context *context;
  CUresult result = usable(event, &context);
  if (!result || result == CUDA_ERROR_CAPTURED_EVENT) {
    CUresult unsafe = unsafe_call();
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

EXPORT CUresult cuEventSynchronize(CUevent event) {
  struct context *context;
  CUresult result = usable(event, &context);
  if (!result || result == CUDA_ERROR_CAPTURED_EVENT) {
    CUresult unsafe = unsafe_call();
    result = result ? result : unsafe;
  }
  if (result || event->recorded == event->base)
    return result;
  return wait_event(event->context, event->slot, event->recorded);
}

EXPORT CUresult cuEventElapsedTime_v2(float *out_ms, CUevent start, CUevent end) {
  struct context *context;
  CUresult result = usable(start, &context);
  if (!result)
    result = usable(end, &context);
  if (result)
    return result;
  if (!out_ms || (start->flags | end->flags) & EVENT_DISABLE_TIMING || start->recorded == start->base ||
      end->recorded == end->base)
    return CUDA_ERROR_INVALID_HANDLE;
  sg_lock_advanced(&process.state);
  bool over = complete(start) && complete(end);
  uint64_t from_ns = shared_of(start->context)->events[start->slot].completed_ns;
  uint64_t to_ns = shared_of(end->context)->events[end->slot].completed_ns;
  sg_unlock(&process.state);
  if (!over)
    return CUDA_ERROR_NOT_READY;
  *out_ms = (float)((double)(int64_t)(to_ns - from_ns) / 1e6);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventElapsedTime(float *out_ms, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(out_ms, start, end);
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  struct context *context;
  struct stream *stream;
  CUresult result = enter(&context);
  if (!result)
    result = find_stream(handle, context, &stream);
  if (result)
    return result;
  if (flags > 1)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_handle(event, EVENT_HANDLE))
    return CUDA_ERROR_INVALID_HANDLE;
  bool handled = false;
  result = legacy_conflict(stream);
  if (!result)
    result = capture_wait(stream, event, &handled);
  if (result || handled || event->recorded == event->base || event->context->slot == SG_NONE)
    return result;
  struct sg_item wait = {.kind = SG_WAIT, .name = event->slot, .peer = event->context->slot, .seq = event->recorded};
  return submit(stream, wait, NULL, NULL);
}
