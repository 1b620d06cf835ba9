// Optimizer steps: every variant against the reference, bit for bit; the reference against arithmetic in double precision, and its
// fused product and sum against the library's. That the bits are PyTorch's, tests/optimizer shows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "kernels/fused.h"
#include "kernels/optimizer.h"
#include "castor.h"

namespace {

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

bool same(float a, float b) {
    return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b));
}

// Any bits but those of signalling no numbers; or numbers of everyday size.
float random_float(std::mt19937 &random, bool any) {
    if (!any)
        return std::normal_distribution<float>()(random);
    const uint32_t bits = random();
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
}

// What one tensor has; 16-bit elements are in the first half of a buffer.
struct Tensor {
    std::vector<float> param, grad, master, states[KERNEL_OPTIMIZER_STATES];

    Tensor(size_t numel, unsigned seed, bool any, int32_t param_dtype, int32_t grad_dtype) {
        std::mt19937 random(seed);
        for (std::vector<float> *each : {&param, &grad, &master, &states[0], &states[1], &states[2]}) {
            each->resize(numel + 1);
            for (float &value : *each)
                value = random_float(random, any);
        }
        // As second moments are.
        for (int i : {1, 2})
            for (float &value : states[i])
                value = std::fabs(value);
        narrow(param, param_dtype, random);
        narrow(grad, grad_dtype, random);
    }

    static void narrow(std::vector<float> &values, int32_t dtype, std::mt19937 &random) {
        if (dtype == KERNEL_F32)
            return;
        std::vector<uint16_t> halves(values.size());
        for (uint16_t &half : halves)
            half = static_cast<uint16_t>(random() & 0xBFFF); // no infinities, no signalling no numbers
        std::memcpy(values.data(), halves.data(), halves.size() * sizeof(uint16_t));
    }

    kernel_range range(const kernel_step &step, size_t begin, size_t end, size_t numel, bool with_master) {
        const size_t param_bytes = kernel_dtype_bytes(static_cast<kernel_dtype>(step.param_dtype));
        const size_t grad_bytes = kernel_dtype_bytes(static_cast<kernel_dtype>(step.grad_dtype));
        return {reinterpret_cast<char *>(param.data()) + begin * param_bytes,
                reinterpret_cast<char *>(grad.data()) + begin * grad_bytes,
                with_master ? master.data() + begin : nullptr,
                {states[0].data() + begin, states[1].data() + begin, states[2].data() + begin},
                begin,
                end - begin,
                numel};
    }

    // One half that is no number is as good as another.
    std::vector<float> settled(int32_t dtype) const {
        std::vector<float> values = param;
        std::vector<uint16_t> halves(values.size());
        std::memcpy(halves.data(), values.data(), halves.size() * sizeof(uint16_t));
        for (uint16_t &half : halves)
            if (dtype == KERNEL_F16 && (half & 0x7FFF) > 0x7C00)
                half = 0x7E00;
        std::memcpy(values.data(), halves.data(), halves.size() * sizeof(uint16_t));
        return values;
    }

    bool equals(const Tensor &other, int32_t param_dtype = KERNEL_F32) const {
        const std::vector<float> own = settled(param_dtype), foreign = other.settled(param_dtype);
        const std::vector<float> *mine[] = {&own, &master, &states[0], &states[1], &states[2]};
        const std::vector<float> *theirs[] = {&foreign, &other.master, &other.states[0], &other.states[1],
                                              &other.states[2]};
        for (size_t which = 0; which < 5; which++)
            for (size_t i = 0; i < mine[which]->size(); i++)
                if (!same((*mine[which])[i], (*theirs[which])[i]))
                    return false;
        return true;
    }
};

// Roots that are not the processor's.
void strange_roots(float *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        values[i] = values[i] * 0.25f + 1.0f;
}

void on_threads(void (*body)(void *context, int part), void *context, int parts) {
    std::vector<std::thread> threads;
    for (int part = 0; part < parts; part++)
        threads.emplace_back(body, context, part);
    for (std::thread &thread : threads)
        thread.join();
}

enum { ADAM, SGD };

void step_one(int optimizer, const kernel_step &step, const kernel_range *ranges, size_t count,
              const kernel_host *host) {
    const kernel_adam adam = {step, 0.1, 0.999, 0.001, 0.3, 1e-8, -0.01};
    const kernel_sgd sgd = {step, 0.9, 0.7, -0.1, 0, 0};
    if (optimizer == ADAM)
        kernel_adam_step(&adam, ranges, count, host);
    else
        kernel_sgd_step(&sgd, ranges, count, host);
}

class Optimizer : public ::testing::Test {
  protected:
    void TearDown() override { kernel_variant_select(best); }
    const kernel_variant best = kernel_variant_current();
};

TEST_F(Optimizer, FusedIsRoundedOnce) {
    std::mt19937 random(1);
    for (int i = 0; i < 2000000; i++) {
        float a = random_float(random, i & 1), b = random_float(random, i & 1),
              c = random_float(random, i & 1);
        if (i % 3 == 0) // what nearly cancels
            c = -(a * b) * (1.0f + static_cast<float>(static_cast<int>(random() % 5) - 2) * 0x1p-23f);
        ASSERT_TRUE(same(kernel_fused(a, b, c), std::fma(a, b, c))) << a << " " << b << " " << c;
    }
}

// All types, kinds of decay and other choices, on numbers of all kinds: the same bytes.
TEST_F(Optimizer, VariantsAgree) {
    const int32_t dtypes[] = {KERNEL_F32, KERNEL_F16, KERNEL_BF16};
    const size_t numel = 101;
    const kernel_roots roots = {strange_roots, KERNEL_ROOT_CALLED};
    kernel_host host = {nullptr, 1, &roots};
    unsigned seed = 0;
    for (int32_t param_dtype : dtypes)
        for (int32_t grad_dtype : dtypes)
            for (int choice = 0; choice < 3 * 3 * 64; choice++) {
                const int optimizer = choice % 3, flags = choice / 9;
                const int32_t decay_kind = choice / 3 % 3;
                const kernel_step step = {param_dtype,
                                          grad_dtype,
                                          decay_kind,
                                          flags & 1,
                                          flags >> 1 & 1,
                                          flags >> 2 & 1,
                                          flags >> 3 & 1,
                                          0,
                                          0.5,
                                          0.7,
                                          decay_kind == KERNEL_DECAY_DECOUPLED ? 0.99 : 0.1};
                const bool with_master = flags >> 4 & 1, any = flags >> 5 & 1;
                seed++;
                kernel_variant_select(KERNEL_VARIANT_REFERENCE);
                Tensor expected(numel, seed, any, param_dtype, grad_dtype);
                kernel_range range = expected.range(step, 0, numel, numel, with_master);
                step_one(optimizer, step, &range, 1, seed & 1 ? &host : nullptr);
                for (int variant = 1; variant < KERNEL_VARIANT_COUNT; variant++) {
                    if (!kernel_variant_select(static_cast<kernel_variant>(variant)))
                        continue;
                    Tensor found(numel, seed, any, param_dtype, grad_dtype);
                    range = found.range(step, 0, numel, numel, with_master);
                    step_one(optimizer, step, &range, 1, seed & 1 ? &host : nullptr);
                    ASSERT_TRUE(found.equals(expected, param_dtype))
                        << kernel_variant_name(static_cast<kernel_variant>(variant)) << ", optimizer "
                        << optimizer << ", " << param_dtype << ", " << grad_dtype << ", decay " << decay_kind
                        << ", flags " << flags;
                }
            }
}

// Ranges and threads change nothing, nor is anything beyond a range touched.
TEST_F(Optimizer, PartsAreTheWhole) {
    for (int optimizer : {ADAM, SGD})
        for (int fused : {0, 1})
            for (size_t numel : {size_t(1), size_t(7), size_t(8), size_t(93), size_t(40003)}) {
                const kernel_step step = {KERNEL_F32, KERNEL_F32, KERNEL_DECAY_COUPLED, fused, 0, 0, 1, 0, 1,
                                          1,          0.1};
                Tensor whole(numel, 1, false, KERNEL_F32, KERNEL_F32), parts = whole;
                kernel_range range = whole.range(step, 0, numel, numel, false);
                step_one(optimizer, step, &range, 1, nullptr);
                std::vector<kernel_range> ranges;
                const size_t cuts[] = {0, numel / 7, numel / 3, numel - numel / 10, numel};
                for (int i = 3; i >= 0; i--)
                    ranges.push_back(parts.range(step, cuts[i], cuts[i + 1], numel, false));
                const kernel_host host = {on_threads, 4, nullptr};
                step_one(optimizer, step, ranges.data(), ranges.size(), &host);
                ASSERT_TRUE(parts.equals(whole)) << optimizer << " " << fused << " " << numel;
            }
}

// The reference's Adam beside the formula in double precision.
TEST_F(Optimizer, AdamIsAdam) {
    kernel_variant_select(KERNEL_VARIANT_REFERENCE);
    const size_t numel = 1000;
    const kernel_step step = {KERNEL_F32, KERNEL_F32, KERNEL_DECAY_DECOUPLED, 0, 0, 0, 0, 0, 1, 1, 0.99};
    Tensor tensor(numel, 1, false, KERNEL_F32, KERNEL_F32);
    const Tensor before = tensor;
    kernel_range range = tensor.range(step, 0, numel, numel, false);
    step_one(ADAM, step, &range, 1, nullptr);
    for (size_t i = 0; i < numel; i++) {
        const double grad = before.grad[i], mean = 0.9 * before.states[0][i] + 0.1 * grad;
        const double square = 0.999 * before.states[1][i] + 0.001 * grad * grad;
        const double param = before.param[i] * 0.99 - 0.01 * mean / (std::sqrt(square) / 0.3 + 1e-8);
        ASSERT_NEAR(tensor.states[0][i], mean, 1e-6 * std::fabs(mean) + 1e-6);
        ASSERT_NEAR(tensor.states[1][i], square, 1e-6 * square);
        ASSERT_NEAR(tensor.param[i], param, 1e-5 * std::fabs(param) + 1e-6);
    }
}

TEST_F(Optimizer, RefusesWhatItCannotStep) {
    float values[8] = {};
    castor_step_range range = {values, values, nullptr, {values, nullptr, nullptr}, 0, 8, 8};
    castor_adam adam = {};
    castor_sgd sgd = {};
    EXPECT_EQ(castor_optimizer_adam(&adam, &range, 1, 1), 1); // no squares
    EXPECT_STRNE(castor_error(), "");
    range.count = 9;
    EXPECT_EQ(castor_optimizer_sgd(&sgd, &range, 1, 1), 1);
    range.count = 0;
    EXPECT_EQ(castor_optimizer_adam(&adam, &range, 1, 1), 0);
    sgd.step.decay_kind = CASTOR_DECAY_DECOUPLED;
    EXPECT_EQ(castor_optimizer_sgd(&sgd, &range, 1, 1), 1);
    sgd.step.decay_kind = 0;
    sgd.step.param_dtype = KERNEL_F64;
    EXPECT_EQ(castor_optimizer_sgd(&sgd, &range, 1, 1), 1);
}

} // namespace
