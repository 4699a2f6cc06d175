// Plan for one truncated term b2 d^2 over few float32 scores: sort the rows into buckets, and evaluate the pairs inside a
// bucket one by one.
//
// The axis and the tallies are those of the certified plan, with so few buckets that each has several rows. Rows of other
// buckets contribute a quadratic function of the fraction f, computed from gap to gap. For the pairs inside a bucket, a vector
// of rows of one class meets each row of the other class. Distances are in units of the width of a bucket.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "axis.hpp"
#include "group_rows.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// The sum of max(d, 0) over the rows `others`, where d is the distance of the fractions; adds the squares to `squares`. Short
// sums first, so that no sum has the rounding errors of many additions.
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

// Evaluates a batch like `certified_term`. Returns false if too many pairs share a bucket.
inline bool bucketed_term(const GroupRows<float>& rows, double shift, double factor, double& value) {
    constexpr int rows_of_bucket = lanes > 2 ? 28 : 20, fewest = 8;  // more for wider vectors
    constexpr std::int64_t most_pairs = 32;                          // inside a bucket, for each row
    Scratch scratch;
    const std::int64_t n = rows.n;
    const Axis axis = axis_over(rows.found, shift, static_cast<int>(n / rows_of_bucket) + fewest);
    const int n_cells = axis.cells + 2;
    Tally* tallies = scratch.take<Tally>(axis.slots());
    std::fill_n(tallies, axis.slots(), Tally{});
    std::int32_t *slots = scratch.take<std::int32_t>(n), *ranks = scratch.take<std::int32_t>(n),
                 *fractions = scratch.take<std::int32_t>(n);
    for (std::int64_t i = 0; i < n; i += block_rows) {
        const int count = static_cast<int>(std::min<std::int64_t>(block_rows, n - i));
        locate(axis, rows.scores + i, rows.classes + i, count, slots + i, fractions + i);
        for (std::int64_t k = i; k < i + count; ++k) {
            ranks[k] = static_cast<std::int32_t>(tallies[slots[k]].count());
            tallies[slots[k]].add(fractions[k]);
        }
    }

    // Sorted by slot: in each bucket first the negatives, then the positives.
    std::int32_t* begins = scratch.take<std::int32_t>(2 * n_cells + 1);
    begins[0] = 0;
    for (int slot = 0; slot < 2 * n_cells; ++slot)
        begins[slot + 1] = begins[slot] + static_cast<std::int32_t>(tallies[slot].count());
    // The number of negatives in the buckets above, and the sum of their distances from the upper edge.
    struct Above {
        double count, moment;
    };
    Above* above = scratch.take<Above>(n_cells);
    double count_above = 0, moment_above = 0;
    std::int64_t pairs = 0, longest = 0;
    for (int b = n_cells - 1; b >= 0; --b) {
        above[b] = {count_above, moment_above};
        const std::int64_t n_neg = begins[2 * b + 1] - begins[2 * b], n_pos = begins[2 * b + 2] - begins[2 * b + 1];
        pairs += n_neg * n_pos;
        if (n_neg * n_pos > 0) longest = std::max({longest, n_neg, n_pos});
        moment_above += count_above + tallies[2 * b].fractions();
        count_above += tallies[2 * b].rows();
    }
    // The error of a fraction is 2^-25, and that of a row at most 2^-24 for each row of the other class in its bucket. The
    // largest gradient of a class is at least that of a pair as far apart as the axis is long.
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
    // Of the positives below: their number, and the sums of their distances and of the squares of these. The squares inside
    // one bucket are summed by lane.
    double count = 0, first = 0, second = 0, total = 0;
    Doubles second_lanes{}, total_lanes{};
    for (int b = 0; b < n_cells; ++b) {
        const std::int32_t begin = begins[2 * b], middle = begins[2 * b + 1], end = begins[2 * b + 2];
        // Calls use(fractions) for each vector of rows, and writes its results. The last vector reaches into the next rows,
        // whose results are written later.
        const auto each_vector = [&](std::int32_t from, std::int32_t to, auto&& use) {
            for (; from < to; from += float_lanes) {
                const Floats result = use(load(sorted + from), lane < static_cast<float>(to - from));
                std::memcpy(results + from, &result, sizeof result);
            }
        };
        const float a = static_cast<float>(count), m = static_cast<float>(first);
        Floats squares{};
        each_vector(begin, middle, [&](const Floats& f, const auto& used) {
            Floats inside{};
            const Floats sum = sum_of_distances<true, true>(f, sorted + middle, sorted + end, inside);
            const Floats all = f * (2 * m + a * f) + inside;
            squares += used ? all : Floats{};
            return scale * (m + a * f + sum);
        });
        total_lanes += __builtin_convertvector(squares, Doubles) + static_cast<double>(middle - begin) * second_lanes;
        total += static_cast<double>(middle - begin) * second;
        const float a_above = static_cast<float>(above[b].count), m_above = static_cast<float>(above[b].moment);
        squares = Floats{};
        each_vector(middle, end, [&](const Floats& f, const auto& used) {
            Floats none;
            const Floats rest = 1.0f - f, sum = sum_of_distances<false, false>(f, sorted + begin, sorted + middle, none);
            squares += used ? rest * rest : Floats{};
            return -scale * (m_above + a_above * rest + sum);
        });
        second_lanes += __builtin_convertvector(squares, Doubles);
        second += 2 * first + count;
        first += count + (static_cast<double>(end - middle) - tallies[2 * b + 1].fractions());
        count += static_cast<double>(end - middle);
    }
    for (int k = 0; k < float_lanes; ++k) total += total_lanes[k];
    value = factor / 2 * axis.width() * axis.width() * total;
    const std::int64_t wanted = rows.grad ? n : 0;
#pragma omp simd
    for (std::int64_t i = 0; i < wanted; ++i) rows.grad[i] = results[ranks[i]] + 0.0f;  // -0.0 becomes 0.0
    return true;
}

}  // namespace everypair::EVERYPAIR_ISA
