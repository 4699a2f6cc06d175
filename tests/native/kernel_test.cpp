// Tests the kernel of one instruction set without Python: value, gradient, diagonal Hessian, Hessian-vector product and
// concordance of random batches against sums in long double. Prints one line for each failure.
//
//     kernel_test            run all cases; the exit status is 1 if any fails, and 77 if the processor lacks the instructions
//     kernel_test CASE N     run one case again
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
#include "batches.hpp"

namespace everypair::EVERYPAIR_ISA {
extern const Kernels kernels;
}  // namespace everypair::EVERYPAIR_ISA

namespace everypair::test {
namespace {

int failures = 0;
bool reached_graded = false;  // whether the plan for few grades was used

void fail(const std::string& where, const std::string& what) {
    ++failures;
    std::printf("FAIL %s: %s\n", where.c_str(), what.c_str());
}

// Labels of one of the six types, as bytes.
std::vector<std::byte> encode(const std::vector<double>& labels, Dtype type) {
    std::vector<std::byte> bytes;
    const auto as = [&](auto zero) {
        bytes.resize(labels.size() * sizeof zero);
        for (std::size_t i = 0; i < labels.size(); ++i) {
            const auto label = static_cast<decltype(zero)>(labels[i]);
            std::memcpy(bytes.data() + i * sizeof label, &label, sizeof label);
        }
    };
    switch (type) {
        case Dtype::u8: as(std::uint8_t{}); break;
        case Dtype::i8: as(std::int8_t{}); break;
        case Dtype::i32: as(std::int32_t{}); break;
        case Dtype::i64: as(std::int64_t{}); break;
        case Dtype::f32: as(float{}); break;
        default: as(double{});
    }
    return bytes;
}

// A batch in the kernel's own types.
template <class S>
struct Arrays {
    Arrays(const Rows& rows, const std::vector<double>& codes, Dtype label_type)
        : scores(rows.scores.begin(), rows.scores.end()), labels(encode(codes, label_type)) {
        batch.scores = scores.data();
        batch.score_type = sizeof(S) == 4 ? Dtype::f32 : Dtype::f64;
        batch.labels = labels.data();
        batch.label_type = label_type;
        batch.weights = rows.weights.empty() ? nullptr : rows.weights.data();
        batch.vector = rows.vector.empty() ? nullptr : rows.vector.data();
        batch.n = rows.n();
        batch.offsets = rows.offsets.empty() ? nullptr : rows.offsets.data();
        batch.n_groups = static_cast<std::int64_t>(rows.offsets.size()) - 1;
    }

    std::vector<S> scores;
    std::vector<std::byte> labels;
    Batch batch{};
};

template <class S>
struct Results {
    Answer answer;
    std::vector<S> grad, hess, hvp;

    bool operator==(const Results& other) const {
        const auto same = [](const auto& a, const auto& b) {
            return !a.size() || !std::memcmp(&a[0], &b[0], a.size() * sizeof a[0]);
        };
        return !std::memcmp(&answer.value, &other.answer.value, sizeof(double)) && same(grad, other.grad) &&
               same(hess, other.hess) && same(hvp, other.hvp);
    }
};

// Calls evaluate(question, outputs) for a case.
template <class S, class Evaluate>
Results<S> results_of(const Case& drawn, std::int64_t n, int threads, Evaluate&& evaluate) {
    const S unset = std::numeric_limits<S>::quiet_NaN();
    const auto array = [&](bool wanted) { return std::vector<S>(wanted ? n : 0, unset); };
    Results<S> got{{}, array(drawn.grad), array(drawn.hess), array(drawn.hvp)};
    const auto data = [](std::vector<S>& a) { return a.empty() ? nullptr : a.data(); };
    const std::vector<Term>& terms = drawn.surrogate.terms;
    const Question question{terms.data(), static_cast<int>(terms.size()), drawn.mean, threads};
    got.answer = evaluate(question, Outputs{data(got.grad), data(got.hess), data(got.hvp)});
    return got;
}

template <class S>
Results<S> evaluate_on(const Case& drawn, const Batch& batch, int threads) {
    return results_of<S>(drawn, batch.n, threads, [&](const Question& question, const Outputs& outputs) {
        return EVERYPAIR_ISA::kernels.evaluate(batch, question, outputs);
    });
}

template <class Numbers>
Real greatest(const Numbers& numbers) {
    Real most = 0;
    for (const auto x : numbers) most = std::max(most, std::abs(static_cast<Real>(x)));
    return most;
}

// Errors are relative to the largest entry, or to `scale`, the size of the numbers whose difference an entry is.
template <class S>
void compare(const std::string& where, const char* name, const std::vector<S>& got, const std::vector<Real>& expected,
             double tolerance, bool exact, Real scale = 0) {
    Real worst = 0, size = scale;
    std::size_t at = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        size = std::max(size, std::abs(expected[i]));
        const Real error = std::abs(static_cast<Real>(got[i]) - expected[i]);
        if (!(error <= worst)) worst = error, at = i;
        if (std::isnan(worst)) break;
    }
    const Real allowed = exact ? 0 : tolerance * size + std::numeric_limits<S>::denorm_min();
    if (worst <= allowed) return;
    char line[200];
    std::snprintf(line, sizeof line, "%s[%zu] is %.9g, expected %.9Lg; error %.2Lg, allowed %.2Lg", name, at,
                  static_cast<double>(got[at]), expected[at], worst, allowed);
    fail(where, line);
}

template <class S>
void compare_derivatives(const std::string& where, const Case& drawn, const Results<S>& got, const Sums& expected,
                         bool exact_grad, bool exact_hess) {
    // Where all entries nearly cancel, rounding errors remain.
    const double tolerance = sizeof(S) == 4 ? 1e-6 : 1e-12;
    const Real rounding = 1e-15 / tolerance, bend = std::max(rounding * greatest(expected.bends), greatest(expected.hess));
    compare(where, "grad", got.grad, expected.grad, tolerance, exact_grad, rounding * greatest(expected.slopes));
    compare(where, "hess", got.hess, expected.hess, tolerance, exact_hess, bend);
    compare(where, "hvp", got.hvp, expected.hvp, tolerance, false, bend * greatest(drawn.rows.vector));
}

struct Reached {
    std::int64_t active = 0, inactive = 0, on_knot = 0, tied = 0;
} reached;

template <class S>
void check_as(const Case& drawn) {
    const std::string where = drawn.text();
    const Rows& rows = drawn.rows;
    const bool is_small = rows.n() < 300;
    // Numbers of very different sizes cost running sums more digits than sums pair by pair.
    const bool is_even =
        std::string(score_kinds[drawn.scores]) != "outliers" && std::string(weight_kinds[drawn.weights]) != "decades";
    Sums expected = is_small ? double_sum(rows, drawn.surrogate) : sorted_sum(rows, drawn.surrogate);
    if (is_small) {
        reached.active += expected.active, reached.inactive += expected.inactive;
        reached.on_knot += expected.on_knot, reached.tied += expected.tied;
    }
    if (is_small && is_even) {
        // The sorted sums are the reference of larger batches.
        const Sums sorted = sorted_sum(rows, drawn.surrogate);
        compare<Real>(where, "sorted value", {sorted.value}, {expected.value}, 1e-14, false);
        compare<Real>(where, "sorted grad", sorted.grad, expected.grad, 1e-14, false);
        compare<Real>(where, "sorted concordant", {sorted.concordant}, {expected.concordant}, 1e-14, false);
    }
    const Real concordant = expected.concordant;
    if (drawn.mean) expected.scale(expected.pair_weight > 0 ? 1 / expected.pair_weight : 0);

    std::vector<double> codes(rows.positive.begin(), rows.positive.end());
    for (double& code : codes)
        if (drawn.minus_one && code == 0) code = -1;
    const Arrays<S> arrays(rows, codes, drawn.labels);
    const Results<S> got = evaluate_on<S>(drawn, arrays.batch, 1);
    if (got.answer.status) return fail(where, "the kernel rejected the batch, status " + std::to_string(got.answer.status));
    // The kernel declines batches whose terms cancel beyond double-double; NumPy computes them.
    if (drawn.surrogate.terms.size() > 1 && std::isnan(got.answer.value)) return;

    // Sums of pairs that count are whole numbers or halves if there are no weights, so they have no rounding error.
    const bool counted = rows.weights.empty() && !drawn.mean;
    const std::string name = drawn.surrogate.name;
    const bool steps = counted && (name == "jump" || name == "linear_hinge" || name == "capped_hinge");
    const double tolerance = sizeof(S) == 4 ? 1e-6 : 1e-12;
    const std::vector<double> value{got.answer.value}, pair_weight{got.answer.pair_weight};
    compare(where, "pair_weight", pair_weight, {expected.pair_weight}, 1e-13, rows.weights.empty());
    const bool has_value = drawn.grad || drawn.hess || !drawn.hvp;  // not beside a Hessian-vector product alone
    if (has_value) compare(where, "value", value, {expected.value}, tolerance, counted && name == "jump");
    compare_derivatives(where, drawn, got, expected, steps, counted);

    const Answer auc = EVERYPAIR_ISA::kernels.concordance(arrays.batch, 1);
    compare<double>(where, "concordant", {auc.value}, {concordant}, 1e-12, rows.weights.empty());

    if (rows.n() < (1 << 15)) return;  // smaller batches run on one thread
    if (!(evaluate_on<S>(drawn, arrays.batch, 3) == got)) fail(where, "3 threads change the result");
    const Answer parallel = EVERYPAIR_ISA::kernels.concordance(arrays.batch, 3);
    if (std::memcmp(&parallel.value, &auc.value, sizeof auc.value)) fail(where, "3 threads change the concordance");
}

// Ordered pairs without weights and groups, for which the kernel sorts or codes the targets itself. `exact` and `auc` are the
// results for sorted rows.
template <class S>
void check_targets(const Case& drawn, const std::string& where, Batch batch, const Results<S>& exact, const Answer& auc) {
    const Rows& rows = drawn.rows;
    batch.labels = rows.ranks.data();
    batch.label_type = Dtype::i64;
    std::vector<double> ordered(batch.n), pairs(batch.n);
    const Answer counted = EVERYPAIR_ISA::kernels.concordance_targets(batch, nullptr, ordered.data(), pairs.data());
    if (counted.value != auc.value || counted.pair_weight != auc.pair_weight) fail(where, "the concordance of targets");
    if (std::accumulate(ordered.begin(), ordered.end(), 0.0) != 2 * auc.value ||
        std::accumulate(pairs.begin(), pairs.end(), 0.0) != 2 * auc.pair_weight)
        fail(where, "the pairs of the rows");
    std::vector<std::int64_t> order(batch.n), ranks(batch.n);
    EVERYPAIR_ISA::kernels.rank_targets(batch, nullptr, order.data(), ranks.data());
    for (std::int64_t p = 1; p < batch.n; ++p) {
        const std::int64_t before = rows.ranks[order[p - 1]], here = rows.ranks[order[p]];
        if (before > here || ranks[p] - ranks[p - 1] != (before < here)) return fail(where, "the order of the targets");
    }
    if (drawn.hess || drawn.hvp) return;
    const auto evaluate = [&](int threads) {
        return results_of<S>(drawn, batch.n, threads, [&](const Question& question, const Outputs& outputs) {
            return EVERYPAIR_ISA::kernels.evaluate_graded(batch, question, outputs);
        });
    };
    const Results<S> got = evaluate(1);
    if (std::isnan(got.answer.value)) return;  // another plan has to be used
    reached_graded = true;
    if (!(evaluate(3) == got)) fail(where, "3 threads change the result of grades");
    compare<double>(where, "value of grades", {got.answer.value}, {exact.answer.value}, 1e-6, false);
    compare<S>(where, "gradient of grades", got.grad, {exact.grad.begin(), exact.grad.end()}, 1e-6, false);
}

// Ordered pairs, with targets of so many values (0: all distinct). Larger batches are compared on several threads only.
template <class S>
void check_ordered_as(Case drawn, int n_targets) {
    Rows& rows = drawn.rows;
    const std::string where = "ordered, " + std::to_string(n_targets) + " targets, " + drawn.text();
    const std::int64_t n = rows.n();
    const std::vector<std::int64_t> bounds = rows.bounds();
    std::mt19937_64 bits(static_cast<std::uint64_t>(n));
    for (std::int64_t i = 0; i < n; ++i)
        rows.ranks.push_back(static_cast<std::int64_t>(bits() >> 1) % (n_targets ? n_targets : n * n));
    std::vector<std::int64_t> order(n), ranks;
    std::vector<double> weights;
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t g = 0; g + 1 < bounds.size(); ++g)
        std::sort(order.begin() + bounds[g], order.begin() + bounds[g + 1],
                  [&](auto i, auto j) { return rows.ranks[i] < rows.ranks[j]; });
    for (const std::int64_t i : order) ranks.push_back(rows.ranks[i]), weights.push_back(rows.weight(i));
    const Arrays<S> arrays(rows, rows.scores, Dtype::f64);
    const double* w = rows.weights.empty() ? nullptr : weights.data();
    const Ranked ranked{arrays.batch.scores,
                        arrays.batch.score_type,
                        order.data(),
                        ranks.data(),
                        w,
                        w,
                        arrays.batch.vector,
                        n,
                        bounds.data(),
                        static_cast<std::int64_t>(bounds.size()) - 1};
    const auto evaluate = [&](int threads) {
        return results_of<S>(drawn, n, threads, [&](const Question& question, const Outputs& outputs) {
            return EVERYPAIR_ISA::kernels.evaluate_ordered(ranked, question, 1, outputs);
        });
    };
    const Results<S> got = evaluate(1);
    const Answer auc = EVERYPAIR_ISA::kernels.concordance_ordered(ranked, 1);
    if (rows.weights.empty() && rows.offsets.empty()) check_targets<S>(drawn, where, arrays.batch, got, auc);
    if (n > 2000) {
        if (!(evaluate(3) == got)) fail(where, "3 threads change the result");
        const Answer parallel = EVERYPAIR_ISA::kernels.concordance_ordered(ranked, 3);
        if (std::memcmp(&parallel.value, &auc.value, sizeof auc.value)) fail(where, "3 threads change the concordance");
        return;
    }
    Sums expected = double_sum(rows, drawn.surrogate);
    compare<double>(where, "concordant", {auc.value}, {expected.concordant}, 1e-12, rows.weights.empty());
    compare<double>(where, "pairs", {auc.pair_weight}, {expected.pair_weight}, 1e-13, rows.weights.empty());
    // The kernel declines batches without pairs, and those whose terms cancel.
    if (std::isnan(got.answer.value) && (expected.pair_weight == 0 || drawn.surrogate.terms.size() > 1)) return;
    if (drawn.mean) expected.scale(1 / expected.pair_weight);
    compare<double>(where, "value", {got.answer.value}, {expected.value}, sizeof(S) == 4 ? 1e-6 : 1e-12, false);
    compare_derivatives(where, drawn, got, expected, false, false);
}

void check(int number, std::int64_t n) {
    const Case drawn = draw(number, n);
    drawn.is_float ? check_as<float>(drawn) : check_as<double>(drawn);
}

void check_ordered(int number, std::int64_t n) {
    const Case drawn = draw(number, n);
    for (const int n_targets : {0, 2, 5})
        drawn.is_float ? check_ordered_as<float>(drawn, n_targets) : check_ordered_as<double>(drawn, n_targets);
}

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
                const auto expect = [&](const char* what, int status, const Rows& bad, const std::vector<double>& codes) {
                    const Arrays<S> arrays(bad, codes, type);
                    const int got[] = {evaluate_on<S>(question, arrays.batch, 1).answer.status,
                                       EVERYPAIR_ISA::kernels.concordance(arrays.batch, 1).status};
                    for (const int found : got)
                        if (found != status)
                            fail(std::string(what) + " at row " + std::to_string(at) + " of " + std::to_string(n) +
                                     ", labels " + label_types[label],
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
    if (!reached_graded) fail("all batches", "no batch of few grades was evaluated by buckets");
    if (!reached.active || !reached.inactive || !reached.on_knot || !reached.tied)
        fail("all batches", "no active pair, no inactive pair, no pair on a knot, or no tie");
}

// Whether this processor has the instructions that the kernel was compiled for.
bool runs_here([[maybe_unused]] const std::string& isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (isa == "avx512")
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw");
#endif
    return true;
}

}  // namespace
}  // namespace everypair::test

#define EVERYPAIR_TEXT(name) #name
#define EVERYPAIR_NAME(isa) EVERYPAIR_TEXT(isa)

int main(int count, char** arguments) {
    using namespace everypair::test;
    const std::string isa = EVERYPAIR_NAME(EVERYPAIR_ISA);
    if (!runs_here(isa)) return std::printf("%s: this processor cannot run it\n", isa.c_str()), 77;
    if (count == 3)
        check(std::atoi(arguments[1]), std::atoll(arguments[2])),
            check_ordered(std::atoi(arguments[1]), std::atoll(arguments[2]));
    else
        check_all();
    std::printf("%s: %d failures\n", isa.c_str(), failures);
    return failures ? 1 : 0;
}
