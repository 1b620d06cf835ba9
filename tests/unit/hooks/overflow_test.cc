/* Host memory for allocations that have no room. The hooks' own functions that it asks are the test's. Each test is a process. */
#include "tests/unit/trace/fixture.h"

extern "C" {
#include "job/options.h"
#include "device/devices.h"
#include "hooks/cuda/capture.h"
#include "hooks/cuda/overflow.h"
#include "hooks/cuda/observe.h"
#include "shims/cuda/types.h"
}
#include "tests/support/fake_device.h"

namespace {

constexpr size_t UNIT = 65536;
bool capturing;
int real_frees, real_releases, real_status;
cudaError_t (*replaced_free)(void *);
CUresult (*replaced_release)(CUmemGenericAllocationHandle_v1);
device_driver driver;

cudaError_t real_free(void *) {
    real_frees++;
    return cudaSuccess;
}

CUresult real_release(CUmemGenericAllocationHandle_v1 handle) {
    real_releases++;
    if (real_status == 0)
        driver.release(driver.context, handle);
    return (CUresult)real_status;
}

} // namespace

extern "C" {
bool capture_runs(void) {
    return capturing;
}
void *hooks_find(hook_id id) {
    return id == HOOK_cudaFree ? (void *)real_free : (void *)real_release;
}
void *observe_target_replace(hook_id id, void *replacement) {
    if (id == HOOK_cudaFree)
        replaced_free = (cudaError_t(*)(void *))replacement;
    if (id == HOOK_cuMemRelease)
        replaced_release = (CUresult(*)(CUmemGenericAllocationHandle_v1))replacement;
    return nullptr;
}
}

namespace {

class Overflow : public TraceTest {
  protected:
    void run(const char *option, const std::function<void(fake_device *)> &body) {
        run_child([&] {
            fake_device_settings settings = {UNIT, 64 * UNIT, 64 * UNIT, 1, FAKE_HOST_PAGES};
            fake_device *fake = fake_device_make(&settings, &driver);
            char message[256];
            std::string text = option;
            char *environment[] = {text.data(), nullptr};
            ASSERT_EQ(options_load(environment, message, sizeof message), CASTOR_OK) << message;
            trace_start(directory.c_str(), 1 << 20, 0);
            devices_settings of_device = {
                .reserved_bytes = 1024 * UNIT, .budget_bytes = UINT64_MAX, .placement = {}};
            ASSERT_EQ(devices_start(&driver, 0, &of_device), CASTOR_OK);
            overflow_install();
            body(fake);
            EXPECT_EQ(fake_device_broken(fake), nullptr);
            trace_flush();
        });
    }
    trace_gauge_value gauge(trace_gauge which) const { return read_only_counters()->gauges[which]; }
    void expect_gauges(uint64_t bytes, uint64_t peak_bytes, uint64_t segments) const {
        EXPECT_EQ(gauge(GAUGE_OVERFLOW_BYTES).last, bytes);
        EXPECT_EQ(gauge(GAUGE_OVERFLOW_BYTES).max, peak_bytes);
        EXPECT_EQ(gauge(GAUGE_OVERFLOW_SEGMENTS).last, segments);
    }
};

/* PyTorch frees what it caches after the first failure, and asks for the same again. */
TEST_F(Overflow, TheSecondFailureInARowIsTheLast) {
    run("CASTOR_OVERFLOW=1M", [](fake_device *) {
        EXPECT_FALSE(overflow_is_last(0, 100));
        EXPECT_TRUE(overflow_is_last(0, 100));
        EXPECT_FALSE(overflow_is_last(0, 200));
        EXPECT_FALSE(overflow_is_last(1, 200));
        EXPECT_TRUE(overflow_is_last(1, 200));
        /* The handles that follow one from the host are of the host at once, until the device has room. */
        uint64_t handle;
        EXPECT_TRUE(overflow_create(0, UNIT, &handle));
        EXPECT_TRUE(overflow_is_last(0, UNIT));
        overflow_not_needed();
        EXPECT_FALSE(overflow_is_last(0, UNIT));
        overflow_not_needed(); /* a failure alone was not served */
        EXPECT_TRUE(overflow_is_last(0, UNIT));
    });
}

TEST_F(Overflow, WithoutTheOptionAndDuringACaptureItFails) {
    run("CASTOR_OVERFLOW=0", [](fake_device *fake) {
        void *made;
        EXPECT_FALSE(overflow_allocate(0, 100, &made));
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_HOST), 0u);
    });
    run("CASTOR_OVERFLOW=1M", [](fake_device *fake) {
        void *made;
        uint64_t handle;
        EXPECT_FALSE(overflow_allocate(1, 100, &made)) << "a device without homes";
        capturing = true;
        EXPECT_FALSE(overflow_allocate(0, 100, &made));
        EXPECT_FALSE(overflow_create(0, UNIT, &handle));
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_HOST), 0u);
    });
}

TEST_F(Overflow, HostMemoryUnderAnAddressUntilItIsFreed) {
    run("CASTOR_OVERFLOW=1M", [](fake_device *fake) {
        void *a, *b, *c;
        ASSERT_TRUE(overflow_allocate(0, 2 * UNIT + 1, &a));
        ASSERT_TRUE(overflow_allocate(0, UNIT, &b));
        EXPECT_EQ(fake_device_tier(fake, (uintptr_t)a, 3 * UNIT), DEVICE_TIER_HOST);
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_HOST), 4 * UNIT);
        memset(a, 1, 2 * UNIT + 1);
        EXPECT_EQ(replaced_free(nullptr), cudaSuccess);
        EXPECT_EQ(replaced_free((char *)a + UNIT), cudaSuccess);
        EXPECT_EQ(real_frees, 2) << "what is none of its own";
        EXPECT_EQ(replaced_free(a), cudaSuccess);
        EXPECT_EQ(real_frees, 2);
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_HOST), UNIT);
        EXPECT_EQ(fake_device_maps(fake), 1u);
        ASSERT_TRUE(overflow_allocate(0, UNIT, &c));
        EXPECT_EQ(replaced_free(b), cudaSuccess);
    });
    expect_gauges(UNIT, 4 * UNIT, 1);
}

TEST_F(Overflow, HandlesAreTheirOwnersToMap) {
    run("CASTOR_OVERFLOW=1M", [](fake_device *fake) {
        uint64_t a, b;
        EXPECT_FALSE(overflow_create(0, UNIT + 1, &a)) << "no whole units";
        ASSERT_TRUE(overflow_create(0, 2 * UNIT, &a));
        ASSERT_TRUE(overflow_create(0, UNIT, &b));
        EXPECT_NE(a, b);
        EXPECT_EQ(fake_device_maps(fake), 0u);
        real_status = 1; /* it stays */
        EXPECT_EQ(replaced_release(a), 1);
        real_status = 0;
        EXPECT_EQ(replaced_release(b), CUDA_SUCCESS);
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_HOST), 2 * UNIT);
        EXPECT_EQ(real_releases, 2);
    });
    expect_gauges(2 * UNIT, 3 * UNIT, 1);
}

TEST_F(Overflow, NoMoreThanTheOptionAndTheHostHave) {
    run("CASTOR_OVERFLOW=256K", [](fake_device *fake) {
        void *a, *b;
        EXPECT_FALSE(overflow_allocate(0, 5 * UNIT, &a));
        ASSERT_TRUE(overflow_allocate(0, 3 * UNIT, &a));
        EXPECT_FALSE(overflow_allocate(0, 2 * UNIT, &b));
        ASSERT_TRUE(overflow_allocate(0, UNIT, &b));
        EXPECT_EQ(replaced_free(b), cudaSuccess);
        fake_device_others(fake, 0, 61 * UNIT);
        EXPECT_FALSE(overflow_allocate(0, UNIT, &b));
        fake_device_others(fake, 0, 60 * UNIT);
        EXPECT_TRUE(overflow_allocate(0, UNIT, &b));
    });
    expect_gauges(4 * UNIT, 4 * UNIT, 2);
}

TEST_F(Overflow, AFailureLeavesNothing) {
    run("CASTOR_OVERFLOW=1M", [](fake_device *fake) {
        void *made;
        uint64_t calls = fake_device_calls(fake), failures = 0;
        for (bool done = false; !done; failures++) {
            fake_device_fail(fake, fake_device_calls(fake) + 1 + failures, false);
            done = overflow_allocate(0, UNIT, &made);
            if (!done) {
                EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_HOST), 0u);
                EXPECT_EQ(fake_device_maps(fake), 0u);
            }
        }
        EXPECT_EQ(failures, 4u) << "memory, addresses, a map; then none";
        EXPECT_GT(fake_device_calls(fake), calls);
        fake_device_drain_hangs(fake, true);
        fake_device_fail(fake, 0, false);
        EXPECT_EQ(replaced_free(made), cudaSuccess); /* what may be in use is kept */
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_HOST), UNIT);
        fake_device_drain_hangs(fake, false);
        EXPECT_EQ(replaced_free(made), cudaSuccess);
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_HOST), 0u);
    });
    expect_gauges(0, UNIT, 0);
}

} // namespace
