// Plan for ordered pairs: all pairs of a row (the winner) and a row of lower rank of the same group (the loser).
//
// The rows of a group are divided in two at the rank boundary nearest to their middle. The pairs of a lower and an upper row
// are computed together, then both parts are divided again: a tree of about log2(n) levels, or log2(number of ranks) if that is
// less. A node has its rows in ascending order of their scores, which a stable partition hands down to both parts, so that
// scores are sorted once. Scores are compared once as well. `above` of a row and a term is the number of rows of the node with
// which the row is a pair that counts if it loses (s_row + shift > s), `below` the number of those with which it is none if it
// wins (s + shift <= s_row). Counts of the upper rows before each position turn these numbers of a node into those of its
// parts, and into the number of upper rows below a lower one.
//
// For a lower row that counts with the k lowest upper rows, the sums over those are functions of the distance from the highest
// of them, of which tables by k hold mass (sum of w), first (sum of w distance) and second (sum of w distance^2); they are
// computed from row to row. The same for an upper row with the highest lower rows. All numbers added are positive, and
// distances are relative to the nearest row, so no digits of a term cancel at any offset. Several terms may cancel: see
// `cancellation`.
//
// Nodes of few rows visit all pairs. Cost of one term: a node reads and writes 28 bytes per row (score, gradient, position, two
// counts), and uses tables of 32 bytes; with 12 levels for 10^5 rows that is about 1 KB per row, from the second-level cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "double_double.hpp"
#include "pool.hpp"
#include "smooth.hpp"
#include "sources.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// The least double that is not below s + shift; with `closed`, the least one above it. So x < threshold, for a double x, if and
// only if x < s + shift (x <= s + shift).
inline double threshold(double s, double shift, bool closed = false) {
    const double sum = s + shift, part = sum - s, lost = (s - (sum - part)) + (shift - part);
    return lost > 0 || (closed && lost == 0) ? next_above(sum) : sum;
}

// Gradient, diagonal Hessian and Hessian times vector in the order of ranks; null if not wanted.
using Sums = double* [3];

// What a call asks for: the weight of the pairs that count, all weights 1; value and gradient of one term, all weights 1; or
// anything.
enum class Asked { counts, one_term, any };

template <Asked asked>
class OrderedPairs {
  public:
    // With `ties_half`, the second term counts for pairs on its knot as well.
    OrderedPairs(const Ranked& rows, const Question& question, double sign, bool ties_half, const Sums& sums)
        : rows_(rows),
          question_(question),
          sums_{sums[0], sums[1], sums[2]},
          n_terms_(question.n_terms),
          ties_half_(ties_half),
          sign_(sign) {
        derivatives_ = sums[0] || sums[1] || sums[2];
        const bool carried[] = {asked != Asked::counts, rows.winner != nullptr, rows.loser != nullptr, sums[2] != nullptr,
                                sums[0] != nullptr,     sums[1] != nullptr,     sums[2] != nullptr};
        for (Columns& buffer : buffers_) {
            for (int c = 0; c < n_columns; ++c) buffer.real[c] = carried[c] ? keep_.take<double>(rows.n) : nullptr;
            buffer.position = keep_.take<std::uint32_t>(rows.n);
            buffer.above = keep_.take<std::uint32_t>(rows.n * n_terms_);
            buffer.below = keep_.take<std::uint32_t>(derivatives_ ? rows.n * n_terms_ : 0);
        }
    }

    // Writes the derivatives to `sums` and returns the value.
    template <class S>
    double run() {
        std::vector<Node> nodes;
        for (std::int64_t g = 0; g < rows_.n_groups; ++g) nodes.push_back({rows_.offsets[g], rows_.offsets[g + 1], 0});
        parallel(question_.threads, static_cast<int>(nodes.size()),
                 [&](int g) { sort_group<S>(nodes[g].begin, nodes[g].end); });
        // Nodes of many rows level by level, so that those of a level run in parallel; each smaller one with all below it.
        Compensated value;
        std::vector<double> values;
        while (!nodes.empty()) {
            std::vector<Node> parts(2 * nodes.size(), Node{0, 0, 0});
            values.assign(nodes.size(), 0);
            parallel(question_.threads, static_cast<int>(nodes.size()), [&](int k) {
                const auto [begin, end, buffer] = nodes[k];
                Scratch scratch;
                const Workspace work(scratch, end - begin, n_terms_, has(2));
                if (end - begin <= large || is_one_rank(begin, end)) {
                    values[k] = evaluate(begin, end, buffer, work);
                    return;
                }
                const std::int64_t middle = boundary(begin, end);
                values[k] = divide(begin, middle, end, buffer, work);
                parts[2 * k] = {begin, middle, !buffer};
                parts[2 * k + 1] = {middle, end, !buffer};
            });
            for (const double v : values) value += v;
            nodes.clear();
            std::copy_if(parts.begin(), parts.end(), std::back_inserter(nodes), [](const Node& node) { return node.end > 0; });
        }
        return value;
    }

  private:
    static constexpr std::int64_t large = 1 << 14;
    static constexpr int few = 32;
    struct alignas(64) Numbers {
        double of[few];
        operator double*() { return of; }
    };
    enum { score, winner, loser, vector, grad, hess, hvp, n_columns };

    struct Node {
        std::int64_t begin, end;
        int buffer;
    };
    // The rows of all nodes of a level. Nodes are ranges in the order of ranks; inside, rows are in the order of scores.
    struct Columns {
        double* real[n_columns];       // null if not needed
        std::uint32_t* position;       // in the order of ranks
        std::uint32_t *above, *below;  // by term and row
    };
    struct Moments {
        double mass, first, second, at;
    };
    struct Workspace {
        Workspace(Scratch& scratch, std::int64_t n, int n_terms, bool with_vector)
            : before(scratch.take<std::uint32_t>(n + 1)),
              target(scratch.take<std::uint32_t>(n)),
              counts(scratch.take<std::uint32_t>(n * n_terms)),
              moments(scratch.take<Moments>(n + 2)),
              vectors(scratch.take<double>(with_vector ? n + 2 : 0)) {}
        std::uint32_t *before, *target, *counts;
        Moments* moments;
        double* vectors;
    };

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
    void sort_group(std::int64_t begin, std::int64_t end) {
        const std::int64_t n = end - begin;
        Scratch scratch;
        Keyed<double>*given = scratch.take<Keyed<double>>(n), *sorted = scratch.take<Keyed<double>>(n);
        for (std::int64_t i = 0; i < n; ++i)
            given[i] = {sign_ * static_cast<double>(static_cast<const S*>(rows_.scores)[rows_.order[begin + i]]),
                        static_cast<std::uint32_t>(begin + i)};
        if (n > few)
            radix_sort(given, n, sorted);
        else
            insert(given, given + n), std::swap(given, sorted);
        const Columns& to = buffers_[0];
        double* s = to.real[score] ? to.real[score] + begin : scratch.take<double>(n);
        for (std::int64_t i = 0; i < n; ++i) {
            s[i] = sorted[i].key;
            to.position[begin + i] = sorted[i].row;
        }
        const auto fill = [&](int column, auto&& value) {
            for (std::int64_t i = 0; to.real[column] && i < n; ++i) to.real[column][begin + i] = value(sorted[i].row);
        };
        fill(winner, [&](std::uint32_t i) { return rows_.winner[i]; });
        fill(loser, [&](std::uint32_t i) { return rows_.loser[i]; });
        fill(vector, [&](std::uint32_t i) { return rows_.vector[rows_.order[i]]; });
        for (const int column : {grad, hess, hvp}) fill(column, [](std::uint32_t) { return 0.0; });
        double* thresholds = scratch.take<double>(n);
        for (int t = 0; t < n_terms_; ++t) {
            for (std::int64_t i = 0; i < n; ++i)
                thresholds[i] = threshold(s[i], question_.terms[t].shift, ties_half_ && t == 1);
            std::uint32_t *above = to.above + t * rows_.n + begin, *below = to.below + t * rows_.n + begin;
            std::uint32_t k = 0;
            for (std::int64_t i = 0; i < n; ++i) {
                while (k < n && s[k] < thresholds[i]) ++k;
                above[i] = k;
            }
            k = 0;
            for (std::int64_t i = 0; derivatives_ && i < n; ++i) {
                while (k < n && thresholds[k] <= s[i]) ++k;
                below[i] = k;
            }
        }
    }

    double evaluate(std::int64_t begin, std::int64_t end, int buffer, const Workspace& work) {
        if (end - begin <= few) return visit_pairs(begin, end, buffer);
        if (is_one_rank(begin, end)) return write(begin, end, buffer), 0.0;
        const std::int64_t middle = boundary(begin, end);
        const double value = divide(begin, middle, end, buffer, work);
        return value + (evaluate(begin, middle, !buffer, work) + evaluate(middle, end, !buffer, work));
    }

    void write(std::int64_t begin, std::int64_t end, int buffer) const {
        const Columns& rows = buffers_[buffer];
        for (int k = 0; k < 3; ++k)
            for (std::int64_t i = begin; has(k) && i < end; ++i) sums_[k][rows.position[i]] = rows.real[grad + k][i];
    }

    // Moves the rows of a node to the other buffer, lower ranks first, adds the derivatives of the pairs of a lower and an
    // upper row, and returns the value of those pairs.
    double divide(std::int64_t begin, std::int64_t middle, std::int64_t end, int buffer, const Workspace& work) {
        const Columns &from = buffers_[buffer], &to = buffers_[!buffer];
        const std::int64_t n = end - begin, n_low = middle - begin, n_high = end - middle;
        const std::uint32_t *position = from.position + begin, first_upper = static_cast<std::uint32_t>(middle);
        std::uint32_t *before = work.before, *target = work.target, upper = 0;  // `before`: the upper rows before each row
        for (std::int64_t i = 0; i < n; ++i) {
            before[i] = upper;
            upper += position[i] >= first_upper;
        }
        before[n] = upper;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) {
            const std::uint32_t low = static_cast<std::uint32_t>(i) - before[i],
                                high = static_cast<std::uint32_t>(n_low) + before[i];
            target[i] = position[i] >= first_upper ? high : low;
        }
        move(position, to.position + begin, target, n);
        for (int c = 0; c < n_columns; ++c)
            if (from.real[c]) move(from.real[c] + begin, to.real[c] + begin, target, n);
        Compensated value;
        for (int t = 0; t < n_terms(); ++t) {
            const std::int64_t first = t * rows_.n + begin;
            const std::uint32_t *above = from.above + first, *below = from.below + first;
            std::uint32_t *new_above = to.above + first, *new_below = to.below + first, *counts = work.counts + t * n;
            std::uint64_t total = 0;
            for (std::int64_t i = 0; i < n; ++i) {
                const std::uint32_t all = above[i], a = before[all], place = target[i];
                const std::uint32_t is_upper = -static_cast<std::uint32_t>(position[i] >= first_upper);  // 0 or all bits
                new_above[place] = select(is_upper, a, all - a);
                if (asked == Asked::counts) {
                    total += a & ~is_upper;
                } else if (has_derivatives()) {
                    const std::uint32_t none = below[i], b = before[none];
                    new_below[place] = select(is_upper, b, none - b);
                    counts[place] = select(is_upper, none - b, a);
                } else {
                    counts[place] = a;
                }
            }
            if (asked == Asked::counts) value += question_.terms[t].b0 * static_cast<double>(total);
        }
        if (asked == Asked::counts) return value;
        Moments *of_upper = work.moments, *of_lower = work.moments + n_high + 1;
        double *v_upper = work.vectors, *v_lower = work.vectors + n_high + 1;
        sum_upwards(to, middle, end, of_upper, v_upper);
        value += add_to_lower(to, begin, middle, work.counts, n, of_upper, v_upper);
        if (has_derivatives()) {
            sum_downwards(to, begin, middle, of_lower, v_lower);
            add_to_upper(to, middle, end, work.counts + n_low, n, of_lower, v_lower);
        }
        return value;
    }

    static std::uint32_t select(std::uint32_t mask, std::uint32_t a, std::uint32_t b) { return b ^ ((a ^ b) & mask); }

    template <class T>
    static void move(const T* __restrict from, T* __restrict to, const std::uint32_t* __restrict target, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) to[target[i]] = from[i];
    }

    // Without weights, masses are exact; several terms may cancel.
    using Mass = std::conditional_t<asked == Asked::one_term, double, Compensated>;
    using Running = Mass;

    // Sums over the first k of the rows begin .. end - 1, as winners, relative to the last of them.
    void sum_upwards(const Columns& rows, std::int64_t begin, std::int64_t end, Moments* moments, double* vectors) const {
        const double *s = rows.real[score] + begin, *w = rows.real[winner] ? rows.real[winner] + begin : nullptr;
        Running mass{}, first{}, second{}, along{};
        double at = s[0];
        moments[0] = {0, 0, 0, at};
        if (has(2)) vectors[0] = 0;
        for (std::int64_t i = 0; i < end - begin; ++i) {
            const double gap = s[i] - at,
                         before = asked == Asked::one_term ? static_cast<double>(i) : static_cast<double>(mass);
            const double turn = before * gap, weight = asked == Asked::any && w ? w[i] : 1;
            at = s[i];
            second += gap * (2 * first + turn);
            first += turn;
            mass += weight;
            moments[i + 1] = {mass, first, second, at};
            if (has(2)) vectors[i + 1] = along += weight * rows.real[vector][begin + i];
        }
    }

    // Sums over the rows begin .. end - 1, as losers, from the k-th on, relative to that.
    void sum_downwards(const Columns& rows, std::int64_t begin, std::int64_t end, Moments* moments, double* vectors) const {
        const double *s = rows.real[score] + begin, *w = rows.real[loser] ? rows.real[loser] + begin : nullptr;
        Running mass{}, first{}, along{};
        const std::int64_t n = end - begin;
        double at = s[n - 1];
        moments[n] = {0, 0, 0, at};
        if (has(2)) vectors[n] = 0;
        for (std::int64_t i = n - 1; i >= 0; --i) {
            const double weight = asked == Asked::any && w ? w[i] : 1;
            first += mass * (at - s[i]);
            at = s[i];
            mass += weight;
            moments[i] = {mass, first, 0, at};
            if (has(2)) vectors[i] = along += weight * rows.real[vector][begin + i];
        }
    }

    double add_to_lower(const Columns& rows, std::int64_t begin, std::int64_t end, const std::uint32_t* counts,
                        std::int64_t stride, const Moments* moments, const double* vectors) const {
        Running total{};
        for (std::int64_t i = begin; i < end; ++i) {
            const double s = rows.real[score][i], w = asked == Asked::any && rows.real[loser] ? rows.real[loser][i] : 1;
            double value = 0, slope = 0, bend = 0, across = 0;
            for (int t = 0; t < n_terms(); ++t) {
                const Term& term = question_.terms[t];
                const std::uint32_t k = counts[t * stride + (i - begin)];
                const auto [mass, first, second, at] = moments[k];
                const double d = distance(s, term.shift, at), moment = first + mass * d;
                value += term.b0 * mass + term.b1 * moment + term.b2 * (second + d * (first + moment));
                slope += term.b1 * mass + 2 * term.b2 * moment;
                bend += 2 * term.b2 * mass;
                if (has(2)) across += 2 * term.b2 * (mass * rows.real[vector][i] - vectors[k]);
            }
            total += w * value;
            if (has(0)) rows.real[grad][i] += w * slope;
            if (has(1)) rows.real[hess][i] += w * bend;
            if (has(2)) rows.real[hvp][i] += w * across;
        }
        return total;
    }

    void add_to_upper(const Columns& rows, std::int64_t begin, std::int64_t end, const std::uint32_t* counts,
                      std::int64_t stride, const Moments* moments, const double* vectors) const {
        for (std::int64_t i = begin; i < end; ++i) {
            const double s = rows.real[score][i], w = asked == Asked::any && rows.real[winner] ? rows.real[winner][i] : 1;
            double slope = 0, bend = 0, across = 0;
            for (int t = 0; t < n_terms(); ++t) {
                const Term& term = question_.terms[t];
                const std::uint32_t k = counts[t * stride + (i - begin)];
                const auto [mass, first, second, at] = moments[k];
                slope += term.b1 * mass + 2 * term.b2 * (first + mass * distance(at, term.shift, s));
                bend += 2 * term.b2 * mass;
                if (has(2)) across += 2 * term.b2 * (mass * rows.real[vector][i] - vectors[k]);
            }
            if (has(0)) rows.real[grad][i] -= w * slope;
            if (has(1)) rows.real[hess][i] += w * bend;
            if (has(2)) rows.real[hvp][i] += w * across;
        }
    }

    int n_terms() const { return asked == Asked::one_term ? 1 : n_terms_; }
    bool has_derivatives() const { return asked == Asked::one_term || (asked == Asked::any && derivatives_); }
    // Whether gradient (0), diagonal Hessian (1) or Hessian times vector (2) is wanted.
    bool has(int order) const { return asked == Asked::any ? sums_[order] != nullptr : asked == Asked::one_term && order == 0; }

    // s_neg + shift - s_pos, without the rounding error of the first sum.
    static double distance(double s_neg, double shift, double s_pos) {
        const double sum = s_neg + shift, part = sum - s_neg, lost = (s_neg - (sum - part)) + (shift - part);
        return (sum - s_pos) + lost;
    }

    // All pairs of a node of at most `few` rows, with the rows in the order of ranks.
    double visit_pairs(std::int64_t begin, std::int64_t end, int buffer) {
        typedef double Vec __attribute__((vector_size(8 * lanes), may_alias));
        const Columns& from = buffers_[buffer];
        const std::uint32_t* position = from.position + begin;
        const int n = static_cast<int>(end - begin);
        Numbers place{}, above{}, rank{}, s{}, w_winner{}, w_loser{}, v{}, high{}, low{}, value{}, as_loser[3]{},
            as_winner[3]{};
        const auto fill = [&](double* to, auto&& number) {
            for (int i = 0; i < n; ++i) to[position[i] - begin] = number(begin + i);
        };
        const auto fill_column = [&](double* to, int column, double missing) {
            const double* source = from.real[column];
            fill(to, [&](std::int64_t i) { return source ? source[i] : missing; });
        };
        if (asked != Asked::counts) fill_column(s, score, 0);
        fill_column(w_winner, winner, 1), fill_column(w_loser, loser, 1);
        if (has(2)) fill_column(v, vector, 0);
        fill(place, [&](std::int64_t i) { return static_cast<double>(i - begin); });
        for (int i = 0; i < n; ++i) rank[i] = static_cast<double>(rows_.ranks[begin + i]);
        std::fill(rank + n, rank + few, -1.0);
        const auto at = [](double* array, int i) -> Vec& { return *reinterpret_cast<Vec*>(array + i); };
        for (int t = 0; t < n_terms(); ++t) {
            const Term& term = question_.terms[t];
            const double b0 = term.b0, b1 = term.b1, b2 = term.b2, b22 = 2 * b2;
            fill(above, [&](std::int64_t i) { return static_cast<double>(from.above[t * rows_.n + i]); });
            for (int i = 0; i < n; i += lanes) {
                const Vec x = at(s, i), sum = x + term.shift, part = sum - x;
                at(high, i) = sum;
                at(low, i) = (x - (sum - part)) + (term.shift - part);
            }
            for (int i = 1; i < n; ++i)  // row i wins, row j loses
                for (int j = 0; j < i; j += lanes) {
                    const Vec w = (at(above, j) > place[i]) & (at(rank, j) < rank[i]) ? Vec{} + w_winner[i] : Vec{};
                    if (asked == Asked::counts) {
                        at(value, j) += w * b0;
                        continue;
                    }
                    const Vec d = (at(high, j) - s[i]) + at(low, j);
                    at(value, j) += w * (b0 + d * (b1 + b2 * d));
                    if (has(0)) at(as_loser[0], j) += w * (b1 + b22 * d);
                    if (has(1)) at(as_loser[1], j) += w * b22;
                    if (has(2)) at(as_loser[2], j) += w * b22 * (at(v, j) - v[i]);
                }
            for (int j = 0; has_derivatives() && j + 1 < n; ++j)
                for (int i = (j + 1) / lanes * lanes; i < n; i += lanes) {
                    const Vec w = (at(place, i) < above[j]) & (at(rank, i) > rank[j]) ? Vec{} + w_loser[j] : Vec{};
                    if (has(0)) at(as_winner[0], i) += w * (b1 + b22 * ((high[j] - at(s, i)) + low[j]));
                    if (has(1)) at(as_winner[1], i) += w * b22;
                    if (has(2)) at(as_winner[2], i) += w * b22 * (at(v, i) - v[j]);
                }
        }
        double total = 0;
        for (int i = 0; i < n; ++i) total += w_loser[i] * value[i];
        for (int k = 0; k < 3; ++k) {
            if (!has(k)) continue;
            double* sums = sums_[k] + begin;
            for (int i = 0; i < n; ++i)
                sums[i] = w_loser[i] * as_loser[k][i] + (k == 0 ? -w_winner[i] : w_winner[i]) * as_winner[k][i];
            for (int i = 0; i < n; ++i) sums[position[i] - begin] += from.real[grad + k][begin + i];
        }
        return total;
    }

    const Ranked& rows_;
    const Question& question_;
    double* const sums_[3];
    const int n_terms_;
    const bool ties_half_;
    const double sign_;
    bool derivatives_;
    Scratch keep_;
    Columns buffers_[2];
};

// Adds the terms without a knot, which count for all pairs, to `sums`, and returns their value. The sums over the rows of lower
// rank, and over those of higher rank, are running moments about the mean score of the group.
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
            for (std::int64_t first = start, last; first != stop; first = last) {
                for (last = first; last != stop && rows.ranks[last] == rows.ranks[first]; last -= sign) {
                    const double w = weight(own, last), at = shift + sign * (score(last) - centre), along = at * m0 - sign * m1;
                    if (sign < 0) value += w * (b0 * m0 + b1 * along + b2 * (at * (along - sign * m1) + m2));
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
        Compensated below, loses, wins;  // `loses` and `wins`: the rows of one rank
        for (std::int64_t i = rows.offsets[g]; i < rows.offsets[g + 1]; ++i) {
            if (i > rows.offsets[g] && rows.ranks[i] != rows.ranks[i - 1]) {
                total += wins * below;
                below += loses;
                wins = loses = {};
            }
            wins += rows.winner ? rows.winner[i] : 1;
            loses += rows.loser ? rows.loser[i] : 1;
        }
        total += wins * below;
    }
    return total;
}

// The largest difference of two scores of a group.
template <class S>
double ordered_range(const Ranked& rows) {
    double widest = 0;
    for (std::int64_t g = 0; g < rows.n_groups; ++g) {
        double low = std::numeric_limits<double>::infinity(), high = -low;
        for (std::int64_t i = rows.offsets[g]; i < rows.offsets[g + 1]; ++i) {
            const double s = static_cast<const S*>(rows.scores)[rows.order[i]];
            low = std::min(low, s);
            high = std::max(high, s);
        }
        widest = std::max(widest, high - low);
    }
    return widest;
}

}  // namespace everypair::EVERYPAIR_ISA
