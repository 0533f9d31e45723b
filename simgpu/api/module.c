/* Modules, libraries, functions, occupancy and the linker: a kernel's duration comes from its name. CUDA's
 * documentation tells what the exported functions do; a comment at one tells only what is special here. */
#define _GNU_SOURCE
#include "simgpu/api/process.h"
#include "simgpu/api/ptx.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Modules and libraries are one thing here: a library is a module that any context may use. A kernel is a function. */
struct module {
  struct handle handle;
  char *ptx; /* NULL: any name of a kernel or a variable is accepted */
  struct function *functions;
  CUdeviceptr variables;   /* PTX: its variables, one after another. Another image: one variable for all names */
  struct context *context; /* that module_bytes of memory are taken from */
  uint32_t context_id;
};

#define VARIABLE_BYTES 65536 /* of a variable if no PTX tells its size */

/* The duration in ns that a kernel's name tells at its end: "_500us", "_20ns"; 0: it tells none. */
static uint64_t duration_in(const char *name, size_t length) {
  static const struct {
    const char *unit;
    uint64_t ns;
  } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}};
  for (size_t n = 0; n < sizeof units / sizeof *units; n++) {
    if (length < strlen("_1ns") || strncmp(name + length - 2, units[n].unit, 2))
      continue;
    size_t at = length - 2; /* where the unit begins, then where the digits before it begin */
    while (at && isdigit((unsigned char)name[at - 1]))
      at--;
    if (at && at < length - 2 && name[at - 1] == '_')
      return strtoull(name + at, NULL, 10) * units[n].ns;
  }
  return 0;
}

/* The plain name within a name, and its length. A C++ name is mangled as _Z9sgemm_5usPf or _ZN3lib9sgemm_5usE...: the
 * last part with a length is the plain name. Any other name is plain already. */
static const char *plain_name(const char *name, size_t *length) {
  const char *plain = name;
  *length = strlen(name);
  if (strncmp(name, "_Z", 2))
    return plain;
  const char *at = name + 2;
  while (*at == 'N' || *at == 'L' || *at == 'K') /* a nested name; internal linkage; const */
    at++;
  while (isdigit((unsigned char)*at)) {
    char *part;
    size_t part_length = strtoul(at, &part, 10);
    if (part_length > strlen(part))
      break;
    plain = part;
    *length = part_length;
    at = part + part_length;
  }
  return plain;
}

/* Make a module in the current context, which is charged for it (module_bytes). Only an image in PTX is read. In a
 * module of any other image every name of a kernel or variable is found. */
static CUresult load(CUmodule *out, const void *image) {
  struct context *context;
  CUresult result = enter(&context);
  if (!result)
    result = unsafe_call();
  if (result || !out || !image)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = process.state.shared->model.module_bytes;
  result = bytes ? charge(context, bytes) : CUDA_SUCCESS;
  struct module *module = result ? NULL : handle_new(MODULE_HANDLE, sizeof *module);
  if (!module) {
    if (!result && bytes)
      refund(context, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  module->context = context;
  module->context_id = shared_of(context)->id;
  module->ptx = ptx_copy(image);
  *out = module;
  return CUDA_SUCCESS;
}

/* Make a module of the image in a file, as `load` does. Anything but a regular file counts as not found. */
static CUresult load_file(CUmodule *out, const char *path) {
  struct stat info;
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0)
    return CUDA_ERROR_FILE_NOT_FOUND;
  CUresult result = CUDA_ERROR_FILE_NOT_FOUND;
  if (!fstat(fd, &info) && S_ISREG(info.st_mode)) {
    char *image = calloc(1, (size_t)info.st_size + 16); /* ptx_copy needs a terminating zero, and reads nine bytes */
    result = !image                                                  ? CUDA_ERROR_OUT_OF_MEMORY
             : read(fd, image, (size_t)info.st_size) != info.st_size ? CUDA_ERROR_FILE_NOT_FOUND
                                                                     : load(out, image);
    free(image);
  }
  close(fd);
  return result;
}

/* End a module with its functions and variables. Its charge is refunded if the context that was charged still lives. */
static CUresult unload(CUmodule module) {
  CUresult result = enter_anywhere();
  if (result)
    return result;
  if (!is_handle(module, MODULE_HANDLE))
    return CUDA_ERROR_INVALID_HANDLE;
  struct context *context = module->context;
  /* A primary context that was made anew has the same handle and another id. */
  bool is_open = context->slot != SG_NONE && shared_of(context)->id == module->context_id;
  result = is_open ? context_error(context) : CUDA_SUCCESS;
  if (result)
    return result;
  for (struct function *function = module->functions; function;) {
    struct function *next = function->next;
    handle_free(function);
    function = next;
  }
  free(module->ptx);
  struct block variables;
  if (module->variables && take_block(module->variables, &variables))
    release_block(&variables);
  uint64_t bytes = process.state.shared->model.module_bytes;
  if (bytes && is_open)
    refund(context, bytes);
  handle_free(module);
  return CUDA_SUCCESS;
}

/* Find a kernel of a module by name. Its handle is made at the first call, when the name tells how the kernel behaves:
 * its duration (_500us, _var), or that it faults or spins. */
static CUresult get_function(CUfunction *out, CUmodule module, const char *name) {
  CUresult result = ready();
  if (result)
    return result;
  if (!is_handle(module, MODULE_HANDLE))
    return CUDA_ERROR_INVALID_HANDLE;
  if (!out || !name || !*name)
    return CUDA_ERROR_INVALID_VALUE;
  if (module->ptx && !ptx_entry(module->ptx, name))
    return CUDA_ERROR_NOT_FOUND;
  pthread_mutex_lock(&process.lock);
  struct function *function = module->functions;
  while (function && strncmp(function->name, name, sizeof function->name - 1))
    function = function->next;
  if (!function && (function = handle_new(FUNCTION_HANDLE, sizeof *function))) {
    size_t length;
    const char *plain = plain_name(name, &length);
    snprintf(function->name, sizeof function->name, "%s", name);
    function->module = module;
    function->fixed_ns = duration_in(plain, length);
    function->faulty = length >= strlen("fault") && !strncmp(plain, "fault", strlen("fault"));
    function->varies = memmem(plain, length, "_var", 4) != NULL;
    function->spin = length == strlen("spin_until") && !strncmp(plain, "spin_until", length);
    sg_lock(&process.state);
    function->shared_name = sg_intern(process.state.shared, function->name);
    sg_unlock(&process.state);
    function->next = module->functions;
    module->functions = function;
  }
  pthread_mutex_unlock(&process.lock);
  *out = function;
  return function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The function behind a handle. NULL: the handle is none, or its module was unloaded. */
struct function *find_function(CUfunction handle) {
  return is_handle(handle, FUNCTION_HANDLE) ? handle : NULL;
}

/* Where a variable of a module lies, and its size. At the first call all variables of the module get memory together,
 * in the current context. */
static CUresult get_variable(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
  extern CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
  size_t offset = 0, length = VARIABLE_BYTES, total = VARIABLE_BYTES;
  if (!is_handle(module, MODULE_HANDLE) || !name)
    return CUDA_ERROR_INVALID_HANDLE;
  if (module->ptx && !ptx_variable(module->ptx, name, &offset, &length, &total))
    return CUDA_ERROR_NOT_FOUND;
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  CUresult result = module->variables ? CUDA_SUCCESS : cuMemAlloc_v2(&module->variables, total);
  pthread_mutex_unlock(&lock);
  if (!result && address)
    *address = module->variables + offset;
  if (!result && bytes)
    *bytes = length;
  return result;
}

/* --- calls ------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuModuleLoad(CUmodule *out, const char *path) {
  return load_file(out, path);
}
EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  return load(out, image);
}
EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, int *options, void **values) {
  (void)n, (void)options, (void)values;
  return load(out, image);
}
EXPORT CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) {
  return load(out, image);
}
EXPORT CUresult cuModuleUnload(CUmodule module) {
  return unload(module);
}
EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  return get_function(out, module, name);
}
EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
  return get_variable(address, bytes, module, name);
}
EXPORT CUresult cuModuleGetLoadingMode(int *mode) {
  *mode = 2; /* lazy */
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryLoadData(CUmodule *out, const void *code, int *jit, void **jit_values, unsigned jit_count,
                                  int *options, void **values, unsigned count) {
  (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  return load(out, code);
}
EXPORT CUresult cuLibraryLoadFromFile(CUmodule *out, const char *path, int *jit, void **jit_values, unsigned jit_count,
                                      int *options, void **values, unsigned count) {
  (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  return load_file(out, path);
}
EXPORT CUresult cuLibraryUnload(CUmodule library) {
  return unload(library);
}
EXPORT CUresult cuLibraryGetKernel(CUfunction *out, CUmodule library, const char *name) {
  return get_function(out, library, name);
}
EXPORT CUresult cuLibraryGetModule(CUmodule *out, CUmodule library) {
  *out = library;
  return is_handle(library, MODULE_HANDLE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule library, const char *name) {
  return get_variable(address, bytes, library, name);
}
EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUfunction kernel) {
  *out = kernel;
  return find_function(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
EXPORT CUresult cuKernelGetLibrary(CUmodule *out, CUfunction kernel) {
  if (!find_function(kernel))
    return CUDA_ERROR_INVALID_HANDLE;
  *out = kernel->module;
  return CUDA_SUCCESS;
}

/* Every kernel has the attributes of a plausible small one: at most 1,024 threads in a block, 32 registers, made for
 * compute capability 9.0, up to 48 KiB of dynamic shared memory. */
EXPORT CUresult cuFuncGetAttribute(int *out, int attribute, CUfunction function) {
  static const int values[] = {1024, 0, 0, 0, 32, 90, 90, 0, 49152, -1, 0, 0, 0, 0, 0, 0}; /* by CUfunction_attribute */
  if (!find_function(function))
    return CUDA_ERROR_INVALID_HANDLE;
  if (!out || attribute < 0 || (size_t)attribute >= sizeof values / sizeof *values)
    return CUDA_ERROR_INVALID_VALUE;
  *out = values[attribute];
  return CUDA_SUCCESS;
}
EXPORT CUresult cuKernelGetAttribute(int *out, int attribute, CUfunction kernel, CUdevice ordinal) {
  (void)ordinal;
  return cuFuncGetAttribute(out, attribute, kernel);
}
EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  (void)attribute, (void)value;
  return find_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
EXPORT CUresult cuKernelSetAttribute(int attribute, int value, CUfunction kernel, CUdevice ordinal) {
  (void)ordinal;
  return cuFuncSetAttribute(kernel, attribute, value);
}
EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, int config) {
  return cuFuncSetAttribute(function, 0, config);
}
EXPORT CUresult cuKernelSetCacheConfig(CUfunction function, int config, CUdevice ordinal) {
  (void)ordinal;
  return cuFuncSetAttribute(function, 0, config);
}
EXPORT CUresult cuFuncGetModule(CUmodule *out, CUfunction function) {
  return cuKernelGetLibrary(out, function);
}
EXPORT CUresult cuFuncGetName(const char **out, CUfunction function) {
  if (!find_function(function))
    return CUDA_ERROR_INVALID_HANDLE;
  *out = function->name;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuKernelGetName(const char **out, CUfunction kernel) {
  return cuFuncGetName(out, kernel);
}
/* Where parameter `index` lies, and its size; known only for kernels that come as PTX. */
EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
  size_t length;
  if (!find_function(function))
    return CUDA_ERROR_INVALID_HANDLE;
  if (!function->module->ptx)
    return not_supported("parameters of a kernel that does not come as PTX");
  const char *entry = ptx_entry(function->module->ptx, function->name);
  bool has = offset && entry && ptx_parameter(entry, index, offset, &length);
  if (has && bytes)
    *bytes = length;
  return has ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuKernelGetParamInfo(CUfunction kernel, size_t index, size_t *offset, size_t *bytes) {
  return cuFuncGetParamInfo(kernel, index, offset, bytes);
}
EXPORT CUresult cuFuncIsLoaded(int *out, CUfunction function) {
  *out = 1;
  return find_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
EXPORT CUresult cuFuncLoad(CUfunction function) {
  return find_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* --- occupancy: threads alone decide ------------------------------------------------------------------------------ */

/* How many blocks of so many threads an SM holds: it has room for 2,048 threads and 32 blocks, whatever the device. */
static int blocks_of_sm(int threads) {
  return 2048 / threads > 32 ? 32 : 2048 / threads;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction function, int threads, size_t shared) {
  (void)shared;
  if (!out || threads <= 0 || !find_function(function))
    return CUDA_ERROR_INVALID_VALUE;
  *out = threads > BLOCK_THREADS ? 0 : blocks_of_sm(threads);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction function, int threads,
                                                                     size_t shared, unsigned flags) {
  (void)flags;
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(out, function, threads, shared);
}
/* The largest block that `limit` allows (0: BLOCK_THREADS), and the grid of such blocks that fills the device. */
EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *threads, CUfunction function, size_t (*dynamic)(int),
                                                 size_t shared, int limit) {
  struct context *context;
  (void)dynamic, (void)shared;
  CUresult result = enter(&context);
  if (result || !grid || !threads || !find_function(function))
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *threads = limit > 0 && limit < BLOCK_THREADS ? limit : BLOCK_THREADS;
  *grid = (int)process.state.shared->devices[context->device].sm_count * blocks_of_sm(*threads);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *threads, CUfunction function,
                                                          size_t (*dynamic)(int), size_t shared, int limit,
                                                          unsigned flags) {
  (void)flags;
  return cuOccupancyMaxPotentialBlockSize(grid, threads, function, dynamic, shared, limit);
}

/* --- linker: its image is the inputs' text, one after the other -------------------------------------------------- */

struct link {
  struct handle handle;
  char *text;
  size_t bytes;
};

EXPORT CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, CUlinkState *out) {
  struct context *context;
  CUresult result = enter(&context);
  (void)count, (void)options, (void)values;
  if (result || !out)
    return result ? result : CUDA_ERROR_INVALID_VALUE;
  *out = handle_new(LINK_HANDLE, sizeof **out);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Append an input's text to the image, whatever its type. Options are dropped. */
EXPORT CUresult cuLinkAddData_v2(CUlinkState link, int type, void *data, size_t bytes, const char *name, unsigned count,
                                 int *options, void **values) {
  (void)type, (void)name, (void)count, (void)options, (void)values;
  if (!is_handle(link, LINK_HANDLE) || !data)
    return CUDA_ERROR_INVALID_HANDLE;
  char *grown = realloc(link->text, link->bytes + bytes + 1);
  if (!grown)
    return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(grown + link->bytes, data, bytes);
  link->text = grown;
  link->bytes += bytes;
  while (link->bytes && !link->text[link->bytes - 1])
    link->bytes--; /* text is handed over with its terminator */
  link->text[link->bytes] = 0;
  return CUDA_SUCCESS;
}

/* The image is the text of all inputs. It is valid until cuLinkDestroy. */
EXPORT CUresult cuLinkComplete(CUlinkState link, void **image, size_t *bytes) {
  if (!is_handle(link, LINK_HANDLE) || !link->text)
    return CUDA_ERROR_INVALID_HANDLE;
  *image = link->text;
  *bytes = link->bytes + 1;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkDestroy(CUlinkState link) {
  if (!is_handle(link, LINK_HANDLE))
    return CUDA_ERROR_INVALID_HANDLE;
  free(link->text);
  handle_free(link);
  return CUDA_SUCCESS;
}
