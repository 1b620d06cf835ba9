// The packing of the CUDA kernels' arguments, on a driver that keeps them, and the arithmetic of one element, against PyTorch's
// operations one after another. What the packed arguments do is computed here as the device does it, block by block.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/convert.h"
#include "kernels/cuda_steps.h"
#include "kernels/cuda/step_math.h"
#include "kernels/optimizer.h"
#include "variants.h"

namespace {

struct Launch {
    std::string kernel;
    unsigned grid, block;
    uint64_t stream;
    cuda_adam adam;
    cuda_sgd sgd;
    cuda_step_list steps;
};

std::vector<Launch> launches;
int load_result, kernel_result, launch_result, loads;
std::vector<std::string> kernel_names;

int library_load(void **library, const void *image, void *, void **, unsigned, void *, void **, unsigned) {
    loads++;
    *library = const_cast<void *>(image);
    return load_result;
}

int library_kernel(void **kernel, void *, const char *name) {
    kernel_names.emplace_back(name);
    *kernel = reinterpret_cast<void *>(kernel_names.size());
    return kernel_result;
}

int launch(void *kernel, unsigned grid, unsigned y, unsigned z, unsigned block, unsigned block_y,
           unsigned block_z, unsigned, void *stream, void **arguments, void **extra) {
    EXPECT_EQ(y * z * block_y * block_z, 1u);
    EXPECT_EQ(extra, nullptr);
    launches.emplace_back();
    Launch &to = launches.back();
    to.kernel = kernel_names[reinterpret_cast<size_t>(kernel) - 1];
    to.grid = grid;
    to.block = block;
    to.stream = reinterpret_cast<uint64_t>(stream);
    to.steps = *static_cast<cuda_step_list *>(arguments[1]);
    if (to.kernel.find("_adam_") != std::string::npos)
        to.adam = *static_cast<cuda_adam *>(arguments[0]);
    else
        to.sgd = *static_cast<cuda_sgd *>(arguments[0]);
    return launch_result;
}

const kernel_cuda_driver driver = {library_load, library_kernel, launch};

// Once for all tests: a driver that refuses the image, one that lacks a kernel, then a good one.
struct Loading {
    int before, refused, lacking, good, again, loads_at_good;
    Loading() {
        kernel_cuda_tensor none = {};
        kernel_cuda_adam adam = {};
        before = kernel_cuda_adam_step(&adam, &none, 1, 0);
        load_result = 209;
        refused = kernel_cuda_load(&driver);
        load_result = 0;
        kernel_result = 500;
        lacking = kernel_cuda_load(&driver);
        kernel_result = 0;
        kernel_names.clear();
        good = kernel_cuda_load(&driver);
        loads_at_good = loads;
        again = kernel_cuda_load(&driver);
    }
};

class Cuda : public ::testing::Test {
  protected:
    static const Loading &loading() {
        static const Loading once;
        return once;
    }
    void SetUp() override {
        if (loading().good == KERNEL_CUDA_ABSENT)
            FAIL() << "built without nvcc, which `make setup-tests` installs";
        launches.clear();
        launch_result = 0;
    }
};

TEST_F(Cuda, LoadsOnceAndTriesAgainAfterAFailure) {
    EXPECT_EQ(loading().before, KERNEL_CUDA_NOT_LOADED);
    EXPECT_EQ(loading().refused, 209);
    EXPECT_EQ(loading().lacking, 500);
    EXPECT_EQ(loading().good, KERNEL_CUDA_OK);
    EXPECT_EQ(loading().again, KERNEL_CUDA_OK);
    EXPECT_EQ(loads, loading().loads_at_good);
    EXPECT_EQ(kernel_names.size(), 8u);
}

// ---- what a launch does, block by block

struct Tensors {
    std::vector<std::vector<float>> param, grad, mean, square, largest, working;
    explicit Tensors(const std::vector<size_t> &sizes, unsigned seed = 1) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        for (size_t size : sizes) {
            for (auto *kind : {&param, &grad, &mean, &square, &largest, &working}) {
                kind->emplace_back(size);
                for (float &x : kind->back())
                    x = kind == &square || kind == &largest ? std::fabs(normal(random)) * 0.01f
                                                            : normal(random);
            }
        }
    }
    std::vector<kernel_cuda_tensor> rows() {
        std::vector<kernel_cuda_tensor> out(param.size());
        for (size_t i = 0; i < out.size(); i++) {
            out[i] = {};
            out[i].param = param[i].data();
            out[i].grad = grad[i].data();
            out[i].states[0] = mean[i].data();
            out[i].states[1] = square[i].data();
            out[i].states[2] = largest[i].data();
            out[i].numel = param[i].size();
            out[i].root_divisor = std::sqrt(1 - std::pow(0.999, 3.0 + double(i)));
            out[i].negative_step = -(1e-3 / (1 - std::pow(0.9, 3.0 + double(i))));
        }
        return out;
    }
};

// Runs what was launched; returns how often each tensor's elements were stepped, all the same number or -1.
template <typename Step> void run_steps(const Launch &of, const Step &step) {
    for (unsigned block = 0; block < of.grid; block++) {
        uint32_t at = cuda_tensor_of(of.steps.first, of.steps.count, block);
        const cuda_step_tensor &tensor = of.steps.tensors[at];
        ASSERT_GE(block, of.steps.first[at]);
        ASSERT_LT(block, of.steps.first[at + 1]);
        uint64_t begin = uint64_t(block - of.steps.first[at]) * CUDA_CHUNK;
        ASSERT_LT(begin, tensor.numel);
        for (uint64_t i = begin; i < tensor.numel && i < begin + CUDA_CHUNK; i++)
            step(tensor, i);
    }
}

float *floats(void *p) {
    return static_cast<float *>(p);
}

void run_adam(const Launch &of) {
    run_steps(of, [&of](const cuda_step_tensor &tensor, uint64_t i) {
        cuda_adam_numbers use = cuda_adam_prepare(&of.adam, &tensor);
        float stored;
        floats(tensor.param)[i] = cuda_adam_element(
            &use, floats(tensor.param)[i], floats(tensor.grad)[i], &floats(tensor.states[0])[i],
            &floats(tensor.states[1])[i], &floats(tensor.states[2])[i], &stored);
        if (use.step.divided)
            floats(tensor.grad)[i] = stored;
        if (tensor.working)
            floats(tensor.working)[i] = floats(tensor.param)[i];
    });
}

void run_sgd(const Launch &of) {
    run_steps(of, [&of](const cuda_step_tensor &tensor, uint64_t i) {
        cuda_sgd_numbers use = cuda_sgd_prepare(&of.sgd);
        float stored, none = 0;
        float *moment = use.moving ? &floats(tensor.states[0])[i] : &none;
        floats(tensor.param)[i] =
            cuda_sgd_element(&use, floats(tensor.param)[i], floats(tensor.grad)[i], moment, &stored);
        if (use.step.divided)
            floats(tensor.grad)[i] = stored;
    });
}

// ---- PyTorch's operations on CUDA, one array after another

typedef std::vector<float> Array;

void each(Array &a, const std::function<float(size_t)> &f) {
    for (size_t i = 0; i < a.size(); i++)
        a[i] = f(i);
}
void torch_mul(Array &a, double by) {
    each(a, [&](size_t i) { return a[i] * float(by); });
}
void torch_add(Array &a, const Array &b, double alpha) {
    each(a, [&](size_t i) { return std::fma(b[i], float(alpha), a[i]); });
}
void torch_lerp(Array &a, const Array &to, double weight) {
    float w = float(weight);
    each(a, [&](size_t i) {
        float away = to[i] - a[i];
        return std::fabs(w) < 0.5f ? std::fma(w, away, a[i]) : std::fma(-(1.0f - w), away, to[i]);
    });
}
void torch_addcmul(Array &a, const Array &b, const Array &c, double value) {
    each(a, [&](size_t i) {
        return float(value) == 1.0f ? std::fma(b[i], c[i], a[i]) : std::fma(float(value), b[i] * c[i], a[i]);
    });
}
void torch_addcdiv(Array &a, const Array &b, const Array &c, double value) {
    each(a, [&](size_t i) {
        return float(value) == 1.0f ? a[i] + b[i] / c[i] : std::fma(float(value), b[i] / c[i], a[i]);
    });
}

struct Options {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, weight_decay = 0, epsilon = 1e-8;
    bool decoupled = false, amsgrad = false, maximize = false;
};

// _multi_tensor_adam, or _single_tensor_adam, of one tensor
void torch_adam(const Options &o, bool single, Array &param, Array grad, Array &mean, Array &square,
                Array &largest, double root_divisor, double negative_step) {
    if (o.maximize)
        each(grad, [&](size_t i) { return -grad[i]; });
    if (o.weight_decay != 0 && o.decoupled)
        torch_mul(param, 1 - o.lr * o.weight_decay);
    else if (o.weight_decay != 0)
        torch_add(grad, param, o.weight_decay);
    torch_lerp(mean, grad, 1 - o.beta1);
    torch_mul(square, o.beta2);
    torch_addcmul(square, grad, grad, 1 - o.beta2);
    if (o.amsgrad)
        each(largest, [&](size_t i) { return largest[i] > square[i] ? largest[i] : square[i]; });
    Array root = o.amsgrad ? largest : square;
    each(root, [&](size_t i) { return std::sqrt(root[i]); });
    const float divisor = float(root_divisor), inverse = float(1 / root_divisor); // as measured on a device
    each(root, [&](size_t i) { return single ? root[i] * inverse : root[i] / divisor; });
    each(root, [&](size_t i) { return root[i] + float(o.epsilon); });
    torch_addcdiv(param, mean, root, negative_step);
}

// _fused_adam_, as the functor of its kernel computes an element
void torch_fused_adam(const Options &o, Array &param, Array &grad, Array &mean, Array &square, Array &largest,
                      float count, const float *grad_scale) {
    const float beta1 = float(o.beta1), beta2 = float(o.beta2), lr = float(o.lr),
                decay = float(o.weight_decay);
    const float correction1 = 1 - std::pow(beta1, count), correction2 = std::sqrt(1 - std::pow(beta2, count));
    for (size_t i = 0; i < param.size(); i++) {
        float g = grad_scale ? grad[i] / *grad_scale : grad[i];
        if (grad_scale)
            grad[i] = g;
        g = o.maximize ? -g : g;
        if (decay != 0 && o.decoupled)
            param[i] = std::fma(-(lr * decay), param[i], param[i]);
        else if (decay != 0)
            g = std::fma(param[i], decay, g);
        mean[i] = std::fma(beta1, mean[i], std::fma(-beta1, g, g));
        square[i] = std::fma(beta2, square[i], std::fma(-beta2, g * g, g * g));
        if (o.amsgrad)
            largest[i] = std::max(largest[i], square[i]);
        float under = std::sqrt(o.amsgrad ? largest[i] : square[i]) / correction2 + float(o.epsilon);
        param[i] -= lr / correction1 * mean[i] / under;
    }
}

kernel_cuda_adam adam_of(const Options &o, int mode) {
    kernel_cuda_adam adam = {};
    adam.step.dtype = adam.step.grad_dtype = adam.step.working_dtype = KERNEL_F32;
    adam.step.mode = mode;
    adam.step.decay_kind = o.weight_decay == 0 ? KERNEL_DECAY_NONE
                           : o.decoupled       ? KERNEL_DECAY_DECOUPLED
                                               : KERNEL_DECAY_COUPLED;
    adam.step.maximize = o.maximize;
    adam.step.variation = o.amsgrad;
    adam.step.lr = o.lr;
    adam.step.weight_decay = o.weight_decay;
    adam.step.inv_scale = adam.step.clip = 1;
    adam.beta1 = o.beta1;
    adam.beta2 = o.beta2;
    adam.epsilon = o.epsilon;
    return adam;
}

const std::vector<size_t> all_sizes = {1, 7, 0, 257};

std::vector<Options> all_options() {
    std::vector<Options> out;
    for (int i = 0; i < 16; i++) {
        Options o;
        o.amsgrad = i & 1;
        o.maximize = i & 2;
        o.decoupled = i & 4;
        o.weight_decay = i & 8 ? 0.037 : 0;
        out.push_back(o);
    }
    out.emplace_back().beta1 = 0.3; // lerp from the other end
    out.emplace_back().beta2 = 0;   // addcmul with 1
    return out;
}

void expect_same(const Tensors &a, const Tensors &b) {
    EXPECT_TRUE(a.param == b.param);
    EXPECT_TRUE(a.mean == b.mean);
    EXPECT_TRUE(a.square == b.square);
    EXPECT_TRUE(a.largest == b.largest);
    EXPECT_TRUE(a.grad == b.grad);
}

TEST_F(Cuda, AdamHasTheBitsOfPyTorchsOperations) {
    for (int mode : {KERNEL_CUDA_FOREACH, KERNEL_CUDA_SINGLE}) {
        for (const Options &o : all_options()) {
            Tensors ours(all_sizes), theirs(all_sizes);
            auto rows = ours.rows();
            kernel_cuda_adam adam = adam_of(o, mode);
            launches.clear();
            ASSERT_EQ(kernel_cuda_adam_step(&adam, rows.data(), rows.size(), 77), KERNEL_CUDA_OK);
            ASSERT_EQ(launches.size(), 1u);
            EXPECT_EQ(launches[0].kernel, "castor_adam_f32");
            EXPECT_EQ(launches[0].block, unsigned(CUDA_THREADS));
            EXPECT_EQ(launches[0].stream, 77u);
            run_adam(launches[0]);
            for (size_t i = 0; i < all_sizes.size(); i++)
                torch_adam(o, mode == KERNEL_CUDA_SINGLE, theirs.param[i], theirs.grad[i], theirs.mean[i],
                           theirs.square[i], theirs.largest[i], rows[i].root_divisor, rows[i].negative_step);
            expect_same(ours, theirs);
        }
    }
}

TEST_F(Cuda, FusedAdamHasTheBitsOfPyTorchs) {
    const float counts[] = {1, 10, 0, 54321}, scale = 1536, learning = 0.02f;
    for (const Options &o : all_options()) {
        for (int pointers = 0; pointers < 2; pointers++) {
            Tensors ours(all_sizes), theirs(all_sizes);
            auto rows = ours.rows();
            kernel_cuda_adam adam = adam_of(o, KERNEL_CUDA_FUSED);
            Options used = o;
            if (pointers) {
                adam.step.grad_scale = &scale;
                adam.step.lr_pointer = &learning;
                used.lr = double(learning);
            }
            for (size_t i = 0; i < rows.size(); i++)
                rows[i].step = &counts[i];
            launches.clear();
            ASSERT_EQ(kernel_cuda_adam_step(&adam, rows.data(), rows.size(), 0), KERNEL_CUDA_OK);
            run_adam(launches[0]);
            for (size_t i = 0; i < all_sizes.size(); i++)
                torch_fused_adam(used, theirs.param[i], theirs.grad[i], theirs.mean[i], theirs.square[i],
                                 theirs.largest[i], counts[i], pointers ? &scale : nullptr);
            expect_same(ours, theirs);
        }
    }
}

TEST_F(Cuda, SgdHasTheBitsOfPyTorchsOperations) {
    for (int i = 0; i < 64; i++) {
        const bool fused = i & 1, maximize = i & 2, nesterov = i & 4, first = i & 8;
        const double momentum = i & 16 ? 0.9 : 0, decay = i & 32 ? 0.03 : 0, dampening = nesterov ? 0 : 0.3,
                     lr = 0.1;
        Tensors ours(all_sizes), theirs(all_sizes);
        auto rows = ours.rows();
        kernel_cuda_sgd sgd = {};
        sgd.step = adam_of({}, fused ? KERNEL_CUDA_FUSED : KERNEL_CUDA_FOREACH).step;
        sgd.step.decay_kind = decay ? KERNEL_DECAY_COUPLED : KERNEL_DECAY_NONE;
        sgd.step.weight_decay = decay;
        sgd.step.lr = lr;
        sgd.step.maximize = maximize;
        sgd.step.variation = nesterov;
        sgd.momentum = momentum;
        sgd.dampening = dampening;
        sgd.first = first;
        launches.clear();
        ASSERT_EQ(kernel_cuda_sgd_step(&sgd, rows.data(), rows.size(), 0), KERNEL_CUDA_OK);
        EXPECT_EQ(launches[0].kernel, "castor_sgd_f32");
        run_sgd(launches[0]);
        for (size_t t = 0; t < all_sizes.size(); t++) {
            Array grad = theirs.grad[t];
            Array &buffer = theirs.mean[t];
            if (maximize)
                torch_mul(grad, -1);
            if (decay)
                torch_add(grad, theirs.param[t], decay);
            if (momentum != 0) {
                if (first) {
                    buffer = grad;
                } else {
                    torch_mul(buffer, momentum);
                    torch_add(buffer, grad, fused ? double(1.0f - float(dampening)) : 1 - dampening);
                }
                if (nesterov)
                    torch_add(grad, buffer, momentum);
                else
                    grad = buffer;
            }
            torch_add(theirs.param[t], grad, -lr);
        }
        expect_same(ours, theirs);
    }
}

TEST_F(Cuda, UnscalesAndClipsInThePass) {
    Options o;
    Tensors ours(all_sizes), theirs(all_sizes);
    auto rows = ours.rows();
    kernel_cuda_adam adam = adam_of(o, KERNEL_CUDA_FOREACH);
    const float clip = 0.3f;
    adam.step.inv_scale = 1.0 / 3;
    adam.step.clip = 7; // the pointer is taken
    adam.step.clip_pointer = &clip;
    ASSERT_EQ(kernel_cuda_adam_step(&adam, rows.data(), rows.size(), 0), KERNEL_CUDA_OK);
    run_adam(launches[0]);
    for (size_t i = 0; i < all_sizes.size(); i++) {
        Array grad = theirs.grad[i];
        torch_mul(grad, 1.0 / 3);
        torch_mul(grad, double(clip));
        torch_adam(o, false, theirs.param[i], grad, theirs.mean[i], theirs.square[i], theirs.largest[i],
                   rows[i].root_divisor, rows[i].negative_step);
    }
    expect_same(ours, theirs);
}

// ---- lists

TEST_F(Cuda, ManyTensorsGoInSeveralLaunches) {
    std::vector<size_t> sizes;
    for (size_t i = 0; i < 3 * CUDA_STEP_TENSORS + 5; i++)
        sizes.push_back(i % 11 == 3 ? 0 : 1 + i * 3);
    const size_t around[] = {CUDA_CHUNK - 1, CUDA_CHUNK, CUDA_CHUNK + 1, 2 * CUDA_CHUNK + 17};
    std::copy(std::begin(around), std::end(around), sizes.begin() + 40);
    Tensors ours(sizes), theirs(sizes);
    auto rows = ours.rows();
    kernel_cuda_adam adam = adam_of({}, KERNEL_CUDA_FOREACH);
    ASSERT_EQ(kernel_cuda_adam_step(&adam, rows.data(), rows.size(), 5), KERNEL_CUDA_OK);
    EXPECT_EQ(launches.size(), 3u); // empty tensors take no place
    uint32_t tensors = 0;
    for (const Launch &of : launches) {
        EXPECT_EQ(of.grid, of.steps.first[of.steps.count]);
        EXPECT_LE(of.steps.count, unsigned(CUDA_STEP_TENSORS));
        tensors += of.steps.count;
        run_adam(of);
    }
    EXPECT_EQ(tensors, std::count_if(sizes.begin(), sizes.end(), [](size_t n) { return n != 0; }));
    for (size_t i = 0; i < sizes.size(); i++)
        torch_adam({}, false, theirs.param[i], theirs.grad[i], theirs.mean[i], theirs.square[i],
                   theirs.largest[i], rows[i].root_divisor, rows[i].negative_step);
    expect_same(ours, theirs);
}

TEST_F(Cuda, NothingIsLaunchedForNothing) {
    Tensors empty(std::vector<size_t>{0, 0});
    auto rows = empty.rows();
    kernel_cuda_adam adam = adam_of({}, KERNEL_CUDA_FOREACH);
    EXPECT_EQ(kernel_cuda_adam_step(&adam, rows.data(), rows.size(), 0), KERNEL_CUDA_OK);
    EXPECT_EQ(kernel_cuda_adam_step(&adam, nullptr, 0, 0), KERNEL_CUDA_OK);
    EXPECT_TRUE(launches.empty());
}

TEST_F(Cuda, AFailedLaunchEndsTheCall) {
    std::vector<size_t> sizes(2 * CUDA_STEP_TENSORS, 10);
    Tensors ours(sizes);
    auto rows = ours.rows();
    kernel_cuda_adam adam = adam_of({}, KERNEL_CUDA_FOREACH);
    launch_result = 719;
    EXPECT_EQ(kernel_cuda_adam_step(&adam, rows.data(), rows.size(), 0), 719);
    EXPECT_EQ(launches.size(), 1u);
}

TEST_F(Cuda, TypesChooseTheKernelOrNone) {
    float none = 0;
    struct Case {
        int dtype, grad, working, mode;
        const char *kernel; // NULL: refused
    };
    const Case cases[] = {
        {KERNEL_F32, KERNEL_F32, -1, KERNEL_CUDA_FOREACH, "castor_adam_f32"},
        {KERNEL_F32, KERNEL_F32, KERNEL_BF16, KERNEL_CUDA_FOREACH, "castor_adam_mixed"},
        {KERNEL_F32, KERNEL_BF16, -1, KERNEL_CUDA_SINGLE, "castor_adam_mixed"},
        {KERNEL_F32, KERNEL_F16, KERNEL_F16, KERNEL_CUDA_FUSED, "castor_adam_mixed"},
        {KERNEL_BF16, KERNEL_BF16, -1, KERNEL_CUDA_FUSED, "castor_adam_bf16"},
        {KERNEL_F16, KERNEL_F16, -1, KERNEL_CUDA_FUSED, "castor_adam_f16"},
        {KERNEL_BF16, KERNEL_BF16, -1, KERNEL_CUDA_FOREACH, nullptr}, // PyTorch rounds after each operation
        {KERNEL_BF16, KERNEL_F32, -1, KERNEL_CUDA_FUSED, nullptr},
        {KERNEL_BF16, KERNEL_BF16, KERNEL_BF16, KERNEL_CUDA_FUSED, nullptr},
        {KERNEL_F64, KERNEL_F64, -1, KERNEL_CUDA_FUSED, nullptr},
        {KERNEL_F32, KERNEL_F32, KERNEL_F64, KERNEL_CUDA_FOREACH, nullptr},
        {KERNEL_F32, KERNEL_F32, -1, 3, nullptr},
    };
    for (const Case &c : cases) {
        Tensors ours(std::vector<size_t>{5});
        auto rows = ours.rows();
        rows[0].step = &none;
        rows[0].working = c.working >= 0 ? &none : nullptr;
        kernel_cuda_adam adam = adam_of({}, c.mode);
        adam.step.dtype = c.dtype;
        adam.step.grad_dtype = c.grad;
        adam.step.working_dtype = c.working;
        launches.clear();
        EXPECT_EQ(kernel_cuda_adam_step(&adam, rows.data(), 1, 0),
                  c.kernel ? KERNEL_CUDA_OK : KERNEL_CUDA_UNKNOWN);
        ASSERT_EQ(launches.size(), c.kernel ? 1u : 0u);
        if (c.kernel) {
            EXPECT_EQ(launches[0].kernel, c.kernel);
        }
    }
}

TEST_F(Cuda, OnlyFusedStepsHaveAScaleAndALearningRateOnTheDevice) {
    const float one = 1;
    Tensors ours(std::vector<size_t>{5});
    auto rows = ours.rows();
    for (int which = 0; which < 2; which++) {
        kernel_cuda_adam adam = adam_of({}, KERNEL_CUDA_FOREACH);
        (which ? adam.step.grad_scale : adam.step.lr_pointer) = &one;
        EXPECT_EQ(kernel_cuda_adam_step(&adam, rows.data(), 1, 0), KERNEL_CUDA_UNKNOWN);
    }
    kernel_cuda_sgd sgd = {};
    sgd.step = adam_of({}, KERNEL_CUDA_FOREACH).step;
    sgd.step.decay_kind = KERNEL_DECAY_DECOUPLED;
    EXPECT_EQ(kernel_cuda_sgd_step(&sgd, rows.data(), 1, 0), KERNEL_CUDA_UNKNOWN);
    EXPECT_TRUE(launches.empty());
}

// ---- the same on the processors

class OnHost : public EachVariant {};
EACH_VARIANT(OnHost);

float any_or_usual(std::mt19937 &random) {
    if (random() % 8)
        return std::normal_distribution<float>()(random) * std::ldexp(1.0f, -int(random() % 24));
    const uint32_t bits = uint32_t(random());
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return std::isnan(value) ? 0.0f : value;
}

bool are_same(float a, float b) {
    return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

constexpr size_t count = 1029;

Tensors drawn(std::mt19937 &random) {
    Tensors found({count}, unsigned(random()));
    for (auto *each : {&found.param[0], &found.grad[0], &found.mean[0]})
        for (float &value : *each)
            value = any_or_usual(random);
    return found;
}

// SGD's state is the first one; the others are not its own.
kernel_range range_of(Tensors &of) {
    return {of.param[0].data(),
            of.grad[0].data(),
            nullptr,
            {of.mean[0].data(), of.square[0].data(), of.largest[0].data()},
            0,
            count,
            count};
}

// The kernels for the CPU with the rounding of CUDA's give the bits of one element as the device computes it.
TEST_P(OnHost, AdamHasTheBitsOfTheDevice) {
    std::mt19937 random(7);
    for (int round = 0; round < 200; round++) {
        const int form = int(random() % 3);
        const bool single = form == CUDA_SINGLE, fused = form == CUDA_FUSED;
        const bool amsgrad = random() % 2, maximize = random() % 2;
        const double beta1 = random() % 3 ? 0.9 : 0.3, beta2 = random() % 4 ? 0.999 : 0.0;
        const double divisor = std::sqrt(1 - std::pow(beta2, 1 + random() % 50)),
                     lr = random() % 4 ? 1e-3 : 1.0;
        const auto kind = kernel_decay(random() % KERNEL_DECAY_COUNT);
        double decay = kind == KERNEL_DECAY_NONE ? 0 : 0.01;
        if (kind == KERNEL_DECAY_DECOUPLED)
            decay = fused ? double(float(lr)) * double(0.01f) : 1 - lr * 0.01;
        Tensors mine = drawn(random), theirs = mine;

        kernel_adam step = {};
        step.step.decay_kind = kind;
        step.step.decay = decay;
        step.step.inv_scale = step.step.clip = 1;
        step.step.maximize = maximize;
        step.step.variation = amsgrad;
        step.step.rounding = single  ? KERNEL_ROUNDS_AS_CUDA_SINGLE
                             : fused ? KERNEL_ROUNDS_AS_CUDA_FUSED
                                     : KERNEL_ROUNDS_AS_CUDA;
        step.mean_weight = fused ? beta1 : 1 - beta1;
        step.square_keep = beta2;
        step.square_weight = 1 - beta2;
        step.root_divisor = single ? 1 / divisor : divisor;
        step.epsilon = 1e-8;
        step.negative_step = -lr;
        const kernel_range range = range_of(mine);
        cuda_adam packed = {};
        packed.step.mode = form;
        packed.step.decay_kind = kind;
        packed.step.decay = float(decay);
        packed.step.lr = lr;
        packed.step.weight_decay = kind == KERNEL_DECAY_NONE ? 0 : 0.01;
        packed.step.inv_scale = packed.step.clip = 1;
        packed.step.maximize = maximize;
        packed.step.variation = amsgrad;
        packed.beta1 = beta1;
        packed.beta2 = beta2;
        packed.epsilon = 1e-8;
        cuda_step_tensor tensor = {};
        tensor.root_scale = float(single ? 1 / divisor : divisor);
        tensor.negative_step = float(-lr);
        const float steps = float(1 + random() % 50);
        tensor.step = &steps;
        const cuda_adam_numbers use = cuda_adam_prepare(&packed, &tensor);
        if (fused) { // as the device has them
            step.root_divisor = use.root_scale;
            step.negative_step = -use.step_size;
        }
        kernel_adam_step(&step, &range, 1, nullptr);
        for (size_t i = 0; i < count; i++) {
            float stored;
            const float param =
                cuda_adam_element(&use, theirs.param[0][i], theirs.grad[0][i], &theirs.mean[0][i],
                                  &theirs.square[0][i], &theirs.largest[0][i], &stored);
            ASSERT_TRUE(are_same(mine.param[0][i], param))
                << round << ": " << mine.param[0][i] << ", not " << param;
            ASSERT_TRUE(are_same(mine.mean[0][i], theirs.mean[0][i]));
            ASSERT_TRUE(are_same(mine.square[0][i], theirs.square[0][i]));
            ASSERT_TRUE(are_same(mine.largest[0][i], theirs.largest[0][i]));
        }
    }
}

TEST_P(OnHost, SgdHasTheBitsOfTheDevice) {
    std::mt19937 random(8);
    for (int round = 0; round < 200; round++) {
        const double momentum = random() % 3 ? 0.9 : 0.0, dampening = random() % 2 ? 0.1 : 0.0, lr = 0.01;
        const bool first = random() % 4 == 0, nesterov = random() % 2, decays = random() % 2,
                   maximize = random() % 2;
        Tensors mine = drawn(random), theirs = mine;

        kernel_sgd step = {};
        step.step.decay_kind = decays ? KERNEL_DECAY_COUPLED : KERNEL_DECAY_NONE;
        step.step.decay = 0.01;
        step.step.inv_scale = step.step.clip = 1;
        step.step.maximize = maximize;
        step.step.variation = nesterov;
        step.step.rounding = round % 2 ? KERNEL_ROUNDS_AS_CUDA_SINGLE : KERNEL_ROUNDS_AS_CUDA;
        step.momentum = momentum;
        step.grad_weight = 1 - dampening;
        step.negative_lr = -lr;
        step.first = first;
        const kernel_range range = range_of(mine);
        kernel_sgd_step(&step, &range, 1, nullptr);

        cuda_sgd packed = {};
        packed.step.decay_kind = decays ? CUDA_COUPLED : CUDA_NO_DECAY;
        packed.step.decay = 0.01f;
        packed.step.inv_scale = packed.step.clip = 1;
        packed.step.lr = lr;
        packed.step.maximize = maximize;
        packed.step.variation = nesterov;
        packed.momentum = momentum;
        packed.dampening = dampening;
        packed.first = first;
        const cuda_sgd_numbers use = cuda_sgd_prepare(&packed);
        for (size_t i = 0; i < count; i++) {
            float stored;
            const float param =
                cuda_sgd_element(&use, theirs.param[0][i], theirs.grad[0][i], &theirs.mean[0][i], &stored);
            ASSERT_TRUE(are_same(mine.param[0][i], param)) << round;
            ASSERT_TRUE(are_same(mine.mean[0][i], theirs.mean[0][i])) << round;
        }
    }
}

uint16_t narrow(kernel_dtype dtype, float value) {
    return dtype == KERNEL_BF16 ? kernel_bf16_of_float(value) : kernel_f16_of_float(value);
}

float widened(kernel_dtype dtype, uint16_t value) {
    return dtype == KERNEL_BF16 ? kernel_float_of_bf16(value) : kernel_float_of_f16(value);
}

// A parameter of 16 bits with a master has the bits of the float step with the gradient widened, and the rounded master.
TEST_P(OnHost, MastersAreSteppedAsFloats) {
    std::mt19937 random(9);
    for (int round = 0; round < 100; round++) {
        const auto dtype = random() % 2 ? KERNEL_BF16 : KERNEL_F16;
        const bool is_adam = random() % 3, narrow_grad = random() % 2;
        Tensors wide = drawn(random);
        std::vector<uint16_t> param(count), grad(count);
        for (size_t i = 0; i < count; i++) {
            grad[i] = narrow(dtype, wide.grad[0][i]);
            if (narrow_grad)
                wide.grad[0][i] = widened(dtype, grad[i]);
        }
        Tensors mine = wide;
        kernel_adam adam = {{}, 0.1, 0.999, 0.001, 0.3, 1e-8, -0.01};
        kernel_sgd sgd = {{}, 0.9, 0.7, -0.1, 0, 0};
        kernel_step &step = is_adam ? adam.step : sgd.step;
        step.rounding = KERNEL_ROUNDS_AS_CUDA + int(random() % 3);
        step.decay_kind = int(random() % 2);
        step.decay = 0.01;
        step.inv_scale = step.clip = 1;
        step.variation = random() % 2;
        kernel_range range = range_of(wide), with_master = range_of(mine);
        auto run = [&](const kernel_range &of) {
            is_adam ? kernel_adam_step(&adam, &of, 1, nullptr) : kernel_sgd_step(&sgd, &of, 1, nullptr);
        };
        run(range);
        step.param_dtype = dtype;
        step.grad_dtype = narrow_grad ? dtype : KERNEL_F32;
        with_master.master = mine.param[0].data();
        with_master.param = param.data();
        if (narrow_grad)
            with_master.grad = grad.data();
        run(with_master);
        for (size_t i = 0; i < count; i++) {
            ASSERT_TRUE(are_same(mine.param[0][i], wide.param[0][i])) << round;
            ASSERT_TRUE(are_same(mine.mean[0][i], wide.mean[0][i])) << round;
            ASSERT_TRUE(are_same(widened(dtype, param[i]), widened(dtype, narrow(dtype, wide.param[0][i]))))
                << round;
        }
    }
}

} // namespace
