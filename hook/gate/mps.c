/*
 * Whether an MPS control daemon waits for this process. The driver looks for one in the pipe directory, whether or not
 * the program asked for it. A daemon writes a file with its pid there and removes it when it stops; its socket stays.
 *
 * Nothing is sent to the daemon. A directory that the environment names is believed; in the default one, which a
 * container may have from its host, a daemon that was killed may have left its file: there the process has to be alive
 * as well. One that is missed so shows on the device, where the agent looks.
 */
#include "hook/gate/mps.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef SP_MPS_DIRECTORY
#define SP_MPS_DIRECTORY "/tmp/nvidia-mps"
#endif
#define PID_FILE "/nvidia-cuda-mps-control.pid"

/* The pid in the daemon's file, 0 when it cannot be told, -1: there is no file. */
static long daemon_pid(const char *directory) {
  char path[PATH_MAX];
  size_t length = strlen(directory);
  if (length + sizeof PID_FILE > sizeof path)
    return -1;
  memcpy(path, directory, length);
  memcpy(path + length, PID_FILE, sizeof PID_FILE);
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return errno == EACCES ? 0 : -1;
  char text[16];
  ssize_t bytes = read(fd, text, sizeof text - 1);
  close(fd);
  long pid = 0;
  for (ssize_t n = 0; n < bytes && text[n] >= '0' && text[n] <= '9' && pid < INT_MAX / 10; n++)
    pid = pid * 10 + (text[n] - '0');
  return pid;
}

bool sp_mps_client(void) {
  const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
  bool named = directory && *directory;
  long pid = daemon_pid(named ? directory : SP_MPS_DIRECTORY);
  if (named || pid < 0)
    return pid >= 0;
  return pid == 0 || kill((pid_t)pid, 0) == 0 || errno == EPERM;
}
