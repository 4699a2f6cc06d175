// Plan for several truncated terms b2 d^2 over float32 scores whose knots lie on a common grid: two passes,
// without a sort.
//
// If the width of the buckets divides the step of the grid, the same buckets serve all terms: a negative that
// a term moves by k buckets keeps its fraction. One pass counts the rows, as in certified.hpp, and the lines
// of all terms, moved accordingly, add up to one line in each bucket. The sum is in double, because the terms
// may nearly cancel.
//
// The contribution phi(f) of a row's own bucket (certified.hpp) lies between c (f - m)+ and its chord c (1 -
// m) f, which differ by at most c m (1 - m). The chord less half of that is a line without a kink, with an
// error of at most w c m (1 - m) / 2. For ties or near ties the lower bound is better: its error is at most w
// c s / 2, where s is the standard deviation of the fractions. It has a kink, and a line can have one; the
// term for which it reduces the error most gets it. If the errors of all terms together exceed the limit of a
// row, nothing is written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "certified.hpp"

namespace everypair::EVERYPAIR_ISA {

// Returns the step of the coarsest grid that contains all knots, with at most 64 steps between neighbours; 0
// if there is none, infinity if all knots are equal.
inline double common_step(std::span<const Term> terms, double reach) {
    double least = std::numeric_limits<double>::infinity();
    for (const Term& term : terms)
        if (term.shift < reach) least = std::min(least, reach - term.shift);
    for (int parts = 1; parts <= 64; ++parts) {
        bool all = true;
        for (const Term& term : terms) {
            const double steps = (reach - term.shift) / least * parts;
            all &= std::abs(steps - std::round(steps)) < 0x1p-40 * (1 + steps);
        }
        if (all) return least / parts;
    }
    return 0;
}

// The sums of the buckets, with the means and the variances of the fractions.
struct GridSums : BucketSums {
    double *mean[2], *variance[2];

    GridSums(Scratch& scratch, const BucketSums& sums) : BucketSums(sums) {
        for (int side = 0; side < 2; ++side) {
            double* m = mean[side] = scratch.take<double>(n_buckets);
            double* v = variance[side] = scratch.take<double>(n_buckets);
            const double *n = rows[side], *f = fractions[side], *q = squares[side];
#pragma omp simd
            for (int b = 0; b < n_buckets; ++b) {
                const double inverse = n[b] > 0x1p-900 ? 1 / n[b] : 0;
                m[b] = f[b] * inverse;
                const double left = q[b] * inverse - m[b] * m[b];
                v[b] = left > 0 ? left : 0;
            }
        }
    }
};

// The lines of a few slots of one class, the bounds of their errors, and the terms for which a kink reduces
// the error most.
struct LineSums {
    static constexpr int some = 64;
    double start[some] = {}, rise[some] = {}, doubt[some] = {};
    double gain[some] = {}, amount[some] = {}, mean[some] = {};

    // Adds a term to the slots of the buckets first .. last - 1, the first of which is slot k. The rows of
    // the other class are those of the buckets from `met` on. For a negative phi increases with f, for a
    // positive it decreases.
    template <int side>
    void add(const GridSums& all, int k, int count, int met, double factor) {
        const double *n = all.rows[1 - side] + met, *means = all.mean[1 - side] + met,
                     *variance = all.variance[1 - side] + met, *others = all.others[side] + met,
                     *moment = all.moment[side] + met;
#pragma omp simd
        for (int b = 0; b < count; ++b) {
            const double outside = factor * moment[b], slope = factor * others[b], c = factor * n[b];
            const double m = means[b], gap = c * m * (1 - m) / 2, error = std::abs(gap);
            start[k + b] += side ? gap - c * m - (outside + slope) : outside - gap;
            rise[k + b] += slope + (side ? c * m : c * (1 - m));
            doubt[k + b] += error;
            // The sums have 24 bits, so the variance has an error of about 2^-22.
            const double gained = error - std::abs(c) * std::sqrt(variance[b] + 0x1p-22) / 2;
            const bool better = gained > gain[k + b];
            gain[k + b] = better ? gained : gain[k + b];
            amount[k + b] = better ? c : amount[k + b];
            mean[k + b] = better ? m : mean[k + b];
        }
    }

    // With a kink in place of the chord of one term, if it gains anything.
    template <int side>
    Line<float> line(int k) const {
        const double gap = amount[k] * mean[k] * (1 - mean[k]) / 2, turn = amount[k] * (1 - mean[k]);
        return {static_cast<float>(side ? start[k] - gap : start[k] + gap),
                static_cast<float>(side ? rise[k] + turn : rise[k] - turn),
                static_cast<float>(side ? -amount[k] : amount[k]), static_cast<float>(mean[k])};
    }
};

// The axis for several terms and, by term, the number of buckets by which it moves the negatives.
struct Grid {
    static constexpr std::size_t most_terms = 16;  // each term has its own tables

    // With about `most` buckets. `exists` is false if the terms have no common grid.
    Grid(std::span<const Term> given, const Survey& survey, int most) : terms(given) {
        const double reach = std::ranges::max(terms, {}, &Term::shift).shift;
        const double range = survey.max_neg - survey.min_pos + reach,
                     step = std::min(common_step(terms, reach), range);
        // If the reach is far larger than the range, the positions have too few digits.
        exists = terms.size() <= most_terms && step > 0 && range <= most * step &&
                 std::abs(reach) <= 0x1p24 * range;
        if (!exists) return;
        // Slightly beyond the end of place 0, so that the lowest positive is in place 1.
        const double width = step / std::ceil(step * most / range), forward = (1 + 0x1p-40) * width;
        const int cells = static_cast<int>(range / width) + 2;
        axis = {survey.min_pos, reach, {reach + forward, forward}, 1 / width, cells, cells};
        for (std::size_t j = 0; j < terms.size(); ++j)
            moved[j] = static_cast<int>(std::lround((reach - terms[j].shift) / width));
    }

    // Computes the value and the lines of all slots. Returns false if an error bound is too large.
    bool draw(const GridSums& sums, double scale, Line<float>* lines, double& value) const {
        const double unit = axis.width();
        double total = 0, doubt = 0;
        value = 0;
        for (std::size_t j = 0; j < terms.size(); ++j) {
            const double factor = 2 * terms[j].b2 * scale;
            double squares = 0, doubts = 0, distances = 0;
            add_pairs(sums, moved[j], squares, doubts, distances);
            value += factor / 2 * squares * unit * unit;
            doubt += std::abs(factor) / 2 * doubts * unit * unit;
            total += factor * distances * unit;
        }
        return doubt <= own_slack * std::abs(value) && draw<0>(sums, scale * unit, total, lines) &&
               draw<1>(sums, scale * unit, total, lines);
    }

    const std::span<const Term> terms;
    bool exists;
    Axis axis;

  private:
    // Adds up d^2, its error bound and d over the pairs of a term that moves the negatives down by so many
    // buckets; those of different buckets exactly, as sums of positive numbers.
    void add_pairs(const GridSums& sums, int by, double& squares, double& doubt, double& distances) const {
        const double *n0 = sums.rows[0] + by, *n1 = sums.rows[1], *f0 = sums.fractions[0] + by,
                     *f1 = sums.fractions[1], *q0 = sums.squares[0] + by, *q1 = sums.squares[1],
                     *below = sums.others[0], *above = sums.others[1] + by, *moment = sums.moment[0];
        const double *m0 = sums.mean[0] + by, *m1 = sums.mean[1], *v0 = sums.variance[0] + by,
                     *v1 = sums.variance[1];
        double value = 0, error = 0, firsts = 0;
#pragma omp simd reduction(+ : value, error, firsts)
        for (int b = 0; b < sums.n_buckets - by; ++b) {
            const OwnSquares<double> own(n0[b], n1[b], m0[b], m1[b], v0[b], v1[b]);
            const double step = 2 * moment[b] + below[b] + n1[b] - 2 * f1[b] + q1[b];
            value += own.value + 2 * moment[b] * f0[b] + below[b] * q0[b] + step * above[b];
            error += own.doubt;
            firsts += n0[b] * moment[b] + below[b] * f0[b];
        }
        squares = value, doubt = error, distances = firsts;
    }

    template <int side>
    bool draw(const GridSums& all, double scale, double total, Line<float>* lines) const {
        const int n = axis.buckets + 2;
        Largest<double> greatest(0), steepest(0), worst(0), worst_by_weight(0);
        for (int from = 0; from < n; from += LineSums::some) {
            const int to = std::min(from + LineSums::some, n);
            LineSums sums;
            for (std::size_t j = 0; j < terms.size(); ++j) {
                // The other class is in the buckets b - moved for negatives, and b + moved for positives.
                const int met = side ? moved[j] : -moved[j];
                const int first = std::max(from, side ? 1 : 1 + moved[j]),
                          last = side ? std::min(to, n - moved[j]) : to;
                sums.add<side>(all, first - from, last - first, first + met, 2 * terms[j].b2 * scale);
            }
            for (int b = from; b < to; ++b) lines[2 * b + side] = sums.line<side>(b - from);
            const double* heaviest = all.heaviest[side] + from;
            const int count = to - from;
            double least_gradients[LineSums::some], most_gradients[LineSums::some], errors[LineSums::some],
                weighted_errors[LineSums::some];
#pragma omp simd
            for (int k = 0; k < count; ++k) {
                // The smallest and the largest possible gradient in this bucket.
                const double start = sums.start[k], end = start + sums.rise[k], first = std::abs(start),
                             last = std::abs(end);
                const double least = start * end > 0 ? (first < last ? first : last) : 0,
                             most = first > last ? first : last;
                const double w = heaviest[k], left = w > 0 ? sums.doubt[k] - sums.gain[k] : 0;
                least_gradients[k] = w * least, most_gradients[k] = w * most;
                errors[k] = left, weighted_errors[k] = w * left;
            }
            greatest.add(least_gradients, count), steepest.add(most_gradients, count);
            worst.add(errors, count), worst_by_weight.add(weighted_errors, count);
        }
        // Lines are rounded to float32, so no line may be much larger than the gradients, or denormal.
        const double most = greatest.value();
        return worst_by_weight.value() <= slack * most &&
               worst.value() <= 16 * slack * std::abs(total) / all.active(side) &&
               steepest.value() <= 2 * most && most > 0x1p-90;
    }

    int moved[most_terms];
};

// As `certified_term`, for several terms; scale includes the mean weights. Returns false if an exact plan
// must be used.
inline bool certified_terms(const GroupRows<float>& rows, std::span<const Term> terms, double scale, int most,
                            double& value) {
    const Grid grid(terms, rows.survey, most);
    if (!grid.exists) return false;
    Scratch scratch;
    AxisRows on(scratch, rows, grid.axis);
    Line<float>* lines = scratch.take<Line<float>>(grid.axis.slots());
    if (!grid.draw(GridSums(scratch, on.bucket_sums(scratch)), scale, lines, value)) return false;
    const int slices = slice_count(rows.n, rows.threads);
    HeavyRows none(scratch, rows, grid.axis, nullptr, 0, slices);
    if (rows.grad) on.write(scratch, lines, none, slices);
    return true;
}

}  // namespace everypair::EVERYPAIR_ISA
