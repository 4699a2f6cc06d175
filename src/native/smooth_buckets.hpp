// Plan for a smooth term over many rows in few buckets (see smooth.hpp for the sums A_k): two passes, without a sort.
//
// All buckets have the width w, a power of two; q = rate w is at most 1 for
// float32 and 1/4 for float64 (everypair/_smooth_kernel.py chooses it). With f the offset of a row from the centre of its
// bucket, in widths, keep per bucket and class the sums of weight x f^j, j = 0 .. 7. The A_k are carried from centre to centre.
// For the rows of a bucket exp(-k q f) is replaced by the polynomial of degree 7 through the 8 Chebyshev nodes of [-1/2, 1/2],
// both where they are added to A_k and where they read it, and so a row evaluates a polynomial of degree 7 in its own f. For
// pairs inside a bucket, the whole function, truncated part included, is interpolated at the nodes of both offsets.
//
// Error: interpolation is linear, so the result is that of interpolating the function of d itself in the two offsets, first in
// one and then in the other. In one variable the error is at most E = 2 (q / 4)^8 / 8! x the largest 8th derivative in rate d,
// and the second interpolation multiplies the first error by at most the Lebesgue constant of 8 nodes, 2.3. For the logistic
// slope that derivative is at most 6.5 times the slope, and the slope varies by at most exp(q / 2) over the offsets: 3.3 E <
// 3e-13 of the slope for q = 1/4, and 3e-8 for q = 1. For other functions _smooth_kernel.py measures the error on grids.
// Rounding: a sum of a slot has at most b + n / slices / b + slices additions in a row, where b is the larger of 1024 and the
// root of n / slices, and large n have 16 slices. At worst, equal weights and offsets all err the same way, by 5.6e-17 of the
// sum per addition: 9e-14 for n = 1e7, 3e-13 for 1e8. A_k is multiplied by a rounded factor per bucket. So for a row whose
// nearest row of the other class is D temperatures away that adds 2.2e-16 D / q.
// For float64 and n up to 1e7 these bounds add up to less than 1e-12 for the logistic slope (q from 1/8 to 1/4) up to D = 340,
// and for functions whose interpolation error, at most 5e-13, is measured, up to D = 1800 q. Rows farther away have slopes
// below exp(-D); for them the bounds add up to 1.3e-12 (logistic, D = 690), or more for small q.
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
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// V vectors hold the powers; linear: there are factors |d|.
template <class S, int V, bool linear>
class SmoothBuckets {
  public:
    SmoothBuckets(const GroupRows<S>& rows, const Smooth& smooth) : rows_(rows), smooth_(smooth) {}

    // Returns false, without writing, if there would be too many buckets.
    bool run(double& value) const {
        constexpr S inf = std::numeric_limits<S>::infinity();
        S least_pos = inf, most_pos = -inf, least_neg = inf, most_neg = -inf;
        const S* scores = rows_.scores;
        const std::uint8_t* classes = rows_.classes;
#pragma omp simd reduction(min : least_pos, least_neg) reduction(max : most_pos, most_neg)
        for (std::int64_t i = 0; i < rows_.n; ++i) {
            const S s = scores[i];
            const S low_pos = classes[i] == 1 ? s : inf, low_neg = classes[i] == 0 ? s : inf;
            const S high_pos = classes[i] == 1 ? s : -inf, high_neg = classes[i] == 0 ? s : -inf;
            least_pos = low_pos < least_pos ? low_pos : least_pos;
            least_neg = low_neg < least_neg ? low_neg : least_neg;
            most_pos = high_pos > most_pos ? high_pos : most_pos;
            most_neg = high_neg > most_neg ? high_neg : most_neg;
        }
        // The polynomials of float32 scores have float32 coefficients, which must not overflow.
        const double total = rows_.scale * rows_.found.w_pos * rows_.found.w_neg;
        if (std::is_same_v<S, float> && !(total < 0x1p100)) return false;
        const double width = smooth_.width, origin = std::min<double>(least_pos, least_neg + smooth_.shift);
        const DoubleDouble of_neg = DoubleDouble::sum(origin, -smooth_.shift);
        const double range = std::max(most_pos - origin, most_neg - of_neg.high) / width;
        const double most_buckets = std::is_same_v<S, float> ? 1 << 17 : 1 << 16;
        if (!(range < std::min(most_buckets, static_cast<double>(rows_.n) / rows_per_bucket))) return false;
        const Grid grid{{of_neg.high, origin}, {of_neg.low, 0}, 1 / width, static_cast<std::int32_t>(range) + 1};

        Scratch scratch;
        const std::int64_t slots = 2 * grid.buckets, tasks = task_count(rows_.n);
        const int slices =
            static_cast<int>(std::clamp<std::int64_t>(rows_.n / (8 * slots), 1, std::min<std::int64_t>(tasks, 16)));
        const auto first_row = [&](int slice) { return std::min(rows_.n, tasks * slice / slices * task_rows); };
        const bool keep = rows_.n <= 1 << 15;
        std::int32_t* kept_slots = scratch.take<std::int32_t>(keep ? rows_.n : 0);
        S* kept_offsets = scratch.take<S>(keep ? rows_.n : 0);
        const auto by_blocks = [&](int slice, bool again, auto&& use) {
            std::int32_t spare_slots[block_rows];
            S spare_offsets[block_rows];
            for (std::int64_t i = first_row(slice); i < first_row(slice + 1); i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, first_row(slice + 1) - i));
                std::int32_t* where = keep ? kept_slots + i : spare_slots;
                S* offsets = keep ? kept_offsets + i : spare_offsets;
                if (!keep || !again) locate(grid, i, count, where, offsets);
                use(i, count, where, offsets);
            }
        };
        // For float64 scores, a slice adds the rows of a slot in batches of `batch_rows`, so that rounding errors grow with its
        // root. Without weights, the sum of order 0 is exact, and the others count for at most q / 2 of the result.
        const auto batch_rows = static_cast<std::uint32_t>(std::max(1024.0, std::sqrt(rows_.n / slices)));
        Moments* moments = scratch.take<Moments>(slots * slices);
        parallel(rows_.threads, slices, [&](int slice) {
            constexpr bool in_batches = std::is_same_v<S, double>;
            Scratch own;
            Moments *mine = moments + slots * slice, *recent = in_batches ? own.take<Moments>(slots) : mine;
            std::uint32_t* rows = own.take<std::uint32_t>(in_batches ? slots : 0);
            std::fill(mine, mine + slots, Moments{});
            if (in_batches) std::fill(recent, recent + slots, Moments{}), std::fill(rows, rows + slots, 0);
            const auto settle = [&](std::int64_t slot) {
                mine[slot].add(recent[slot], Vec{} + 1);
                recent[slot] = {};
                rows[slot] = 0;
            };
            by_blocks(slice, false, [&](std::int64_t i, int count, const std::int32_t* where, const S* offsets) {
                for (int k = 0; k < count; ++k) {
                    Vec powers[parts];
                    fill_powers<parts>(static_cast<double>(offsets[k]), rows_.weights ? rows_.weights[i + k] : 1, powers);
                    for (int v = 0; v < parts; ++v) recent[where[k]].at[v] += powers[v];
                    if (in_batches && ++rows[where[k]] == batch_rows) settle(where[k]);
                }
            });
            for (std::int64_t slot = 0; in_batches && slot < slots; ++slot) settle(slot);
        });
        for (int slice = 1; slice < slices; ++slice)
            for (std::int64_t slot = 0; slot < slots; ++slot) moments[slot].add(moments[slots * slice + slot], Vec{} + 1);

        Moments* sums[3];
        for (int order = 0; order < 3; ++order) {
            const std::int64_t count = order == 0 || (order == 1 ? rows_.grad : rows_.hess) ? slots : 0;
            sums[order] = scratch.take<Moments>(count);
            std::fill(sums[order], sums[order] + count, Moments{});
        }
        expand(moments, grid.buckets, sums);
        value = 0;
        for (std::int64_t slot = 0; slot < slots; slot += 2)
            for (int j = 0; j < n_moments; ++j) value += sums[0][slot][j] * moments[slot][j];
        value *= rows_.scale;
        Octet<S>* lines = scratch.take<Octet<S>>(slots);
        // Relative to the weight of the class, so that float32 neither overflows nor loses digits before the last factor.
        const double units[2] = {rows_.weights ? static_cast<double>(rows_.found.w_neg) : 1.0,
                                 rows_.weights ? static_cast<double>(rows_.found.w_pos) : 1.0};
        const auto write = [&](S* out, int order, double sign) {
            if (!out) return;
            for (std::int64_t slot = 0; slot < slots; ++slot)
                for (int j = 0; j < n_moments; ++j)
                    lines[slot][j] =
                        static_cast<S>((slot % 2 ? sign : 1) * (rows_.scale * units[slot % 2]) * sums[order][slot][j]);
            parallel(rows_.threads, slices, [&](int slice) {
                by_blocks(slice, true, [&](std::int64_t i, int count, const std::int32_t* where, const S* offsets) {
                    evaluate(lines, where, offsets, count, out + i);
                    for (int k = 0; rows_.weights && k < count; ++k)
                        out[i + k] = static_cast<S>(rows_.weights[i + k] / units[where[k] % 2] * out[i + k] + 0.0);
                });
            });
        };
        write(rows_.grad, 1, -1);
        write(rows_.hess, 2, 1);
        return true;
    }

  private:
    // The coefficients of a polynomial in the offset of a row, or the sums of weight x offset^j, for j = 0 .. 7.
    static constexpr int n_moments = bucket_moments, parts = n_moments / lanes;
    struct Moments {
        Vec at[parts] = {};

        void add(const Moments& other, const Vec& factor) {
            for (int v = 0; v < parts; ++v) at[v] += other.at[v] * factor;
        }
        double operator[](int j) const { return at[j / lanes][j % lanes]; }
        double& operator[](int j) { return reinterpret_cast<double*>(at)[j]; }
    };
    // The position of the lower end of bucket 0, on the axis of each class, as a sum of two doubles.
    struct Grid {
        double high[2], low[2], scale;
        std::int32_t buckets;
    };

    // Computes slot (2 x bucket + class) and offset from the centre, in widths, of each row of a block. The width is a power of
    // two, so only the difference is rounded; `rest` has its error, which float32 does not need.
    void locate(const Grid& grid, std::int64_t from, int count, std::int32_t* slots, S* offsets) const {
        const S* scores = rows_.scores + from;
        const double high0 = grid.high[0], high1 = grid.high[1], low0 = grid.low[0], low1 = grid.low[1];
        const double scale = grid.scale, last = grid.buckets - 0.5;
        std::uint8_t sides[block_rows];
        for (int i = 0; i < count; ++i) sides[i] = rows_.classes[from + i] & 1;
#pragma omp simd
        for (int i = 0; i < count; ++i) {
            const DoubleDouble at = DoubleDouble::sum(static_cast<double>(scores[i]), sides[i] ? -high1 : -high0);
            const double p = at.high * scale,
                         rest = std::is_same_v<S, double> ? (at.low - (sides[i] ? low1 : low0)) * scale : 0;
            double q = p > 0 ? p : 0;
            q = q < last ? q : last;
            const std::int32_t bucket = static_cast<std::int32_t>(q);
            slots[i] = 2 * bucket + sides[i];
            offsets[i] = static_cast<S>(((p - bucket) - 0.5) + rest);
        }
        // Rows of weight 0 may be far outside.
        for (int i = 0; rows_.weights && i < count; ++i)
            if (rows_.classes[from + i] >= weightless) offsets[i] = 0;
    }

    // Evaluates the polynomials of a block, four rows at a time.
    static void evaluate(const Octet<S>* lines, const std::int32_t* slots, const S* offsets, int count, S* out) {
        using Quad = typename Octet<S>::Quad;
        int i = 0;
        for (; i + 4 <= count; i += 4) {
            Quad q[8], f;
            Octet<S>::columns(lines, slots + i, q);
            std::memcpy(&f, offsets + i, sizeof f);
            const Quad f2 = f * f, low = (q[0] + q[1] * f) + (q[2] + q[3] * f) * f2;
            const Quad sum = low + ((q[4] + q[5] * f) + (q[6] + q[7] * f) * f2) * (f2 * f2);
            std::memcpy(out + i, &sum, sizeof sum);
        }
        for (; i < count; ++i) {
            S sum = 0;
            for (int j = n_moments - 1; j >= 0; --j) sum = sum * offsets[i] + lines[slots[i]][j];
            out[i] = sum;
        }
    }

    // For each order, bucket and class of a row: the sum over all rows of the other class, as a polynomial in the offset of the
    // row. Orders without a result are left out, as are positives for the values: the negatives have all pairs.
    void expand(const Moments* moments, int buckets, Moments* const out[3]) const {
        const FlushDenormals flush;
        const double width = smooth_.width;
        const bool wanted[3] = {true, rows_.grad != nullptr, rows_.hess != nullptr};
        const int n_powers = std::min(smooth_.n_series, V * lanes);
        // exp(-k rate width u), and the same times u, as polynomials in u.
        const auto series = [&](int factor, int j, int k) {
            return k < n_powers ? smooth_.series[(factor * n_moments + j) * smooth_.n_series + k] : 0;
        };
        Vec source[1 + linear][n_moments][V];                              // by j, for all k
        Moments near[3][2][V * lanes], far[linear ? 3 : 1][2][V * lanes];  // by k, for all j: factors of A_k and B_k
        for (int k = 0; k < V * lanes; ++k)
            for (int j = 0; j < n_moments; ++j) {
                for (int factor = 0; factor <= linear; ++factor)
                    source[factor][j][k / lanes][k % lanes] = (factor ? width : 1) * series(factor, j, k);
                for (int order = 0; order < 3; ++order)
                    for (int side = 0; side < 2; ++side) {
                        const double e = smooth_.power(order, side, k, 1);
                        near[order][side][k][j] = smooth_.power(order, side, k, 0) * series(0, j, k);
                        if constexpr (linear) {
                            near[order][side][k][j] += e * width * series(1, j, k);
                            far[order][side][k][j] = e * series(0, j, k);
                        }
                    }
            }
        Vec factor[V];
        const double x = std::exp(-smooth_.rate * width);
        fill_powers<V>(x, x, factor);
        for (const bool up : {true, false}) {
            const double turn = up ? 1 : -1;
            Vec turned;  // the powers of turn
            for (int l = 0; l < lanes; ++l) turned[l] = l % 2 ? turn : 1;
            alignas(64) double sums[2][V * lanes] = {}, distances[2][V * lanes] = {};
            double count = 0, first = 0, second = 0;  // of the class for which d > 0, relative to the centre
            for (int t = 0; t < buckets; ++t) {
                const int bucket = up ? t : buckets - 1 - t;
                for (int positive = 0; positive < 2; ++positive) {
                    if (moments[2 * bucket + positive][0] == 0) continue;
                    const int side = up ? 1 - positive : positive;
                    for (int order = positive; order < 3; ++order) {
                        if (!wanted[order]) continue;
                        Moments total;
                        for (int k = 0; k < n_powers; ++k) {
                            total.add(near[order][side][k], Vec{} + sums[1 - positive][k]);
                            if constexpr (linear) total.add(far[order][side][k], Vec{} + distances[1 - positive][k]);
                        }
                        if (side) {
                            const double b[3] = {smooth_.polynomial(order, 0), smooth_.polynomial(order, 1),
                                                 smooth_.polynomial(order, 2)};
                            total[0] += b[0] * count + b[1] * first + b[2] * second;
                            total[1] += width * (b[1] * count + 2 * b[2] * first);
                            total[2] += width * width * b[2] * count;
                        }
                        out[order][2 * bucket + positive].add(total, turned);
                    }
                }
                // Add the rows of this bucket, and move on to the next centre.
                for (int c = 0; c < 2; ++c) {
                    const Moments& m = moments[2 * bucket + c];
                    const bool any = m[0] != 0;
                    for (int v = 0; v < V; ++v) {
                        Vec a = load(sums[c] + v * lanes);
                        for (int j = 0; any && j < n_moments; ++j) a += source[0][j][v] * ((j % 2 ? -turn : 1) * m[j]);
                        if constexpr (linear) {
                            Vec distance = load(distances[c] + v * lanes) + width * a;
                            for (int j = 0; any && j < n_moments; ++j)
                                distance += source[1][j][v] * ((j % 2 ? -turn : 1) * m[j]);
                            store(distance * factor[v], distances[c] + v * lanes);
                        }
                        store(a * factor[v], sums[c] + v * lanes);
                    }
                }
                const Moments& met = moments[2 * bucket + up];
                second += width * (2 * first + width * count) + width * width * (met[0] - 2 * turn * met[1] + met[2]);
                first += width * count + width * (met[0] - turn * met[1]);
                count += met[0];
            }
        }
        // Pairs inside a bucket: polynomials in the offsets of the negative and of the positive.
        Moments inside[2][n_moments];  // by class of the row and power of the other offset
        for (int order = 0; order < 3; ++order) {
            for (int j = 0; j < n_moments; ++j)
                for (int i = 0; i < n_moments; ++i)
                    inside[0][j][i] = inside[1][i][j] = smooth_.inside[(order * n_moments + i) * n_moments + j];
            for (int slot = 0; slot < 2 * buckets && wanted[order]; ++slot) {
                const Moments& m = moments[slot ^ 1];
                if (m[0] == 0 || moments[slot][0] == 0) continue;
                for (int j = 0; j < n_moments; ++j) out[order][slot].add(inside[slot % 2][j], Vec{} + m[j]);
            }
        }
    }

    const GroupRows<S> rows_;
    const Smooth& smooth_;
    static constexpr int block_rows = 256;
    static constexpr int rows_per_bucket = 6;  // with fewer rows on average, sorting takes less time
};

}  // namespace everypair::EVERYPAIR_ISA
