/*
 * Stream captures: counts the open ones, and records our events beside them. A program that captures must never get an
 * error that it would not get without the hook, nor find its capture invalid.
 */
#include "hook/gate/process.h"
#include "region/uncancelled.h"

static _Alignas(64) uint32_t records; /* how many threads are inside the driver to record an event of ours */

/* Is the stream capturing, or could a use of it disturb a capture? `per_thread`: NULL is the calling thread's own
 * stream. */
bool sp_stream_capturing(void *stream, bool per_thread) {
  const struct sp_driver *driver = sp_driver();
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = CUDA_SUCCESS;
  if (per_thread && driver->cuStreamIsCapturing_ptsz)
    result = driver->cuStreamIsCapturing_ptsz(stream, &status);
  else if (driver->cuStreamIsCapturing)
    result = driver->cuStreamIsCapturing(stream, &status);
  /* An error: it is the legacy stream, and a capture that it would join is open. Any use of it would invalidate that.
   */
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Decrement the count, unless it is 0. False: it was 0. */
static bool decrement(uint32_t *count) {
  uint32_t before = sp_load(count);
  while (before && !sp_compare_exchange(count, &before, before - 1)) {
  }
  return before != 0;
}

/* Count a capture that is about to begin, and wait until no thread is recording an event. */
void sp_streams_capture_begin(void *stream) {
  struct sp_stream_state *state = sp_stream_of_handle(stream);
  sp_add_full(&sp_this_process.captures, 1);
  if (state)
    sp_add(&state->captures, 1);
  /* A thread that has not seen the new count must finish its record before the capture begins. It may be waiting for
   * room in its stream, so wait for it, but for 100 ms at most. Pairs with sp_stream_record. */
  for (int look = 0; look < SP_LOOKS_MAX && sp_load_full(&records); look++)
    sp_sleep_ns(SP_LOOK_NS);
}

/* A capture that began in this stream has ended: it does not count any more. */
void sp_streams_capture_end(void *stream) {
  struct sp_stream_state *state = sp_stream_of_handle(stream);
  if (state)
    decrement(&state->captures);
  decrement(&sp_this_process.captures);
}

/* The stream is gone, and with it all captures that began there: they do not count any more. */
void sp_captures_end_with(struct sp_stream_state *state) {
  while (decrement(&state->captures))
    decrement(&sp_this_process.captures);
}

/* Is it the legacy stream, or a thread's own stream, into which other threads can record only through the legacy
 * stream? */
bool sp_stream_is_legacy(const struct sp_stream_state *state) {
  return state->owner_thread || ((state->stream == NULL || state->stream == CU_STREAM_LEGACY) && !state->per_thread);
}

/* Record the event. The caller knows that this disturbs no capture: see sp_stream_record. */
static CUresult record_now(CUevent event, void *stream, bool per_thread) {
  const struct sp_driver *driver = sp_driver();
  if (per_thread && driver->cuEventRecord_ptsz)
    return driver->cuEventRecord_ptsz(event, stream);
  return driver->cuEventRecord(event, stream);
}

/* Record while a capture is open, which any stream may join at any moment. In the legacy stream a record would then
 * invalidate the capture, so only a thread that launches there anyway may record. In another stream the event would
 * become part of the capture, and must not be waited for: so after the record the stream is checked again. `allowed`:
 * it is not the legacy stream, or the thread launches there. An error: the event must not be waited for. */
static CUresult record_beside_captures(CUevent event, void *stream, bool per_thread, bool allowed) {
  if (!allowed || sp_stream_capturing(stream, per_thread))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  CUresult result = record_now(event, stream, per_thread);
  return result == CUDA_SUCCESS && sp_stream_capturing(stream, per_thread) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                                                           : result;
}

/* Record the event into the stream, unless that could disturb a capture. If it is another thread's own stream, record
 * into the legacy stream, which waits for it. `launching`: the caller launches into the stream anyway. `recording` (may
 * be NULL) names the state during the driver's call, so that a jump out of it can be undone. An error: the event must
 * not be waited for. */
CUresult sp_stream_record(struct sp_stream_state *state, CUevent event, bool launching,
                          struct sp_recording *recording) {
  void *stream = state->stream;
  bool per_thread = state->per_thread;
  struct sp_thread *self = state->owner_thread ? sp_thread_known() : NULL;
  if (state->owner_thread && (!self || sp_thread_index(self) + 1 != state->owner_thread)) {
    stream = CU_STREAM_LEGACY;
    per_thread = false;
    launching = false;
  }
  bool legacy = !per_thread && (stream == NULL || stream == CU_STREAM_LEGACY);
  sp_add_full(&records, 1); /* pairs with sp_streams_capture_begin */
  if (recording)
    sp_store(&recording->state, state);
  CUresult result = sp_load_full(&sp_this_process.captures)
                        ? record_beside_captures(event, stream, per_thread, launching || !legacy)
                        : record_now(event, stream, per_thread);
  if (recording && recording->undone) /* sp_stream_record_left has counted it */
    return result;
  if (recording)
    sp_store(&recording->state, NULL);
  sp_sub_full(&records, 1);
  return result;
}

/* A thread has left the driver's call of sp_stream_record by a jump: it is no longer inside the driver. */
void sp_stream_record_left(void) {
  sp_sub_full(&records, 1);
}
