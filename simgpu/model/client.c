/* Processes as holders of device memory: memory that belongs to none of their contexts, and memory that several share.
 * A process with such memory is a client and has a slot in the table of clients. A piece is physical memory that
 * several clients may hold. */
#define _GNU_SOURCE
#include "simgpu/model/state.h"

#include <fcntl.h>
#include <string.h>

/* If this process is no client yet, take a free slot for it; state->client stays SG_NONE if there is none. The slot's
 * byte is locked before the slot becomes visible: a visible slot without its lock counts as dead. */
static void claim_slot(struct sg_state *state) {
  struct sg_shared *shared = state->shared;
  for (uint32_t slot = 0; state->client == SG_NONE && slot < SG_MAX_CLIENTS; slot++) {
    struct sg_client *client = &shared->clients[slot];
    if (sg_bit(shared->clients_alive, slot) || sg_lock_byte(state->fd, F_WRLCK, SG_CLIENT_BYTE + slot, F_OFD_SETLK))
      continue;
    memset(client, 0, sizeof *client);
    client->owner = *sg_owner_own(state);
    state->client = slot;
    sg_set(shared->clients_alive, slot);
  }
}

/* This process's entry among the clients, made if there is none; NULL: the table is full. */
struct sg_client *sg_client_own(struct sg_state *state) {
  struct sg_shared *shared = state->shared;
  claim_slot(state);
  if (state->client == SG_NONE) {
    sg_clients_reap(state); /* processes that have ended may still have slots */
    claim_slot(state);
  }
  return state->client == SG_NONE ? NULL : &shared->clients[state->client];
}

/* Free the slot of a client that is gone. Nothing is counted for it any more, and it holds no piece. */
static void drop_client(struct sg_shared *shared, uint32_t slot) {
  for (uint32_t n = 0; n < shared->piece_count; n++)
    sg_clear(shared->pieces[n].holders, slot);
  memset(&shared->clients[slot], 0, sizeof shared->clients[slot]);
  sg_clear(shared->clients_alive, slot);
}

/* Drop the clients that are gone: those with a byte that is not locked. The kernel does not report locks of our own
 * descriptor, so our own slot is left out. */
void sg_clients_reap(struct sg_state *state) {
  struct sg_shared *shared = state->shared;
  SG_EACH(slot, shared->clients_alive, SG_MAX_CLIENTS) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SG_CLIENT_BYTE + slot, .l_len = 1};
    if (slot != state->client && !fcntl(state->fd, F_OFD_GETLK, &lock) && lock.l_type == F_UNLCK)
      drop_client(shared, slot);
  }
}

/* --- pieces ------------------------------------------------------------------------------------------------------ */

/* Whether any client holds the piece. If not, its entry is free. */
static bool held(const struct sg_piece *piece) {
  return sg_next_bit(piece->holders, 0, SG_MAX_CLIENTS) < SG_MAX_CLIENTS;
}

/* The client that a piece is charged to: the exporter, or the first holder once the exporter has let go. */
static uint32_t account_of(const struct sg_piece *piece) {
  return sg_bit(piece->holders, piece->exporter) ? piece->exporter : sg_next_bit(piece->holders, 0, SG_MAX_CLIENTS);
}

/* Make a piece in the first free entry, and return the entry's index. The holder's bit is set last, because it makes
 * the piece count. SG_NONE: all entries are in use, or the table of clients is full. */
uint32_t sg_piece_new(struct sg_state *state, uint32_t device, uint64_t bytes) {
  struct sg_shared *shared = state->shared;
  uint32_t n = 0;
  while (n < shared->piece_count && held(&shared->pieces[n]))
    n++;
  if (n == SG_MAX_PIECES || !sg_client_own(state))
    return SG_NONE;
  struct sg_piece *piece = &shared->pieces[n];
  *piece = (struct sg_piece){.id = ++shared->last_piece, .bytes = bytes, .device = device, .exporter = state->client};
  shared->piece_count = n < shared->piece_count ? shared->piece_count : n + 1;
  sg_set(piece->holders, state->client);
  return n;
}

/* Become a holder of the piece with this id in this entry. False: the piece is gone (another piece has the entry, or
 * nothing holds it), or the table of clients is full. */
bool sg_piece_hold(struct sg_state *state, uint32_t index, uint64_t id) {
  struct sg_piece *piece = &state->shared->pieces[index];
  if (index >= state->shared->piece_count || piece->id != id || !held(piece) || !sg_client_own(state))
    return false;
  sg_set(piece->holders, state->client);
  return true;
}

/* Let go of a piece that this process holds. Without a holder the piece is gone, and its entry is free. */
void sg_piece_drop(struct sg_state *state, uint32_t index) {
  sg_clear(state->shared->pieces[index].holders, state->client);
}

/* --- sums -------------------------------------------------------------------------------------------------------- */

/* The bytes of device memory in use: by all contexts, by all clients, and in pieces that are held. */
uint64_t sg_memory_used(const struct sg_shared *shared, uint32_t device) {
  uint64_t used = 0;
  SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS) {
    if (shared->contexts[slot].device == device)
      used += shared->contexts[slot].memory_bytes;
  }
  SG_EACH(slot, shared->clients_alive, SG_MAX_CLIENTS) {
    for (int holding = 0; holding < SG_HOLDINGS; holding++)
      used += shared->clients[slot].memory_bytes[holding][device];
  }
  for (uint32_t n = 0; n < shared->piece_count; n++)
    if (shared->pieces[n].device == device && held(&shared->pieces[n]))
      used += shared->pieces[n].bytes;
  return used;
}

/* The bytes of one kind of memory that a process (the owner with this id) has on a device, beside its contexts. Pieces
 * are of the kind SG_PHYSICAL, and each is charged to one client alone. */
uint64_t sg_holding_of(const struct sg_shared *shared, uint32_t device, uint32_t owner, enum sg_holding holding) {
  uint64_t bytes = 0;
  SG_EACH(slot, shared->clients_alive, SG_MAX_CLIENTS) {
    if (shared->clients[slot].owner.id == owner)
      bytes += shared->clients[slot].memory_bytes[holding][device];
  }
  for (uint32_t n = 0; holding == SG_PHYSICAL && n < shared->piece_count; n++) {
    const struct sg_piece *piece = &shared->pieces[n];
    if (piece->device == device && held(piece) && shared->clients[account_of(piece)].owner.id == owner)
      bytes += piece->bytes;
  }
  return bytes;
}

/* The bytes that a process (the owner with this id) has on a device in all: in its contexts, beside them, and in the
 * pieces that are charged to it. */
uint64_t sg_memory_of(const struct sg_shared *shared, uint32_t device, uint32_t owner) {
  uint64_t bytes = 0;
  SG_EACH(slot, shared->alive, SG_MAX_CONTEXTS) {
    if (shared->contexts[slot].device == device && shared->contexts[slot].owner.id == owner)
      bytes += shared->contexts[slot].memory_bytes;
  }
  for (int holding = 0; holding < SG_HOLDINGS; holding++)
    bytes += sg_holding_of(shared, device, owner, (enum sg_holding)holding);
  return bytes;
}
