/* The rows of driver.def that the hook wraps, for the macro WRAPPED that stands before this, undefined after. */
#define DRIVER(...)
#define ABSENT(...)
#include "driver.def"
#undef WRAPPED
#undef DRIVER
#undef ABSENT
