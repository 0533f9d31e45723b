/*
 * An ordinary driver-API program that takes memory of device 0 as the lines of stdin tell it, and answers each line:
 *
 *     take KIND BYTES      take memory; answers the driver's result
 *     give                 give the last piece of memory back
 *     race KIND BYTES N    take pieces in N threads until each was refused 200 times in a row; answers how many it got
 *     open KIND PID WHAT   open memory that another process shows
 *     show                 answers how another process opens the last piece
 *     again                import the last piece, external memory, once more
 *     keep BYTES           set what the default pool may keep
 *     trim BYTES           give back all of the default pool but this
 *     sync                 wait for the stream
 *     free                 answers what cuMemGetInfo says is free
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "memory_kinds.h"

#define HELD_MAX    4096u
#define THREADS_MAX 64u
#define REFUSALS    200

struct held {
  struct allocation allocation;
  int (*give)(struct allocation *);
};

static struct held held[HELD_MAX];
static size_t held_count;

static const struct kind *kind_of(const char *name) {
  for (size_t i = 0; i < KINDS; i++)
    if (!strcmp(kinds[i].name, name))
      return &kinds[i];
  die("no kind `%s`", name);
}

static int keep(int result, struct allocation *it, int (*give)(struct allocation *)) {
  if (result)
    return result;
  if (held_count == HELD_MAX)
    die("too much is held");
  held[held_count++] = (struct held){*it, give};
  return 0;
}

static struct held *last_held(void) {
  if (!held_count)
    die("nothing is held");
  return &held[held_count - 1];
}

static int give(void) {
  struct held *last = last_held();
  held_count--;
  return last->give(&last->allocation);
}

/* ---- a race ---- */

static struct {
  const struct kind *kind;
  size_t bytes;
} racing;

static void *race_one(void *got) {
  struct allocation it;
  use_context();
  for (int refused = 0; refused < REFUSALS;) {
    int result = take_kind(&it, racing.kind, racing.bytes);
    if (result && result != ERROR_OUT_OF_MEMORY)
      check(result, racing.kind->name);
    refused = result ? refused + 1 : 0;
    *(long *)got += !result;
  }
  return NULL;
}

static long race(const struct kind *kind, size_t bytes, size_t threads) {
  pthread_t running[THREADS_MAX];
  long got[THREADS_MAX] = {0}, all = 0;
  if (threads > THREADS_MAX)
    die("more than %u threads", THREADS_MAX);
  racing.kind = kind;
  racing.bytes = bytes;
  for (size_t i = 0; i < threads; i++)
    if (pthread_create(&running[i], NULL, race_one, &got[i]))
      die("no thread");
  for (size_t i = 0; i < threads; i++) {
    pthread_join(running[i], NULL);
    all += got[i];
  }
  return all;
}

/* ---- between processes ---- */

static void print_handle(const struct ipc_handle *handle) {
  for (size_t i = 0; i < sizeof handle->bytes; i++)
    printf("%02x", handle->bytes[i]);
  putchar('\n');
}

static struct ipc_handle read_handle(const char *text) {
  struct ipc_handle handle;
  for (size_t i = 0; i < sizeof handle.bytes; i++)
    if (sscanf(text + 2 * i, "%2hhx", &handle.bytes[i]) != 1)
      die("`%s` is not a handle", text);
  return handle;
}

/* Print how another process opens this allocation. */
static void show(const struct allocation *it) {
  struct ipc_handle handle;
  int descriptor;
  if (it->kind->take == take_physical) {
    CALL(cuMemExportToShareableHandle, &descriptor, it->physical, FILE_DESCRIPTOR, 0);
    printf("%d,%zu\n", descriptor, it->bytes);
    return;
  }
  if (it->kind->take == take_linear) {
    CALL(cuIpcGetMemHandle, &handle, it->pointer);
  } else {
    CALL(cuMemPoolExportToShareableHandle, &descriptor, it->object, FILE_DESCRIPTOR, 0);
    CALL(cuMemPoolExportPointer, &handle, it->pointer);
    printf("%d,", descriptor);
  }
  print_handle(&handle);
}

static int close_linear(struct allocation *it) {
  return TRY(cuIpcCloseMemHandle, it->pointer);
}

static int close_pool(struct allocation *it) {
  int result = give_ordered(it);
  if (!result)
    result = TRY(cuMemPoolDestroy, it->object);
  close(it->descriptor);
  return result;
}

/* Opens a descriptor of another process from the text that this process showed; `rest` becomes the text after it. */
static int descriptor_of(const char *pid, char *shown, char **rest) {
  char path[64];
  long number = strtol(shown, rest, 10);
  snprintf(path, sizeof path, "/proc/%s/fd/%ld", pid, number);
  int descriptor = open(path, O_RDWR | O_CLOEXEC);
  if (descriptor < 0)
    die("%s cannot be opened", path);
  ++*rest; /* the comma */
  return descriptor;
}

static int open_shown(const struct kind *kind, const char *pid, char *shown) {
  struct allocation it = {.kind = kind};
  char *rest;
  int result;
  if (kind->take == take_linear) {
    result = TRY(cuIpcOpenMemHandle, &it.pointer, read_handle(shown), 1);
    return keep(result, &it, close_linear);
  }
  it.descriptor = descriptor_of(pid, shown, &rest);
  void *file = (void *)(intptr_t)it.descriptor;
  if (kind->take == take_physical) {
    it.bytes = strtoull(rest, NULL, 10);
    result = TRY(cuMemImportFromShareableHandle, &it.physical, file, FILE_DESCRIPTOR);
    close(it.descriptor);
    if (!result)
      result = map_physical(&it);
    return keep(result, &it, give_physical);
  }
  struct ipc_handle handle = read_handle(rest);
  result = TRY(cuMemPoolImportFromShareableHandle, &it.object, file, FILE_DESCRIPTOR, 0);
  if (!result)
    result = TRY(cuMemPoolImportPointer, &it.pointer, it.object, &handle);
  return keep(result, &it, close_pool);
}

/* ---- lines ---- */

static void *default_pool(void) {
  void *pool = NULL;
  CALL(cuDeviceGetDefaultMemPool, &pool, 0);
  return pool;
}

/* Print the answer to a line of words. */
static void answer(char **words) {
  const char *command = words[0];
  unsigned long long number = strtoull(words[1], NULL, 10), bytes = strtoull(words[2], NULL, 10);
  struct allocation it = {0};
  int result = 0;
  if (!strcmp(command, "take")) {
    const struct kind *kind = kind_of(words[1]);
    result = keep(take_kind(&it, kind, bytes), &it, kind->give);
  } else if (!strcmp(command, "give")) {
    result = give();
  } else if (!strcmp(command, "open")) {
    result = open_shown(kind_of(words[1]), words[2], words[3]);
  } else if (!strcmp(command, "again")) {
    const struct allocation *known = &last_held()->allocation;
    result = keep(import_external(&it, known->descriptor, known->bytes), &it, give_external);
  } else if (!strcmp(command, "keep")) {
    result = TRY(cuMemPoolSetAttribute, default_pool(), RELEASE_THRESHOLD, &number);
  } else if (!strcmp(command, "trim")) {
    result = TRY(cuMemPoolTrimTo, default_pool(), number);
  } else if (!strcmp(command, "sync")) {
    result = cuStreamSynchronize(kind_stream);
  } else if (!strcmp(command, "race")) {
    printf("%ld\n", race(kind_of(words[1]), bytes, strtoull(words[3], NULL, 10)));
    return;
  } else if (!strcmp(command, "free")) {
    printf("%zu\n", free_bytes());
    return;
  } else if (!strcmp(command, "show")) {
    show(&last_held()->allocation);
    return;
  } else {
    die("no command `%s`", command);
  }
  printf("%d\n", result);
}

int main(void) {
  char line[1024];
  load_driver();
  open_context(0);
  open_kinds();
  setvbuf(stdout, NULL, _IOLBF, 0);
  puts("ready");
  while (fgets(line, sizeof line, stdin)) {
    char *words[4] = {"", "", "", ""};
    size_t count = 0;
    for (char *word = strtok(line, " \n"); word && count < 4; word = strtok(NULL, " \n"))
      words[count++] = word;
    answer(words);
  }
  return 0;
}
