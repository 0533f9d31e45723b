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
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPool_st *CUmemoryPool;
typedef struct {
  unsigned char bytes[16];
} CUuuid;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
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
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  CU_MEMORYTYPE_DEVICE = 2,
  CU_MEMORYTYPE_ARRAY = 3,
  CU_MEMORYTYPE_UNIFIED = 4, /* the address tells */
};

/* The argument of cuLaunchKernelEx; attributes are the driver's business. */
typedef struct {
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  void *attrs;
  unsigned int numAttrs;
} CUlaunchConfig;

/* One element of the array given to cuLaunchCooperativeKernelMultiDevice. */
typedef struct {
  CUfunction function;
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  void **kernelParams;
} CUDA_LAUNCH_PARAMS;

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

_Static_assert(sizeof(void *) == 8, "the hook is 64-bit");
_Static_assert(offsetof(CUlaunchConfig, hStream) == 32 && sizeof(CUlaunchConfig) == 56, "CUDA 11.8 ABI");
_Static_assert(offsetof(CUDA_LAUNCH_PARAMS, hStream) == 40 && sizeof(CUDA_LAUNCH_PARAMS) == 56, "CUDA 9.0 ABI");
_Static_assert(offsetof(CUDA_MEMCPY2D, dstMemoryType) == 72 && sizeof(CUDA_MEMCPY2D) == 128, "CUDA 3.2 ABI");
_Static_assert(offsetof(CUDA_MEMCPY3D, dstMemoryType) == 120 && sizeof(CUDA_MEMCPY3D) == 200, "CUDA 3.2 ABI");
_Static_assert(offsetof(CUDA_MEMCPY2D_v1, dstMemoryType) == 52 && sizeof(CUDA_MEMCPY2D_v1) == 96, "CUDA 2.0 ABI");
_Static_assert(offsetof(CUDA_MEMCPY3D_v1, dstMemoryType) == 80 && sizeof(CUDA_MEMCPY3D_v1) == 144, "CUDA 2.0 ABI");

#endif
