// Computes the line that gives the gradient in each bucket from the counts of an axis, and the gradients of
// the rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "axis.hpp"

namespace everypair::EVERYPAIR_ISA {

// Allowed relative errors: of a gradient, and of the loss due to pairs of one bucket.
constexpr double slack = 0x1.8p-21, own_slack = 0x1p-22;

// The gradient in a bucket as a function of the fraction f: c + d f + k (f - m)+.
template <class T>
struct Line {
    T c, d, k, m;
};

// A bucket that was not certified.
struct Heavy {
    int bucket;
    double rows[2];               // their number or weight, by class
    double low, high;             // its edges
    double others[2], moment[2];  // as in Profile
    double own;                   // the estimate of the sum of d^2 over the pairs inside it
};

// A number and a bound of its error.
struct Estimate {
    double value, doubt;

    // The error bound of pairs of one bucket that the loss may have.
    double tolerance() const { return value > doubt ? own_slack * (value - doubt) : 0; }
};

// The sums of each bucket, by class of its rows.
struct Profile {
    double* widths;
    double* rows[2];                    // their number or weight
    double *fractions[2], *squares[2];  // sums of the fractions of rows, and of the squares of these
    double* inverse[2];                 // 1 / rows, 0 if there are none
    double* heaviest[2];                // the largest weight of a row; 1 without weights, 0 if there are none
    double one;                         // the estimates are exact for so many pairs; 0 with weights
    double variance_error;              // of the variances of fractions
    // Number and sum of distances of the rows of the other class: below the left edge of the bucket for class
    // 0, above its right edge for class 1.
    double *others[2], *moment[2];
    double total;      // sum of d over the pairs of different buckets
    double active[2];  // number of rows that may have pairs: those on the axis

    // `tables` has the sums of each slice, by slot.
    template <class Slot>
    Profile(Scratch& scratch, const Axis& axis, const Slot* tables, int slices)
        : widths(scratch.take<double>(axis.buckets + 2)),
          one(!Slot::is_weighted),
          variance_error(Slot::variance_error) {
        measure(axis, widths);
        for (double** array : {rows, fractions, squares, inverse, heaviest, others, moment})
            for (int side = 0; side < 2; ++side) array[side] = scratch.take<double>(axis.buckets + 2);
        for (int slice = 0; slice < slices; ++slice)
            for (int side = 0; side < 2; ++side) {
                const Slot* table = tables + slice * axis.slots() + side;
                double* most = heaviest[side];
                read_table(table, 2, axis.buckets + 2, slice > 0, rows[side], fractions[side], squares[side]);
                for (int b = 0; b < axis.buckets + 2; ++b)
                    most[b] = std::max(table[2 * b].heaviest(), slice ? most[b] : 0);
            }
        for (int side = 0; side < 2; ++side) {
            const double* n = rows[side];
            double* inverted = inverse[side];
#pragma omp simd
            for (int b = 0; b < axis.buckets + 2; ++b) inverted[b] = n[b] > 0x1p-900 ? 1 / n[b] : 0;
        }
        sweep(axis);
    }

    // Both sweeps run in one loop: each is a chain of dependent additions, and the two chains run in
    // parallel.
    void sweep(const Axis& axis) {
        const int n = axis.buckets + 2;
        double below = 0, below_moment = 0, above = 0, above_moment = 0;
        for (int b = 0, e = n - 1; b < n; ++b, --e) {
            others[0][b] = below;
            moment[0][b] = below_moment;
            below_moment += (below + (rows[1][b] - fractions[1][b])) * widths[b];
            below += rows[1][b];
            others[1][e] = above;
            moment[1][e] = above_moment;
            above_moment += (above + fractions[0][e]) * widths[e];
            above += rows[0][e];
        }
        total = distances(axis, 0);
        active[0] = above - rows[0][0] - rows[0][n - 1];
        active[1] = below - rows[1][0] - rows[1][n - 1];
    }

    // The sum of d over the pairs of different buckets, if all negatives are moved down by `moved` buckets of
    // equal width.
    double distances(const Axis& axis, int moved) const {
        const double *n = rows[0] + moved, *f = fractions[0] + moved;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int b = 0; b < axis.buckets + 2 - moved; ++b)
            sum += n[b] * moment[0][b] + others[0][b] * f[b] * widths[b];
        return sum;
    }

    // The sums of one bucket: [0] for negatives, [1] for positives.
    struct Inside {
        double n[2], f[2], q[2], inverse[2], width;
        double one = 1;  // as in Profile

        // Estimates the sum of d^2 over the pairs inside: half of the sum `all` of their squared differences,
        // corrected by the difference of the class means. The error is at most half of `all`.
        Estimate squares() const {
            const double pairs = n[0] * n[1], half = pairs > 0 ? 0.5 * width * width : 0;
            const double all = n[1] * q[0] + n[0] * q[1] - 2 * f[0] * f[1];
            const double apart = n[1] * f[0] - n[0] * f[1], known = apart * apart * inverse[0] * inverse[1];
            // For two single rows, or two clusters of ties, the result is exact up to the rounding of `all`.
            const double doubt = ((pairs > one) & (all - known > 0x1p-20 * all)) ? all : 0;
            return {half * (all + (apart > 0 ? known : -known)), half * doubt};
        }
    };
    Inside inside(int b) const {
        return {{rows[0][b], rows[1][b]},
                {fractions[0][b], fractions[1][b]},
                {squares[0][b], squares[1][b]},
                {inverse[0][b], inverse[1][b]},
                widths[b],
                one};
    }

    // The sum of d^2 over all pairs of rows on this axis, with negatives moved as in `distances`; exact for
    // pairs of different buckets, as a sum of positive numbers.
    Estimate pair_squares(const Axis& axis, int moved = 0) const {
        const double *n0 = rows[0] + moved, *n1 = rows[1], *f0 = fractions[0] + moved, *f1 = fractions[1],
                     *q0 = squares[0] + moved, *q1 = squares[1], *i0 = inverse[0] + moved, *i1 = inverse[1],
                     *wide = widths, *met = others[0], *first = moment[0], one = this->one;
        constexpr int some = 64;
        const int n_buckets = axis.buckets + 2 - moved;
        double own = 0, doubt = 0, sum = 0, below = 0,
               steps[some];  // below: sum of squares of the distances of the positives below
        for (int from = 0; from < n_buckets; from += some) {
            const int to = std::min(from + some, n_buckets);
#pragma omp simd reduction(+ : own, doubt, sum)
            for (int b = from; b < to; ++b) {
                const Inside here{{n0[b], n1[b]}, {f0[b], f1[b]}, {q0[b], q1[b]},
                                  {i0[b], i1[b]}, wide[b],        one};
                own += here.squares().value;
                doubt += here.squares().doubt;
                steps[b - from] = wide[b] * (2 * first[b] + wide[b] * (met[b] + n1[b] - 2 * f1[b] + q1[b]));
                sum += wide[b] * (2 * first[b] * f0[b] + wide[b] * met[b] * q0[b]);
            }
            for (int b = from; b < to; ++b) {
                sum += n0[b] * below;
                below += steps[b - from];
            }
        }
        return {sum + own, doubt};
    }

    // The error that a row of weight 1 of this class may have: `slack` times the largest gradient of a row of
    // the class, or less, over the largest weight, or sixteen times the mean. It is 0 if the lines, which are
    // rounded to float32, may be much larger than the largest gradient.
    double limit(const Axis& axis, int side) const {
        // From the first bucket inside on.
        const double *heavy = heaviest[side] + 1, *met = moment[side] + 1, *counts = others[side] + 1;
        const double *own = rows[1 - side] + 1, *wide = widths + 1;
        Largest<double> least(0), greatest(0), weight(0);
        least.add(axis.buckets, [=](std::int64_t b) { return heavy[b] * met[b]; });
        greatest.add(axis.buckets,
                     [=](std::int64_t b) { return heavy[b] * (met[b] + wide[b] * (counts[b] + own[b])); });
        weight.add(heavy, axis.buckets);
        const double most = least.value(), top = weight.value();
        return greatest.value() <= 2 * most && top > 0
                   ? slack * std::min(most / top, 16 * total / active[side])
                   : 0;
    }

    // The standard deviation of the fractions, or more.
    double deviation(int side, int b) const {
        const double mean = fractions[side][b] * inverse[side][b];
        const double variance = squares[side][b] * inverse[side][b] - mean * mean;
        return std::sqrt((variance > 0 ? variance : 0) + variance_error);
    }

    // The weight of the chord in the average of the two bounds: 0 if the lower bound alone has a smaller
    // error.
    double chord(int side, int b) const {
        const double mean = fractions[side][b] * inverse[side][b];
        return deviation(side, b) > mean * (1 - mean) ? 0.5 : 0;
    }

    // Computes the lines of all buckets; `factor` is the gradient per unit of d.
    void draw(const Axis& axis, double factor, Line<float>* lines) const {
#pragma omp simd
        for (int b = 0; b < axis.buckets + 2; ++b) {
            const double own = rows[1][b], sum = fractions[1][b], scale = factor * widths[b];
            const double chord = this->chord(1, b);
            lines[2 * b] = {static_cast<float>(factor * moment[0][b]),
                            static_cast<float>(scale * (others[0][b] + chord * (own - sum))),
                            static_cast<float>(scale * (1 - chord) * own),
                            static_cast<float>(sum * inverse[1][b])};
        }
#pragma omp simd
        for (int b = 0; b < axis.buckets + 2; ++b) {
            const double own = rows[0][b], sum = fractions[0][b], scale = factor * widths[b];
            const double chord = this->chord(0, b);
            // The mirror image, with (m - f)+ = (f - m)+ - f + m.
            lines[2 * b + 1] = {static_cast<float>(-factor * moment[1][b] - scale * (others[1][b] + sum)),
                                static_cast<float>(scale * (others[1][b] + (1 - chord) * own + chord * sum)),
                                static_cast<float>(-scale * (1 - chord) * own),
                                static_cast<float>(sum * inverse[0][b])};
        }
    }

    // Returns whether the error of some row in the buckets from .. to - 1 may exceed the limit of its class.
    // The error is at most c m (1 - m) / 2 widths, where c m is the sum of fractions of the other class, and
    // 0 if c = 1. The loop has no divisions and no branches, so that it is vectorised. The error is also at
    // most c s / 2 widths, where s is the standard deviation.
    bool exceeds(const double limit[2], int from, int to) const {
        int bad = 0;
        for (int side = 0; side < 2; ++side) {
            const double *mine = rows[side], *other = rows[1 - side], *sums = fractions[1 - side],
                         most = 2 * limit[side];
#pragma omp simd reduction(| : bad)
            for (int b = from; b < to; ++b)
                bad |= (mine[b] > 0) & (sums[b] * (other[b] - sums[b]) * widths[b] > most * other[b]) &
                       (other[b] > one) & (other[b] * deviation(1 - side, b) * widths[b] >= most);
        }
        return bad;
    }

    // Lists the buckets that are not certified: those with rows whose error may exceed the limit of their
    // class, and, if the total error bound of the loss exceeds the tolerance, those with the largest error
    // bounds.
    int list_heavy(const Axis& axis, const double limit[2], const Estimate& all, Heavy* heavy) const {
        constexpr int few = 32;
        const double tolerance = all.tolerance();
        double doubtful = std::numeric_limits<double>::infinity();
        if (all.doubt > tolerance) {
            int n_doubts = 0;
            for (int b = 1; b <= axis.buckets; ++b) n_doubts += inside(b).squares().doubt > 0;
            doubtful = tolerance / n_doubts;
        }
        int n_heavy = 0;
        for (int from = 1; from <= axis.buckets; from += few) {
            const int to = std::min(from + few, axis.buckets + 1);
            if (all.doubt <= tolerance && !exceeds(limit, from, to)) continue;
            for (int b = from; b < to; ++b)
                if (exceeds(limit, b, b + 1) || inside(b).squares().doubt > doubtful)
                    heavy[n_heavy++] = {b,
                                        {rows[0][b], rows[1][b]},
                                        axis.edge(b),
                                        axis.edge(b) + widths[b],
                                        {others[0][b], others[1][b]},
                                        {moment[0][b], moment[1][b]},
                                        inside(b).squares().value};
        }
        return n_heavy;
    }
};

// Sets the lines of heavy buckets to NaN, but keeps the slope that comes from pairs of different buckets.
inline void mark_unsolved(Line<float>* lines, const Heavy* heavy, int n_heavy, double factor) {
    const float none = std::numeric_limits<float>::quiet_NaN();
    for (int h = 0; h < n_heavy; ++h) {
        const double scale = factor * (heavy[h].high - heavy[h].low);
        lines[2 * heavy[h].bucket] = {none, static_cast<float>(scale * heavy[h].others[0]), 0, 0};
        lines[2 * heavy[h].bucket + 1] = {none, static_cast<float>(scale * heavy[h].others[1]), 0, 0};
    }
}

// Computes the gradients of a block, four rows at a time: a line is one 16-byte load, and a transposition
// turns four lines into vectors of c, d, k and m. Returns the sum of d f^2, which the loss needs for the
// squares of the fractions.
inline float look_up(const Line<float>* lines, const std::int32_t* slots, const std::int32_t* fractions,
                     int count, float* grad) {
    typedef float Four __attribute__((vector_size(16)));
    typedef std::int32_t FourInts __attribute__((vector_size(16)));
    const Four* table = reinterpret_cast<const Four*>(lines);
    Four squares{};
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        const Four w = table[slots[i]], x = table[slots[i + 1]], y = table[slots[i + 2]],
                   z = table[slots[i + 3]];
        const Four cd0 = shuffle<0, 4, 1, 5>(w, x), km0 = shuffle<2, 6, 3, 7>(w, x);
        const Four cd1 = shuffle<0, 4, 1, 5>(y, z), km1 = shuffle<2, 6, 3, 7>(y, z);
        const Four c = shuffle<0, 1, 4, 5>(cd0, cd1), d = shuffle<2, 3, 6, 7>(cd0, cd1);
        const Four k = shuffle<0, 1, 4, 5>(km0, km1), m = shuffle<2, 3, 6, 7>(km0, km1);
        FourInts fixed;
        std::memcpy(&fixed, fractions + i, sizeof fixed);
        const Four f = __builtin_convertvector(fixed, Four) * 0x1p-24f, past = f - m;
        squares += d * f * f;
        const Four result = c + d * f + k * (past > 0.0f ? past : past - past);
        std::memcpy(grad + i, &result, sizeof result);
    }
    for (; i < count; ++i) {
        const Line<float>& line = lines[slots[i]];
        const float f = static_cast<float>(fractions[i]) * 0x1p-24f, past = f - line.m;
        squares[0] += line.d * f * f;
        grad[i] = line.c + line.d * f + line.k * (past > 0 ? past : 0);
    }
    return (squares[0] + squares[1]) + (squares[2] + squares[3]);
}

// Calls `use` for each row of a block whose gradient is NaN, and sets that gradient to 0. One byte for each
// row, eight of which are tested at once.
template <class Use>
void take_unsolved(float* grad, int count, Use&& use) {
    std::uint8_t unsolved[block_rows + 8];
    for (int i = 0; i < count; ++i) unsolved[i] = grad[i] != grad[i];
    std::memset(unsolved + count, 0, 8);
    for (int from = 0; from < count; from += 8) {
        std::uint64_t eight;
        std::memcpy(&eight, unsolved + from, sizeof eight);
        for (; eight; eight &= eight - 1) {
            const int i = from + std::countr_zero(eight) / 8;
            grad[i] = 0;
            use(i);
        }
    }
}

}  // namespace everypair::EVERYPAIR_ISA
