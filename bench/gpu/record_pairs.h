/*
 * Pairs of events around the work that a program launches, which say how long it ran.
 */
#ifndef SHAREPOD_GPU_RECORD_PAIRS_H
#define SHAREPOD_GPU_RECORD_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#define NO_PAIR UINT32_MAX

/* Find the driver's functions that we call ourselves. Without all of them, or without this, there are no pairs. */
void pairs_learn_driver(void);
/* Something else says how long work runs. */
void pairs_switch_off(void);

/* Record the first event of a pair; NO_PAIR when there is none to have. */
uint32_t open_pair(void *stream);
void close_pair(uint32_t pair, void *stream, uint32_t record);
/* The program has waited: read what is done, and wait for nothing. */
void harvest_after_wait(void);

bool is_capturing(void *stream);

#endif
