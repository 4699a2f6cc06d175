// Sums over all pairs in long double, by definition and after a sort. They share no code with the kernel.
#pragma once

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "../../src/native/types.hpp"

namespace everypair::test {

static_assert(LDBL_MANT_DIG >= 64,
              "the tests of the kernel need a long double with more digits than a double");
using Real = long double;
constexpr double inf = std::numeric_limits<double>::infinity();

using Derivatives = std::array<Real, 3>;  // value, slope and curvature

// A surrogate twice: as the terms that the kernel reads, and as one polynomial for each interval of d = s_neg
// + shift - s_pos. The interval is where s_neg + from > s_pos and s_neg + to <= s_pos; the polynomial is c0 +
// c1 d + c2 d^2.
struct Piece {
    double from, to, shift;
    Real c0, c1, c2;

    Derivatives at(Real d) const { return {c0 + d * (c1 + d * c2), c1 + 2 * c2 * d, 2 * c2}; }
};
struct Surrogate {
    const char* name;
    std::vector<Term> terms;
    std::vector<Piece> pieces;
    // A smooth or an exponential surrogate instead: the form that the kernel reads, and the function of d at
    // its shift.
    const Smooth* smooth = nullptr;
    const Exponential* exponential = nullptr;
    std::function<Derivatives(Real)> function = nullptr;
    // If pairs may cancel, so that errors are relative to sums of absolute values: what is added to the size
    // of each pair, and the share of the parts of a value that is added to it.
    bool cancels = false;
    Derivatives floor{};
    Real share = 0;

    double shift() const { return smooth ? smooth->shift : exponential->shift; }
};

// One batch as numbers that the type of the scores represents exactly. `weights` and `offsets` may be empty.
struct Rows {
    std::vector<double> scores, weights, vector;
    std::vector<std::uint8_t> positive;
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> ranks;  // of ordered pairs; else empty
    std::vector<std::uint8_t>
        events;  // of survival times, by whose ranks the earlier time wins if it is an event; else empty

    std::int64_t n() const { return static_cast<std::int64_t>(scores.size()); }
    // Whether row i is to score higher than row j of the same group.
    bool wins(std::int64_t i, std::int64_t j) const {
        if (!events.empty() && !events[i]) return false;
        return ranks.empty() ? positive[i] > positive[j] : ranks[i] > ranks[j];
    }
    double weight(std::int64_t i) const { return weights.empty() ? 1.0 : weights[i]; }
    std::vector<std::int64_t> bounds() const {
        return offsets.empty() ? std::vector<std::int64_t>{0, n()} : offsets;
    }
};

struct Sums {
    explicit Sums(std::int64_t n)
        : grad(n), hess(n), hvp(n), slopes(n), bends(n), slope_sizes(n), bend_sizes(n) {}

    void scale(Real factor) {
        value *= factor, size *= factor;
        for (auto* array : {&grad, &hess, &hvp, &slopes, &bends, &slope_sizes, &bend_sizes})
            for (Real& x : *array) x *= factor;
    }

    Real value = 0, concordant = 0, pair_weight = 0;
    std::vector<Real> grad, hess, hvp;
    std::vector<Real> slopes, bends;  // sums of the sizes of all terms, which may cancel in grad and hess
    // Sums of the sizes of all pairs, if the surrogate says that they may cancel; else 0.
    Real size = 0;
    std::vector<Real> slope_sizes, bend_sizes;
    // Numbers of pairs, if the pairs were visited one by one.
    std::int64_t active = 0, inactive = 0, on_knot = 0, tied = 0;
};

// The part of a + b that rounding took off (Knuth).
inline double rounded_off(double a, double b) {
    const double sum = a + b, part = sum - a;
    return (a - (sum - part)) + (b - part);
}

// s_neg + shift - s_pos.
inline Real distance(double s_neg, double shift, double s_pos) {
    return (static_cast<Real>(s_neg + shift) - s_pos) + rounded_off(s_neg, shift);
}

// Whether a pair lies beyond the knot at this shift: s_neg + shift > s_pos for the real numbers. No double
// lies between the exact and the rounded sum, so what was rounded off matters only if the rounded sum equals
// s_pos.
inline bool counts(double s_neg, double shift, double s_pos) {
    const double sum = s_neg + shift;
    return sum > s_pos || (sum == s_pos && rounded_off(s_neg, shift) > 0);
}

// Visits every pair.
inline Sums double_sum(const Rows& rows, const Surrogate& surrogate) {
    Sums sums(rows.n());
    const std::vector<std::int64_t> bounds = rows.bounds();
    for (std::size_t g = 0; g + 1 < bounds.size(); ++g)
        for (std::int64_t i = bounds[g]; i < bounds[g + 1]; ++i)
            for (std::int64_t j = bounds[g]; j < bounds[g + 1]; ++j) {
                if (!rows.wins(i, j)) continue;
                const double s_pos = rows.scores[i], s_neg = rows.scores[j];
                const Real w = static_cast<Real>(rows.weight(i)) * rows.weight(j);
                sums.pair_weight += w;
                sums.concordant += s_pos > s_neg ? w : s_pos == s_neg ? w / 2 : 0;
                sums.tied += s_pos == s_neg;
                if (w == 0) continue;
                for (const Term& term : surrogate.terms) {
                    if (term.truncated && !counts(s_neg, term.shift, s_pos)) continue;
                    const Real d = distance(s_neg, term.shift, s_pos),
                               slope = w * std::abs(term.b1 + 2 * term.b2 * d);
                    const Real bend = w * 2 * std::abs(term.b2);
                    sums.slopes[i] += slope, sums.slopes[j] += slope;
                    sums.bends[i] += bend, sums.bends[j] += bend;
                    sums.size +=
                        w * surrogate.share *
                        (std::abs(term.b0) + std::abs(d) * std::abs(term.b1) + d * d * std::abs(term.b2));
                }
                Derivatives pair{};
                if (surrogate.function) pair = surrogate.function(distance(s_neg, surrogate.shift(), s_pos));
                for (const Piece& piece : surrogate.pieces) {
                    const bool inside = counts(s_neg, piece.from, s_pos) && !counts(s_neg, piece.to, s_pos);
                    (inside ? sums.active : sums.inactive) += 1;
                    const Real d = distance(s_neg, piece.shift, s_pos);
                    sums.on_knot += d == 0;
                    if (inside) pair = piece.at(d);
                }
                const Real slope = w * pair[1], bend = w * pair[2];
                sums.value += w * pair[0];
                sums.grad[i] -= slope, sums.grad[j] += slope;
                sums.hess[i] += bend, sums.hess[j] += bend;
                if (!rows.vector.empty()) {
                    const Real across = bend * (static_cast<Real>(rows.vector[i]) - rows.vector[j]);
                    sums.hvp[i] += across, sums.hvp[j] -= across;
                }
                if (!surrogate.cancels) continue;
                const auto size = [&](int order) {
                    return w * (std::abs(pair[order]) + surrogate.floor[order]);
                };
                sums.size += size(0);
                for (const std::int64_t row : {i, j})
                    sums.slope_sizes[row] += size(1), sums.bend_sizes[row] += size(2);
            }
    return sums;
}

// The rows of one class of one group in ascending order, with running sums of w, w x, w x^2 and w v, where x
// = s - origin.
class Side {
  public:
    Side(const Rows& rows, std::int64_t begin, std::int64_t end, bool positive, double origin) {
        for (std::int64_t i = begin; i < end; ++i)
            if (rows.positive[i] == positive) order.push_back(i);
        std::sort(order.begin(), order.end(),
                  [&](auto i, auto j) { return rows.scores[i] < rows.scores[j]; });
        sums_.push_back({});
        for (const std::int64_t i : order) {
            const Real w = rows.weight(i), x = static_cast<Real>(rows.scores[i]) - origin;
            const Real v = rows.vector.empty() ? 0 : rows.vector[i];
            Total next = sums_.back();
            next.w += w, next.wx += w * x, next.wxx += w * x * x, next.wv += w * v;
            sums_.push_back(next);
            scores.push_back(rows.scores[i]);
        }
    }

    struct Total {
        Real w = 0, wx = 0, wxx = 0, wv = 0;
    };
    Total between(std::int64_t from, std::int64_t to) const {
        if (from >= to) return {};
        const Total &a = sums_[from], &b = sums_[to];
        return {b.w - a.w, b.wx - a.wx, b.wxx - a.wxx, b.wv - a.wv};
    }
    Total all() const { return sums_.back(); }

    // The number of rows at the start of the order for which `holds` is true.
    template <class Predicate>
    std::int64_t rank(Predicate&& holds) const {
        return std::partition_point(scores.begin(), scores.end(), holds) - scores.begin();
    }

    std::vector<std::int64_t> order;
    std::vector<double> scores;

  private:
    std::vector<Total> sums_;
};

// Sorts both classes; the rows of the other class within an interval of d are then consecutive.
inline Sums sorted_sum(const Rows& rows, const Surrogate& surrogate) {
    Sums sums(rows.n());
    const std::vector<std::int64_t> bounds = rows.bounds();
    for (std::size_t g = 0; g + 1 < bounds.size(); ++g) {
        // Relative to the median, because outliers would cost digits of the other rows.
        std::vector<double> scores(rows.scores.begin() + bounds[g], rows.scores.begin() + bounds[g + 1]);
        const auto middle = scores.begin() + static_cast<std::int64_t>(scores.size()) / 2;
        std::nth_element(scores.begin(), middle, scores.end());
        const double origin = *middle;
        const Side pos(rows, bounds[g], bounds[g + 1], true, origin),
            neg(rows, bounds[g], bounds[g + 1], false, origin);
        sums.pair_weight += pos.all().w * neg.all().w;
        for (const bool positive : {false, true}) {
            const Side &mine = positive ? pos : neg, &others = positive ? neg : pos;
            const Real sign = positive ? -1 : 1;
            for (std::size_t k = 0; k < mine.order.size(); ++k) {
                const std::int64_t i = mine.order[k];
                const double s = mine.scores[k];
                const Real w = rows.weight(i), v = rows.vector.empty() ? 0 : rows.vector[i];
                // Positives that count are at the start of their order, negatives at the end of theirs.
                const auto edge = [&](double shift) {
                    return others.rank([&](double other) {
                        return positive ? !counts(other, shift, s) : counts(s, shift, other);
                    });
                };
                const auto within = [&](double from, double to) {
                    return positive ? others.between(edge(from), edge(to))
                                    : others.between(edge(to), edge(from));
                };
                // d = sign (at - x) for a row of the other class at x.
                const auto at = [&](double shift) { return (static_cast<Real>(s) - origin) + sign * shift; };
                for (const Term& term : surrogate.terms) {
                    const Side::Total met = within(term.truncated ? term.shift : inf, -inf);
                    sums.slopes[i] += w * std::abs(term.b1 * met.w +
                                                   2 * term.b2 * sign * (at(term.shift) * met.w - met.wx));
                    sums.bends[i] += w * 2 * std::abs(term.b2) * met.w;
                }
                for (const Piece& piece : surrogate.pieces) {
                    const Side::Total met = within(piece.from, piece.to);
                    if (met.w == 0) continue;
                    const Real a = at(piece.shift), first = sign * (a * met.w - met.wx);
                    const Real second = a * a * met.w - 2 * a * met.wx + met.wxx;
                    if (!positive)
                        sums.value += w * (piece.c0 * met.w + piece.c1 * first + piece.c2 * second);
                    sums.grad[i] += sign * w * (piece.c1 * met.w + 2 * piece.c2 * first);
                    sums.hess[i] += w * 2 * piece.c2 * met.w;
                    sums.hvp[i] += w * 2 * piece.c2 * (v * met.w - met.wv);
                }
                if (!positive) continue;
                const std::int64_t below = others.rank([&](double other) { return other < s; });
                const std::int64_t not_above = others.rank([&](double other) { return other <= s; });
                sums.concordant += w * (others.between(0, below).w + others.between(below, not_above).w / 2);
            }
        }
    }
    return sums;
}

}  // namespace everypair::test
