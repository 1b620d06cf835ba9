#include "audit.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include "kernels/kernels.h"

/* Relative differences that rounding may make: of the loss, of all gradients together, and of one gradient. Gradients jump
 * where rounding decides which of two equal values is the largest, or on which side of zero one is: 0.7% of all in a
 * convolutional net of 18 layers on pictures with areas of one colour, whose loss was equal to six digits. */
typedef struct limits {
    double loss, gradients, gradient;
} limits;

static const limits limits_of[] = {
    [AUDIT_SINGLE] = {2e-4, 2e-2, 1e-1},
    [AUDIT_HALF] = {2e-2, 1e-1, 3e-1},
    [AUDIT_LOOSE] = {5e-1, HUGE_VAL, HUGE_VAL},
};

#define LOSS_FLOOR     1e-5 /* a loss below is a difference of larger terms: its gradients tell */
#define GRADIENT_SHARE 1e-2 /* a gradient that is less of all of them is rounding of the others' size */
#define NOTHING        1e-12

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double square_of(const double *sketch) {
    double sum = 0;
    for (size_t i = 0; i < KERNEL_SKETCH_BUCKETS; i++)
        sum += sketch[i] * sketch[i];
    return sum;
}

/* Of `a` from `factor` times `b`. */
static double square_between(const double *a, const double *b, double factor) {
    double sum = 0;
    for (size_t i = 0; i < KERNEL_SKETCH_BUCKETS; i++)
        sum += (a[i] - factor * b[i]) * (a[i] - factor * b[i]);
    return sum;
}

/* How far a and b are from each other, in proportion to the larger. */
static double relative(double difference, double a, double b, double floor) {
    return difference / larger(larger(fabs(a), fabs(b)), floor);
}

static double loss_difference(const audit *a, double factor, double limit) {
    if (isnan(a->whole_loss) && isnan(a->split_loss))
        return 0;
    double split = factor * a->split_loss;
    return relative(fabs(a->whole_loss - split), a->whole_loss, split, LOSS_FLOOR / limit);
}

/* The whole beside `factor` times the split one. Returns whether they differ. */
static bool compare(const double *whole, const double *split, uint32_t count, double factor, audit *result) {
    const limits *limit = &limits_of[result->rounding];
    double whole_square = 0, split_square = 0, between = 0, worst = -1;
    bool differs = false;
    for (uint32_t i = 0; i < count; i++) {
        const size_t at = (size_t)i * KERNEL_SKETCH_BUCKETS;
        double of_tensor = square_between(whole + at, split + at, factor);
        whole_square += square_of(whole + at);
        split_square += square_of(split + at);
        between += of_tensor;
        if (of_tensor > worst) {
            worst = of_tensor;
            result->worst = i;
        }
    }
    result->whole_norm = sqrt(whole_square);
    result->split_norm = sqrt(split_square);
    double largest = larger(result->whole_norm, factor * result->split_norm);
    for (uint32_t i = 0; i < count && !differs; i++) {
        const size_t at = (size_t)i * KERNEL_SKETCH_BUCKETS;
        double norm = larger(sqrt(square_of(whole + at)), factor * sqrt(square_of(split + at)));
        differs = norm > GRADIENT_SHARE * largest &&
                  sqrt(square_between(whole + at, split + at, factor)) > limit->gradient * norm;
        if (differs)
            result->worst = i;
    }
    double all = relative(sqrt(between), result->whole_norm, factor * result->split_norm, NOTHING);
    double loss = loss_difference(result, factor, limit->loss);
    result->difference = larger(all, loss);
    return differs || loss > limit->loss || all > limit->gradients;
}

void audit_compare(const double *whole, const double *split, uint32_t count, audit *result) {
    audit as_sum = *result;
    bool differs = compare(whole, split, count, 1, result);
    bool finite = isfinite(result->whole_norm) && isfinite(result->split_norm) &&
                  (isfinite(result->whole_loss) || isnan(result->split_loss)) &&
                  (isfinite(result->split_loss) || isnan(result->whole_loss));
    if (!finite)
        result->verdict = AUDIT_UNKNOWN;
    else if (!differs)
        result->verdict = AUDIT_EQUAL;
    else if (result->ranks > 1 && !compare(whole, split, count, result->ranks, &as_sum))
        result->verdict = AUDIT_SUM;
    else
        result->verdict = AUDIT_DIFFERENT;
}
