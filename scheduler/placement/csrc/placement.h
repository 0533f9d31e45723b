/* Declares the placement kernels: which devices of a node a pod's shares would get, and what that costs the cluster.
 *
 * Pure: no clock, no I/O, no memory of its own. Callers own every array. Time is in thousandths of a device
 * ("milli"), processors in thousandths of one, memory in MiB. A set of devices of a node is a mask: bit i for device i.
 * The worth of what is left, and the expected pods, are explained in policy.py; native.py and tables.py call all this.
 */
#ifndef SP_PLACEMENT_H
#define SP_PLACEMENT_H

#include <stdint.h>

/* cdef begin */
#define SP_NODE_DEVICES 16  /* the most devices of a node */
#define SP_ASK_SHARES   8   /* the most shares of a pod */
#define SP_MODELS       32  /* the most models of devices */
#define SP_PRICES       24  /* prices of a processor at which worth is computed */
#define SP_STEPS        101 /* amounts left of a device for which worth is computed: 0, 10, ... 1000 milli */
#define SP_STEP_MILLI   10
#define SP_DEVICE_MILLI 1000
#define SP_LIMITS_MILLI 32000 /* the most that counts of the limits on one device */
#define SP_USE_KNOWN    1     /* sp_node.known: the facts have the use of each of its devices, */
#define SP_LINKS_KNOWN  2     /* and the links between them */

/* Why a node cannot take a pod; the first reason that holds, in this order. */
enum sp_verdict {
  SP_FITS,
  SP_NO_NODE,          /* there is no node at that index */
  SP_NO_CPU,           /* of the node */
  SP_NO_MEMORY,        /* of the node */
  SP_NO_MODEL,         /* its devices are of a model that the pod does not take */
  SP_FEW_DEVICES,      /* it has fewer devices, usable for this pod, than a share asks for */
  SP_NO_TIME,          /* too few devices have the share's time left */
  SP_NO_DEVICE_MEMORY, /* too few of these have its memory left, too */
};

/* A node and what is left of it. All zero: there is no node. */
struct sp_node {
  int64_t cpu_milli;  /* left */
  int64_t memory_mib; /* left */
  int32_t there;
  int32_t model; /* index: bit `model` of a set of models */
  int32_t devices;
  int32_t device_mib; /* memory of each device, in all; 0: not counted */
  int32_t known;      /* bits SP_..._KNOWN: what is known of its devices */
  int32_t free_milli[SP_NODE_DEVICES];
  int32_t free_mib[SP_NODE_DEVICES];
  int32_t left_milli[SP_NODE_DEVICES]; /* the part left of the time or of the memory, whichever is less */
};

/* What is measured on a device and promised of it, for all its shares together. */
struct sp_use {
  int16_t busy_milli;    /* its time in which work ran */
  int16_t waited_milli;  /* milliseconds that shares waited for it, in a second */
  int16_t latency_milli; /* requests of latency shares */
  int16_t limits_milli;  /* the limits of all shares, added up */
};

/* What is known of a node's devices in addition to what is left of them. */
struct sp_device_facts {
  struct sp_use use[SP_NODE_DEVICES];
  uint16_t linked[SP_NODE_DEVICES]; /* a bit for each device that this one has a fast link to */
  uint8_t numa[SP_NODE_DEVICES];    /* its memory node; only compared */
};

struct sp_share {
  int32_t milli;        /* of each of its devices */
  int32_t mib;          /* memory of each */
  int32_t memory_milli; /* the least part of a device's memory, in thousandths */
  int32_t devices;      /* how many it spreads over */
  int32_t beside;       /* it has to be on devices of this earlier share; negative: on any */
  int32_t limit_milli;  /* the most that it may use of each */
  int32_t latency;      /* its class is `latency` */
};

/* What a pod asks of a node. */
struct sp_request {
  int64_t cpu_milli;
  int64_t memory_mib;
  uint32_t models; /* a bit for each that it takes */
  int32_t shares;
  struct sp_share share[SP_ASK_SHARES];
};

/* A kind of pod that is expected: how often it comes, and what it asks for. */
struct sp_kind {
  double part;   /* 0 to 1: of all pods, or of those that ask for devices, as the rule needs it (policy.py) */
  double wanted; /* milli that a lost milli of room for it costs: how scarce such room is (SP_WORTH) */
  double worth;  /* milli of a device that it takes in effect, with a rest that nothing else fills (cutting_stock.py) */
  int64_t cpu_milli;
  int32_t milli; /* of each device */
  int32_t devices;
  uint32_t models;
};

/* One of the kinds of a width (sp_width). They are sorted by the processors that they need. */
struct sp_wide {
  int64_t cpu_milli;
  double weight; /* milli: what room for one pod of this kind counts, and for one of each kind before it, added up */
};

/* The kinds of one width, for nodes of one model: they take the same number of devices, and the same part of each. */
struct sp_width {
  int32_t milli;
  int32_t devices;
  int32_t first; /* index of its first kind in sp_policy.wide */
  int32_t count; /* of its kinds */
};

/* What a place costs for measured use, promises and links, in milli: policy.py has the reasons. */
struct sp_weights {
  double busy;           /* of a latency share, for each milli that a device is busy */
  double waited_latency; /* of a latency share, for each millisecond that shares wait there in a second */
  double waited;         /* of any other share, for each such millisecond */
  double latency;        /* of any other share, for each milli of latency shares, times the part that it may use */
  double promised;       /* for each milli of limits above the device */
  double promised_most;  /* milli of limits above the device that count */
  double apart;          /* for each device of a share, times the part of pairs without a link */
  double numa;           /* for each device of a share, times the part of pairs on two memory nodes */
};

enum sp_rule {
  SP_BINPACK,     /* the node that has least left; the fullest device that fits */
  SP_CONSOLIDATE, /* the node with the largest part in use; the fullest device that fits */
  SP_SPREAD,      /* the opposite of SP_BINPACK */
  SP_FGD,         /* the least growth of expected fragmentation */
  SP_WORTH,       /* the least loss of what the rest of the node is worth to the pods that are expected */
};

struct sp_policy {
  int32_t rule;
  int32_t kinds;
  const struct sp_kind *kind;
  const struct sp_wide *wide;
  const struct sp_width *width;
  int32_t widths[SP_MODELS + 1]; /* by model: index of its first width, which is the end of the model before it */
  const float *worth;            /* [model][step][price]: milli, of a device with step * 10 milli left */
  double price[SP_PRICES];       /* milli of a device for a milli of a processor */
  double crowding[SP_MODELS];    /* milli that a taken milli of a model's devices costs the pods that insist on it */
  double grain_milli;            /* losses this close are equal: the earlier node wins */
  struct sp_weights weights;
};

struct sp_choice {
  int64_t cost; /* the least is the best; only comparable within one call */
  int32_t verdict;
  uint16_t devices[SP_ASK_SHARES]; /* a bit for each device of the share */
};

/* Each is explained at its definition: in placement.c, copies.c, topology_score.c, expected_value.c or rule.c. */
void sp_rank(const struct sp_node *, const struct sp_device_facts *, const int32_t *, const uint16_t *, int32_t,
             const struct sp_request *, const struct sp_policy *, struct sp_choice *);
void sp_fit(const struct sp_node *, const int32_t *, const uint16_t *, int32_t, const struct sp_request *, int32_t *);
void sp_copies(const struct sp_node *, const int32_t *, const uint16_t *, int32_t, const struct sp_request *,
               int32_t *);
int32_t sp_best(const struct sp_choice *, const int32_t *, int32_t);
void sp_node_update_left(struct sp_node *);
void sp_set_uses(struct sp_node *, struct sp_device_facts *, const int64_t *);
int32_t sp_take(struct sp_node *, const struct sp_request *, const uint16_t *);
int32_t sp_give_back(struct sp_node *, const struct sp_request *, const uint16_t *);
void sp_rooms(const struct sp_node *, int32_t, const struct sp_kind *, int32_t, int64_t *);
int32_t sp_gather_wide(struct sp_policy *, int32_t, struct sp_wide *, struct sp_width *);
double sp_fragmentation(const struct sp_node *, int32_t, const struct sp_kind *, int32_t);
void sp_fill_worth(float *, const double *, int32_t, const struct sp_kind *, int32_t, int32_t);
/* cdef end */

/* A copy of a node from which the shares of a pod are taken one after the other while places are compared. */
struct sp_work {
  const struct sp_policy *policy;
  const struct sp_device_facts *facts;
  struct sp_node node;
  double cpu[SP_PRICES]; /* SP_WORTH: the worth of its processors at each price, */
  double sum[SP_PRICES]; /* and of its devices, added up */
  double potential;      /* sp_potential of the node as it is now; NAN: to be computed */
};

/* What one share takes of one of its devices. */
struct sp_step {
  int32_t milli;
  int32_t mib;
};

/* The memory of a share on each of its devices, in MiB; 0 where the memory of the node's devices is not counted. */
int32_t sp_share_mib(const struct sp_node *node, const struct sp_share *share);

/* What is left of a device with `milli` of its time and `mib` of its memory left: the lesser part of both, in milli. */
static inline int32_t sp_left_milli(const struct sp_node *node, int32_t milli, int32_t mib) {
  if (node->device_mib > 0) {
    /* In 32 bits where they suffice: this runs for every device of every candidate. */
    int32_t of_memory = mib >= 0 && mib <= INT32_MAX / SP_DEVICE_MILLI
                            ? mib * SP_DEVICE_MILLI / node->device_mib
                            : (int32_t)((int64_t)mib * SP_DEVICE_MILLI / node->device_mib);
    if (of_memory < milli)
      return of_memory;
  }
  return milli;
}

/* The time that is left of all devices of a node together, in milli. */
static inline int64_t sp_free_of_all(const struct sp_node *node) {
  int64_t sum = 0;
  for (int32_t i = 0; i < node->devices; i++)
    sum += node->free_milli[i];
  return sum;
}

/* rule.c */
int sp_by_node(const struct sp_policy *);
double sp_potential(const struct sp_work *); /* what the policy minimises on the work's node: less is better */
void sp_potentials_with(const struct sp_work *, struct sp_step, uint16_t, double *);
int64_t sp_cost(const struct sp_policy *, const struct sp_node *, const struct sp_node *, double, double, double);

/* expected_value.c */
void sp_worth_begin(struct sp_work *);
void sp_worth_processors(struct sp_work *);
void sp_worth_changed(struct sp_work *, int32_t, int32_t);
double sp_worth(const struct sp_work *);
void sp_worths_with(const struct sp_work *, struct sp_step, uint16_t, double *);

/* topology_score.c */
double sp_device_extra(const struct sp_policy *, const struct sp_use *, const struct sp_share *);
double sp_pairs_extra(const struct sp_policy *, const struct sp_device_facts *, uint16_t, int32_t);
uint16_t sp_best_set(const struct sp_policy *, const struct sp_device_facts *, const double *, const int32_t *,
                     uint16_t, int32_t);

#endif
