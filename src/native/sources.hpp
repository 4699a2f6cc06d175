// The rows of the smaller class (the sources) in ascending order, and a table that finds the rank of any number.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "double_double.hpp"
#include "pool.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// The next number of type S above x, which is not the largest one.
template <class S>
S next_above(S x) {
    using Bits = std::conditional_t<sizeof(S) == 4, std::int32_t, std::int64_t>;
    const Bits bits = std::bit_cast<Bits>(x + S{0});
    return std::bit_cast<S>(bits < 0 ? bits - 1 : bits + 1);
}

// The double such that x < threshold, for a double x, if and only if x < s + shift (with `closed`: x <= s + shift) for the real
// numbers.
inline double threshold(double s, double shift, bool closed = false) {
    const DoubleDouble sum = DoubleDouble::sum(s, shift);
    return sum.low > 0 || (closed && sum.low == 0) ? next_above(sum.high) : sum.high;
}

// A non-decreasing map of numbers to the cells 0 .. count - 1. CellMap have equal widths, except that the first and the last
// one are unbounded: they take the numbers far outside, so that a few outliers do not make the other cells too wide.
class CellMap {
  public:
    // `value(k)` gives n numbers in any order. A sample of them sets the range of the cells.
    template <class Value>
    CellMap(std::int64_t n, std::int64_t wanted, Value&& value) : count(wanted) {
        constexpr std::int64_t most = 64;
        double sample[most];
        const std::int64_t some = std::min(n, most), tail = some / 32;
        for (std::int64_t k = 0; k < some; ++k) sample[k] = value(k * n / some);
        std::sort(sample, sample + some);
        const double low = sample[tail], high = sample[some - 1 - tail], span = high - low;
        least_ = std::max(sample[0] - span / 2, low - span);
        const double range = std::min(sample[some - 1] + span / 2, high + span) - least_;
        per_cell_ = static_cast<double>(count) / range;
        // If the sampled numbers are all equal, or the range has no normal reciprocal: one cell.
        if (!(range > 0x1p-900 && range < 0x1p900)) count = 1, per_cell_ = 0, least_ = 0;
    }

    std::int32_t operator()(double x) const {
        const double p = (x - least_) * per_cell_, q = p > 0 ? p : 0, last = static_cast<double>(count - 1);
        return static_cast<std::int32_t>(q < last ? q : last);
    }

    std::int64_t count;

  private:
    double least_, per_cell_;
};

template <class S>
struct Keyed {
    S key;
    std::uint32_t row;
};

// Calls use(row, cell) for all rows.
template <class Row, class Use>
void by_cells(const Row* rows, std::int64_t n, const CellMap& map, Use&& use) {
    constexpr int block = 256;
    std::int32_t cells[block];
    for (std::int64_t from = 0; from < n; from += block) {
        const int count = static_cast<int>(std::min<std::int64_t>(block, n - from));
#pragma omp simd
        for (int k = 0; k < count; ++k) cells[k] = map(rows[from + k].key);
        for (int k = 0; k < count; ++k) use(rows[from + k], static_cast<std::uint32_t>(cells[k]));
    }
}

// Sorts rows of which few are out of order. If there are more than a few moves per row, as when many rows share a cell, all are
// sorted by comparisons, so that no input takes more than O(n log n).
template <class Row>
void insert(Row* first, Row* last) {
    std::int64_t moves = 8 * (last - first);
    for (Row* i = first + 1; i < last; ++i) {
        if (!(i->key < i[-1].key)) continue;
        const Row moved = *i;
        Row* j = i;
        for (; j > first && moved.key < j[-1].key; --j) *j = j[-1];
        *j = moved;
        if ((moves -= i - j) < 0)
            return std::stable_sort(first, last, [](const auto& a, const auto& b) { return a.key < b.key; });
    }
}

// Sorts by key; rows with equal keys keep their order. A radix sort by cell: first by the low bits of its number, then by the
// high bits. There are more cells than rows, so that few rows are out of order afterwards, and insertion puts them right.
template <class Row>
void radix_sort(const Row* rows, std::int64_t n, Row* sorted) {
    Scratch scratch;
    const int bits = std::clamp((static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))) + 5) / 2, 4, 11);
    const CellMap cells(n, std::int64_t{1} << (2 * bits), [&](std::int64_t k) { return rows[k].key; });
    const std::uint32_t bins = 1u << bits;
    std::uint32_t *low = scratch.take<std::uint32_t>(bins), *high = scratch.take<std::uint32_t>(bins);
    std::fill(low, low + bins, 0);
    std::fill(high, high + bins, 0);
    by_cells(rows, n, cells, [&](const Row&, std::uint32_t cell) {
        ++low[cell & (bins - 1)];
        ++high[cell >> bits];
    });
    for (std::uint32_t b = 0, lows = 0, highs = 0; b < bins; ++b) {
        lows += std::exchange(low[b], lows);
        highs += std::exchange(high[b], highs);
    }
    Row* half = scratch.take<Row>(n);
    by_cells(rows, n, cells, [&](const Row& row, std::uint32_t cell) { half[low[cell & (bins - 1)]++] = row; });
    by_cells(half, n, cells, [&](const Row& row, std::uint32_t cell) { sorted[high[cell >> bits]++] = row; });
    // The rows of a high bin end where its last row was put. Rows far out of order share an end cell, and so a bin.
    for (std::uint32_t b = 0; b < bins; ++b) insert(sorted + (b ? high[b - 1] : 0), sorted + high[b]);
}

// The n_sources rows of class `side` in ascending order of their keys: scores, negated if sign is -1.
template <class S>
class Sources {
  public:
    Sources(Scratch& keep, const S* scores, const std::uint8_t* classes, std::int64_t n_all, std::int64_t n_sources,
            std::uint8_t side, double sign, int threads)
        : n(n_sources), sorted_(keep.take<Keyed<S>>(n_sources)) {
        Scratch scratch;
        Keyed<S>* gathered = scratch.take<Keyed<S>>(n);
        const S direction = static_cast<S>(sign);
        const int parts = task_count(n_all);
        std::int64_t* firsts = scratch.take<std::int64_t>(parts + 1);
        parallel(threads, parts, [&](int t) {
            const std::int64_t end = task_end(n_all, t * task_rows);
            firsts[t + 1] = 0;
            for (std::int64_t from = t * task_rows; from < end; from += 128) {  // so few that a byte can count them
                std::uint8_t count = 0;
#pragma omp simd reduction(+ : count)
                for (std::int64_t i = from; i < std::min(end, from + 128); ++i) count += classes[i] == side;
                firsts[t + 1] += count;
            }
        });
        firsts[0] = 0;
        for (int t = 0; t < parts; ++t) firsts[t + 1] += firsts[t];
        parallel(threads, parts, [&](int t) {
            const std::int64_t begin = t * task_rows, end = task_end(n_all, begin);
            const auto keyed = [&](std::int64_t i) { return Keyed<S>{direction * scores[i], static_cast<std::uint32_t>(i)}; };
            if (16 * (firsts[t + 1] - firsts[t]) < end - begin) {  // few: search for the next one
                std::int64_t i = begin - 1;
                for (std::int64_t k = firsts[t]; k < firsts[t + 1]; ++k) {
                    i = static_cast<const std::uint8_t*>(std::memchr(classes + i + 1, side, end - i - 1)) - classes;
                    gathered[k] = keyed(i);
                }
                return;
            }
            Keyed<S> mine[task_rows + 1];
            std::int64_t k = 0;
            for (std::int64_t i = begin; i < end; ++i) {
                mine[k] = keyed(i);
                k += classes[i] == side;
            }
            std::copy(mine, mine + k, gathered + firsts[t]);
        });
        radix_sort(gathered, n, sorted_);
    }

    double key(std::int64_t k) const { return static_cast<double>(sorted_[k].key); }
    std::uint32_t row(std::int64_t k) const { return sorted_[k].row; }

    const std::int64_t n;

  private:
    Keyed<S>* sorted_;
};

// Finds ranks among ascending numbers: a table of cells leads to the neighbourhood, comparisons to the rank.
template <class S>
class RanksAmong {
  public:
    static constexpr int few = 4;

    // `numbers` has room for n + few values; the last ones are set here.
    RanksAmong(Scratch& keep, S* numbers, std::int64_t n)
        : cells(n, 2 * n, [&](std::int64_t k) { return numbers[k]; }),
          numbers_(numbers),
          firsts_(keep.take<std::uint32_t>(cells.count + 1)) {
        std::fill(numbers + n, numbers + n + few, std::numeric_limits<S>::infinity());
        std::fill(firsts_, firsts_ + cells.count + 1, 0);
        for (std::int64_t k = 0; k < n; ++k) ++firsts_[cells(numbers[k]) + 1];
        for (std::int64_t c = 0; c < cells.count; ++c) firsts_[c + 1] += firsts_[c];
    }

    // The first number of a cell. The caller may ask for it in advance, so that it is in the cache when `rank` reads it.
    std::uint32_t first(std::int32_t cell) const { return firsts_[cell]; }
    void prefetch(std::uint32_t first) const { __builtin_prefetch(numbers_ + first); }

    // How many numbers are at most x, which lies in this cell.
    std::uint32_t upto(S x, std::int32_t cell, std::uint32_t first) const {
        unsigned below = 0;
        for (int k = 0; k < few; ++k) below += numbers_[first + k] <= x;
        if (below < few) return first + below;
        std::uint32_t low = first + few, high = std::max(low, firsts_[cell + 1]);
        while (low < high) {
            const std::uint32_t middle = low + (high - low) / 2;
            if (numbers_[middle] <= x)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    const CellMap cells;

  private:
    const S* numbers_;
    std::uint32_t* firsts_;
};
using Ranks = RanksAmong<double>;

}  // namespace everypair::EVERYPAIR_ISA
