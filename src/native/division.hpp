// The rows of a batch for the plans that look up the rows of the larger class; many rows are divided by
// score.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "group_rows.hpp"
#include "pool.hpp"
#include "sources.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// The rows of the smaller class are the sources, those of the larger one the queries. With few sources, the
// place of a row is its number, and all rows are looked up, those that are no queries with weight 0: that
// takes less time than moving the queries together. If there are many sources, both classes are divided by
// position into parts, from low to high. The parts are computed one after the other, so that the tables that
// their rows look up stay in the cache. First come the places of the queries, then those of the sources, then
// those of the rows of weight 0. Rows of a part keep their order, so places do not depend on the number of
// threads.
template <class S>
class Division {
  public:
    static constexpr int block = 256;

    // The key of a row is its score, negated if the sources are the negatives. Its position is the key, less
    // `shift` for a source. The queries look up `terms` numbers per source.
    Division(Scratch& keep, const GroupRows<S>& rows, double shift, std::int64_t terms)
        : source_class(rows.survey.n_pos <= rows.survey.n_neg),
          n_sources(source_class ? rows.survey.n_pos : rows.survey.n_neg),
          sign(source_class ? 1 : -1),
          parts(part_count(terms * n_sources)),
          rows_(rows),
          n_queries_(source_class ? rows.survey.n_neg : rows.survey.n_pos),
          slices_(slice_count(rows.n, rows.threads)),
          streams_(2 * parts + 1),
          map_(parts > 1 ? rows.n : 0, cells,
               [&](std::int64_t k) { return sign * static_cast<double>(rows.scores[k]); }),
          keys_(keep.take<S>(parts > 1 ? rows.n : 0)),
          places_(keep.take<std::uint32_t>(parts > 1 ? rows.n : 0)),
          firsts_(keep.take<std::uint32_t>(streams_)),
          stream_of_(keep.take<std::uint16_t>(parts > 1 ? codes : 0)) {
        if (parts > 1) divide(shift);
        weights = gather(keep, rows.weights);
    }

    // An array with the elements of `from` by place; null if there are none.
    const double* gather(Scratch& keep, const double* from) const {
        if (!from || parts == 1) return from;
        double* to = keep.take<double>(rows_.n);
        by_blocks([&](int, std::int64_t row, int count) {
            for (int q = 0; q < count; ++q) {
                __builtin_prefetch(to + places_[row + q] + 8, 1);
                to[places_[row + q]] = from[row + q];
            }
        });
        return to;
    }

    // An array for results by place, or null if they are not wanted. The keys are no longer needed when the
    // first results are written.
    S* results(Scratch& keep, S* to) const {
        return !to || parts == 1 ? to : to == rows_.grad ? keys_ : keep.take<S>(rows_.n);
    }

    // Copies results by place, if any, back to the order of the rows. Those of rows of weight 0 are set to 0.
    void scatter(S* from, S* to) const {
        if (from == to) return;
        std::fill(from + n_queries_ + n_sources, from + rows_.n, S{0});
        by_blocks([&](int, std::int64_t row, int count) {
            const std::uint32_t* places = places_ + row;
            for (int q = 0; q < count; ++q) {
                __builtin_prefetch(from + places[q] + 128 / sizeof(S));
                to[row + q] = from[places[q]];
            }
        });
    }

    // The sources in ascending order of their keys, with their places.
    Keyed<S>* sort(Scratch& keep) const {
        Keyed<S>* sorted = keep.take<Keyed<S>>(n_sources);
        parallel(rows_.threads, parts, [&](int part) {
            const std::uint32_t begin = parts > 1 ? firsts_[parts + part] : 0;
            const std::uint32_t n =
                parts > 1 ? firsts_[parts + part + 1] - begin : static_cast<std::uint32_t>(n_sources);
            Scratch scratch;
            Keyed<S>*unsorted = scratch.take<Keyed<S>>(n + 1), *next = unsorted;
            if (parts > 1)
                for (std::uint32_t k = 0; k < n; ++k) unsorted[k] = {keys_[begin + k], begin + k};
            else
                for (std::int64_t k = 0; k < rows_.n; ++k) {
                    *next = {sign * rows_.scores[k], static_cast<std::uint32_t>(k)};
                    next += rows_.classes[k] == source_class;
                }
            radix_sort(unsorted, n, sorted + (parts > 1 ? begin - n_queries_ : 0));
        });
        return sorted;
    }

    // The first row that a task looks up: the tasks are the parts, or ranges of rows if there is one part.
    std::int64_t first_query(int task, int tasks) const {
        return parts > 1 ? firsts_[task] : rows_.n * task / tasks;
    }
    // The number of sources below a part.
    std::int64_t first_source(int part) const {
        return parts > 1 ? firsts_[parts + part] - n_queries_ : part * n_sources;
    }

    // Fills the keys and the weights of the rows from place `first` on. A row that is no query has the key
    // `unused`, and weight 0.
    void queries(std::int64_t first, int count, S unused, S* keys, double* masses) const {
        if (parts > 1) {
            std::copy_n(keys_ + first, count, keys);
            std::fill_n(masses, count, 1.0);
        } else {
            const std::uint8_t *classes = rows_.classes + first, of_query = 1 - source_class;
            const S *scores = rows_.scores + first, factor = sign;
#pragma omp simd
            for (int q = 0; q < count; ++q) keys[q] = classes[q] == of_query ? factor * scores[q] : unused;
#pragma omp simd
            for (int q = 0; q < count; ++q) masses[q] = classes[q] == of_query;
        }
        if (!weights) return;
        const double* w = weights + first;
#pragma omp simd
        for (int q = 0; q < count; ++q) masses[q] *= w[q];
    }

    // The part of a position.
    int part_of(double x) const { return parts > 1 ? stream_of_[map_(x)] : 0; }

    const std::uint8_t source_class;
    const std::int64_t n_sources;
    const S sign;
    const int parts;
    const double* weights;  // by place; may be null

  private:
    static constexpr int max_parts = 256, cells = 4096, codes = 2 * cells + 1;

    // With fewer look-up positions than this, moving all rows takes longer than reading tables beyond the
    // second-level cache.
    static int part_count(std::int64_t switches) {
        return switches < 1 << 17 ? 1 : static_cast<int>(std::min<std::int64_t>(switches / 4096, max_parts));
    }

    // Calls use(slice, first row, number of rows) for all blocks; the slices run in parallel.
    template <class Use>
    void by_blocks(Use&& use) const {
        parallel(rows_.threads, slices_, [&](int slice) {
            const std::int64_t end = rows_.n * (slice + 1) / slices_;
            for (std::int64_t row = rows_.n * slice / slices_; row < end; row += block)
                use(slice, row, static_cast<int>(std::min<std::int64_t>(block, end - row)));
        });
    }

    // Finds the places of all rows and copies their keys. A stream is a part of a class.
    void divide(double shift) {
        Scratch scratch;
        // By slice: the number of rows of each cell, with `cells` added for a source.
        std::uint32_t* counts = scratch.take<std::uint32_t>(slices_ * codes);
        std::fill(counts, counts + slices_ * codes, 0);
        by_blocks([&](int slice, std::int64_t row, int count) {
            std::uint32_t* mine = counts + slice * codes;
            std::uint32_t* row_codes = places_ + row;
            const S* scores = rows_.scores + row;
            const std::uint8_t* sides = rows_.classes + row;
#pragma omp simd
            for (int q = 0; q < count; ++q) {
                const std::int32_t is_source = sides[q] == source_class;
                const std::int32_t cell = map_(static_cast<double>(sign * scores[q]) - is_source * shift);
                row_codes[q] =
                    static_cast<std::uint32_t>(sides[q] < weightless ? cell + is_source * cells : 2 * cells);
            }
            for (int q = 0; q < count; ++q) ++mine[row_codes[q]];
        });
        // The parts have about as many sources each.
        for (std::int64_t cell = 0, below = 0; cell < cells; ++cell) {
            const std::int64_t part = std::min<std::int64_t>(below * parts / n_sources, parts - 1);
            stream_of_[cell] = static_cast<std::uint16_t>(part);
            stream_of_[cells + cell] = static_cast<std::uint16_t>(parts + part);
            for (int slice = 0; slice < slices_; ++slice) below += counts[slice * codes + cells + cell];
        }
        stream_of_[2 * cells] = static_cast<std::uint16_t>(2 * parts);
        std::uint32_t* next =
            scratch.take<std::uint32_t>(slices_ * streams_);  // by slice and stream: place of the next row
        std::fill(next, next + slices_ * streams_, 0);
        for (int slice = 0; slice < slices_; ++slice)
            for (int code = 0; code < codes; ++code)
                next[slice * streams_ + stream_of_[code]] += counts[slice * codes + code];
        std::uint32_t place = 0;
        for (int stream = 0; stream < streams_; ++stream) {
            firsts_[stream] = place;
            for (int slice = 0; slice < slices_; ++slice)
                place += std::exchange(next[slice * streams_ + stream], place);
        }
        by_blocks([&](int slice, std::int64_t row, int count) {
            std::uint32_t *mine = next + slice * streams_, *places = places_ + row;
            for (int q = 0; q < count; ++q) {
                places[q] = mine[stream_of_[places[q]]]++;
                __builtin_prefetch(keys_ + places[q] + 64 / sizeof(S), 1);
                keys_[places[q]] = sign * rows_.scores[row + q];
            }
        });
    }

    const GroupRows<S> rows_;
    const std::int64_t n_queries_;
    const int slices_, streams_;
    const CellMap map_;
    S* keys_;                          // by place
    std::uint32_t *places_, *firsts_;  // by row, and by stream: the place of its first row
    std::uint16_t* stream_of_;         // by code
};

}  // namespace everypair::EVERYPAIR_ISA
