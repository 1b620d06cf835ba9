#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

extern "C" {
#include "base/error.h"
#include "training/loss_shares.h"
}

namespace {

using Terms = std::vector<std::pair<loss_kind, double>>;
using Shares = std::vector<double>;

loss_row row(const Terms &terms) {
    loss_row made{};
    made.terms = static_cast<double>(terms.size());
    for (size_t i = 0; i < std::min<size_t>(terms.size(), LOSS_TERMS); i++) {
        made.term[i].kind = terms[i].first;
        made.term[i].count = terms[i].second;
    }
    return made;
}

// The shares; empty: an error, whose text is then checked by `said`.
Shares shares(castor_loss mode, const Shares &weights, const std::vector<Terms> &terms) {
    std::vector<loss_row> rows;
    rows.reserve(terms.size());
    for (const Terms &each : terms)
        rows.push_back(row(each));
    Shares made(weights.size(), -1);
    castor_status status =
        loss_shares(mode, weights.data(), rows.data(), static_cast<uint32_t>(weights.size()), made.data());
    if (status == CASTOR_OK)
        return made;
    EXPECT_EQ(status, CASTOR_ERR_MISMATCH);
    return {};
}

bool said(const char *words) {
    return std::strstr(error_text(), words) != nullptr;
}

TEST(LossShares, OfAMeanOverSamplesAreTheWeights) {
    EXPECT_EQ(shares(CASTOR_LOSS_MEAN, {0.625, 0.375}, {}), (Shares{0.625, 0.375}));
    EXPECT_EQ(
        shares(CASTOR_LOSS_AUTO, {0.625, 0.375}, {{{LOSS_MEAN_OF_TARGETS, 5}}, {{LOSS_MEAN_OF_TARGETS, 3}}}),
        (Shares{0.625, 0.375}));
}

TEST(LossShares, OfASumAreOneForWhoHasSamples) {
    EXPECT_EQ(shares(CASTOR_LOSS_SUM, {0.5, 0, 0.5}, {}), (Shares{1, 0, 1}));
}

// 12 targets of 4 samples, of which the first part's 2 have 9.
TEST(LossShares, OfAMeanOverTargetsAreTheirs) {
    const std::vector<Terms> terms = {{{LOSS_MEAN_OF_TARGETS, 9}}, {{LOSS_MEAN_OF_TARGETS, 3}}};
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5}, terms), (Shares{0.75, 0.25}));
    EXPECT_EQ(shares(CASTOR_LOSS_TOKENS, {0.5, 0.5}, terms), (Shares{0.75, 0.25}));
    EXPECT_EQ(shares(CASTOR_LOSS_MEAN, {0.5, 0.5}, terms), (Shares{0.5, 0.5}));
}

// With these shares the sum of the parts' means is the mean over all targets.
TEST(LossShares, MakeTheMeanOfTheWholeBatch) {
    const double of_parts[] = {18 / 9.0, 15 / 3.0, 7 / 4.0}; // sums of losses, over targets
    Shares made =
        shares(CASTOR_LOSS_AUTO, {0.5, 0.25, 0.25},
               {{{LOSS_MEAN_OF_TARGETS, 9}}, {{LOSS_MEAN_OF_TARGETS, 3}}, {{LOSS_MEAN_OF_TARGETS, 4}}});
    ASSERT_EQ(made.size(), 3U);
    EXPECT_DOUBLE_EQ(made[0] * of_parts[0] + made[1] * of_parts[1] + made[2] * of_parts[2],
                     (18 + 15 + 7) / 16.0);
}

// It computes with one of another's samples.
TEST(LossShares, ARankWithoutSamplesCountsForNothing) {
    const Terms nothing_of_its_own = {{LOSS_MEAN_OF_TARGETS, 4}};
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0, 0.5},
                     {{{LOSS_MEAN_OF_TARGETS, 6}}, nothing_of_its_own, {{LOSS_MEAN_OF_TARGETS, 2}}}),
              (Shares{0.75, 0, 0.25}));
    EXPECT_EQ(
        shares(CASTOR_LOSS_AUTO, {0, 1}, {{{LOSS_SUM, 0}, {LOSS_OTHER, 0}}, {{LOSS_MEAN_OF_TARGETS, 2}}}),
        (Shares{0, 1}));
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0, 0}, {{}, {}}), (Shares{0, 0}));
}

TEST(LossShares, APartWithoutTargetsCountsForNothing) {
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5}, {{{LOSS_SUM_DIVIDED, 0}}, {{LOSS_SUM_DIVIDED, 3}}}),
              (Shares{0, 1}));
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5}, {{{LOSS_SUM_DIVIDED, 0}}, {{LOSS_SUM_DIVIDED, 0}}}),
              (Shares{0.5, 0.5}));
}

// 10 counted on both ranks, whose parts differ in size: the script's own number.
TEST(LossShares, ANumberOfTheScriptsIsNoCount) {
    const std::vector<Terms> terms = {{{LOSS_SUM_DIVIDED, 10}}, {{LOSS_SUM_DIVIDED, 10}}};
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.75, 0.25}, terms), (Shares{0.75, 0.25}));
    EXPECT_EQ(shares(CASTOR_LOSS_TOKENS, {0.75, 0.25}, terms), (Shares{0.5, 0.5}));
}

TEST(LossShares, RoundingIsNoOtherProportion) {
    const double third = 1 / 3.0;
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {third, 1 - third},
                     {{{LOSS_MEAN_OF_TARGETS, 1000001}}, {{LOSS_MEAN_OF_TARGETS, 2000000}}}),
              (Shares{third, 1 - third}));
    EXPECT_NE(shares(CASTOR_LOSS_AUTO, {third, 1 - third},
                     {{{LOSS_MEAN_OF_TARGETS, 1000010}}, {{LOSS_MEAN_OF_TARGETS, 2000000}}}),
              (Shares{third, 1 - third}));
}

TEST(LossShares, TermsInTheSameProportionHaveOneShare) {
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5},
                     {{{LOSS_MEAN_OF_TARGETS, 9}, {LOSS_SUM_DIVIDED, 18}},
                      {{LOSS_MEAN_OF_TARGETS, 3}, {LOSS_SUM_DIVIDED, 6}}}),
              (Shares{0.75, 0.25}));
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5},
                     {{{LOSS_MEAN_OF_TARGETS, 9}, {LOSS_SUM_DIVIDED, 3}},
                      {{LOSS_MEAN_OF_TARGETS, 3}, {LOSS_SUM_DIVIDED, 1.5}}}),
              Shares{});
    EXPECT_TRUE(said("no weight of a rank is right for all")) << error_text();
}

TEST(LossShares, ACountOutOfProportionBesideATermOfSamplesIsAnError) {
    const std::vector<Terms> beside = {{{LOSS_MEAN_OF_ELEMENTS, 8}}, {{LOSS_SUM, 0}}, {{LOSS_OTHER, 0}}};
    for (const Terms &other : beside) {
        std::vector<Terms> terms = {{{LOSS_MEAN_OF_TARGETS, 9}}, {{LOSS_MEAN_OF_TARGETS, 3}}};
        for (Terms &each : terms)
            each.insert(each.begin(), other.begin(), other.end());
        EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5}, terms), Shares{});
        EXPECT_TRUE(said("adds a mean over counted targets")) << error_text();
        EXPECT_TRUE(said("use one rank")) << error_text();
    }
}

TEST(LossShares, OnlyTheFirstTermsAreCompared) {
    Terms first(LOSS_TERMS, {LOSS_MEAN_OF_TARGETS, 9}), second(LOSS_TERMS, {LOSS_MEAN_OF_TARGETS, 3});
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5}, {first, second}), (Shares{0.75, 0.25}));
    first.emplace_back(LOSS_MEAN_OF_TARGETS, 9);
    second.emplace_back(LOSS_MEAN_OF_TARGETS, 3);
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5}, {first, second}), Shares{});
    EXPECT_TRUE(said("to other terms")) << error_text();
}

TEST(LossShares, ElementsOutOfProportionAreAnError) {
    const std::vector<Terms> terms = {{{LOSS_MEAN_OF_ELEMENTS, 40}}, {{LOSS_MEAN_OF_ELEMENTS, 24}}};
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5}, terms), Shares{});
    EXPECT_TRUE(said("a mean over 24 to 40 elements")) << error_text();
    EXPECT_EQ(shares(CASTOR_LOSS_TOKENS, {0.5, 0.5}, terms), (Shares{0.625, 0.375}));
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.625, 0.375}, terms), (Shares{0.625, 0.375}));
}

TEST(LossShares, TokensNeedACount) {
    EXPECT_EQ(shares(CASTOR_LOSS_TOKENS, {0.5, 0.5}, {{{LOSS_SUM, 0}}, {{LOSS_SUM, 0}}}), Shares{});
    EXPECT_TRUE(said("CASTOR_LOSS=tokens finds nothing")) << error_text();
}

TEST(LossShares, OfDifferentForms) {
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.75, 0.25}, {Terms(3, {LOSS_SUM, 0}), Terms(1, {LOSS_SUM, 0})}),
              (Shares{0.75, 0.25}));
    EXPECT_EQ(shares(CASTOR_LOSS_AUTO, {0.5, 0.5}, {{{LOSS_MEAN_OF_TARGETS, 3}}, {{LOSS_OTHER, 0}}}),
              Shares{});
    EXPECT_TRUE(said("made of different terms")) << error_text();
    EXPECT_EQ(
        shares(CASTOR_LOSS_AUTO, {0.5, 0.5}, {{{LOSS_OTHER, 0}}, {{LOSS_OTHER, 0}, {LOSS_SUM_DIVIDED, 3}}}),
        Shares{});
}

} // namespace
