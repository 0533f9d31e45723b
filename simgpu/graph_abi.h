/* The driver API's types for graphs and for batches of memory operations. */
#ifndef SIMGPU_GRAPH_ABI_H
#define SIMGPU_GRAPH_ABI_H

#include "abi.h"

enum { /* CUgraphNodeType */
       NODE_KERNEL,
       NODE_MEMCPY,
       NODE_MEMSET,
       NODE_HOST,
       NODE_GRAPH,
       NODE_EMPTY,
       NODE_WAIT,
       NODE_RECORD,
       NODE_ALLOC = 10,
       NODE_FREE,
       NODE_BATCH
};

enum { /* CUgraphExecUpdateResult */
       UPDATE_SUCCESS,
       UPDATE_ERROR,
       UPDATE_TOPOLOGY_CHANGED,
       UPDATE_TYPE_CHANGED,
       UPDATE_PARAMETERS_CHANGED = 5,
       UPDATE_NOT_SUPPORTED
};

#define INSTANTIATE_AUTO_FREE     1u
#define INSTANTIATE_UPLOAD        2u
#define INSTANTIATE_DEVICE_LAUNCH 4u
#define INSTANTIATE_ALL           15u

enum { OP_WAIT_32 = 1, OP_WRITE_32, OP_FLUSH, OP_WAIT_64, OP_WRITE_64, OP_BARRIER };

typedef union {
  int operation;
  struct {
    int operation;
    CUdeviceptr address;
    uint64_t value;
    unsigned flags;
    CUdeviceptr alias;
  } word;
  uint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef struct {
  CUcontext ctx;
  unsigned count;
  CUstreamBatchMemOpParams *paramArray;
  unsigned flags;
} CUDA_BATCH_MEM_OP_NODE_PARAMS;

typedef struct {
  int flags, reserved;
  CUcontext copyCtx;
  CUDA_MEMCPY3D copyParams;
} CUDA_MEMCPY_NODE_PARAMS;

typedef struct {
  CUgraph graph;
  int ownership;
} CUDA_CHILD_GRAPH_NODE_PARAMS;

typedef struct {
  struct {
    int allocType, handleTypes, locationType, locationId;
    void *security;
    size_t maxSize;
    unsigned char rest[56];
  } poolProps;
  const void *accessDescs;
  size_t accessDescCount, bytesize;
  CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
  int type;
  int reserved0[3];
  union {
    long long reserved1[29];
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMCPY_NODE_PARAMS memcpy;
    CUDA_MEMSET_NODE_PARAMS memset;
    CUDA_HOST_NODE_PARAMS host;
    CUDA_CHILD_GRAPH_NODE_PARAMS graph;
    CUevent event; /* records and waits */
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUdeviceptr free;
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch;
  };
  long long reserved2;
} CUgraphNodeParams;

typedef struct {
  unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

typedef struct {
  uint64_t flags;
  CUstream upload;
  CUgraphNode error_node;
  int result;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
  int result;
  CUgraphNode error_node, error_from_node;
} CUgraphExecUpdateResultInfo;

_Static_assert(sizeof(CUstreamBatchMemOpParams) == 48, "CUDA 8.0 ABI");
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "CUDA 11.4 ABI");
_Static_assert(sizeof(CUgraphNodeParams) == 256 && offsetof(CUgraphNodeParams, kernel) == 16, "CUDA 12.2 ABI");
_Static_assert(sizeof(CUgraphEdgeData) == 8, "CUDA 12.3 ABI");

#endif
