// The rows of the smaller class (the sources) in ascending order, and a table that finds the rank of any
// number.
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
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// The next number of type S above x, which is not the largest one; x itself if not `next`. Without branches,
// which would be mispredicted.
template <class S>
S next_above(S x, bool next = true) {
    using Bits = std::conditional_t<sizeof(S) == 4, std::int32_t, std::int64_t>;
    const Bits bits = std::bit_cast<Bits>(x + S{0}), step = bits < 0 ? -1 : 1;
    return std::bit_cast<S>(bits + (step & -static_cast<Bits>(next)));
}

// The double such that x < threshold, for a double x, if and only if x < s + shift (with `closed`: x <= s +
// shift) for the real numbers.
inline double threshold(double s, double shift, bool closed = false) {
    const DoubleDouble sum = DoubleDouble::sum(s, shift);
    return next_above(sum.high, sum.low > 0 || (closed && sum.low == 0));
}

// The least number of type S above x.
template <class S>
S least_above(DoubleDouble x) {
    const S rounded = static_cast<S>(x.high);
    const double at = rounded;
    return next_above(rounded, !((at > x.high) | ((at == x.high) & (x.low < 0))));
}

// A non-decreasing map of numbers to the cells 0 .. count - 1. Cells have equal widths, except that the first
// and the last one are unbounded: they take the numbers far outside, so that a few outliers do not make the
// other cells too wide.
class CellMap {
  public:
    // `value(k)` gives n numbers in any order. A sample of them sets the range of the cells.
    template <class Value>
    CellMap(std::int64_t n, std::int64_t max_count, Value&& value) : count(max_count) {
        constexpr std::int64_t max_size = 64;
        double sample[max_size] = {};
        const std::int64_t size = std::min(n, max_size), tail = size / 32,
                           last = std::max<std::int64_t>(size - 1, 0);
        for (std::int64_t k = 0; k < size; ++k) sample[k] = value(k * n / size);
        std::sort(sample, sample + size);
        const double low = sample[tail], high = sample[last - tail], span = high - low;
        least_ = std::max(sample[0] - span / 2, low - span);
        const double range = std::min(sample[last] + span / 2, high + span) - least_;
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

// Sorts rows of which few are out of order. If there are more than a few moves per row, all are sorted by
// comparisons, so that no input takes more than O(n log n).
template <class Row>
void insert(Row* first, Row* last) {
    std::int64_t moves = 8 * (last - first);
    for (Row* i = first + 1; i < last; ++i) {
        if (!(i->key < i[-1].key)) continue;
        const Row moved = *i;
        Row* j = i;
        for (; j > first && moved.key < j[-1].key; --j) *j = j[-1];
        *j = moved;
        if ((moves -= i - j) >= 0) continue;
        return std::stable_sort(first, last, [](const Row& a, const Row& b) { return a.key < b.key; });
    }
}

// Merges the sorted runs 0 .. half - 1 and half .. n - 1, without branches that the processor would
// mispredict.
template <class Row>
void merge_runs(const Row* from, std::int64_t half, std::int64_t n, Row* to) {
    std::int64_t i = 0, j = half;
    while (i < half && j < n) {
        const bool second = from[j].key < from[i].key;
        *to++ = from[second ? j : i];
        j += second;
        i += !second;
    }
    std::copy(from + j, from + n, std::copy(from + i, from + half, to));
}

// Sorts by key; rows with equal keys keep their order. A radix sort by cell: first by the low bits of its
// number, then by the high bits. There are more cells than rows, so that few rows are out of order
// afterwards, and insertion puts them right.
template <class Row>
void radix_sort(const Row* rows, std::int64_t n, Row* sorted) {
    if (n <= 32) {
        if (rows != sorted) std::copy_n(rows, n, sorted);
        return insert(sorted, sorted + n);
    }
    Scratch scratch;
    const int bits =
        std::clamp((static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))) + 5) / 2, 4, 11);
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
    by_cells(rows, n, cells,
             [&](const Row& row, std::uint32_t cell) { half[low[cell & (bins - 1)]++] = row; });
    by_cells(half, n, cells, [&](const Row& row, std::uint32_t cell) { sorted[high[cell >> bits]++] = row; });
    // The rows of a high bin end where its last row was put. Rows far out of order share an end cell, and so
    // a bin.
    for (std::uint32_t b = 0; b < bins; ++b) insert(sorted + (b ? high[b - 1] : 0), sorted + high[b]);
}

// Finds ranks among ascending numbers: a table of cells leads to the neighbourhood, comparisons to the rank.
template <class S>
class RanksAmong {
  public:
    static constexpr int padding = 4;

    // The n numbers are followed by `padding` infinities.
    RanksAmong(Scratch& keep, const S* numbers, std::int64_t n)
        : cells(n, 2 * n, [&](std::int64_t k) { return numbers[k]; }),
          numbers_(numbers),
          firsts_(keep.take<std::uint32_t>(cells.count + 1)) {
        std::fill(firsts_, firsts_ + cells.count + 1, 0);
        for (std::int64_t k = 0; k < n; ++k) ++firsts_[cells(numbers[k]) + 1];
        for (std::int64_t c = 0; c < cells.count; ++c) firsts_[c + 1] += firsts_[c];
    }

    // Finds how many numbers are at most x[q], for each q < count. `x` and `ranks` have room for a multiple
    // of four, and `x` is filled up. As many queries at a time as 16 bytes hold: a transposition compares one
    // number of each cell at once.
    void find(S* x, int count, std::uint32_t* ranks) const {
        constexpr int width = 16 / sizeof(S);
        typedef S Group __attribute__((vector_size(16)));
        for (; count % width; ++count) x[count] = 0;
#pragma omp simd
        for (int q = 0; q < count; ++q) ranks[q] = static_cast<std::uint32_t>(cells(x[q]));
        for (int q = 0; q < count; q += width) {
            std::uint32_t cell[width];
            for (int k = 0; k < width; ++k) cell[k] = std::exchange(ranks[q + k], firsts_[ranks[q + k]]);
            const Group at = load16(x + q);
            const auto number = [&](int k, int j) { return load16(numbers_ + ranks[q + k] + j); };
            Group numbers[padding];
            if constexpr (width == 4)
                transpose(number(0, 0), number(1, 0), number(2, 0), number(3, 0), numbers);
            else
                for (int j = 0; j < padding; j += 2) {
                    const Group one = number(0, j), other = number(1, j);
                    numbers[j] = shuffle<0, 2>(one, other);
                    numbers[j + 1] = shuffle<1, 3>(one, other);
                }
            // A true comparison is -1.
            const auto minus =
                ((numbers[0] <= at) + (numbers[1] <= at)) + ((numbers[2] <= at) + (numbers[3] <= at));
            for (int k = 0; k < width; ++k) ranks[q + k] -= static_cast<std::uint32_t>(minus[k]);
            const auto all = numbers[3] <= at;
            auto any = all[0];
            for (int k = 1; k < width; ++k) any |= all[k];
            if (!any) continue;
            for (int k = 0; k < width; ++k)
                if (all[k]) ranks[q + k] = upto(x[q + k], ranks[q + k], firsts_[cell[k] + 1]);
        }
    }

    const CellMap cells;

  private:
    static auto load16(const S* from) {
        S __attribute__((vector_size(16))) loaded;
        std::memcpy(&loaded, from, sizeof loaded);
        return loaded;
    }

    // How many numbers are at most x: at least `low`, and if that is less than `end`, at most `end`. A search
    // without branches, which would be mispredicted.
    std::uint32_t upto(S x, std::uint32_t low, std::uint32_t end) const {
        for (std::uint32_t size = std::max(low, end) - low; size > 0;) {
            const std::uint32_t half = (size + 1) / 2;
            low += half & -static_cast<std::uint32_t>(numbers_[low + half - 1] <= x);
            size -= half;
        }
        return low;
    }

    const S* numbers_;
    std::uint32_t* firsts_;
};
using Ranks = RanksAmong<double>;

}  // namespace everypair::EVERYPAIR_ISA
