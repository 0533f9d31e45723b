/*
 * Spans: when the device had work of ours. Streams of a process run side by side, and time in which several have work
 * counts once: the account is the length of the union of their spans.
 *
 * Markers finish in the order in which they were recorded. So the span of one stream can lie before a span of another
 * stream that is known already, and a gap that was counted as idle turns out to be work. The last gaps are kept for
 * that.
 */
#include <string.h>

#include "hook/gate/process.h"

/* Begin a new account at `from_ns`: no work is known to have run before that, and no gaps are kept. */
void sp_busy_begin(struct sp_busy_intervals *busy, int64_t from_ns) {
  busy->until_ns = from_ns;
  busy->count = 0;
}

/* Move to another scale, on which all times are larger by `by_ns`. */
void sp_busy_shift(struct sp_busy_intervals *busy, int64_t by_ns) {
  busy->until_ns += by_ns;
  for (uint32_t index = 0; index < busy->count; index++) {
    busy->gaps[index].from_ns += by_ns;
    busy->gaps[index].until_ns += by_ns;
  }
}

/* Add a gap in which no work ran; if there is no room, the oldest one is forgotten. */
static void remember(struct sp_busy_intervals *busy, int64_t from_ns, int64_t until_ns) {
  if (busy->count == SP_GAPS_MAX) {
    busy->count--;
    memmove(&busy->gaps[0], &busy->gaps[1], busy->count * sizeof busy->gaps[0]);
  }
  busy->gaps[busy->count].from_ns = from_ns;
  busy->gaps[busy->count].until_ns = until_ns;
  busy->count++;
}

/* Work ran from `from_ns` to `until_ns`: take that time out of the gaps. Returns how much of it was in gaps. */
static int64_t fill(struct sp_busy_intervals *busy, int64_t from_ns, int64_t until_ns) {
  int64_t filled_ns = 0, split_from_ns = 0, split_until_ns = 0; /* the part behind the work of a gap that it splits */
  uint32_t kept = 0;
  for (uint32_t index = 0; index < busy->count; index++) {
    int64_t low_ns = busy->gaps[index].from_ns, high_ns = busy->gaps[index].until_ns;
    int64_t first_ns = from_ns > low_ns ? from_ns : low_ns, last_ns = until_ns < high_ns ? until_ns : high_ns;
    if (first_ns < last_ns) {
      filled_ns += last_ns - first_ns;
      if (low_ns < first_ns && last_ns < high_ns) { /* the work is in the middle of this gap, so in no other one */
        split_from_ns = last_ns;
        split_until_ns = high_ns;
        high_ns = first_ns;
      } else if (low_ns < first_ns) {
        high_ns = first_ns;
      } else {
        low_ns = last_ns;
      }
    }
    if (low_ns < high_ns) {
      busy->gaps[kept].from_ns = low_ns;
      busy->gaps[kept].until_ns = high_ns;
      kept++;
    }
  }
  busy->count = kept;
  if (split_from_ns < split_until_ns)
    remember(busy, split_from_ns, split_until_ns);
  return filled_ns;
}

/* Work ran from `from_ns` to `until_ns`. Returns the idle time that this adds: the gap in front of it. Negative: a part
 * of what was idle turns out to be work. */
int64_t sp_busy_add(struct sp_busy_intervals *busy, int64_t from_ns, int64_t until_ns) {
  int64_t idle_ns = 0;
  if (from_ns > busy->until_ns) {
    idle_ns = from_ns - busy->until_ns;
    remember(busy, busy->until_ns, from_ns);
  } else {
    idle_ns = -fill(busy, from_ns, until_ns);
  }
  if (until_ns > busy->until_ns)
    busy->until_ns = until_ns;
  return idle_ns;
}

/* `work_ns` of work ran somewhere between the two times: let it fill the gaps there, the latest first, as far as there
 * is room. Returns what sp_busy_add returns. */
int64_t sp_busy_fill(struct sp_busy_intervals *busy, int64_t from_ns, int64_t until_ns, int64_t work_ns) {
  int64_t idle_ns = 0;
  if (until_ns > busy->until_ns) /* first make the time up to there a gap */
    idle_ns = sp_busy_add(busy, until_ns, until_ns);
  while (work_ns > 0) {
    int64_t first_ns = 0, last_ns = INT64_MIN; /* of the latest gap in the range; INT64_MIN: there is none */
    for (uint32_t index = 0; index < busy->count; index++) {
      int64_t low_ns = busy->gaps[index].from_ns, high_ns = busy->gaps[index].until_ns;
      low_ns = low_ns > from_ns ? low_ns : from_ns;
      high_ns = high_ns < until_ns ? high_ns : until_ns;
      if (low_ns < high_ns && high_ns > last_ns) {
        first_ns = low_ns;
        last_ns = high_ns;
      }
    }
    if (last_ns == INT64_MIN)
      break;
    if (last_ns - first_ns > work_ns)
      first_ns = last_ns - work_ns;
    work_ns -= last_ns - first_ns;
    idle_ns -= fill(busy, first_ns, last_ns);
  }
  return idle_ns;
}
