/* The calls that every part of the arbiter makes: find a share, note which waiters to wake, wake them, unlock. They
 * call nothing of the other parts. */
#include <unistd.h>

#include "agent/arbiter/node.h"

/* The share with that handle; NULL: there is none. */
struct sp_share *sp_share_of(const struct sp_arbiter *arbiter, int share) {
  return share >= 0 && share < SP_SHARES_MAX ? arbiter->shares[share] : NULL;
}

/* Note a grant that has changed: its waiters are woken at the next sp_wake, after the decision. If the list is full,
 * all in it are woken now. */
void sp_wake_later(struct sp_arbiter *arbiter, struct sp_grant *grant) {
  if (arbiter->wake_count == SP_WAKES_MAX)
    sp_wake(arbiter);
  arbiter->wakes[arbiter->wake_count++] = grant;
}

/* Wake the waiters of all grants that have changed. Called under the lock at the end of a batch of decisions, because a
 * wake-up costs more than a decision; and before a share is freed. */
void sp_wake(struct sp_arbiter *arbiter) {
  while (arbiter->wake_count) /* the last first: grants that open come after the closes that made room for them */
    sp_grant_wake(arbiter->wakes[--arbiter->wake_count]);
}

/* Wake the waiters of all grants that have changed, then give the lock back. */
void sp_arbiter_unlock(struct sp_arbiter *arbiter) {
  sp_wake(arbiter);
  pthread_mutex_unlock(&arbiter->lock);
}

/* Make the arbiter's thread look at what another thread has changed: end its epoll_wait. Needs no lock. */
void sp_arbiter_poke(struct sp_arbiter *arbiter) {
  uint64_t one = 1;
  ssize_t put = write(arbiter->wake_fd, &one, sizeof one);
  (void)put;
}
