/* inject_xid STATE DEVICE XID: what the hardware does to a device. XID 0: the device works again. */
#include "simgpu/state.h"

#include <stdlib.h>

int main(int argc, char **argv) {
  struct sg_state state;
  if (argc != 4 || sg_open(&state, argv[1]))
    return 1;
  uint32_t device = (uint32_t)atoi(argv[2]), xid = (uint32_t)atoi(argv[3]);
  sg_lock_advanced(&state);
  if (xid)
    sg_inject_xid(&state, device, xid);
  else
    sg_recover(&state, device);
  sg_unlock(&state);
  sg_close(&state);
  return 0;
}
