/* The agent reads the slots and the doorbell of a region. It reads copies, because the tenant may change every byte at
 * any time, and because a truncated file must be an error here and not a SIGBUS. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include "region/region.h"

/* Where the slot begins in the file. */
static off_t slot_offset(uint32_t slot) {
  return (off_t)(sizeof(struct sp_slots_header) + slot * sizeof(struct sp_slot));
}

/* Is this copy of a report whole, or torn: read while the process was writing it? Its check word tells. */
static bool is_whole(const struct sp_slot_device *said) {
  const uint64_t words[7] = {(uint64_t)said->drained_turn << 32 | said->held_turn,
                             said->drained_ns,
                             said->entered_ns,
                             said->residue_until_ns,
                             said->idle_ns,
                             said->launches,
                             (uint64_t)said->longest_unit_us << 32 | said->passed};
  return said->check == sp_slot_check(words) || said->sequence == 0; /* 0: no report was ever written */
}

/* Read what the process in `slot` reports of the share's device `device` (an index). 0: `out` is whole; 1: all three
 * copies were torn, and `out` is the last one; -errno: nothing was read. */
int sp_slot_read(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_device *out) {
  off_t offset =
      slot_offset(slot) + (off_t)(offsetof(struct sp_slot, devices) + device * sizeof(struct sp_slot_device));
  for (int attempt = 0; attempt < 3; attempt++) {
    ssize_t got = pread(owner->slots_fd, out, sizeof *out, offset);
    if (got != (ssize_t)sizeof *out)
      return got < 0 ? -errno : -EIO;
    if (is_whole(out))
      return 0;
  }
  return 1;
}

/* Read how much the process in `slot` has copied between the host and the share's device `device` (an index). 0 or
 * -errno. */
int sp_slot_copies(const struct sp_region_owner *owner, uint32_t slot, uint32_t device, struct sp_slot_copies *out) {
  off_t offset = slot_offset(slot) + (off_t)(offsetof(struct sp_slot, copies) + device * sizeof *out);
  ssize_t got = pread(owner->slots_fd, out, sizeof *out, offset);
  return got == (ssize_t)sizeof *out ? 0 : got < 0 ? -errno : -EIO;
}

/* Read which slots are claimed and, in the same read, what slot 0 reports of device 0: most shares have no other
 * process and device. 0, or -errno: nothing was read, and `claimed` is 0. */
int sp_slots_look(const struct sp_region_owner *owner, struct sp_slots_look *look) {
  struct {
    struct sp_slots_header header;
    uint8_t slot[offsetof(struct sp_slot, devices)];
    struct sp_slot_device first;
  } head;
  ssize_t got = pread(owner->slots_fd, &head, sizeof head, 0);
  look->claimed = 0;
  look->whole = false;
  if (got != (ssize_t)sizeof head)
    return got < 0 ? -errno : -EIO;
  for (uint32_t slot = 0; slot < SP_SLOTS_MAX; slot++)
    if (head.header.claimed[slot])
      look->claimed |= (uint64_t)1 << slot;
  look->first = head.first;
  look->whole = is_whole(&head.first);
  return 0;
}

/* The pid, in the agent's pid namespace, of the process that holds the slot's record lock; 0: none is known. */
int32_t sp_slot_owner(const struct sp_region_owner *owner, uint32_t slot) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
  if (fcntl(owner->slots_fd, F_GETLK, &lock))
    return 0;
  return lock.l_type == F_UNLCK ? 0 : (int32_t)lock.l_pid;
}

/* Read what went wrong in the process in `slot`: for each of the SP_DIAGNOSTIC_KINDS its detail plus one, or 0. 0 or
 * -errno. */
int sp_slot_diagnostics(const struct sp_region_owner *owner, uint32_t slot, uint32_t diagnostics[]) {
  const size_t bytes = sizeof(uint32_t) * SP_DIAGNOSTIC_KINDS;
  ssize_t got =
      pread(owner->slots_fd, diagnostics, bytes, slot_offset(slot) + (off_t)offsetof(struct sp_slot, diagnostics));
  return got == (ssize_t)bytes ? 0 : got < 0 ? -errno : -EIO;
}

/* Undo what a tenant has damaged: a truncated file gets its length back, and the slots of living processes (the mask
 * `live`) are claimed again. */
void sp_slots_mend(const struct sp_region_owner *owner, uint64_t live) {
  static const uint8_t claimed = 1;
  struct stat status;
  /* Pages that still exist are the ones that processes have mapped: only the missing ones are added. */
  if (!fstat(owner->slots_fd, &status) && status.st_size < (off_t)SP_SLOTS_BYTES &&
      fallocate(owner->slots_fd, 0, 0, (off_t)SP_SLOTS_BYTES))
    return; /* no memory: the next call tries again */
  for (uint64_t left = live; left; left &= left - 1)
    if (pwrite(owner->slots_fd, &claimed, 1, (off_t)__builtin_ctzll(left)) != 1)
      return;
}

/* Clear the slot of a process that is gone. 0, or -EIO: it stays claimed, and the caller tries again. */
int sp_slot_clear(const struct sp_region_owner *owner, uint32_t slot) {
  static const struct sp_slot empty;
  static const uint8_t free_slot;
  /* The claim is cleared last: until then no other process writes to this slot. */
  if (pwrite(owner->slots_fd, &empty, sizeof empty, slot_offset(slot)) != (ssize_t)sizeof empty)
    return -EIO;
  return pwrite(owner->slots_fd, &free_slot, 1, (off_t)slot) == 1 ? 0 : -EIO;
}

/* Read what was written to the doorbell. Returns a mask of the slots that have rung it. That is only a hint, because a
 * tenant may write any byte. *full: a process has found no free slot. The number of bytes read is added to *rings. */
uint64_t sp_doorbell_drain(const struct sp_region_owner *owner, bool *full, uint64_t *rings) {
  uint8_t buffer[4096]; /* a sixteenth of what a FIFO holds */
  uint64_t rung = 0;
  ssize_t got = sizeof buffer;
  *full = false;
  /* Read what a FIFO holds, but no more: a tenant that writes faster than we read must not keep us here. What is left
   * may stay unread, because the slots are read after this. */
  for (int pieces = 0; pieces < 16 && got == (ssize_t)sizeof buffer; pieces++) {
    got = read(owner->doorbell_fd, buffer, sizeof buffer);
    *rings += got > 0 ? (uint64_t)got : 0;
    for (ssize_t index = 0; index < got; index++) {
      if (buffer[index] == SP_DOORBELL_FULL)
        *full = true; /* a process claims that it found no free slot */
      else
        rung |= (uint64_t)1 << (buffer[index] % SP_SLOTS_MAX);
    }
  }
  return rung;
}
