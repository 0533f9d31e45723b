/*
 * The lead: how long before the end of a residue the next share is granted, so that no bubble opens between the two.
 *
 * A grant takes some 100 us to become a launch, and now and then much longer. A first launch that is late leaves the
 * device idle for all of its lateness. One that is early costs, at worst, a switch in the middle of the residue. So the
 * lead of a device is learned such that one first launch in LATE_ONE_IN comes late. If units are short, one launch is
 * not enough: AHEAD_NS of work should be queued when the residue ends, because the threads of a hand-off take the core
 * from the thread that launches.
 *
 * If a slice of the hardware ends within the residue, the next share's work cuts the residue in two. Then the residue
 * ends a slice late, and no report tells which share ran in between. So deadlines are moved to where the residue ends
 * within its slice. Long units cannot be moved, but they end at much the same place of a slice every time. So each
 * member also learns a longest lead of its own, after CUTS turns in a row with a cut residue: a single one may just
 * as well be a pause of the host. All functions run under the arbiter's lock; a member is a share on one device.
 */
#include "agent/arbiter/node.h"

#define LEAD_FIRST_NS 100000u /* a device begins with this lead */
#define LEAD_MIN_NS   20000u
#define LEAD_MAX_NS   300000u
#define LEAD_STEP_NS  2000u   /* a launch that came in time makes the device's lead this much shorter */
#define LATE_ONE_IN   10u     /* one first launch in so many shall come late */
#define CUTS          3u      /* after so many cuts in a row a member's longest lead becomes a third shorter */
#define GROW_NS       100u    /* … and at a turn that is not cut this much longer: little, because a cut is expensive */
#define AHEAD_NS      100000u /* so much work should be queued when the residue ends */
#define ENTER_NS      5000u   /* from the entry of a turn to its first launch at the driver */
#define CUT_NS        500000u /* a residue that outlives its prediction by this was cut */

#define SLICE_NS  2000000u /* the hardware's slice, counted from the start of a context's work */
#define AIM_NS    50000u   /* a turn closes between here in a slice … */
#define AIM_TO_NS 800000u  /* … and here: its residue, half a millisecond or so, ends in the same slice */

/* The lead, cut to LEAD_MIN_NS..LEAD_MAX_NS. */
static uint64_t bounded_lead(uint64_t lead_ns) {
  return lead_ns < LEAD_MIN_NS ? LEAD_MIN_NS : lead_ns > LEAD_MAX_NS ? LEAD_MAX_NS : lead_ns;
}

/* Set the lead with which a new device begins. */
void sp_lead_init_device(struct sp_node_device *device) {
  device->lead_ns = LEAD_FIRST_NS;
}

/* Set the longest lead that a new member allows: no cut residue is known of it yet. */
void sp_lead_init_member(struct sp_member *member) {
  member->lead_max_ns = LEAD_MAX_NS;
}

/* How long (ns) before the predicted end of the member's residue the next share is granted: the device's lead, but not
 * more than the member's own longest one. */
uint64_t sp_lead_ns(const struct sp_member *member) {
  uint64_t lead_ns = member->device->lead_ns;
  return lead_ns < member->lead_max_ns ? lead_ns : member->lead_max_ns;
}

/* The holder is just getting its grant. If earlier turns still drain, note when each should end; the holder's slices
 * begin with the last of these ends. Note, too, if the longest lead of one of these members made the grant later than
 * the device's lead: then this turn teaches nothing about the device's. Then aim the holder's deadline. */
void sp_lead_granted(struct sp_node_device *device) {
  device->holder->lead_shortened = false;
  device->holder->slices_ns = device->holder->granted_ns;
  for (uint32_t index = 0; index < device->draining; index++) {
    struct sp_member *member = device->drains[index];
    if (member->cogranted)
      continue;
    member->predicted_end_ns = member->view.residue_until_ns;
    if (member->predicted_end_ns > device->holder->slices_ns)
      device->holder->slices_ns = member->predicted_end_ns;
    if (member->lead_max_ns < device->lead_ns)
      device->holder->lead_shortened = true;
  }
  sp_lead_aim(device->holder);
}

/* The member has drained at `drained_ns`. If the next share was granted before that, the slices of this share begin
 * here: aim its deadline anew. And learn the member's own longest lead: it becomes a third shorter after CUTS cuts in a
 * row, and GROW_NS longer after a drain that was not cut. */
void sp_lead_drained(struct sp_member *member, uint64_t drained_ns) {
  if (!member->predicted_end_ns)
    return; /* the next share was not granted before that */
  struct sp_member *holder = member->device->holder;
  if (holder && drained_ns > holder->slices_ns) {
    holder->slices_ns = drained_ns;
    sp_lead_aim(holder);
  }
  uint64_t lead_ns = sp_lead_ns(member);
  member->cuts = drained_ns > member->predicted_end_ns + CUT_NS ? member->cuts + 1 : 0;
  if (!member->cuts)
    member->lead_max_ns = bounded_lead(member->lead_max_ns + GROW_NS);
  else if (member->cuts >= CUTS)
    member->lead_max_ns = bounded_lead(lead_ns - lead_ns / 3);
  member->predicted_end_ns = 0;
}

/* The member's turn has closed. If it was granted before its predecessor had drained, learn the device's lead: it grows
 * if the turn's first launch came late, and shrinks if not. */
void sp_lead_closed(struct sp_member *member) {
  if (!member->predecessor_ns || !member->view.entered || member->late || member->lead_shortened)
    return;
  uint64_t unit_ns = member->view.longest_unit_ns, *lead_ns = &member->device->lead_ns;
  uint64_t ahead_ns = unit_ns < AHEAD_NS ? AHEAD_NS - unit_ns : 0; /* so much earlier must short units come */
  bool came_late = member->view.entered_ns + ENTER_NS + ahead_ns > member->predecessor_ns;
  /* The lead settles where one launch in LATE_ONE_IN comes late, as that raises it by what the others lower it. */
  *lead_ns = bounded_lead(came_late ? *lead_ns + (LATE_ONE_IN - 1) * LEAD_STEP_NS : *lead_ns - LEAD_STEP_NS);
}

/* Move the holder's deadline to where the end of a hardware slice does not cut its residue in two. Called after each
 * change of the deadline. A share with a limit keeps its deadline: a later one may be more than the limit allows. */
void sp_lead_aim(struct sp_member *holder) {
  if (holder->terms.limit_millipercent < SP_POLICY_WHOLE || holder->deadline_ns <= holder->slices_ns)
    return;
  /* A good deadline lies between AIM_NS and AIM_TO_NS in a slice. Move another one to the nearer of the two places
   * around it: AIM_TO_NS in this slice, or AIM_NS in the next one. */
  uint64_t phase_ns = (holder->deadline_ns - holder->slices_ns) % SLICE_NS, slice_ns = holder->deadline_ns - phase_ns;
  if (phase_ns < AIM_NS)
    holder->deadline_ns = slice_ns + AIM_NS;
  else if (phase_ns > (AIM_TO_NS + SLICE_NS + AIM_NS) / 2)
    holder->deadline_ns = slice_ns + SLICE_NS + AIM_NS;
  else if (phase_ns > AIM_TO_NS)
    holder->deadline_ns = slice_ns + AIM_TO_NS;
}
