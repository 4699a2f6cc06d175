// Chooses the plan that evaluates a batch. Compiled once for each instruction set, into a namespace of its
// own.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "auc.hpp"
#include "bucketed.hpp"
#include "concordance.hpp"
#include "everywhere.hpp"
#include "exact.hpp"
#include "exponential.hpp"
#include "gridded.hpp"
#include "ordered.hpp"
#include "smooth.hpp"
#include "smooth_precision.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {
namespace {

// Limits between plans, from the rows of `python -m benchmarks run --suite kernel`. Below certified_rows and
// graded_rows (for each grade of ordered pairs) the exact plans take less time than the certified ones: a
// source of theirs takes about four times as long as a query. Below bucketed_rows (rows and sources) sorting
// into buckets takes less time than one certified term. With several terms, grid_cost is the time of a
// bucket, where a query of the exact plan takes 2 and a source 25. With 128-bit vectors the tables of buckets
// cost about twice as much.
#if defined(__AVX2__)
constexpr std::int64_t certified_rows = 6000, graded_rows = 300, bucketed_rows = 4200, grid_cost = 24;
#else
constexpr std::int64_t certified_rows = 10000, graded_rows = 600, bucketed_rows = 5500, grid_cost = 40;
#endif
constexpr std::int64_t min_bucketed_rows = 12;

// The answer and the value of a plan that does not fit the batch: the caller must use another way.
constexpr double no_value = std::numeric_limits<double>::quiet_NaN();
constexpr Answer refusal{declined, no_value, 0};

constexpr int max_exponent = 900;  // of the weights of ordered pairs

// The power of two by which weights with this sum are divided: 0 unless their sums could overflow or lose
// digits.
inline int exponent_of(double sum) {
    if (sum == 0 || (sum > 0x1p-100 && sum < 0x1p100)) return 0;
    return sum <= std::numeric_limits<double>::max() ? std::ilogb(sum) : 1000;
}

// How many times larger the terms are than their sum, at the worst. Far from their knots several terms nearly
// cancel: their sum is of the order of the distance between the knots times the range. It is of the order of
// its square if they cancel to a constant, or if some have no knot: then they are large at one end and small
// at the other. Infinite if the rounding errors of the slopes b1 are left there, and matter.
double cancellation(std::span<const Term> terms, double range) {
    if (terms.size() < 2) return 0;
    double nearest = std::numeric_limits<double>::infinity(), slopes = 0, rounding = 0;
    DoubleDouble sum;
    for (std::size_t j = 0; j < terms.size(); ++j) {
        const DoubleDouble lag =
            DoubleDouble(2 * terms[j].b2) * DoubleDouble::sum(terms[j].shift, -terms[0].shift);
        sum += DoubleDouble(terms[j].b1) + lag;
        slopes += std::abs(terms[j].b1) + std::abs(lag.high);
        rounding += 0x1p-53 * std::abs(terms[j].b1);
        // Next to another term, one without a knot must keep its digits where it is small.
        const Term& own = terms[j];
        if (!own.truncated)
            for (const double length :
                 {std::sqrt(std::abs(own.b0 / own.b2)), std::abs(own.b1 / own.b2), std::abs(own.b0 / own.b1)})
                if (length > 0 && length < nearest) nearest = length;
        for (std::size_t i = 0; i < j; ++i) {
            // Terms of one shift, with a knot and without, cancel only if their signs differ.
            const bool opposed = terms[i].b2 * terms[j].b2 < 0 || terms[i].b1 * terms[j].b1 < 0;
            if (const double apart = std::abs(terms[j].shift - terms[i].shift); apart > 0 || opposed)
                nearest = std::min(nearest, apart);
        }
    }
    const double ratio = range / nearest, slope = std::abs(static_cast<double>(sum));
    if (slope > 0x1p-100 * slopes && slope <= rounding && slope * ratio > 0x1p-46 * slopes)
        return std::numeric_limits<double>::infinity();
    const bool squared = slope < 0x1p-40 * slopes || !std::ranges::all_of(terms, &Term::truncated);
    return squared ? ratio * std::max(1.0, ratio) : ratio;
}

// The plans of float32 scores and terms b2 d^2 with a knot: buckets whose error is of second order, because
// value and slope vanish at the knot. Returns false if another plan is faster or is needed.
bool in_buckets(const GroupRows<float>& rows, std::span<const Term> terms, double& value) {
    const Survey& survey = rows.survey;
    const double n = static_cast<double>(rows.n), gap = survey.max_neg - survey.min_pos;
    const double mean_scale = rows.scale / (rows.unit(0) * rows.unit(1));
    // The range must be divisible into buckets, and gradients must stay well below the largest float32.
    const auto is_smooth = [&](const Term& term) {
        return term.truncated && gap + term.shift > 0x1p-900 && std::abs(term.shift) < 0x1p900 &&
               term.b0 == 0 && term.b1 == 0 &&
               std::abs(term.b2) * mean_scale * n * (gap + term.shift) < 0x1p120;
    };
    if (rows.hess || rows.hvp || !std::ranges::all_of(terms, is_smooth)) return false;
    const bool one_term = terms.size() == 1;
    const std::int64_t sources = std::min(survey.n_pos, survey.n_neg);
    const double shift = terms[0].shift, factor = 2 * terms[0].b2 * mean_scale;
    if (!rows.weights && one_term && rows.n >= min_bucketed_rows && rows.n + sources < bucketed_rows &&
        bucketed_term(rows, shift, factor, value))
        return true;
    if (!rows.weights && one_term) {
        if (rows.n + sources < bucketed_rows) return false;
        if (certified_term(rows, shift, factor, value)) return true;
        return rows.n < split_rows && sort_into_buckets<true>(rows, shift, factor, value);
    }
    // With weights the tables of buckets cost more, and so do the sources of the exact plan.
    if ((rows.weights ? (rows.n + 5 * sources) * 2 / 5 : rows.n + 3 * sources) < certified_rows) return false;
    if (one_term) return certified_term(rows, shift, factor, value);
    // Sums of weights are rounded, so terms must not cancel too much.
    const double reach = std::ranges::max(terms, {}, &Term::shift).shift;
    if (rows.weights && cancellation(terms, gap + reach) > 0x1p14) return false;
    // With few sources in a bucket, the sources of different buckets are more uneven, and 4,096 buckets may
    // be too few. The tables of the buckets must not take longer than the exact plan.
    const std::int64_t buckets = rows.n < 1 << 19 || sources >= 100000 ? 1 << 12 : 1 << 13,
                       cost = 2 * rows.n + 25 * sources;
    if (cost < grid_cost * buckets) return false;
    const double max_buckets = static_cast<double>(std::min(4 * buckets, 2 * cost / grid_cost));
    return certified_terms(rows, terms, mean_scale, static_cast<double>(buckets), max_buckets, value);
}

// Fills the results of one group with both classes, and returns its value; NaN if the caller must use another
// way.
template <class S>
double solve(const GroupRows<S>& rows, const Question& original) {
    if (original.smooth) return smooth_sums(rows, *original.smooth);
    if (original.exponential) return ExponentialSums<S>(rows, *original.exponential).run();
    const Survey& survey = rows.survey;
    const double gap = survey.max_neg - survey.min_pos;
    // How far the lowest positive and the highest negative are beyond a knot, without a rounded sum. The low
    // part of a sum that overflows is NaN.
    const auto reach_of = [&](const Term& term) {
        const DoubleDouble end = DoubleDouble::sum(survey.max_neg, term.shift);
        const double distance = end.high - survey.min_pos;
        return std::isfinite(end.high) ? distance + end.low : distance;
    };
    // Terms that no pair reaches are left out.
    Scratch scratch;
    const auto counts = [&](const Term& term) { return !term.truncated || reach_of(term) > 0; };
    Term* first = scratch.take<Term>(original.n_terms);
    const std::span<const Term> terms(
        first, std::copy_if(original.terms, original.terms + original.n_terms, first, counts));
    if (terms.empty()) return rows.clear(), 0.0;
    // Sums of numbers next to the largest double overflow, and those of denormal numbers lose digits, even
    // where the result is an ordinary number.
    double reach = 0, range = 0, largest = std::max(std::abs(survey.min_pos), std::abs(survey.max_neg));
    for (const Term& term : terms) {
        reach = std::max(reach, term.truncated ? reach_of(term) : std::max(largest, std::abs(term.shift)));
        range = std::max(range, gap + std::abs(term.shift));
        largest = std::max(largest, std::abs(term.shift));
    }
    // Without knots a reach of 0 is an ordinary one: all scores may be 0. Squares of float32 scores are no
    // denormal doubles.
    const bool has_knots = std::ranges::any_of(terms, &Term::truncated),
               is_zero = reach == 0 && sizeof(S) == 4 && !has_knots;
    if (!(largest < 0x1p1000 && (reach > 0x1p-960 || is_zero))) return no_value;
    const Question question{first, static_cast<int>(terms.size()), original.mean, rows.threads};
    if (!has_knots) return everywhere(rows, question);
    if constexpr (std::is_same_v<S, float>)
        if (double value; in_buckets(rows, terms, value)) return value;
    // The rounding errors of the additions, one per row, do not cancel.
    const double cancelled = static_cast<double>(rows.n) * cancellation(terms, range);
    const double room =
        std::is_same_v<S, float> ? 0x1p29 : 0x1p10;  // digits of a double beyond the promised ones
    if (cancelled > room * 0x1p52) return no_value;
    // Derivatives of several terms may vanish far from the knots, where the terms are constant or straight:
    // of heavy rows there only rounding errors are left.
    const bool flat =
        rows.hess || rows.hvp || std::ranges::any_of(terms, [](const Term& term) { return term.b1 != 0; });
    const bool heavy = std::is_same_v<S, double> && terms.size() > 1 && rows.weights && flat;
    const auto run = [&](const GroupRows<S>& part) {
        if (cancelled > room || heavy) return Exact<S, DoubleDouble>(part, question).run();
        return Exact<S, double>(part, question).run();
    };
    if (rows.hvp) {
        GroupRows<S> product = rows;
        product.grad = rows.hvp, product.hess = nullptr;
        run(product);
        if (!rows.grad && !rows.hess) return 0 * rows.scale;  // NaN if the results overflow
    }
    GroupRows<S> derivatives = rows;
    derivatives.vector = nullptr;
    return run(derivatives);
}

// What is added up over the groups: losses with the factor of the mean or of the sum, or weights of
// concordant pairs, which are over the same power of two as the weight of all pairs.
enum class Total { mean, sum, concordance };

// The rows of a group, before their survey.
template <class S>
GroupRows<S> group_rows(const Batch& batch, std::int64_t group, const std::uint8_t* classes,
                        const Outputs& outputs, int threads) {
    const std::int64_t begin = batch.offsets ? batch.offsets[group] : 0,
                       end = batch.offsets ? batch.offsets[group + 1] : batch.n;
    const auto from = [&](auto* array) { return array ? array + begin : nullptr; };
    S *grad = from(static_cast<S*>(outputs.grad)), *hess = from(static_cast<S*>(outputs.hess)),
      *hvp = from(static_cast<S*>(outputs.hvp));
    return {static_cast<const S*>(batch.scores) + begin,
            classes + begin,
            from(batch.weights),
            from(batch.vector),
            grad,
            hess,
            hvp,
            end - begin,
            threads};
}

// Surveys all groups and adds up solve_group(rows) of each one that has pairs; the results of the other
// groups are 0.
template <class S, class Solve>
Answer over_groups(Batch batch, Total total, int threads, const Outputs& outputs, Solve&& solve_group) {
    if (batch.n < threaded_rows()) threads = 1;
    Scratch scratch;
    std::uint8_t* classes = scratch.take<std::uint8_t>(batch.n);
    const std::int64_t n_groups = batch.offsets ? batch.n_groups : 1;
    const std::span groups(scratch.take<GroupRows<S>>(n_groups), n_groups);
    // Many groups run in parallel, each on one thread. Few groups run one after the other, each on all
    // threads.
    const bool side_by_side = n_groups >= 2 * static_cast<std::int64_t>(threads);
    const int group_threads = side_by_side ? threads : 1;
    const auto survey_group = [&](GroupRows<S>& group) {
        const std::int64_t begin = group.classes - classes;
        group.survey = survey<S>(batch, classes, begin, begin + group.n, group.threads);
    };
    parallel_ranges(group_threads, n_groups, [&](std::int64_t g) {
        groups[g] = group_rows<S>(batch, g, classes, outputs, side_by_side ? 1 : threads);
        survey_group(groups[g]);
    });
    Survey all;
    bool is_extreme = false;
    for (const GroupRows<S>& group : groups) {
        all.add(group.survey);
        is_extreme |= batch.weights && (exponent_of(group.survey.w_pos) || exponent_of(group.survey.w_neg));
    }
    if (all.saw_zero && all.saw_minus) all.status |= bad_labels;
    if (all.status) return {all.status, 0, 0};
    if (is_extreme) {
        double* scaled = scratch.take<double>(batch.n);
        batch.weights = scaled;
        parallel_ranges(group_threads, n_groups, [&](std::int64_t g) {
            GroupRows<S>& group = groups[g];
            const int powers[2] = {exponent_of(group.survey.w_neg), exponent_of(group.survey.w_pos)};
            double* weights = scaled + (group.classes - classes);
            for (std::int64_t i = 0; i < group.n; ++i)
                weights[i] = std::ldexp(group.weights[i], -powers[group.classes[i] & 1]);
            group.weights = weights;
            group.exponent = powers[0] + powers[1];
            survey_group(group);
        });
    }
    const double smallest = std::numeric_limits<double>::min(), largest = std::numeric_limits<double>::max();
    int top = std::numeric_limits<int>::min();
    for (const GroupRows<S>& group : groups) {
        if (!group.has_pairs()) continue;
        top = std::max(top, group.exponent);
        // The factor of a sum must not vanish. If it is infinite, so is the value.
        if (total == Total::sum && group.exponent < -1000) return refusal;
    }
    Compensated pair_weight, value;
    for (const GroupRows<S>& group : groups)
        if (group.has_pairs())
            pair_weight +=
                std::max(std::ldexp(group.survey.w_pos * group.survey.w_neg, group.exponent - top), smallest);
    parallel_ranges(group_threads, n_groups, [&](std::int64_t g) {
        GroupRows<S>& group = groups[g];
        const bool has_pairs = group.has_pairs();
        if (!has_pairs || group.survey.n_pos + group.survey.n_neg < group.n)
            group.clear();  // also for the rows of weight 0
        if (has_pairs)
            group.scale = std::ldexp(total == Total::mean ? 1 / pair_weight : 1,
                                     group.exponent - (total == Total::sum ? 0 : top));
        group.value = has_pairs ? solve_group(group) : 0;
    });
    for (const GroupRows<S>& group : groups) value += group.value;
    if (total == Total::concordance || !(pair_weight > 0)) return {0, value, pair_weight};
    // On the scale of the caller, but neither infinite nor 0.
    return {0, value, std::clamp(std::ldexp(pair_weight, top), smallest, largest)};
}

template <class S>
Answer ordered_as(const Batch& rows, const Question& question, const Outputs& outputs) {
    const double total = ordered_weight(rows),
                 scale = question.mean ? 1 / total : std::ldexp(1.0, rows.exponent);
    if (!(total > 0x1p-900)) return refusal;
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
        const double range = pairs.template sort<S>() + shift,
                     room = std::is_same_v<S, float> ? 0x1p26 : 0x1p9;
        const bool reliable = range < 0x1p500 &&
                              cancellation({question.terms, question.terms + question.n_terms}, range) < room;
        value = reliable ? pairs.run() : no_value;
    };
    if (inner.n_terms == 1 && !rows.winner && !rows.loser && sums[0] && !sums[1] && !sums[2])
        evaluate(OrderedPairs<Results::one_term>(rows, inner, false, sums));
    else if (inner.n_terms > 0)
        evaluate(OrderedPairs<Results::any>(rows, inner, false, sums));
    if (!everywhere.empty()) value += ordered_everywhere<S>(rows, everywhere, sums);
    for (int k = 0; k < 3; ++k)
        for (std::int64_t i = 0; arrays[k] && i < rows.n; ++i)
            static_cast<S*>(arrays[k])[rows.order[i]] = static_cast<S>(scale * sums[k][i] + 0.0);
    return {0, value * scale, std::ldexp(total, rows.exponent)};
}

// The rows of different targets as ranked rows.
Batch ranked_rows(Scratch& keep, Batch batch) {
    std::int64_t *order = keep.take<std::int64_t>(batch.n), *ranks = keep.take<std::int64_t>(batch.n),
                 *offsets = keep.take<std::int64_t>(2);
    double* winner = batch.events ? keep.take<double>(batch.n) : nullptr;
    const PositionedRows rows = sort_targets(keep, batch);
    std::int64_t rank = -1;
    for (std::uint32_t p = 0; p < batch.n; ++p) {
        rank += rows.first_of(p) == p;
        ranks[p] = rank;
        order[p] = rows.rows[p];
        if (winner) winner[p] = rows.wins[p];
    }
    offsets[0] = 0, offsets[1] = batch.n;
    batch.pairs = Pairs::ranked, batch.order = order, batch.ranks = ranks, batch.winner = winner;
    batch.offsets = offsets, batch.n_groups = 1;
    return batch;
}

// The plan for few grades of float32 scores, which sorts nothing.
Answer evaluate_graded(const Batch& batch, const Question& question, const Outputs& outputs) {
    const Term& term = question.terms[0];
    if (batch.events || outputs.hess || outputs.hvp || batch.score_type != Dtype::f32 ||
        batch.n < graded_rows || batch.n >= std::int64_t{1} << 29 || question.n_terms > 1 ||
        !term.truncated || term.b0 != 0 || term.b1 != 0 || !(term.shift >= 0 && term.shift < 0x1p900))
        return refusal;
    Scratch scratch;
    std::uint8_t* grades = scratch.take<std::uint8_t>(batch.n);
    const int n_grades = code_grades(batch, grades),
              threads = batch.n < threaded_rows() ? 1 : question.threads;
    if (n_grades < 2 || batch.n < graded_rows * n_grades) return refusal;
    const GroupRows<float> rows{static_cast<const float*>(batch.scores),
                                grades,
                                nullptr,
                                nullptr,
                                static_cast<float*>(outputs.grad),
                                nullptr,
                                nullptr,
                                batch.n,
                                threads};
    Answer answer{};
    return graded_pairs(rows, n_grades, term, question.mean, answer.value, answer.pair_weight) ? answer
                                                                                               : refusal;
}

Answer evaluate_ordered(const Batch& batch, const Question& question, const Outputs& outputs) {
    if (question.n_terms == 0 || std::abs(batch.exponent) > max_exponent) return refusal;
    Scratch scratch;
    Batch ranked = batch;
    if (batch.pairs == Pairs::targets) {
        const Answer answer = evaluate_graded(batch, question, outputs);
        if (!answer.status && std::isfinite(answer.value)) return answer;
        ranked = ranked_rows(scratch, batch);
    }
    return with_scores(batch.score_type,
                       [&]<class S>(S) { return ordered_as<S>(ranked, question, outputs); });
}

Answer evaluate_binary(const Batch& batch, const Question& original, const Outputs& outputs) {
    return with_scores(batch.score_type, [&]<class S>(S) {
        return over_groups<S>(batch, original.mean ? Total::mean : Total::sum, original.threads, outputs,
                              [&](const GroupRows<S>& rows) { return solve(rows, original); });
    });
}

Answer evaluate(const Batch& batch, const Question& question, const Outputs& outputs) {
    const bool is_binary = batch.pairs == Pairs::binary;
    Answer answer = (is_binary ? evaluate_binary : evaluate_ordered)(batch, question, outputs);
    if (std::isnan(answer.value)) answer.status |= declined;
    return answer;
}

Answer concordance_binary(const Batch& batch, int threads) {
    return with_scores(batch.score_type, [&]<class S>(S) {
        return over_groups<S>(batch, Total::concordance, threads, {},
                              [](const GroupRows<S>& rows) { return rows.scale * concordant_weight(rows); });
    });
}

Answer concordance_ranked(const Batch& rows, int threads) {
    threads = rows.n < threaded_rows() ? 1 : threads;
    // Pairs are counted if all weights are equal, or 0 for winners (censored rows).
    const std::span winner(rows.winner, rows.winner ? rows.n : 0);
    const double w = winner.empty() ? 1 : std::ranges::max(winner);
    if (!rows.loser &&
        std::ranges::all_of(winner, [&](double weight) { return weight == 0 || weight == w; })) {
        const PairCount count =
            with_scores(rows.score_type, [&]<class S>(S) { return count_pairs<S>(rows, threads); });
        return {0, w * (static_cast<double>(count.twice) / 2), w * static_cast<double>(count.pairs)};
    }
    const Term half[2] = {{0, 0.5, 0, 0, true}, {0, 0.5, 0, 0, true}};
    const Question question{half, 2, false, threads};
    OrderedPairs<Results::any> pairs(rows, question, true, {});
    with_scores(rows.score_type, [&]<class S>(S) { return pairs.sort<S>(); });
    return {0, pairs.run(), ordered_weight(rows)};
}

Answer concordance(const Batch& batch, int threads, const RowCounts& of_rows) {
    if (batch.pairs == Pairs::binary) return concordance_binary(batch, threads);
    if (batch.pairs == Pairs::ranked) return concordance_ranked(batch, threads);
    const PairCount count =
        with_scores(batch.score_type, [&]<class S>(S) { return count_pairs<S>(batch, of_rows); });
    return {0, static_cast<double>(count.twice) / 2, static_cast<double>(count.pairs)};
}

double smooth_precision(const Batch& batch, const double* shares, const Piece& piece, int threads,
                        double* grad) {
    return with_scores(batch.score_type,
                       [&]<class S>(S) { return precision_loss<S>(batch, shares, piece, threads, grad); });
}

}  // namespace

extern const Kernels kernels;
constinit const Kernels kernels{evaluate, concordance, make_row_sums, smooth_precision};

}  // namespace everypair::EVERYPAIR_ISA
