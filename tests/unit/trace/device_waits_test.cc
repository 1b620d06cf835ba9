/* What the wrappers of CUDA say of waits for devices, as the live file has it. */
#include <thread>
#include "fixture.h"

extern "C" {
#include "hooks/table/effect.h"
#include "launcher/common/live_read.h"
#include "trace/device_waits.h"
}

namespace {

constexpr uint64_t second = 1000000000;

class DeviceTest : public TraceTest {
  protected:
    void SetUp() override {
        TraceTest::SetUp();
        trace_start(directory.c_str(), 0, -1);
        device_reset();
    }
    void TearDown() override {
        device_reset();
        TraceTest::TearDown();
    }

    static device_action action_of(const std::string &function) {
        int id = 0;
        while (id < HOOK_COUNT && function != hook_table[id].name)
            id++;
        EXPECT_LT(id, HOOK_COUNT) << function;
        return effect_of(static_cast<hook_id>(id))->action;
    }
    static void call(const char *function, uint64_t begin_ns, uint64_t end_ns,
                     device_result result = DEVICE_DONE, uint64_t handle = 0, int device = 0) {
        device_call_begin(function, device, begin_ns);
        device_call_end(action_of(function), result, end_ns, 64, 7, handle);
    }
    /* An enqueued kernel, without which nobody waits for a device. */
    static void enqueue(uint64_t now_ns) { call("cudaLaunchKernel", now_ns, now_ns + 1000); }

    live_device look(uint64_t now_ns) {
        device_update(now_ns);
        auto names = files(LIVE_SUFFIX);
        if (names.empty())
            return {};
        auto live = std::make_unique<live_file>();
        int fd = open(path(names[0]).c_str(), O_RDONLY | O_CLOEXEC);
        EXPECT_TRUE(live_read(fd, live.get()));
        close(fd);
        return live->device;
    }
};

TEST_F(DeviceTest, ACallThatDoesNotReturnIsAWait) {
    device_call_begin("cudaDeviceSynchronize", 3, 1 * second);
    EXPECT_EQ(look(9 * second).begin_ns, 0u) << "nothing is enqueued";
    device_call_end(DEVICE_WAIT, DEVICE_DONE, 9 * second, 0, 0, 0);
    enqueue(10 * second);
    EXPECT_TRUE(files(LIVE_SUFFIX).empty()) << "nobody waits: no file";
    device_call_begin("cudaStreamSynchronize", 3, 11 * second);
    EXPECT_EQ(look(11 * second + 1000).begin_ns, 0u) << "not yet";
    live_device found = look(20 * second);
    EXPECT_EQ(found.begin_ns, 11 * second);
    EXPECT_EQ(found.device, 3);
    EXPECT_STREQ(found.call, "cudaStreamSynchronize");
    EXPECT_STREQ(found.enqueued, "cudaLaunchKernel");
    EXPECT_EQ(found.enqueued_bytes, 64u);
    EXPECT_EQ(found.stream, 7u);
    device_call_end(DEVICE_WAIT, DEVICE_DONE, 21 * second, 0, 0, 0);
    found = look(21 * second);
    EXPECT_EQ(found.begin_ns, 0u);
    EXPECT_EQ(found.progress_ns, 21 * second) << "it waited, and came back";
    call("cudaStreamSynchronize", 22 * second, 22 * second + 1000);
    EXPECT_EQ(look(22 * second).progress_ns, 21 * second) << "there was nothing to wait for";
    call("cudaStreamSynchronize", 23 * second, 24 * second, DEVICE_FAILED);
    EXPECT_EQ(look(24 * second).progress_ns, 21 * second);
}

TEST_F(DeviceTest, AnEventThatIsAskedForIsAWait) {
    enqueue(1 * second);
    call("cudaEventRecord", 1 * second, 1 * second, DEVICE_DONE, 0x1000, 2);
    for (uint64_t at = 2; at < 9; at++)
        call("cudaEventQuery", at * second, at * second, DEVICE_NOT_READY, 0x1000);
    live_device found = look(9 * second);
    EXPECT_EQ(found.begin_ns, 2 * second);
    EXPECT_STREQ(found.call, "cudaEventQuery");
    EXPECT_EQ(found.device, 2) << "where it was recorded";
    EXPECT_EQ(look(30 * second).begin_ns, 0u) << "nobody asks any more";
    call("cudaEventQuery", 31 * second, 31 * second, DEVICE_NOT_READY, 0x1000);
    EXPECT_EQ(look(31 * second).begin_ns, 31 * second);
    call("cudaEventRecord", 32 * second, 32 * second, DEVICE_DONE, 0x1000, 2);
    EXPECT_EQ(look(32 * second).begin_ns, 0u) << "it means something else now";
    EXPECT_EQ(look(32 * second).progress_ns, 0u);
    call("cudaEventQuery", 33 * second, 33 * second, DEVICE_DONE, 0x1000);
    EXPECT_EQ(look(33 * second).progress_ns, 33 * second);
    call("cudaEventQuery", 34 * second, 34 * second, DEVICE_DONE, 0x1000);
    EXPECT_EQ(look(34 * second).progress_ns, 33 * second) << "that was known";
    call("cudaEventQuery", 35 * second, 35 * second, DEVICE_NOT_READY, 0x2000);
    call("cudaEventDestroy", 35 * second, 35 * second, DEVICE_DONE, 0x2000);
    EXPECT_EQ(look(35 * second).begin_ns, 0u);
    EXPECT_EQ(look(35 * second).progress_ns, 33 * second);
}

TEST_F(DeviceTest, ManyEventsThatNobodyAsksFor) {
    enqueue(1 * second);
    call("cudaEventRecord", 1 * second, 1 * second, DEVICE_DONE, 0x1000);
    for (uint64_t at = 2; at < 9; at++) {
        call("cudaEventQuery", at * second, at * second, DEVICE_NOT_READY, 0x1000);
        for (uint64_t event = 0; event < 40; event++)
            call("cudaEventRecord", at * second, at * second, DEVICE_DONE, 0x100000 * at + 64 * event);
    }
    EXPECT_EQ(look(9 * second).begin_ns, 2 * second);
}

TEST_F(DeviceTest, ThreadsThatEndLeaveTheirPlaces) {
    enqueue(1 * second);
    for (int i = 0; i < 200; i++)
        std::thread([] {
            device_call_begin("cudaStreamSynchronize", 0, 1 * second);
        }).join(); /* ended within */
    EXPECT_EQ(look(9 * second).begin_ns, 0u);
    std::thread([this] {
        device_call_begin("cudaMemcpy", 1, 8 * second);
        EXPECT_EQ(look(9 * second).begin_ns, 8 * second);
        EXPECT_STREQ(look(9 * second).call, "cudaMemcpy");
        device_call_end(DEVICE_ENQUEUE, DEVICE_DONE, 9 * second, 0, 0, 0);
    }).join();
    EXPECT_EQ(look(9 * second).begin_ns, 0u);
}

TEST_F(DeviceTest, AForkedChildWaitsForNothing) {
    enqueue(1 * second);
    device_call_begin("cudaDeviceSynchronize", 0, 2 * second);
    run_child([] {
        trace_fork_child();
        device_update(9 * second);
    });
    EXPECT_TRUE(files(LIVE_SUFFIX).empty());
    EXPECT_EQ(look(9 * second).begin_ns, 2 * second);
}

} // namespace
