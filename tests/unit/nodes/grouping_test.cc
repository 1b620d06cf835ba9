#include <gtest/gtest.h>
#include <algorithm>
#include <random>
#include <set>
#include <vector>

extern "C" {
#include "base/error.h"
#include "job/node.h"
#include "nodes/grouping.h"
}

namespace {

struct Found {
    grouping_nodes place;
    std::vector<int32_t> members, lane;
};

Found find(const std::vector<uint64_t> &identities, int rank) {
    Found f;
    f.members.resize(identities.size());
    f.lane.resize(identities.size());
    EXPECT_EQ(grouping_by_node(identities.data(), int(identities.size()), rank, &f.place, f.members.data(),
                               f.lane.data()),
              CASTOR_OK);
    f.members.resize(size_t(f.place.local_world));
    f.lane.resize(f.place.local_rank < f.place.lanes ? size_t(f.place.node_count) : 0);
    return f;
}

TEST(Grouping, OneNodeHoldsAll) {
    Found f = find({7, 7, 7}, 1);
    EXPECT_EQ(f.place.node_count, 1);
    EXPECT_EQ(f.place.local_rank, 1);
    EXPECT_EQ(f.place.lanes, 3);
    EXPECT_EQ(f.members, (std::vector<int32_t>{0, 1, 2}));
    EXPECT_EQ(f.lane, (std::vector<int32_t>{1}));
}

TEST(Grouping, NodesAreNumberedByTheirFirstRank) {
    Found f = find({9, 9, 5, 5}, 3);
    EXPECT_EQ(f.place.node, 1);
    EXPECT_EQ(f.place.node_count, 2);
    EXPECT_EQ(f.place.local_rank, 1);
    EXPECT_EQ(f.members, (std::vector<int32_t>{2, 3}));
    EXPECT_EQ(f.lane, (std::vector<int32_t>{1, 3}));
}

TEST(Grouping, RanksOfANodeNeedNotBeNeighbours) {
    std::vector<uint64_t> round_robin = {1, 2, 1, 2, 1, 2};
    Found f = find(round_robin, 3);
    EXPECT_EQ(f.place.node, 1);
    EXPECT_EQ(f.place.local_rank, 1);
    EXPECT_EQ(f.members, (std::vector<int32_t>{1, 3, 5}));
    EXPECT_EQ(f.lane, (std::vector<int32_t>{2, 3}));
}

TEST(Grouping, AsManyLanesAsTheSmallestNodeHasRanks) {
    std::vector<uint64_t> uneven = {4, 4, 4, 8, 4, 8};
    EXPECT_EQ(find(uneven, 0).place.lanes, 2);
    EXPECT_EQ(find(uneven, 5).lane, (std::vector<int32_t>{1, 5}));
    EXPECT_EQ(find(uneven, 4).lane, (std::vector<int32_t>{})) << "the fourth rank of its node is in no lane";
    EXPECT_EQ(find(uneven, 4).place.local_rank, 3);
}

TEST(Grouping, EveryRankComesToTheSameNodesAndLanes) {
    std::mt19937 random(4711);
    for (int round = 0; round < 200; round++) {
        int world = 1 + int(random() % 12);
        std::vector<uint64_t> identities;
        for (int i = 0; i < world; i++)
            identities.push_back(1 + random() % 4);
        for (int rank = 0; rank < world; rank++) {
            Found f = find(identities, rank);
            ASSERT_EQ(f.members[size_t(f.place.local_rank)], rank);
            for (int32_t other : f.members) {
                Found g = find(identities, other);
                ASSERT_EQ(g.place.node, f.place.node);
                ASSERT_EQ(g.members, f.members);
            }
            for (size_t node = 0; node < f.lane.size(); node++) {
                Found g = find(identities, f.lane[node]);
                ASSERT_EQ(g.place.node, int(node));
                ASSERT_EQ(g.place.local_rank, f.place.local_rank);
                ASSERT_EQ(g.lane, f.lane);
            }
        }
    }
}

TEST(Grouping, ARankOutOfRangeIsAnError) {
    grouping_nodes place;
    uint64_t identity = 1;
    int32_t room[1];
    EXPECT_EQ(grouping_by_node(&identity, 1, 1, &place, room, room), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(grouping_by_node(&identity, 0, 0, &place, room, room), CASTOR_ERR_ARGUMENT);
}

TEST(NodeIdentity, IsTheSameEachTime) {
    EXPECT_NE(node_identity(), 0u);
    EXPECT_EQ(node_identity(), node_identity());
}

} // namespace
