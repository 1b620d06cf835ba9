// A random script of the store's property test: what each rank does, and what each must see afterwards.
//
// All ranks draw the same operations from the seed, and each computes what every rank does; so a rank knows without a
// message what it must see. How long a rank dawdles is its own affair.
#ifndef CASTOR_TESTS_UNIT_SUPPORT_STORE_SCRIPT_H
#define CASTOR_TESTS_UNIT_SUPPORT_STORE_SCRIPT_H

#include <deque>
#include <memory>
#include "store_ranks.h"

namespace store_test {

using Values = std::vector<float>;

inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// The kernels round each product and each sum for itself.
inline float times(float a, float b) {
    volatile float product = a * b;
    return product;
}
inline float plus(float a, float b) {
    volatile float sum = a + b;
    return sum;
}

enum class GradKind { NONE, WINDOW, OWN };

// p.grad as one rank sees it.
struct Grad {
    GradKind kind = GradKind::NONE;
    Values values;
    bool untouched = false; // a window that shows the newest sum as it is
};

struct Parameter {
    size_t numel;
    bool shared;
    int owner;
    Values stored;            // what the store holds
    std::vector<Values> seen; // by rank
    std::vector<Grad> grad;   // by rank
    Values sum;               // of the last backward
    bool kept = false;        // the next backward may go on from it
    // This rank's.
    Param<> p;
    castor_window *window = nullptr;
    float *window_address = nullptr;
    Values own; // p.grad where it is no window
};

// What the script keeps although it is no parameter's any more: old gradients, replaced p.data, forgotten parameters.
struct Kept {
    const float *address;
    Values values;
    castor_window *window; // NULL: a block
};

class Script {
  public:
    Script(Rank &r, uint64_t seed, bool killing) : r(r), seed(seed), killing(killing) {}

    // Ends at the first error of the store, which is expected only where a rank is killed.
    void run(int operations);

    int failed_status() const { return status; }
    int operation() const { return op; }

  private:
    Rank &r;
    const uint64_t seed;
    const bool killing;
    int op = 0;
    std::string name = "adopt";
    int status = CASTOR_OK;
    std::vector<std::unique_ptr<Parameter>> parameters;
    std::deque<Kept> kept;
    std::vector<pid_t> children;
    int child_flag = 8;

    // The same on every rank.
    uint64_t draw(uint64_t salt, uint64_t rank = 77, uint64_t parameter = 77) const {
        return mix(seed ^ mix(uint64_t(op) * 1000003 + salt) ^ mix(rank * 131 + 7) ^
                   mix(parameter * 8191 + 3));
    }
    bool chance(double probability, uint64_t salt, uint64_t rank = 77, uint64_t parameter = 77) const {
        return double(draw(salt, rank, parameter) % 10000) < probability * 10000;
    }
    float value(uint64_t salt, uint64_t rank, uint64_t parameter, size_t i) const {
        uint64_t bits = draw(salt, rank, parameter) + i * 0x9e3779b97f4a7c15;
        return float(int64_t((bits >> 20) % 20001) - 10000) / 4096.0f;
    }

    bool good() const { return status == CASTOR_OK && !testing::Test::HasFailure(); }

    // Records the status of a call on every rank.
    bool call(int got, const char *what);
    std::string where() const;
    void dawdle() const;

    // What this rank sees against what it must see.
    void compare();
    void expect_equal(const float *found, const Values &expected, const std::string &what);
    void let_go();
    void window_return(castor_window *w);

    struct Operation {
        uint64_t below;
        const char *name;
        void (Script::*run)();
    };
    static const Operation table[];

    // Gradients and steps (store_script_gradients.cc).
    void backward();
    // What rank `rank` adds to the sum of parameter i; false: nothing. `carry`: to the last sum.
    bool contribution(size_t i, int rank, bool used, bool carry, Values &out) const;
    // p.grad of parameter i after a backward, on every rank in the model and on this one in truth.
    void show(size_t i, bool any, bool carried);
    float *grad_address(Parameter &q) {
        return q.grad[size_t(r.rank)].kind == GradKind::OWN ? q.own.data() : q.window_address;
    }
    // What a rank comes to an operation on all gradients with.
    struct Offer {
        uint64_t key;
        bool able;
    };
    Offer offer_of(int rank) const;
    void clip();
    void edit_gradients();
    // p.grad = None, or kept in a list.
    void drop_gradients();
    void drop_gradient(Parameter &q, int rank, bool keep);
    static float stepped(float p, float g) { return plus(p, times(g, -0.125f)); }
    void step();
    void step_replicated();
    // Every rank for itself, in its own view.
    void step_private(Parameter &q);

    // Parameters.
    void adopt_some();
    void adopt(size_t count);
    size_t size_draw(uint64_t salt) const;
    void edit_parameters();
    // p.data is another block; what kept the old one keeps its values.
    void replace();
    void forget();
    void release();
    // The script drops a parameter on every rank, or takes it out of the store; its bytes it may still keep.
    void drop_parameter(bool release);

    // Processes.
    // A child sees everything as it was at the fork, whatever its parents do meanwhile.
    void fork_child();
    void end();
    void forget_last();
};

} // namespace store_test
#endif
