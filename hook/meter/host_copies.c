/*
 * Counts host copies: how much the program copies between host and device memory. Copy engines work beside the kernels,
 * so these copies are neither gated nor billed, but they are shown in the usage.
 *
 * A copy costs two relaxed additions to a cache line of the process's slot: no lock, no clock, no system call.
 */
#include "hook/gate/process.h"

/* Count `count` copies in the direction `way`, of `bytes` in all, that the driver has accepted. Copies into a capturing
 * stream are not made yet, and do not count. */
void sp_copied(void *stream, bool per_thread, enum sp_way way, uint64_t bytes, uint64_t count) {
  if (sp_unlikely(!sp_load(&sp_this_process.attached)) || count == 0)
    return;
  struct sp_thread *thread = sp_thread_self();
  struct sp_device *device = thread ? thread->device : NULL;
  if (sp_unlikely(!device || !sp_this_process.single_device)) {
    device = sp_device_current();
    if (!device)
      return;
    if (thread)
      sp_thread_on(thread, device);
  }
  if (sp_unlikely(sp_load(&sp_this_process.captures)) && sp_stream_capturing(stream, per_thread))
    return;
  if (way == SP_TO_DEVICE)
    sp_slot_copied_to_device(device->copies, bytes, count);
  else
    sp_slot_copied_to_host(device->copies, bytes, count);
}
