// Plan for ordered pairs: all pairs of a row (the winner) and a row of lower rank of the same group (the
// loser).
//
// The rows of a group are divided in two at the rank boundary nearest to their middle. The pairs of a lower
// and an upper row are computed together, then both parts are divided again: a tree with about log2(n)
// levels, or log2(number of ranks) if that is less. Nodes of few rows visit all pairs. The rows of a node are
// in ascending order of their scores; a stable partition hands this order down, so scores are sorted once.
// They are compared once as well: `above` of a row is the number of rows of its node with s < s_row + shift,
// with which it is a pair that counts if it loses; `below` is the number of rows with s + shift <= s_row,
// with which it is none if it wins. The number of upper rows before each position turns these two numbers of
// a node into those of its parts, and into the number k of upper rows with which a lower row counts.
//
// Those are the k lowest upper rows. A table by k holds sums over them of w, w x and w x^2, where x is the
// distance from the highest of them; it is computed from row to row. For upper rows and the highest lower
// rows it is the same. All numbers added are positive, and distances are relative to the nearest row, so no
// digits of a term cancel, at any offset. Several terms may cancel (see `cancellation`), so their sums are
// compensated.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "double_double.hpp"
#include "pool.hpp"
#include "sources.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// Gradient, diagonal Hessian and Hessian times vector in the order of ranks; null if not wanted.
using Sums = double* [3];

inline double weight(const double* weights, std::int64_t i) { return weights ? weights[i] : 1; }

// What a call asks for: value and gradient of one term, without weights; or anything.
enum class Results { one_term, any };

template <Results results>
class OrderedPairs {
  public:
    // All terms are truncated. With `concordance` there are two terms of shift 0; the second one counts on
    // its knot as well.
    OrderedPairs(const Batch& rows, const Question& question, bool concordance, const Sums& sums)
        : rows_(rows), question_(question), concordance_(concordance), sums_{sums[0], sums[1], sums[2]} {
        constexpr bool any = results == Results::any;
        const bool is_needed[] = {true,  any && rows.winner, any && rows.loser, has(2), has(0), has(1),
                                  has(2)};
        for (Columns& buffer : buffers_) {
            for (int c = 0; c < n_columns; ++c)
                buffer.real[c] = is_needed[c] ? scratch_.take<double>(rows.n) : nullptr;
            buffer.position = scratch_.take<std::uint32_t>(rows.n);
            buffer.above = scratch_.take<std::uint32_t>(rows.n * n_terms());
            buffer.below = scratch_.take<std::uint32_t>(has_derivatives() ? rows.n * n_terms() : 0);
        }
    }

    // Sorts the rows of each group by their scores, of type S, and returns the largest difference of scores
    // inside a group.
    template <class S>
    double sort() {
        std::vector<double> ranges(rows_.n_groups);
        parallel(question_.threads, static_cast<int>(rows_.n_groups),
                 [&](int g) { ranges[g] = sort_group<S>(rows_.offsets[g], rows_.offsets[g + 1]); });
        return *std::max_element(ranges.begin(), ranges.end());
    }

    // Adds the derivatives to `sums` and returns the value.
    double run() {
        std::vector<Node> nodes(rows_.n_groups);
        for (std::int64_t g = 0; g < rows_.n_groups; ++g)
            nodes[g] = {rows_.offsets[g], rows_.offsets[g + 1], 0};
        before_ = scratch_.take<std::uint32_t>(2 * rows_.n);
        target_ = scratch_.take<std::uint32_t>(rows_.n);
        counts_ = scratch_.take<std::uint32_t>(rows_.n * n_terms());
        moments_ = scratch_.take<Moments>(rows_.n);
        vectors_ = scratch_.take<double>(has(2) ? rows_.n : 0);
        Compensated total;
        // The large nodes of a level run in parallel, each on one thread, as do the smaller ones with all
        // nodes below them.
        while (!nodes.empty()) {
            std::vector<double> values(nodes.size());
            std::vector<Node> parts(2 * nodes.size());
            parallel(question_.threads, static_cast<int>(nodes.size()), [&](int k) {
                const bool small = nodes[k].end - nodes[k].begin <= large || is_one_rank(nodes[k]);
                values[k] = small ? evaluate(nodes[k]) : divide(nodes[k], &parts[2 * k]);
            });
            for (const double value : values) total += value;
            std::erase_if(parts, [](const Node& node) { return node.end == 0; });
            nodes.swap(parts);
        }
        return total;
    }

  private:
    static constexpr int large = 1 << 14, few = 32;  // rows of a node
    enum { score, winner, loser, vector, grad, hess, hvp, n_columns };

    // The positions begin .. end - 1 in the order of ranks, and the buffer that has these rows in the order
    // of scores.
    struct Node {
        std::int64_t begin = 0, end = 0;
        int buffer = 0;
    };
    struct Columns {
        double* real[n_columns];       // null if not needed
        std::uint32_t* position;       // in the order of ranks
        std::uint32_t *above, *below;  // by term and row
    };
    struct Moments {
        double mass, first, second, at;
    };
    // One term without weights has integer masses, and numbers that do not cancel.
    using RunningSum = std::conditional_t<results == Results::one_term, double, Compensated>;

    int n_terms() const { return results == Results::any ? question_.n_terms : 1; }
    bool has_derivatives() const { return has(0) || has(1) || has(2); }
    // Whether gradient (0), diagonal Hessian (1) or Hessian times vector (2) is wanted.
    bool has(int order) const { return results == Results::any ? sums_[order] != nullptr : order == 0; }

    bool is_one_rank(const Node& node) const { return rows_.ranks[node.begin] == rows_.ranks[node.end - 1]; }

    // The first position of a rank, nearest to the middle.
    std::int64_t boundary(std::int64_t begin, std::int64_t end) const {
        const std::int64_t *ranks = rows_.ranks, middle = begin + (end - begin) / 2, rank = ranks[middle];
        if (ranks[middle - 1] != rank) return middle;
        const auto [low, high] = std::equal_range(ranks + begin, ranks + end, rank);
        const std::int64_t before = low - ranks, after = high - ranks;
        return before > begin && (after == end || middle - before <= after - middle) ? before : after;
    }

    template <class S>
    double sort_group(std::int64_t begin, std::int64_t end) {
        const std::int64_t n = end - begin;
        const S sign = concordance_ ? S{-1} : S{1};  // so that pairs in the right order count
        Scratch scratch;
        Keyed<S>*unsorted = scratch.take<Keyed<S>>(n), *sorted = scratch.take<Keyed<S>>(n);
        for (std::int64_t i = 0; i < n; ++i)
            unsorted[i] = {sign * static_cast<const S*>(rows_.scores)[rows_.order[begin + i]],
                           static_cast<std::uint32_t>(begin + i)};
        radix_sort(unsorted, n, sorted);
        const Columns& to = buffers_[0];
        const auto fill = [&](double* column, auto&& value) {
            for (std::int64_t i = 0; column && i < n; ++i) column[begin + i] = value(sorted[i].row);
        };
        fill(to.real[winner], [&](std::uint32_t i) { return rows_.winner[i]; });
        fill(to.real[loser], [&](std::uint32_t i) { return rows_.loser[i]; });
        fill(to.real[vector], [&](std::uint32_t i) { return rows_.vector[rows_.order[i]]; });
        for (const int column : {grad, hess, hvp}) fill(to.real[column], [](std::uint32_t) { return 0.0; });
        double *s = to.real[score] + begin, *thresholds = scratch.take<double>(n);
        for (std::int64_t i = 0; i < n; ++i) s[i] = sorted[i].key, to.position[begin + i] = sorted[i].row;
        for (int t = 0; t < n_terms(); ++t) {
            const bool closed = concordance_ && t == 1;
            for (std::int64_t i = 0; i < n; ++i)
                thresholds[i] = threshold(s[i], question_.terms[t].shift, closed);
            const auto count = [&](std::uint32_t* numbers, auto&& counts) {
                for (std::uint32_t i = 0, k = 0; i < n; numbers[t * rows_.n + begin + i++] = k)
                    while (k < n && counts(k, i)) ++k;
            };
            count(to.above, [&](std::uint32_t k, std::uint32_t i) { return s[k] < thresholds[i]; });
            if (has_derivatives())
                count(to.below, [&](std::uint32_t k, std::uint32_t i) { return thresholds[k] <= s[i]; });
        }
        const double range = s[n - 1] - s[0];
        // Only comparisons matter for the concordance, and differences of scores may overflow.
        if (concordance_) std::fill_n(s, n, 0.0);
        return range;
    }

    double evaluate(const Node& node) {
        if (node.end - node.begin <= few) return visit_pairs(node);
        if (is_one_rank(node)) return write(node), 0.0;
        Node parts[2];
        const double value = divide(node, parts);
        return value + (evaluate(parts[0]) + evaluate(parts[1]));
    }

    void write(const Node& node) const {
        const Columns& rows = buffers_[node.buffer];
        for (int k = 0; k < 3; ++k)
            for (std::int64_t i = node.begin; has(k) && i < node.end; ++i)
                sums_[k][rows.position[i]] += rows.real[grad + k][i];
    }

    // Divides a node in two. Moves its rows to the other buffer, lower ranks first, adds the derivatives of
    // the pairs of a lower and an upper row, and returns the value of those pairs.
    double divide(const Node& node, Node* parts) {
        const auto [begin, end, buffer] = node;
        const Columns &from = buffers_[buffer], &to = buffers_[!buffer];
        const std::int64_t n = end - begin, middle = boundary(begin, end), n_low = middle - begin;
        parts[0] = {begin, middle, !buffer}, parts[1] = {middle, end, !buffer};
        const std::uint32_t *position = from.position + begin,
                            first_upper = static_cast<std::uint32_t>(middle);
        std::uint32_t *before = before_ + 2 * begin, *target = target_ + begin,
                      *all_counts = counts_ + begin * n_terms();
        before[0] = 0;
        for (std::int64_t i = 0; i < n; ++i) before[i + 1] = before[i] + (position[i] >= first_upper);
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) {
            const std::uint32_t if_upper = static_cast<std::uint32_t>(n_low) + before[i];
            target[i] = position[i] >= first_upper ? if_upper : static_cast<std::uint32_t>(i) - before[i];
        }
        move(position, to.position + begin, target, n);
        for (int c = 0; c < n_columns; ++c)
            if (from.real[c]) move(from.real[c] + begin, to.real[c] + begin, target, n);
        for (int t = 0; t < n_terms(); ++t) {
            const std::int64_t first = t * rows_.n + begin;
            const std::uint32_t *above = from.above + first, *below = from.below + first;
            std::uint32_t *new_above = to.above + first, *new_below = to.below + first,
                          *counts = all_counts + t * n;
            for (std::int64_t i = 0; i < n; ++i) {
                const std::uint32_t is_upper =
                    -static_cast<std::uint32_t>(position[i] >= first_upper);  // all bits or none
                const std::uint32_t all = above[i], none = has_derivatives() ? below[i] : 0;
                const std::uint32_t a = before[all], b = before[none], place = target[i];
                new_above[place] = select(is_upper, a, all - a);
                if (has_derivatives()) new_below[place] = select(is_upper, b, none - b);
                counts[place] = select(is_upper, none - b, a);
            }
        }
        const double value = add<false>(to, node, middle, all_counts);
        if (has_derivatives()) add<true>(to, node, middle, all_counts + n_low);
        return value;
    }

    static std::uint32_t select(std::uint32_t mask, std::uint32_t a, std::uint32_t b) {
        return b ^ ((a ^ b) & mask);
    }

    template <class T>
    static void move(const T* __restrict from, T* __restrict to, const std::uint32_t* __restrict target,
                     std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) to[target[i]] = from[i];
    }

    // Adds the derivatives of the upper rows of a node, or of the lower rows. Returns the value of their
    // pairs (for lower rows).
    template <bool upper>
    double add(const Columns& rows, const Node& node, std::int64_t middle,
               const std::uint32_t* counts) const {
        Moments* moments = moments_ + node.begin;  // each part has at most n - 1 rows
        double* vectors = vectors_ + node.begin;
        // The table of the other rows. Entry k of upper rows has sums over the first k, as winners, relative
        // to the last of those; entry k of lower rows over the rows from the k-th on, as losers, relative to
        // the k-th.
        const std::int64_t first_other = upper ? node.begin : middle,
                           n = upper ? middle - node.begin : node.end - middle;
        const double *s_other = rows.real[score] + first_other,
                     *weights = results == Results::any ? rows.real[upper ? loser : winner] : nullptr;
        RunningSum mass{}, first{}, second{}, along{};
        double at = s_other[upper ? n - 1 : 0];
        moments[upper ? n : 0] = {0, 0, 0, at};
        if (has(2)) vectors[upper ? n : 0] = 0;
        for (std::int64_t r = 0; r < n; ++r) {
            const std::int64_t i = upper ? n - 1 - r : r, k = upper ? i : i + 1;
            const double gap = upper ? at - s_other[i] : s_other[i] - at,
                         w = weight(weights, first_other + i), turn = mass * gap;
            at = s_other[i];
            if (!upper) second += gap * (2 * first + turn);  // for the value, to which lower rows add
            first += turn;
            mass += w;
            moments[k] = {mass, first, second, at};
            if (has(2)) vectors[k] = along += w * rows.real[vector][first_other + i];
        }
        const std::int64_t begin = upper ? middle : node.begin, end = upper ? node.end : middle;
        const double sign = upper ? -1 : 1,
                     *own = results == Results::any ? rows.real[upper ? winner : loser] : nullptr;
        RunningSum total{};
        for (std::int64_t i = begin; i < end; ++i) {
            const double s = rows.real[score][i], w = weight(own, i);
            double value = 0, slope = 0, bend = 0, across = 0;
            for (int t = 0; t < n_terms(); ++t) {
                const Term& term = question_.terms[t];
                const std::uint32_t k = counts[t * (node.end - node.begin) + (i - begin)];
                const auto [m0, m1, m2, edge] = moments[k];
                const DoubleDouble reach = DoubleDouble::sum(upper ? edge : s, term.shift);
                const double d = (reach.high - (upper ? s : edge)) + reach.low, moment = m1 + m0 * d;
                if (!upper) value += term.b0 * m0 + term.b1 * moment + term.b2 * (m2 + d * (m1 + moment));
                slope += term.b1 * m0 + 2 * term.b2 * moment;
                bend += 2 * term.b2 * m0;
                if (has(2)) across += 2 * term.b2 * (m0 * rows.real[vector][i] - vectors[k]);
            }
            total += w * value;
            if (has(0)) rows.real[grad][i] += sign * w * slope;
            if (has(1)) rows.real[hess][i] += w * bend;
            if (has(2)) rows.real[hvp][i] += w * across;
        }
        return total;
    }

    struct Few {
        Vec vectors[few / lanes] = {};
        double& operator[](std::int64_t i) { return reinterpret_cast<double*>(vectors)[i]; }
    };

    // Visits all pairs of a node of at most `few` rows and writes their derivatives. Arrays are in the order
    // of ranks.
    double visit_pairs(const Node& node) {
        const std::int64_t begin = node.begin;
        const Columns& from = buffers_[node.buffer];
        const std::uint32_t* position = from.position + begin;
        const int n = static_cast<int>(node.end - begin);
        Few place, bound, rank, s, high, low, v, w_loser, w_winner, values, lost[3];
        const auto fill = [&](Few& to, const auto* column) {
            for (int i = 0; i < n; ++i)
                to[position[i] - begin] = column ? static_cast<double>(column[begin + i]) : 1;
        };
        for (int i = 0; i < n; ++i)
            place[position[i] - begin] = i, rank[i] = static_cast<double>(rows_.ranks[begin + i]);
        if (results == Results::any) fill(w_loser, from.real[loser]), fill(w_winner, from.real[winner]);
        fill(s, from.real[score]);
        if (has(2)) fill(v, from.real[vector]);
        for (int t = 0; t < n_terms(); ++t) {
            Few lost_term[3];  // added up apart, so that terms that cancel for all pairs leave exactly 0
            const Term& term = question_.terms[t];
            const double b0 = term.b0, b1 = term.b1, b2 = term.b2, b22 = 2 * b2;
            fill(bound, from.above + t * rows_.n);
            for (int i = 0; i < n; ++i) {
                const DoubleDouble reach = DoubleDouble::sum(s[i], term.shift);
                high[i] = reach.high, low[i] = reach.low;
            }
            for (int other = 1; other < n; ++other) {  // wins against the rows i that are a pair that counts
                Vec sums[3][8 / lanes] =
                    {};  // eight sums each, so that all instruction sets have the same order of additions
                for (int first = 0; first * lanes < other; first += 8 / lanes)
                    for (int h = 0; h < 8 / lanes; ++h) {
                        const int i = first + h;
                        const auto counts =
                            (bound.vectors[i] > place[other]) & (rank.vectors[i] < rank[other]);
                        const Vec weights =
                            results == Results::any ? w_loser.vectors[i] * w_winner[other] : Vec{} + 1;
                        const Vec w = counts ? weights : Vec{},
                                  d = (high.vectors[i] - s[other]) + low.vectors[i];
                        values.vectors[i] += w * (b0 + d * (b1 + b2 * d));
                        const Vec derivatives[3] = {w * (b1 + b22 * d), w * b22,
                                                    w * b22 * (v.vectors[i] - v[other])};
                        for (int k = 0; k < 3; ++k)
                            if (has(k))
                                lost_term[k].vectors[i] += derivatives[k], sums[k][h] += derivatives[k];
                    }
                for (int k = 0; k < 3; ++k) {
                    const double* a = reinterpret_cast<const double*>(sums[k]);
                    const double sum = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
                    if (has(k)) sums_[k][begin + other] += k == 1 ? sum : -sum;
                }
            }
            for (int k = 0; k < 3; ++k)
                for (int i = 0; has(k) && i < few / lanes; ++i) lost[k].vectors[i] += lost_term[k].vectors[i];
        }
        for (int k = 0; k < 3; ++k)
            for (int i = 0; has(k) && i < n; ++i) sums_[k][begin + i] += lost[k][i];
        write(node);
        return std::accumulate(&values[0], &values[0] + n, 0.0);
    }

    const Batch& rows_;
    const Question& question_;
    const bool concordance_;
    double* const sums_[3];
    Scratch scratch_;
    Columns buffers_[2];
    // Working arrays of a node, from its first row on: the number of upper rows before each row and after the
    // last one, with room for two per row; the new place of each row; the numbers k; and the table by k.
    std::uint32_t *before_, *target_, *counts_;
    Moments* moments_;
    double* vectors_;
};

// Adds the terms without a knot, which count for all pairs, to `sums`, and returns their value: running
// moments, about the mean score of the group, of the rows of lower rank and of those of higher rank. Returns
// NaN if distances of pairs are so much smaller than those from the mean that they may lose digits: if nearly
// all pairs are apart by the shift.
template <class S>
double ordered_everywhere(const Batch& rows, const std::vector<Term>& terms, const Sums& sums) {
    double b0 = 0, b1 = 0, b2 = 0;
    for (const Term& term : terms) b0 += term.b0, b1 += term.b1, b2 += term.b2;  // they have the same shift
    const double shift = terms[0].shift, b22 = 2 * b2;
    const auto score = [&](std::int64_t i) {
        return static_cast<double>(static_cast<const S*>(rows.scores)[rows.order[i]]);
    };
    Compensated value;
    double firsts[2] = {},
           seconds[2] = {};  // of distances; and of the numbers that they are the differences of
    for (std::int64_t g = 0; g < rows.n_groups; ++g) {
        const std::int64_t begin = rows.offsets[g], end = rows.offsets[g + 1];
        Compensated sum, mass;
        const double origin = score(begin);
        for (std::int64_t i = begin; i < end; ++i) {
            const double w = weight(rows.winner, i) + weight(rows.loser, i);
            sum += w * (score(i) - origin);
            mass += w;
        }
        const double centre = mass > 0 ? origin + sum / mass : origin;
        for (const int sign :
             {-1, 1}) {  // -1: rows win against those before them; 1: they lose against those after them
            const double *own = sign < 0 ? rows.winner : rows.loser,
                         *other = sign < 0 ? rows.loser : rows.winner;
            const std::int64_t start = sign < 0 ? begin : end - 1, stop = sign < 0 ? end : begin - 1;
            Compensated m0, m1, m2, mv;
            for (std::int64_t first = start, last; first != stop; first = last) {  // the rows of one rank
                for (last = first; last != stop && rows.ranks[last] == rows.ranks[first]; last -= sign) {
                    const double w = weight(own, last), at = shift + sign * (score(last) - centre),
                                 along = at * m0 - sign * m1;
                    firsts[0] = std::max(firsts[0], w * std::abs(along));
                    firsts[1] = std::max(firsts[1], w * (std::abs(at) * m0 + std::abs(double{m1})));
                    if (sign < 0) {
                        const double second = at * (along + m1) + m2;
                        value += w * (b0 * m0 + b1 * along + b2 * second);
                        seconds[0] += w * second, seconds[1] += w * (at * at * m0 + m2);
                    }
                    if (sums[0]) sums[0][last] += sign * w * (b1 * m0 + b22 * along);
                    if (sums[1]) sums[1][last] += w * b22 * m0;
                    if (sums[2]) sums[2][last] += w * b22 * (m0 * rows.vector[rows.order[last]] - mv);
                }
                for (std::int64_t i = first; i != last; i -= sign) {
                    const double w = weight(other, i), x = score(i) - centre;
                    m0 += w, m1 += w * x, m2 += w * x * x;
                    if (sums[2]) mv += w * rows.vector[rows.order[i]];
                }
            }
        }
    }
    const double least = std::is_same_v<S, float> ? 0x1p-26 : 0x1p-9;
    const bool close = !(firsts[0] >= least * firsts[1] && seconds[0] >= least * seconds[1]);
    const bool reliable =
        !close && (seconds[1] > 0x1p-900 || firsts[1] == 0);  // squares of smaller numbers would be denormal
    return reliable ? value : std::numeric_limits<double>::quiet_NaN();
}

// The weight of all pairs.
inline double ordered_weight(const Batch& rows) {
    Compensated total;
    for (std::int64_t g = 0; g < rows.n_groups; ++g) {
        Compensated below;  // the losers of lower rank
        for (std::int64_t i = rows.offsets[g], j; i < rows.offsets[g + 1]; i = j) {
            Compensated wins, loses;  // of one rank
            for (j = i; j < rows.offsets[g + 1] && rows.ranks[j] == rows.ranks[i]; ++j)
                wins += weight(rows.winner, j), loses += weight(rows.loser, j);
            total += wins * below;
            below += loses;
        }
    }
    return total;
}

}  // namespace everypair::EVERYPAIR_ISA
