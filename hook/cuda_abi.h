/*
 * The few CUDA driver types and constants that the hook needs. The driver's binary interface is stable and public;
 * declaring it here keeps the build free of the CUDA toolkit. Layouts are asserted below for the 64-bit ABI.
 */
#ifndef SHAREPOD_CUDA_ABI_H
#define SHAREPOD_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1; /* the address type of the functions older than CUDA 3.2 */
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUmemPool_st *CUmemoryPool;
typedef struct CUarray_st *CUarray; /* mipmapped ones too */
typedef struct CUextMemory_st *CUexternalMemory;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct {
  unsigned char bytes[16];
} CUuuid;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_SYSTEM_NOT_READY = 802,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
};

/* Streams that are not handles: 0 means the legacy stream, or the thread's own one in a per-thread function. */
#define CU_STREAM_LEGACY     ((CUstream)(uintptr_t)1)
#define CU_STREAM_PER_THREAD ((CUstream)(uintptr_t)2)

enum {
  CU_EVENT_BLOCKING_SYNC = 1,
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_MEMORYTYPE_DEVICE = 2,
  CU_MEMORYTYPE_ARRAY = 3,
  CU_MEMORYTYPE_UNIFIED = 4, /* the address tells */
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
  CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
  CU_GRAPH_NODE_TYPE_GRAPH = 4,
  CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
  CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
  CUDA_GRAPH_INSTANTIATE_ERROR = 1,
  CUDA_ARRAY3D_LAYERED = 0x01,
  CUDA_ARRAY3D_CUBEMAP = 0x04,
  CUDA_ARRAY3D_SPARSE = 0x40,
  CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

/* What memory is made with: the head of each is what the hook reads. */
typedef struct {
  int type;
  int id;
} CUmemLocation;
typedef struct {
  int type;
  int requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  unsigned char allocFlags[8];
} CUmemAllocationProp;
typedef struct {
  int allocType;
  int handleTypes;
  CUmemLocation location;
  void *win32SecurityAttributes;
  size_t maxSize;
  unsigned char reserved[56];
} CUmemPoolProps;
typedef struct {
  CUmemPoolProps poolProps;
  const void *accessDescs;
  size_t accessDescCount;
  size_t bytesize;
  CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;
typedef struct {
  unsigned long long flags;
  CUstream hUploadStream;
  CUgraphNode hErrNode_out;
  int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;
typedef struct {
  int type;
  void *handle[2];
  unsigned long long size;
  unsigned int flags;
  unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
typedef struct {
  size_t Width, Height;
  unsigned int Format, NumChannels;
} CUDA_ARRAY_DESCRIPTOR;
typedef struct {
  unsigned int Width, Height;
  unsigned int Format, NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct {
  size_t Width, Height, Depth;
  unsigned int Format, NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;
typedef struct {
  unsigned int Width, Height, Depth;
  unsigned int Format, NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

/* The argument of cuLaunchKernelEx; attributes are the driver's business. */
typedef struct {
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  void *attrs;
  unsigned int numAttrs;
} CUlaunchConfig;

/* What a copy of two or three dimensions is told by, in the interface of CUDA 3.2 and in the older one (_v1). */
#define SP_COPY_SIDE_2D(side, address, size)                                                                           \
  size side##XInBytes, side##Y;                                                                                        \
  unsigned int side##MemoryType;                                                                                       \
  const void *side##Host;                                                                                              \
  address side##Device;                                                                                                \
  void *side##Array;                                                                                                   \
  size side##Pitch;
#define SP_COPY_SIDE_3D(side, address, size)                                                                           \
  size side##XInBytes, side##Y, side##Z, side##Level;                                                                  \
  unsigned int side##MemoryType;                                                                                       \
  const void *side##Host;                                                                                              \
  address side##Device;                                                                                                \
  void *side##Array;                                                                                                   \
  void *side##Context; /* of the copies between devices; else reserved */                                              \
  size side##Pitch, side##Height;
typedef struct {
  SP_COPY_SIDE_2D(src, CUdeviceptr, size_t)
  SP_COPY_SIDE_2D(dst, CUdeviceptr, size_t)
  size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;
typedef struct {
  SP_COPY_SIDE_2D(src, CUdeviceptr_v1, unsigned int)
  SP_COPY_SIDE_2D(dst, CUdeviceptr_v1, unsigned int)
  unsigned int WidthInBytes, Height;
} CUDA_MEMCPY2D_v1;
typedef struct {
  SP_COPY_SIDE_3D(src, CUdeviceptr, size_t)
  SP_COPY_SIDE_3D(dst, CUdeviceptr, size_t)
  size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;
typedef struct {
  SP_COPY_SIDE_3D(src, CUdeviceptr_v1, unsigned int)
  SP_COPY_SIDE_3D(dst, CUdeviceptr_v1, unsigned int)
  unsigned int WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D_v1;

/* One copy of a batch of boxes, one of a batch over a fabric, one piece of a batch to be decompressed. */
enum {
  CU_MEMCPY_OPERAND_TYPE_POINTER = 1,
  CU_MEMCPY_OPERAND_TYPE_ARRAY = 2,
  CU_FABRIC_COPY_OPERAND_TYPE_POINTER = 1,
  CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT = 2,
};
typedef struct {
  unsigned int type;
  CUdeviceptr ptr;  /* the handle, if it is an array */
  size_t layout[3]; /* the driver's business */
} CUmemcpy3DOperand;
typedef struct {
  CUmemcpy3DOperand src, dst;
  size_t width, height, depth;
  unsigned int srcAccessOrder, flags;
} CUDA_MEMCPY3D_BATCH_OP;
typedef struct {
  unsigned int type;
  CUdeviceptr ptr; /* the identity, if it is an endpoint */
  size_t layout;   /* the driver's business */
} CUfabricCpyOperand;
typedef struct {
  CUfabricCpyOperand src, dst;
  size_t size;
  unsigned int flags;
} CUDA_FABRIC_COPY_BATCH_OP;
typedef struct {
  size_t srcNumBytes, dstNumBytes;
  void *layout[6]; /* the driver's business */
} CUmemDecompressParams;

_Static_assert(sizeof(void *) == 8, "the hook is 64-bit");
_Static_assert(offsetof(CUmemAllocationProp, location) == 8 && sizeof(CUmemAllocationProp) == 32, "CUDA 10.2 ABI");
_Static_assert(offsetof(CUmemPoolProps, location) == 8 && sizeof(CUmemPoolProps) == 88, "CUDA 11.2 ABI");
_Static_assert(offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize) == 104, "CUDA 11.4 ABI");
_Static_assert(offsetof(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out) == 24, "CUDA 12.0 ABI");
_Static_assert(offsetof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size) == 24, "CUDA 10.0 ABI");
_Static_assert(offsetof(CUDA_ARRAY3D_DESCRIPTOR, Flags) == 32, "CUDA 3.2 ABI");
_Static_assert(offsetof(CUlaunchConfig, hStream) == 32 && sizeof(CUlaunchConfig) == 56, "CUDA 11.8 ABI");
_Static_assert(offsetof(CUDA_MEMCPY2D, dstMemoryType) == 72 && sizeof(CUDA_MEMCPY2D) == 128, "CUDA 3.2 ABI");
_Static_assert(offsetof(CUDA_MEMCPY3D, dstMemoryType) == 120 && sizeof(CUDA_MEMCPY3D) == 200, "CUDA 3.2 ABI");
_Static_assert(offsetof(CUDA_MEMCPY2D_v1, dstMemoryType) == 52 && sizeof(CUDA_MEMCPY2D_v1) == 96, "CUDA 2.0 ABI");
_Static_assert(offsetof(CUDA_MEMCPY3D_v1, dstMemoryType) == 80 && sizeof(CUDA_MEMCPY3D_v1) == 144, "CUDA 2.0 ABI");
_Static_assert(offsetof(CUDA_MEMCPY3D_BATCH_OP, width) == 80 && sizeof(CUDA_MEMCPY3D_BATCH_OP) == 112, "CUDA 12.8 ABI");
_Static_assert(offsetof(CUDA_FABRIC_COPY_BATCH_OP, size) == 48 && sizeof(CUDA_FABRIC_COPY_BATCH_OP) == 64, "13.5 ABI");
_Static_assert(sizeof(CUmemDecompressParams) == 64, "CUDA 12.6 ABI");

#endif
