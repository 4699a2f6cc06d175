// Tests the kernel of one instruction set without Python: value, gradient, diagonal Hessian, Hessian-vector
// product and concordance of random batches against sums in long double. Prints one line for each failure.
//
//     kernel_test            run all cases; the exit status is 1 if any fails, and 77 if the processor lacks
//     the instructions kernel_test CASE N     run one case again
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "../../src/native/pool.hpp"
#include "checks.hpp"

namespace everypair::test {
namespace {

// Bad values are reported wherever they are, in a vector or in the rest of a loop.
template <class S>
void check_rejections() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Case question = draw(0, 1);
    for (const int n : {1, 2, 3, 5, 8, 17, 64, 513, 5000})
        for (int at = 0; at < n; at += n < 20 ? 1 : n / 3 + 1)
            for (int label = 0; label < 6; ++label) {
                Rows rows;
                rows.scores.assign(n, 0.5);
                rows.weights.assign(n, 1.0);
                const Dtype type = static_cast<Dtype>(label);
                const auto expect = [&](const char* what, int status, const Rows& bad,
                                        const std::vector<double>& codes) {
                    const Arrays<S> arrays(bad, codes, type);
                    const int got[] = {evaluate_on<S>(question, arrays.batch, 1).answer.status,
                                       EVERYPAIR_ISA::kernels.concordance(arrays.batch, 1, {}).status};
                    for (const int found : got)
                        if (found != status)
                            fail(std::string(what) + " at row " + std::to_string(at) + " of " +
                                     std::to_string(n) + ", labels " + label_types[label],
                                 "status " + std::to_string(found) + ", expected " + std::to_string(status));
                };
                std::vector<double> codes(n, 0.0);
                expect("no bad value", 0, rows, codes);
                for (const double bad : {nan, inf, -inf}) {
                    Rows with = rows;
                    with.scores[at] = bad;
                    expect("a score that is not finite", bad_scores, with, codes);
                    with = rows;
                    with.weights[at] = bad;
                    expect("a weight that is not finite", bad_weights, with, codes);
                }
                Rows with = rows;
                with.weights[at] = -1;
                expect("a negative weight", bad_weights, with, codes);
                codes[at] = 2;
                expect("a label of 2", bad_labels, rows, codes);
                if (type == Dtype::u8) continue;
                codes[at] = -1;
                expect("labels 0 and -1", n > 1 ? bad_labels : 0, rows, codes);
                if (type != Dtype::f32 && type != Dtype::f64) continue;
                codes[at] = nan;
                expect("a label that is NaN", bad_labels, rows, codes);
            }
}

// Stands in for GOMP_parallel.
void team(void (*body)(void*), void* context, unsigned threads, unsigned) {
    std::vector<std::thread> others;
    for (unsigned t = 1; t < threads; ++t) others.emplace_back(body, context);
    body(context);
    for (std::thread& other : others) other.join();
}

// With EVERYPAIR_KERNEL_TEST_STRIDE=k, one batch in k is tested, for slow emulators.
void check_all() {
    const char* given = std::getenv("EVERYPAIR_KERNEL_TEST_STRIDE");
    const int stride = given ? std::max(1, std::atoi(given)) : 1;
    const auto chosen = [&](int number, std::int64_t n) { return (number + n) % stride == 0; };
    check_rejections<float>();
    check_rejections<double>();
    // With 2^17 rows the kernel uses threads of its own, with 2^15 those of a team that it was given.
    for (const int number : {0, 3, 7 + 1, 7 + 3})
        if (chosen(number, 140'000)) check(number, 140'000);
    borrow_team(team);
    for (int n = 1; n <= 64; ++n)
        for (int number = 0; number < 2 * n_surrogates; ++number)
            if (chosen(number, n)) check(number, n);
    // Around the sizes where the kernel changes its plan, and around multiples of its block lengths.
    for (const int n : {127, 128, 129, 255, 256, 257, 511, 513, 1000, 3499, 3500, 3501, 4095, 4097, 5000})
        for (int number = 0; number < 4 * n_surrogates; ++number)
            if (chosen(number, n)) check(number, n);
    for (const int n : {39'999, 40'000, 45'000})
        for (int number = 0; number < (n < 45'000 ? 1 : 2) * n_surrogates; ++number)
            if (chosen(number, n)) check(number, n);
    for (const int n : {3499, 3500, 3501, 3502, 3503, 4097, 5000, 7000, 20'000})
        for (int number = 0; number < 24; number += 2)
            if (chosen(first_plain + number, n)) check(first_plain + number, n);
    for (const int n : {40'000, 45'001})
        for (int number = 1; number < 24; number += 2)
            if (chosen(first_plain + number, n)) check(first_plain + number, n);
    for (const int n : {1, 2, 3, 7, 31, 32, 33, 64, 65, 130, 300, 1000})
        for (int number = 0; number < (n < 1000 ? 8 : 2) * n_surrogates; ++number)
            if (chosen(number, n)) check_ordered(number, n);
    for (int number = 0; number < 2 * n_surrogates; ++number)
        if (chosen(number, 40'000)) check_ordered(number, 40'000);
    for (const int n : {3501, 20'000, 40'000})
        for (int number = 0; number < 24; number += 2)
            if (chosen(first_plain + number, n)) check_ordered(first_plain + number, n);
    if (!reached.graded) fail("all batches", "no batch of few grades was evaluated by buckets");
    if (!reached.active || !reached.inactive || !reached.on_knot || !reached.tied)
        fail("all batches", "no active pair, no inactive pair, no pair on a knot, or no tie");
}

}  // namespace
}  // namespace everypair::test

int main(int count, char** arguments) {
    using namespace everypair::test;
    if (!runs_here()) return std::printf("%s: this processor cannot run it\n", instruction_set), 77;
    if (count == 3)
        check(std::atoi(arguments[1]), std::atoll(arguments[2])),
            check_ordered(std::atoi(arguments[1]), std::atoll(arguments[2]));
    else
        check_all();
    std::printf("%s: %d failures\n", instruction_set, failures);
    return failures ? 1 : 0;
}
