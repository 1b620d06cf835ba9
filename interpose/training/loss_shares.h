/* Single-process scripts whose batches are split over ranks: the share of each rank's loss in the loss of the whole batch.
 *
 *   local batch  a rank's samples of the batch; its weight is their share of all samples, 0 for a rank that has none of its own
 *   term         a loss is made of terms; each is a sum or a mean over the local batch
 *   count        the divisor of a term: the number of samples, targets that are not ignored, or elements in the local batch
 *   form         the kinds of a loss's terms, in their order: the same on every rank
 *
 * The mean over the batch is the mean of the ranks' means, each weighted by its local batch's count. The shares of all ranks add up
 * to 1; for a sum each is 1. */
#ifndef CASTOR_TRAINING_LOSS_SHARES_H
#define CASTOR_TRAINING_LOSS_SHARES_H

#include <stdint.h>
#include "job/options.h"
#include "base/status.h"

typedef enum loss_kind {
    LOSS_MEAN_OF_TARGETS = 1, /* count: targets that are not ignored, or the sum of their classes' weights */
    LOSS_SUM_DIVIDED,         /* count: a number that the script divided by */
    LOSS_MEAN_OF_ELEMENTS,    /* count: elements */
    LOSS_SUM,                 /* count: 0 */
    LOSS_OTHER,               /* its divisor is unknown; count: 0 */
} loss_kind;

enum { LOSS_TERMS = 8 }; /* at most so many terms have counts that the ranks compare */

/* One rank's loss, in doubles, which the ranks gather. */
typedef struct loss_row {
    double terms; /* their number, which may be larger than LOSS_TERMS */
    struct {
        double kind, count;
    } term[LOSS_TERMS];
} loss_row;

/* Sets the share of each rank, from the weights and, for CASTOR_LOSS_AUTO and CASTOR_LOSS_TOKENS, from the rows of all ranks.
 * Every rank passes the same arguments, and gets the same shares or the same error: CASTOR_ERR_MISMATCH if no share of a rank
 * is right for all of its terms, or none can be found. */
castor_status loss_shares(castor_loss mode, const double *weights, const loss_row *rows, uint32_t ranks,
                          double *shares);

#endif
