/* Executable graphs that allocate: launch.c calls this around a graph's launch. */
#ifndef SHAREPOD_MEMORY_GRAPH_H
#define SHAREPOD_MEMORY_GRAPH_H

#include "hook/memory/pool.h"

/* Note that graphs of this process may have allocation nodes. Called when the first one is made. */
void sp_graphs_allocate(void);
bool sp_graphs_may_allocate(void);
/* The graphs' pools have been trimmed. */
void sp_graphs_trimmed(void);

/* The graph is about to be uploaded or launched: reserve the memory that it will take. False: over the cap. */
bool sp_graph_begin(CUgraphExec executable, struct sp_growth *growth);
/* That call has returned: correct the reservation to what the pool has grown by, or end it. */
void sp_graph_end(CUgraphExec executable, struct sp_growth *growth, CUresult result);

#endif
