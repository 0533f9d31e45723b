/*
 * Repairs damage to the file `terms` of a region. Only the agent's own user can write there. But damage could keep a
 * program from its turns for ever, because the arbiter decides by what it remembers, and writes a grant only when that
 * changes. A damaged header stays damaged: no attached program reads it, and it tells a program that attaches that the
 * region cannot be used. All functions run under the arbiter's lock.
 */
#include <string.h>

#include "agent/arbiter/node.h"

/* Write the terms, the account and the memory figures of the member's grant again where they differ from what the agent
 * knows. True: something was damaged. */
static bool mend_terms(struct sp_member *member) {
  struct sp_grant *grant = member->grant;
  const struct sp_terms *terms = &member->terms;
  bool damaged = memcmp(grant->uuid, member->device->uuid, SP_UUID_BYTES) != 0 ||
                 grant->memory_limit_bytes != terms->memory_limit_bytes ||
                 grant->request_millipercent != terms->request_millipercent ||
                 grant->limit_millipercent != terms->limit_millipercent || grant->share_class != terms->share_class;
  if (damaged) {
    memcpy(grant->uuid, member->device->uuid, SP_UUID_BYTES);
    grant->memory_limit_bytes = terms->memory_limit_bytes;
    grant->request_millipercent = terms->request_millipercent;
    grant->limit_millipercent = terms->limit_millipercent;
    grant->share_class = terms->share_class;
  }
  if (grant->used_ns != member->usage.used_ns) {
    damaged = true;
    sp_grant_account(grant, member->usage.used_ns);
  }
  uint64_t context_bytes = member->device->context_bytes;
  int64_t overhead_bytes = member->usage.memory_overhead_bytes;
  uint64_t spare_bytes = member->spare_bytes / SP_PAGE_BYTES * SP_PAGE_BYTES;
  if (grant->context_bytes != context_bytes || grant->overhead_bytes != overhead_bytes ||
      sp_grant_spare_bytes(grant) != spare_bytes) {
    sp_grant_overhead(grant, context_bytes, overhead_bytes, spare_bytes);
    damaged = true;
  }
  return damaged;
}

/* Repair the word of the member's grant, and the flag of a pause. While the turn is open, the word must be the one that
 * was granted; else it may be any closed word: even, and not 0. True: one of the two was damaged. */
static bool mend_turn(struct sp_member *member) {
  struct sp_grant *grant = member->grant;
  uint32_t word = sp_grant_word(grant), closed_flags = member->gang->paused ? SP_GRANT_PAUSED : 0;
  if (member->holding) {
    if (word == member->turn && !(grant->flags & SP_GRANT_PAUSED))
      return false;
    sp_grant_mend(grant, member->turn);
    if (grant->flags & SP_GRANT_PAUSED)
      sp_grant_set(grant, grant->budget_ns, grant->lookahead_ns, grant->flags & ~SP_GRANT_PAUSED);
    return true;
  }
  if (!(word & 1u) && word != 0 && (grant->flags & SP_GRANT_PAUSED) == closed_flags)
    return false;
  sp_grant_close(grant, closed_flags);
  return true;
}

/* Repair all grants of the share; each that was damaged counts as a fault. Called at each heartbeat. */
void sp_terms_mend(struct sp_arbiter *arbiter, struct sp_share *share) {
  for (uint32_t index = 0; index < share->member_count; index++) {
    struct sp_member *member = &share->members[index];
    bool terms = mend_terms(member), turn = mend_turn(member);
    if (turn) /* the share's waiters must look at the word again */
      sp_wake_later(arbiter, member->grant);
    member->usage.faults += terms || turn;
  }
}
