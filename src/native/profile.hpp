// From the counts of an axis to the line that gives the gradient in each bucket, and to the rows' gradients.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "axis.hpp"
#include "crowd.hpp"

namespace everypair::EVERYPAIR_ISA {

// What lies outside an axis: positives below its start, negatives above its end.
struct Outside {
    double pos_count = 0, pos_moment = 0;  // moment: sum of (start - u_pos)
    double neg_count = 0, neg_moment = 0;  // moment: sum of (u_neg - end)
};

// Gradient in a bucket: c + d f + k (f - m)+.
template <class T>
struct Line {
    T c, d, k, m;
};

// A bucket that was not certified, with what surrounds it.
struct Heavy {
    int bucket;
    std::int64_t n_pos, n_neg;
    double low, high;  // its edges
    Outside outside;
};

// A number, and how wrong it may be.
struct Estimate {
    double value, doubt;

    double least() const { return value > doubt ? value - doubt : 0; }
};

// What is known of each bucket, by class of its rows.
struct Profile {
    double* widths;
    double *rows[2], *fractions[2], *squares[2];  // number of rows, sums of their fractions and of the squares of these
    double *others[2],
        *moment[2];  // of the opposite class, beyond the bucket: below its left edge (class 0), above its right (1)
    double total;    // sum of d over the pairs of different buckets

    Profile(Scratch& scratch, const Axis& axis) : widths(scratch.take<double>(axis.buckets + 2)) {
        measure(axis, widths);
        for (double** array : {rows, fractions, squares, others, moment})
            for (int side = 0; side < 2; ++side) array[side] = scratch.take<double>(axis.buckets + 2);
    }

    template <class AnyTally>
    void read(const Axis& axis, const AnyTally* tallies) {
        for (int b = 0; b < axis.buckets + 2; ++b)
            for (int side = 0; side < 2; ++side) {
                const AnyTally tally = tallies[2 * b + side];
                rows[side][b] = tally.rows();
                fractions[side][b] = tally.fractions();
                squares[side][b] = tally.squares();
            }
    }

    // Both sweeps in one loop: each is a chain of additions, and two chains run side by side.
    void sweep(const Axis& axis, const Outside& outside) {
        const int n = axis.buckets + 2;
        double below = outside.pos_count, below_moment = outside.pos_moment - below * widths[0];
        double above = outside.neg_count, above_moment = outside.neg_moment - above * widths[n - 1];
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
        total = 0;
        for (int b = 0; b < n; ++b) total += rows[0][b] * moment[0][b] + others[0][b] * fractions[0][b] * widths[b];
    }

    // The pairs inside a bucket: half of all their squares, or all or nothing where one class lies above the other. Between
    // nothing and all of what is not explained by the distance of the classes' means, it cannot be wrong by more than half of
    // `all`.
    Estimate own_squares(int b) const {
        const double n_neg = rows[0][b], n_pos = rows[1][b], f_neg = fractions[0][b], f_pos = fractions[1][b];
        const double all = n_pos * squares[0][b] + n_neg * squares[1][b] - 2 * f_neg * f_pos;
        const double apart = n_pos * f_neg - n_neg * f_pos, pairs = n_pos * n_neg, half = 0.5 * widths[b] * widths[b];
        if (!(pairs > 0)) return {0, 0};
        // Two single rows, or two clusters of ties, leave no doubt but the rounding of `all`.
        const double known = apart * apart / pairs, unknown = pairs > 1 ? all - known : 0;
        return {half * (all + apart * std::abs(apart) / pairs), half * (unknown > 0x1p-20 * all ? unknown + known : 0)};
    }

    // The sum of d^2 over all pairs of rows on this axis: those of different buckets exactly, as a sum of positive numbers.
    Estimate pair_squares(const Axis& axis) const {
        Crowd below;
        Estimate sum{0, 0};
        for (int b = 0; b < axis.buckets + 2; ++b) {
            const double w = widths[b], n_pos = rows[1][b], f_pos = fractions[1][b];
            const Estimate own = own_squares(b);
            sum.value += own.value + rows[0][b] * below.second +
                         w * (2 * below.first * fractions[0][b] + w * below.count * squares[0][b]);
            sum.doubt += own.doubt;
            below.move(w, {n_pos, w * (n_pos - f_pos), w * w * (n_pos - 2 * f_pos + squares[1][b])});
        }
        return sum;
    }

    // By class: rows that can meet any other, and the greatest sum of d that one of them meets.
    double active(const Axis& axis, int side) const {
        double sum = 0;
        for (int b = 1; b <= axis.buckets; ++b) sum += rows[side][b];
        return sum;
    }
    double greatest(const Axis& axis, int side) const {
        return side ? moment[1][0] + others[1][0] * widths[0] : moment[0][axis.buckets + 1];
    }

    // The lines of all buckets; `factor` is the gradient's per unit of d.
    template <class T>
    void draw(const Axis& axis, double factor, Line<T>* lines) const {
#pragma omp simd
        for (int b = 0; b < axis.buckets + 2; ++b) {
            const double own = rows[1][b], sum = fractions[1][b], scale = factor * widths[b];
            const double chord = own > 1 ? 0.5 : 0;  // its share in the average of the two bounds
            lines[2 * b] = {static_cast<T>(factor * moment[0][b]), static_cast<T>(scale * (others[0][b] + chord * (own - sum))),
                            static_cast<T>(scale * (1 - chord) * own), static_cast<T>(sum / (own > 0 ? own : 1))};
        }
#pragma omp simd
        for (int b = 0; b < axis.buckets + 2; ++b) {
            const double own = rows[0][b], sum = fractions[0][b], scale = factor * widths[b];
            const double chord = own > 1 ? 0.5 : 0;
            // The mirror image, with (m - f)+ = (f - m)+ - f + m.
            lines[2 * b + 1] = {static_cast<T>(-factor * moment[1][b] - scale * (others[1][b] + sum)),
                                static_cast<T>(scale * (others[1][b] + (1 - chord) * own + chord * sum)),
                                static_cast<T>(-scale * (1 - chord) * own), static_cast<T>(sum / (own > 0 ? own : 1))};
        }
    }

    // Does the error of some row in buckets from .. to - 1 exceed the limit of its class? It is own m (1 - m) / 2 widths at
    // most, with own m the sum of fractions; nothing where there is a single other row. Neither divisions nor branches: this
    // vectorises.
    bool exceeds(const double limit[2], int from, int to) const {
        int bad = 0;
        for (int side = 0; side < 2; ++side) {
            const double *mine = rows[side], *other = rows[1 - side], *sums = fractions[1 - side], most = 2 * limit[side];
#pragma omp simd reduction(| : bad)
            for (int b = from; b < to; ++b)
                bad |= (mine[b] > 0) & (other[b] > 1) & (sums[b] * (other[b] - sums[b]) * widths[b] > most * other[b]);
        }
        return bad;
    }

    // Lists the buckets that are not certified: rows whose error may exceed the limit of their class, or pairs whose squares
    // are too doubtful, where all doubts together exceed what the loss may be wrong by.
    int list_heavy(const Axis& axis, const double limit[2], const Estimate& all, double tolerance, Heavy* heavy) const {
        constexpr int few = 32;
        double low = axis.start, doubtful = std::numeric_limits<double>::infinity();
        if (all.doubt > tolerance) {
            int n_doubts = 0;
            for (int b = 1; b <= axis.buckets; ++b) n_doubts += own_squares(b).doubt > 0;
            doubtful = tolerance / n_doubts;
        }
        int found = 0;
        for (int from = 1; from <= axis.buckets; from += few) {
            const int to = std::min(from + few, axis.buckets + 1);
            const bool some = all.doubt > tolerance || exceeds(limit, from, to);
            for (int b = from; b < to; ++b) {
                if (some && (exceeds(limit, b, b + 1) || own_squares(b).doubt > doubtful))
                    heavy[found++] = {b,
                                      static_cast<std::int64_t>(rows[1][b]),
                                      static_cast<std::int64_t>(rows[0][b]),
                                      low,
                                      low + widths[b],
                                      {others[0][b], moment[0][b], others[1][b], moment[1][b]}};
                low += widths[b];
            }
        }
        return found;
    }
};

// Heavy buckets have no line: NaN stands there.
inline void erase(Line<float>* lines, const Heavy* heavy, int n_heavy) {
    const float none = std::numeric_limits<float>::quiet_NaN();
    for (int h = 0; h < n_heavy; ++h) lines[2 * heavy[h].bucket] = lines[2 * heavy[h].bucket + 1] = {none, 0, 0, 0};
}

// Four rows at a time: a line is one 16-byte load, and a transposition turns four lines into vectors of c, d, k and m.
inline void look_up(const Line<float>* lines, const std::int32_t* slots, const float* fractions, int count, float* grad) {
    typedef float Four __attribute__((vector_size(16)));
    const Four* table = reinterpret_cast<const Four*>(lines);
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        const Four w = table[slots[i]], x = table[slots[i + 1]], y = table[slots[i + 2]], z = table[slots[i + 3]];
        const Four cd0 = __builtin_shufflevector(w, x, 0, 4, 1, 5), km0 = __builtin_shufflevector(w, x, 2, 6, 3, 7);
        const Four cd1 = __builtin_shufflevector(y, z, 0, 4, 1, 5), km1 = __builtin_shufflevector(y, z, 2, 6, 3, 7);
        const Four c = __builtin_shufflevector(cd0, cd1, 0, 1, 4, 5), d = __builtin_shufflevector(cd0, cd1, 2, 3, 6, 7);
        const Four k = __builtin_shufflevector(km0, km1, 0, 1, 4, 5), m = __builtin_shufflevector(km0, km1, 2, 3, 6, 7);
        Four f;
        std::memcpy(&f, fractions + i, sizeof f);
        const Four past = f - m;
        const Four result = c + d * f + k * (past > 0.0f ? past : past - past);
        std::memcpy(grad + i, &result, sizeof result);
    }
    for (; i < count; ++i) {
        const Line<float>& line = lines[slots[i]];
        const float past = fractions[i] - line.m;
        grad[i] = line.c + line.d * fractions[i] + line.k * (past > 0 ? past : 0);
    }
}

// Calls `use` for each row of a block without a gradient, which is set to 0. They are listed first, without branches: which
// rows these are is not to be guessed.
template <class Use>
void set_aside(float* grad, int count, Use&& use) {
    constexpr int few = 32;
    for (int from = 0; from < count; from += few) {
        const int to = std::min(count, from + few);
        int some = 0;
#pragma omp simd reduction(| : some)
        for (int i = from; i < to; ++i) some |= grad[i] != grad[i];
        if (!some) continue;
        int list[few + 1], listed = 0;
        for (int i = from; i < to; ++i) {
            list[listed] = i;
            listed += grad[i] != grad[i];
            grad[i] = grad[i] != grad[i] ? 0 : grad[i];
        }
        for (int k = 0; k < listed; ++k) use(list[k]);
    }
}

}  // namespace everypair::EVERYPAIR_ISA
