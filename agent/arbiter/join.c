/*
 * Which shares are one gang: those that were joined by the same key, as far as they are on different devices.
 *
 * Two shares on the same device take turns there, whatever their key, so they are in different gangs: each with the
 * shares on other devices that came after it. When a share changes its gang, both gangs first give up what they have
 * reserved.
 *
 * Every share has a gang of its own (`own`, key 0), which is empty while the share is in a joint one. Joint gangs are
 * in the list arbiter->joint. A member is a share on one device. All functions run under the arbiter's lock.
 */
#include <errno.h>
#include <stdlib.h>

#include "agent/arbiter/node.h"

/* Add the share's members to the gang, which is the share's from now on. */
static void put_in(struct sp_gang *gang, struct sp_share *share) {
  share->gang = gang;
  for (uint32_t index = 0; index < share->member_count; index++) {
    share->members[index].gang = gang;
    gang->members[gang->count++] = &share->members[index];
  }
}

/* Remove the share's members from the gang's list. They point to it until put_in gives them another. */
static void take_out(struct sp_gang *gang, const struct sp_share *share) {
  uint32_t kept = 0;
  for (uint32_t index = 0; index < gang->count; index++)
    if (gang->members[index]->share != share)
      gang->members[kept++] = gang->members[index];
  gang->count = kept;
}

/* Put the members of a new share into its own gang. */
void sp_gang_init(struct sp_share *share) {
  for (uint32_t index = 0; index < share->member_count; index++)
    share->members[index].share = share;
  put_in(&share->own, share);
}

/* Add `each` to gang_members of each device of the gang, unless the gang has one device. `each` is 1 for a gang that
 * counts from now on, -1u (it wraps) for one that counts no more. */
static void count_gang(const struct sp_gang *gang, uint32_t each) {
  for (uint32_t index = 0; gang->count > 1 && index < gang->count; index++)
    gang->members[index]->device->gang_members += each;
}

/* Has the gang a member on one of the share's devices? */
static bool overlaps(const struct sp_gang *gang, const struct sp_share *share) {
  for (uint32_t index = 0; index < gang->count; index++)
    for (uint32_t other = 0; other < share->member_count; other++)
      if (gang->members[index]->device == share->members[other].device)
        return true;
  return false;
}

/* The first gang with the key that has no member on the share's devices; NULL: there is none. */
static struct sp_gang *find_gang(const struct sp_arbiter *arbiter, const struct sp_share *share, uint32_t key) {
  struct sp_gang *gang = arbiter->joint;
  while (gang && (gang->key != key || overlaps(gang, share)))
    gang = gang->next;
  return gang;
}

/* Make an empty joint gang with the key, at the end of the list: older ones are found first. NULL: no memory. */
static struct sp_gang *add_gang(struct sp_arbiter *arbiter, uint32_t key) {
  struct sp_gang **end = &arbiter->joint, *gang = calloc(1, sizeof *gang);
  if (!gang)
    return NULL;
  while (*end)
    end = &(*end)->next;
  gang->key = key;
  return *end = gang;
}

/* Take an empty joint gang off the list, and free it. */
static void drop_gang(struct sp_arbiter *arbiter, struct sp_gang *gang) {
  struct sp_gang **link = &arbiter->joint;
  while (*link != gang)
    link = &(*link)->next;
  *link = gang->next;
  free(gang);
}

/* Tell the member's policy and its gate whether its gang is paused, if that has changed. A turn that it holds is closed
 * by the next step. */
static void pause_member(struct sp_member *member, uint64_t now_ns) {
  bool paused = member->gang->paused;
  if (member->device->policy.shares[member->policy].paused == paused)
    return;
  sp_policy_pause(&member->device->policy, member->policy, paused, now_ns);
  sp_member_count(member, true);
  if (!member->holding)
    sp_grant_set(member->grant, SP_BUDGET_SHARED_NS, SP_LOOKAHEAD_NS, paused ? SP_GRANT_PAUSED : 0);
}

/* Bring the gang's pause up to date, and that of its members: it is paused while one of its shares is. Called after a
 * share of it was paused or resumed, or has joined or left it. */
void sp_gang_pause(struct sp_arbiter *arbiter, struct sp_gang *gang, uint64_t now_ns) {
  gang->paused = false;
  for (uint32_t index = 0; index < gang->count; index++)
    gang->paused = gang->paused || gang->members[index]->share->paused;
  for (uint32_t index = 0; index < gang->count; index++)
    pause_member(gang->members[index], now_ns);
  sp_gang_stir(arbiter, gang);
}

/* Move the share into a gang with the key, made if need be; key 0: into its own. 0, also if it is there already;
 * -ENOMEM: nothing has changed. */
int sp_gang_join(struct sp_arbiter *arbiter, struct sp_share *share, uint32_t key, uint64_t now_ns) {
  struct sp_gang *from = share->gang, *to = key ? find_gang(arbiter, share, key) : &share->own;
  if (from->key == key)
    return 0;
  if (!to && !(to = add_gang(arbiter, key)))
    return -ENOMEM;
  sp_gang_dissolve(arbiter, from, now_ns);
  sp_gang_dissolve(arbiter, to, now_ns);
  count_gang(from, -1u);
  count_gang(to, -1u);
  take_out(from, share);
  put_in(to, share);
  count_gang(from, 1);
  count_gang(to, 1);
  sp_gang_pause(arbiter, from, now_ns);
  sp_gang_pause(arbiter, to, now_ns);
  if (from->key && !from->count)
    drop_gang(arbiter, from);
  return 0;
}
