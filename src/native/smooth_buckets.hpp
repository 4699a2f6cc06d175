// Plan for a smooth term over many rows in few buckets (see smooth.hpp for the sums A_k): two passes, without
// a sort.
//
// All buckets have the width w, a power of two; q = rate w is at most 1 for float32 and 1/4 for float64
// (everypair/_smooth_kernel.py chooses it). With f the offset of a row from the centre of its bucket, in
// widths, keep per bucket and class the sums of weight x f^j, j = 0 .. 7. The A_k are carried from centre to
// centre. For the rows of a bucket exp(-k q f) is replaced by the polynomial of degree 7 through the 8
// Chebyshev nodes of [-1/2, 1/2], both where they are added to A_k and where they read it, so a row evaluates
// a polynomial of degree 7 in its own f. For pairs inside a bucket, the whole function, truncated part
// included, is interpolated at the nodes of both offsets.
//
// Error: the function of d is interpolated in one offset, then in the other. In one the error is at most E =
// 2 (q / 4)^8 / 8! x the largest 8th derivative in rate d; the second multiplies it by at most the Lebesgue
// constant of 8 nodes, 2.3. For the logistic slope that derivative is at most 6.5 times the slope, which
// varies by at most exp(q / 2) over the offsets: 3.3 E < 3e-13 of the slope for q = 1/4, and 3e-8 for q = 1.
// For other functions _smooth_kernel.py measures it: at most 5e-13. Rounding: a sum of a slot has at most b +
// n / slices / b + 2 slices additions in a row, where b is the larger of 1024 and the root of n / slices, and
// large n have 16 slices. At worst all err the same way, by 5.6e-17 of the sum: 9e-14 for n = 1e7. A_k is
// multiplied by a rounded factor per bucket: 2.2e-16 D / q for a row whose nearest row of the other class is
// D temperatures away. For float64 and n up to 1e7 this is less than 1e-12 in all for the logistic slope (q
// from 1/8 to 1/4) up to D = 340, and for other functions up to D = 1800 q. Rows farther away, with slopes
// below exp(-D), may err by 1.3e-12 (logistic, D = 690), or more for small q.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "double_double.hpp"
#include "group_rows.hpp"
#include "moments.hpp"
#include "pool.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// V vectors hold the powers; linear: there are factors |d|.
template <class S, int V, bool linear>
class SmoothBuckets {
  public:
    SmoothBuckets(const GroupRows<S>& rows, const Smooth& smooth) : rows_(rows), smooth_(smooth) {}

    // Returns false, without writing, if there would be too many buckets.
    bool run(double& value) {
        constexpr S none = -std::numeric_limits<S>::infinity();
        const S* scores = rows_.scores;
        const std::uint8_t* classes = rows_.classes;
        Largest<S> least_negated(none), largest(none);
        if (rows_.weights) {
            least_negated.add(
                rows_.n, [=](std::int64_t i) { return either(classes[i] < weightless, -scores[i], none); });
            largest.add(rows_.n,
                        [=](std::int64_t i) { return either(classes[i] < weightless, scores[i], none); });
        } else {
            least_negated.add(rows_.n, [=](std::int64_t i) { return -scores[i]; });
            largest.add(scores, rows_.n);
        }
        // The polynomials of float32 scores have float32 coefficients, which must not overflow.
        const double total = rows_.scale * rows_.survey.w_pos * rows_.survey.w_neg;
        if (std::is_same_v<S, float> && !(total < 0x1p100)) return false;
        const double origin = -least_negated.value() + std::min(smooth_.shift, 0.0);
        const double range = (largest.value() - origin + std::max(smooth_.shift, 0.0)) / smooth_.width;
        const double max_buckets = in_batches ? 1 << 16 : 1 << 17;
        if (!(range < std::min(max_buckets, static_cast<double>(rows_.n) / rows_per_bucket))) return false;
        n_buckets_ = static_cast<int>(range) + 1;
        origins_[0] = DoubleDouble::sum(origin, -smooth_.shift), origins_[1] = origin;

        Scratch scratch;
        const std::int64_t slots = 2 * n_buckets_;
        slices_ = static_cast<int>(
            std::clamp<std::int64_t>(rows_.n / (8 * slots), 1, std::min(task_count(rows_.n), 16)));
        Places<S> places(scratch, rows_.n, 1 << 15);
        // For float64 scores, a slice adds the rows of a slot in batches of `batch_rows` to another table, so
        // that rounding errors grow with its root. Without weights, the sum of order 0 is exact, and the
        // others count for at most q / 2.
        const auto batch_rows = static_cast<std::uint32_t>(std::max(1024.0, std::sqrt(rows_.n / slices_)));
        const std::int64_t table = slots * slices_, tables = (1 + in_batches) * table;
        ByPower* moments = scratch.take<ByPower>(tables);
        std::uint32_t* batched = scratch.take<std::uint32_t>(in_batches ? table : 0);
        parallel(rows_.threads, slices_ * (1 + in_batches),
                 [&](int k) { std::fill_n(moments + slots * k, slots, ByPower{}); });
        std::fill_n(batched, in_batches ? table : 0, 0);
        by_located_blocks(
            places, [&](int slice, std::int64_t i, int count, const std::int32_t* where, const S* offsets) {
                ByPower* mine = moments + slots * slice;
                for (int k = 0; k < count; ++k) {
                    ByPower powers;
                    fill_powers<parts>(static_cast<double>(offsets[k]),
                                       rows_.weights ? rows_.weights[i + k] : 1, powers.at);
                    mine[where[k]].add(powers);
                    if (in_batches && ++batched[slots * slice + where[k]] == batch_rows) {
                        mine[table + where[k]].add(mine[where[k]]);
                        mine[where[k]] = {};
                        batched[slots * slice + where[k]] = 0;
                    }
                }
            });
        for (std::int64_t first = slots; first < tables; first += slots)
            for (std::int64_t slot = 0; slot < slots; ++slot) moments[slot].add(moments[first + slot]);

        ByPower* sums[3];
        for (int order = 0; order < 3; ++order) {
            sums[order] =
                order == 0 || (order == 1 ? rows_.grad : rows_.hess) ? scratch.take<ByPower>(slots) : nullptr;
            std::fill_n(sums[order], sums[order] ? slots : 0, ByPower{});
        }
        expand(moments, sums);
        value = 0;
        for (std::int64_t slot = 0; slot < slots; slot += 2)
            for (int j = 0; j < n_moments; ++j) value += sums[0][slot][j] * moments[slot][j];
        value *= rows_.scale;
        // Relative to the weight of the class, so that float32 loses no digits before the last factor. If the
        // heaviest rows would overflow, so would all others: the sweep over sorted rows takes such batches.
        const double units[2] = {rows_.weights ? static_cast<double>(rows_.survey.w_neg) : 1.0,
                                 rows_.weights ? static_cast<double>(rows_.survey.w_pos) : 1.0};
        Octet<S>* lines = scratch.take<Octet<S>>(slots);
        const auto write = [&](S* out, const ByPower* polynomials, double sign) {
            if (!out) return true;
            bool is_in_range = true;
            for (std::int64_t slot = 0; slot < slots; ++slot)
                for (int j = 0; j < n_moments; ++j) {
                    const double line =
                        (slot % 2 ? sign : 1) * (rows_.scale * units[slot % 2]) * polynomials[slot][j];
                    is_in_range &= std::abs(line) <= std::numeric_limits<S>::max() / 16;
                    lines[slot][j] = static_cast<S>(line);
                }
            if (!is_in_range) return false;
            by_located_blocks(
                places, [&](int, std::int64_t i, int count, const std::int32_t* where, const S* offsets) {
                    Octet<S>::evaluate(
                        lines, where, offsets, count, out + i, [](const auto* q, const auto& f, auto& sum) {
                            const auto f2 = f * f, low = (q[0] + q[1] * f) + (q[2] + q[3] * f) * f2;
                            sum = low + ((q[4] + q[5] * f) + (q[6] + q[7] * f) * f2) * (f2 * f2);
                        });
                    for (int k = 0; rows_.weights && k < count; ++k)
                        out[i + k] =
                            static_cast<S>(rows_.weights[i + k] / units[where[k] % 2] * out[i + k] + 0.0);
                });
            return true;
        };
        return write(rows_.grad, sums[1], -1) && write(rows_.hess, sums[2], 1);
    }

  private:
    // The coefficients of a polynomial in the offset of a row, or the sums of weight x offset^j, for j = 0
    // .. 7.
    static constexpr int n_moments = bucket_moments, parts = n_moments / lanes;
    struct ByPower {
        Vec at[parts] = {};

        void add(const ByPower& other, const Vec& factor = Vec{} + 1) {
            for (int v = 0; v < parts; ++v) at[v] += other.at[v] * factor;
        }
        double operator[](int j) const { return at[j / lanes][j % lanes]; }
        double& operator[](int j) { return reinterpret_cast<double*>(at)[j]; }
    };

    template <class Use>
    void by_located_blocks(Places<S>& places, Use&& use) const {
        const auto locate = [this](auto... block) { this->locate(block...); };
        places.by_blocks(slices_, rows_.threads, locate, use);
    }

    // Computes slot (2 x bucket + class) and offset from the centre, in widths, of each row of a block. The
    // width is a power of two, so only the difference is rounded; `rest` has its error, which float32 does
    // not need.
    void locate(std::int64_t from, int count, std::int32_t* slots, S* offsets) const {
        const S* scores = rows_.scores + from;
        const double high0 = origins_[0].high, high1 = origins_[1].high, low0 = origins_[0].low;
        const double scale = 1 / smooth_.width, last = n_buckets_ - 0.5;
        std::uint8_t sides[block_rows];
        for (int i = 0; i < count; ++i) sides[i] = rows_.classes[from + i] & 1;
#pragma omp simd
        for (int i = 0; i < count; ++i) {
            const DoubleDouble at =
                DoubleDouble::sum(static_cast<double>(scores[i]), sides[i] ? -high1 : -high0);
            const double p = at.high * scale,
                         rest = in_batches ? (at.low - (sides[i] ? 0 : low0)) * scale : 0;
            double q = p > 0 ? p : 0;
            q = q < last ? q : last;
            const std::int32_t bucket = static_cast<std::int32_t>(q);
            slots[i] = 2 * bucket + sides[i];
            offsets[i] = static_cast<S>(((p - bucket) - 0.5) + rest);
        }
        // Rows of weight 0 may be far outside.
        for (int i = 0; rows_.weights && i < count; ++i)
            if (rows_.classes[from + i] >= weightless) offsets[i] = 0;
        for (int i = count; i % 4; ++i) slots[i] = slots[0], offsets[i] = 0;
    }

    // For each order, bucket and class of a row: the sum over all rows of the other class, as a polynomial in
    // the offset of the row. Orders without a result are left out, as are positives for the values: the
    // negatives have all pairs.
    void expand(const ByPower* moments, ByPower* const out[3]) const {
        const FlushDenormals flush;
        constexpr int kinds = 1 + linear, n = V * lanes;  // A_k and, if linear, B_k
        const double width = smooth_.width;
        const int n_powers = std::min(smooth_.n_series, n);
        // exp(-k rate width u), and the same times width u, as polynomials in u.
        const auto series = [&](int kind, int j, int k) {
            return (kind ? width : 1) * smooth_.series[(kind * n_moments + j) * smooth_.n_series + k];
        };
        Vec source[n_moments][kinds * V] = {};  // by j, for all sums
        ByPower factors[3][2][kinds][n];        // by order, side and sum, for all j
        for (int k = 0; k < n_powers; ++k)
            for (int j = 0; j < n_moments; ++j) {
                for (int kind = 0; kind < kinds; ++kind)
                    source[j][kind * V + k / lanes][k % lanes] = series(kind, j, k);
                for (int order = 0; order < 3; ++order)
                    for (int side = 0; out[order] && side < 2; ++side) {
                        auto& coefficients = factors[order][side];
                        coefficients[0][k][j] = smooth_.power(order, side, k, 0) * series(0, j, k);
                        if constexpr (!linear) continue;
                        coefficients[0][k][j] += smooth_.power(order, side, k, 1) * series(1, j, k);
                        coefficients[kinds - 1][k][j] = smooth_.power(order, side, k, 1) * series(0, j, k);
                    }
            }
        Vec factor[V];
        const double x = std::exp(-smooth_.rate * width);
        fill_powers<V>(x, x, factor);
        for (const bool up : {true, false}) {
            const double turn = up ? 1 : -1;
            Vec turned, back;  // the powers of turn and of -turn
            for (int l = 0; l < lanes; ++l) turned[l] = l % 2 ? turn : 1, back[l] = l % 2 ? -turn : 1;
            alignas(64) double sums[2][kinds][n] = {};
            Moments others;  // of the class for which d > 0, relative to the centre
            for (int t = 0; t < n_buckets_; ++t) {
                const ByPower* here = moments + 2 * (up ? t : n_buckets_ - 1 - t);
                for (int positive = 0; positive < 2; ++positive) {
                    const int side = up ? 1 - positive : positive;
                    for (int order = positive; order < 3 && here[positive][0] != 0; ++order) {
                        if (!out[order]) continue;
                        ByPower total;
                        for (int kind = 0; kind < kinds; ++kind)
                            for (int k = 0; k < n_powers; ++k)
                                total.add(factors[order][side][kind][k], Vec{} + sums[1 - positive][kind][k]);
                        if (side) {
                            const double b1 = smooth_.polynomial(order, 1), b2 = smooth_.polynomial(order, 2);
                            total[0] += smooth_.polynomial(order, 0) * others.count + b1 * others.first +
                                        b2 * others.second;
                            total[1] += width * (b1 * others.count + 2 * b2 * others.first);
                            total[2] += width * width * b2 * others.count;
                        }
                        out[order][here - moments + positive].add(total, turned);
                    }
                }
                // Add the rows of this bucket, and move on to the next centre.
                for (int c = 0; c < 2; ++c) {
                    ByPower m;  // the moments of the offsets against the direction
                    m.add(here[c], back);
                    const bool any = m[0] != 0;
                    const auto sum = [&](int v) {
                        Vec a = load(sums[c][v / V] + v % V * lanes);
                        for (int j = 0; any && j < n_moments; ++j) a += source[j][v] * m[j];
                        return a;
                    };
                    for (int v = 0; v < V; ++v) {
                        const Vec a = sum(v);
                        if constexpr (linear)
                            store((sum(V + v) + width * a) * factor[v], sums[c][1] + v * lanes);
                        store(a * factor[v], sums[c][0] + v * lanes);
                    }
                }
                const ByPower& m = here[up];
                others.advance(width, {m[0], width * (m[0] - turn * m[1]),
                                       width * width * (m[0] - 2 * turn * m[1] + m[2])});
            }
        }
        // Pairs inside a bucket: polynomials in the offsets of the negative and of the positive.
        for (int order = 0; order < 3; ++order) {
            ByPower inside[2][n_moments];  // by class of the row and power of the other offset
            for (int j = 0; j < n_moments; ++j)
                for (int i = 0; i < n_moments; ++i)
                    inside[0][j][i] = inside[1][i][j] =
                        smooth_.inside[(order * n_moments + i) * n_moments + j];
            for (int slot = 0; out[order] && slot < 2 * n_buckets_; ++slot) {
                const ByPower& m = moments[slot ^ 1];
                if (m[0] == 0 || moments[slot][0] == 0) continue;
                for (int j = 0; j < n_moments; ++j) out[order][slot].add(inside[slot % 2][j], Vec{} + m[j]);
            }
        }
    }

    static constexpr bool in_batches = std::is_same_v<S, double>;
    static constexpr int rows_per_bucket = 6;  // with fewer rows on average, sorting takes less time
    const GroupRows<S> rows_;
    const Smooth& smooth_;
    int n_buckets_ = 0, slices_ = 1;
    DoubleDouble origins_[2];  // the lower end of bucket 0, on the axis of each class
};

}  // namespace everypair::EVERYPAIR_ISA
