/* Which devices of a node a pod's shares would get, and what that would cost the cluster.
 *
 * Pure: no clock, no I/O, no memory of its own. Callers own every array. Time is in thousandths of a device
 * ("milli"), processors in thousandths of one, memory in MiB.
 */
#ifndef SP_PLACEMENT_H
#define SP_PLACEMENT_H

#include <stdint.h>

/* cdef begin */
#define SP_NODE_DEVICES 16
#define SP_ASK_SHARES   8
#define SP_MODELS       32
#define SP_PRICES       24
#define SP_STEPS        101
#define SP_STEP_MILLI   10
#define SP_DEVICE_MILLI 1000

/* Why a node cannot take a pod; the first that holds, in this order. */
enum sp_verdict {
  SP_FITS,
  SP_NO_CPU,           /* of the node */
  SP_NO_MEMORY,        /* of the node */
  SP_NO_MODEL,         /* its devices are of a model that the pod does not take */
  SP_FEW_DEVICES,      /* it has fewer devices, usable for this pod, than a share asks for */
  SP_NO_TIME,          /* too few devices have so much left */
  SP_NO_DEVICE_MEMORY, /* too few devices have so much memory left, too */
};

struct sp_node {
  int64_t cpu_milli;  /* left */
  int64_t memory_mib; /* left */
  int32_t model;
  int32_t devices;
  int32_t device_mib; /* of each device, in all; 0: not counted */
  int32_t free_milli[SP_NODE_DEVICES];
  int32_t free_mib[SP_NODE_DEVICES];
};

struct sp_share {
  int32_t milli;   /* of each of its devices */
  int32_t mib;     /* of each; negative: the same part of a device's memory as of its time */
  int32_t devices; /* that it spreads over */
  int32_t beside;  /* the earlier share on whose devices it has to be; negative: any */
};

/* What a pod asks of a node. */
struct sp_ask {
  int64_t cpu_milli;
  int64_t memory_mib;
  uint32_t models; /* a bit for each that it takes */
  int32_t shares;
  struct sp_share share[SP_ASK_SHARES];
};

/* A kind of pod that is expected: how often, and what one of it asks for. */
struct sp_kind {
  double part;   /* of all pods, or of those that ask for devices: as the rule needs it (policy.py) */
  double wanted; /* milli that a lost milli of room for it costs: how scarce such room is (SP_WORTH) */
  double worth;  /* milli of a device that it takes in effect: with what nothing else can fill (sizes.py) */
  int64_t cpu_milli;
  int32_t milli; /* of each device */
  int32_t devices;
  uint32_t models;
};

enum sp_rule {
  SP_BINPACK,     /* the node that has least left; the fullest device that fits */
  SP_CONSOLIDATE, /* the node of which the largest part is in use; the fullest device that fits */
  SP_SPREAD,      /* the opposite of SP_BINPACK */
  SP_FGD,         /* the least growth of expected fragmentation */
  SP_WORTH,       /* the least loss of what the rest of the node is worth to the pods that are expected */
};

struct sp_policy {
  int32_t rule;
  int32_t kinds;
  const struct sp_kind *kind;
  const float *worth;         /* [model][price][step]: of a device of which step * 10 milli are left */
  double price[SP_PRICES];    /* milli of a device for a milli of a processor */
  double crowding[SP_MODELS]; /* milli that a milli of a model's devices costs those who insist on it */
  double grain_milli;         /* losses this close are equal: the earlier node wins */
};

struct sp_choice {
  int64_t cost; /* the least is the best; only comparable within one call */
  int32_t verdict;
  uint16_t devices[SP_ASK_SHARES]; /* a bit for each device of the share */
};

void sp_rank(const struct sp_node *, const int32_t *, const uint16_t *, int32_t, const struct sp_ask *,
             const struct sp_policy *, struct sp_choice *);
int32_t sp_best(const struct sp_choice *, int32_t);
int32_t sp_take(struct sp_node *, const struct sp_ask *, const uint16_t *);
int32_t sp_give_back(struct sp_node *, const struct sp_ask *, const uint16_t *);
int64_t sp_room(const struct sp_node *, int32_t, const struct sp_kind *);
double sp_fragmentation(const struct sp_node *, int32_t, const struct sp_kind *, int32_t);
void sp_fill_worth(float *, const double *, int32_t, const struct sp_kind *, int32_t, int32_t);
/* cdef end */

/* What is left of a device, as a part of its time or of its memory, whichever is less. */
static inline int32_t sp_left_milli(const struct sp_node *node, int32_t device) {
  int32_t milli = node->free_milli[device];
  if (node->device_mib > 0) {
    int64_t of_memory = (int64_t)node->free_mib[device] * SP_DEVICE_MILLI / node->device_mib;
    if (of_memory < milli)
      return (int32_t)of_memory;
  }
  return milli;
}

int64_t sp_copies(const struct sp_node *, const struct sp_kind *);
double sp_worth_of(const struct sp_policy *, const struct sp_node *);

#endif
