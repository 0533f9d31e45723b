/* MPS: under it all processes on a device share one context of the server, so their times cannot be told apart. */
#ifndef SHAREPOD_MPS_H
#define SHAREPOD_MPS_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* Will the driver make this process a client of MPS? May change errno. */
bool sp_mps_client(void);

#pragma GCC visibility pop

#endif
