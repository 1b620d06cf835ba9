#include <algorithm>
#include <fstream>
#include "tests/unit/launcher/report/fixture.h"
#include "tests/unit/trace/fixture.h"

extern "C" {
#include "launcher/plan/plan.h"
#include "launcher/plan/replay.h"
}

namespace {

constexpr uint64_t MIB = 1 << 20, GIB = 1 << 30;

plan_cluster machine(uint32_t nodes, uint32_t devices) {
    plan_cluster cluster = {};
    cluster.nodes = nodes;
    cluster.devices = devices;
    cluster.cores = 4;
    cluster.link = cluster.network = 1e9;
    cluster.disk = 1e9;
    cluster.device_flops = 1e12;
    cluster.core_flops = 1e9;
    cluster.device_stream = 28e9;
    cluster.core_stream = 12e9;
    cluster.paging = 1e-3;
    return cluster;
}

/* So many parameters in equal tensors, a step of a second on one core, as it was recorded. */
plan_model recorded(uint64_t numel) {
    plan_model model = {};
    model.recorded = true;
    model.numel = numel;
    model.compute_seconds = 8;
    model.optimizer_seconds = 4;
    model.activation_bytes = 64 * MIB;
    model.process_bytes = 100 * MIB;
    model.ranks = 1;
    return model;
}

plan_model parsed(const char *text) {
    plan_model model = {};
    char message[512] = "";
    EXPECT_TRUE(plan_model_parse(text, &model, message, sizeof message)) << message;
    return model;
}

plan_choice choice(int plugin, uint32_t dp) {
    plan_choice made = {};
    made.plugin = plugin;
    made.tp = made.pp = made.micro = 1;
    made.dp = dp;
    return made;
}

plan_cost cost_of(const plan_model &model, const plan_cluster &cluster, const plan_choice &made) {
    plan_cost cost = {};
    EXPECT_EQ(plan_cost_of(&model, &cluster, &made, &cost), CASTOR_OK);
    return cost;
}

TEST(PlanModel, CountsTheParametersOfAGpt) {
    plan_model model = parsed("12x768x12x50257");
    EXPECT_EQ(model.numel, 124439808u); /* GPT-2's, as it is known */
    EXPECT_EQ(model.largest, 50257u * 768);
    EXPECT_EQ(model.tensor_count, 148u);
    plan_model_free(&model);
    model = parsed("1x2x1x8x4");
    /* 8 x 2 and 4 x 2 of embeddings, 12 x 4 + 13 x 2 of the layer, 4 of the last norm */
    EXPECT_EQ(model.numel, 16u + 8 + 48 + 26 + 4);
    plan_cluster cluster = machine(1, 0);
    EXPECT_TRUE(plan_model_settle(&model, &cluster, 4));
    /* Of a token 16 elements of the hidden size, and 3 of the vocabulary. */
    EXPECT_EQ(model.activation_bytes, 4u * 4 * (16 * 2 + 3 * 8));
    /* Three passes of 2 operations for each weight (12 x 4), 4 x 2 x 4 of attention, 2 x 2 x 8 of the head. */
    EXPECT_DOUBLE_EQ(model.compute_seconds * 1e9, 3.0 * 4 * (2 * 48 + 32 + 32));
    plan_model_free(&model);
}

TEST(PlanModel, RefusesWhatIsNoModel) {
    for (const char *text : {"", "12", "12x768x12", "12x768x12x", "12x768x12x50257x1024x2", "0x768x12x50257",
                             "12x768x-12x50257", "12x768x7x50257", "12 x 768x12x50257", "99999x768x12x50257",
                             "12x768x12x50257 ", "99999999999999999999x1x1x1", "4096x1048576x1x1000"}) {
        plan_model model = {};
        char message[512] = "";
        EXPECT_FALSE(plan_model_parse(text, &model, message, sizeof message)) << text;
        EXPECT_EQ(std::string(message).rfind("--model ", 0), 0u) << message;
        plan_model_free(&model);
    }
}

/* docs/nodes.md: 16, 8 + 8/n, 4 + 12/n and 16/n bytes per parameter and node. */
TEST(PlanCost, NodesKeepWhatTheirPageSays) {
    plan_model model = recorded(1 << 20);
    const struct {
        int plugin;
        uint64_t bytes;
    } rows[] = {{CASTOR_PLUGIN_DDP, 16},
                {CASTOR_PLUGIN_ZERO1, 10},
                {CASTOR_PLUGIN_ZERO2, 7},
                {CASTOR_PLUGIN_GEMINI, 4}};
    for (const auto &row : rows) {
        EXPECT_EQ(cost_of(model, machine(4, 0), choice(row.plugin, 8)).model_bytes, row.bytes * MIB)
            << row.plugin;
        EXPECT_EQ(cost_of(model, machine(1, 0), choice(row.plugin, 2)).model_bytes, 16 * MIB) << row.plugin;
    }
}

/* The same page: under a budget parameters and gradients stay on every node. */
TEST(PlanCost, UnderABudgetNodesShareStatesAlone) {
    plan_model model = recorded(1 << 20);
    plan_cluster cluster = machine(4, 0);
    for (int plugin : {CASTOR_PLUGIN_ZERO1, CASTOR_PLUGIN_ZERO2, CASTOR_PLUGIN_GEMINI}) {
        plan_choice made = choice(plugin, 8);
        made.bounded = true;
        EXPECT_EQ(cost_of(model, cluster, made).model_bytes, 10 * MIB) << plugin;
        EXPECT_EQ(cost_of(model, cluster, made).sent[PLAN_WAY_NETWORK], 9 * MIB) << plugin;
    }
}

/* What crosses: 2(n-1)/n of the gradients or (n-1)/n, and (n-1)/n of the parameters but under ddp. */
TEST(PlanCost, NodesSendWhatTheirPageSays) {
    plan_model model = recorded(1 << 20);
    const struct {
        int plugin;
        uint64_t bytes;
    } rows[] = {{CASTOR_PLUGIN_DDP, 6},
                {CASTOR_PLUGIN_ZERO1, 9},
                {CASTOR_PLUGIN_ZERO2, 6},
                {CASTOR_PLUGIN_GEMINI, 6}};
    for (const auto &row : rows)
        EXPECT_EQ(cost_of(model, machine(4, 0), choice(row.plugin, 8)).sent[PLAN_WAY_NETWORK],
                  row.bytes * MIB)
            << row.plugin;
    EXPECT_EQ(cost_of(model, machine(1, 0), choice(CASTOR_PLUGIN_ZERO1, 2)).sent[PLAN_WAY_NETWORK], 0u);
}

/* docs/device-ranks.md: 16, 8 + 8/N, 4 + 12/N bytes per parameter on each of N devices; DistributedDataParallel 20. */
TEST(PlanCost, DevicesHoldWhatTheirPageSays) {
    plan_model model = recorded(256 * MIB);
    model.on_devices = true;
    model.activation_bytes = 0;
    const uint64_t buckets = 4 * 25 * MIB;
    const struct {
        int plugin;
        uint64_t bytes;
    } rows[] = {{CASTOR_PLUGIN_NONE, 256 * 20 * MIB},
                {CASTOR_PLUGIN_DDP, 256 * 16 * MIB},
                {CASTOR_PLUGIN_ZERO1, 256 * 10 * MIB},
                {CASTOR_PLUGIN_ZERO2, 256 * 7 * MIB + buckets},
                {CASTOR_PLUGIN_GEMINI, 256 * 7 * MIB + buckets}};
    for (const auto &row : rows)
        EXPECT_EQ(cost_of(model, machine(1, 4), choice(row.plugin, 4)).bytes[PLAN_TIER_DEVICE], row.bytes)
            << row.plugin;
}

TEST(PlanCost, CoresShareTheWork) {
    plan_model model = recorded(1000000);
    plan_cluster cluster = machine(1, 0);
    cluster.threads = 1;
    plan_cost two = cost_of(model, cluster, choice(CASTOR_PLUGIN_GEMINI, 2));
    EXPECT_DOUBLE_EQ(two.seconds[PLAN_TERM_COMPUTE], 4);
    EXPECT_DOUBLE_EQ(two.seconds[PLAN_TERM_OPTIMIZER], 2);
    EXPECT_DOUBLE_EQ(two.seconds[PLAN_TERM_SUMS],
                     0.001); /* 12 bytes of each element, at 12 GB/s, by two ranks at a time */
    EXPECT_DOUBLE_EQ(two.step_seconds, 6.001);
    /* Eight ranks have four cores. */
    EXPECT_DOUBLE_EQ(cost_of(model, cluster, choice(CASTOR_PLUGIN_GEMINI, 8)).step_seconds, 3 + 0.002);
    /* Each rank of plain PyTorch steps all parameters. */
    EXPECT_DOUBLE_EQ(cost_of(model, cluster, choice(CASTOR_PLUGIN_NONE, 2)).seconds[PLAN_TERM_OPTIMIZER], 4);
    cluster.threads = 0;
    EXPECT_DOUBLE_EQ(cost_of(model, cluster, choice(CASTOR_PLUGIN_NONE, 1)).step_seconds, 3);
}

TEST(PlanCost, ABudgetMovesWhatItHasNoRoomFor) {
    plan_model model = recorded(32 << 20); /* 512 MiB of model data, 64 MiB of activations */
    plan_cluster cluster = machine(1, 0);
    plan_choice made = choice(CASTOR_PLUGIN_GEMINI, 2);
    /* A quarter of 128 MiB of gradients may wait in each rank: when it does, three quarters of its 32 MiB of activations are left. */
    EXPECT_EQ(cost_of(model, cluster, made).bytes[PLAN_TIER_HOST], (512 + 2 * (24 + 32) + 200) * MIB);
    EXPECT_EQ(cost_of(model, cluster, made).bytes[PLAN_TIER_DISK], 0u);
    cluster.host_bytes = (200 + 320) * MIB;
    made.bounded = true;
    plan_cost cost = cost_of(model, cluster, made);
    EXPECT_EQ(cost.budget_bytes, 320 * MIB);
    EXPECT_TRUE(cost.fits);
    EXPECT_EQ(cost.bytes[PLAN_TIER_HOST],
              (200 + 288 - 5) * MIB); /* 0.9 of the budget, less a half of each chunk of 5 */
    /* 288 - 64 = 224 of 512 stay. The rest comes at least once; three uses of it, each with a way back, are the most. */
    EXPECT_GE(cost.sent[PLAN_WAY_DISK], 288 * MIB);
    EXPECT_LE(cost.sent[PLAN_WAY_DISK], 6 * 512 * MIB);
    EXPECT_EQ(cost.bytes[PLAN_TIER_DISK], 512 * MIB);
    EXPECT_GT(cost.seconds[PLAN_TERM_DISK], 0);
    cluster.host_bytes = (200 + 40) * MIB; /* less than the activations */
    EXPECT_FALSE(cost_of(model, cluster, made).fits);
    cluster.host_bytes = (200 + 320) * MIB;
    made.bounded = false;
    cost = cost_of(model, cluster, made);
    EXPECT_FALSE(cost.fits);
    EXPECT_EQ(cost.short_of, PLAN_TIER_HOST);
}

/* Two chunks of 10 MiB, used in turns for a second each, on a disk of 10 MiB a second. */
replay_result ping_pong(uint64_t budget, bool write, uint32_t steps) {
    uint64_t bytes[] = {10 * MIB, 10 * MIB};
    chunk_kind kinds[] = {CHUNK_PARAM, CHUNK_PARAM};
    moment moments[2] = {};
    moments[1].begin_ns = 1000000000;
    moments[1].first_use = 1;
    moments[1].identity = 1;
    replay_use uses[] = {{0, write}, {1, write}};
    replay_step step = {bytes, kinds, moments, uses, 2, 2, 2, 2000000000};
    replay_machine machine = {budget, 10 * MIB, 10 * MIB, true};
    replay_result result = {};
    EXPECT_EQ(replay_run(&step, &machine, steps, &result), CASTOR_OK);
    return result;
}

TEST(PlanReplay, CountsMovesAndWaits) {
    replay_result roomy = ping_pong(100 * MIB, true, 3);
    EXPECT_EQ(roomy.after.moved_bytes[1][0], roomy.before.moved_bytes[1][0]);
    EXPECT_EQ(roomy.after.stall_ns, roomy.before.stall_ns);
    /* Room for one: each access waits until the other one is written, a second, and its own is read. */
    replay_result tight = ping_pong(16 * MIB, true, 3);
    EXPECT_EQ(tight.after.moved_bytes[1][0] - tight.before.moved_bytes[1][0], 3 * 20 * MIB);
    EXPECT_EQ(tight.after.moved_bytes[0][1] - tight.before.moved_bytes[0][1], 3 * 20 * MIB);
    EXPECT_NEAR((double)(tight.after.stall_ns - tight.before.stall_ns), 3 * 4e9, 1e6);
    /* What nobody has written to leaves without a copy. */
    replay_result clean = ping_pong(16 * MIB, false, 3);
    EXPECT_EQ(clean.after.moved_bytes[1][0] - clean.before.moved_bytes[1][0], 3 * 20 * MIB);
    EXPECT_NEAR((double)(clean.after.stall_ns - clean.before.stall_ns), 3 * 2e9, 1e6);
}

TEST(PlanCost, StatesLeaveADeviceFirst) {
    plan_model model =
        recorded(256 * MIB); /* 4 GiB on one device: 1 of parameters, 1 of gradients, 2 of states */
    model.on_devices = true;
    model.activation_bytes = 0;
    model.process_bytes = 0;
    plan_cluster cluster = machine(1, 1);
    cluster.device_bytes = 3 * GIB;
    plan_choice made = choice(CASTOR_PLUGIN_GEMINI, 1);
    made.bounded = true;
    plan_cost cost = cost_of(model, cluster, made);
    EXPECT_EQ(cost.budget_bytes, 3 * GIB);
    EXPECT_EQ(cost.bytes[PLAN_TIER_DEVICE], 3 * GIB);
    EXPECT_EQ(cost.bytes[PLAN_TIER_HOST], 1 * GIB);
    /* The half that is stepped on the host sends its gradients and gets its parameters. */
    EXPECT_EQ(cost.sent[PLAN_WAY_LINK], 1 * GIB);
}

TEST(PlanCost, StagesOfAPipelineWait) {
    plan_model model = parsed("8x64x4x1x16");
    plan_cluster cluster = machine(1, 4);
    EXPECT_TRUE(plan_model_settle(&model, &cluster, 16 * 32));
    uint64_t layers = model.activation_bytes - model.logits_bytes;
    for (int plugin : {(int)CASTOR_PLUGIN_HYBRID, (int)PLAN_BOOSTER}) {
        plan_choice made = choice(plugin, 1);
        made.pp = 4;
        made.micro = 4;
        plan_cost cost = cost_of(model, cluster, made);
        /* Even stages: M + S - 1 passes instead of M. */
        EXPECT_NEAR(cost.seconds[PLAN_TERM_IDLE] / cost.seconds[PLAN_TERM_COMPUTE], 3.0 / 4, 0.01);
        /* The first stage has all four micro-batches alive, of a quarter of the layers. */
        EXPECT_NEAR((double)cost.activation_bytes, (double)layers / 4, (double)model.logits_bytes);
        made.micro = 16;
        /* 1F1B: at most as many as there are stages. */
        EXPECT_NEAR((double)cost_of(model, cluster, made).activation_bytes, (double)layers / 16,
                    (double)model.logits_bytes);
        /* Of the model data a device has all, or its stage's layers and what is in none. */
        double chain = 8 * 12 * 64 * 64, numel = (double)model.numel;
        EXPECT_NEAR((double)cost.model_bytes,
                    16 * (plugin == PLAN_BOOSTER ? chain / 4 + numel - chain : numel), 16);
    }
    plan_model_free(&model);
}

/* docs/hybrid.md: ranks of a node have model data once, activations are a rank's own. */
TEST(PlanCost, HybridDividesWorkAndActivations) {
    plan_model model = parsed("8x64x4x512x16");
    plan_cluster cluster = machine(1, 0);
    cluster.threads = 1;
    EXPECT_TRUE(plan_model_settle(&model, &cluster, 16 * 32));
    uint64_t bytes = model.numel * 4, layers = model.activation_bytes - model.logits_bytes;
    plan_cost plain = cost_of(model, cluster, choice(CASTOR_PLUGIN_GEMINI, 4));
    plan_choice made = choice(CASTOR_PLUGIN_HYBRID, 1);
    made.tp = 4;
    plan_cost cost = cost_of(model, cluster, made);
    EXPECT_EQ(cost.model_bytes, 4 * bytes);
    /* Half of what a layer keeps is inside of its inner products, and divided; each of the four ranks has the rest, and all logits. */
    uint64_t each = layers * 5 / 8 + model.logits_bytes;
    EXPECT_EQ(cost.activation_bytes, 4 * (each > bytes ? each : bytes));
    /* And computes attention for itself. */
    EXPECT_NEAR(cost.seconds[PLAN_TERM_COMPUTE] / plain.seconds[PLAN_TERM_COMPUTE],
                1 + 3 * model.attention_share, 1e-9);
    EXPECT_GT(cost.seconds[PLAN_TERM_TENSOR], 0);
    made = choice(CASTOR_PLUGIN_HYBRID, 2);
    made.pp = 2;
    made.micro = 2;
    cost = cost_of(model, cluster, made);
    EXPECT_EQ(cost.model_bytes, 4 * bytes);
    /* Gradients of a half of the model, and of the embedding that two stages have, stay until the last micro-batch is through. */
    uint64_t gradients = (bytes + 4 * 512 * 64) / 2;
    /* Of each of two micro-batches a third of the logits, and once the rest. */
    each = (layers + model.logits_bytes * 4 / 6) / 4;
    EXPECT_NEAR((double)cost.activation_bytes, 4.0 * (double)std::max(each - each / 2 + gradients, each), 64);
    made.micro = 8;
    cost = cost_of(model, cluster, made);
    /* 1F1B: two of eight are alive on the first stage, one on the last, which has the logits of one, beside all gradients. */
    each = (layers * 3 / 2 + model.logits_bytes) / 4 / 8;
    /* Less what lies on sums: a rank computes 32 tokens at a time. */
    EXPECT_NEAR((double)cost.activation_bytes, 4.0 * (double)(each + gradients) - (double)bytes, 64);
    /* Where a rank has few tokens, its blocks are small enough to lie on sums of gradients. */
    plan_model few = parsed("8x64x4x512x16");
    EXPECT_TRUE(plan_model_settle(&few, &cluster, 16 * 8));
    cost = cost_of(few, cluster, choice(CASTOR_PLUGIN_GEMINI, 2));
    EXPECT_EQ(cost.activation_bytes, 2 * std::max(few.activation_bytes / 2, bytes) - bytes);
    plan_model_free(&few);
    plan_model_free(&model);
}

/* docs/hybrid.md: ranks of a DDP script have batches of their own, which are the micro-batches of those that have a model together. */
TEST(PlanCost, ReplicasAreOnSeveralNodes) {
    plan_model model = parsed("8x64x4x512x16");
    plan_cluster cluster = machine(2, 0);
    EXPECT_TRUE(plan_model_settle(&model, &cluster, 16 * 32));
    uint64_t bytes = model.numel * 4;
    plan_choice made = choice(CASTOR_PLUGIN_HYBRID, 2);
    made.own_batches = true;
    made.pp = made.micro = 2;
    made.zero = 3;
    plan_cost cost = cost_of(model, cluster, made);
    EXPECT_EQ(cost.model_bytes, 2 * bytes); /* each node keeps a half of all */
    EXPECT_EQ(cost.sent[PLAN_WAY_NETWORK],
              2 * (bytes / 2)); /* its sums, once for both batches, and its parameters */
    made.pp = 1;
    made.tp = 2;
    EXPECT_EQ(cost_of(model, cluster, made).sent[PLAN_WAY_NETWORK], 2 * (bytes / 2));
    made.zero = 0;
    EXPECT_EQ(cost_of(model, cluster, made).model_bytes, 4 * bytes);
    made.micro = 4; /* two batches, twice */
    EXPECT_EQ(cost_of(model, cluster, made).sent[PLAN_WAY_NETWORK], 2 * bytes);
    made.micro = 3;
    EXPECT_EQ(plan_cost_of(&model, &cluster, &made, &cost), CASTOR_ERR_ARGUMENT);
    made = choice(CASTOR_PLUGIN_HYBRID, 1);
    made.own_batches = true;
    /* A stage on each node: for each of four batches, activations of both ranks, and their gradients. */
    made.tp = made.pp = 2;
    made.micro = 4;
    cost = cost_of(model, cluster, made);
    EXPECT_EQ(cost.sent[PLAN_WAY_NETWORK], bytes + UINT64_C(16) * 32 * 64 * 4 * 2 * 2);
    made.micro = 8; /* parts of them: as many bytes, and stages wait less */
    plan_cost parts = cost_of(model, cluster, made);
    EXPECT_EQ(parts.sent[PLAN_WAY_NETWORK], cost.sent[PLAN_WAY_NETWORK]);
    EXPECT_LT(parts.seconds[PLAN_TERM_IDLE], cost.seconds[PLAN_TERM_IDLE]);
    EXPECT_LT(parts.activation_bytes, cost.activation_bytes);
    made.tp = 4; /* parts of layers on both */
    made.pp = 1;
    EXPECT_EQ(plan_cost_of(&model, &cluster, &made, &cost), CASTOR_ERR_ARGUMENT);
    plan_model_free(&model);
}

/* docs/hybrid.md: CASTOR_ZERO_STAGE=3. */
TEST(PlanCost, DevicesHaveTheParametersOfTheirStages) {
    plan_cluster cluster = machine(1, 4);
    plan_model model = parsed("8x64x4x1000x16");
    EXPECT_TRUE(plan_model_settle(&model, &cluster, 16 * 32));
    uint64_t all = model.numel * 4, layers = UINT64_C(8) * 12 * 64 * 64 * 4;
    plan_choice made = choice(CASTOR_PLUGIN_HYBRID, 1);
    made.pp = made.micro = 4;
    made.zero = 2;
    plan_cost shared = cost_of(model, cluster, made);
    made.zero = 3;
    plan_cost own = cost_of(model, cluster, made);
    uint64_t of_stage = all - layers * 3 / 4;
    EXPECT_EQ(own.model_bytes,
              of_stage + 3 * (all / 4) + (of_stage - all / 4) + std::min(all, 4 * (UINT64_C(25) << 20)));
    EXPECT_EQ(shared.model_bytes, all + 3 * (all / 4) + of_stage);
    EXPECT_EQ(own.bytes[PLAN_TIER_HOST], shared.bytes[PLAN_TIER_HOST] + all); /* once for the node */
    EXPECT_EQ(own.sent[PLAN_WAY_LINK], all / 4);                              /* each rank's own */
    EXPECT_LT(own.sent[PLAN_WAY_NODE], shared.sent[PLAN_WAY_NODE]);
    plan_model_free(&model);
}

/* docs/single-process.md: tried calls are computed whole, by every rank. */
TEST(PlanCost, TriedCallsAreWholeOnEveryRank) {
    plan_model model = recorded(1 << 20);
    plan_choice made = choice(CASTOR_PLUGIN_GEMINI, 4);
    made.tried = true;
    EXPECT_EQ(cost_of(model, machine(1, 0), made).activation_bytes, 4 * 64 * MIB);
    EXPECT_EQ(cost_of(model, machine(1, 4), made).activation_bytes, 64 * MIB);
    plan_cluster small = machine(1, 4);
    small.device_bytes = 64 * MIB; /* what would not leave a quarter of the rest goes to the host */
    plan_cost cost = cost_of(model, small, made);
    EXPECT_EQ(cost.activation_bytes, (64 * MIB - cost.model_bytes) * 3 / 4);
    EXPECT_TRUE(cost.fits);
    plan_cluster cluster = machine(1, 0);
    cluster.threads = 1;
    cluster.host_bytes = (16 + 4 * 64 + 4 * 100) * MIB;
    for (bool fits : {true, false}) {
        plans found;
        cluster.host_bytes -= fits ? 0 : 172 * MIB; /* no budget helps: 100 MiB are left for 256 */
        ASSERT_TRUE(plans_find(&model, &cluster, &found));
        EXPECT_EQ(plans_best(&found)->choice.dp, 4u);
        EXPECT_EQ(plans_best(&found)->choice.tried, fits);
        plans_free(&found);
    }
}

TEST(PlanCost, HoldsWhatWaitsAndWhatMallocKeeps) {
    plan_model model = recorded(32 << 20); /* 128 MiB of parameters */
    model.activation_bytes = 256 * MIB;
    plan_cluster cluster = machine(1, 0);
    cluster.holes = 0.5;
    /* Three times the parameters, and all activations, of whose and the gradients' blocks a half again lies in holes. */
    EXPECT_EQ(cost_of(model, cluster, choice(CASTOR_PLUGIN_NONE, 1)).bytes[PLAN_TIER_HOST],
              (384 + 256 + 192 + 100) * MIB);
    /* Blocks on sums of gradients are no memory of their own. */
    model.loan_bytes = 16 * MIB;
    EXPECT_EQ(cost_of(model, cluster, choice(CASTOR_PLUGIN_GEMINI, 2)).activation_bytes, (256 - 16) * MIB);
    /* A node that shares states with another one has none of them. */
    EXPECT_EQ(cost_of(model, machine(2, 0), choice(CASTOR_PLUGIN_ZERO1, 2)).activation_bytes, 128 * MIB);
    /* Sixteen ranks build a model each, which is more than they have later. */
    model.activation_bytes = 0;
    EXPECT_EQ(cost_of(model, cluster, choice(CASTOR_PLUGIN_GEMINI, 16)).bytes[PLAN_TIER_HOST],
              16 * (128 + 100) * MIB);
    snprintf(model.command, sizeof model.command, "torchrun --nproc-per-node 2 train.py");
    EXPECT_EQ(cost_of(model, cluster, choice(CASTOR_PLUGIN_GEMINI, 16)).bytes[PLAN_TIER_HOST],
              16 * (2 * 128 + 100) * MIB);
}

TEST(PlanCost, RefusesChoicesThatAreNone) {
    plan_model model = parsed("8x64x4x1000x16");
    plan_cluster cluster = machine(1, 4);
    EXPECT_TRUE(plan_model_settle(&model, &cluster, 16 * 32));
    plan_cost cost;
    plan_choice wrong = choice(CASTOR_PLUGIN_GEMINI, 2);
    wrong.tp = 2; /* only hybrid divides layers */
    EXPECT_EQ(plan_cost_of(&model, &cluster, &wrong, &cost), CASTOR_ERR_ARGUMENT);
    wrong = choice(CASTOR_PLUGIN_HYBRID, 1);
    wrong.pp = 9; /* more stages than layers */
    EXPECT_EQ(plan_cost_of(&model, &cluster, &wrong, &cost), CASTOR_ERR_ARGUMENT);
    wrong = choice(CASTOR_PLUGIN_HYBRID, 1);
    wrong.tp = 3; /* heads do not divide */
    EXPECT_EQ(plan_cost_of(&model, &cluster, &wrong, &cost), CASTOR_ERR_ARGUMENT);
    wrong = choice(CASTOR_PLUGIN_DDP, 5); /* more ranks than devices */
    EXPECT_EQ(plan_cost_of(&model, &cluster, &wrong, &cost), CASTOR_ERR_ARGUMENT);
    plan_model_free(&model);
}

void expect_in_order(const plan_model &model, const plan_cluster &cluster, const plans &found) {
    for (size_t i = 0; i < found.count; i++) {
        const plan &p = found.rows[i];
        EXPECT_EQ(p.reason[0] == '\0', &p == plans_best(&found)) << i << p.reason;
        const plan &before = found.rows[i > 0 ? i - 1 : 0];
        bool alike = p.cost.fits == before.cost.fits &&
                     plan_plugins[p.choice.plugin].runs == plan_plugins[before.choice.plugin].runs;
        EXPECT_TRUE(!alike || p.cost.step_seconds * 1.0011 >= before.cost.step_seconds) << i;
        char command[4096];
        plan_command_line(&model, &cluster, &p, command, sizeof command);
        EXPECT_EQ(command[0] == '\0', p.choice.plugin == PLAN_BOOSTER);
    }
}

TEST(PlanSearch, FindsPlansForTenThousandDevices) {
    plan_model model = parsed("96x12288x96x50257x2048");
    plan_cluster cluster = machine(1250, 8);
    cluster.device_bytes = 141 * GIB;
    cluster.host_bytes = 512 * GIB;
    EXPECT_TRUE(plan_model_settle(&model, &cluster, 2048ull * 10000));
    plans found;
    ASSERT_TRUE(plans_find(&model, &cluster, &found));
    EXPECT_GT(found.count, 30u);
    EXPECT_GT(found.tried, 300u);
    /* A node keeps 650 GiB of parameters under each plugin of a command line. */
    EXPECT_EQ(plans_best(&found), nullptr);
    EXPECT_TRUE(found.rows[0].cost.fits);
    EXPECT_EQ(found.rows[0].choice.plugin, (int)PLAN_BOOSTER);
    expect_in_order(model, cluster, found);
    plans_free(&found);
    plan_model_free(&model);
}

TEST(PlanSearch, SaysWhyAPlanLoses) {
    plan_model model = recorded(1 << 20);
    plan_cluster cluster = machine(1, 0);
    plans found;
    ASSERT_TRUE(plans_find(&model, &cluster, &found));
    expect_in_order(model, cluster, found);
    /* One process with four threads steps and sums nothing that others have. */
    ASSERT_NE(plans_best(&found), nullptr);
    EXPECT_EQ(found.rows[0].choice.plugin, (int)CASTOR_PLUGIN_NONE);
    EXPECT_EQ(found.rows[0].choice.dp, 1u);
    plans_free(&found);
    cluster.threads = 1;
    ASSERT_TRUE(plans_find(&model, &cluster, &found));
    EXPECT_EQ(found.rows[0].choice.plugin, (int)CASTOR_PLUGIN_GEMINI);
    EXPECT_EQ(found.rows[0].choice.dp, 4u);
    EXPECT_STREQ(found.rows[1].reason, "does the same here as gemini");
    plans_free(&found);
    cluster.host_bytes = 50 * MIB; /* less than a process */
    ASSERT_TRUE(plans_find(&model, &cluster, &found));
    EXPECT_EQ(plans_best(&found), nullptr);
    EXPECT_EQ(std::string(found.rows[0].reason).rfind("does not fit: a node's memory needs ", 0), 0u)
        << found.rows[0].reason;
    plans_free(&found);
}

TEST(PlanOutput, AccumulationGoesIntoTheCommand) {
    plan_model model = recorded(1 << 20);
    plan_cluster cluster = machine(1, 2);
    snprintf(model.command, sizeof model.command, "torchrun --nproc-per-node 8 train.py --size 3");
    plan p = {choice(CASTOR_PLUGIN_ZERO2, 2), {}, ""};
    p.choice.micro = 4;
    p.choice.offload = true;
    p.cost.budget_bytes = 512 * MIB;
    char command[4096];
    plan_command_line(&model, &cluster, &p, command, sizeof command);
    EXPECT_STREQ(command,
                 "castor run --plugin zero2 --set CASTOR_DEVICE_BUDGET=512M --set CASTOR_ACTIVATIONS=offload "
                 "--set CASTOR_ACCUMULATE=4 -- torchrun --nproc-per-node 2 train.py --size 3");
    model.command[0] = '\0';
    p = {choice(CASTOR_PLUGIN_HYBRID, 1), {}, ""};
    p.choice.tp = p.choice.pp = 2;
    p.choice.micro = 8;
    p.choice.zero = 1;
    p.choice.tried = true;
    plan_command_line(&model, &cluster, &p, command, sizeof command);
    EXPECT_STREQ(command,
                 "castor run --plugin hybrid --set CASTOR_TP=2 --set CASTOR_PP=2 --set CASTOR_MICROBATCHES=8 "
                 "--set CASTOR_ZERO_STAGE=1 --nproc 4 -- python train.py");
    cluster.nodes = 2;
    p.choice.own_batches = true; /* of four ranks, two parts each */
    p.choice.dp = 2;
    plan_command_line(&model, &cluster, &p, command, sizeof command);
    EXPECT_STREQ(command,
                 "castor run --plugin hybrid --set CASTOR_TP=2 --set CASTOR_PP=2 --set CASTOR_MICROBATCHES=8 "
                 "--set CASTOR_ZERO_STAGE=1 -- torchrun --nnodes 2 --node-rank RANK --nproc-per-node 4 "
                 "--master-addr ADDRESS train_ddp.py");
    p.choice.pp = 1; /* of two ranks, four times */
    plan_command_line(&model, &cluster, &p, command, sizeof command);
    EXPECT_NE(strstr(command, "--set CASTOR_TP=2 --set CASTOR_ACCUMULATE=4 "), nullptr) << command;
    cluster.nodes = 1;
    p = {choice(CASTOR_PLUGIN_NONE, 2), {}, ""}; /* --nproc needs a plugin */
    plan_command_line(&model, &cluster, &p, command, sizeof command);
    EXPECT_STREQ(command, "castor run --plugin none -- torchrun --nproc-per-node 2 train_ddp.py");
    p = {choice(CASTOR_PLUGIN_GEMINI, 2), {}, ""}; /* nothing is tried */
    plan_command_line(&model, &cluster, &p, command, sizeof command);
    EXPECT_STREQ(command, "castor run --plugin gemini --set CASTOR_AUDIT=0 --nproc 2 -- python train.py");
}

class PlanRecorded : public TraceTest {
  protected:
    /* A rank of two that has 1 Mi parameters with the other one, 40 MiB of other data, and steps each second. */
    void record(int rank, bool budget, bool tried) const {
        trace_start(directory.c_str(), 64 * MIB, rank);
        trace_plugin_set("gemini");
        trace_gauge_set(GAUGE_MODEL_NUMEL, 1 << 20);
        trace_gauge_set(GAUGE_STORE_PARAM_BYTES, 4 * MIB);
        trace_gauge_set(GAUGE_PARAM_BYTES, 2 * MIB);
        trace_gauge_set(GAUGE_CHUNK_MOVES, budget ? 3 : 0);
        trace_gauge_set(GAUGE_CALLS_WHOLE, tried ? 2 : 0);
        uint64_t begin = trace_now_ns();
        for (trace_gauge gauge : {GAUGE_PARAM_BYTES, GAUGE_GRAD_BYTES})
            trace_record_write(TRACE_MEMORY, gauge, begin, begin, 2 * MIB, 0, 0, 0);
        trace_record_write(TRACE_MEMORY, GAUGE_OPTIM_BYTES, begin, begin, 4 * MIB, 0, 0, 0);
        trace_record_write(TRACE_MEMORY, GAUGE_OTHER_BYTES, begin, begin, 40 * MIB, 0, 0, 0);
        trace_gauge_set(GAUGE_PSS_BYTES, 148 * MIB);
        trace_gauge_set(GAUGE_BLOCKS_BYTES, 43 * MIB);
        trace_gauge_set(GAUGE_BLOCKS_BESIDE_BYTES, 40 * MIB);
        for (uint64_t step = 0; step < 5; step++) {
            uint64_t now = begin + step * 1000000000ull;
            for (uint32_t tensor = 0; tensor < 2 && step == 0; tensor++)
                trace_record_write(TRACE_REDUCE, tensor, now, now + 10, tensor ? 3 * MIB : MIB,
                                   (uint64_t)rank, 0, 0);
            trace_record_write(TRACE_STEP, 0, now, now + (step ? 250000000 : 900000000), 0, 0, 0, 0);
        }
        trace_flush();
    }
    bool read(plan_model *model, bool budget = false, bool tried = false) {
        for (int rank : {0, 1})
            run_child([&] { record(rank, budget, tried); });
        plan_cluster cluster = machine(1, 0);
        return plan_model_read(directory.c_str(), &cluster, model);
    }
};

TEST_F(PlanRecorded, ReadsShapesBytesAndTimes) {
    plan_model model = {};
    ASSERT_TRUE(read(&model));
    EXPECT_EQ(model.numel, 1u << 20);
    ASSERT_EQ(model.tensor_count, 2u);
    EXPECT_EQ(model.largest, 3 * MIB / 4);
    EXPECT_EQ(model.ranks, 2u);
    EXPECT_EQ(model.activation_bytes, 86 * MIB);
    EXPECT_EQ(model.loan_bytes, 6 * MIB);
    EXPECT_EQ(model.process_bytes, 100 * MIB);
    EXPECT_DOUBLE_EQ(model.step_seconds, 1);
    /* Two ranks of two threads on four cores. The first step, which makes states, does not count. */
    EXPECT_DOUBLE_EQ(model.optimizer_seconds, 1);
    EXPECT_NEAR(model.compute_seconds, 3, 0.003); /* less the sums' */
    plan_model_free(&model);
}

TEST_F(PlanRecorded, KnowsThatEachRankHadAllInATriedCall) {
    plan_model model = {};
    ASSERT_TRUE(read(&model, false, true));
    EXPECT_EQ(model.activation_bytes, 43 * MIB);
    plan_model_free(&model);
}

TEST_F(PlanRecorded, KnowsTheCoresOfTheMachineThatRan) {
    plan_model model = {};
    std::ofstream(path("castor.about")) << "cores 2\n";
    ASSERT_TRUE(read(&model));
    EXPECT_DOUBLE_EQ(model.optimizer_seconds, 0.5); /* two ranks of one thread */
    plan_model_free(&model);
}

TEST_F(PlanRecorded, RefusesARunUnderABudget) {
    plan_model model = {};
    testing::internal::CaptureStderr();
    EXPECT_FALSE(read(&model, true));
    EXPECT_NE(testing::internal::GetCapturedStderr().find("moved chunks under a budget"), std::string::npos);
}

} // namespace
