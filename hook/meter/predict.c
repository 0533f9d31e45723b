/* Predicts how long a unit takes, the work of one launch: a row for each function with its grid, or executable graph.
 * Predictions bound the work in flight, and publish_drain_eta the end of a drain; they are never billed. Rows are read
 * and written without a lock: a torn or lost update costs one imprecise prediction. */
#include "hook/gate/process.h"

#define ROWS   16384u /* a power of two; 256 KiB, touched as used */
#define PROBES 4u

static struct sp_work_profile rows[ROWS];

/* The hash of a key; its low bits choose the first of the PROBES rows in which the key may be. */
static inline uint64_t hash_of(uint64_t key) {
  return key * 0x9e3779b97f4a7c15u >> 40;
}

/* The row of the unit with this key (sp_work_key), made if there is none. Never NULL. Called at every launch. */
struct sp_work_profile *sp_profile_find(uint64_t key) {
  uint64_t hash = hash_of(key);
  for (uint64_t probe = 0; probe < PROBES; probe++) {
    struct sp_work_profile *row = &rows[(hash + probe) & (ROWS - 1)];
    uint64_t found = sp_load(&row->key);
    if (sp_likely(found == key))
      return row;
    if (found == 0) {
      uint64_t empty = 0;
      if (sp_compare_exchange(&row->key, &empty, key) || empty == key)
        return row;
    }
  }
  /* No row is free here: the new unit takes over the first row and learns anew. Prediction 0: not known. `learned` that
   * equals `version`: neither out of date nor exact. */
  struct sp_work_profile *row = &rows[hash & (ROWS - 1)];
  sp_store(&row->key, key);
  sp_store(&row->predicted_ns, 0);
  sp_store(&row->learned, sp_load(&row->version));
  return row;
}

/* The unit's work has changed: its prediction is out of date, and only a guess until the unit is measured again. Or the
 * unit is `gone`, and its prediction is dropped. */
void sp_profile_changed(uint64_t key, bool gone) {
  uint64_t hash = hash_of(key);
  for (uint64_t probe = 0; probe < PROBES; probe++) {
    struct sp_work_profile *row = &rows[(hash + probe) & (ROWS - 1)];
    if (sp_load(&row->key) != key)
      continue;
    uint8_t version = (uint8_t)(sp_load(&row->version) + 2);
    sp_store(&row->version, version); /* work that is in flight now has the old version, and is not learned */
    if (gone) {
      sp_store(&row->predicted_ns, 0);
      sp_store(&row->learned, version);
    }
    return;
  }
}

/* Learn from `launches` of the unit in this `version`, one after the other, that took `elapsed_ns` in all; or at most
 * that, if it is not `exact`. Nothing is learned if the unit has changed since. */
void sp_profile_learn(struct sp_work_profile *profile, uint8_t version, uint32_t launches, uint64_t elapsed_ns,
                      bool exact) {
  if (launches == 0 || version != sp_load(&profile->version)) /* the unit has changed since it was launched */
    return;
  /* Both in ns for one launch; `known` is 0 if there is no prediction that holds. */
  uint64_t known = sp_profile_is_stale(profile) ? 0 : sp_load(&profile->predicted_ns), measured = elapsed_ns / launches;
  bool was_exact = known && sp_profile_is_exact(profile);
  if (exact && !was_exact)
    known = 0; /* the known length included the time that a launch takes to arrive */
  if (known && !exact && measured >= known)
    return; /* it took at most that long: nothing new */
  if (known) {
    /* Fast down, slowly up: a span can be too long (another share's slice, an idle gap), but never too short. */
    measured = measured < known ? (known + measured) / 2 : known + (measured - known) / 8;
  }
  if (measured == 0)
    measured = 1;
  if (measured > UINT32_MAX)
    measured = UINT32_MAX;
  sp_store(&profile->predicted_ns, (uint32_t)measured);
  sp_store(&profile->learned, (uint8_t)(version | (exact || was_exact))); /* the lowest bit: it is exact */
}
