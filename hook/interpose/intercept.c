/*
 * Decides which addresses the program gets. It has the table of wrapped symbols, and serves the two ways in which a
 * program asks for an address: dlsym (with a handle) and cuGetProcAddress. Both ask the driver first, and replace an
 * address only if it is the driver's own export of a name in the table. So the driver alone chooses the variant,
 * whatever its version.
 */
#include "hook/interpose/intercept.h"

#include <errno.h>
#include <stdint.h>

#include "hook/gate/gate.h"
#include "hook/interpose/driver.h"
#include "hook/interpose/own_names.h"
#include "hook/interpose/resolve.h"
#include "hook/interpose/scope.h"
#include "hook/nvml/nvml.h"

#define SP_RTLD_LAZY   1
#define SP_RTLD_NOLOAD 4
#define SP_RTLD_NEXT   ((void *)-1l)
#define SP_DRIVER_FILE "libcuda.so.1"

#define WRAPPED(name, since, class, action, subject, reason)                                                           \
  extern void sp_wrap_##name(void) __attribute__((visibility("hidden")));                                              \
  extern void sp_own_##name(void) __attribute__((visibility("hidden")));
#include "driver/wrapped.h"

static const struct {
  const char *name;
  void (*wrapper)(void);  /* it calls the driver */
  void (*exported)(void); /* it calls the next definition of the name */
  int since;
} symbols[SP_ROW_COUNT] = {
#define WRAPPED(name, since, class, action, subject, reason) {#name, sp_wrap_##name, sp_own_##name, since},
#include "driver/wrapped.h"
};

void *sp_real[SP_ROW_COUNT];
void *sp_next[SP_ROW_COUNT];

static struct sp_driver driver;
static int driver_loaded; /* set with release when `driver` and `sp_real` are filled */

/* The address of the driver's export `symbol`, or `older` in a driver that lacks it; NULL: it has neither. `handle`:
 * the driver's. */
static void *own_export(void *handle, const char *symbol, const char *older) {
  void *address = sp_object_symbol(handle, symbol);
  return address != NULL ? address : sp_object_symbol(handle, older);
}

/*
 * Fill the tables from the driver's handle, if it is loaded. The handle is kept, so that the driver is not unloaded
 * under our pointers. Threads may race here, and all write the same values. There is no lock, because a fork could
 * leave it locked.
 */
static void load_driver(void) {
  int saved_errno = errno;
  sp_dlopen_function *open = sp_libc_dlopen();
  void *handle = open != NULL ? open(SP_DRIVER_FILE, SP_RTLD_LAZY | SP_RTLD_NOLOAD) : NULL;
  if (handle != NULL) {
    for (int row = 0; row < SP_ROW_COUNT; row++) {
      sp_store(&sp_real[row], sp_object_symbol(handle, symbols[row].name));
    }
#define SP_FIELD(field, symbol, older, parameters) sp_store((void **)&driver.field, own_export(handle, symbol, older));
    SP_DRIVER_FUNCTIONS(SP_FIELD)
#undef SP_FIELD
    sp_store_release(&driver_loaded, 1); /* pairs with the loads of have_driver */
  }
  errno = saved_errno;
}

/* Is the driver loaded, and are the tables filled? They are filled here if it has been loaded since the last call. */
static bool have_driver(void) {
  if (__builtin_expect(sp_load_acquire(&driver_loaded) == 0, 0)) {
    load_driver();
  }
  return sp_load_acquire(&driver_loaded) != 0;
}

/* The driver's functions for our own calls. Never NULL; its members are NULL while no driver is loaded, or where the
 * driver lacks the function. */
const struct sp_driver *sp_driver(void) {
  have_driver();
  return &driver;
}

/* The driver's own export of this row of the table; NULL: no driver is loaded, or it lacks the function. */
void *sp_find_real(enum sp_row row) {
  return have_driver() ? sp_load(&sp_real[row]) : NULL;
}

/* What the code at `caller` would have found for this row's name without us. It is remembered in sp_next if it is the
 * driver's or a tool's. NULL: nothing. errno stays. */
void *sp_find_next(enum sp_row row, const void *caller) {
  int saved_errno = errno;
  sp_dlsym_function *lookup = sp_libc_dlsym();
  /* For the loader this library is the caller, so RTLD_NEXT means the libraries after it. A driver that was opened
   * privately (RTLD_LOCAL) is not among them. */
  void *found = lookup != NULL ? lookup(SP_RTLD_NEXT, symbols[row].name) : NULL;
  if (found == NULL) {
    char *(*forget_error)(void) = lookup != NULL ? (char *(*)(void))lookup(SP_RTLD_NEXT, "dlerror") : NULL;
    if (forget_error != NULL) {
      forget_error(); /* of our lookup: the program would take it for its own */
    }
    found = sp_find_real(row);
  }
  if (found != NULL) {
    sp_store(&sp_next[row], found);
  } else {
    /* No driver yet: the caller may have a stub that loads it. Not remembered, because the stub's library may be
     * unloaded. */
    found = sp_scope_symbol(caller, symbols[row].name);
  }
  errno = saved_errno;
  return found;
}

/* The error of a wrapper that has nothing to call. If the driver is loaded but lacks the function, the agent is
 * told. */
CUresult sp_unavailable(enum sp_row row) {
  if (!have_driver()) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  sp_share_no_function(symbols[row].name);
  return CUDA_ERROR_NOT_FOUND;
}

/* Is stream 0 the calling thread's own stream in the function of this name? Then the name ends in _ptsz, or _ptds if
 * the function has no stream parameter. */
static bool is_per_thread(const char *name) {
  while (*name != '\0' && (name[0] != '_' || name[1] != 'p')) {
    name++;
  }
  return *name != '\0';
}

/* The wrapper for an export of the driver; `address` itself if it is none, or has no wrapper. NVIDIA's driver has one
 * address for each name. A driver may also give one function several names, as our simulated one does: then it has the
 * newest interface. So the newest row wins, and a plain name wins over its per-thread twin. */
void *sp_wrapper_of(void *address) {
  int best = -1;
  for (int row = 0; address != NULL && have_driver() && row < SP_ROW_COUNT; row++) {
    if (sp_load(&sp_real[row]) != address) {
      continue;
    }
    bool per_thread = is_per_thread(symbols[row].name),
         best_per_thread = best >= 0 && is_per_thread(symbols[best].name);
    if (best < 0 || per_thread < best_per_thread ||
        (per_thread == best_per_thread && symbols[row].since > symbols[best].since)) {
      best = row;
    }
  }
  if (best < 0) {
    return address;
  }
  /* Found through us, the name may lead to a tool that was loaded behind us. A program that asks the driver itself
   * would not have found that tool. */
  bool to_tool = sp_next_of((enum sp_row)best, NULL) != address;
  return (void *)(to_tool ? symbols[best].wrapper : symbols[best].exported);
}

void *sp_filter(void *handle, const char *name) __attribute__((visibility("hidden")));
/* The wrapper that a lookup of `name` in `handle` gets; NULL: the real dlsym answers. Only the trampolines of dlsym
 * call it, and never for RTLD_NEXT or RTLD_DEFAULT. */
void *sp_filter(void *handle, const char *name) {
  /* First, because the caller may store the result in a variable with a driver function's name. */
  sp_own_names_return();
  if (name[0] == 'n' && name[1] == 'v') {
    return sp_nvml_filter(handle, name);
  }
  if (name[0] != 'c' || name[1] != 'u') {
    return NULL;
  }
  for (int row = 0; row < SP_ROW_COUNT; row++) {
    if (!sp_text_equal(symbols[row].name, name)) {
      continue;
    }
    sp_dlsym_function *lookup = sp_libc_dlsym();
    void *real = sp_find_real((enum sp_row)row);
    void *wrapper = sp_wrapper_of(real);
    /* The real lookup comes last, so that dlerror returns what the program expects. */
    return real != NULL && lookup != NULL && lookup(handle, name) == real ? wrapper : NULL;
  }
  return NULL;
}

void sp_before_dlopen(void) __attribute__((visibility("hidden")));
/* Called by the dlopen trampoline, before it jumps to the real dlopen. */
void sp_before_dlopen(void) {
  sp_libc_dlopen(); /* the first call resolves what the trampoline jumps to */
  sp_own_names_return();
}

/* The library's constructor. It only does early what our dlsym and dlopen would do at their first call. */
__attribute__((constructor)) static void begin(void) {
  sp_resolve();
  sp_own_names_return();
}
