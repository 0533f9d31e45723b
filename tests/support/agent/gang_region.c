/* Region.c as the arbiter sees it, without a region: grants and slots are in the world itself. */
#include <stdlib.h>

#include "gang_world.h"

uint64_t sp_now_ns(void) {
  return clock_ns;
}
uint32_t sp_grant_word(const struct sp_grant *grant) {
  return grant->word;
}
uint32_t sp_grant_open(struct sp_grant *grant, uint64_t budget_ns, uint64_t pair_ns, uint32_t flags, uint64_t now_ns) {
  sp_grant_set(grant, budget_ns, pair_ns, flags);
  grant->granted_ns = now_ns;
  return grant->word += 1 + (grant->word & 1);
}
uint32_t sp_grant_close(struct sp_grant *grant, uint32_t flags) {
  grant->flags = flags;
  return grant->word += grant->word & 1;
}
void sp_grant_set(struct sp_grant *grant, uint64_t budget_ns, uint64_t pair_ns, uint32_t flags) {
  grant->budget_ns = budget_ns;
  grant->pair_ns = pair_ns;
  grant->flags = flags;
}
void sp_grant_wake(struct sp_grant *grant) {
  (void)grant;
}
void sp_grant_overhead(struct sp_grant *grant, uint64_t context_bytes, int64_t overhead_bytes) {
  grant->context_bytes = context_bytes;
  grant->overhead_bytes = overhead_bytes;
}
void sp_grant_account(struct sp_grant *grant, uint64_t used_ns) {
  grant->used_ns = used_ns;
}
static const struct gang *gang_of(const struct sp_region_owner *owner) {
  for (uint32_t index = 0; index < world->gang_count; index++)
    for (uint32_t rank = 0; rank < world->gangs[index].count; rank++)
      if (&world->gangs[index].ranks[rank].share->region == owner)
        return &world->gangs[index];
  abort();
}
int sp_slot_read(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_device *out) {
  (void)slot;
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
void sp_slots_mend(const struct sp_region_owner *owner, uint64_t live) {
  (void)owner;
  (void)live;
}
int sp_slot_copies(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_copies *out) {
  (void)owner;
  (void)slot;
  (void)device;
  *out = (struct sp_slot_copies){0};
  return 0;
}
void sp_mishaps_take(struct sp_share *share, uint32_t slot) {
  (void)share;
  (void)slot;
}
int32_t sp_slot_owner(const struct sp_region_owner *owner, uint32_t slot) {
  (void)owner;
  (void)slot;
  return 0;
}
int sp_slot_clear(const struct sp_region_owner *owner, uint32_t slot) {
  (void)owner;
  (void)slot;
  return 0;
}
