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
        double sample[most] = {};
        const std::int64_t some = std::min(n, most), tail = some / 32;
        for (std::int64_t k = 0; k < some; ++k) sample[k] = value(k * n / some);
        std::sort(sample, sample + some);
        const double low = sample[tail], high = sample[std::max<std::int64_t>(some - 1 - tail, 0)], span = high - low;
        least_ = std::max(sample[0] - span / 2, low - span);
        const double range = std::min(sample[std::max<std::int64_t>(some - 1, 0)] + span / 2, high + span) - least_;
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

// Gathers the scores of each class in consecutive places. The rows of the smaller class are the sources, those of the larger
// one the queries; first come the queries, then the sources, then the rows of weight 0. If there are many sources, both classes
// are divided by position into parts, from low to high. The parts are computed one after the other, so that the tables that
// their rows look up stay in the cache. Rows of a part keep their order, so places do not depend on the number of threads.
template <class S>
class Division {
  public:
    // The key of a row is its score, negated if the sources are the negatives. Its position is the key, less `shift` for a
    // source. The queries look up `terms` numbers per source.
    Division(Scratch& keep, const S* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found, double shift,
             std::int64_t terms, int use_threads)
        : source_class(found.n_pos <= found.n_neg),
          n_sources(source_class ? found.n_pos : found.n_neg),
          n_queries(source_class ? found.n_neg : found.n_pos),
          sign(source_class ? 1 : -1),
          threads(use_threads),
          parts(part_count(terms * n_sources)),
          keys(keep.take<S>(n + 1)),
          scores_(scores),
          classes_(classes),
          n_(n),
          slices_(slice_count(n, threads)),
          streams_(2 * parts + 1),
          map_(n, cells, [&](std::int64_t k) { return sign * static_cast<double>(scores[k]); }),
          places_(keep.take<std::uint32_t>(n)),
          firsts_(keep.take<std::uint32_t>(streams_)),
          stream_of_(keep.take<std::uint16_t>(parts > 1 ? codes : 0)) {
        Scratch scratch;
        std::uint32_t* next =
            scratch.take<std::uint32_t>(slices_ * streams_);  // by slice and stream: the place of the next row
        std::fill(next, next + slices_ * streams_, 0);
        if (parts > 1)
            count_streams(shift, next);
        else if (slices_ > 1)
            parallel(threads, slices_, [&](int slice) {
                const std::uint8_t *begin = classes + first_row(slice), *end = classes + first_row(slice + 1);
                for (int source = 0; source < 2; ++source)
                    next[slice * 3 + source] = std::count(begin, end, source ? source_class : 1 - source_class);
            });
        std::uint32_t place = 0;
        for (int stream = 0; stream < streams_; ++stream) {
            if (stream == parts) place = static_cast<std::uint32_t>(n_queries);
            if (stream == 2 * parts) place = static_cast<std::uint32_t>(n_queries + n_sources);
            firsts_[stream] = place;
            for (int slice = 0; slice < slices_; ++slice) place += std::exchange(next[slice * streams_ + stream], place);
        }
        by_blocks([&](int slice, std::int64_t row, int count) {
            std::uint32_t *mine = next + slice * streams_, *places = places_ + row;
            if (parts > 1)
                for (int q = 0; q < count; ++q) places[q] = mine[stream_of_[places[q]]]++;
            else
                list_places(classes_ + row, count, mine, places);
            for (int q = 0; q < count; ++q) {
                __builtin_prefetch(keys + places[q] + 64 / sizeof(S), 1);
                keys[places[q]] = sign * scores[row + q];
            }
        });
    }

    // An array with the elements of `from` by place; null if there are none.
    double* gather(Scratch& keep, const double* from) const {
        double* to = from ? keep.take<double>(n_ + 1) : nullptr;
        if (from)
            by_blocks([&](int, std::int64_t row, int count) {
                for (int q = 0; q < count; ++q) {
                    __builtin_prefetch(to + places_[row + q] + 8, 1);
                    to[places_[row + q]] = from[row + q];
                }
            });
        return to;
    }

    // Copies results by place back to the order of the rows. Those of rows of weight 0 are set to 0.
    void scatter(S* from, S* to) const {
        std::fill(from + n_queries + n_sources, from + n_ + 1, S{0});
        by_blocks([&](int, std::int64_t row, int count) {
            const std::uint32_t* places = places_ + row;
#pragma omp simd
            for (int q = 0; q < count; ++q) to[row + q] = from[places[q]];
        });
    }

    // The sources in ascending order of their keys, with their places.
    Keyed<S>* sort(Scratch& keep) const {
        Keyed<S>* sorted = keep.take<Keyed<S>>(n_sources);
        parallel(threads, parts, [&](int part) {
            const std::uint32_t begin = firsts_[parts + part], n = firsts_[parts + part + 1] - begin;
            Scratch scratch;
            Keyed<S>* given = scratch.take<Keyed<S>>(n);
            for (std::uint32_t k = 0; k < n; ++k) given[k] = {keys[begin + k], begin + k};
            radix_sort(given, n, sorted + (begin - n_queries));
        });
        return sorted;
    }

    // The place of the first query of a part, and the number of sources below a part.
    std::int64_t first_query(int part) const { return firsts_[part]; }
    std::int64_t first_source(int part) const { return firsts_[parts + part] - n_queries; }

    // The part of a position.
    int part_of(double x) const { return parts > 1 ? stream_of_[map_(x)] : 0; }

    const std::uint8_t source_class;
    const std::int64_t n_sources, n_queries;
    const S sign;
    const int threads, parts;
    S* const keys;  // by place

  private:
    static constexpr int block = 256, most_parts = 256, cells = 4096, codes = 2 * cells + 1;

    static int part_count(std::int64_t switches) {
        return switches < 1 << 14 ? 1 : static_cast<int>(std::min<std::int64_t>(switches / 4096, most_parts));
    }

    std::int64_t first_row(int slice) const { return n_ * slice / slices_; }

    // Calls use(slice, first row, number of rows) for all blocks; the slices run in parallel.
    template <class Use>
    void by_blocks(Use&& use) const {
        parallel(threads, slices_, [&](int slice) {
            const std::int64_t end = first_row(slice + 1);
            for (std::int64_t row = first_row(slice); row < end; row += block)
                use(slice, row, static_cast<int>(std::min<std::int64_t>(block, end - row)));
        });
    }

    // The places of rows if there is one part. The counters are in registers, because a counter in memory takes longer.
    void list_places(const std::uint8_t* classes, int count, std::uint32_t* next, std::uint32_t* places) const {
        const std::uint8_t of_source = source_class;
        const std::uint32_t unused = static_cast<std::uint32_t>(n_);
        std::uint32_t query = next[0], source = next[1];
        for (int q = 0; q < count; ++q) {
            // Masks: a branch would often be mispredicted.
            const std::uint32_t is_source = classes[q] == of_source, is_query = classes[q] == 1 - of_source;
            places[q] = (-is_source & source) | (-is_query & query) | ((is_source + is_query - 1) & unused);
            query += is_query;
            source += is_source;
        }
        next[0] = query;
        next[1] = source;
    }

    // Counts the rows of each slice in each stream, which is a part of a class. Until then, the place of a row is the cell of
    // its position, plus `cells` for a source.
    void count_streams(double shift, std::uint32_t* of_streams) {
        Scratch scratch;
        std::uint32_t* counts = scratch.take<std::uint32_t>(slices_ * codes);
        std::fill(counts, counts + slices_ * codes, 0);
        by_blocks([&](int slice, std::int64_t row, int count) {
            std::uint32_t* mine = counts + slice * codes;
            std::int32_t of[block];
            const S* scores = scores_ + row;
            const std::uint8_t* sides = classes_ + row;
            std::uint32_t* codes_of = places_ + row;
#pragma omp simd
            for (int q = 0; q < count; ++q) {
                const double is_source = sides[q] == source_class;
                of[q] = map_(static_cast<double>(sign * scores[q]) - is_source * shift);
            }
            for (int q = 0; q < count; ++q) {
                const int code = sides[q] < weightless ? (sides[q] == source_class ? cells : 0) + of[q] : 2 * cells;
                codes_of[q] = static_cast<std::uint32_t>(code);
                ++mine[code];
            }
        });
        // The parts have about as many sources each.
        for (std::int64_t cell = 0, below = 0; cell < cells; ++cell) {
            const std::int64_t part = std::min<std::int64_t>(below * parts / n_sources, parts - 1);
            stream_of_[cell] = static_cast<std::uint16_t>(part);
            stream_of_[cells + cell] = static_cast<std::uint16_t>(parts + part);
            for (int slice = 0; slice < slices_; ++slice) below += counts[slice * codes + cells + cell];
        }
        stream_of_[2 * cells] = static_cast<std::uint16_t>(2 * parts);
        for (int slice = 0; slice < slices_; ++slice)
            for (int code = 0; code < codes; ++code)
                of_streams[slice * streams_ + stream_of_[code]] += counts[slice * codes + code];
    }

    const S* scores_;
    const std::uint8_t* classes_;
    const std::int64_t n_;
    const int slices_, streams_;
    const CellMap map_;
    std::uint32_t *places_, *firsts_;  // by row, and by stream: the place of its first row
    std::uint16_t* stream_of_;         // by code
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
