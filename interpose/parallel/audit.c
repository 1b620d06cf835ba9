#include "audit.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include "../../kernels/kernels.h"

/* Relative differences that rounding may make: of the loss, of all gradients together, and of one gradient, which may be
 * a sum of large numbers that nearly cancel. */
typedef struct limits {
    double loss, gradients, gradient;
} limits;

static const limits limits_of[] = {
    [AUDIT_SINGLE] = {2e-4, 2e-3, 2e-2},
    [AUDIT_HALF] = {2e-2, 5e-2, 2e-1},
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

static double square_between(const double *a, const double *b) {
    double sum = 0;
    for (size_t i = 0; i < KERNEL_SKETCH_BUCKETS; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

/* How far a and b are from each other, in proportion to the larger. */
static double relative(double difference, double a, double b, double floor) {
    return difference / larger(larger(fabs(a), fabs(b)), floor);
}

static bool losses_differ(const audit *a, double limit, double *difference) {
    *difference = 0;
    if (isnan(a->whole_loss) && isnan(a->parts_loss))
        return false;
    *difference =
        relative(fabs(a->whole_loss - a->parts_loss), a->whole_loss, a->parts_loss, LOSS_FLOOR / limit);
    return *difference > limit;
}

void audit_compare(const double *whole, const double *parts, uint32_t count, audit *result) {
    const limits *limit = &limits_of[result->rounding];
    double whole_square = 0, parts_square = 0, between = 0, worst = -1, loss;
    for (uint32_t i = 0; i < count; i++) {
        const size_t at = (size_t)i * KERNEL_SKETCH_BUCKETS;
        double of_tensor = square_between(whole + at, parts + at);
        whole_square += square_of(whole + at);
        parts_square += square_of(parts + at);
        between += of_tensor;
        if (of_tensor > worst) {
            worst = of_tensor;
            result->worst = i;
        }
    }
    result->whole_norm = sqrt(whole_square);
    result->parts_norm = sqrt(parts_square);
    double all = relative(sqrt(between), result->whole_norm, result->parts_norm, NOTHING);
    bool differs = losses_differ(result, limit->loss, &loss) || all > limit->gradients;
    for (uint32_t i = 0; i < count && !differs; i++) {
        const size_t at = (size_t)i * KERNEL_SKETCH_BUCKETS;
        double norm = larger(sqrt(square_of(whole + at)), sqrt(square_of(parts + at)));
        if (norm > GRADIENT_SHARE * larger(result->whole_norm, result->parts_norm) &&
            sqrt(square_between(whole + at, parts + at)) > limit->gradient * norm) {
            differs = true;
            result->worst = i;
        }
    }
    bool finite = isfinite(between) && (isfinite(result->whole_loss) || isnan(result->parts_loss)) &&
                  (isfinite(result->parts_loss) || isnan(result->whole_loss));
    result->difference = larger(all, loss);
    result->verdict = !finite ? AUDIT_UNKNOWN : differs ? AUDIT_DIFFERENT : AUDIT_EQUAL;
}
