#include "loss_shares.h"

#include <math.h>
#include <stdbool.h>
#include "base/error.h"

#define TOLERANCE 1e-6 /* of shares: counts of weighted classes are sums in single precision */
#define ADVICE                                                                                               \
    "Set CASTOR_LOSS=mean where every term is a mean over samples, =tokens where it is one over what is "    \
    "counted, or use one rank"

typedef struct ranks_losses {
    const double *weights;
    const loss_row *rows;
    uint32_t ranks;
    uint32_t first; /* rank with samples of its own */
} ranks_losses;

static uint32_t terms_of(const loss_row *row) {
    return row->terms < LOSS_TERMS ? (uint32_t)row->terms : LOSS_TERMS;
}

static bool is_counted(double kind) {
    return kind == LOSS_MEAN_OF_TARGETS || kind == LOSS_SUM_DIVIDED;
}

static bool same_form(const loss_row *a, const loss_row *b) {
    bool same = a->terms == b->terms;
    for (uint32_t i = 0; i < terms_of(a) && same; i++)
        same = a->term[i].kind == b->term[i].kind;
    return same;
}

static bool forms_agree(const ranks_losses *l) {
    for (uint32_t rank = l->first; rank < l->ranks; rank++)
        if (l->weights[rank] != 0 && !same_form(&l->rows[rank], &l->rows[l->first]))
            return false;
    return true;
}

static bool any_is_counted(const ranks_losses *l) {
    for (uint32_t rank = l->first; rank < l->ranks; rank++)
        for (uint32_t i = 0; l->weights[rank] != 0 && i < terms_of(&l->rows[rank]); i++)
            if (is_counted(l->rows[rank].term[i].kind))
                return true;
    return false;
}

static double count_of(const ranks_losses *l, uint32_t term, uint32_t rank) {
    return l->weights[rank] != 0 ? l->rows[rank].term[term].count : 0;
}

static double counts_sum(const ranks_losses *l, uint32_t term) {
    double sum = 0;
    for (uint32_t rank = 0; rank < l->ranks; rank++)
        sum += count_of(l, term, rank);
    return sum;
}

/* Every rank divides by the same number, which is the script's own and says nothing of its local batch. */
static bool is_constant(const ranks_losses *l, uint32_t term) {
    for (uint32_t rank = l->first + 1; rank < l->ranks; rank++)
        if (l->weights[rank] != 0 && count_of(l, term, rank) != count_of(l, term, l->first))
            return false;
    return l->rows[l->first].term[term].kind == LOSS_SUM_DIVIDED;
}

/* The ranks' counts are in proportion to `shares`. */
static bool in_proportion(const ranks_losses *l, uint32_t term, double sum, const double *shares) {
    for (uint32_t rank = 0; rank < l->ranks; rank++)
        if (!(fabs(count_of(l, term, rank) / sum - shares[rank]) <= TOLERANCE))
            return false;
    return true;
}

static castor_status elements_error(const ranks_losses *l, uint32_t term) {
    double least = count_of(l, term, 0), most = least;
    for (uint32_t rank = 1; rank < l->ranks; rank++) {
        double count = count_of(l, term, rank);
        least = count < least ? count : least;
        most = count > most ? count : most;
    }
    return error_set(
        CASTOR_ERR_MISMATCH,
        "the loss is a mean over %.0f to %.0f elements on the ranks, out of proportion to their samples. Set "
        "CASTOR_LOSS=tokens where a mask selects them, =mean to weigh by samples; where parts are padded to "
        "different lengths, leave the padding out of the loss",
        least, most);
}

/* The shares by what is counted. `shares` are the weights until a term says otherwise. */
static castor_status shares_by_counts(const ranks_losses *l, bool tokens, double *shares) {
    const loss_row *form = &l->rows[l->first];
    /* Some term is a mean over samples, as far as anyone can tell. */
    bool by_samples = form->terms > LOSS_TERMS;
    bool found = false, apart = false;
    uint32_t elements = LOSS_TERMS; /* the first term that is a mean over elements, and not in proportion */
    for (uint32_t i = 0; i < terms_of(form); i++) {
        double kind = form->term[i].kind, sum = counts_sum(l, i);
        if (kind != LOSS_SUM && kind != LOSS_OTHER && sum == 0)
            continue;
        if (kind == LOSS_SUM || kind == LOSS_OTHER ||
            (!tokens && (in_proportion(l, i, sum, l->weights) || is_constant(l, i)))) {
            by_samples = true;
            continue;
        }
        for (uint32_t rank = 0; rank < l->ranks && !found; rank++)
            shares[rank] = count_of(l, i, rank) / sum;
        found = true;
        apart |= !in_proportion(l, i, sum, shares);
        if (kind == LOSS_MEAN_OF_ELEMENTS && elements == LOSS_TERMS)
            elements = i;
    }
    if (tokens && !found)
        return error_set(CASTOR_ERR_MISMATCH,
                         "CASTOR_LOSS=tokens finds nothing that was counted in the loss: no mean that "
                         "cross_entropy or nll_loss made, no sum divided by a number, no mean over elements. "
                         "Give the loss so, or set CASTOR_LOSS=mean or sum");
    if (!tokens && elements < LOSS_TERMS)
        return elements_error(l, elements);
    if (!tokens && found && by_samples)
        return error_set(CASTOR_ERR_MISMATCH, "the loss adds a mean over counted targets (some are ignored, "
                                              "or classes are weighed) to other terms, and "
                                              "the ranks' counts are out of proportion. " ADVICE);
    if (apart)
        return error_set(
            CASTOR_ERR_MISMATCH,
            "the loss adds means over different numbers of targets, in other proportions on each "
            "rank: no weight of a rank is right for all. " ADVICE);
    return CASTOR_OK;
}

castor_status loss_shares(castor_loss mode, const double *weights, const loss_row *rows, uint32_t ranks,
                          double *shares) {
    ranks_losses l = {.weights = weights, .rows = rows, .ranks = ranks};
    while (l.first < ranks && weights[l.first] == 0)
        l.first++;
    for (uint32_t rank = 0; rank < ranks; rank++)
        shares[rank] = mode == CASTOR_LOSS_SUM ? weights[rank] != 0 : weights[rank];
    if (mode == CASTOR_LOSS_SUM || mode == CASTOR_LOSS_MEAN || l.first == ranks)
        return CASTOR_OK;
    if (forms_agree(&l))
        return shares_by_counts(&l, mode == CASTOR_LOSS_TOKENS, shares);
    if (!any_is_counted(&l))
        return CASTOR_OK; /* a loss for each sample, perhaps: as many terms as samples */
    return error_set(CASTOR_ERR_MISMATCH,
                     "the losses of the ranks' parts of a batch are made of different terms, and cannot be "
                     "weighed against each other. " ADVICE);
}
