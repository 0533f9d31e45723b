/* Finds the hook's names without any driver, and calls them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>

typedef int any_function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                         uint64_t, uint64_t);

int main(void) {
  static const char *const names[] = {"cuInit", "cuLaunchKernel"};
  for (int i = 0; i < 2; i++) {
    any_function *function = (any_function *)dlsym(RTLD_DEFAULT, names[i]);
    errno = 77;
    int result = function(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    printf("%s %d errno %d\n", names[i], result, errno);
  }
  return 0;
}
