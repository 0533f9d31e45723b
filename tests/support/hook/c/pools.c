/* Builds memory/pool.c, memory/pool_table.c and memory/account.c upon a driver with pools that hold what a test says;
 * the test reads the share's account. */
#include <errno.h>

#include "hook/memory/graph.h"

int64_t account, cap;
uint64_t held[4], kept[4]; /* what each pool has reserved, and what a trim would leave of it; 0: the graphs' memory */
void (*meanwhile)(void);   /* what other threads do while the driver is asked; NULL: nothing */
int questions[4], trims[4], untold; /* how often the driver was asked, and told to trim; untold: it does not answer */
static struct sp_driver driver;

static CUresult of_pool(CUmemoryPool pool, int attribute, void *bytes) {
  (void)attribute;
  questions[(uintptr_t)pool]++;
  errno = EIO; /* the caller's errno must not change */
  if (untold)
    return CUDA_ERROR_UNKNOWN;
  if (meanwhile)
    meanwhile();
  *(uint64_t *)bytes = held[(uintptr_t)pool];
  if (meanwhile)
    meanwhile();
  return CUDA_SUCCESS;
}

static CUresult of_graphs(CUdevice device, int attribute, void *bytes) {
  (void)device;
  return of_pool(NULL, attribute, bytes);
}

static CUresult trim(CUmemoryPool pool, size_t keep) {
  (void)keep;
  trims[(uintptr_t)pool]++;
  errno = EIO;
  held[(uintptr_t)pool] = kept[(uintptr_t)pool];
  return CUDA_SUCCESS;
}

static CUresult trim_graphs(CUdevice device) {
  (void)device;
  return trim(NULL, 0);
}

const struct sp_driver *sp_driver(void) {
  driver.cuMemPoolGetAttribute = of_pool;
  driver.cuDeviceGetGraphMemAttribute = of_graphs;
  driver.cuMemPoolTrimTo = trim;
  driver.cuDeviceGraphMemTrim = trim_graphs;
  return &driver;
}

uint64_t graphs_trimmed;
void sp_graphs_trimmed(void) {
  graphs_trimmed++;
}

int sp_share_memory_try(int device, uint64_t bytes) {
  (void)device;
  if ((int64_t)bytes > cap - account)
    return -1;
  account += (int64_t)bytes;
  return 0;
}

void sp_slot_memory(int device, int64_t bytes) {
  (void)device;
  account += bytes;
}

void sp_slot_memory_refused(int device, uint64_t bytes) {
  (void)device, (void)bytes;
}
