/*
 * The recorder's log: the calls that a program made, as they are written down and to a file.
 */
#ifndef SHAREPOD_GPU_RECORD_LOG_H
#define SHAREPOD_GPU_RECORD_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define NO_RECORD UINT32_MAX

enum verb {
  LAUNCH,
  CAPTURED,
  RUN,
  CAPTURE,
  CAPTURED_AS,
  INSTANTIATE,
  RECORD,
  WAIT,
  SYNC_STREAM,
  SYNC_EVENT,
  SYNC_CONTEXT,
  HTOD,
  DTOH,
  DTOD,
  SET,
  HTOD_SYNC,
  DTOH_SYNC,
  LINEAR,
  MANAGED,
  PITCHED,
  ASYNC,
  HOST,
  FREE,
  BEGIN,
  END
};

/* One call that is under way. */
struct call {
  uint64_t begin_ns, cpu_ns;
  bool nested; /* a wrapper below another: one of the two was asked for by the program */
};

/* Make room for the log. Nothing is written down before. */
void log_open(void);
bool log_is_open(void);
bool log_is_empty(void);

struct call enter(void);
/* Its number, or NO_RECORD when there is no room. */
uint32_t note(const struct call *call, enum verb verb, uint64_t a, uint64_t b, uint64_t c);
/* The time is read last: all that we did is inside the call. */
void leave(const struct call *call, uint32_t record);

/* What the calling thread does from here is not the program's. */
void log_suspend(bool suspended);

/* How long the work of a record ran on the device. */
void note_duration(uint32_t record, uint64_t duration_ns);
/* What a handle is called; a stream has its flags as a name. */
void note_name(uint64_t handle, const char *text);

uint64_t log_lost(void);
void log_print(FILE *file);

#endif
