// Every variant against the reference, bit for bit, and the reference against arithmetic in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "variants.h"

namespace {

constexpr size_t kMaxCount = 200;
constexpr size_t kGuard = 64; // bytes around a buffer that no kernel may touch

const kernel_dtype kDtypes[] = {KERNEL_F32, KERNEL_F64, KERNEL_F16, KERNEL_BF16};
const char *const kDtypeNames[] = {"f32", "f64", "f16", "bf16"};

// A binary format by its parameters: bits of the fraction, least normal exponent, bias.
struct Format {
    int fraction_bits;
    int least_exponent;
    int bias;
};
constexpr Format kHalf = {10, -14, 15};
constexpr Format kBrain = {7, -126, 127};

double decode(const Format &format, uint16_t bits) {
    const int exponent = (bits & 0x7FFF) >> format.fraction_bits;
    const int fraction = bits & ((1 << format.fraction_bits) - 1);
    const int special = 2 * format.bias + 1;
    double magnitude;
    if (exponent == special)
        magnitude = fraction ? std::nan("") : HUGE_VAL;
    else if (exponent == 0)
        magnitude = std::ldexp(fraction, format.least_exponent - format.fraction_bits);
    else
        magnitude =
            std::ldexp(fraction + (1 << format.fraction_bits), exponent - format.bias - format.fraction_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

// Nearest, ties to even, by nearbyint on the value measured in units of its last place.
uint16_t encode(const Format &format, double value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const int special = 2 * format.bias + 1;
    const uint16_t infinity = static_cast<uint16_t>(special << format.fraction_bits);
    if (std::isnan(value))
        return static_cast<uint16_t>(sign | infinity | 1 << (format.fraction_bits - 1));
    double magnitude = std::fabs(value);
    if (std::isinf(magnitude))
        return sign | infinity;
    if (magnitude == 0)
        return sign;
    int exponent = std::max(std::ilogb(magnitude), format.least_exponent);
    double units = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
    // `units` below one whole fraction: denormal; a carry into the next exponent comes out right by itself.
    double bits = units + static_cast<double>(exponent - format.least_exponent) * (1 << format.fraction_bits);
    return bits >= infinity ? sign | infinity : static_cast<uint16_t>(sign | static_cast<uint16_t>(bits));
}

// One element in the precision of its dtype, as bits; computed in double and rounded step by step.
uint64_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
uint64_t bits_of(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

double element_value(kernel_dtype dtype, uint64_t bits) {
    if (dtype == KERNEL_F16)
        return decode(kHalf, static_cast<uint16_t>(bits));
    if (dtype == KERNEL_BF16)
        return decode(kBrain, static_cast<uint16_t>(bits));
    if (dtype == KERNEL_F32) {
        float value;
        const uint32_t narrow = static_cast<uint32_t>(bits);
        std::memcpy(&value, &narrow, sizeof value);
        return value;
    }
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// `exact` is a sum or product that double holds exactly unless the dtype is F64 (then it is already rounded,
// once). A sum of two floats may need more than 53 bits; rounding to double first is harmless there (53 >= 2
// * 24 + 2).
uint64_t element_round(kernel_dtype dtype, double exact) {
    if (dtype == KERNEL_F64)
        return bits_of(exact);
    const float single = static_cast<float>(exact);
    if (dtype == KERNEL_F32)
        return bits_of(single);
    return encode(dtype == KERNEL_F16 ? kHalf : kBrain, single);
}

bool element_is_nan(kernel_dtype dtype, uint64_t bits) {
    return std::isnan(element_value(dtype, bits));
}

double scale_value(kernel_dtype dtype, double scale) {
    return dtype == KERNEL_F64 ? scale : static_cast<double>(static_cast<float>(scale));
}

// A buffer at a chosen offset, in elements, from a 64-byte boundary, with guard bytes on both sides.
class Buffer {
  public:
    Buffer(kernel_dtype dtype, size_t count, size_t offset)
        : width_(kernel_dtype_bytes(dtype)), count_(count),
          memory_(count * width_ + offset * width_ + 2 * kGuard + 64, 0xA5) {
        auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
        start_ = ((address + 63) / 64 * 64 - reinterpret_cast<uintptr_t>(memory_.data())) + offset * width_;
    }
    Buffer(const Buffer &) = delete; // a copy would not keep the alignment
    void *data() { return memory_.data() + start_; }
    size_t count() const { return count_; }
    uint64_t get(size_t i) const {
        uint64_t bits = 0;
        std::memcpy(&bits, memory_.data() + start_ + i * width_, width_); // little-endian
        return bits;
    }
    void set(size_t i, uint64_t bits) { std::memcpy(memory_.data() + start_ + i * width_, &bits, width_); }
    bool guards_intact() const {
        const size_t end = start_ + count_ * width_;
        for (size_t i = 0; i < memory_.size(); i++)
            if ((i < start_ || i >= end) && memory_[i] != 0xA5)
                return false;
        return true;
    }

  private:
    size_t width_, count_, start_;
    std::vector<unsigned char> memory_;
};

// Bit patterns where rounding goes wrong first.
std::vector<uint64_t> special_values(kernel_dtype dtype) {
    std::vector<uint64_t> values;
    switch (dtype) {
    case KERNEL_F16:
        values = {0x0000, 0x0001, 0x0002, 0x03FF, 0x0400, 0x0401, 0x3BFF,
                  0x3C00, 0x3C01, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF};
        break;
    case KERNEL_BF16:
        values = {0x0000, 0x0001, 0x007F, 0x0080, 0x0081, 0x3F7F, 0x3F80,
                  0x3F81, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF};
        break;
    case KERNEL_F32:
        values = {0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x3F7FFFFF, 0x3F800000,
                  0x3F800001, 0x33800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000};
        break;
    default:
        values = {0,
                  1,
                  0x000FFFFFFFFFFFFFull,
                  0x0010000000000000ull,
                  0x3FF0000000000000ull,
                  0x3FF0000000000001ull,
                  0x7FEFFFFFFFFFFFFFull,
                  0x7FF0000000000000ull,
                  0x7FF0000000000001ull,
                  0x7FF8000000000000ull};
    }
    const uint64_t sign = 1ull << (8 * kernel_dtype_bytes(dtype) - 1);
    const size_t count = values.size();
    for (size_t i = 0; i < count; i++)
        values.push_back(values[i] | sign);
    return values;
}

// Half ordinary numbers of training, a quarter special values, a quarter any bits at all.
void fill(Buffer &buffer, kernel_dtype dtype, std::mt19937_64 &random) {
    const auto special = special_values(dtype);
    std::normal_distribution<double> normal(0, 0.05);
    for (size_t i = 0; i < buffer.count(); i++) {
        switch (random() % 4) {
        case 0:
            buffer.set(i, special[random() % special.size()]);
            break;
        case 1:
            buffer.set(i, random());
            break;
        default:
            buffer.set(i, element_round(dtype, normal(random)));
        }
    }
}

const double kScales[] = {1.0, 0.5, 1.0 / 3.0, 0.1, -0.25, 0.0, 1e-30, 1e30, 1.0 + 1e-12, HUGE_VAL};

enum Operation { kStore, kAdd, kOperationCount };
const char *const kOperationNames[] = {"scale_store", "scale_add"};

void run(Operation operation, kernel_dtype dtype, Buffer &dst, Buffer &src, size_t count, double scale) {
    if (operation == kStore)
        kernel_scale_store(dtype, dst.data(), src.data(), count, scale);
    else
        kernel_scale_add(dtype, dst.data(), src.data(), count, scale);
}

uint64_t expected(Operation operation, kernel_dtype dtype, uint64_t dst, uint64_t src, double scale) {
    const double factor = scale_value(dtype, scale);
    if (operation == kStore)
        return factor == 1.0 ? src : element_round(dtype, element_value(dtype, src) * factor);
    const uint64_t product = element_round(dtype, element_value(dtype, src) * factor);
    return element_round(dtype, element_value(dtype, dst) + element_value(dtype, product));
}

class KernelVariants : public EachVariant {};

TEST_P(KernelVariants, EqualArithmeticInDoublePrecision) {
    std::mt19937_64 random(20);
    for (kernel_dtype dtype : kDtypes)
        for (int operation = 0; operation < kOperationCount; operation++)
            for (double scale : kScales)
                for (size_t count = 0; count <= kMaxCount; count += count < 40 ? 1 : 23) {
                    Buffer dst(dtype, count, 0), src(dtype, count, 1);
                    fill(dst, dtype, random);
                    fill(src, dtype, random);
                    std::vector<uint64_t> want(count), source(count);
                    for (size_t i = 0; i < count; i++) {
                        source[i] = src.get(i);
                        want[i] =
                            expected(static_cast<Operation>(operation), dtype, dst.get(i), source[i], scale);
                    }
                    run(static_cast<Operation>(operation), dtype, dst, src, count, scale);
                    for (size_t i = 0; i < count; i++) {
                        if (element_is_nan(dtype, want[i]))
                            ASSERT_TRUE(element_is_nan(dtype, dst.get(i)))
                                << kDtypeNames[dtype] << " " << kOperationNames[operation] << " scale "
                                << scale << " count " << count << " at " << i;
                        else
                            ASSERT_EQ(dst.get(i), want[i])
                                << kDtypeNames[dtype] << " " << kOperationNames[operation] << " scale "
                                << scale << " count " << count << " at " << i;
                        ASSERT_EQ(src.get(i), source[i]);
                    }
                }
}

TEST_P(KernelVariants, EqualTheReferenceAtEveryLengthAndOffset) {
    std::mt19937_64 random(21);
    for (kernel_dtype dtype : kDtypes)
        for (int operation = 0; operation < kOperationCount; operation++)
            for (size_t count = 0; count <= kMaxCount; count++) {
                const size_t dst_offset = random() % 16, src_offset = random() % 16;
                const double scale = kScales[random() % (sizeof kScales / sizeof kScales[0])];
                Buffer mine(dtype, count, dst_offset), reference(dtype, count, 0),
                    src(dtype, count, src_offset);
                fill(mine, dtype, random);
                fill(src, dtype, random);
                for (size_t i = 0; i < count; i++)
                    reference.set(i, mine.get(i));
                run(static_cast<Operation>(operation), dtype, mine, src, count, scale);
                ASSERT_TRUE(kernel_variant_select(KERNEL_VARIANT_REFERENCE));
                run(static_cast<Operation>(operation), dtype, reference, src, count, scale);
                ASSERT_TRUE(kernel_variant_select(GetParam()));
                for (size_t i = 0; i < count; i++) {
                    if (element_is_nan(dtype, reference.get(i)) && dtype != KERNEL_BF16)
                        ASSERT_TRUE(element_is_nan(dtype, mine.get(i)));
                    else
                        ASSERT_EQ(mine.get(i), reference.get(i))
                            << kDtypeNames[dtype] << " " << kOperationNames[operation] << " scale " << scale
                            << " count " << count << " at " << i;
                }
                ASSERT_TRUE(mine.guards_intact() && src.guards_intact());
            }
}

// Scaling by -1 passes every 16-bit pattern through both conversions.
TEST_P(KernelVariants, KeepEverySixteenBitPattern) {
    for (kernel_dtype dtype : {KERNEL_F16, KERNEL_BF16}) {
        std::vector<uint16_t> values(65536), negated(65536);
        for (size_t i = 0; i < values.size(); i++)
            values[i] = static_cast<uint16_t>(i);
        kernel_scale_store(dtype, negated.data(), values.data(), values.size(), -1.0);
        for (size_t i = 0; i < values.size(); i++) {
            if (!element_is_nan(dtype, values[i]))
                ASSERT_EQ(negated[i], values[i] ^ 0x8000) << kDtypeNames[dtype];
            else if (dtype == KERNEL_BF16)
                ASSERT_EQ(negated[i], 0x7FC0);
            else // the sign of a NaN product is the processor's choice; the payload stays, made quiet
                ASSERT_EQ(negated[i] & 0x7FFF, (values[i] | 0x0200) & 0x7FFF);
        }
    }
}

// Every tie and its two neighbours, between each two neighbouring half and bfloat16 numbers.
TEST_P(KernelVariants, RoundTiesToEven) {
    for (kernel_dtype dtype : {KERNEL_F16, KERNEL_BF16}) {
        const Format &format = dtype == KERNEL_F16 ? kHalf : kBrain;
        const uint16_t infinity = static_cast<uint16_t>((2 * format.bias + 1) << format.fraction_bits);
        // x + x/2^k lies between two neighbours; as a sum in float it is exact, so only the last rounding
        // counts.
        std::vector<uint16_t> larger, smaller;
        for (int bits = 1 << (format.fraction_bits + 3); bits < infinity; bits += 37)
            for (int distance = 0; distance <= format.fraction_bits + 2; distance++) {
                larger.push_back(static_cast<uint16_t>(bits));
                smaller.push_back(
                    static_cast<uint16_t>(std::max(0, bits - (distance << format.fraction_bits))));
            }
        std::vector<uint16_t> sum = larger;
        kernel_scale_add(dtype, sum.data(), smaller.data(), sum.size(), 1.0);
        for (size_t i = 0; i < sum.size(); i++) {
            const double exact = decode(format, larger[i]) + decode(format, smaller[i]);
            ASSERT_EQ(sum[i], encode(format, static_cast<float>(exact)))
                << kDtypeNames[dtype] << " " << larger[i] << " + " << smaller[i];
        }
    }
}

TEST_P(KernelVariants, ScaleOfOneKeepsEveryBit) {
    for (kernel_dtype dtype : kDtypes) {
        std::mt19937_64 random(22);
        Buffer src(dtype, kMaxCount, 3), dst(dtype, kMaxCount, 5);
        for (size_t i = 0; i < kMaxCount; i++)
            src.set(i, random());
        kernel_scale_store(dtype, dst.data(), src.data(), kMaxCount, 1.0);
        for (size_t i = 0; i < kMaxCount; i++)
            ASSERT_EQ(dst.get(i), src.get(i));
    }
}

EACH_VARIANT(KernelVariants);

TEST(Kernels, NoProductIsFusedIntoItsSum) {
    // 1 + 2^-12 squared needs 25 bits; fused, the sum with -(1 + 2^-11) would be 2^-24 and not 0.
    for (int variant = 0; variant < KERNEL_VARIANT_COUNT; variant++) {
        if (!kernel_variant_select(static_cast<kernel_variant>(variant)))
            continue;
        const float value = 1.0f + 0x1p-12f;
        std::vector<float> src(33, value), dst(33, -(1.0f + 0x1p-11f));
        kernel_scale_add(KERNEL_F32, dst.data(), src.data(), dst.size(), value);
        for (float sum : dst)
            EXPECT_EQ(sum, 0.0f) << kernel_variant_name(static_cast<kernel_variant>(variant));
    }
}

TEST(Kernels, AnUnknownVariantIsRefusedAndChangesNothing) {
    const kernel_variant before = kernel_variant_current();
    EXPECT_FALSE(kernel_variant_select(KERNEL_VARIANT_COUNT));
    EXPECT_EQ(kernel_variant_current(), before);
}

TEST(Kernels, ThreadsMayUseAndSelectVariantsAtOnce) {
    const kernel_variant before = kernel_variant_current();
    std::vector<float> src(1000, 3.0f);
    std::vector<std::thread> threads;
    std::vector<std::vector<float>> sums(4, std::vector<float>(1000, 1.0f));
    for (size_t t = 0; t < sums.size(); t++)
        threads.emplace_back([&, t] {
            for (int round = 0; round < 100; round++) {
                kernel_variant_select(static_cast<kernel_variant>(round % KERNEL_VARIANT_COUNT));
                kernel_scale_add(KERNEL_F32, sums[t].data(), src.data(), src.size(), 0.5);
            }
        });
    for (auto &thread : threads)
        thread.join();
    for (const auto &sum : sums)
        for (float value : sum)
            ASSERT_EQ(value, 151.0f);
    ASSERT_TRUE(kernel_variant_select(before));
}

} // namespace
