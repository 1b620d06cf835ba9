#include <gtest/gtest.h>
#include <map>
#include <string>

extern "C" {
#include "job/cluster.h"
}

namespace {

using Values = std::map<std::string, std::string>;

const char *look_up(const void *context, const char *name) {
    const Values &values = *static_cast<const Values *>(context);
    auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
}

std::string first_host(const char *list) {
    char host[CLUSTER_HOST_MAX];
    return cluster_first_host(list, host, sizeof host) ? host : "(none)";
}

const Values kSlurm = {
    {"SLURM_PROCID", "5"},   {"SLURM_STEP_NUM_TASKS", "7"},        {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "1"},   {"SLURM_STEP_TASKS_PER_NODE", "4,3"}, {"SLURM_STEP_NODELIST", "gpu[07-08]"},
    {"SLURM_JOB_ID", "4711"}};

TEST(Cluster, SlurmTellsThePlace) {
    cluster found;
    ASSERT_TRUE(cluster_find(look_up, &kSlurm, &found));
    EXPECT_STREQ(found.launcher, "Slurm's srun");
    EXPECT_EQ(found.rank, 5);
    EXPECT_EQ(found.world, 7);
    EXPECT_EQ(found.local_rank, 1);
    EXPECT_EQ(found.local_world, 3);
    EXPECT_STREQ(found.master, "gpu07");
    EXPECT_GE(found.port, 20000u);
    EXPECT_LT(found.port, 30000u);
    Values other = kSlurm;
    other["SLURM_PROCID"] = "0";
    cluster first;
    ASSERT_TRUE(cluster_find(look_up, &other, &first));
    EXPECT_EQ(first.port, found.port) << "the same on all ranks";
    other["SLURM_STEP_ID"] = "1";
    cluster step;
    ASSERT_TRUE(cluster_find(look_up, &other, &step));
    EXPECT_NE(step.port, found.port) << "two steps of an allocation at a time";
}

TEST(Cluster, ABatchScriptIsNoRank) {
    Values batch = {
        {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}};
    cluster found;
    EXPECT_FALSE(cluster_find(look_up, &batch, &found));
}

TEST(Cluster, OpenMpiOnOneNode) {
    Values values = {{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
    cluster found;
    ASSERT_TRUE(cluster_find(look_up, &values, &found));
    EXPECT_STREQ(found.master, "127.0.0.1");
    EXPECT_EQ(found.local_world, 2);
    values["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
    ASSERT_TRUE(cluster_find(look_up, &values, &found));
    EXPECT_STREQ(found.master, "") << "Open MPI does not tell where rank 0 is";
}

TEST(Cluster, WhatMakesNoSenseIsNoCluster) {
    cluster found;
    for (auto [name, value] : Values{{"SLURM_PROCID", "7"},
                                     {"SLURM_PROCID", "-1"},
                                     {"SLURM_PROCID", "x"},
                                     {"SLURM_STEP_NUM_TASKS", "1"},
                                     {"SLURM_LOCALID", ""}}) {
        Values values = kSlurm;
        values[name] = value;
        EXPECT_FALSE(cluster_find(look_up, &values, &found)) << name << "=" << value;
    }
    Values nothing;
    EXPECT_FALSE(cluster_find(look_up, &nothing, &found));
}

TEST(Cluster, TheFirstHostOfAList) {
    EXPECT_EQ(first_host("n1"), "n1");
    EXPECT_EQ(first_host("n1,n2"), "n1");
    EXPECT_EQ(first_host("n[1-3,9]"), "n1");
    EXPECT_EQ(first_host("gpu[007-009,12]-ib,login"), "gpu007-ib");
    EXPECT_EQ(first_host("rack[2,4]node[03-04]"), "rack2node03");
    EXPECT_EQ(first_host(""), "(none)");
    EXPECT_EQ(first_host("n[1-3"), "(none)");
    EXPECT_EQ(first_host("n[]"), "(none)");
    EXPECT_EQ(first_host((std::string(300, 'n')).c_str()), "(none)");
}

TEST(Cluster, RanksByNode) {
    EXPECT_EQ(cluster_ranks_of_node("4", 0), 4);
    EXPECT_EQ(cluster_ranks_of_node("4(x2),3", 1), 4);
    EXPECT_EQ(cluster_ranks_of_node("4(x2),3", 2), 3);
    EXPECT_EQ(cluster_ranks_of_node("4(x2),3", 3), 0);
    EXPECT_EQ(cluster_ranks_of_node("", 0), 0);
    EXPECT_EQ(cluster_ranks_of_node("x", 0), 0);
}

} // namespace
