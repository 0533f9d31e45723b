/* Works for a moment, waits for the work and ends at once, so that nothing looks in between. */
#include "client.h"

int main(void) {
  static const uint64_t unit_ns = 1000000;
  load_driver();
  open_context(0);
  void *function = find_kernel(load_module(&unit_ns, 1), unit_ns);
  for (int number = 0; number < 20; number++)
    launch_one(function, NULL, 1);
  CALL(cuCtxSynchronize);
  return 0;
}
