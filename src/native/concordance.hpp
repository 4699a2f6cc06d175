// The number of ordered pairs in the right order, without weights: one sort of the scores and one count.
//
// Rows are visited from the lowest score to the highest. Each row that may win asks how many of the rows
// visited so far are at a lower position, where positions are in the order of the targets. A bitmap has a bit
// for each position, and a tree of running sums, with 16 children to a node, counts the bits before each word
// of 64.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "pool.hpp"
#include "sources.hpp"
#include "types.hpp"

namespace everypair::EVERYPAIR_ISA {

class VisitedPositions {
  public:
    VisitedPositions(Scratch& scratch, std::int64_t n) {
        std::int64_t entries = n / 64 + 1;
        std::fill_n(bits_ = scratch.take<std::uint64_t>(entries), entries, 0);
        while (entries > 1) {
            const std::int64_t nodes = (entries + 15) / 16;
            std::fill_n(counts_[n_levels_++] = scratch.take<std::uint32_t>(16 * nodes), 16 * nodes, 0);
            entries = nodes;
        }
    }

    void add(std::uint32_t position) {
        std::uint32_t entry = position >> 6;
        bits_[entry] |= std::uint64_t{1} << (position & 63);
        for (int level = 0; level < n_levels_; ++level, entry >>= 4) {
            std::uint32_t* node = counts_[level] + (entry & ~15u);
            const std::uint32_t* is_after = steps + 15 - (entry & 15);
            // Vectors, because Clang unrolls a loop over 16 numbers instead.
            typedef std::uint32_t Counts __attribute__((vector_size(8 * lanes)));
            for (int child = 0; child < 16; child += 2 * lanes) {
                Counts counts, more;
                std::memcpy(&counts, node + child, sizeof counts);
                std::memcpy(&more, is_after + child, sizeof more);
                counts += more;
                std::memcpy(node + child, &counts, sizeof counts);
            }
        }
    }

    std::uint32_t below(std::uint32_t position) const {
        std::uint32_t entry = position >> 6;
        const std::uint64_t lower = bits_[entry] & ((std::uint64_t{1} << (position & 63)) - 1);
        std::uint32_t count = static_cast<std::uint32_t>(std::popcount(lower));
        for (int level = 0; level < n_levels_; ++level, entry >>= 4) count += counts_[level][entry];
        return count;
    }

  private:
    // From entry 15 - c on: whether a child comes after child c.
    static constexpr std::uint32_t steps[31] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    std::uint64_t* bits_;
    std::uint32_t* counts_[8];  // for each child of a node, the number of bits under the children before it
    int n_levels_ = 0;
};

// Rows of one group by position, that is in the order of their targets.
struct PositionedRows {
    std::int64_t n;
    const std::uint32_t* rows;   // of the caller
    const std::uint32_t* first;  // the first position with the same target; null: all targets differ
    const std::uint8_t* wins;    // whether a row may win; null: all may

    bool may_win(std::uint32_t p) const { return !wins || wins[p]; }
    std::uint32_t first_of(std::uint32_t p) const { return first ? first[p] : p; }
};

struct PairCount {
    std::uint64_t twice = 0,
                  pairs =
                      0;  // twice the number of pairs in the right order, ties half; and that of all pairs
};

// Visits the positions in the order of their scores, if `down` from the highest to the lowest and with
// positions counted from the end. Adds those with adds(p). Calls use(p, count) before and after all rows with
// the same score are added, where count is the number of positions added so far below bound(p).
template <bool down, class S, class Adds, class Bound, class Use>
void count_below(const Keyed<S>* sorted, std::uint32_t n, Adds&& adds, Bound&& bound, Use&& use) {
    Scratch scratch;
    VisitedPositions visited(scratch, n);
    const auto row = [&](std::uint32_t i) -> const Keyed<S>& { return sorted[down ? n - 1 - i : i]; };
    for (std::uint32_t i = 0, j; i < n; i = j) {
        for (j = i; j < n && row(j).key == row(i).key; ++j) use(row(j).row, visited.below(bound(row(j).row)));
        for (std::uint32_t k = i; k < j; ++k)
            if (adds(row(k).row)) visited.add(down ? n - 1 - row(k).row : row(k).row);
        for (std::uint32_t k = i; k < j; ++k) use(row(k).row, visited.below(bound(row(k).row)));
    }
}

// `score_of` returns the score of a position.
template <class S, class ScoreOf>
PairCount count_pairs(const PositionedRows& rows, const RowCounts& of_rows, ScoreOf&& score_of) {
    Scratch scratch;
    const auto n = static_cast<std::uint32_t>(rows.n);
    Keyed<S>*scores = scratch.take<Keyed<S>>(n), *sorted = scratch.take<Keyed<S>>(n);
    PairCount count;
    for (std::uint32_t p = 0; p < n; ++p) {
        scores[p] = {score_of(p), p};
        const std::uint32_t pairs = rows.may_win(p) ? rows.first_of(p) : 0;
        count.pairs += pairs;
        if (of_rows.pairs) of_rows.ordered[rows.rows[p]] = 0, of_rows.pairs[rows.rows[p]] = pairs;
    }
    radix_sort(scores, n, sorted);
    const auto all = [](std::uint32_t) { return true; };
    const auto wins = [&](std::uint32_t p) { return rows.may_win(p); };
    const auto lower = [&](std::uint32_t p) { return rows.first_of(p); };
    count_below<false>(sorted, n, all, lower, [&](std::uint32_t p, std::uint32_t below) {
        below &= -static_cast<std::uint32_t>(wins(p));  // without a branch
        count.twice += below;
        if (of_rows.ordered) of_rows.ordered[rows.rows[p]] += 0.5 * below;
    });
    if (!of_rows.pairs) return count;
    // The pairs that each row loses: with the winners from the first position with a higher target on.
    std::uint32_t *higher = scratch.take<std::uint32_t>(n), later = 0,
                  winners = 0;  // `higher` counts from the end
    for (std::uint32_t p = n; p-- > 0;) {
        const bool is_last = p + 1 == n || rows.first_of(p + 1) == p + 1;
        higher[p] = is_last ? n - 1 - p : higher[p + 1];
        if (is_last) later = winners;
        winners += wins(p);
        of_rows.pairs[rows.rows[p]] += later;
    }
    count_below<true>(
        sorted, n, wins, [&](std::uint32_t p) { return higher[p]; },
        [&](std::uint32_t p, std::uint32_t below) { of_rows.ordered[rows.rows[p]] += 0.5 * below; });
    return count;
}

// Sorts rows by their targets. With `events`, targets are times: the earlier time wins if it is an event,
// also against a censored row of the same time.
template <class L>
PositionedRows sort_targets(Scratch& keep, const L* targets, const std::uint8_t* events, std::int64_t n) {
    using Key = std::conditional_t<std::is_floating_point_v<L>, double, std::int64_t>;
    std::uint32_t *rows = keep.take<std::uint32_t>(n), *first = keep.take<std::uint32_t>(n);
    std::uint8_t* wins = events ? keep.take<std::uint8_t>(n) : nullptr;
    Scratch scratch;
    Keyed<Key>*given = scratch.take<Keyed<Key>>(n), *sorted = scratch.take<Keyed<Key>>(n);
    // The sort is stable, so that the censored rows of a time come first.
    std::int64_t next[2] = {0, events ? std::count(events, events + n, 0) : 0};
    for (std::int64_t i = 0; i < n; ++i)
        given[next[events && events[i]]++] = {static_cast<Key>(targets[i]) * (events ? -1 : 1),
                                              static_cast<std::uint32_t>(i)};
    radix_sort(given, n, sorted);
    bool ties = false;
    for (std::int64_t p = 0; p < n; ++p) {
        rows[p] = sorted[p].row;
        if (events) wins[p] = events[rows[p]];
        const bool same = p > 0 && sorted[p].key == sorted[p - 1].key && (!events || wins[p] == wins[p - 1]);
        first[p] = same ? first[p - 1] : static_cast<std::uint32_t>(p);
        ties |= same;
    }
    return {n, rows, ties ? first : nullptr, wins};
}

inline PositionedRows sort_targets(Scratch& keep, const Batch& batch) {
    return with_labels(
        batch, [&](const auto* targets) { return sort_targets(keep, targets, batch.events, batch.n); });
}

template <class S>
PairCount count_pairs(const Batch& batch, const RowCounts& of_rows) {
    Scratch scratch;
    const PositionedRows rows = sort_targets(scratch, batch);
    return count_pairs<S>(rows, of_rows,
                          [&](std::uint32_t p) { return static_cast<const S*>(batch.scores)[rows.rows[p]]; });
}

// The same for rows that are sorted by group and rank. Rows whose weight as a winner is 0 do not win.
template <class S>
PairCount count_pairs(const Batch& rows, int threads) {
    Scratch keep;
    PairCount *counts = keep.take<PairCount>(rows.n_groups), total;
    parallel_ranges(threads, rows.n_groups, [&](std::int64_t g) {
        const std::int64_t begin = rows.offsets[g], n = rows.offsets[g + 1] - begin;
        Scratch scratch;
        std::uint32_t* first = scratch.take<std::uint32_t>(n);
        std::uint8_t* wins = rows.winner ? scratch.take<std::uint8_t>(n) : nullptr;
        for (std::int64_t p = 0; p < n; ++p) {
            const bool is_new = p == 0 || rows.ranks[begin + p] != rows.ranks[begin + p - 1];
            first[p] = is_new ? static_cast<std::uint32_t>(p) : first[p - 1];
            if (wins) wins[p] = rows.winner[begin + p] > 0;
        }
        counts[g] = count_pairs<S>({n, nullptr, first, wins}, {}, [&](std::uint32_t p) {
            return static_cast<const S*>(rows.scores)[rows.order[begin + p]];
        });
    });
    for (std::int64_t g = 0; g < rows.n_groups; ++g)
        total.twice += counts[g].twice, total.pairs += counts[g].pairs;
    return total;
}

}  // namespace everypair::EVERYPAIR_ISA
