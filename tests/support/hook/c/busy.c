/* Uses threads, allocations, the loader and a fork like an ordinary program, without a GPU. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *work(void *argument) {
  void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_LOCAL);
  size_t total = 0;
  for (int i = 0; i < 1000; i++) {
    char *block = malloc((size_t)i + 1);
    memset(block, i, (size_t)i + 1);
    total += (size_t)block[i] != 0;
    free(block);
    if (dlsym(libc, "strlen") == NULL || dlsym(libc, "cu_no_such") != NULL || dlsym(RTLD_DEFAULT, "memcpy") == NULL) {
      return NULL;
    }
  }
  dlclose(libc);
  *(size_t *)argument = total;
  return argument;
}

int main(void) {
  pthread_t threads[4];
  size_t totals[4] = {0};
  int done = 0;
  for (int i = 0; i < 4; i++) {
    pthread_create(&threads[i], NULL, work, &totals[i]);
  }
  for (int i = 0; i < 4; i++) {
    void *result = NULL;
    pthread_join(threads[i], &result);
    done += result != NULL;
  }
  pid_t child = fork();
  if (child == 0) {
    for (int descriptor = 3; descriptor < 64; descriptor++) {
      close(descriptor);
    }
    size_t mine = 0;
    _exit(work(&mine) == NULL);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    return 1;
  }
  printf("busy %d\n", done);
  return 0;
}
