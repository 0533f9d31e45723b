/* Executable graphs that allocate: what launch.c asks around a graph's launch. */
#ifndef SHAREPOD_MEMORY_GRAPH_H
#define SHAREPOD_MEMORY_GRAPH_H

#include "hook/memory/pool.h"

/* A graph of this process may hold allocation nodes: noted when one is made, once and for all. */
void sp_graphs_allocate(void);
bool sp_graphs_may_allocate(void);
/* The graphs' pools have given their memory back. */
void sp_graphs_trimmed(void);

/* The graph is about to be uploaded or launched: reserve what it will take. False: over the cap. */
bool sp_graph_begin(CUgraphExec executable, struct sp_growth *growth);
void sp_graph_end(CUgraphExec executable, struct sp_growth *growth, CUresult result);

#endif
