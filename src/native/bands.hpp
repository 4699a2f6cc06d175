// One truncated term, exactly: partition the rows into bands, the bands into strips, and finish each strip in the first-level
// cache.
//
// On the axis of u (positives at s, negatives at s + shift, relative to the lowest positive) a pair of different bands needs no
// comparison: one sweep carries, to each band, the number of positives below, their distances and squared distances to its left
// edge, and likewise the negatives above. The strips of a band repeat this. Pairs of one strip are few and are compared one by
// one, which vectorises better than a sort; a crowded band is sorted. All sums are of positive numbers relative to an edge
// close by, so nothing cancels, and a band's rows stay in order of their index, so the bits do not depend on the threads.
//
// The distance u_neg - u_pos is rounded, so its sign does not decide whether a pair counts. Exact keys do: the score of a
// positive, the threshold of a negative (sources.hpp). Bands and strips are functions of the key that never fall, so they agree
// with it, and rows of one strip are compared by their keys. Where a term and its derivatives vanish at the knot, pairs next
// to it add nothing that could be seen, and the sign of the distance is good enough.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "crowd.hpp"
#include "pool.hpp"
#include "sources.hpp"
#include "survey.hpp"
#include "twofold.hpp"

namespace everypair::EVERYPAIR_ISA {

template <class S>
class Bands {
  public:
    Bands(const S* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found, const Term& term, double scale,
          S* grad, S* hess, int threads)
        : scores_(scores), classes_(classes), n_(n), term_(term), scale_(scale), grad_(grad), hess_(hess), threads_(threads) {
        origin_ = found.min_pos;
        // Subtracted and added in this order, an offset of all scores costs no digits.
        const double range = found.max_neg - found.min_pos + term.shift;
        bands_ = 1;
        while (bands_ < n / 2048 && bands_ < 4096) bands_ *= 2;
        width_ = range / bands_ * (1 + 0x1p-40);  // a hair wider: the last negative falls into the last band
        per_width_ = 1 / width_;
    }

    double run() {
        Scratch scratch;
        const std::size_t slots = 2 * (static_cast<std::size_t>(bands_) + 2);
        const int tasks = task_count(n_), teams = team_count(n_, threads_);
        const auto first_row = [&](int team) {
            return std::min(n_, static_cast<std::int64_t>(tasks) * team / teams * task_rows);
        };
        std::uint32_t* next = scratch.take<std::uint32_t>(slots * teams);
        begins_ = scratch.take<std::uint32_t>(slots + 1);
        rows_ = scratch.take<Keyed<S>>(n_);

        parallel(threads_, teams, [&](int team) {
            std::uint32_t* mine = next + team * slots;
            std::fill(mine, mine + slots, 0);
            by_blocks(first_row(team), first_row(team + 1), [&](std::int64_t, const std::int32_t* where, int count) {
                for (int k = 0; k < count; ++k) ++mine[where[k]];
            });
        });
        std::uint32_t total = 0;
        for (std::size_t slot = 0; slot < slots; ++slot) {
            begins_[slot] = total;
            for (int team = 0; team < teams; ++team) {
                const std::uint32_t count = next[team * slots + slot];
                next[team * slots + slot] = total;
                total += count;
            }
        }
        begins_[slots] = total;
        parallel(threads_, teams, [&](int team) {
            std::uint32_t* mine = next + team * slots;
            by_blocks(first_row(team), first_row(team + 1), [&](std::int64_t i, const std::int32_t* where, int count) {
                for (int k = 0; k < count; ++k) rows_[mine[where[k]]++] = {scores_[i + k], static_cast<std::uint32_t>(i + k)};
            });
        });

        // Slot 2 b: negatives above band b, from its right edge; slot 2 b + 1: positives below it, from its left edge.
        Crowd* crowds = scratch.take<Crowd>(slots);
        const int stretches = static_cast<int>((bands_ + 2 + stretch - 1) / stretch);
        const auto each_band = [&](int t, auto&& body) {
            for (std::int64_t b = t * stretch; b < std::min<std::int64_t>(bands_ + 2, (t + 1) * stretch); ++b) body(b);
        };
        parallel(threads_, stretches, [&](int t) {
            each_band(t, [&](std::int64_t b) {
                Crowd neg, pos;
                for (std::uint32_t k = begins_[2 * b]; k < begins_[2 * b + 1]; ++k) neg.meet(position(k, 0) - left(b));
                for (std::uint32_t k = begins_[2 * b + 1]; k < begins_[2 * b + 2]; ++k) pos.meet(left(b + 1) - position(k, 1));
                crowds[2 * b] = neg;
                crowds[2 * b + 1] = pos;
            });
        });
        sweep(crowds, bands_ + 2, width_, {}, {});
        double* parts = scratch.take<double>(stretches);
        parallel(threads_, stretches, [&](int t) {
            double sum = 0;
            each_band(t, [&](std::int64_t b) {
                const Crowd &below = crowds[2 * b + 1], &above = crowds[2 * b];
                sum += term_.b2 == 0                             ? solve<false, true>(b, below, above)
                       : term_.b0 != 0 || term_.b1 != 0 || hess_ ? solve<true, true>(b, below, above)
                                                                 : solve<true, false>(b, below, above);
            });
            parts[t] = sum;
        });
        double value = 0;
        for (int t = 0; t < stretches; ++t) value += parts[t];
        return value * scale_;
    }

  private:
    static constexpr int block = 256;
    static constexpr std::int64_t stretch = 16;  // bands of one task
    static constexpr std::int64_t crowded_band = 16384, crowded_strip = 512, strip_rows = 32;
    // Vectors that the instruction set has: wider ones would be taken apart, and slowly.
#if defined(__AVX512F__)
    static constexpr int lanes = 8;
#elif defined(__AVX2__)
    static constexpr int lanes = 4;
#else
    static constexpr int lanes = 2;
#endif
    typedef double Doubles __attribute__((vector_size(8 * lanes)));
    typedef std::int64_t Counts __attribute__((vector_size(8 * lanes)));

    // Band 0 lies left of the lowest positive, band bands_ + 1 right of the highest negative.
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

    void write(std::uint32_t row, double sign, const Crowd& met) const {
        if (grad_) grad_[row] = static_cast<S>(sign * scale_ * (term_.b1 * met.count + 2 * term_.b2 * met.first) + 0.0);
        if (hess_) hess_[row] = static_cast<S>(scale_ * 2 * term_.b2 * met.count);
    }
    double value_of(const Crowd& met) const { return term_.b0 * met.count + term_.b1 * met.first + term_.b2 * met.second; }

    // Turns the crowds inside each band into those beyond it: 2 b + 1 positives below, 2 b negatives above.
    static void sweep(Crowd* crowds, std::int64_t bands, double width, Crowd below, Crowd above) {
        for (std::int64_t b = 0; b < bands; ++b) {
            const Crowd inside = crowds[2 * b + 1];
            crowds[2 * b + 1] = below;
            below.move(width, inside);
        }
        for (std::int64_t b = bands - 1; b >= 0; --b) {
            const Crowd inside = crowds[2 * b];
            crowds[2 * b] = above;
            above.move(width, inside);
        }
    }

    template <bool quadratic>
    void write(const std::uint32_t* rows, int some, double scale, Doubles count, Doubles first) const {
        Doubles grad = term_.b1 * count;
        if constexpr (quadratic) grad += 2 * term_.b2 * first;
        grad = grad * scale + 0.0;  // no negative zeros
        if (grad_)
            for (int k = 0; k < some; ++k) grad_[rows[k]] = static_cast<S>(grad[k]);
        if (hess_)
            for (int k = 0; k < some; ++k) hess_[rows[k]] = static_cast<S>(scale_ * 2 * term_.b2 * count[k]);
    }

    template <bool quadratic, bool exact>
    double solve(std::int64_t b, const Crowd& below, const Crowd& above) {
        const std::uint32_t begin = begins_[2 * b], pos = begins_[2 * b + 1];
        const int n = static_cast<int>(begins_[2 * b + 2] - begin), n_neg = static_cast<int>(pos - begin);
        if (n == 0) return 0;
        if (n > crowded_band) return solve_sorted(b, below, above);
        int strips = 1;
        while (strips * strip_rows < n) strips *= 2;
        Scratch scratch;
        double* u = scratch.take<double>(n + lanes);  // whole vectors are read past the end, and dropped
        double* keys = exact ? scratch.take<double>(n + lanes) : u;
        std::uint32_t* rows = scratch.take<std::uint32_t>(n);
        std::uint16_t* where = scratch.take<std::uint16_t>(n);
        std::int32_t* ends = scratch.take<std::int32_t>(2 * strips + 1);
        Crowd* crowds = scratch.take<Crowd>(2 * strips);

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
            Crowd neg, positive;
            for (int k = first; k < ends[2 * s]; ++k) neg.meet(u[k] - (start + s * width));
            for (int k = ends[2 * s]; k < ends[2 * s + 1]; ++k) positive.meet((start + (s + 1) * width) - u[k]);
            crowds[2 * s] = neg;
            crowds[2 * s + 1] = positive;
        }
        sweep(crowds, strips, width, below, above);
        double value = 0;
        for (int s = 0; s < strips; ++s) {
            const int first = s ? ends[2 * s - 1] : 0, middle = ends[2 * s], last = ends[2 * s + 1];
            value += compare<quadratic, exact>(u + first, keys + first, rows + first, middle - first, last - middle,
                                               start + s * width, width, crowds[2 * s + 1], crowds[2 * s]);
        }
        return value;
    }

    // The rows of one strip, negatives first.
    template <bool quadratic, bool exact>
    double compare(const double* u, const double* keys, const std::uint32_t* rows, int n_neg, int n_pos, double start,
                   double width, const Crowd& below, const Crowd& above) const {
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

    // Rows outside the band are met from its edge, in one step: many small ones would lose their digits.
    double solve_sorted(std::int64_t b, const Crowd& below, const Crowd& above) {
        const std::uint32_t neg = begins_[2 * b], pos = begins_[2 * b + 1], end = begins_[2 * b + 2];
        std::sort(rows_ + neg, rows_ + pos);
        std::sort(rows_ + pos, rows_ + end);
        const double start = left(b), stop = left(b + 1);
        const auto together = [](const Crowd& x, const Crowd& y) {
            return Crowd{x.count + y.count, x.first + y.first, x.second + y.second};
        };
        Crowd own;
        Twofold value;  // a long sum of nearly equal numbers rounds the same way every time
        double at = start;
        for (std::uint32_t i = neg, j = pos; i < pos; ++i) {
            const double x = position(i, 0);
            for (; j < end && exact_key(j, 1) < exact_key(i, 0); ++j) {
                own.move(position(j, 1) - at, {1, 0, 0});
                at = position(j, 1);
            }
            const Crowd met = together(own.seen_from(x - at), below.seen_from(x - start));
            value += value_of(met);
            write(rows_[i].row, 1, met);
        }
        own = {};
        at = stop;
        for (std::uint32_t i = end, j = pos; i > pos; --i) {
            const double x = position(i - 1, 1);
            for (; j > neg && exact_key(j - 1, 0) > exact_key(i - 1, 1); --j) {
                own.move(at - position(j - 1, 0), {1, 0, 0});
                at = position(j - 1, 0);
            }
            write(rows_[i - 1].row, -1, together(own.seen_from(at - x), above.seen_from(stop - x)));
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
