// Plan for ordered pairs: all pairs of a row (the winner) and a row of lower rank of the same group (the loser).
//
// The rows of a group are divided in two at the rank boundary nearest to their middle. The pairs of a lower and an upper row
// are computed together, then both parts are divided again: a tree with about log2(n) levels, or log2(number of ranks) if that
// is less. The rows of a node are in ascending order of their scores. A stable partition hands this order down, so scores are
// sorted once. They are compared once as well: `above` of a row is the number of rows of its node with s < s_row + shift, with
// which it is a pair that counts if it loses; `below` is the number of rows with s + shift <= s_row, with which it is none if
// it wins. The number of upper rows before each position turns these two numbers of a node into those of its parts, and into
// the number k of upper rows with which a lower row counts.
//
// Those are the k lowest upper rows. A table by k holds sums over them of w, w x and w x^2, where x is the distance from the
// highest of them; it is computed from row to row. For upper rows and the highest lower rows it is the same. All numbers added
// are positive, and distances are relative to the nearest row, so no digits of a term cancel, at any offset. Several terms may
// cancel (see `cancellation`), so their sums are compensated. Nodes of few rows visit all pairs.
//
// The gradient of one term of 10^5 rows takes 12 levels of 9 ns per row (AVX2), besides 40 ns for the sort of the scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
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

// What a call asks for: value and gradient of one term, without weights; or anything.
enum class Asked { one_term, any };

template <Asked asked>
class OrderedPairs {
  public:
    // All terms are truncated. With `concordance` there are two terms of shift 0, and the second one counts on its knot as
    // well.
    OrderedPairs(const Ranked& rows, const Question& question, bool concordance, const Sums& sums)
        : rows_(rows), question_(question), concordance_(concordance), sums_{sums[0], sums[1], sums[2]} {
        constexpr bool any = asked == Asked::any;
        const bool wanted[] = {true, any && rows.winner, any && rows.loser, has(2), has(0), has(1), has(2)};
        for (Columns& buffer : buffers_) {
            for (int c = 0; c < n_columns; ++c) buffer.real[c] = wanted[c] ? scratch_.take<double>(rows.n) : nullptr;
            buffer.position = scratch_.take<std::uint32_t>(rows.n);
            buffer.above = scratch_.take<std::uint32_t>(rows.n * n_terms());
            buffer.below = scratch_.take<std::uint32_t>(has_derivatives() ? rows.n * n_terms() : 0);
        }
    }

    // Sorts the rows of each group by their scores, of type S, and returns the largest difference of scores inside a group.
    template <class S>
    double sort() {
        std::vector<double> ranges(rows_.n_groups);
        parallel(question_.threads, static_cast<int>(rows_.n_groups),
                 [&](int g) { ranges[g] = sort_group<S>(rows_.offsets[g], rows_.offsets[g + 1]); });
        return *std::max_element(ranges.begin(), ranges.end());
    }

    // Writes the derivatives to `sums` and returns the value.
    double run() {
        std::vector<Node> nodes;
        for (std::int64_t g = 0; g < rows_.n_groups; ++g) nodes.push_back({rows_.offsets[g], rows_.offsets[g + 1], 0});
        before_ = scratch_.take<std::uint32_t>(2 * rows_.n);
        target_ = scratch_.take<std::uint32_t>(rows_.n);
        counts_ = scratch_.take<std::uint32_t>(rows_.n * n_terms());
        moments_ = scratch_.take<Moments>(rows_.n);
        vectors_ = scratch_.take<double>(has(2) ? rows_.n : 0);
        std::vector<double> values;
        Compensated total;
        // The large nodes of a level run in parallel, each on one thread, as do the smaller ones with all nodes below them.
        while (!nodes.empty()) {
            values.assign(nodes.size(), 0);
            std::vector<Node> parts(2 * nodes.size());
            parallel(question_.threads, static_cast<int>(nodes.size()), [&](int k) {
                const auto [begin, end, buffer] = nodes[k];
                if (end - begin <= large || is_one_rank(begin, end)) {
                    values[k] = evaluate(begin, end, buffer);
                    return;
                }
                const std::int64_t middle = boundary(begin, end);
                values[k] = divide(begin, middle, end, buffer);
                parts[2 * k] = {begin, middle, !buffer};
                parts[2 * k + 1] = {middle, end, !buffer};
            });
            for (const double value : values) total += value;
            nodes.clear();
            std::copy_if(parts.begin(), parts.end(), std::back_inserter(nodes), [](const Node& node) { return node.end > 0; });
        }
        return total;
    }

  private:
    static constexpr std::int64_t large = 1 << 14;
    static constexpr int few = 32;
    enum { score, winner, loser, vector, grad, hess, hvp, n_columns };

    // The positions begin .. end - 1 in the order of ranks, and the buffer that has these rows in the order of scores.
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
    using RunningSum = std::conditional_t<asked == Asked::one_term, double, Compensated>;

    int n_terms() const { return asked == Asked::any ? question_.n_terms : 1; }
    bool has_derivatives() const { return has(0) || has(1) || has(2); }
    // Whether gradient (0), diagonal Hessian (1) or Hessian times vector (2) is wanted.
    bool has(int order) const { return asked == Asked::any ? sums_[order] != nullptr : order == 0; }

    static double weight(const double* weights, std::int64_t i) { return asked == Asked::any && weights ? weights[i] : 1; }

    bool is_one_rank(std::int64_t begin, std::int64_t end) const { return rows_.ranks[begin] == rows_.ranks[end - 1]; }

    // The first position of a rank, nearest to the middle.
    std::int64_t boundary(std::int64_t begin, std::int64_t end) const {
        const std::int64_t *ranks = rows_.ranks, middle = begin + (end - begin) / 2, rank = ranks[middle];
        if (ranks[middle - 1] != rank) return middle;
        const std::int64_t low = std::lower_bound(ranks + begin, ranks + middle, rank) - ranks;
        const std::int64_t high = std::upper_bound(ranks + middle, ranks + end, rank) - ranks;
        return low > begin && (high == end || middle - low <= high - middle) ? low : high;
    }

    template <class S>
    double sort_group(std::int64_t begin, std::int64_t end) {
        const std::int64_t n = end - begin;
        const S sign = concordance_ ? S{-1} : S{1};  // so that pairs in the right order count
        Scratch scratch;
        Keyed<S>*given = scratch.take<Keyed<S>>(n), *sorted = scratch.take<Keyed<S>>(n);
        for (std::int64_t i = 0; i < n; ++i)
            given[i] = {sign * static_cast<const S*>(rows_.scores)[rows_.order[begin + i]],
                        static_cast<std::uint32_t>(begin + i)};
        if (n > few)
            radix_sort(given, n, sorted);
        else
            insert(given, given + n), std::swap(given, sorted);
        const Columns& to = buffers_[0];
        const auto fill = [&](double* column, auto&& value) {
            for (std::int64_t i = 0; column && i < n; ++i) column[begin + i] = value(sorted[i].row);
        };
        fill(to.real[winner], [&](std::uint32_t i) { return rows_.winner[i]; });
        fill(to.real[loser], [&](std::uint32_t i) { return rows_.loser[i]; });
        fill(to.real[vector], [&](std::uint32_t i) { return rows_.vector[rows_.order[i]]; });
        for (const int column : {grad, hess, hvp}) fill(to.real[column], [](std::uint32_t) { return 0.0; });
        double *s = scratch.take<double>(n), *thresholds = scratch.take<double>(n);
        for (std::int64_t i = 0; i < n; ++i) {
            s[i] = sorted[i].key;
            to.position[begin + i] = sorted[i].row;
            // Only comparisons matter for the concordance, and differences of scores may overflow.
            to.real[score][begin + i] = concordance_ ? 0 : s[i];
        }
        for (int t = 0; t < n_terms(); ++t) {
            const bool closed = concordance_ && t == 1;
            for (std::int64_t i = 0; i < n; ++i) thresholds[i] = threshold(s[i], question_.terms[t].shift, closed);
            std::uint32_t *above = to.above + t * rows_.n + begin, *below = to.below + t * rows_.n + begin;
            for (std::int64_t i = 0, k = 0; i < n; ++i) {
                while (k < n && s[k] < thresholds[i]) ++k;
                above[i] = static_cast<std::uint32_t>(k);
            }
            for (std::int64_t i = 0, k = 0; has_derivatives() && i < n; ++i) {
                while (k < n && thresholds[k] <= s[i]) ++k;
                below[i] = static_cast<std::uint32_t>(k);
            }
        }
        return s[n - 1] - s[0];
    }

    double evaluate(std::int64_t begin, std::int64_t end, int buffer) {
        if (end - begin <= few) return visit_pairs(begin, end, buffer);
        if (is_one_rank(begin, end)) return write(begin, end, buffer), 0.0;
        const std::int64_t middle = boundary(begin, end);
        const double value = divide(begin, middle, end, buffer);
        return value + (evaluate(begin, middle, !buffer) + evaluate(middle, end, !buffer));
    }

    void write(std::int64_t begin, std::int64_t end, int buffer) const {
        const Columns& rows = buffers_[buffer];
        for (int k = 0; k < 3; ++k)
            for (std::int64_t i = begin; has(k) && i < end; ++i) sums_[k][rows.position[i]] = rows.real[grad + k][i];
    }

    // Moves the rows of a node to the other buffer, lower ranks first, adds the derivatives of the pairs of a lower and an
    // upper row, and returns the value of those pairs.
    double divide(std::int64_t begin, std::int64_t middle, std::int64_t end, int buffer) {
        const Columns &from = buffers_[buffer], &to = buffers_[!buffer];
        const std::int64_t n = end - begin, n_low = middle - begin;
        const std::uint32_t *position = from.position + begin, first_upper = static_cast<std::uint32_t>(middle);
        std::uint32_t *before = before_ + 2 * begin, *target = target_ + begin, *all_counts = counts_ + begin * n_terms();
        std::uint32_t upper = 0;
        for (std::int64_t i = 0; i < n; ++i) {
            before[i] = upper;
            upper += position[i] >= first_upper;
        }
        before[n] = upper;
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
            std::uint32_t *new_above = to.above + first, *new_below = to.below + first, *counts = all_counts + t * n;
            for (std::int64_t i = 0; i < n; ++i) {
                const std::uint32_t is_upper = -static_cast<std::uint32_t>(position[i] >= first_upper);  // all bits or none
                const std::uint32_t all = above[i], none = has_derivatives() ? below[i] : 0;
                const std::uint32_t a = before[all], b = before[none], place = target[i];
                new_above[place] = select(is_upper, a, all - a);
                if (has_derivatives()) new_below[place] = select(is_upper, b, none - b);
                counts[place] = select(is_upper, none - b, a);
            }
        }
        Moments* moments = moments_ + begin;  // each part has at most n - 1 rows
        double* vectors = vectors_ + begin;
        sum<true>(to, middle, end, moments, vectors);
        const double value = add<false>(to, begin, middle, all_counts, n, moments, vectors);
        if (has_derivatives()) {
            sum<false>(to, begin, middle, moments, vectors);
            add<true>(to, middle, end, all_counts + n_low, n, moments, vectors);
        }
        return value;
    }

    static std::uint32_t select(std::uint32_t mask, std::uint32_t a, std::uint32_t b) { return b ^ ((a ^ b) & mask); }

    template <class T>
    static void move(const T* __restrict from, T* __restrict to, const std::uint32_t* __restrict target, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) to[target[i]] = from[i];
    }

    // The table of the rows begin .. end - 1. Entry k of upper rows has sums over the first k, as winners, relative to the last
    // of those; entry k of lower rows over the rows from the k-th on, as losers, relative to the k-th.
    template <bool upper>
    void sum(const Columns& rows, std::int64_t begin, std::int64_t end, Moments* moments, double* vectors) const {
        const std::int64_t n = end - begin;
        const double *s = rows.real[score] + begin, *weights = rows.real[upper ? winner : loser];
        RunningSum mass{}, first{}, second{}, along{};
        double at = s[upper ? 0 : n - 1];
        moments[upper ? 0 : n] = {0, 0, 0, at};
        if (has(2)) vectors[upper ? 0 : n] = 0;
        for (std::int64_t r = 0; r < n; ++r) {
            const std::int64_t i = upper ? r : n - 1 - r, k = upper ? i + 1 : i;
            const double gap = upper ? s[i] - at : at - s[i], w = weight(weights, begin + i), turn = mass * gap;
            at = s[i];
            if (upper) second += gap * (2 * first + turn);  // for the value, to which lower rows add
            first += turn;
            mass += w;
            moments[k] = {mass, first, second, at};
            if (has(2)) vectors[k] = along += w * rows.real[vector][begin + i];
        }
    }

    // Adds the derivatives of the rows begin .. end - 1 and returns the value of their pairs (for lower rows).
    template <bool upper>
    double add(const Columns& rows, std::int64_t begin, std::int64_t end, const std::uint32_t* counts, std::int64_t stride,
               const Moments* moments, const double* vectors) const {
        const double sign = upper ? -1 : 1;
        RunningSum total{};
        for (std::int64_t i = begin; i < end; ++i) {
            const double s = rows.real[score][i], w = weight(rows.real[upper ? winner : loser], i);
            double value = 0, slope = 0, bend = 0, across = 0;
            for (int t = 0; t < n_terms(); ++t) {
                const Term& term = question_.terms[t];
                const std::uint32_t k = counts[t * stride + (i - begin)];
                const auto [mass, first, second, at] = moments[k];
                const DoubleDouble reach = DoubleDouble::sum(upper ? at : s, term.shift);
                const double d = (reach.high - (upper ? s : at)) + reach.low, moment = first + mass * d;
                if (!upper) value += term.b0 * mass + term.b1 * moment + term.b2 * (second + d * (first + moment));
                slope += term.b1 * mass + 2 * term.b2 * moment;
                bend += 2 * term.b2 * mass;
                if (has(2)) across += 2 * term.b2 * (mass * rows.real[vector][i] - vectors[k]);
            }
            total += w * value;
            if (has(0)) rows.real[grad][i] += sign * w * slope;
            if (has(1)) rows.real[hess][i] += w * bend;
            if (has(2)) rows.real[hvp][i] += w * across;
        }
        return total;
    }

    struct Few {
        Vec of[few / lanes] = {};
        double& operator[](std::int64_t i) { return reinterpret_cast<double*>(of)[i]; }
    };

    // Visits all pairs of a node of at most `few` rows and writes their derivatives. Arrays are in the order of ranks.
    double visit_pairs(std::int64_t begin, std::int64_t end, int buffer) {
        const Columns& from = buffers_[buffer];
        const std::uint32_t* position = from.position + begin;
        const int n = static_cast<int>(end - begin);
        Few place, bound, rank, s, high, low, v, w_loser, w_winner, values, lost[3], won[3];
        const auto fill = [&](Few& to, auto&& number) {
            for (int i = 0; i < n; ++i) to[position[i] - begin] = number(begin + i);
        };
        const auto fill_column = [&](Few& to, int column) {
            if (const double* source = from.real[column]) return fill(to, [&](std::int64_t i) { return source[i]; });
            std::fill_n(to.of, few / lanes, Vec{} + 1);
        };
        fill(place, [&](std::int64_t i) { return static_cast<double>(i - begin); });
        for (int i = 0; i < n; ++i) rank[i] = static_cast<double>(rows_.ranks[begin + i]);
        if (asked == Asked::any) fill_column(w_loser, loser), fill_column(w_winner, winner);
        fill_column(s, score);
        if (has(2)) fill_column(v, vector);
        for (int t = 0; t < n_terms(); ++t) {
            Few lost_term[3], won_term[3];  // added up apart, so that terms that cancel for all pairs leave exactly 0
            const Term& term = question_.terms[t];
            const double b0 = term.b0, b1 = term.b1, b2 = term.b2, b22 = 2 * b2;
            const std::uint32_t* bounds = from.above + t * rows_.n;
            fill(bound, [&](std::int64_t i) { return static_cast<double>(bounds[i]); });
            for (int i = 0; i < n; ++i) {
                const DoubleDouble reach = DoubleDouble::sum(s[i], term.shift);
                high[i] = reach.high, low[i] = reach.low;
            }
            for (int other = 1; other < n; ++other) {  // wins against the rows i that are a pair that counts
                Vec sums[3] = {};
                for (int i = 0; i * lanes < other; ++i) {
                    const auto counts = (bound.of[i] > place[other]) & (rank.of[i] < rank[other]);
                    const Vec weights = asked == Asked::any ? w_loser.of[i] * w_winner[other] : Vec{} + 1;
                    const Vec w = counts ? weights : Vec{}, d = (high.of[i] - s[other]) + low.of[i];
                    values.of[i] += w * (b0 + d * (b1 + b2 * d));
                    const Vec found[3] = {w * (b1 + b22 * d), w * b22, w * b22 * (v.of[i] - v[other])};
                    for (int k = 0; k < 3; ++k)
                        if (has(k)) lost_term[k].of[i] += found[k], sums[k] += found[k];
                }
                for (int k = 0; k < 3; ++k)
                    if (has(k)) won_term[k][other] = sum_of(sums[k]);
            }
            for (int k = 0; k < 3; ++k)
                for (int i = 0; has(k) && i < few / lanes; ++i)
                    lost[k].of[i] += lost_term[k].of[i], won[k].of[i] += won_term[k].of[i];
        }
        for (int k = 0; k < 3; ++k)
            for (int i = 0; has(k) && i < n; ++i) {
                const std::int64_t at = position[i] - begin;
                const double wins = k == 1 ? won[k][at] : -won[k][at];
                sums_[k][begin + at] = from.real[grad + k][begin + i] + (lost[k][at] + wins);
            }
        double total = 0;
        for (int i = 0; i < n; ++i) total += values[i];
        return total;
    }

    const Ranked& rows_;
    const Question& question_;
    const bool concordance_;
    double* const sums_[3];
    Scratch scratch_;
    Columns buffers_[2];
    // Working arrays of the nodes, each from its first row on: the number of upper rows before each row (one more than there
    // are rows, so that there is room for two per row), the new place of each row, the numbers k, and the table by k.
    std::uint32_t *before_, *target_, *counts_;
    Moments* moments_;
    double* vectors_;
};

// Adds the terms without a knot, which count for all pairs, to `sums`, and returns their value: running moments, about the mean
// score of the group, of the rows of lower rank and of those of higher rank.
template <class S>
double ordered_everywhere(const Ranked& rows, const std::vector<Term>& terms, const Sums& sums) {
    double b0 = 0, b1 = 0, b2 = 0;
    for (const Term& term : terms) b0 += term.b0, b1 += term.b1, b2 += term.b2;  // they have the same shift
    const double shift = terms[0].shift, b22 = 2 * b2;
    const auto score = [&](std::int64_t i) { return static_cast<double>(static_cast<const S*>(rows.scores)[rows.order[i]]); };
    const auto weight = [](const double* weights, std::int64_t i) { return weights ? weights[i] : 1; };
    Compensated value;
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
        for (const int sign : {-1, 1}) {  // -1: rows win against those before them; 1: they lose against those after them
            const double *own = sign < 0 ? rows.winner : rows.loser, *other = sign < 0 ? rows.loser : rows.winner;
            const std::int64_t start = sign < 0 ? begin : end - 1, stop = sign < 0 ? end : begin - 1;
            Compensated m0, m1, m2, mv;
            for (std::int64_t first = start, last; first != stop; first = last) {  // the rows of one rank
                for (last = first; last != stop && rows.ranks[last] == rows.ranks[first]; last -= sign) {
                    const double w = weight(own, last), at = shift + sign * (score(last) - centre), along = at * m0 - sign * m1;
                    if (sign < 0) value += w * (b0 * m0 + b1 * along + b2 * (at * (along + m1) + m2));
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
    return value;
}

// The weight of all pairs.
inline double ordered_weight(const Ranked& rows) {
    Compensated total;
    for (std::int64_t g = 0; g < rows.n_groups; ++g) {
        Compensated below, own;  // of losers: the rows of lower rank, and those of one rank
        for (std::int64_t i = rows.offsets[g]; i < rows.offsets[g + 1]; ++i) {
            if (i > rows.offsets[g] && rows.ranks[i] != rows.ranks[i - 1]) below += own, own = {};
            total += (rows.winner ? rows.winner[i] : 1) * below;
            own += rows.loser ? rows.loser[i] : 1;
        }
    }
    return total;
}

}  // namespace everypair::EVERYPAIR_ISA
