// Plan for a smooth term: a polynomial in x = exp(-rate |d|) on either side of d = 0, with the truncated
// polynomial that completes it (for the logistic loss: max(d, 0)).
//
// Place positives at p = s and negatives at p = s + shift, so that d = p_neg - p_pos. Powers of x factorise
// over a pair, so
//
//     A_k(p) = sum over the rows of the other class below p of weight x exp(-k rate (p - p_row))
//
// gives for a row at p the sum over all these rows, as the sum of a_k A_k, and likewise for the rows above.
// Moving on by g multiplies A_k by exp(-rate g)^k. Factors |d| x^k need B_k, the same sum with weights x
// distances, which becomes (B_k + g A_k) exp(-k rate g). All numbers added are positive and all factors at
// most one, so nothing overflows or cancels. All pairs have slopes of one sign, so a bound of the relative
// error of each pair's slope (everypair/surrogates) holds for each gradient.
//
// The rows are sorted by p; then come one sweep upwards and one downwards. For float64 the sums are kept in
// two parts, the rows of the current run of 32 and those before it, so that rounding errors grow with the
// number of runs; not so for slopes with factors |d|. Whether d > 0 is decided exactly, by the order. For
// many rows in few buckets, smooth_buckets.hpp has a plan without a sort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "double_double.hpp"
#include "group_rows.hpp"
#include "moments.hpp"
#include "pool.hpp"
#include "smooth_buckets.hpp"
#include "sources.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// V vectors hold the powers; linear: there are factors |d|.
template <class S, int V, bool linear>
class SmoothSweep {
  public:
    SmoothSweep(const GroupRows<S>& rows, const Smooth& smooth)
        : rows_(rows), smooth_(smooth), n_(rows.survey.n_pos + rows.survey.n_neg) {}

    // Fills the output arrays and returns the value.
    double run() {
        place_rows();
        double *sums = take(), *above = take(), *w = rows_.weights ? take() : nullptr, value = 0;
        for (std::int64_t i = 0; w && i < n_; ++i) w[i] = rows_.weights[sorted_[i].row()];
        const Coefficients value_of(smooth_, 0);
        // Fills `sums` with the sum over all rows of the other class; the slopes also with the value.
        const auto fill_sums = [&](int order, const double* weights) {
            const Coefficients f(smooth_, order);
            parallel(rows_.threads, 2, [&](int part) {
                if (order == 1)
                    part ? sweep<false, 1>(f, f, weights, above)
                         : value = sweep<true, 1>(f, value_of, weights, sums);
                else
                    part ? sweep<false, 2>(f, f, weights, above) : sweep<true, 2>(f, f, weights, sums);
            });
            for (std::int64_t i = 0; i < n_; ++i) sums[i] += above[i];
        };
        const auto write = [&](S* out, auto&& result) {
            for (std::int64_t i = 0; out && i < n_; ++i)
                out[sorted_[i].row()] = static_cast<S>(rows_.scale * ((w ? w[i] : 1) * result(i)) + 0.0);
        };
        fill_sums(1, w);
        write(rows_.grad, [&](std::int64_t i) { return sorted_[i].side() ? -sums[i] : sums[i]; });
        if (rows_.hess || rows_.hvp) fill_sums(2, w);
        write(rows_.hess, [&](std::int64_t i) { return sums[i]; });
        if (rows_.hvp) {
            double *own = take(), *wv = take();
            for (std::int64_t i = 0; i < n_; ++i) {
                const double v = rows_.vector[sorted_[i].row()];
                own[i] = v * sums[i];
                wv[i] = (w ? w[i] : 1) * v;
            }
            fill_sums(2, wv);
            write(rows_.hvp, [&](std::int64_t i) { return own[i] - sums[i]; });
        }
        return value * rows_.scale;
    }

  private:
    // A row on the axis of p, at the key up to rounding. The class is the highest bit of `tag`, the row the
    // rest. After the sort, the distance from the row below replaces the key.
    struct Place {
        union {
            double key, gap;
        };
        std::uint32_t tag;

        std::uint32_t row() const { return tag & 0x7fffffff; }
        int side() const { return static_cast<int>(tag >> 31); }
    };

    // The coefficients of one function of d, by side: [0] where d <= 0, [1] where d > 0. Those of x^k, k = 1,
    // 2, ..., and then, if linear, those of |d| x^k.
    struct Coefficients {
        Vec c[2][(1 + linear) * V];
        double b[3];  // where d > 0 also b[0] + b[1] d + b[2] d^2

        Coefficients(const Smooth& smooth, int order) {
            constexpr int n = V * lanes;
            for (int degree = 0; degree < 3; ++degree) b[degree] = smooth.polynomial(order, degree);
            for (int side = 0; side < 2; ++side)
                for (int k = 0; k < (1 + linear) * n; ++k)
                    c[side][k / lanes][k % lanes] = smooth.power(order, side, k % n, k / n);
        }
    };

    DoubleDouble position(std::int64_t row, int side) const {
        return DoubleDouble::sum(static_cast<double>(rows_.scores[row]), side ? 0 : smooth_.shift);
    }

    double* take() { return scratch_.take<double>(n_ + 1); }

    // Sorts the rows by position, negatives before positives at the same one, and computes their gaps. The
    // key of a negative is the least double that is not below its position, so that it decides exactly which
    // positives are below.
    void place_rows() {
        std::int64_t k = 0;
        Place* sorted = sorted_;
        for (const std::uint8_t side : {0, 1})
            for (std::int64_t i = 0; i < rows_.n; ++i) {
                const DoubleDouble at = position(i, side);
                sorted[k] = {{at.low > 0 ? next_above(at.high) : at.high},
                             static_cast<std::uint32_t>(i | (std::int64_t{side} << 31))};
                k += rows_.classes[i] == side;
            }
        radix_sort(sorted, n_, sorted);
        // Next to large scores the shift is in the lower part of a position.
        DoubleDouble below;
        for (std::int64_t i = 0; i < n_; ++i) {
            const bool shifted = smooth_.shift != 0 && !sorted[i].side();
            const DoubleDouble at = shifted ? position(sorted[i].row(), 0) : DoubleDouble(sorted[i].key);
            sorted[i].gap = std::max((at.high - below.high) + (at.low - below.low), 0.0);
            below = at;
        }
        sorted[0].gap = sorted[n_].gap = 0;
        double *factors = factors_, rate = smooth_.rate;
#pragma omp simd
        for (std::int64_t i = 0; i <= n_; ++i) factors[i] = vector_exp(-rate * sorted[i].gap);
    }

    // Writes for each row the sum over the rows of the other class below it (up) or above it, in order of
    // position. Upwards with the slopes, returns the sum of the values of these pairs: each pair has one row
    // above the other.
    template <bool up, int order>
    double sweep(const Coefficients& f, const Coefficients& g, const double* weights, double* out) const {
        // For slopes with factors |d|, runs would take half as much time again. Coefficients of curvatures
        // have both signs.
        constexpr bool valued = up && order == 1,
                       in_runs = std::is_same_v<S, double> && !(linear && order == 1);
        const FlushDenormals flush;
        Vec sums[2][(1 + linear) * V] = {}, carried[2][(1 + linear) * V] =
                                                {};  // A_k and B_k, by class of the rows visited so far
        Vec factor[V], since[V];
        Moments others;  // of the class for which d > 0
        double value = 0, distance = 0,
               reach = 1;  // distance from the first row of the run, and exp(-rate distance)
        double apart = 0;  // distance by which the sums of earlier runs move
        // Sum j of a class over earlier runs, with powers v, moved on to the current row.
        const auto moved_on = [&](bool positive, int j, int v) {
            Vec old = positive ? carried[0][j] : carried[1][j];
            if (linear && j != v) old += apart * (positive ? carried[0][v] : carried[1][v]);
            return old * since[v];
        };
        for (std::int64_t k = 0; k < n_; ++k) {
            const std::int64_t i = up ? k : n_ - 1 - k, step = up ? i : i + 1;
            const double gap = sorted_[step].gap, w = weights ? weights[i] : 1;
            const int positive = sorted_[i].side(), side = up ? 1 - positive : positive;
            fill_powers<V>(factors_[step], factors_[step], factor);
            const bool starts = in_runs && k % run_rows == 0;
            if constexpr (in_runs) {
                // Inside a run a product of few factors is good enough. The sums of earlier runs move by an
                // exact exponential.
                distance += gap;
                reach *= factors_[step];
                const double moved = starts ? vector_exp(-smooth_.rate * distance) : reach;
                fill_powers<V>(moved, moved, since);
                apart = distance;
                if (starts) distance = 0, reach = 1;
            }
            others = others.shifted(gap);
            const double of_pos = positive ? w : 0, of_neg = positive ? 0 : w;
            Vec total{}, total_value{};
            for (int v = 0; v < V; ++v) {
                for (int c = 0; c < 2; ++c) {
                    if constexpr (linear) sums[c][V + v] = (sums[c][V + v] + gap * sums[c][v]) * factor[v];
                    sums[c][v] *= factor[v];
                    if (!starts) continue;
                    if constexpr (linear)
                        carried[c][V + v] = moved_on(c == 0, V + v, v) + std::exchange(sums[c][V + v], Vec{});
                    carried[c][v] = carried[c][v] * since[v] + std::exchange(sums[c][v], Vec{});
                }
                for (int j = v; j < (1 + linear) * V; j += V) {
                    Vec sum = positive ? sums[0][j] : sums[1][j];
                    if constexpr (in_runs) {
                        const Vec old = positive ? carried[0][j] : carried[1][j];
                        sum += starts ? old : moved_on(positive, j, v);
                    }
                    total += f.c[side][j] * sum;
                    if constexpr (valued) total_value += g.c[side][j] * sum;
                }
                sums[0][v] += of_neg;
                sums[1][v] += of_pos;
            }
            const double is_above = side;
            out[i] = sum_of(total) + is_above * (f.b[0] * others.count + f.b[1] * others.first);
            if constexpr (valued)
                value +=
                    w * (sum_of(total_value) +
                         is_above * (g.b[0] * others.count + g.b[1] * others.first + g.b[2] * others.second));
            others.count += up ? of_pos : of_neg;
        }
        return value;
    }

    static constexpr int run_rows = 32;
    const GroupRows<S> rows_;
    const Smooth& smooth_;
    const std::int64_t n_;
    Scratch scratch_;
    Place* const sorted_ = scratch_.take<Place>(n_ + 1);
    double* const factors_ = take();  // exp(-rate gap)
};

// Fills the output arrays of one group with both classes, and returns its value.
template <class S>
double smooth_sums(const GroupRows<S>& rows, const Smooth& smooth) {
    const auto with = [&]<int V, bool linear>() {
        double value;
        if (smooth.width > 0 && !rows.hvp && SmoothBuckets<S, V, linear>(rows, smooth).run(value))
            return value;
        return SmoothSweep<S, V, linear>(rows, smooth).run();
    };
    constexpr int usual_powers = std::is_same_v<S, float> ? 12 : 20,
                  usual = (usual_powers + lanes - 1) / lanes, all = max_powers / lanes;
    const int powers =
        std::max({smooth.n_powers[0], smooth.n_powers[1], rows.hess || rows.hvp ? smooth.n_powers[2] : 0});
    if (smooth.linear) return with.template operator()<all, true>();
    return powers <= usual * lanes ? with.template operator()<usual, false>()
                                   : with.template operator()<all, false>();
}

}  // namespace everypair::EVERYPAIR_ISA
