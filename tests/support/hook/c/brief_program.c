/* Works for a moment and ends at once when it has waited for that: nobody looks in between. */
#include <dlfcn.h>
#include <stddef.h>

#define CALL(name, ...)                                                                                                \
  do {                                                                                                                 \
    int (*call)() = (int (*)())dlsym(driver, name);                                                                    \
    if (!call || call(__VA_ARGS__))                                                                                    \
      return 1;                                                                                                        \
  } while (0)

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *function;
  static const char image[68] = "\177ELF";
  if (!driver)
    return 2;
  CALL("cuInit", 0);
  CALL("cuDevicePrimaryCtxRetain", &context, 0);
  CALL("cuCtxSetCurrent", context);
  CALL("cuModuleLoadData", &module, image);
  CALL("cuModuleGetFunction", &function, module, "brief_1ms");
  for (int number = 0; number < 20; number++)
    CALL("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
  CALL("cuCtxSynchronize");
  return 0;
}
