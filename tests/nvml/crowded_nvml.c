/* A libnvidia-ml on a machine with 2,000 processes, pids 1 to 2000, of which more come with every look. */
#define EXPORT __attribute__((visibility("default")))

struct process {
  unsigned pid;
  unsigned long long memory_bytes;
  unsigned gpu_instance, compute_instance;
};

EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
  (void)device, (void)length;
  *uuid = 0;
  return 0;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *entries) {
  static unsigned looks;
  (void)device;
  unsigned room = *count;
  *count = 2000 + 10 * looks++;
  if (*count > room)
    return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
  for (unsigned n = 0; n < *count; n++)
    entries[n] = (struct process){n + 1, n, 0, 0};
  return 0;
}
