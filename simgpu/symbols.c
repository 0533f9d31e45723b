/* The table of what cuGetProcAddress knows. It declares every symbol as a bare function, so it sees no prototypes. */
#include "symbols.h"

/* symbols.def: X(name, first CUDA version, symbol), or O(name, version, symbol, symbol for per-thread default streams).
 * A name has one row for each of its ABIs, oldest first. */
#define X(name, since, symbol)      extern void symbol(void);
#define O(name, since, symbol, own) extern void symbol(void), own(void);
#include "symbols.def"
#undef X
#undef O

const struct symbol symbols[] = {
#define X(name, since, symbol)      {#name, since, symbol, symbol},
#define O(name, since, symbol, own) {#name, since, symbol, own},
#include "symbols.def"
#undef X
#undef O
};

const size_t symbol_count = sizeof symbols / sizeof *symbols;
