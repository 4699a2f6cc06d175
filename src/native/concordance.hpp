// The number of ordered pairs in the right order, without weights: one sort of the scores and one count.
//
// Rows are visited from the lowest score to the highest. Each row that may win asks how many of the rows visited so far are at
// a lower position, where positions are in the order of the targets. A bitmap has a bit for each position, and a tree of
// running sums, with 16 children to a node, counts the bits before each word of 64.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "pool.hpp"
#include "sources.hpp"
#include "types.hpp"

namespace everypair::EVERYPAIR_ISA {

class VisitedPositions {
  public:
    VisitedPositions(Scratch& scratch, std::int64_t n) {
        const auto taken = [&](auto*& array, std::int64_t size) {
            array = scratch.take<std::remove_reference_t<decltype(*array)>>(size);
            std::fill(array, array + size, std::remove_reference_t<decltype(*array)>{});
        };
        std::int64_t entries = n / 64 + 1;
        taken(bits_, entries);
        for (; entries > 1; entries = (entries + 15) / 16) taken(nodes_[n_levels_++], (entries + 15) / 16);
    }

    void add(std::uint32_t position) {
        bits_[position >> 6] |= std::uint64_t{1} << (position & 63);
        std::uint32_t entry = position >> 6;
        for (int level = 0; level < n_levels_; ++level, entry >>= 4)
            nodes_[level][entry >> 4] += reinterpret_cast<const Node&>(later[entry & 15]);
    }

    std::uint32_t below(std::uint32_t position) const {
        std::uint32_t entry = position >> 6;
        std::uint32_t count =
            static_cast<std::uint32_t>(std::popcount(bits_[entry] & ((std::uint64_t{1} << (position & 63)) - 1)));
        for (int level = 0; level < n_levels_; ++level, entry >>= 4)
            count += reinterpret_cast<const Count*>(nodes_[level])[entry];
        return count;
    }

  private:
    typedef std::uint32_t Count __attribute__((may_alias));
    // For each child, the number of bits under the children before it.
    typedef std::uint32_t Node __attribute__((vector_size(64), may_alias));
    // What a bit under each child adds to a node.
    alignas(64) static constexpr auto later = [] {
        std::array<std::array<std::uint32_t, 16>, 16> added{};
        for (int child = 0; child < 16; ++child)
            for (int after = child + 1; after < 16; ++after) added[child][after] = 1;
        return added;
    }();

    std::uint64_t* bits_;
    Node* nodes_[8] = {};
    int n_levels_ = 0;
};

// Rows of one group in the order of their targets.
struct PositionedRows {
    std::int64_t n;
    const std::uint32_t* first;  // the first position with the same target; null: all targets differ
    const std::uint8_t* wins;    // whether a row may win; null: all may
};

struct PairCount {
    std::uint64_t twice = 0, pairs = 0;  // twice the number of pairs in the right order, ties half; and that of all pairs
};

// The same numbers for the pairs of each row, in both roles: `ordered` is not doubled. Null if not wanted.
struct RowCounts {
    double *ordered = nullptr, *pairs = nullptr;
};

// Calls visit(row) for the sorted rows i, i + step, ..., and before(row) and after(row) for each row: before and after all rows
// with the same score are visited.
template <class S, class Before, class Visit, class After>
void by_scores(const Keyed<S>* sorted, std::int64_t n, int step, Before&& before, Visit&& visit, After&& after) {
    const auto row = [&](std::int64_t i) -> const Keyed<S>& { return sorted[step > 0 ? i : n - 1 - i]; };
    for (std::int64_t i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n && row(j).key == row(i).key;) ++j;
        for (std::int64_t k = i; k < j; ++k) before(row(k).row);
        for (std::int64_t k = i; k < j; ++k) visit(row(k).row);
        for (std::int64_t k = i; k < j; ++k) after(row(k).row);
    }
}

// Adds the pairs that each row loses to the counts of the rows, which have the pairs that it wins.
template <class S>
void count_losses(const PositionedRows& rows, const Keyed<S>* sorted, const RowCounts& of_rows) {
    Scratch scratch;
    std::uint32_t* next = scratch.take<std::uint32_t>(rows.n);  // the first position with a higher target
    const auto wins = [&](std::int64_t p) { return !rows.wins || rows.wins[p]; };
    std::int64_t later = 0, winners = 0;  // the winners from `next` on, and from this position on
    for (std::int64_t p = rows.n - 1; p >= 0; --p) {
        const bool is_last = p + 1 == rows.n || !rows.first || rows.first[p + 1] == p + 1;
        next[p] = is_last ? static_cast<std::uint32_t>(p + 1) : next[p + 1];
        if (is_last) later = winners;
        winners += wins(p);
        of_rows.pairs[p] += static_cast<double>(later);
    }
    VisitedPositions visited(scratch, rows.n + 1);
    std::uint32_t total = 0;
    const auto add = [&](std::uint32_t p) { of_rows.ordered[p] += 0.5 * (total - visited.below(next[p])); };
    const auto visit = [&](std::uint32_t p) {
        if (wins(p)) visited.add(p), ++total;
    };
    by_scores(sorted, rows.n, -1, add, visit, add);
}

// `scores` has the score of each row, by position.
template <class S>
PairCount count_pairs(const PositionedRows& rows, const Keyed<S>* scores, const RowCounts& of_rows = {}) {
    Scratch scratch;
    Keyed<S>* sorted = scratch.take<Keyed<S>>(rows.n);
    radix_sort(scores, rows.n, sorted);
    VisitedPositions visited(scratch, rows.n);
    const auto wins = [&](std::uint32_t p) { return !rows.wins || rows.wins[p]; };
    const auto first = [&](std::uint32_t p) { return rows.first ? rows.first[p] : p; };
    PairCount count;
    for (std::uint32_t p = 0; p < rows.n; ++p) {
        const std::uint32_t pairs = wins(p) ? first(p) : 0;
        count.pairs += pairs;
        if (of_rows.pairs) of_rows.ordered[p] = 0, of_rows.pairs[p] = pairs;
    }
    const auto ask = [&](std::uint32_t p) {
        const std::uint32_t below = visited.below(first(p)) & -static_cast<std::uint32_t>(wins(p));  // without a branch
        count.twice += below;
        if (of_rows.ordered) of_rows.ordered[p] += 0.5 * below;
    };
    by_scores(sorted, rows.n, 1, ask, [&](std::uint32_t p) { visited.add(p); }, ask);
    if (of_rows.pairs) count_losses(rows, sorted, of_rows);
    return count;
}

// The rows in the order of their targets.
struct SortedTargets {
    std::uint32_t* rows;
    PositionedRows positioned;
};

// With `events`, targets are times: the earlier time wins if it is an event, also against a censored row of the same time.
template <class L>
SortedTargets sort_targets(Scratch& keep, const L* targets, const std::uint8_t* events, std::int64_t n) {
    using Key = std::conditional_t<std::is_floating_point_v<L>, double, std::int64_t>;
    std::uint32_t *rows = keep.take<std::uint32_t>(n), *first = keep.take<std::uint32_t>(n);
    std::uint8_t* wins = events ? keep.take<std::uint8_t>(n) : nullptr;
    Scratch scratch;
    Keyed<Key>*given = scratch.take<Keyed<Key>>(n), *sorted = scratch.take<Keyed<Key>>(n);
    const Key sign = events ? Key{-1} : Key{1};
    for (std::int64_t i = 0; i < n; ++i) given[i] = {sign * static_cast<Key>(targets[i]), static_cast<std::uint32_t>(i)};
    radix_sort(given, n, sorted);
    bool ties = false;
    for (std::int64_t i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n && sorted[j].key == sorted[i].key;) ++j;
        std::int64_t middle = i;
        if (events && j - i > 1) {
            const auto is_censored = [&](const Keyed<Key>& row) { return !events[row.row]; };
            middle = std::stable_partition(sorted + i, sorted + j, is_censored) - sorted;
        }
        ties |= j - i > 1;
        std::fill(first + i, first + middle, static_cast<std::uint32_t>(i));
        std::fill(first + middle, first + j, static_cast<std::uint32_t>(middle));
    }
    for (std::int64_t p = 0; p < n; ++p) rows[p] = sorted[p].row;
    for (std::int64_t p = 0; events && p < n; ++p) wins[p] = events[rows[p]];
    return {rows, {n, ties ? first : nullptr, wins}};
}

// The targets are the labels of the batch.
inline SortedTargets sort_targets(Scratch& keep, const Batch& batch, const std::uint8_t* events) {
    return with_labels(batch, [&](const auto* targets) { return sort_targets(keep, targets, events, batch.n); });
}

// The same as above for targets in the order of the scores.
template <class S>
PairCount count_pairs(const Batch& batch, const std::uint8_t* events, const RowCounts& of_rows) {
    Scratch scratch;
    const auto [rows, positioned] = sort_targets(scratch, batch, events);
    const std::int64_t n = batch.n;
    Keyed<S>* scores = scratch.take<Keyed<S>>(n);
    for (std::int64_t p = 0; p < n; ++p)
        scores[p] = {static_cast<const S*>(batch.scores)[rows[p]], static_cast<std::uint32_t>(p)};
    if (!of_rows.pairs) return count_pairs<S>(positioned, scores);
    const RowCounts by_position{scratch.take<double>(n), scratch.take<double>(n)};
    const PairCount count = count_pairs<S>(positioned, scores, by_position);
    for (std::int64_t p = 0; p < n; ++p) {
        of_rows.ordered[rows[p]] = by_position.ordered[p];
        of_rows.pairs[rows[p]] = by_position.pairs[p];
    }
    return count;
}

// The same for rows that are sorted by group and rank. Rows whose weight as a winner is 0 do not win.
template <class S>
PairCount count_pairs(const Ranked& rows, int threads) {
    Scratch keep;
    PairCount* counts = keep.take<PairCount>(rows.n_groups);
    parallel_ranges(threads, rows.n_groups, [&](std::int64_t g) {
        const std::int64_t begin = rows.offsets[g], n = rows.offsets[g + 1] - begin;
        Scratch scratch;
        std::uint32_t* first = scratch.take<std::uint32_t>(n);
        std::uint8_t* wins = rows.winner ? scratch.take<std::uint8_t>(n) : nullptr;
        Keyed<S>* scores = scratch.take<Keyed<S>>(n);
        for (std::int64_t p = 0; p < n; ++p) {
            const bool is_new = p == 0 || rows.ranks[begin + p] != rows.ranks[begin + p - 1];
            first[p] = is_new ? static_cast<std::uint32_t>(p) : first[p - 1];
            if (wins) wins[p] = rows.winner[begin + p] > 0;
            scores[p] = {static_cast<const S*>(rows.scores)[rows.order[begin + p]], static_cast<std::uint32_t>(p)};
        }
        counts[g] = count_pairs<S>({n, first, wins}, scores);
    });
    PairCount total;
    for (std::int64_t g = 0; g < rows.n_groups; ++g) total.twice += counts[g].twice, total.pairs += counts[g].pairs;
    return total;
}

}  // namespace everypair::EVERYPAIR_ISA
