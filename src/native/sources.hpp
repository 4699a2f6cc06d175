// The sorted rows of the smaller class (the sources), and a table that finds the rank of any score among them.
//
// Keys are scores, negated if the order is mirrored. A linear map of the keys onto buckets, one per source, sorts them, and the
// same map finds the bucket of a query. A bucket with many rows is sorted by comparisons and searched by bisection, so that no
// input takes more than O(n log n).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "pool.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// The next double above a finite one, without branches, so that loops over it are vectorised.
inline double next_above(double x) {
    const std::int64_t bits = std::bit_cast<std::int64_t>(x + 0.0);
    return std::bit_cast<double>(bits < 0 ? bits - 1 : bits + 1);
}

// A double t such that z < t if and only if z < x + shift holds for the real numbers, for every double z. If rounding made the
// sum smaller, t is the next double above it. So the comparison z < t decides exactly whether a pair counts.
inline double threshold(double x, double shift) {
    const double sum = x + shift, part = sum - x, lost = (x - (sum - part)) + (shift - part);
    return lost > 0 ? next_above(sum) : sum;
}

template <class S>
struct Keyed {
    S key;
    std::uint32_t row;

    bool operator<(const Keyed& other) const { return key < other.key || (key == other.key && row < other.row); }
};

template <class S>
class Sources {
  public:
    // The n_sources rows of class `side`, mirrored if sign is -1.
    Sources(Scratch& keep, const S* scores, const std::uint8_t* classes, std::int64_t n_all, std::int64_t n_sources,
            std::uint8_t side, double sign, int threads)
        : n(n_sources), buckets_(std::clamp<std::int64_t>(n_sources, 1, 1 << 22)) {
        keys_ = keep.take<S>(n + 4);
        rows = keep.take<std::uint32_t>(n);
        starts_ = keep.take<std::uint32_t>(buckets_ + 2);

        Scratch scratch;
        Keyed<S>* gathered = scratch.take<Keyed<S>>(n);
        Keyed<S>* sorted = scratch.take<Keyed<S>>(n);
        const S direction = static_cast<S>(sign);
        const int parts = task_count(n_all);
        std::int64_t* firsts = scratch.take<std::int64_t>(parts + 1);
        parallel(threads, parts, [&](int t) {
            int count = 0;
#pragma omp simd reduction(+ : count)
            for (std::int64_t i = t * task_rows; i < task_end(n_all, t * task_rows); ++i) count += classes[i] == side;
            firsts[t + 1] = count;
        });
        firsts[0] = 0;
        for (int t = 0; t < parts; ++t) firsts[t + 1] += firsts[t];
        parallel(threads, parts, [&](int t) {
            Keyed<S> mine[task_rows + 1];
            std::int64_t k = 0;
            for (std::int64_t i = t * task_rows; i < task_end(n_all, t * task_rows); ++i) {
                mine[k] = {direction * scores[i], static_cast<std::uint32_t>(i)};
                k += classes[i] == side;
            }
            std::copy(mine, mine + k, gathered + firsts[t]);
        });
        S least = gathered[0].key, most = least;
        for (std::int64_t k = 1; k < n; ++k) {
            least = std::min(least, gathered[k].key);
            most = std::max(most, gathered[k].key);
        }
        least_ = least;
        const double range = most - least_;
        scale_ = static_cast<double>(buckets_) / range;
        // If all scores are equal, or the range has no normal reciprocal: one bucket, sorted by comparisons.
        if (!(range > 0x1p-900 && range < 0x1p900)) buckets_ = 1, scale_ = 0;

        std::fill(starts_, starts_ + buckets_ + 2, 0);
        for (std::int64_t k = 0; k < n; ++k) ++starts_[bucket(gathered[k].key) + 2];
        for (std::int64_t b = 2; b < buckets_ + 2; ++b) starts_[b] += starts_[b - 1];
        // Filling bucket b moves starts_[b + 1] from the start of bucket b to its end, where bucket b + 1 starts.
        for (std::int64_t k = 0; k < n; ++k) sorted[starts_[bucket(gathered[k].key) + 1]++] = gathered[k];

        const int tasks = task_count(buckets_);
        parallel(n < task_rows ? 1 : threads, tasks, [&](int t) {
            const std::int64_t from = t * task_rows, to = task_end(buckets_, from);
            sort_buckets(sorted, from, to);
            for (std::int64_t k = starts_[from]; k < starts_[to]; ++k) {
                keys_[k] = sorted[k].key;
                rows[k] = sorted[k].row;
            }
        });
        // `rank` may read up to four keys past the end.
        for (int k = 0; k < 4; ++k) keys_[n + k] = std::numeric_limits<S>::infinity();
    }

    double key(std::int64_t k) const { return static_cast<double>(keys_[k]); }

    // d of source k and a query. The keys are subtracted first, so that a common offset of the scores costs no digits.
    template <class Acc>
    Acc distance(std::int64_t k, double query, double shift) const {
        return (Acc(query) + Acc(-key(k))) + Acc(shift);
    }

    std::int32_t bucket(double x) const {
        const double p = (x - least_) * scale_, q = p > 0 ? p : 0, last = static_cast<double>(buckets_ - 1);
        return static_cast<std::int32_t>(q < last ? q : last);
    }

    // The number of sources below a threshold that falls into bucket b.
    std::int64_t rank(double threshold, std::int32_t b) const {
        const std::int64_t from = starts_[b];
        int below = 0;
        for (int k = 0; k < 4; ++k) below += key(from + k) < threshold;
        if (below < 4) return from + below;
        std::int64_t low = from + 4, high = starts_[b + 1] > low ? starts_[b + 1] : low;
        while (low < high) {
            const std::int64_t middle = (low + high) / 2;
            if (key(middle) < threshold)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    std::int64_t n;
    std::uint32_t* rows;

  private:
    void sort_buckets(Keyed<S>* sorted, std::int64_t from, std::int64_t to) const {
        for (std::int64_t b = from; b < to; ++b) {
            Keyed<S>*first = sorted + starts_[b], *last = sorted + starts_[b + 1];
            if (last - first > 24) {
                std::sort(first, last);
                continue;
            }
            for (Keyed<S>* i = first + 1; i < last; ++i) {
                const Keyed<S> moved = *i;
                Keyed<S>* j = i;
                for (; j > first && moved < j[-1]; --j) *j = j[-1];
                *j = moved;
            }
        }
    }

    S* keys_;                // ascending
    std::uint32_t* starts_;  // first source of each bucket
    double least_, scale_;
    std::int64_t buckets_;
};

}  // namespace everypair::EVERYPAIR_ISA
