/*
 * Finds out whether the driver would make this process a client of MPS. The driver looks for a control daemon in the
 * pipe directory, even if the program did not ask for one. A daemon writes a file with its pid there and removes it
 * when it stops; its socket stays.
 *
 * Nothing is sent to the daemon. If the environment names the directory, the file is enough. In the default directory,
 * which a container may share with its host, a killed daemon may have left its file: there the daemon must also be
 * alive. A daemon that is missed in this way is found by the agent, which sees the MPS server on the device.
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

/* The pid in the file of the control daemon in `directory`; 0: it cannot be read; -1: there is no file. */
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

/* Will the driver make this process a client of MPS? In a directory that the environment names, the daemon's file is
 * enough; in the default one the daemon must live (see above). If the file does not tell its pid, or it is another
 * user's process (EPERM), it counts as alive. May change errno. */
bool sp_mps_client(void) {
  const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
  bool named = directory && *directory;
  long pid = daemon_pid(named ? directory : SP_MPS_DIRECTORY);
  if (named || pid < 0)
    return pid >= 0;
  return pid == 0 || kill((pid_t)pid, 0) == 0 || errno == EPERM;
}
