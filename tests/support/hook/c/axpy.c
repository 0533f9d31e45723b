/*
 * A program of the runtime API, as a compiler without a runtime of its own leaves it of
 *
 *     __global__ void axpy_500us(float *y, const float *x, float a, unsigned n);
 *     axpy_500us<<<n / 256, 256, 0, stream>>>(y, x, 2.0f, n);
 *
 * It knows nothing of SharePod or of the simulator. It prints what it saw as one JSON object, and ends when its input
 * does.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "runtime.h"

/* ---- what the compiler adds */

static const char image[] = ".version 6.0\n"
                            ".target sm_50\n"
                            ".address_size 64\n"
                            ".visible .entry axpy_500us(.param .u64 y, .param .u64 x, .param .f32 a, .param .u32 n)\n"
                            "{\n"
                            "  ret;\n"
                            "}\n";
static const struct {
  int magic, version;
  const void *image;
  void *reserved;
} fat_binary = {0x466243b1, 1, image, NULL};
static void **fat_binary_handle;

static void axpy_500us(float *y, const float *x, float a, unsigned int n) {
  void *arguments[] = {&y, &x, &a, &n};
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
  if (__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &stream) == cudaSuccess) {
    cudaLaunchKernel((const void *)axpy_500us, grid, block, arguments, shared_bytes, stream);
  }
}

static void unregister(void) {
  __cudaUnregisterFatBinary(fat_binary_handle);
}

__attribute__((constructor)) static void register_all(void) {
  fat_binary_handle = __cudaRegisterFatBinary((void *)&fat_binary);
  __cudaRegisterFunction(fat_binary_handle, (const char *)axpy_500us, (char *)"axpy_500us", "axpy_500us", -1, NULL,
                         NULL, NULL, NULL, NULL);
  __cudaRegisterFatBinaryEnd(fat_binary_handle);
  atexit(unregister);
}

/* ---- the program */

#define COUNT    65536u
#define BYTES    (COUNT * sizeof(float))
#define LAUNCHES 10

static void check(cudaError_t error, const char *what) {
  if (error != cudaSuccess) {
    fprintf(stderr, "%s: error %d\n", what, error);
    exit(1);
  }
}
#define CHECK(call) check(call, #call)

/* On the default stream and on one of the program's own; the milliseconds between the events around them. */
static float launch(float *y, const float *x) {
  cudaStream_t streams[2] = {NULL, NULL};
  cudaEvent_t begin, end;
  float total = 0, milliseconds;
  CHECK(cudaStreamCreate(&streams[1]));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 2; i++) {
    CHECK(cudaEventRecord(begin, streams[i]));
    for (int launched = 0; launched < LAUNCHES; launched++) {
      (void)(__cudaPushCallConfiguration((dim3){COUNT / 256, 1, 1}, (dim3){256, 1, 1}, 0, streams[i])
                 ? (void)0
                 : axpy_500us(y, x, 2.0f, COUNT));
    }
    CHECK(cudaEventRecord(end, streams[i]));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    total += milliseconds;
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaStreamDestroy(streams[1]));
  return total;
}

/* Numbers to the device, inside it and back, with one half of them set to bytes of 7. */
static int copied(float *y, float *x) {
  float *sent = malloc(BYTES), *back = malloc(BYTES);
  for (unsigned int i = 0; i < COUNT; i++) {
    sent[i] = (float)i;
  }
  CHECK(cudaMemcpy(x, sent, BYTES, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(y, x, BYTES, cudaMemcpyDeviceToDevice));
  CHECK(cudaMemsetAsync(x, 7, BYTES, NULL));
  CHECK(cudaMemcpyAsync(y, x, BYTES / 2, cudaMemcpyDeviceToDevice, NULL));
  CHECK(cudaStreamSynchronize(NULL));
  CHECK(cudaMemcpy(back, y, BYTES, cudaMemcpyDeviceToHost));
  int same = memcmp(back + COUNT / 2, sent + COUNT / 2, BYTES / 2) == 0;
  for (size_t i = 0; i < BYTES / 2; i++) {
    same &= ((unsigned char *)back)[i] == 7;
  }
  free(sent);
  free(back);
  return same;
}

int main(void) {
  void *x, *y, *more = NULL;
  size_t left, total, left_after;
  CHECK(cudaMemGetInfo(&left, &total));
  CHECK(cudaMalloc(&x, BYTES));
  CHECK(cudaMalloc(&y, BYTES));
  int same = copied(y, x);
  float milliseconds = launch(y, x);
  int unknown = cudaLaunchKernel((const void *)main, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, NULL);
  int too_much = cudaMalloc(&more, left + 1);
  CHECK(cudaFree(x));
  CHECK(cudaFree(y));
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemGetInfo(&left_after, &total));
  printf("{\"copied\": %s, \"elapsed_ms\": %f, \"total\": %zu, \"leaked\": %zd, \"unknown\": %d, \"too_much\": %d}\n",
         same ? "true" : "false", (double)milliseconds, total, (ssize_t)(left - left_after), unknown, too_much);
  fflush(stdout);
  getchar();
  return 0;
}
