/*
 * Any calls with any values, nonsense included: built with the address and undefined-behaviour sanitizers, it shows
 * that no account overflows and every invariant holds. Prints the seed and step of a failure; exit status 0, 1.
 */
#include "agent/policy.h"

#include <stdio.h>
#include <stdlib.h>

#define SEEDS 60u
#define STEPS 4000

static uint64_t state;

/* xorshift64*: the same numbers everywhere. */
static uint64_t draw(void) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545f4914f6cdd1dull;
}

static uint64_t below(uint64_t bound) {
  return (draw() >> 8) % bound;
}

/* A value of any magnitude. */
static uint64_t any(void) {
  return draw() >> below(64);
}

static bool step(struct sp_policy *policy, uint64_t *now_ns) {
  int share = (int)below(12) - 1;
  switch (below(11)) {
  case 0:
    sp_policy_add(policy, (uint32_t)any(), (uint32_t)any(), (uint32_t)below(5), *now_ns);
    break;
  case 1:
    if (below(8) == 0)
      sp_policy_remove(policy, share, *now_ns);
    break;
  case 2:
    sp_policy_update(policy, share, (uint32_t)below(100001), (uint32_t)below(110000), (uint32_t)below(4), *now_ns);
    break;
  case 3:
  case 4:
    sp_policy_wait(policy, share, below(4) != 0, *now_ns);
    break;
  case 5:
    sp_policy_charge(policy, share, below(9) ? (int64_t)below(100000000) - 10000000 : (int64_t)any(), *now_ns);
    break;
  case 6:
    sp_policy_end(policy, share, *now_ns);
    break;
  case 7: {
    struct sp_choice choice = sp_policy_next(policy, *now_ns);
    if (choice.share >= 0 && (choice.quantum_ns < 1 || choice.quantum_ns > 50000000))
      return false;
    break;
  }
  case 8:
    *now_ns += below(20) ? below(30000000) : any() >> 8;
    break;
  case 9:
    sp_policy_pause(policy, share, below(3) == 0, *now_ns);
    sp_policy_preempts(policy, share, (int)below(12), *now_ns);
    break;
  default:
    sp_policy_unit(policy, share, below(3) ? below(50000000) : any());
    sp_policy_quantum(policy, share, *now_ns);
    break;
  }
  return sp_policy_valid(policy);
}

int main(void) {
  static struct sp_policy policy;
  for (unsigned seed = 1; seed <= SEEDS; seed++) {
    state = seed;
    uint64_t now_ns = any() >> 1;
    sp_policy_init(&policy);
    for (int i = 0; i < STEPS; i++)
      if (!step(&policy, &now_ns)) {
        printf("seed %u, step %d\n", seed, i);
        return 1;
      }
  }
  return 0;
}
