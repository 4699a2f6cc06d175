// Compares the kernel of one instruction set with the oracle: value, gradient, diagonal Hessian,
// Hessian-vector product and concordance of a batch. Prints one line for each failure. A program includes
// this header once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "batches.hpp"

namespace everypair::EVERYPAIR_ISA {
extern const Kernels kernels;
}  // namespace everypair::EVERYPAIR_ISA

#define EVERYPAIR_TEXT(name) #name
#define EVERYPAIR_NAME(isa) EVERYPAIR_TEXT(isa)

namespace everypair::test {
namespace {

const char* const instruction_set = EVERYPAIR_NAME(EVERYPAIR_ISA);

int failures = 0;

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
    const Question question{terms.data(), static_cast<int>(terms.size()), drawn.mean,
                            threads,      drawn.surrogate.smooth,         drawn.surrogate.exponential};
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

// Errors are relative to the largest entry, or to `scale`, the size of the numbers whose difference an entry
// is.
template <class S>
void compare(const std::string& where, const char* name, const std::vector<S>& got,
             const std::vector<Real>& expected, double tolerance, bool exact, Real scale = 0) {
    constexpr Real top = std::numeric_limits<S>::max();
    const Real size = std::max(scale, greatest(expected));
    const Real allowed = exact ? 0 : tolerance * size + std::numeric_limits<S>::denorm_min();
    Real worst = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        // Results beyond the range of their type are infinite, or its largest number.
        const Real outwards = got[i] > 0 ? expected[i] : -expected[i];
        if (std::abs(got[i]) > 0.999L * top && outwards + allowed > 0.999L * top) continue;
        const Real error = std::abs(static_cast<Real>(got[i]) - expected[i]);
        if (!(error <= worst)) worst = error, at = i;
        if (std::isnan(worst)) break;
    }
    if (worst <= allowed) return;
    char line[200];
    std::snprintf(line, sizeof line, "%s[%zu] is %.9g, expected %.9Lg; error %.2Lg, allowed %.2Lg", name, at,
                  static_cast<double>(got[at]), expected[at], worst, allowed);
    fail(where, line);
}

template <class S>
void compare_derivatives(const std::string& where, const Case& drawn, const Results<S>& got,
                         const Sums& expected, bool exact_grad, bool exact_hess) {
    // Where all entries nearly cancel, rounding errors remain.
    const double tolerance = sizeof(S) == 4 ? 1e-6 : 1e-12;
    const Real rounding = 1e-15 / tolerance,
               slope = std::max(rounding * greatest(expected.slopes), greatest(expected.slope_sizes));
    const Real bend = std::max(
        {rounding * greatest(expected.bends), greatest(expected.hess), greatest(expected.bend_sizes)});
    compare(where, "grad", got.grad, expected.grad, tolerance, exact_grad, slope);
    compare(where, "hess", got.hess, expected.hess, tolerance, exact_hess, bend);
    compare(where, "hvp", got.hvp, expected.hvp, tolerance, false, bend * greatest(drawn.rows.vector));
}

// With weights, both numbers of `got` are over the same power of two.
void compare_concordance(const std::string& where, const Answer& got, Real concordant, Real pairs,
                         bool exact) {
    const bool scaled = !exact && pairs > 0 && got.pair_weight > 0;
    const Real unit = scaled ? std::exp2(std::round(std::log2(pairs / got.pair_weight))) : 1;
    compare<Real>(where, "concordant", {unit * got.value}, {concordant}, 1e-12, exact);
    compare<Real>(where, "pairs", {unit * got.pair_weight}, {pairs}, 1e-13, exact);
}

// What the batches reached.
struct Reached {
    std::int64_t active = 0, inactive = 0, on_knot = 0, tied = 0;
    std::int64_t computed = 0, declined = 0, graded = 0;  // batches; `graded`: by the plan for few grades
} reached;

// The kernel declines batches whose terms cancel beyond double-double, groups whose scores are all 0 for a
// term without a knot, numbers near the ends of the range of doubles, and, if a product with a vector is
// requested alone, some float64 batches of hundreds of groups; NumPy computes them.
bool is_declined(const Case& drawn, const Answer& answer) {
    const Surrogate& surrogate = drawn.surrogate;
    const bool may_be = surrogate.terms.size() > 1 || surrogate.cancels || surrogate.exponential ||
                        !std::ranges::all_of(surrogate.terms, &Term::truncated) ||
                        (drawn.hvp && !drawn.grad && !drawn.hess);
    const bool is = may_be && (answer.status == declined || !std::isfinite(answer.value));
    ++(is ? reached.declined : reached.computed);
    return is;
}

template <class S>
void check_as(const Case& drawn) {
    const std::string where = drawn.text();
    const Rows& rows = drawn.rows;
    // Numbers of very different sizes cost running sums more digits than sums pair by pair.
    const std::string scores = score_kinds[drawn.scores], weights = weight_kinds[drawn.weights];
    const bool is_input = scores == "input", is_small = is_input || rows.n() < 300,
               is_even = scores != "outliers" && weights != "decades" && !is_input;
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
    if (is_declined(drawn, got.answer)) return;
    if (got.answer.status)
        return fail(where, "the kernel rejected the batch, status " + std::to_string(got.answer.status));

    // Sums of pairs that count are whole numbers or halves if there are no weights, so they have no rounding
    // error.
    const bool counted = rows.weights.empty() && !drawn.mean;
    const std::string name = drawn.surrogate.name;
    const bool steps = counted && (name == "jump" || name == "linear_hinge" || name == "capped_hinge");
    const double tolerance = sizeof(S) == 4 ? 1e-6 : 1e-12;
    const std::vector<double> value{got.answer.value}, pair_weight{got.answer.pair_weight};
    compare(where, "pair_weight", pair_weight, {expected.pair_weight}, 1e-13, rows.weights.empty());
    const bool has_value =
        drawn.grad || drawn.hess || !drawn.hvp;  // not beside a Hessian-vector product alone
    if (has_value)
        compare(where, "value", value, {expected.value}, tolerance, counted && name == "jump", expected.size);
    compare_derivatives(where, drawn, got, expected, steps, counted && !drawn.surrogate.function);

    const Answer auc = EVERYPAIR_ISA::kernels.concordance(arrays.batch, 1, {});
    compare_concordance(where, auc, concordant, expected.pair_weight, rows.weights.empty());

    if (rows.n() < (1 << 15)) return;  // smaller batches run on one thread
    if (!(evaluate_on<S>(drawn, arrays.batch, 3) == got)) fail(where, "3 threads change the result");
    const Answer parallel = EVERYPAIR_ISA::kernels.concordance(arrays.batch, 3, {});
    if (std::memcmp(&parallel.value, &auc.value, sizeof auc.value))
        fail(where, "3 threads change the concordance");
}

// Ordered pairs without weights and groups, for which the kernel sorts or codes the targets itself. `exact`
// and `auc` are the results for sorted rows.
template <class S>
void check_targets(const Case& drawn, const std::string& where, Batch batch, const Results<S>& exact,
                   const Answer& auc) {
    const Rows& rows = drawn.rows;
    batch.pairs = Pairs::targets;
    batch.events = rows.events.empty() ? nullptr : rows.events.data();
    std::vector<std::int64_t> targets = rows.ranks;
    for (std::int64_t& time : targets)
        if (batch.events) time = -(time >> 1);
    batch.labels = targets.data();
    batch.label_type = Dtype::i64;
    std::vector<double> ordered(batch.n), pairs(batch.n);
    const Answer counted = EVERYPAIR_ISA::kernels.concordance(batch, 1, {ordered.data(), pairs.data()});
    if (counted.value != auc.value || counted.pair_weight != auc.pair_weight)
        fail(where, "the concordance of targets");
    if (std::accumulate(ordered.begin(), ordered.end(), 0.0) != 2 * auc.value ||
        std::accumulate(pairs.begin(), pairs.end(), 0.0) != 2 * auc.pair_weight)
        fail(where, "the pairs of the rows");
    const Results<S> got = evaluate_on<S>(drawn, batch, 1);
    if (std::isnan(exact.answer.value) || got == exact) return;
    if (batch.events || drawn.hess || drawn.hvp || sizeof(S) > 4) {
        // The same plan, with the rows of one target in another order. Terms of a surrogate may cancel.
        const double tolerance = sizeof(S) == 4 ? 1e-6 : 1e-12;
        compare<double>(where, "value of targets", {got.answer.value}, {exact.answer.value}, tolerance,
                        false);
        compare<S>(where, "gradient of targets", got.grad, {exact.grad.begin(), exact.grad.end()}, tolerance,
                   false);
        return;
    }
    ++reached.graded;
    if (!(evaluate_on<S>(drawn, batch, 3) == got)) fail(where, "3 threads change the result of grades");
    compare<double>(where, "value of grades", {got.answer.value}, {exact.answer.value}, 1e-6, false);
    compare<S>(where, "gradient of grades", got.grad, {exact.grad.begin(), exact.grad.end()}, 1e-6, false);
}

// Ordered pairs, by the ranks of the rows. Larger batches are compared on several threads only.
template <class S>
void check_ordered_as(const Case& drawn) {
    const Rows& rows = drawn.rows;
    const std::string where = "ordered, " + drawn.text();
    const std::int64_t n = rows.n();
    const std::vector<std::int64_t> bounds = rows.bounds();
    std::vector<std::int64_t> order(n), ranks;
    std::vector<double> winners, losers;
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t g = 0; g + 1 < bounds.size(); ++g)
        std::sort(order.begin() + bounds[g], order.begin() + bounds[g + 1],
                  [&](auto i, auto j) { return rows.ranks[i] < rows.ranks[j]; });
    for (const std::int64_t i : order) {
        ranks.push_back(rows.ranks[i]), losers.push_back(rows.weight(i));
        winners.push_back(rows.events.empty() || rows.events[i] ? rows.weight(i) : 0);
    }
    const Arrays<S> arrays(rows, rows.scores, Dtype::f64);
    const bool weighted = !rows.weights.empty();
    Batch ranked = arrays.batch;
    ranked.pairs = Pairs::ranked, ranked.order = order.data(), ranked.ranks = ranks.data();
    ranked.winner = weighted || !rows.events.empty() ? winners.data() : nullptr;
    ranked.loser = weighted ? losers.data() : nullptr;
    ranked.offsets = bounds.data(), ranked.n_groups = std::ssize(bounds) - 1;
    const Results<S> got = evaluate_on<S>(drawn, ranked, 1);
    const Answer auc = EVERYPAIR_ISA::kernels.concordance(ranked, 1, {});
    if (rows.weights.empty() && rows.offsets.empty()) check_targets<S>(drawn, where, arrays.batch, got, auc);
    if (n > 2000) {
        if (!(evaluate_on<S>(drawn, ranked, 3) == got)) fail(where, "3 threads change the result");
        const Answer parallel = EVERYPAIR_ISA::kernels.concordance(ranked, 3, {});
        if (std::memcmp(&parallel.value, &auc.value, sizeof auc.value))
            fail(where, "3 threads change the concordance");
        return;
    }
    Sums expected = double_sum(rows, drawn.surrogate);
    compare_concordance(where, auc, expected.concordant, expected.pair_weight, rows.weights.empty());
    // The kernel declines batches without pairs.
    if (is_declined(drawn, got.answer) || (std::isnan(got.answer.value) && expected.pair_weight == 0)) return;
    if (drawn.mean) expected.scale(1 / expected.pair_weight);
    const double tolerance = sizeof(S) == 4 ? 1e-6 : 1e-12;
    compare<double>(where, "value", {got.answer.value}, {expected.value}, tolerance, false, expected.size);
    compare_derivatives(where, drawn, got, expected, false, false);
}

void check(int number, std::int64_t n) {
    const Case drawn = draw(number, n);
    drawn.is_float ? check_as<float>(drawn) : check_as<double>(drawn);
}

void check_ordered(int number, std::int64_t n) {
    // Targets of so many values; 0: all distinct.
    for (const std::int64_t n_targets : {0, 2, 5}) {
        Case drawn = draw(number, n);
        std::mt19937_64 bits(static_cast<std::uint64_t>(n));
        for (std::int64_t i = 0; i < n; ++i)
            drawn.rows.ranks.push_back(static_cast<std::int64_t>(bits() >> 1) %
                                       (n_targets ? n_targets : n * n));
        drawn.is_float ? check_ordered_as<float>(drawn) : check_ordered_as<double>(drawn);
    }
}

// Whether this processor has the instructions that the kernel was compiled for.
[[maybe_unused]] bool runs_here() {
    [[maybe_unused]] const std::string isa = instruction_set;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == "avx2")
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi2");
    if (isa == "avx512")
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#endif
    return true;
}

}  // namespace
}  // namespace everypair::test
