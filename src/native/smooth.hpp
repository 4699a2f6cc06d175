// Plan for a smooth term: a polynomial in x = exp(-rate |d|) on either side of d = 0, with the truncated polynomial that
// completes it (for the logistic loss: max(d, 0)).
//
// Place positives at p = s and negatives at p = s + shift, so that d = p_neg - p_pos. Powers of x factorise over a pair. So
//
//     A_k(p) = sum over the rows of the other class below p of weight x exp(-k rate (p - p_row))
//
// gives for a row at p the sums over all these rows, as a polynomial sum of a_k A_k, and likewise for the rows above. Moving on
// by g multiplies A_k by exp(-rate g)^k, and the linear factors |d| x^k need B_k, the same sum with weights x distances, which
// becomes (B_k + g A_k) exp(-k rate g). All numbers added are positive and all factors at most one: nothing overflows, and
// nothing cancels. All pairs have slopes of one sign, so an error bound that holds for the fit of each pair relative to its
// slope (everypair/surrogates) holds for each gradient.
//
// This plan sorts all rows by p; then come one sweep upwards and one downwards. For float64 the sums are kept in two parts, the
// rows of the current run of 32 and those before it, so that rounding errors grow with the number of runs. Whether d > 0 is
// decided exactly, by the order: a positive z comes before a negative if z < s + shift holds for the real numbers. For many
// rows in few buckets, smooth_buckets.hpp has a plan without a sort.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "double_double.hpp"
#include "group_rows.hpp"
#include "pool.hpp"
#include "smooth_buckets.hpp"
#include "sources.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// The coefficients of one function of d in vectors, by side: [0] where d <= 0, [1] where d > 0. Powers k = 1, 2, ...
template <int V>
struct Coefficients {
    Vec c[2][V], e[2][V];
    double b0, b1, b2;  // where d > 0 also b0 + b1 d + b2 d^2

    Coefficients(const Smooth& smooth, int order)
        : b0(smooth.polynomial(order, 0)), b1(smooth.polynomial(order, 1)), b2(smooth.polynomial(order, 2)) {
        for (int side = 0; side < 2; ++side)
            for (int k = 0; k < V * lanes; ++k) {
                c[side][k / lanes][k % lanes] = smooth.power(order, side, k, 0);
                e[side][k / lanes][k % lanes] = smooth.power(order, side, k, 1);
            }
    }
};

// A row on the axis of p, at the key up to rounding. The class is the highest bit of `tag`, the row the others.
struct Place {
    double key;
    std::uint32_t tag;

    std::uint32_t row() const { return tag & 0x7fffffff; }
    std::uint8_t side() const { return static_cast<std::uint8_t>(tag >> 31); }
};

// V vectors hold the powers; linear: there are factors |d|.
template <class S, int V, bool linear>
class SmoothSweep {
  public:
    SmoothSweep(const GroupRows<S>& rows, const Smooth& smooth) : rows_(rows), smooth_(smooth) {}

    double run() const {
        Scratch scratch;
        const std::int64_t n = rows_.found.n_pos + rows_.found.n_neg;
        Place* sorted = scratch.take<Place>(n + 1);
        sort_positions(sorted, n);
        const double* gaps = gaps_between(scratch, sorted, n);
        double *up = scratch.take<double>(n), *down = scratch.take<double>(n);
        double* w = rows_.weights ? scratch.take<double>(n) : nullptr;
        for (std::int64_t i = 0; w && i < n; ++i) w[i] = rows_.weights[sorted[i].row()];
        const Coefficients<V> value_of(smooth_, 0);
        double value = 0;
        const auto row_sums = [&](int order, const double* weights, bool valued) {
            const Coefficients<V> f(smooth_, order);
            parallel(n < threaded_rows() ? 1 : rows_.threads, 2, [&](int part) {
                if (part)
                    sweep<false, false>(sorted, gaps, n, f, value_of, weights, down);
                else if (valued)
                    value = sweep<true, true>(sorted, gaps, n, f, value_of, weights, up);
                else
                    sweep<true, false>(sorted, gaps, n, f, value_of, weights, up);
            });
        };
        const auto write = [&](S* out, auto&& result) {
            for (std::int64_t i = 0; out && i < n; ++i)
                out[sorted[i].row()] = static_cast<S>(rows_.scale * ((w ? w[i] : 1) * result(i)) + 0.0);
        };
        row_sums(1, w, true);
        write(rows_.grad, [&](std::int64_t i) { return sorted[i].side() ? -(up[i] + down[i]) : up[i] + down[i]; });
        if (rows_.hess || rows_.hvp) row_sums(2, w, false);
        write(rows_.hess, [&](std::int64_t i) { return up[i] + down[i]; });
        if (rows_.hvp) {
            double *own = scratch.take<double>(n), *wv = scratch.take<double>(n);
            for (std::int64_t i = 0; i < n; ++i) {
                own[i] = rows_.vector[sorted[i].row()] * (up[i] + down[i]);
                wv[i] = (w ? w[i] : 1) * rows_.vector[sorted[i].row()];
            }
            row_sums(2, wv, false);
            write(rows_.hvp, [&](std::int64_t i) { return own[i] - (up[i] + down[i]); });
        }
        return value * rows_.scale;
    }

  private:
    // Sorts the n rows by position, negatives before positives at the same one. The key of a negative is the least double that
    // is not below its position, so that it decides exactly which positives are below.
    void sort_positions(Place* rows, std::int64_t n) const {
        std::int64_t k = 0;
        for (const std::uint8_t side : {0, 1})
            for (std::int64_t i = 0; i < rows_.n; ++i) {
                const DoubleDouble at = position(i, side);
                rows[k] = {at.low > 0 ? next_above(at.high) : at.high,
                           static_cast<std::uint32_t>(i | (std::int64_t{side} << 31))};
                k += rows_.classes[i] == side;
            }
        radix_sort(rows, n, rows);
    }

    DoubleDouble position(std::int64_t row, std::uint8_t side) const {
        return DoubleDouble::sum(static_cast<double>(rows_.scores[row]), side ? 0 : smooth_.shift);
    }

    // Returns the distances of sorted rows from the row before, and 0 at both ends. Next to large scores the shift is in the
    // lower part of a position.
    const double* gaps_between(Scratch& scratch, const Place* sorted, std::int64_t n) const {
        double* gaps = scratch.take<double>(n + 1);
        DoubleDouble before;
        for (std::int64_t i = 0; i < n; ++i) {
            const bool shifted = smooth_.shift != 0 && !sorted[i].side();
            const DoubleDouble at = shifted ? position(sorted[i].row(), 0) : DoubleDouble(sorted[i].key);
            gaps[i] = i ? std::max((at.high - before.high) + (at.low - before.low), 0.0) : 0;
            before = at;
        }
        gaps[n] = 0;
        return gaps;
    }

    // Writes for each row the sum over the rows of the other class below it (up) or above it, in order of position. If valued,
    // returns the sum of the values of these pairs: each pair has one row above the other.
    template <bool up, bool valued>
    double sweep(const Place* sorted, const double* gaps, std::int64_t n, const Coefficients<V>& f, const Coefficients<V>& g,
                 const double* weights, double* out) const {
        const FlushDenormals flush;
        // By class of the rows met so far.
        Vec sums[2][V] = {}, distances[2][V] = {}, carried[2][V] = {}, factor[V], since[V];
        double count = 0, first = 0, second = 0, value = 0;  // of the class for which d > 0
        double distance = 0, reach = 1;                      // from the first row of the run, and exp(-rate distance)
        double factors[block_rows];                          // exp(-rate gap), by row of the block
        const double rate = smooth_.rate;
        for (std::int64_t k = 0; k < n; ++k) {
            const std::int64_t i = up ? k : n - 1 - k;
            const int at = static_cast<int>(k % block_rows);
            if (at == 0) {
                const int many = static_cast<int>(std::min<std::int64_t>(block_rows, n - k));
#pragma omp simd
                for (int j = 0; j < many; ++j) factors[j] = vector_exp(-rate * gaps[up ? k + j : n - k - j]);
            }
            const double gap = gaps[up ? k : n - k], w = weights ? weights[i] : 1;
            const int positive = sorted[i].side(), side = up ? 1 - positive : positive;
            fill_powers<V>(factors[at], factors[at], factor);
            const bool starts = in_runs && k % run_rows == 0;
            if constexpr (in_runs) {
                // Inside a run a product of few factors is good enough. The sums of earlier runs move by an exact exponential.
                distance += gap;
                reach *= factors[at];
                const double moved = starts ? vector_exp(-rate * distance) : reach;
                fill_powers<V>(moved, moved, since);
                if (starts) distance = 0, reach = 1;
            }
            second += gap * (2 * first + gap * count);
            first += gap * count;
            const double of_pos = positive ? w : 0, of_neg = positive ? 0 : w;
            Vec total{}, total_value{};
            for (int v = 0; v < V; ++v) {
                if constexpr (linear)
                    for (int c = 0; c < 2; ++c) distances[c][v] = (distances[c][v] + gap * sums[c][v]) * factor[v];
                for (int c = 0; c < 2; ++c) sums[c][v] *= factor[v];
                if (starts)
                    for (int c = 0; c < 2; ++c) carried[c][v] = carried[c][v] * since[v] + sums[c][v], sums[c][v] = Vec{};
                Vec met = positive ? sums[0][v] : sums[1][v];
                if constexpr (in_runs) {
                    const Vec old = positive ? carried[0][v] : carried[1][v];
                    met += starts ? old : old * since[v];
                }
                total += f.c[side][v] * met;
                if constexpr (valued) total_value += g.c[side][v] * met;
                if constexpr (linear) {
                    const Vec far = positive ? distances[0][v] : distances[1][v];
                    total += f.e[side][v] * far;
                    if constexpr (valued) total_value += g.e[side][v] * far;
                }
                sums[0][v] += of_neg;
                sums[1][v] += of_pos;
            }
            const double on = side;
            out[i] = sum_of(total) + on * (f.b0 * count + f.b1 * first);
            if constexpr (valued) value += w * (sum_of(total_value) + on * (g.b0 * count + g.b1 * first + g.b2 * second));
            count += up ? of_pos : of_neg;
        }
        return value;
    }

    const GroupRows<S> rows_;
    const Smooth& smooth_;
    static constexpr bool in_runs = std::is_same_v<S, double> && !linear;
    static constexpr int run_rows = 32, block_rows = 256;
};

// Fills the output arrays of one group with both classes, and returns its value.
template <class S>
double smooth_sums(const GroupRows<S>& rows, const Smooth& smooth) {
    const auto with = [&]<int V, bool linear>() {
        double value;
        if (smooth.width > 0 && !rows.hvp && SmoothBuckets<S, V, linear>(rows, smooth).run(value)) return value;
        return SmoothSweep<S, V, linear>(rows, smooth).run();
    };
    constexpr int usual = std::is_same_v<S, float> ? 12 : 20, some = (usual + lanes - 1) / lanes, most = most_powers / lanes;
    const int powers = std::max({smooth.n_powers[0], smooth.n_powers[1], rows.hess || rows.hvp ? smooth.n_powers[2] : 0});
    if (smooth.linear) return with.template operator()<most, true>();
    return powers <= some * lanes ? with.template operator()<some, false>() : with.template operator()<most, false>();
}

}  // namespace everypair::EVERYPAIR_ISA
