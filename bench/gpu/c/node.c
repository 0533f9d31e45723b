/*
 * node: SharePod's arbiter alone, with commands line by line.
 *
 * It is linked from the unchanged sources of agent/ and hook/, so the code that grants, revokes and bills is the
 * product's. The agent's Python parts (gRPC, NVML, checkpoints) are on no launch path.
 *
 *     device UUID                                     {"device": 0}
 *     share DIRECTORY REQUEST LIMIT CLASS MEMORY      {"share": 0}        on device 0; millipercent; 0 = no memory cap
 *     usage SHARE                                     {"used_ns": ...}
 *     turns AFTER                                     {"turns": [[sequence, share, granted_ns, closed_ns, drained_ns,
 *                                                      charged_ns, reason], ...]}
 *
 * A failing line answers {"error": "..."}. The end of stdin is a planned stop: every gate opens.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "agent/arbiter/arbiter.h"

#define TURNS_MAX 65536

static struct sp_arbiter *arbiter;
static struct sp_turn turns[TURNS_MAX];

static void answer(const char *name, int result) {
  if (result < 0)
    printf("{\"error\": \"%s: %s\"}\n", name, strerror(-result));
  else
    printf("{\"%s\": %d}\n", name, result);
}

/* Answer the command `share`, with these arguments. */
static void add_share(const char *arguments) {
  char directory[512];
  struct sp_terms terms = {0};
  if (sscanf(arguments, "%511s %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu64, directory, &terms.request_millipercent,
             &terms.limit_millipercent, &terms.share_class, &terms.memory_limit_bytes) != 5)
    puts("{\"error\": \"share DIRECTORY REQUEST LIMIT CLASS MEMORY\"}");
  else
    answer("share", sp_arbiter_add_share(arbiter, directory, &terms, 1, NULL));
}

/* Print each field of the share's usage (usage.def), or an error. */
static void print_usage(int share) {
  struct sp_usage usage;
  int error = sp_arbiter_read_usage(arbiter, share, 0, &usage);
  if (error) {
    answer("usage", error);
    return;
  }
  char next = '{';
#define SP_USAGE(type, name, metric, meaning)                                                                          \
  printf("%c\"" #name "\": %" PRId64, next, (int64_t)usage.name);                                                      \
  next = ',';
#include "agent/arbiter/usage.def"
  puts("}");
}

static void print_turns(uint64_t after) {
  int count = sp_arbiter_read_turns(arbiter, after, turns, TURNS_MAX);
  printf("{\"turns\": [");
  for (int i = 0; i < count; i++)
    printf("%s[%" PRIu64 ", %d, %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu32 "]", i ? ", " : "",
           turns[i].sequence, turns[i].share, turns[i].granted_ns, turns[i].closed_ns, turns[i].drained_ns,
           turns[i].charged_ns, turns[i].reason);
  puts("]}");
}

int main(void) {
  char line[1024], uuid[64];
  int share;
  uint64_t after;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  arbiter = sp_arbiter_new();
  int error = arbiter ? sp_arbiter_start(arbiter) : -12; /* ENOMEM */
  if (error) {
    fprintf(stderr, "node: the arbiter does not start: %s\n", strerror(-error));
    return 1;
  }
  setvbuf(stdout, NULL, _IOFBF, 1 << 16);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "device %63s", uuid) == 1)
      answer("device", sp_arbiter_add_device(arbiter, uuid));
    else if (!strncmp(line, "share ", 6))
      add_share(line + 6);
    else if (sscanf(line, "usage %d", &share) == 1)
      print_usage(share);
    else if (sscanf(line, "turns %" SCNu64, &after) == 1)
      print_turns(after);
    else
      puts("{\"error\": \"unknown command\"}");
    fflush(stdout);
  }
  sp_arbiter_free(arbiter);
  return 0;
}
