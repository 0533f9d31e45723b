/* A library that sends SIGUSR1 to a thread that creates one that nobody joins. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  int state = PTHREAD_CREATE_JOINABLE;
  create_function *next = (create_function *)dlsym(RTLD_NEXT, "pthread_create");
  if (attributes)
    pthread_attr_getdetachstate(attributes, &state);
  if (state == PTHREAD_CREATE_DETACHED)
    pthread_kill(pthread_self(), SIGUSR1);
  return next(thread, attributes, run, argument);
}
