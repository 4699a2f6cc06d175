// Plans for a smooth term: a polynomial in x = exp(-rate |d|) on either side of d = 0, with the truncated polynomial that
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
// Sorted plan: sort all rows by p, then one sweep upwards and one downwards. For float64 the sums are kept in two parts, the
// rows of the current run of 32 and those before it, so that rounding errors grow with the number of runs. Whether d > 0 is
// decided exactly, by the order: a positive z comes before a negative if z < s + shift holds for the real numbers.
//
// Bucket plan, for many rows in few buckets: no sort. All buckets have the width w, a power of two; q = rate w is at most 1 for
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
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "double_double.hpp"
#include "pool.hpp"
#include "sources.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// Vectors as wide as the instruction set has them.
#if defined(__AVX512F__)
constexpr int lanes = 8;
#elif defined(__AVX2__)
constexpr int lanes = 4;
#else
constexpr int lanes = 2;
#endif
typedef double Vec __attribute__((vector_size(8 * lanes)));

inline double sum_of(Vec a) {
    double sum = 0;
    for (int i = 0; i < lanes; i += 2) sum += a[i] + a[i + 1];
    return sum;
}

// exp(y) for y <= 0, with a relative error of about 2e-16; 0 below -708. Without branches, so that loops are vectorised.
inline double exp_negative(double y) {
    constexpr double magic = 0x1.8p52;  // adding it rounds to an integer
    const double z = y > -708 ? y : -708, shifted = z * 0x1.71547652b82fep0 + magic, n = shifted - magic;
    const double r = (z - n * 0x1.62e42fefa38p-1) - n * 0x1.ef35793c7673p-45;
    double p = 1.0 / 6227020800;
    for (const double c : {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                           1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
        p = p * r + c;
    const double power = std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023) << 52);
    return y > -708 ? p * power : 0;
}

// The coefficients of one function of d in vectors, by side: [0] where d <= 0, [1] where d > 0. Powers k = 1, 2, ...
template <int V>
struct Coefficients {
    Vec c[2][V], e[2][V];
    double b0, b1, b2;  // where d > 0 also b0 + b1 d + b2 d^2

    Coefficients(const Smooth& smooth, int order) {
        for (int side = 0; side < 2; ++side)
            for (int k = 0; k < V * lanes; ++k) {
                const double* pair = smooth.powers[order] + 2 * (side * smooth.n_powers[order] + k);
                c[side][k / lanes][k % lanes] = k < smooth.n_powers[order] ? pair[0] : 0;
                e[side][k / lanes][k % lanes] = k < smooth.n_powers[order] ? pair[1] : 0;
            }
        b0 = order == 0 ? smooth.b0 : order == 1 ? smooth.b1 : 2 * smooth.b2;
        b1 = order == 0 ? smooth.b1 : order == 1 ? 2 * smooth.b2 : 0;
        b2 = order == 0 ? smooth.b2 : 0;
    }
};

inline Vec load(const double* from) {
    Vec found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

inline void store(Vec found, double* to) { std::memcpy(to, &found, sizeof found); }

// Fills first, first x, first x^2, ...
template <int V>
void fill_powers(double x, double first, Vec* out) {
    const double x2 = x * x;
#if defined(__AVX512F__)
    const double x3 = x2 * x, x4 = x2 * x2, next = x4 * x4;
    out[0] = Vec{1, x, x2, x3, x4, x4 * x, x4 * x2, x4 * x3} * first;
#elif defined(__AVX2__)
    const double next = x2 * x2;
    out[0] = Vec{1, x, x2, x2 * x} * first;
#else
    const double next = x2;
    out[0] = Vec{1, x} * first;
#endif
    for (int v = 1; v < V; ++v) out[v] = out[v - 1] * next;
}

// While it exists, numbers below 2^-1022 count as 0 on this thread. Running sums decay to them, and they are very slow.
class FlushDenormals {
  public:
#if defined(__SSE2__)
    FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#elif defined(__aarch64__)
    FlushDenormals() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(saved_ | std::uint64_t{1} << 24));
    }
    ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

  private:
    std::uint64_t saved_;
#endif
};

// A row on the axis of p, at key + low; low is the rounding error. The class is the highest bit of `tag`, the row the others.
struct Place {
    double key;
    std::uint32_t tag;
    float low;

    std::uint32_t row() const { return tag & 0x7fffffff; }
    std::uint8_t side() const { return static_cast<std::uint8_t>(tag >> 31); }
};

// V vectors hold the powers; linear: there are factors |d|.
template <class S, int V, bool linear>
class SmoothSums {
  public:
    SmoothSums(const Batch& batch, const Smooth& smooth, const Outputs& outputs, const std::uint8_t* classes,
               std::int64_t begin, std::int64_t n, const Survey& found, double scale, int threads)
        : smooth_(smooth), found_(found), n_(n), scale_(scale), threads_(threads) {
        const auto from = [&](void* array) { return array ? static_cast<S*>(array) + begin : nullptr; };
        scores_ = static_cast<const S*>(batch.scores) + begin;
        classes_ = classes + begin;
        weights_ = batch.weights ? batch.weights + begin : nullptr;
        vector_ = batch.vector ? batch.vector + begin : nullptr;
        grad_ = from(outputs.grad);
        hess_ = from(outputs.hess);
        hvp_ = from(outputs.hvp);
    }

    double run() {
        double value;
        if (smooth_.width > 0 && !hvp_ && by_buckets(value)) return value;
        return by_sorting();
    }

  private:
    double by_sorting() {
        Scratch scratch;
        const std::int64_t n = found_.n_pos + found_.n_neg;
        Place* sorted = scratch.take<Place>(n + 1);
        sort_positions(sorted, n);
        double *up = scratch.take<double>(n), *down = scratch.take<double>(n);
        double* w = weights_ ? scratch.take<double>(n) : nullptr;
        for (std::int64_t i = 0; w && i < n; ++i) w[i] = weights_[sorted[i].row()];
        const Coefficients<V> value_of(smooth_, 0);
        double value = 0;
        const auto row_sums = [&](int order, const double* weights, bool valued) {
            const Coefficients<V> f(smooth_, order);
            parallel(n < threaded_rows() ? 1 : threads_, 2, [&](int part) {
                if (part)
                    sweep<false, false>(sorted, n, f, value_of, weights, down);
                else if (valued)
                    value = sweep<true, true>(sorted, n, f, value_of, weights, up);
                else
                    sweep<true, false>(sorted, n, f, value_of, weights, up);
            });
        };
        const auto write = [&](S* out, auto&& result) {
            for (std::int64_t i = 0; out && i < n; ++i)
                out[sorted[i].row()] = static_cast<S>(scale_ * ((w ? w[i] : 1) * result(i)) + 0.0);
        };
        row_sums(1, w, true);
        write(grad_, [&](std::int64_t i) { return sorted[i].side() ? -(up[i] + down[i]) : up[i] + down[i]; });
        if (hess_ || hvp_) row_sums(2, w, false);
        write(hess_, [&](std::int64_t i) { return up[i] + down[i]; });
        if (hvp_) {
            double *own = scratch.take<double>(n), *wv = scratch.take<double>(n);
            for (std::int64_t i = 0; i < n; ++i) {
                own[i] = vector_[sorted[i].row()] * (up[i] + down[i]);
                wv[i] = (w ? w[i] : 1) * vector_[sorted[i].row()];
            }
            row_sums(2, wv, false);
            write(hvp_, [&](std::int64_t i) { return own[i] - (up[i] + down[i]); });
        }
        return value * scale_;
    }

    // Sorts the n rows by position, negatives before positives at the same one. The key of a negative is the least double that
    // is not below its position, so that it decides exactly which positives are below.
    void sort_positions(Place* rows, std::int64_t n) const {
        std::int64_t k = 0;
        for (const std::uint8_t side : {0, 1})
            for (std::int64_t i = 0; i < n_; ++i) {
                const DoubleDouble at = DoubleDouble::sum(static_cast<double>(scores_[i]), side ? 0 : smooth_.shift);
                const double key = at.low > 0 ? next_above(at.high) : at.high;
                rows[k] = {key, static_cast<std::uint32_t>(i | (std::int64_t{side} << 31)),
                           static_cast<float>((at.high - key) + at.low)};
                k += classes_[i] == side;
            }
        radix_sort(rows, n, rows);
    }

    // Writes for each row the sum over the rows of the other class below it (up) or above it, in order of position. If valued,
    // returns the sum of the values of these pairs: each pair has one row above the other.
    template <bool up, bool valued>
    double sweep(const Place* sorted, std::int64_t n, const Coefficients<V>& f, const Coefficients<V>& g, const double* weights,
                 double* out) const {
        const FlushDenormals flush;
        // By class of the rows met so far.
        Vec sums[2][V] = {}, distances[2][V] = {}, carried[2][V] = {}, factor[V], since[V];
        double count = 0, first = 0, second = 0, value = 0;  // of the class for which d > 0
        double distance = 0, reach = 1;                      // from the first row of the run, and exp(-rate distance)
        double gaps[block_rows], factors[block_rows];        // from the row before
        const double rate = smooth_.rate;
        for (std::int64_t k = 0; k < n; ++k) {
            const std::int64_t i = up ? k : n - 1 - k;
            const int at = static_cast<int>(k % block_rows);
            if (at == 0) {
                const int many = static_cast<int>(std::min<std::int64_t>(block_rows, n - k));
                for (int j = 0; j < many; ++j) {
                    const std::int64_t here = up ? k + j : n - 1 - (k + j), before = up ? here - 1 : here + 1;
                    const Place &high = sorted[up ? here : before], &low = sorted[up ? before : here];
                    gaps[j] = k + j > 0 ? std::max((high.key - low.key) + (high.low - low.low), 0.0) : 0;
                }
#pragma omp simd
                for (int j = 0; j < many; ++j) factors[j] = exp_negative(-rate * gaps[j]);
            }
            const double gap = gaps[at], w = weights ? weights[i] : 1;
            const int positive = sorted[i].side(), side = up ? 1 - positive : positive;
            fill_powers<V>(factors[at], factors[at], factor);
            const bool starts = in_runs && k % run_rows == 0;
            if constexpr (in_runs) {
                // Inside a run a product of few factors is good enough. The sums of earlier runs move by an exact exponential.
                distance += gap;
                reach *= factors[at];
                const double moved = starts ? exp_negative(-rate * distance) : reach;
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
    typedef S Quad __attribute__((vector_size(4 * sizeof(S))));
    struct Line {
        Quad low, high;  // coefficients 0 .. 3 and 4 .. 7

        S& operator[](int j) { return reinterpret_cast<S*>(this)[j]; }
        S operator[](int j) const { return reinterpret_cast<const S*>(this)[j]; }
    };

    // The position of the lower end of bucket 0, on the axis of each class, as a sum of two doubles.
    struct Grid {
        double high[2], low[2], scale;
        std::int32_t buckets;
    };

    // Two passes over the rows. Returns false if there would be too many buckets.
    bool by_buckets(double& value) {
        constexpr S inf = std::numeric_limits<S>::infinity();
        S least_pos = inf, most_pos = -inf, least_neg = inf, most_neg = -inf;
        const S* scores = scores_;
        const std::uint8_t* classes = classes_;
#pragma omp simd reduction(min : least_pos, least_neg) reduction(max : most_pos, most_neg)
        for (std::int64_t i = 0; i < n_; ++i) {
            const S s = scores[i];
            const S low_pos = classes[i] == 1 ? s : inf, low_neg = classes[i] == 0 ? s : inf;
            const S high_pos = classes[i] == 1 ? s : -inf, high_neg = classes[i] == 0 ? s : -inf;
            least_pos = low_pos < least_pos ? low_pos : least_pos;
            least_neg = low_neg < least_neg ? low_neg : least_neg;
            most_pos = high_pos > most_pos ? high_pos : most_pos;
            most_neg = high_neg > most_neg ? high_neg : most_neg;
        }
        const double width = smooth_.width, origin = std::min<double>(least_pos, least_neg + smooth_.shift);
        const DoubleDouble of_neg = DoubleDouble::sum(origin, -smooth_.shift);
        const double range = std::max(most_pos - origin, most_neg - of_neg.high) / width;
        const double most_buckets = std::is_same_v<S, float> ? 1 << 17 : 1 << 16;
        if (!(range < std::min(most_buckets, static_cast<double>(n_ - few_rows) / rows_per_bucket))) return false;
        const Grid grid{{of_neg.high, origin}, {of_neg.low, 0}, 1 / width, static_cast<std::int32_t>(range) + 1};

        Scratch scratch;
        const std::int64_t slots = 2 * grid.buckets, tasks = task_count(n_);
        const int slices = static_cast<int>(std::clamp<std::int64_t>(n_ / (8 * slots), 1, std::min<std::int64_t>(tasks, 16)));
        const auto first_row = [&](int slice) { return std::min(n_, tasks * slice / slices * task_rows); };
        const bool keep = n_ <= 1 << 15;
        std::int32_t* kept_slots = scratch.take<std::int32_t>(keep ? n_ : 0);
        S* kept_offsets = scratch.take<S>(keep ? n_ : 0);
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
        const auto batch_rows = static_cast<std::uint32_t>(std::max(1024.0, std::sqrt(n_ / slices)));
        Moments* moments = scratch.take<Moments>(slots * slices);
        parallel(threads_, slices, [&](int slice) {
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
                    fill_powers<parts>(static_cast<double>(offsets[k]), weights_ ? weights_[i + k] : 1, powers);
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
            const std::int64_t count = order == 0 || (order == 1 ? grad_ : hess_) ? slots : 0;
            sums[order] = scratch.take<Moments>(count);
            std::fill(sums[order], sums[order] + count, Moments{});
        }
        expand(moments, grid.buckets, sums);
        value = 0;
        for (std::int64_t slot = 0; slot < slots; slot += 2)
            for (int j = 0; j < n_moments; ++j) value += sums[0][slot][j] * moments[slot][j];
        value *= scale_;
        Line* lines = scratch.take<Line>(slots);
        // Relative to the weight of the class, so that float32 neither overflows nor loses digits before the last factor.
        const double units[2] = {weights_ ? static_cast<double>(found_.w_neg) : 1.0,
                                 weights_ ? static_cast<double>(found_.w_pos) : 1.0};
        const auto write = [&](S* out, int order, double sign) {
            if (!out) return;
            for (std::int64_t slot = 0; slot < slots; ++slot)
                for (int j = 0; j < n_moments; ++j)
                    lines[slot][j] = static_cast<S>((slot % 2 ? sign : 1) * (scale_ * units[slot % 2]) * sums[order][slot][j]);
            parallel(threads_, slices, [&](int slice) {
                by_blocks(slice, true, [&](std::int64_t i, int count, const std::int32_t* where, const S* offsets) {
                    evaluate(lines, where, offsets, count, out + i);
                    for (int k = 0; weights_ && k < count; ++k)
                        out[i + k] = static_cast<S>(weights_[i + k] / units[where[k] % 2] * out[i + k] + 0.0);
                });
            });
        };
        write(grad_, 1, -1);
        write(hess_, 2, 1);
        return true;
    }

    // Computes slot (2 x bucket + class) and offset from the centre, in widths, of each row of a block. The width is a power of
    // two, so only the difference is rounded; `rest` has its error, which float32 does not need.
    void locate(const Grid& grid, std::int64_t from, int count, std::int32_t* slots, S* offsets) const {
        const S* scores = scores_ + from;
        const double high0 = grid.high[0], high1 = grid.high[1], low0 = grid.low[0], low1 = grid.low[1];
        const double scale = grid.scale, last = grid.buckets - 0.5;
        std::uint8_t sides[block_rows];
        for (int i = 0; i < count; ++i) sides[i] = classes_[from + i] & 1;
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
        for (int i = 0; weights_ && i < count; ++i)
            if (classes_[from + i] >= weightless) offsets[i] = 0;
    }

    // Evaluates the polynomials of a block, four rows at a time: transpositions turn four of them into vectors of coefficients.
    static void evaluate(const Line* lines, const std::int32_t* slots, const S* offsets, int count, S* out) {
        const auto columns = [](Quad a, Quad b, Quad c, Quad d, Quad* to) {
            const Quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            const Quad cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
            to[0] = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5), to[1] = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
            to[2] = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5), to[3] = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
        };
        int i = 0;
        for (; i + 4 <= count; i += 4) {
            const Line &a = lines[slots[i]], &b = lines[slots[i + 1]], &c = lines[slots[i + 2]], &d = lines[slots[i + 3]];
            Quad q[n_moments], f;
            columns(a.low, b.low, c.low, d.low, q);
            columns(a.high, b.high, c.high, d.high, q + 4);
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
        const bool wanted[3] = {true, grad_ != nullptr, hess_ != nullptr};
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
                        const double* pair = smooth_.powers[order] + 2 * (side * smooth_.n_powers[order] + k);
                        const bool is_power = k < smooth_.n_powers[order];
                        const double c = is_power ? pair[0] : 0, e = is_power ? pair[1] : 0;
                        near[order][side][k][j] = c * series(0, j, k);
                        if constexpr (linear) {
                            near[order][side][k][j] += e * width * series(1, j, k);
                            far[order][side][k][j] = e * series(0, j, k);
                        }
                    }
            }
        Vec factor[V];
        const double x = std::exp(-smooth_.rate * width);
        fill_powers<V>(x, x, factor);
        const double b[3][3] = {{smooth_.b0, smooth_.b1, smooth_.b2}, {smooth_.b1, 2 * smooth_.b2, 0}, {2 * smooth_.b2, 0, 0}};
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
                            total[0] += b[order][0] * count + b[order][1] * first + b[order][2] * second;
                            total[1] += width * (b[order][1] * count + 2 * b[order][2] * first);
                            total[2] += width * width * b[order][2] * count;
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

    const Smooth& smooth_;
    const Survey& found_;
    const S* scores_;
    const std::uint8_t* classes_;
    const double *weights_, *vector_;
    S *grad_, *hess_, *hvp_;
    std::int64_t n_;
    double scale_;
    int threads_;
    static constexpr bool in_runs = std::is_same_v<S, double> && !linear;
    static constexpr int run_rows = 32, block_rows = 256;
    // With fewer rows, or fewer on average, sorting takes less time.
    static constexpr int few_rows = 100, rows_per_bucket = 6;
};

// Fills the output arrays of one group with both classes, and returns its value.
template <class S>
double smooth_sums(const Batch& batch, const Smooth& smooth, const Outputs& outputs, const std::uint8_t* classes,
                   std::int64_t begin, std::int64_t n, const Survey& found, double scale, int threads) {
    const auto with = [&]<int V, bool linear>() {
        return SmoothSums<S, V, linear>(batch, smooth, outputs, classes, begin, n, found, scale, threads).run();
    };
    constexpr int usual = std::is_same_v<S, float> ? 12 : 20, some = (usual + lanes - 1) / lanes, most = most_powers / lanes;
    const int powers = std::max({smooth.n_powers[0], smooth.n_powers[1], outputs.hess || outputs.hvp ? smooth.n_powers[2] : 0});
    if (smooth.linear) return with.template operator()<most, true>();
    return powers <= some * lanes ? with.template operator()<some, false>() : with.template operator()<most, false>();
}

}  // namespace everypair::EVERYPAIR_ISA
