/* The rows of driver.def that the hook wraps. Define the macro WRAPPED before including this; it is undefined after. */
#define DRIVER(...)
#define ABSENT(...)
#include "driver.def"
#undef WRAPPED
#undef DRIVER
#undef ABSENT
