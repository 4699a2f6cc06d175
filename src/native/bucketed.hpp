// Plan for one truncated term b2 d^2 over few float32 scores: sort the rows into buckets, and evaluate the
// pairs inside a bucket one by one.
//
// The axis and the tallies are those of the certified plan, with so few buckets that each has several rows.
// Rows of other buckets contribute a quadratic function of the fraction f, computed from gap to gap. For the
// pairs inside a bucket, a vector of rows of one class meets each row of the other class. If too many pairs
// share a bucket, the rows are sorted again, into buckets that are narrower where a sample of the rows is
// dense. Of these, some are so narrow that their own pairs do not matter.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "axis.hpp"
#include "group_rows.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// The sum of max(d, 0) over the rows `others`, where d is the distance of the fractions; adds the squares to
// `squares`. Short sums first, so that no sum has the rounding errors of many additions.
template <bool is_below, bool has_squares>
Floats sum_of_distances(const Floats& f, const float* others, const float* end, Floats& squares) {
    constexpr int some = 32;
    Floats total{};
    while (others < end) {
        Floats sum{}, sum_of_squares{};
        for (const float* stop = end - others < some ? end : others + some; others < stop; ++others) {
            const Floats d = is_below ? f - *others : *others - f, part = d > 0.0f ? d : Floats{};
            sum += part;
            if (has_squares) sum_of_squares += part * part;
        }
        total += sum;
        if (has_squares) squares += sum_of_squares;
    }
    return total;
}

// A map from the places of an axis to buckets that are narrower where rows are dense. It is linear between
// knots, the quantiles of a sample, with about the same number of buckets between them. No bucket is wider
// than a cell of the axis, on which the errors of rows depend.
class Warp {
  public:
    static constexpr std::int64_t fewest_rows = 300;

    // Makes about `wanted` buckets, besides those that keep buckets from being wider than cells.
    Warp(const Axis& axis, const GroupRows<float>& rows, int wanted)
        : parts(rows.n < 1 << 12 ? 16 : most_parts) {
        double sample[4 * most_parts];
        const auto place = placing(axis);
        for (int k = 0; k < sampled; ++k) {
            const std::int64_t row = k * rows.n / sampled;
            sample[k] = place(rows.scores[row], rows.classes[row]);
        }
        std::sort(sample, sample + sampled);
        for (int c = 0; c < parts; ++c) {
            const double end = c + 1 < parts ? sample[(c + 1) * sampled / parts] : axis.cells + 2,
                         length = end - start_[c];
            const bool is_empty = length < 0x1p-30;  // ties, or nearly
            const double count = std::ceil(std::max(length, static_cast<double>(wanted) / parts));
            rate_[c] = is_empty ? 0 : count / length;
            first_[c + 1] = first_[c] + (is_empty ? 0 : count);
            start_[c + 1] = is_empty ? start_[c] : end;
        }
    }

    int buckets() const { return static_cast<int>(first_[parts]); }

    // As `locate` of an axis.
    void locate(const Axis& axis, const float* scores, const std::uint8_t* classes, int count,
                std::int32_t* slots, std::int32_t* fractions) const {
        double places[block_rows];
        std::int64_t part[block_rows];
        const auto place = placing(axis);
#pragma omp simd
        for (int i = 0; i < count; ++i) places[i] = place(scores[i], classes[i]);
        std::fill(places + count, places + (count + lanes - 1) / lanes * lanes, 0.0);
        for (int i = 0; i < count; i += lanes) {
            const Vec at = load(places + i);
            auto minus_part = at >= start_[1];  // a true comparison is -1
            for (int c = 2; c < parts; ++c) minus_part += at >= start_[c];
            std::memcpy(part + i, &minus_part, sizeof minus_part);
        }
#pragma omp simd
        for (int i = 0; i < count; ++i) {
            const std::int64_t c = -part[i];
            divide(first_[c] + (places[i] - start_[c]) * rate_[c], classes[i], slots[i], fractions[i]);
        }
    }

    // Fills the widths of the buckets, in cells.
    void measure(double* widths) const {
        for (int c = 0; c < parts; ++c)
            std::fill(widths + static_cast<int>(first_[c]), widths + static_cast<int>(first_[c + 1]),
                      1 / rate_[c]);
    }

  private:
    static constexpr int most_parts = 32;
    const int parts, sampled = 4 * parts;
    // By part: its left end, its first bucket, and buckets per place.
    double start_[most_parts + 1] = {}, first_[most_parts + 1] = {}, rate_[most_parts];
};

// Evaluates a batch like `certified_term`. Returns false if too many pairs share a bucket.
template <bool is_warped>
bool sort_into_buckets(const GroupRows<float>& rows, double shift, double factor, double& value) {
    constexpr int rows_of_bucket = lanes > 2 ? 28 : 20, fewest = 8;  // more for wider vectors
    constexpr std::int64_t most_pairs = 32;                          // inside a bucket, for each row
    Scratch scratch;
    const std::int64_t n = rows.n;
    const int wanted = static_cast<int>(n / rows_of_bucket) + fewest;
    const Axis axis = axis_over(rows.survey, shift, wanted);
    std::optional<Warp> warp;
    if (is_warped) warp.emplace(axis, rows, wanted);
    const int n_buckets = is_warped ? warp->buckets() : axis.cells + 2;
    double* widths = scratch.take<double>(is_warped ? n_buckets : 0);
    if (is_warped) warp->measure(widths);
    const auto width_of = [=](int b) { return is_warped ? widths[b] : 1; };
    Tally* tallies = scratch.take<Tally>(2 * n_buckets);
    std::fill_n(tallies, 2 * n_buckets, Tally{});
    std::int32_t *slots = scratch.take<std::int32_t>(n), *ranks = scratch.take<std::int32_t>(n),
                 *fractions = scratch.take<std::int32_t>(n);
    for (std::int64_t i = 0; i < n; i += block_rows) {
        const int count = static_cast<int>(std::min<std::int64_t>(block_rows, n - i));
        if (is_warped)
            warp->locate(axis, rows.scores + i, rows.classes + i, count, slots + i, fractions + i);
        else
            locate(axis, rows.scores + i, rows.classes + i, count, slots + i, fractions + i);
        for (std::int64_t k = i; k < i + count; ++k) {
            ranks[k] = static_cast<std::int32_t>(tallies[slots[k]].count());
            tallies[slots[k]].add(fractions[k]);
        }
    }

    // Sorted by slot: in each bucket first the negatives, then the positives.
    std::int32_t* begins = scratch.take<std::int32_t>(2 * n_buckets + 1);
    begins[0] = 0;
    for (int slot = 0; slot < 2 * n_buckets; ++slot)
        begins[slot + 1] = begins[slot] + static_cast<std::int32_t>(tallies[slot].count());
    // The number of negatives in the buckets above, and the sum of their distances from the upper edge.
    struct Above {
        double count, moment;
    };
    Above* above = scratch.take<Above>(n_buckets);
    double count_above = 0, moment_above = 0, largest[2] = {};  // the largest moments of a class, or less
    for (int b = n_buckets - 1; b >= 0; --b) {
        above[b] = {count_above, moment_above};
        if (tallies[2 * b + 1].count()) largest[1] = moment_above;
        moment_above += width_of(b) * (count_above + tallies[2 * b].fractions());
        count_above += tallies[2 * b].rows();
    }
    double count_below = 0, moment_below = 0;
    for (int b = 0; is_warped && b < n_buckets; ++b) {
        const Tally &neg = tallies[2 * b], &pos = tallies[2 * b + 1];
        if (neg.count()) largest[0] = moment_below;
        moment_below += width_of(b) * (count_below + (pos.rows() - pos.fractions()));
        count_below += pos.rows();
    }
    // Whether the pairs inside a bucket may be left out: they change no gradient by more than this share of
    // the largest of its class, and the loss by the square of that.
    const auto is_narrow = [&](int b) {
        constexpr double allowed = 0x1p-23;
        return is_warped && width_of(b) * tallies[2 * b + 1].rows() <= allowed * largest[0] &&
               width_of(b) * tallies[2 * b].rows() <= allowed * largest[1];
    };
    std::int64_t pairs = 0, longest = 0;
    for (int b = 0; b < n_buckets; ++b) {
        const std::int64_t n_neg = begins[2 * b + 1] - begins[2 * b],
                           n_pos = begins[2 * b + 2] - begins[2 * b + 1];
        if (n_neg * n_pos == 0 || is_narrow(b)) continue;
        pairs += n_neg * n_pos;
        longest = std::max({longest, n_neg, n_pos});
    }
    // The error of a fraction is 2^-25, and that of a row at most 2^-24 for each row of the other class in
    // its bucket. The largest gradient of a class is at least that of a pair as far apart as the axis is
    // long.
    const double unit = factor * axis.width();
    if (pairs > most_pairs * n || longest > 8 * axis.cells || !(std::abs(unit) > 0x1p-100)) return false;
    float* sorted = scratch.take<float>(n + float_lanes);
    std::fill(sorted + n, sorted + n + float_lanes, 0.0f);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) ranks[i] += begins[slots[i]];
    for (std::int64_t i = 0; i < n; ++i) sorted[ranks[i]] = static_cast<float>(fractions[i]) * 0x1p-24f;

    float* results = scratch.take<float>(n + float_lanes);
    const float scale = static_cast<float>(unit);
    Floats lane;
    for (int k = 0; k < float_lanes; ++k) lane[k] = static_cast<float>(k);
    // Of the positives below: their number, and the sums of their distances and of the squares of these. The
    // squares inside one bucket are summed by lane.
    double count = 0, first = 0, second = 0, total = 0;
    Doubles second_lanes{}, total_lanes{};
    for (int b = 0; b < n_buckets; ++b) {
        const std::int32_t begin = begins[2 * b], middle = begins[2 * b + 1], end = begins[2 * b + 2];
        // Calls use(fractions) for each vector of rows, and writes its results. The last vector reaches into
        // the next rows, whose results are written later.
        const auto each_vector = [&](std::int32_t from, std::int32_t to, auto&& use) {
            for (; from < to; from += float_lanes) {
                const Floats result = use(load(sorted + from), lane < static_cast<float>(to - from));
                std::memcpy(results + from, &result, sizeof result);
            }
        };
        const double width = width_of(b);
        const std::int32_t met = is_narrow(b) ? 0 : 1;  // whether pairs inside the bucket are evaluated
        const float r = static_cast<float>(width), a = r * static_cast<float>(count),
                    m = static_cast<float>(first);
        Floats squares{};
        each_vector(begin, middle, [&](const Floats& f, const auto& used) {
            Floats inside{};
            const Floats sum = sum_of_distances<true, true>(f, sorted + middle,
                                                            sorted + middle + met * (end - middle), inside);
            const Floats all = r * (f * (2 * m + a * f) + r * inside);
            squares += used ? all : Floats{};
            return scale * (m + a * f + r * sum);
        });
        total_lanes +=
            __builtin_convertvector(squares, Doubles) + static_cast<double>(middle - begin) * second_lanes;
        total += static_cast<double>(middle - begin) * second;
        const float a_above = r * static_cast<float>(above[b].count),
                    m_above = static_cast<float>(above[b].moment);
        squares = Floats{};
        each_vector(middle, end, [&](const Floats& f, const auto& used) {
            Floats none;
            const Floats rest = 1.0f - f,
                         sum = sum_of_distances<false, false>(f, sorted + begin,
                                                              sorted + begin + met * (middle - begin), none);
            squares += used ? (r * rest) * (r * rest) : Floats{};
            return -scale * (m_above + a_above * rest + r * sum);
        });
        second_lanes += __builtin_convertvector(squares, Doubles);
        second += width * (2 * first + width * count);
        first += width * (count + (static_cast<double>(end - middle) - tallies[2 * b + 1].fractions()));
        count += static_cast<double>(end - middle);
    }
    for (int k = 0; k < float_lanes; ++k) total += total_lanes[k];
    value = factor / 2 * axis.width() * axis.width() * total;
    const std::int64_t written = rows.grad ? n : 0;
#pragma omp simd
    for (std::int64_t i = 0; i < written; ++i) rows.grad[i] = results[ranks[i]] + 0.0f;  // -0.0 becomes 0.0
    return true;
}

inline bool bucketed_term(const GroupRows<float>& rows, double shift, double factor, double& value) {
    return sort_into_buckets<false>(rows, shift, factor, value) ||
           (rows.n >= Warp::fewest_rows && sort_into_buckets<true>(rows, shift, factor, value));
}

}  // namespace everypair::EVERYPAIR_ISA
