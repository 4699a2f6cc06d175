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
// Bucket plan, for float32 and ranges up to about a thousand temperatures: no sort. Equal buckets of width w = q / rate with
// q <= 1/16; per bucket and class the sums of weight x f^j, j = 0..3, where f is the distance from the centre in widths. The
// A_k are carried from centre to centre, with the third-order Taylor series of exp(k q f) for the rows of a bucket; a row
// evaluates a cubic polynomial in its own f. So the slope of a pair is its Taylor series in the two offsets, up to the third
// order in each. For the logistic slope the fourth derivative is at most the slope itself, so both remainders together are at
// most 2 (q / 2)^4 / 24 < 8e-8 of it. For pairs inside a bucket the cubic polynomial that interpolates the whole function, the
// truncated part included, in [-q, q] has an error of at most q^4 / 192 of the fourth derivative.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "axis.hpp"
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

    // The function itself.
    double at(double d, double rate) const {
        const int side = d > 0;
        const double x = std::exp(-rate * std::abs(d));
        double power = x, sum = side ? b0 + d * (b1 + d * b2) : 0;
        for (int k = 0; k < V * lanes; ++k, power *= x)
            sum += (c[side][k / lanes][k % lanes] + e[side][k / lanes][k % lanes] * std::abs(d)) * power;
        return sum;
    }
};

// Fills x, x^2, x^3, ...
template <int V>
void fill_powers(double x, Vec* out) {
    const double x2 = x * x;
#if defined(__AVX512F__)
    const double x3 = x2 * x, x4 = x2 * x2, last = x4 * x4;
    out[0] = Vec{x, x2, x3, x4, x4 * x, x4 * x2, x4 * x3, last};
#elif defined(__AVX2__)
    const double last = x2 * x2;
    out[0] = Vec{x, x2, x2 * x, last};
#else
    const double last = x2;
    out[0] = Vec{x, x2};
#endif
    for (int v = 1; v < V; ++v) out[v] = out[v - 1] * last;
}

// A row on the axis of p, at key + low; low is the rounding error.
struct Place {
    double key;
    std::uint32_t row;
    float low;
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
        if constexpr (std::is_same_v<S, float> && !linear)
            if (!hvp_ && by_buckets(value)) return value;
        return by_sorting();
    }

  private:
    double weight(std::int64_t row) const { return weights_ ? weights_[row] : 1; }

    double by_sorting() {
        Scratch scratch;
        const std::int64_t n = found_.n_pos + found_.n_neg;
        Place* sorted = scratch.take<Place>(n);
        sort_positions(sorted);
        gaps_ = scratch.take<double>(n + 1);
        factors_ = scratch.take<double>(n + 1);
        sides_ = scratch.take<std::uint8_t>(n);
        double *w = scratch.take<double>(n), *up = scratch.take<double>(n), *down = scratch.take<double>(n);
        for (std::int64_t i = 0; i < n; ++i) {
            sides_[i] = classes_[sorted[i].row];
            w[i] = weight(sorted[i].row);
            const Place &here = sorted[i], &before = sorted[i ? i - 1 : 0];
            gaps_[i] = std::max((here.key - before.key) + (here.low - before.low), 0.0);
        }
        gaps_[n] = 0;
        const double rate = smooth_.rate;
#pragma omp simd
        for (std::int64_t i = 0; i <= n; ++i) factors_[i] = exp_negative(-rate * gaps_[i]);
        const Coefficients<V> value_of(smooth_, 0);
        double value = 0;
        const auto row_sums = [&](int order, const double* weights, bool valued) {
            const Coefficients<V> f(smooth_, order);
            parallel(n < threaded_rows() ? 1 : threads_, 2, [&](int part) {
                if (part)
                    sweep<false, false>(n, f, value_of, weights, down);
                else if (valued)
                    value = sweep<true, true>(n, f, value_of, weights, up);
                else
                    sweep<true, false>(n, f, value_of, weights, up);
            });
#pragma omp simd
            for (std::int64_t i = 0; i < n; ++i) up[i] += down[i];
        };
        row_sums(1, w, true);
        if (grad_)
            for (std::int64_t i = 0; i < n; ++i)
                grad_[sorted[i].row] = static_cast<S>((sides_[i] ? -scale_ : scale_) * w[i] * up[i] + 0.0);
        if (hess_ || hvp_) row_sums(2, w, false);
        if (hess_)
            for (std::int64_t i = 0; i < n; ++i) hess_[sorted[i].row] = static_cast<S>(scale_ * w[i] * up[i]);
        if (hvp_) {
            double *own = scratch.take<double>(n), *wv = scratch.take<double>(n);
            for (std::int64_t i = 0; i < n; ++i) {
                own[i] = vector_[sorted[i].row] * up[i];
                wv[i] = w[i] * vector_[sorted[i].row];
            }
            row_sums(2, wv, false);
            for (std::int64_t i = 0; i < n; ++i) hvp_[sorted[i].row] = static_cast<S>(scale_ * w[i] * (own[i] - up[i]));
        }
        return value * scale_;
    }

    // Sorts the rows by position, negatives before positives at the same one. The key of a negative is the least double that is
    // not below its position, so that it decides exactly which positives are below.
    void sort_positions(Place* sorted) {
        Scratch scratch;
        Place* rows = scratch.take<Place>(found_.n_pos + found_.n_neg + 1);
        std::int64_t k = 0;
        for (const std::uint8_t side : {0, 1})
            for (std::int64_t i = 0; i < n_; ++i) {
                const DoubleDouble at = DoubleDouble::sum(static_cast<double>(scores_[i]), side ? 0 : smooth_.shift);
                const double key = at.low > 0 ? next_above(at.high) : at.high;
                rows[k] = {key, static_cast<std::uint32_t>(i), static_cast<float>((at.high - key) + at.low)};
                k += classes_[i] == side;
            }
        radix_sort(rows, k, sorted);
    }

    // Writes for each row the sum over the rows of the other class below it (up) or above it, in order of position. If valued,
    // returns the sum of the values of these pairs: each pair has one row above the other.
    template <bool up, bool valued>
    double sweep(std::int64_t n, const Coefficients<V>& f, const Coefficients<V>& g, const double* weights, double* out) const {
        // By class of the rows met so far.
        Vec sums[2][V] = {}, distances[2][V] = {}, carried[2][V] = {}, factor[V], since[V];
        double count = 0, first = 0, second = 0, value = 0;  // of the class for which d > 0
        double distance = 0, reach = 1;                      // from the first row of the run, and exp(-rate distance)
        for (std::int64_t k = 0; k < n; ++k) {
            const std::int64_t i = up ? k : n - 1 - k;
            const double gap = gaps_[up ? i : i + 1], w = weights[i];
            const int positive = sides_[i], side = up ? 1 - positive : positive;
            fill_powers<V>(factors_[up ? i : i + 1], factor);
            const bool starts = in_runs && k % run_rows == 0;
            if constexpr (in_runs) {
                // Inside a run a product of few factors is good enough. The sums of earlier runs move by an exact exponential.
                distance += gap;
                reach *= factors_[up ? i : i + 1];
                fill_powers<V>(starts ? exp_negative(-smooth_.rate * distance) : reach, since);
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

    static constexpr int order_of_moments = 4;
    using Cubic = double[order_of_moments];
    typedef double Four __attribute__((vector_size(32)));
    typedef float Floats __attribute__((vector_size(16)));

    // Two passes over the rows. Returns false if there would be too many buckets.
    bool by_buckets(double& value) {
        if (!smooth_.inside) return false;
        float least = std::numeric_limits<float>::infinity(), most = -least, least_neg = least, most_neg = most;
#pragma omp simd reduction(min : least, least_neg) reduction(max : most, most_neg)
        for (std::int64_t i = 0; i < n_; ++i) {
            const float s = scores_[i];
            least = classes_[i] == 1 && s < least ? s : least;
            most = classes_[i] == 1 && s > most ? s : most;
            least_neg = classes_[i] == 0 && s < least_neg ? s : least_neg;
            most_neg = classes_[i] == 0 && s > most_neg ? s : most_neg;
        }
        const double width = 1 / (smooth_.rate * smooth_buckets_per_temperature), origin = least;
        const double start = std::min(0.0, (least_neg - origin) + smooth_.shift);
        const double end = std::max(most - origin, (most_neg - origin) + smooth_.shift);
        if (!((end - start) / width < std::min<double>(1 << 14, static_cast<double>(n_) / 2))) return false;
        const int buckets = static_cast<int>((end - start) / width) + 1;
        const double forward = width - start;  // the first bucket is number 1
        const Axis axis{origin, {smooth_.shift + forward, forward}, start, 1 / width, buckets, buckets};

        Scratch scratch;
        const std::size_t slots = axis.slots();
        const std::int64_t wanted = n_ / (8 * static_cast<std::int64_t>(slots)), tasks = task_count(n_);
        const int slices = static_cast<int>(std::clamp<std::int64_t>(wanted, 1, std::min<std::int64_t>(tasks, 16)));
        const auto first_row = [&](int slice) { return std::min(n_, tasks * slice / slices * task_rows); };
        Four* moments = scratch.take<Four>(slots * slices);
        const bool keep = n_ <= 1 << 15;
        std::int32_t* kept_slots = scratch.take<std::int32_t>(keep ? n_ : 0);
        float* kept_offsets = scratch.take<float>(keep ? n_ : 0);
        const auto by_blocks = [&](int slice, bool again, auto&& use) {
            std::int32_t spare_slots[block_rows];
            float spare_offsets[block_rows];
            std::uint8_t sides[block_rows];
            for (std::int64_t i = first_row(slice); i < first_row(slice + 1); i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, first_row(slice + 1) - i));
                std::int32_t* where = keep ? kept_slots + i : spare_slots;
                float* offsets = keep ? kept_offsets + i : spare_offsets;
                if (!keep || !again) {
                    for (int k = 0; k < count; ++k) sides[k] = classes_[i + k] & 1;
                    locate<false>(axis, scores_ + i, sides, count, where, offsets);
#pragma omp simd
                    for (int k = 0; k < count; ++k) offsets[k] -= 0.5f;
                }
                use(i, count, where, offsets);
            }
        };
        parallel(threads_, slices, [&](int slice) {
            Four* mine = moments + slots * slice;
            std::fill(mine, mine + slots, Four{});
            by_blocks(slice, false, [&](std::int64_t i, int count, const std::int32_t* where, const float* offsets) {
                for (int k = 0; k < count; ++k) {
                    const double f = offsets[k];
                    const Four powers{1, f, f * f, f * f * f};
                    mine[where[k]] += weights_ ? weights_[i + k] * powers : powers;
                }
            });
        });
        for (int slice = 1; slice < slices; ++slice)
            for (std::size_t slot = 0; slot < slots; ++slot) moments[slot] += moments[slots * slice + slot];

        Cubic* cubics[3];
        for (int order = 0; order < 3; ++order) {
            const std::size_t count = order == 0 || (order == 1 ? grad_ : hess_) ? slots : 0;
            cubics[order] = scratch.take<Cubic>(count);
            std::fill(cubics[order][0], cubics[order][0] + count * order_of_moments, 0.0);
        }
        expand(moments, buckets + 2, width, cubics);
        value = 0;
        for (std::size_t slot = 0; slot < slots; slot += 2)
            for (int j = 0; j < order_of_moments; ++j) value += cubics[0][slot][j] * moments[slot][j];
        value *= scale_;
        Floats* lines = scratch.take<Floats>(slots);
        const auto write = [&](float* out, int order, double sign) {
            if (!out) return;
            for (std::size_t slot = 0; slot < slots; ++slot)
                for (int j = 0; j < order_of_moments; ++j)
                    lines[slot][j] = static_cast<float>((slot % 2 ? sign : 1) * scale_ * cubics[order][slot][j]);
            parallel(threads_, slices, [&](int slice) {
                by_blocks(slice, true, [&](std::int64_t i, int count, const std::int32_t* where, const float* offsets) {
                    evaluate(lines, where, offsets, count, out + i);
                    for (int k = 0; weights_ && k < count; ++k) out[i + k] = static_cast<float>(weights_[i + k] * out[i + k]);
                });
            });
        };
        write(grad_, 1, -1);
        write(hess_, 2, 1);
        return true;
    }

    // Evaluates the polynomials of a block, four rows at a time: a transposition turns four of them into vectors of
    // coefficients.
    static void evaluate(const Floats* lines, const std::int32_t* slots, const float* offsets, int count, float* out) {
        int i = 0;
        for (; i + 4 <= count; i += 4) {
            const Floats a = lines[slots[i]], b = lines[slots[i + 1]], c = lines[slots[i + 2]], d = lines[slots[i + 3]];
            const Floats ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            const Floats cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
            const Floats c0 = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5), c1 = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
            const Floats c2 = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5), c3 = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
            Floats f;
            std::memcpy(&f, offsets + i, sizeof f);
            const Floats result = c0 + f * (c1 + f * (c2 + f * c3));
            std::memcpy(out + i, &result, sizeof result);
        }
        for (; i < count; ++i) {
            const Floats line = lines[slots[i]];
            const float f = offsets[i];
            out[i] = line[0] + f * (line[1] + f * (line[2] + f * line[3]));
        }
    }

    // The coefficients of one function times (-k q)^j / j!, by side.
    struct Series {
        Vec of[2][order_of_moments][V];
        Coefficients<V> f;

        Series(const Smooth& smooth, int order, const Vec* kq) : f(smooth, order) {
            for (int side = 0; side < 2; ++side)
                for (int v = 0; v < V; ++v) {
                    of[side][0][v] = f.c[side][v];
                    for (int j = 1; j < order_of_moments; ++j) of[side][j][v] = of[side][j - 1][v] * kq[v] * (-1.0 / j);
                }
        }
    };

    // For each order, bucket and class of a row: the sum over all rows of the other class, as a cubic polynomial in the offset
    // of the row. Orders without a result are left out, as are positives for the values: the negatives have all pairs.
    void expand(const Four* moments, int buckets, double width, Cubic* const out[3]) const {
        constexpr double q = 1.0 / smooth_buckets_per_temperature;
        const bool wanted[3] = {true, grad_ != nullptr, hess_ != nullptr};
        Vec kq[V], factor[V];
        for (int v = 0; v < V; ++v)
            for (int l = 0; l < lanes; ++l) kq[v][l] = q * (v * lanes + l + 1);
        fill_powers<V>(std::exp(-q), factor);
        const Series series[3] = {{smooth_, 0, kq}, {smooth_, 1, kq}, {smooth_, 2, kq}};
        for (const bool up : {true, false}) {
            const double turn = up ? 1 : -1;
            Vec sums[2][V] = {};
            double count = 0, first = 0, second = 0;  // of the class for which d > 0, relative to the centre
            for (int k = 0; k < buckets; ++k) {
                const int b = up ? k : buckets - 1 - k;
                for (int positive = 0; positive < 2; ++positive) {
                    if (moments[2 * b + positive][0] == 0) continue;
                    const int side = up ? 1 - positive : positive;
                    for (int order = positive; order < 3; ++order) {
                        if (!wanted[order]) continue;
                        Cubic& cubic = out[order][2 * b + positive];
                        const Coefficients<V>& f = series[order].f;
                        Vec totals[order_of_moments] = {};
                        for (int v = 0; v < V; ++v)
                            for (int j = 0; j < order_of_moments; ++j)
                                totals[j] += series[order].of[side][j][v] * sums[1 - positive][v];
                        for (int j = 0; j < order_of_moments; ++j) cubic[j] += (j % 2 ? turn : 1) * sum_of(totals[j]);
                        if (!side) continue;
                        cubic[0] += f.b0 * count + f.b1 * first + f.b2 * second;
                        cubic[1] += turn * width * (f.b1 * count + 2 * f.b2 * first);
                        cubic[2] += width * width * f.b2 * count;
                    }
                }
                // Move on to the next centre, and add the rows of this bucket.
                for (int source = 0; source < 2; ++source) {
                    const Four m = moments[2 * b + source];
                    for (int v = 0; v < V && m[0] != 0; ++v) {
                        const Vec x = kq[v] * turn;
                        sums[source][v] += m[0] + x * (m[1] + x * (m[2] * 0.5 + x * (m[3] * (1.0 / 6))));
                    }
                    for (int v = 0; v < V; ++v) sums[source][v] *= factor[v];
                }
                const Four met = moments[2 * b + (up ? 1 : 0)];
                second += width * (2 * first + width * count) + width * width * (met[0] - 2 * turn * met[1] + met[2]);
                first += width * count + width * (met[0] - turn * met[1]);
                count += met[0];
            }
        }
        // Pairs inside a bucket, with d = width x t, t = f_neg - f_pos.
        for (int order = 0; order < 3; ++order)
            for (int slot = 0; slot < 2 * buckets && wanted[order]; ++slot) {
                const Four m = moments[slot ^ 1];
                if (m[0] == 0 || moments[slot][0] == 0) continue;
                const double* inside = smooth_.inside + order_of_moments * order;
                const double t = slot % 2 ? -1 : 1, h1 = t * inside[1], h2 = inside[2], h3 = t * inside[3];
                Cubic& cubic = out[order][slot];
                cubic[0] += inside[0] * m[0] - h1 * m[1] + h2 * m[2] - h3 * m[3];
                cubic[1] += h1 * m[0] - 2 * h2 * m[1] + 3 * h3 * m[2];
                cubic[2] += h2 * m[0] - 3 * h3 * m[1];
                cubic[3] += h3 * m[0];
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
    static constexpr int run_rows = 32;
    double *gaps_, *factors_;
    std::uint8_t* sides_;
};

// Fills the output arrays of one group with both classes, and returns its value.
template <class S>
double smooth_sums(const Batch& batch, const Smooth& smooth, const Outputs& outputs, const std::uint8_t* classes,
                   std::int64_t begin, std::int64_t n, const Survey& found, double scale, int threads) {
    const auto with = [&]<int V, bool linear>() {
        return SmoothSums<S, V, linear>(batch, smooth, outputs, classes, begin, n, found, scale, threads).run();
    };
    constexpr int some = (12 + lanes - 1) / lanes, most = most_powers / lanes;
    const int powers = std::max({smooth.n_powers[0], smooth.n_powers[1], outputs.hess || outputs.hvp ? smooth.n_powers[2] : 0});
    if (smooth.linear) return with.template operator()<most, true>();
    return powers <= some * lanes ? with.template operator()<some, false>() : with.template operator()<most, false>();
}

}  // namespace everypair::EVERYPAIR_ISA
