#include <gtest/gtest.h>
#include <algorithm>
#include <random>
#include <vector>

extern "C" {
#include "gradients/buckets.h"
}

namespace {

constexpr uint64_t MIB = 1 << 20;

struct Divided {
    std::vector<uint64_t> bytes;
    std::vector<int32_t> types;
    std::vector<bucket_place> places;
    uint32_t buckets = 0;

    Divided(std::vector<uint64_t> sizes, uint32_t owners, std::vector<int32_t> kinds = {},
            std::vector<int32_t> known = {})
        : bytes(std::move(sizes)), types(std::move(kinds)), places(bytes.size()) {
        types.resize(bytes.size());
        known.resize(bytes.size(), -1);
        castor_status status;
        buckets = buckets_divide(bytes.data(), types.data(), known.data(), (uint32_t)bytes.size(), owners,
                                 places.data(), &status);
        EXPECT_EQ(status, CASTOR_OK);
    }
    std::vector<uint64_t> owned(uint32_t owners) const {
        std::vector<uint64_t> sums(owners);
        for (size_t i = 0; i < bytes.size(); i++)
            sums.at((size_t)places[i].owner) += bytes[i];
        return sums;
    }
};

TEST(Buckets, GoFromTheLastParameterToTheFirst) {
    Divided d({12 * MIB, 12 * MIB, 12 * MIB}, 1);
    EXPECT_EQ(d.places[2].bucket, 0u);
    EXPECT_EQ(d.places[0].bucket, d.buckets - 1);
}

TEST(Buckets, AParameterIsNeverDivided) {
    Divided d({100, 400 * MIB, 100}, 2);
    EXPECT_EQ(d.buckets, 3u);
    EXPECT_NE(d.places[0].bucket, d.places[1].bucket);
    EXPECT_NE(d.places[2].bucket, d.places[1].bucket);
}

TEST(Buckets, HaveOneTypeEach) {
    Divided d({64, 64, 64, 64}, 2, {0, 0, 3, 3});
    EXPECT_EQ(d.buckets, 2u);
    EXPECT_EQ(d.places[0].bucket, d.places[1].bucket);
    EXPECT_EQ(d.places[2].bucket, d.places[3].bucket);
}

TEST(Buckets, WhoOwnsOneKeepsIt) {
    Divided d({64, 64, MIB, 64}, 3, {}, {2, 2, -1, 1});
    EXPECT_EQ(d.places[0].owner, 2);
    EXPECT_EQ(d.places[1].owner, 2);
    EXPECT_EQ(d.places[2].owner, 0); // who has the least
    EXPECT_EQ(d.places[3].owner, 1);
    EXPECT_EQ(d.places[0].bucket, d.places[1].bucket);
}

TEST(Buckets, NoParameters) {
    EXPECT_EQ(Divided({}, 4).buckets, 0u);
}

TEST(Buckets, PlacesAreApartAndOwnersAlike) {
    for (unsigned seed = 1; seed <= 200; seed++) {
        std::mt19937_64 random(seed);
        std::vector<uint64_t> sizes(1 + random() % 60);
        std::vector<int32_t> types(sizes.size());
        for (size_t i = 0; i < sizes.size(); i++) {
            sizes[i] = 4 * (1 + random() % (random() % 3 ? 20000 : 3000000));
            types[i] = (int32_t)(random() % 8 == 0);
        }
        uint32_t owners = 1 + (uint32_t)(random() % 8);
        Divided d(sizes, owners, types);
        for (size_t i = 0; i < sizes.size(); i++) {
            const bucket_place &a = d.places[i];
            ASSERT_LT(a.bucket, d.buckets);
            ASSERT_LT(a.owner, (int32_t)owners);
            ASSERT_EQ(a.offset % BUCKET_ALIGNMENT, 0u);
            for (size_t j = 0; j < i; j++) {
                const bucket_place &b = d.places[j];
                if (a.bucket != b.bucket)
                    continue;
                ASSERT_EQ(a.owner, b.owner);
                ASSERT_EQ(types[i], types[j]);
                ASSERT_TRUE(a.offset + sizes[i] <= b.offset || b.offset + sizes[j] <= a.offset);
            }
        }
    }
}

// What one rank keeps is what zero1 and zero2 promise: an equal share.
TEST(Buckets, OwnersHaveEqualShares) {
    for (uint32_t owners : {2u, 4u, 8u}) {
        std::vector<uint64_t> gpt{50257ull * 768 * 4};
        for (int layer = 0; layer < 24; layer++)
            for (uint64_t size : {768ull * 2304, 2304ull, 768ull * 768, 768ull, 768ull * 3072, 3072ull,
                                  3072ull * 768, 768ull, 768ull, 768ull})
                gpt.push_back(size * 4);
        std::vector<uint64_t> sums = Divided(gpt, owners).owned(owners);
        uint64_t all = 0, most = *std::max_element(sums.begin(), sums.end());
        for (uint64_t sum : sums)
            all += sum;
        EXPECT_LE(most, std::max(all / owners * 21 / 20, gpt[0])) << owners;
    }
}

} // namespace
