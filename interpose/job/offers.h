/* Descriptors that this process gives to other processes of its job on the node, under a name. Who claims the name first offers them; the others ask
 * (rendezvous_ask). A thread of the library answers, so that nobody waits until another one comes to the same place in the script. A forked child offers nothing. */
#ifndef CASTOR_JOB_OFFERS_H
#define CASTOR_JOB_OFFERS_H

#include <stdint.h>
#include "base/status.h"

typedef struct offer offer;

/* NULL: another process has claimed the name and has not ended its offer, or no socket can be made. */
offer *offer_claim(const char *token, const char *name);
/* Whoever asks gets them from now on, `takers` processes at most. They are the offer's, also after an error, which leaves it to be ended. */
castor_status offer_give(offer *o, const int *descriptors, int count, uint32_t takers);
/* Nobody gets them any more, and the name is free. Returns how many processes have got them. NULL is fine. */
uint32_t offer_end(offer *o);
/* Open descriptors of all offers, with their sockets. */
uint32_t offers_open(void);

#endif
