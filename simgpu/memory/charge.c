/* Counts device memory against the device's capacity, which all processes share. */
#include "simgpu/api/process.h"

/* With the state locked: whether that many bytes are free on the device. */
static bool has_room(uint32_t device, uint64_t bytes) {
  const struct sg_shared *shared = process.state.shared;
  uint64_t total = shared->devices[device].memory_total_bytes;
  return bytes <= total && sg_memory_used(shared, device) + bytes <= total;
}

/* With the state locked: whether the bytes fit once the memory of dead processes is free again. */
static bool fits(uint32_t device, uint64_t bytes) {
  if (has_room(device, bytes))
    return true;
  sg_reap(&process.state);
  return has_room(device, bytes);
}

/* With the state locked: whether the device has room for the memory that one more context itself takes. */
bool fits_context(uint32_t device) {
  return fits(device, process.state.shared->model.context_bytes);
}

/* Charge a context for device memory. While the bytes do not fit, the pools of this process give back memory that they
 * do not use. */
CUresult charge(struct context *context, uint64_t bytes) {
  bool fit;
  do {
    sg_lock_advanced(&process.state);
    fit = context->slot != SG_NONE && fits(context->device, bytes);
    if (fit)
      shared_of(context)->memory_bytes += bytes;
    sg_unlock(&process.state);
  } while (!fit && pools_give_back(context->device));
  return fit ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Take bytes off a context's count. If the context has ended, nothing happens. */
void refund(struct context *context, uint64_t bytes) {
  if (context->slot == SG_NONE) /* its count ended with it */
    return;
  sg_lock(&process.state);
  shared_of(context)->memory_bytes -= bytes;
  sg_unlock(&process.state);
}

/* Charge the process for memory that belongs to no context. False: it does not fit, or the table of clients is full.
 * The pools are not asked to give memory back: pool.c calls this with their lock held. */
bool try_charge(uint32_t device, enum sg_holding holding, uint64_t bytes) {
  sg_lock_advanced(&process.state);
  struct sg_client *client = sg_client_own(&process.state);
  bool fit = client && fits(device, bytes);
  if (fit)
    client->memory_bytes[holding][device] += bytes;
  sg_unlock(&process.state);
  return fit;
}

/* Charge the process for memory that belongs to no context. While the bytes do not fit, the pools of this process give
 * back memory that they do not use. */
CUresult charge_process(uint32_t device, enum sg_holding holding, uint64_t bytes) {
  do
    if (try_charge(device, holding, bytes))
      return CUDA_SUCCESS;
  while (pools_give_back(device));
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Take bytes off this process's count of one kind of memory on a device. They must have been charged. */
void refund_process(uint32_t device, enum sg_holding holding, uint64_t bytes) {
  sg_lock(&process.state);
  sg_client_own(&process.state)->memory_bytes[holding][device] -= bytes;
  sg_unlock(&process.state);
}

/* With the state locked: make a piece, which is physical memory that several processes may hold. This process becomes
 * its holder; its index and id go to `exported`, and to the last page of the file, where other processes read them.
 * False: it was not made, and nothing is left of it. */
static bool new_piece(int fd, struct exported *exported) {
  exported->piece = sg_piece_new(&process.state, exported->device, exported->bytes);
  if (exported->piece == SG_NONE)
    return false;
  exported->id = process.state.shared->pieces[exported->piece].id;
  if (exported_write(fd, exported))
    return true;
  sg_piece_drop(&process.state, exported->piece);
  return false;
}

/* Make a piece of memory that this process alone has counted. Its own count goes down before the piece counts. If the
 * process dies in between, both go with it. */
CUresult charge_shared(int fd, struct exported *exported) {
  sg_lock(&process.state);
  struct sg_client *client = sg_client_own(&process.state);
  client->memory_bytes[SG_PHYSICAL][exported->device] -= exported->bytes;
  bool made = new_piece(fd, exported);
  if (!made)
    client->memory_bytes[SG_PHYSICAL][exported->device] += exported->bytes;
  sg_unlock(&process.state);
  return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Become a holder of the piece behind a descriptor. If no process holds it any more, it no longer counts: then the
 * bytes have to fit on the device again, and a new piece is made. */
CUresult hold_shared(int fd, struct exported *exported) {
  bool held;
  do {
    sg_lock_advanced(&process.state);
    sg_reap(&process.state);
    held = exported_read(fd, EXPORTED_PHYSICAL, exported) &&
           (sg_piece_hold(&process.state, exported->piece, exported->id) ||
            (fits(exported->device, exported->bytes) && new_piece(fd, exported)));
    sg_unlock(&process.state);
  } while (!held && pools_give_back(exported->device));
  return held ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Let go of a piece that this process holds. */
void drop_shared(uint32_t piece) {
  sg_lock(&process.state);
  sg_piece_drop(&process.state, piece);
  sg_unlock(&process.state);
}
