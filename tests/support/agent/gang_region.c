/*
 * Gives the arbiter what it reads of regions, without a region: the world itself holds the slots. It holds the grants
 * too, and the real region.c writes them. The unused arguments are there because region_slots.c has them.
 */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <stdlib.h>

#include "gang_world.h"

uint64_t __wrap_sp_now_ns(void) {
  return clock_ns;
}
static const struct gang *gang_of(const struct sp_region_owner *owner) {
  for (uint32_t index = 0; index < world->gang_count; index++)
    for (uint32_t rank = 0; rank < world->gangs[index].count; rank++)
      if (&world->gangs[index].ranks[rank].share->region == owner)
        return &world->gangs[index];
  abort();
}
int sp_slot_read(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_device *out) {
  const struct gang *gang = gang_of(owner);
  for (uint32_t rank = 0; rank < gang->count; rank++)
    if (&gang->ranks[rank].share->region == owner && gang->ranks[rank].member->index == device)
      *out = gang->ranks[rank].said;
  return 0;
}
int sp_slots_look(const struct sp_region_owner *owner, struct sp_slots_look *look) {
  *look = (struct sp_slots_look){.claimed = !gang_of(owner)->dead};
  return 0;
}
int sp_slot_copies(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_copies *out) {
  *out = (struct sp_slot_copies){0};
  return 0;
}
void sp_diagnostics_take(struct sp_share *share, uint32_t slot) {}
void sp_identity_ask(struct sp_arbiter *arbiter, struct sp_share *share, uint64_t asked_ns) {
  share->mend = false;
}
void sp_identity_clear(struct sp_arbiter *arbiter, struct sp_share *share) {
  share->gone = 0; /* a dead process has no slot any more */
}
