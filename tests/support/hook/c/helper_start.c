/* A library that disturbs the creation of a thread that nobody joins, as the hook's helper thread is. With SIGNALS the
 * creating thread gets SIGUSR1 meanwhile. Otherwise no such thread can be created, as under a limit of processes, and
 * that is known only after a while. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  int state = PTHREAD_CREATE_JOINABLE;
  create_function *next = (create_function *)dlsym(RTLD_NEXT, "pthread_create");
  if (attributes)
    pthread_attr_getdetachstate(attributes, &state);
  if (state == PTHREAD_CREATE_DETACHED) {
#ifdef SIGNALS
    pthread_kill(pthread_self(), SIGUSR1);
#else
    usleep(200000);
    return EAGAIN;
#endif
  }
  return next(thread, attributes, run, argument);
}
