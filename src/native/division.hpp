// The rows of a batch, divided by class and by score, for the plans that look up the rows of the larger class.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "pool.hpp"
#include "sources.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

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
        std::uint32_t* next = scratch.take<std::uint32_t>(slices_ * streams_);  // by slice and stream: place of the next row
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

    // Copies results by place, if any, back to the order of the rows. Those of rows of weight 0 are set to 0.
    void scatter(S* from, S* to) const {
        if (!to) return;
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

    // The first query of a task: the tasks are the parts, or ranges of rows if there is one part.
    std::int64_t first_query(int task, int tasks) const { return parts > 1 ? firsts_[task] : n_queries * task / tasks; }
    // The number of sources below a part.
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

}  // namespace everypair::EVERYPAIR_ISA
