/* A library in which threads that nobody joins cannot be created, as under a limit of processes: after a while it says
 * so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  int state = PTHREAD_CREATE_JOINABLE;
  create_function *next = (create_function *)dlsym(RTLD_NEXT, "pthread_create");
  if (attributes)
    pthread_attr_getdetachstate(attributes, &state);
  if (state == PTHREAD_CREATE_JOINABLE)
    return next(thread, attributes, run, argument);
  usleep(200000);
  return EAGAIN;
}
