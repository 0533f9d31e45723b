/* The driver's types, with the simulator's own structures behind its handles. */
#ifndef SIMGPU_ABI_H
#define SIMGPU_ABI_H

#define CUctx_st            context
#define CUstream_st         stream
#define CUevent_st          event
#define CUmod_st            module
#define CUfunc_st           function
#define CUlinkState_st      link
#define CUgraph_st          graph
#define CUgraphNode_st      node
#define CUgraphExec_st      exec
#define CUmemPoolHandle_st  pool
#define CUarray_st          array
#define CUmipmappedArray_st mipmap
#define CUextMemory_st      external
#include "driver/cuda.h"

#define EXPORT __attribute__((visibility("default")))

#define INSTANTIATE_ALL 15u /* every flag of an instantiation */

typedef struct { /* what the simulator writes into a CUmemPoolPtrExportData */
  uint64_t chunk, chunk_bytes, offset, bytes;
  uint64_t reserved[4];
} export_data_t;
_Static_assert(sizeof(export_data_t) == sizeof(CUmemPoolPtrExportData), "one is passed as the other");

#endif
