/* Says whether a preloaded malloc was reached; it crashes on recursion if RTLD_NEXT was wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  int *count = (int *)dlsym(RTLD_DEFAULT, "third_mallocs");
  int before = *count;
  void *volatile block = malloc(100);
  int reached = *count > before;
  printf("malloc %d\n", reached);
  free(block);
  return 0;
}
