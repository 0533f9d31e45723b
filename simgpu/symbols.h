#ifndef SIMGPU_SYMBOLS_H
#define SIMGPU_SYMBOLS_H

#include <stddef.h>

struct symbol {
  const char *name;
  int since; /* CUDA version that this ABI of it came with */
  void (*symbol)(void);
  void (*own)(void); /* for per-thread default streams; the same where there is no such form */
};
extern const struct symbol symbols[];
extern const size_t symbol_count;

#endif
