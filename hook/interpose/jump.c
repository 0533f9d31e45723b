/*
 * Decides which call of a thread into the driver is the outermost. Calls may end without a return: a signal handler may
 * leave one by siglongjmp, as the interrupts of Sage and Julia do, and then the state that the call left at the gate
 * must be undone.
 *
 * A call inside another one is made further down the same stack, and by other code than made the outermost call: by the
 * driver, or by a tool between the driver and us. So a call from the object that made the outermost call, or from
 * further up the stack, shows that the outermost call is over.
 */
#define _GNU_SOURCE
#include <link.h>

#include "hook/gate/gate.h"
#include "hook/interpose/intercept.h"
#include "hook/interpose/resolve.h"

_Thread_local struct sp_outermost sp_outermost;

#define BOTH 3u /* both bits of `here` */
struct callers {
  ElfW(Addr) address[2];
  unsigned int here; /* a bit for each of the addresses that is in the object */
};

/* A callback of dl_iterate_phdr, `data` is a struct callers: note which of the addresses are in this object. The walk
 * ends at the first object that has one of them, or both. */
static int find_callers(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct callers *callers = data;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    for (unsigned int which = 0; which < 2 && segment->p_type == PT_LOAD; which++)
      if (callers->address[which] - (info->dlpi_addr + segment->p_vaddr) < segment->p_memsz)
        callers->here |= 1u << which;
  }
  return callers->here != 0;
}

/* Are both addresses in the same object? Code that was generated at run time is in no object: all of it counts as one
 * object. */
static bool of_one_object(const void *one, const void *other) {
  struct callers callers = {{(ElfW(Addr))one, (ElfW(Addr))other}, 0};
  sp_iterate_function *iterate = sp_libc_iterate();
  if (iterate != NULL)
    iterate(find_callers, &callers);
  return callers.here == 0 || callers.here == BOTH;
}

/* A wrapper was called by the code at `caller`, and the thread's outermost call seems to be under way. Was this call
 * made inside that one? False: the outermost call is over. Then it is forgotten, and what it left at the gate is
 * undone. */
bool sp_still_inside(const void *caller) {
  /* The last two addresses that were found to be in different objects. They are remembered because a tool makes the
   * same call inside each launch. */
  static _Thread_local const void *outer, *inner;
  if (__builtin_frame_address(0) < sp_outermost.frame) { /* further down the stack: it grows downwards */
    if (sp_outermost.caller == outer && caller == inner)
      return true;
    if (!of_one_object(sp_outermost.caller, caller)) {
      outer = sp_outermost.caller;
      inner = caller;
      return true;
    }
  }
  sp_outermost.frame = NULL;
  sp_gate_left();
  return false;
}
