// Buckets that were not certified ("heavy" ones): their rows are solved as separate, smaller problems.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "moments.hpp"
#include "profile.hpp"

namespace everypair::EVERYPAIR_ISA {

constexpr int most_buckets = 1 << 13;
constexpr int deepest = 3;

struct Row {
    float score;
    std::uint32_t index;
};

// Data that all levels of one problem share.
struct Target {
    Scale positions;
    double factor;    // 2 b2 x the reduction's scale
    double limit[2];  // by class: the error a row may have
    float* grad;      // may be null
};

// Calls `use` for each block of a list of rows of one class.
template <class Use>
void by_blocks(const Axis& axis, const Row* rows, std::int64_t n, std::uint8_t positive, Use&& use) {
    float scores[block_rows], fractions[block_rows];
    std::uint8_t classes[block_rows];
    std::int32_t slots[block_rows];
    std::fill(classes, classes + block_rows, positive);
    for (std::int64_t i = 0; i < n; i += block_rows) {
        const int count = static_cast<int>(std::min<std::int64_t>(block_rows, n - i));
        for (int k = 0; k < count; ++k) scores[k] = rows[i + k].score;
        locate<true>(axis, scores, classes, count, slots, fractions);
        use(rows + i, slots, fractions, count);
    }
}

// Exact solution pair by pair, for fewer than `few_rows` rows: the rows of the longer list are vectorised.
constexpr int few_rows = 256;
inline double solve_by_pairs(const Row* pos, std::int64_t n_pos, const Row* neg, std::int64_t n_neg, double low, double high,
                             const Outside& outside, const Target& target) {
    const int side = n_pos > n_neg, n_long = static_cast<int>(side ? n_pos : n_neg);  // class of the longer list
    const Row *rows = side ? pos : neg, *others = side ? neg : pos;
    const double sign = side ? -1 : 1;
    const auto write = [&](const Row& row, int of, double u, double sum) {
        const double gradient = of ? -(sum + outside.neg_moment + outside.neg_count * (high - u))
                                   : sum + outside.pos_moment + outside.pos_count * (u - low);
        if (target.grad) target.grad[row.index] = static_cast<float>(target.factor * gradient);
    };
    double at[few_rows], sums[few_rows], squares = 0;
    for (int i = 0; i < n_long; ++i) at[i] = target.positions.u(rows[i].score, side), sums[i] = 0;
    for (std::int64_t j = 0; j < (side ? n_neg : n_pos); ++j) {
        const double u = target.positions.u(others[j].score, 1 - side);
        double sum = 0;
#pragma omp simd reduction(+ : sum, squares)
        for (int i = 0; i < n_long; ++i) {
            const double d = sign * (at[i] - u), part = d > 0 ? d : 0;
            sums[i] += part;
            sum += part;
            squares += part * part;
        }
        write(others[j], 1 - side, u, sum);
    }
    for (int i = 0; i < n_long; ++i) write(rows[i], side, at[i], sums[i]);
    return squares;
}

// Exact solution by sorting both lists, if further buckets do not help.
inline double solve_by_sorting(Row* pos, std::int64_t n_pos, Row* neg, std::int64_t n_neg, double low, double high,
                               const Outside& outside, const Target& target) {
    const auto before = [](const Row& a, const Row& b) {
        return a.score < b.score || (a.score == b.score && a.index < b.index);
    };
    std::sort(pos, pos + n_pos, before);
    std::sort(neg, neg + n_neg, before);
    const auto write = [&](const Row& row, double gradient) {
        if (target.grad) target.grad[row.index] = static_cast<float>(gradient);
    };
    double squares = 0, at = low;
    Moments below, above;
    for (std::int64_t i = 0, j = 0; i < n_neg; ++i) {
        const double u = target.positions.u(neg[i].score, 0);
        for (; j < n_pos && target.positions.u(pos[j].score, 1) < u; ++j) {
            const double v = target.positions.u(pos[j].score, 1);
            below = below.shifted(v - at);
            below.count += 1;
            at = v;
        }
        const Moments met = below.shifted(u - at);
        squares += met.second;
        write(neg[i], target.factor * (met.first + outside.pos_moment + outside.pos_count * (u - low)));
    }
    at = high;
    for (std::int64_t i = n_pos - 1, j = n_neg - 1; i >= 0; --i) {
        const double u = target.positions.u(pos[i].score, 1);
        for (; j >= 0 && target.positions.u(neg[j].score, 0) > u; --j) {
            const double v = target.positions.u(neg[j].score, 0);
            above = above.shifted(at - v);
            above.count += 1;
            at = v;
        }
        const Moments met = above.shifted(at - u);
        write(pos[i], -target.factor * (met.first + outside.neg_moment + outside.neg_count * (high - u)));
    }
    return squares;
}

inline int buckets_for(double n_pos, double n_neg, double range, const double limit[2], int most) {
    // Evenly spread rows have an error of w c / 8, with w = range / B and c = n / B. Rows of heavy buckets are seldom evenly
    // spread, and ten times as many buckets, enough for a hundredfold density, cost less than one more level.
    const double need = 10 * std::sqrt(range / 8 * std::max(n_pos / limit[0], n_neg / limit[1]));
    int buckets = 1;
    while (buckets < most && buckets < need) buckets *= 2;
    return buckets;
}

// Solves the rows of one heavy bucket between `low` and `high`. Returns the sum of d^2 over the pairs inside it, with an error
// of at most `tolerance`.
inline double solve_rows(Row* pos, std::int64_t n_pos, Row* neg, std::int64_t n_neg, double low, double high,
                         const Outside& outside, const Target& target, double tolerance, int depth) {
    double first = high, last = low;
    for (std::int64_t i = 0; i < n_pos; ++i) first = std::min(first, target.positions.u(pos[i].score, 1));
    for (std::int64_t i = 0; i < n_neg; ++i) last = std::max(last, target.positions.u(neg[i].score, 0));
    const std::int64_t n = n_pos + n_neg;
    // If positives and negatives only touch (ties), one bucket of any width is enough.
    if (last <= first) last = first + (high - low);
    if (n < few_rows) return solve_by_pairs(pos, n_pos, neg, n_neg, low, high, outside, target);
    if (depth == deepest || (last - first) < (high - low) * 0x1p-30)
        return solve_by_sorting(pos, n_pos, neg, n_neg, low, high, outside, target);

    const int most = static_cast<int>(std::min<std::int64_t>(4 * most_buckets, n / 4));
    const int buckets = buckets_for(static_cast<double>(n_pos), static_cast<double>(n_neg), last - first, target.limit, most);
    const Axis axis = axis_over(target.positions, first, last, buckets);
    const Outside around{outside.pos_count, outside.pos_moment + outside.pos_count * (first - low), outside.neg_count,
                         outside.neg_moment + outside.neg_count * (high - axis.end())};
    Scratch scratch;
    Tallies tallies(scratch, axis, n);
    Line<float>* lines = scratch.take<Line<float>>(axis.slots());
    Heavy* heavy = scratch.take<Heavy>(buckets);
    tallies.clear();
    tallies.take_squares(scratch);
    tallies.clear_squares();
    const auto count_rows = [&](const Row*, const std::int32_t* slots, const float* fractions, int count) {
        tallies.add(slots, fractions, count);
        tallies.add_squares(slots, fractions, count);
    };
    by_blocks(axis, pos, n_pos, 1, count_rows);
    by_blocks(axis, neg, n_neg, 0, count_rows);
    tallies.spill();
    Profile profile(scratch, axis);
    if (tallies.wide)
        profile.read(axis, tallies.wide);
    else
        profile.read(axis, tallies.rows);
    profile.read_squares(axis, tallies.squares);
    profile.sweep(axis, {});
    const Estimate all = profile.pair_squares(axis);
    profile.sweep(axis, around);
    profile.draw(axis, target.factor, lines);
    const int n_heavy = profile.list_heavy(axis, target.limit, all, tolerance, heavy);
    mark_unsolved(lines, heavy, n_heavy, target.factor);

    std::int64_t n_rest = 0;
    std::int64_t* next = scratch.take<std::int64_t>(axis.slots());
    for (int h = 0; h < n_heavy; ++h) {
        next[2 * heavy[h].bucket + 1] = n_rest;
        next[2 * heavy[h].bucket] = n_rest + heavy[h].n_pos;
        n_rest += heavy[h].n_pos + heavy[h].n_neg;
    }
    Row* rest = scratch.take<Row>(static_cast<std::size_t>(n_rest));
    const auto evaluate_rows = [&](const Row* rows, const std::int32_t* slots, const float* fractions, int count) {
        float grad[block_rows];
        look_up(lines, slots, fractions, count, grad);
        take_unsolved(grad, count, [&](int i) { rest[next[slots[i]]++] = rows[i]; });
        if (target.grad)
            for (int i = 0; i < count; ++i) target.grad[rows[i].index] = grad[i];
    };
    by_blocks(axis, pos, n_pos, 1, evaluate_rows);
    by_blocks(axis, neg, n_neg, 0, evaluate_rows);
    double squares = all.value;
    for (int h = 0; h < n_heavy; ++h) {
        squares -= profile.inside(heavy[h].bucket).squares().value;
        squares += solve_rows(rest, heavy[h].n_pos, rest + heavy[h].n_pos, heavy[h].n_neg, heavy[h].low, heavy[h].high,
                              heavy[h].outside, target, tolerance / n_heavy, depth + 1);
        rest += heavy[h].n_pos + heavy[h].n_neg;
    }
    return squares;
}

}  // namespace everypair::EVERYPAIR_ISA
