/*
 * The guard of mapped regions: keeps a truncated file from ending the process with a SIGBUS.
 *
 * tmpfs cannot keep a file's length: any process that may write the file may truncate it. Then the next access to a
 * mapping of it raises SIGBUS, in any thread. A check before each access would always come a moment too early, so the
 * fault itself is handled: our own pages replace the lost ones, once. The handler is installed only if the program has
 * none, and a fault outside our mappings meets the default action, as if there were no handler (docs/adr/0015).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "region/order.h"
#include "region/region.h"

#define GUARDS_MAX 4096u /* an agent has one per share, a program one */

static struct sp_guard *guards[GUARDS_MAX];
static uint32_t guard_count; /* entries ever used */

/* Is the address in one of the guard's two mappings? */
static bool within(const struct sp_guard *guard, const void *address) {
  for (int part = 0; part < 2; part++)
    if ((uintptr_t)address - (uintptr_t)guard->start[part] < guard->bytes[part])
      return true;
  return false;
}

/* Replace the pages of both mappings of a region, at the same addresses: those of `terms` (part 0) by the prepared
 * spare, others by zeros. Of both, because one alone would be useless. False: the kernel has refused. Uses only system
 * calls that a signal handler may make. */
static bool replace(struct sp_guard *guard) {
  bool done = true;
  for (int part = 1; part >= 0; part--) {
    size_t bytes = guard->bytes[part];
    if (!bytes)
      continue;
    void *pages =
        part == 0 && guard->spare
            ? mremap(guard->spare, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, guard->start[part])
            : mmap(guard->start[part], bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    done = done && pages != MAP_FAILED;
    if (part == 0)
      guard->spare = NULL; /* it has been moved: its old address may be used by others */
  }
  return done;
}

/* The handler of SIGBUS. After a fault in a guarded mapping it returns, and the instruction runs again on other pages.
 * Any other fault gets the default action: the handler is removed, and the instruction faults again. */
static void on_fault(int number, siginfo_t *info, void *context) {
  (void)context;
  int saved = errno;
  uint32_t count = sp_load_acquire(&guard_count);
  for (uint32_t index = 0; info->si_code == BUS_ADRERR && index < count; index++) {
    struct sp_guard *guard = sp_load_acquire(&guards[index]);
    if (!guard || !within(guard, info->si_addr))
      continue;
    uint32_t whole = 0; /* one thread alone replaces the pages */
    if (sp_compare_exchange(&guard->lost, &whole, 1)) {
      if (!replace(guard))
        break;
      sp_store_full(&guard->lost, 2);
    }
    errno = saved; /* if another thread is replacing them, this one faults again until that is done */
    return;
  }
  struct sigaction ordinary = {.sa_handler = SIG_DFL};
  sigaction(number, &ordinary, NULL);
  if (info->si_code <= 0) /* sent by a process: no instruction has faulted */
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
  errno = saved;
}

/* Install the handler, unless the program has one of its own for SIGBUS. */
static void install(void) {
  struct sigaction before, ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigfillset(&ours.sa_mask);
  if (sigaction(SIGBUS, NULL, &before) == 0 && !(before.sa_flags & SA_SIGINFO) && before.sa_handler == SIG_DFL)
    sigaction(SIGBUS, &ours, NULL);
}

/* Guard these mappings: put the guard into the first free entry, without a lock, and install the handler. False: all
 * entries are taken, and nothing is guarded. */
bool sp_guard_add(struct sp_guard *guard) {
  int saved = errno;
  for (uint32_t index = 0; index < GUARDS_MAX; index++) {
    struct sp_guard *none = NULL;
    if (!sp_compare_exchange(&guards[index], &none, guard))
      continue;
    uint32_t count = sp_load(&guard_count); /* raised below: on_fault looks no further */
    while (count <= index && !sp_compare_exchange(&guard_count, &count, index + 1)) {
    }
    install();
    errno = saved;
    return true;
  }
  errno = saved;
  return false;
}

/* End the guard: its entry is free again. The mappings stay. */
void sp_guard_drop(struct sp_guard *guard) {
  for (uint32_t index = 0; index < GUARDS_MAX; index++) {
    struct sp_guard *ours = guard;
    if (sp_compare_exchange(&guards[index], &ours, NULL))
      return;
  }
}
