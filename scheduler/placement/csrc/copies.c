/* Counts how many pods with the same request a node takes; gangs are planned by this. It is an upper bound for pods
 * with several shares: each share is counted as if the others asked for no devices.
 */
#include "scheduler/placement/csrc/placement.h"

/* The lesser of both; at least one fits into 32 bits. */
static int32_t least(int64_t one, int64_t other) {
  return (int32_t)(one < other ? one : other);
}

/* How many copies of a share there is room for on the `allowed` devices. Each copy needs `devices` different devices,
 * so a device takes part in each copy once at most. */
static int32_t share_copies(const struct sp_node *node, const struct sp_share *share, uint16_t allowed) {
  int32_t mib = sp_share_mib(node, share);
  int32_t room[SP_NODE_DEVICES] = {0}, sum = 0; /* how many such shares each device has room for */
  for (int32_t device = 0; device < node->devices; device++)
    if (allowed >> device & 1) {
      room[device] = node->free_milli[device] / share->milli;
      if (mib > 0)
        room[device] = least(room[device], node->free_mib[device] / mib);
      sum += room[device];
    }
  for (int32_t copies = sum / share->devices; copies > 0; copies--) {
    int32_t useful = 0; /* the room that `copies` copies could use */
    for (int32_t device = 0; device < node->devices; device++)
      useful += least(room[device], copies);
    if (useful >= copies * share->devices)
      return copies;
  }
  return 0;
}

/* Fills copies[i] with how many pods with this request node candidates[i] takes; 0 if there is no such node.
 * allowed[i] is the set of devices that a pod may have there; `allowed` NULL: all. */
void sp_copies(const struct sp_node *nodes, const int32_t *candidates, const uint16_t *allowed, int32_t count,
               const struct sp_request *request, int32_t *copies) {
  for (int32_t i = 0; i < count; i++) {
    const struct sp_node *node = &nodes[candidates[i]];
    int32_t most = INT32_MAX;
    copies[i] = 0;
    if (!node->there || (request->shares > 0 && !(request->models >> node->model & 1)))
      continue;
    for (int32_t share = 0; share < request->shares && most > 0; share++)
      most = least(most, share_copies(node, &request->share[share], allowed ? allowed[i] : UINT16_MAX));
    if (request->cpu_milli > 0)
      most = least(most, node->cpu_milli / request->cpu_milli);
    if (request->memory_mib > 0)
      most = least(most, node->memory_mib / request->memory_mib);
    copies[i] = most;
  }
}
