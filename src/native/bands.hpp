// Exact plan for one truncated term: partition the rows into bands and the bands into strips, and compare the pairs of a strip
// in the first-level cache.
//
// On the axis of u (positives at s, negatives at s + shift, relative to the lowest positive) pairs of different bands need no
// comparison: one sweep computes for each band the number of positives below it and the sums of their distances and squared
// distances from its left edge, and likewise for the negatives above it. The same is done for the strips of a band. The few
// pairs of one strip are compared one by one, which vectorises better than a sort; a band with many rows is sorted. All sums
// are of positive numbers relative to a nearby edge, so no digits cancel. The rows of a band stay in the order of their index,
// so the results do not depend on the number of threads.
//
// The distance u_neg - u_pos is rounded, so its sign does not decide whether a pair counts. Exact keys decide: the score of a
// positive and the threshold of a negative (sources.hpp). The band and the strip of a row are non-decreasing functions of its
// key, so they agree with the order of the keys, and rows of one strip are compared by their keys. If a term, its slope and
// what is asked for vanish at the knot, a pair next to the knot adds next to nothing, and the sign of the distance is used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "double_double.hpp"
#include "moments.hpp"
#include "pool.hpp"
#include "sources.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

template <class S>
class Bands {
  public:
    Bands(const S* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found, const Term& term, double scale,
          S* grad, S* hess, int threads)
        : scores_(scores), classes_(classes), n_(n), term_(term), scale_(scale), grad_(grad), hess_(hess), threads_(threads) {
        origin_ = found.min_pos;
        // With this order of operations a common offset of the scores costs no digits.
        const double range = found.max_neg - found.min_pos + term.shift;
        bands_ = 1;
        while (bands_ < n / 2048 && bands_ < 4096) bands_ *= 2;
        width_ = range / bands_ * (1 + 0x1p-40);  // slightly wider, so that the highest negative is in the last band
        per_width_ = 1 / width_;
    }

    double run() {
        Scratch scratch;
        const std::size_t slots = 2 * (static_cast<std::size_t>(bands_) + 2);
        const int tasks = task_count(n_), slices = slice_count(n_, threads_);
        const auto first_row = [&](int slice) {
            return std::min(n_, static_cast<std::int64_t>(tasks) * slice / slices * task_rows);
        };
        std::uint32_t* next = scratch.take<std::uint32_t>(slots * slices);
        begins_ = scratch.take<std::uint32_t>(slots + 1);
        rows_ = scratch.take<Keyed<S>>(n_);

        parallel(threads_, slices, [&](int slice) {
            std::uint32_t* mine = next + slice * slots;
            std::fill(mine, mine + slots, 0);
            by_blocks(first_row(slice), first_row(slice + 1), [&](std::int64_t, const std::int32_t* where, int count) {
                for (int k = 0; k < count; ++k) ++mine[where[k]];
            });
        });
        std::uint32_t total = 0;
        for (std::size_t slot = 0; slot < slots; ++slot) {
            begins_[slot] = total;
            for (int slice = 0; slice < slices; ++slice) {
                const std::uint32_t count = next[slice * slots + slot];
                next[slice * slots + slot] = total;
                total += count;
            }
        }
        begins_[slots] = total;
        parallel(threads_, slices, [&](int slice) {
            std::uint32_t* mine = next + slice * slots;
            by_blocks(first_row(slice), first_row(slice + 1), [&](std::int64_t i, const std::int32_t* where, int count) {
                for (int k = 0; k < count; ++k) rows_[mine[where[k]]++] = {scores_[i + k], static_cast<std::uint32_t>(i + k)};
            });
        });

        // Slot 2 b: negatives above band b, relative to its right edge; slot 2 b + 1: positives below it, relative to its left
        // edge.
        Moments* moments = scratch.take<Moments>(slots);
        const int band_tasks = static_cast<int>((bands_ + 2 + bands_per_task - 1) / bands_per_task);
        const auto each_band = [&](int t, auto&& body) {
            for (std::int64_t b = t * bands_per_task; b < std::min<std::int64_t>(bands_ + 2, (t + 1) * bands_per_task); ++b)
                body(b);
        };
        parallel(threads_, band_tasks, [&](int t) {
            each_band(t, [&](std::int64_t b) {
                Moments neg, pos;
                for (std::uint32_t k = begins_[2 * b]; k < begins_[2 * b + 1]; ++k) neg.add(position(k, 0) - left(b));
                for (std::uint32_t k = begins_[2 * b + 1]; k < begins_[2 * b + 2]; ++k) pos.add(left(b + 1) - position(k, 1));
                moments[2 * b] = neg;
                moments[2 * b + 1] = pos;
            });
        });
        sweep(moments, bands_ + 2, width_, {}, {});
        double* parts = scratch.take<double>(band_tasks);
        parallel(threads_, band_tasks, [&](int t) {
            double sum = 0;
            each_band(t, [&](std::int64_t b) {
                const Moments &below = moments[2 * b + 1], &above = moments[2 * b];
                sum += term_.b2 == 0                             ? solve<false, true>(b, below, above)
                       : term_.b0 != 0 || term_.b1 != 0 || hess_ ? solve<true, true>(b, below, above)
                                                                 : solve<true, false>(b, below, above);
            });
            parts[t] = sum;
        });
        double value = 0;
        for (int t = 0; t < band_tasks; ++t) value += parts[t];
        return value * scale_;
    }

  private:
    static constexpr int block = 256;
    static constexpr std::int64_t bands_per_task = 16;  // bands of one task
    static constexpr std::int64_t crowded_band = 16384, crowded_strip = 512, strip_rows = 32;
    // Vectors as wide as the instruction set has them: the compiler splits wider ones into slow code.
#if defined(__AVX512F__)
    static constexpr int lanes = 8;
#elif defined(__AVX2__)
    static constexpr int lanes = 4;
#else
    static constexpr int lanes = 2;
#endif
    typedef double Doubles __attribute__((vector_size(8 * lanes)));
    typedef std::int64_t Counts __attribute__((vector_size(8 * lanes)));

    // Band 0 is below the lowest positive, band bands_ + 1 above the highest negative.
    double left(std::int64_t band) const { return static_cast<double>(band - 1) * width_; }
    double position(std::uint32_t k, int side) const { return (rows_[k].key - origin_) + (side ? 0 : term_.shift); }
    double exact_key(std::uint32_t k, int side) const { return side ? rows_[k].key : threshold(rows_[k].key, term_.shift); }

    template <class Use>
    void by_blocks(std::int64_t begin, std::int64_t end, Use&& use) const {
        std::int32_t where[block];
        const double origin = origin_, shift = term_.shift, per_width = per_width_, last = static_cast<double>(bands_ + 1);
        for (std::int64_t i = begin; i < end; i += block) {
            const int count = static_cast<int>(std::min<std::int64_t>(block, end - i));
            const S* s = scores_ + i;
            const std::uint8_t* c = classes_ + i;
#pragma omp simd
            for (int k = 0; k < count; ++k) {
                const double score = static_cast<double>(s[k]), key = c[k] ? score : threshold(score, shift);
                const double p = (key - origin) * per_width + 1;
                const double q = p > 0 ? p : 0;
                where[k] = static_cast<std::int32_t>(q < last ? q : last) * 2 + c[k];
            }
            use(i, where, count);
        }
    }

    void write(std::uint32_t row, double sign, const Moments& met) const {
        if (grad_) grad_[row] = static_cast<S>(sign * scale_ * (term_.b1 * met.count + 2 * term_.b2 * met.first) + 0.0);
        if (hess_) hess_[row] = static_cast<S>(scale_ * 2 * term_.b2 * met.count);
    }
    double value_of(const Moments& met) const { return term_.b0 * met.count + term_.b1 * met.first + term_.b2 * met.second; }

    // Replaces the moments of the rows inside each band by those of the positives below it (slot 2 b + 1) and of the negatives
    // above it (slot 2 b).
    static void sweep(Moments* moments, std::int64_t bands, double width, Moments below, Moments above) {
        for (std::int64_t b = 0; b < bands; ++b) {
            const Moments inside = moments[2 * b + 1];
            moments[2 * b + 1] = below;
            below.advance(width, inside);
        }
        for (std::int64_t b = bands - 1; b >= 0; --b) {
            const Moments inside = moments[2 * b];
            moments[2 * b] = above;
            above.advance(width, inside);
        }
    }

    template <bool quadratic>
    void write(const std::uint32_t* rows, int some, double scale, Doubles count, Doubles first) const {
        Doubles grad = term_.b1 * count;
        if constexpr (quadratic) grad += 2 * term_.b2 * first;
        grad = grad * scale + 0.0;  // -0.0 becomes 0.0
        if (grad_)
            for (int k = 0; k < some; ++k) grad_[rows[k]] = static_cast<S>(grad[k]);
        if (hess_)
            for (int k = 0; k < some; ++k) hess_[rows[k]] = static_cast<S>(scale_ * 2 * term_.b2 * count[k]);
    }

    template <bool quadratic, bool exact>
    double solve(std::int64_t b, const Moments& below, const Moments& above) {
        const std::uint32_t begin = begins_[2 * b], pos = begins_[2 * b + 1];
        const int n = static_cast<int>(begins_[2 * b + 2] - begin), n_neg = static_cast<int>(pos - begin);
        if (n == 0) return 0;
        if (n > crowded_band) return solve_sorted(b, below, above);
        int strips = 1;
        while (strips * strip_rows < n) strips *= 2;
        Scratch scratch;
        double* u = scratch.take<double>(n + lanes);  // vectors may be read past the end; the extra values are not used
        double* keys = exact ? scratch.take<double>(n + lanes) : u;
        std::uint32_t* rows = scratch.take<std::uint32_t>(n);
        std::uint16_t* where = scratch.take<std::uint16_t>(n);
        std::int32_t* ends = scratch.take<std::int32_t>(2 * strips + 1);
        Moments* moments = scratch.take<Moments>(2 * strips);

        const double start = left(b), width = width_ / strips, per_width = strips * per_width_;
        for (int side = 0; side < 2; ++side) {
            const Keyed<S>* band = rows_ + begin;
            const double origin = origin_, shift = term_.shift, last = strips - 1;
            const int from = side ? n_neg : 0, to = side ? n : n_neg;
#pragma omp simd
            for (int k = from; k < to; ++k) {
                const double score = static_cast<double>(band[k].key), key = side ? score : threshold(score, shift);
                const double p = ((key - origin) - start) * per_width, q = p > 0 ? p : 0;
                where[k] = static_cast<std::uint16_t>(static_cast<std::int32_t>(q < last ? q : last) * 2 + side);
            }
        }
        std::fill(ends, ends + 2 * strips + 1, 0);
        for (int k = 0; k < n; ++k) ++ends[where[k] + 1];
        int most = 0;
        for (int s = 0; s < 2 * strips; ++s) {
            most = std::max(most, ends[s + 1]);
            ends[s + 1] += ends[s];
        }
        if (most > crowded_strip) return solve_sorted(b, below, above);
        for (int k = 0; k < n; ++k) {
            const int to = ends[where[k]]++;
            u[to] = position(begin + k, k >= n_neg);
            if (exact) keys[to] = exact_key(begin + k, k >= n_neg);
            rows[to] = rows_[begin + k].row;
        }
        std::fill(u + n, u + n + lanes, 0.0);
        if (exact) std::fill(keys + n, keys + n + lanes, 0.0);
        for (int s = 0; s < strips; ++s) {
            const int first = s ? ends[2 * s - 1] : 0;
            Moments neg, positive;
            for (int k = first; k < ends[2 * s]; ++k) neg.add(u[k] - (start + s * width));
            for (int k = ends[2 * s]; k < ends[2 * s + 1]; ++k) positive.add((start + (s + 1) * width) - u[k]);
            moments[2 * s] = neg;
            moments[2 * s + 1] = positive;
        }
        sweep(moments, strips, width, below, above);
        double value = 0;
        for (int s = 0; s < strips; ++s) {
            const int first = s ? ends[2 * s - 1] : 0, middle = ends[2 * s], last = ends[2 * s + 1];
            value += compare<quadratic, exact>(u + first, keys + first, rows + first, middle - first, last - middle,
                                               start + s * width, width, moments[2 * s + 1], moments[2 * s]);
        }
        return value;
    }

    // Compares all pairs of one strip; its negatives come first.
    template <bool quadratic, bool exact>
    double compare(const double* u, const double* keys, const std::uint32_t* rows, int n_neg, int n_pos, double start,
                   double width, const Moments& below, const Moments& above) const {
        const double *u_neg = u, *u_pos = u + n_neg, *of_neg = keys, *of_pos = keys + n_neg;
        double value = 0;
        for (int i = 0; i < n_neg; i += lanes) {
            Doubles x, key, first{}, second{};
            Counts count{};
            std::memcpy(&x, u_neg + i, sizeof x);
            std::memcpy(&key, of_neg + i, sizeof key);
            for (int j = 0; j < n_pos; ++j) {
                const Doubles d = x - u_pos[j];
                const Counts counts = exact ? of_pos[j] < key : d > 0.0;
                const Doubles active = counts ? d : d - d;
                count -= counts;
                first += active;
                if constexpr (quadratic) second += active * active;
            }
            const Doubles step = x - start, c = __builtin_convertvector(count, Doubles) + below.count;
            const Doubles f = first + below.first + step * below.count;
            Doubles values = term_.b0 * c + term_.b1 * f;
            if constexpr (quadratic)
                values += term_.b2 * (second + below.second + step * (2 * below.first + step * below.count));
            const int some = std::min(lanes, n_neg - i);
            for (int k = 0; k < some; ++k) value += values[k];
            write<quadratic>(rows + i, some, scale_, c, f);
        }
        for (int i = 0; i < n_pos; i += lanes) {
            Doubles x, key, first{};
            Counts count{};
            std::memcpy(&x, u_pos + i, sizeof x);
            std::memcpy(&key, of_pos + i, sizeof key);
            for (int j = 0; j < n_neg; ++j) {
                const Doubles d = u_neg[j] - x;
                const Counts counts = exact ? of_neg[j] > key : d > 0.0;
                count -= counts;
                if constexpr (quadratic) first += counts ? d : d - d;
            }
            const Doubles c = __builtin_convertvector(count, Doubles) + above.count;
            const Doubles f = first + above.first + (start + width - x) * above.count;
            write<quadratic>(rows + n_neg + i, std::min(lanes, n_pos - i), -scale_, c, f);
        }
        return value;
    }

    // Sorts the rows of a band. Rows outside the band are added in one step from its edge, because many small steps would
    // accumulate rounding errors.
    double solve_sorted(std::int64_t b, const Moments& below, const Moments& above) {
        const std::uint32_t neg = begins_[2 * b], pos = begins_[2 * b + 1], end = begins_[2 * b + 2];
        std::sort(rows_ + neg, rows_ + pos);
        std::sort(rows_ + pos, rows_ + end);
        const double start = left(b), stop = left(b + 1);
        const auto together = [](const Moments& x, const Moments& y) {
            return Moments{x.count + y.count, x.first + y.first, x.second + y.second};
        };
        Moments own;
        DoubleDouble value;  // a long sum of nearly equal numbers has a systematic rounding error
        double at = start;
        for (std::uint32_t i = neg, j = pos; i < pos; ++i) {
            const double x = position(i, 0);
            for (; j < end && exact_key(j, 1) < exact_key(i, 0); ++j) {
                own.advance(position(j, 1) - at, {1, 0, 0});
                at = position(j, 1);
            }
            const Moments met = together(own.shifted(x - at), below.shifted(x - start));
            value += value_of(met);
            write(rows_[i].row, 1, met);
        }
        own = {};
        at = stop;
        for (std::uint32_t i = end, j = pos; i > pos; --i) {
            const double x = position(i - 1, 1);
            for (; j > neg && exact_key(j - 1, 0) > exact_key(i - 1, 1); --j) {
                own.advance(at - position(j - 1, 0), {1, 0, 0});
                at = position(j - 1, 0);
            }
            write(rows_[i - 1].row, -1, together(own.shifted(at - x), above.shifted(stop - x)));
        }
        return static_cast<double>(value);
    }

    const S* scores_;
    const std::uint8_t* classes_;
    std::int64_t n_;
    Term term_;
    double scale_;
    S *grad_, *hess_;
    int threads_;
    double origin_, width_, per_width_;
    std::int64_t bands_;
    std::uint32_t* begins_;
    Keyed<S>* rows_;
};

}  // namespace everypair::EVERYPAIR_ISA
