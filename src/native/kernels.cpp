// Chooses the plan that evaluates a batch. Compiled once for each instruction set, into a namespace of its own.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "auc.hpp"
#include "bucketed.hpp"
#include "concordance.hpp"
#include "everywhere.hpp"
#include "exact.hpp"
#include "exponential.hpp"
#include "graded.hpp"
#include "gridded.hpp"
#include "ordered.hpp"
#include "smooth.hpp"
#include "smooth_precision.hpp"
#include "survey.hpp"
#include "weighted.hpp"

namespace everypair::EVERYPAIR_ISA {
namespace {

// With fewer rows the bucket plan takes longer than the exact plan, in which a source takes about four times as long as a
// query. From the rows of `python -m benchmarks run --suite kernel`: with 128-bit vectors the tables of buckets cost about
// twice as much.
#if defined(__AVX2__)
constexpr std::int64_t certified_rows = 6000;
#else
constexpr std::int64_t certified_rows = 10000;
#endif
// With more rows, the certified plan takes less time than sorting the rows into buckets; with fewer, the exact plan.
constexpr std::int64_t fewest_bucketed_rows = 12, bucketed_rows = 4000;
// The fewest rows of the certified plan for ordered pairs, for each grade.
#if defined(__AVX2__)
constexpr std::int64_t graded_rows = 300;
#else
constexpr std::int64_t graded_rows = 600;
#endif
// The weights of a group are those of the caller, times a power of two for each class if they are very large or very small;
// the weights of its pairs are over 2^exponent.
struct Group {
    std::int64_t begin, n;
    Survey found;
    int exponent = 0;
};

// The power of two by which weights with this sum are divided: 0 unless their sums could overflow or lose digits.
inline int exponent_of(double sum) {
    if (sum == 0 || (sum > 0x1p-100 && sum < 0x1p100)) return 0;
    return sum <= std::numeric_limits<double>::max() ? std::ilogb(sum) : 1000;
}

template <class S>
void clear(const Outputs& outputs, const Group& group) {
    for (void* array : {outputs.grad, outputs.hess, outputs.hvp})
        if (array) std::fill_n(static_cast<S*>(array) + group.begin, group.n, S{0});
}

// How many times larger the terms are than their sum, at the worst. Far from their knots several terms nearly cancel: their sum
// is of the order of the distance between the knots times the range, or of its square if they cancel to a constant.
inline double cancellation(const Term* terms, int n_terms, double range) {
    if (n_terms < 2) return 0;
    double nearest = std::numeric_limits<double>::infinity(), slope = 0, slopes = 0;
    for (int j = 0; j < n_terms; ++j) {
        const double lag = 2 * terms[j].b2 * (terms[j].shift - terms[0].shift);
        slope += terms[j].b1 + lag;
        slopes += std::abs(terms[j].b1) + std::abs(lag);
        for (int i = 0; i < j; ++i) {
            // Terms of one shift, with a knot and without, cancel only if their signs differ.
            const bool opposed = terms[i].b2 * terms[j].b2 < 0 || terms[i].b1 * terms[j].b1 < 0;
            if (const double apart = std::abs(terms[j].shift - terms[i].shift); apart > 0 || opposed)
                nearest = std::min(nearest, apart);
        }
    }
    const double ratio = range / nearest;
    return std::abs(slope) < 0x1p-40 * slopes ? ratio * std::max(1.0, ratio) : ratio;
}

// Fills the output arrays of one group with both classes, and returns its value.
template <class S>
double solve(const Batch& batch, const Question& question, const Outputs& outputs, const std::uint8_t* classes,
             const Group& group, double scale) {
    const Term* terms = question.terms;
    // Sums of numbers next to the largest double overflow, and those of denormal numbers lose digits, even where the result
    // is an ordinary number: then NaN tells the caller to use another way.
    double reach = 0, largest = std::max(std::abs(group.found.min_pos), std::abs(group.found.max_neg));
    for (int j = 0; j < question.n_terms; ++j) {
        reach = std::max(reach, terms[j].truncated ? group.found.max_neg - group.found.min_pos + terms[j].shift : 1);
        largest = std::max(largest, std::abs(terms[j].shift));
    }
    if (!(largest < 0x1p1000 && reach > 0x1p-960)) return std::numeric_limits<double>::quiet_NaN();
    const auto truncated = [](const Term& term) { return term.truncated; };
    if (std::none_of(terms, terms + question.n_terms, truncated))
        return everywhere<S>(batch, question, outputs, classes, group.begin, group.n, group.found, scale);

    const S* scores = static_cast<const S*>(batch.scores) + group.begin;
    const std::uint8_t* sides = classes + group.begin;
    S* grad = outputs.grad ? static_cast<S*>(outputs.grad) + group.begin : nullptr;
    if constexpr (std::is_same_v<S, float>) {
        // Value and slope must vanish at the knot, so that the error inside a bucket is of second order. The range must be
        // divisible into buckets, and gradients must stay well below the largest float32. With this order of additions a
        // common offset of the scores costs no digits.
        const double n_pos = static_cast<double>(group.found.n_pos), n_neg = static_cast<double>(group.found.n_neg);
        const double mean_scale = scale * (group.found.w_pos / n_pos) * (group.found.w_neg / n_neg);
        const auto smooth = [&](const Term& term) {
            const double range = group.found.max_neg - group.found.min_pos + term.shift;
            return term.truncated && range > 0x1p-900 && std::abs(term.shift) < 0x1p900 && term.b0 == 0 && term.b1 == 0 &&
                   std::abs(term.b2) * mean_scale * static_cast<double>(group.n) * range < 0x1p120;
        };
        const std::int64_t sources = std::min(group.found.n_pos, group.found.n_neg);
        const bool plain = !outputs.hvp && !outputs.hess;
        if (double value;
            plain && !batch.weights && question.n_terms == 1 && group.n >= fewest_bucketed_rows && group.n < bucketed_rows &&
            smooth(terms[0]) &&
            bucketed_term(scores, sides, group.n, group.found, terms[0].shift, 2 * terms[0].b2 * scale, grad, value))
            return value;
        // With weights the tables of buckets cost more, and so do the sources of the exact plan.
        const std::int64_t rows = batch.weights ? (group.n + 5 * sources) * 2 / 5 : group.n + 3 * sources;
        if (plain && rows >= certified_rows && std::all_of(terms, terms + question.n_terms, smooth)) {
            double reach = terms[0].shift;
            for (int j = 1; j < question.n_terms; ++j) reach = std::max(reach, terms[j].shift);
            double value;
            const double* weights = batch.weights ? batch.weights + group.begin : nullptr;
            const WeightedBuckets weighted(scores, sides, weights, group.n, group.found, reach, question.threads);
            if (question.n_terms == 1 && weights && weighted.one_term(2 * terms[0].b2 * mean_scale, grad, value)) return value;
            if (question.n_terms == 1 && !weights &&
                certified_term(scores, sides, group.n, group.found, terms[0].shift, 2 * terms[0].b2 * scale, grad,
                               question.threads, value))
                return value;
            // With few sources in a bucket, the sources of different buckets are more uneven, and 4,096 buckets often are too
            // few. The tables of the buckets must not take longer than the exact plan.
            const bool even = sources >= 100000 || (sources >= 3000 && group.n < 1 << 16);
            const int buckets = even ? 1 << 12 : group.n < 1 << 19 ? 1 << 13 : 1 << 14;
            // Sums of weights are rounded, so terms must not cancel too much.
            const double reached = group.found.max_neg - group.found.min_pos + reach;
            const bool rounded = weights && cancellation(terms, question.n_terms, reached) > 0x1p14;
            for (const int most : {buckets, 2 * buckets})
                if (question.n_terms > 1 && !rounded && 2 * group.n + 25 * sources >= 17 * most &&
                    (weights ? weighted.several_terms(terms, question.n_terms, mean_scale, grad, most, value)
                             : certified_terms(scores, sides, group.n, group.found, terms, question.n_terms, scale, grad,
                                               question.threads, most, value)))
                    return value;
        }
    }
    double range = 0;
    for (int j = 0; j < question.n_terms; ++j)
        range = std::max(range, group.found.max_neg - group.found.min_pos + std::abs(terms[j].shift));
    const double cancelled = static_cast<double>(group.n) * cancellation(terms, question.n_terms, range);
    const double room = std::is_same_v<S, float> ? 0x1p29 : 0x1p10;  // digits of a double beyond the promised ones
    // The rounding errors of the additions, one per row, do not cancel.
    if (cancelled > 0x1p62) return std::numeric_limits<double>::quiet_NaN();  // the caller must use another way
    const GroupRows<S> rows(batch, outputs, classes, group.begin, group.n, group.found, scale, question.threads);
    return cancelled > room ? Exact<S, DoubleDouble>(rows, question).run() : Exact<S, double>(rows, question).run();
}

// Surveys all groups, calls `use` for each one with both classes, and adds up the returned values. `use` gets the batch with
// scaled weights, and the largest exponent of a group, to which `pair_weight` is relative. No exponent is below `least`.
template <class S, class Use, class Skip>
Answer over_groups(const Batch& given, int least, int threads, Use&& use, Skip&& skip) {
    if (given.n < threaded_rows()) threads = 1;
    Batch batch = given;
    Scratch scratch;
    std::uint8_t* classes = scratch.take<std::uint8_t>(batch.n);
    const std::int64_t n_groups = batch.offsets ? batch.n_groups : 1;
    Group* groups = scratch.take<Group>(n_groups);
    double* values = scratch.take<double>(n_groups);
    // Many groups run in parallel, each on one thread. Few groups run one after the other, each on all threads.
    const bool many = n_groups >= 2 * static_cast<std::int64_t>(threads);
    const int inner = many ? 1 : threads;
    const auto each_group = [&](auto&& body) { parallel_ranges(many ? threads : 1, n_groups, body); };
    each_group([&](std::int64_t g) {
        const std::int64_t begin = batch.offsets ? batch.offsets[g] : 0, end = batch.offsets ? batch.offsets[g + 1] : batch.n;
        groups[g] = {begin, end - begin, survey<S>(batch, classes, begin, end, inner)};
    });
    Survey all;
    bool extreme = false;
    for (std::int64_t g = 0; g < n_groups; ++g) {
        const Survey& found = groups[g].found;
        all.add(found);
        extreme |= batch.weights && (exponent_of(found.w_pos) || exponent_of(found.w_neg));
    }
    if (all.saw_zero && all.saw_minus) all.status |= bad_labels;
    if (all.status) return {all.status, 0, 0};
    if (extreme) {
        double* scaled = scratch.take<double>(batch.n);
        batch.weights = scaled;
        each_group([&](std::int64_t g) {
            Group& group = groups[g];
            const int of_pos = std::max(exponent_of(group.found.w_pos), least);
            const int powers[2] = {std::max(exponent_of(group.found.w_neg), least - std::min(of_pos, 0)), of_pos};
            for (std::int64_t i = group.begin; i < group.begin + group.n; ++i)
                scaled[i] = std::ldexp(given.weights[i], -powers[classes[i] & 1]);
            group.found = survey<S>(batch, classes, group.begin, group.begin + group.n, inner);
            group.exponent = powers[0] + powers[1];
        });
    }
    const auto has_pairs = [](const Group& group) { return group.found.w_pos > 0 && group.found.w_neg > 0; };
    int top = std::numeric_limits<int>::min();
    for (std::int64_t g = 0; g < n_groups; ++g)
        if (has_pairs(groups[g])) top = std::max(top, groups[g].exponent);
    Compensated pair_weight, value;
    for (std::int64_t g = 0; g < n_groups; ++g)
        if (const Survey& found = groups[g].found; has_pairs(groups[g]))
            pair_weight +=
                std::max(std::ldexp(found.w_pos * found.w_neg, groups[g].exponent - top), std::numeric_limits<double>::min());
    each_group([&](std::int64_t g) {
        const bool both = has_pairs(groups[g]);
        values[g] = both ? use(batch, classes, groups[g], top, pair_weight, inner) : (skip(groups[g]), 0.0);
    });
    for (std::int64_t g = 0; g < n_groups; ++g) value += values[g];
    return {0, value, pair_weight, pair_weight > 0 ? top : 0};
}

// Calls `solve` for each group with both classes, with the factor of the reduction, and returns pair weights on the caller's
// scale.
template <class S, class Solve>
Answer reduce(const Batch& batch, bool mean, int threads, const Outputs& outputs, Solve&& solve_group) {
    const auto use = [&](const Batch& scaled, const std::uint8_t* classes, const Group& group, int top, double pair_weight,
                         int inner) {
        if (group.found.n_pos + group.found.n_neg < group.n) clear<S>(outputs, group);  // for the rows of weight 0
        const double scale = std::ldexp(mean ? 1 / pair_weight : 1, group.exponent - (mean ? top : 0));
        return solve_group(scaled, classes, group, scale, inner);
    };
    // The factor of a sum must not vanish. If it is infinite, so is the value.
    const int least = mean ? -4000 : -1000;
    Answer answer = over_groups<S>(batch, least, threads, use, [&](const Group& group) { clear<S>(outputs, group); });
    // On the scale of the caller, but neither infinite nor 0.
    const double smallest = std::numeric_limits<double>::min(), largest = std::numeric_limits<double>::max();
    if (answer.pair_weight > 0)
        answer.pair_weight = std::clamp(std::ldexp(answer.pair_weight, answer.exponent), smallest, largest);
    return answer;
}

template <class S>
GroupRows<S> rows_of(const Outputs& outputs, const Batch& batch, const std::uint8_t* classes, const Group& group, double scale,
                     int threads) {
    return {batch, outputs, classes, group.begin, group.n, group.found, scale, threads};
}

template <class S>
Answer evaluate_as(const Batch& batch, const Question& question, const Outputs& outputs) {
    const auto solve_group = [&](const Batch& scaled, const std::uint8_t* classes, const Group& group, double scale,
                                 int threads) {
        // Terms that no pair reaches, not even the lowest positive with the highest negative, are left out.
        Scratch scratch;
        Term* terms = scratch.take<Term>(question.n_terms);
        const auto counts = [&](const Term& term) {
            const DoubleDouble reach = DoubleDouble::sum(group.found.max_neg, term.shift);
            const double gap = reach.high - group.found.min_pos;
            return !term.truncated || gap > 0 || (gap == 0 && reach.low > 0);
        };
        const auto end = std::copy_if(question.terms, question.terms + question.n_terms, terms, counts);
        if (end == terms) return clear<S>(outputs, group), 0.0;
        const Question inner{terms, static_cast<int>(end - terms), question.mean, threads};
        return solve<S>(scaled, inner, outputs, classes, group, scale);
    };
    return reduce<S>(batch, question.mean, question.threads, outputs, solve_group);
}

template <class S>
Answer concordance_as(const Batch& batch, int threads) {
    const auto use = [](const Batch& scaled, const std::uint8_t* classes, const Group& group, int top, double, int inner) {
        const GroupRows<S> rows(scaled, {}, classes, group.begin, group.n, group.found, 1, inner);
        return std::ldexp(concordant_weight(rows), group.exponent - top);
    };
    return over_groups<S>(batch, -4000, threads, use, [](const Group&) {});
}

template <class S>
Answer ordered_as(const Ranked& rows, const Question& question, double unit, const Outputs& outputs) {
    const double total = ordered_weight(rows), scale = question.mean ? 1 / total : unit;
    constexpr Answer unreliable{0, std::numeric_limits<double>::quiet_NaN(), 0};
    if (!(total > 0x1p-900)) return unreliable;
    Scratch scratch;
    void* const arrays[] = {outputs.grad, outputs.hess, outputs.hvp};
    Sums sums;
    for (int k = 0; k < 3; ++k) {
        sums[k] = arrays[k] ? scratch.take<double>(rows.n) : nullptr;
        std::fill_n(sums[k], arrays[k] ? rows.n : 0, 0.0);
    }
    double value = 0, shift = 0;
    std::vector<Term> truncated, everywhere;
    for (int j = 0; j < question.n_terms; ++j) {
        (question.terms[j].truncated ? truncated : everywhere).push_back(question.terms[j]);
        shift = std::max(shift, std::abs(question.terms[j].shift));
    }
    const int threads = rows.n < threaded_rows() ? 1 : question.threads;
    const Question inner{truncated.data(), static_cast<int>(truncated.size()), question.mean, threads};
    const auto evaluate = [&](auto&& pairs) {
        const double range = pairs.template sort<S>() + shift, room = std::is_same_v<S, float> ? 0x1p26 : 0x1p9;
        const bool reliable = range < 0x1p500 && cancellation(question.terms, question.n_terms, range) < room;
        value = reliable ? pairs.run() : unreliable.value;
    };
    if (inner.n_terms == 1 && !rows.winner && !rows.loser && sums[0] && !sums[1] && !sums[2])
        evaluate(OrderedPairs<Asked::one_term>(rows, inner, false, sums));
    else if (inner.n_terms > 0)
        evaluate(OrderedPairs<Asked::any>(rows, inner, false, sums));
    if (!everywhere.empty()) value += ordered_everywhere<S>(rows, everywhere, sums);
    for (int k = 0; k < 3; ++k)
        for (std::int64_t i = 0; arrays[k] && i < rows.n; ++i)
            static_cast<S*>(arrays[k])[rows.order[i]] = static_cast<S>(scale * sums[k][i] + 0.0);
    return {0, value * scale, total};
}

// Calls use(zero) with a zero of the type of the scores, and returns its result.
template <class Use>
auto with_scores(Dtype type, Use&& use) {
    return type == Dtype::f32 ? use(float{}) : use(double{});
}

Answer evaluate_ordered(const Ranked& rows, const Question& question, double unit, const Outputs& outputs) {
    return with_scores(rows.score_type, [&](auto zero) { return ordered_as<decltype(zero)>(rows, question, unit, outputs); });
}

Answer concordance_ordered(const Ranked& rows, int threads) {
    threads = rows.n < threaded_rows() ? 1 : threads;
    // Pairs are counted if all weights are equal, or 0 for winners (censored rows).
    double w = rows.winner ? 0 : 1;
    for (std::int64_t i = 0; rows.winner && i < rows.n; ++i) w = std::max(w, rows.winner[i]);
    bool equal = !rows.loser;
    for (std::int64_t i = 0; equal && rows.winner && i < rows.n; ++i) equal = rows.winner[i] == 0 || rows.winner[i] == w;
    if (equal) {
        const PairCount count =
            with_scores(rows.score_type, [&](auto zero) { return count_pairs<decltype(zero)>(rows, threads); });
        return {0, w * (static_cast<double>(count.twice) / 2), w * static_cast<double>(count.pairs)};
    }
    const Term half[2] = {{0, 0.5, 0, 0, true}, {0, 0.5, 0, 0, true}};
    const Question question{half, 2, false, threads};
    OrderedPairs<Asked::any> pairs(rows, question, true, {});
    with_scores(rows.score_type, [&](auto zero) { return pairs.sort<decltype(zero)>(); });
    return {0, pairs.run(), ordered_weight(rows)};
}

Answer concordance_targets(const Batch& batch, const std::uint8_t* events, double* ordered, double* pairs) {
    const RowCounts of_rows{ordered, pairs};
    const PairCount count =
        with_scores(batch.score_type, [&](auto zero) { return count_pairs<decltype(zero)>(batch, events, of_rows); });
    return {0, static_cast<double>(count.twice) / 2, static_cast<double>(count.pairs)};
}

void rank_targets(const Batch& batch, const std::uint8_t* events, std::int64_t* order, std::int64_t* ranks) {
    Scratch scratch;
    const auto [rows, positioned] = sort_targets(scratch, batch, events);
    std::int64_t rank = -1;
    for (std::int64_t p = 0; p < batch.n; ++p) {
        rank += !positioned.first || positioned.first[p] == p;
        ranks[p] = rank;
        order[p] = rows[p];
    }
}

Answer evaluate_graded(const Batch& batch, const Question& question, const Outputs& outputs) {
    constexpr Answer declined{0, std::numeric_limits<double>::quiet_NaN(), 0};
    const Term& term = question.terms[0];
    if (batch.score_type != Dtype::f32 || batch.n < graded_rows || batch.n >= std::int64_t{1} << 29 || question.n_terms > 1 ||
        !term.truncated || term.b0 != 0 || term.b1 != 0 || !(term.shift >= 0 && term.shift < 0x1p900))
        return declined;
    Scratch scratch;
    std::uint8_t* grades = scratch.take<std::uint8_t>(batch.n);
    const int n_grades = code_grades(batch, grades), threads = batch.n < threaded_rows() ? 1 : question.threads;
    if (n_grades < 2 || batch.n < graded_rows * n_grades) return declined;
    const GradedRows rows{static_cast<const float*>(batch.scores), grades, batch.n, n_grades, threads};
    double value, pairs;
    return GradedPairs(rows, term.shift, term.b2, question.mean).run(static_cast<float*>(outputs.grad), value, pairs)
               ? Answer{0, value, pairs}
               : declined;
}

Answer evaluate(const Batch& batch, const Question& question, const Outputs& outputs) {
    return with_scores(batch.score_type, [&](auto zero) { return evaluate_as<decltype(zero)>(batch, question, outputs); });
}

Answer evaluate_smooth(const Batch& batch, const Smooth& smooth, bool mean, int threads, const Outputs& outputs) {
    return with_scores(batch.score_type, [&]<class S>(S) {
        return reduce<S>(batch, mean, threads, outputs,
                         [&](const auto&... group) { return smooth_sums(rows_of<S>(outputs, group...), smooth); });
    });
}

Answer evaluate_exponential(const Batch& batch, const Exponential& term, bool mean, int threads, const Outputs& outputs) {
    return with_scores(batch.score_type, [&]<class S>(S) {
        return reduce<S>(batch, mean, threads, outputs,
                         [&](const auto&... group) { return ExponentialSums<S>(rows_of<S>(outputs, group...), term).run(); });
    });
}

Answer concordance(const Batch& batch, int threads) {
    return with_scores(batch.score_type, [&](auto zero) { return concordance_as<decltype(zero)>(batch, threads); });
}

double smooth_precision(const PrecisionBatch& batch, const Piece& piece, int threads) {
    return with_scores(batch.score_type, [&](auto zero) { return precision_loss<decltype(zero)>(batch, piece, threads); });
}

}  // namespace

extern const Kernels kernels;
constinit const Kernels kernels{
    evaluate,        evaluate_smooth, evaluate_exponential, concordance,   evaluate_ordered, concordance_ordered,
    evaluate_graded, rank_targets,    concordance_targets,  make_row_sums, smooth_precision};

}  // namespace everypair::EVERYPAIR_ISA
