// Plan for several truncated terms b2 d^2 over float32 scores whose knots lie on a common grid: two passes, without a sort.
//
// If the width of the buckets divides the step of the grid, the same buckets serve all terms: a negative that a term moves by k
// buckets keeps its fraction. One pass counts the rows, as in certified.hpp, and the lines of all terms, moved accordingly, add
// up to one line in each bucket. The sum is in double, because the terms may nearly cancel.
//
// The contribution phi(f) of a row's own bucket (certified.hpp) lies between c (f - m)+ and its chord c (1 - m) f, which differ
// by at most c m (1 - m). The chord less half of that is a line without a kink, with an error of at most w c m (1 - m) / 2. For
// ties or near ties the lower bound is better: its error is at most w c s / 2, where s is the standard deviation of the
// fractions. It has a kink, and a line can have one; the term for which it reduces the error most gets it. If the errors of all
// terms together exceed the limit of a row, nothing is written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>

#include "certified.hpp"

namespace everypair::EVERYPAIR_ISA {

// Returns the step of the coarsest grid that contains all knots, with at most 64 steps between neighbours; 0 if there is none,
// infinity if all knots are equal.
inline double common_step(const Term* terms, int n_terms, double reach) {
    double least = std::numeric_limits<double>::infinity();
    for (int j = 0; j < n_terms; ++j)
        if (terms[j].shift < reach) least = std::min(least, reach - terms[j].shift);
    for (int parts = 1; parts <= 64; ++parts) {
        bool all = true;
        for (int j = 0; j < n_terms; ++j) {
            const double steps = (reach - terms[j].shift) / least * parts;
            all &= std::abs(steps - std::round(steps)) < 0x1p-40 * (1 + steps);
        }
        if (all) return least / parts;
    }
    return 0;
}

// The line of a slot, the bound of its error, and the term for which a kink reduces the error most.
struct Sum {
    double start = 0, rise = 0, doubt = 0;
    double gain = 0, amount = 0, mean = 0;

    // Adds a term whose negatives were moved to bucket b. For a negative phi increases with f, for a positive it decreases.
    void add(int side, const Profile& profile, int b, double factor) {
        if (b < 1) return;
        const double width = factor * profile.widths[b], outside = factor * profile.moment[side][b];
        const double slope = width * profile.others[side][b], n = profile.rows[1 - side][b], c = width * n;
        start += side ? -(outside + slope) : outside;
        rise += slope;
        if (n == 0) return;
        const double m = profile.fractions[1 - side][b] / n, gap = c * m * (1 - m) / 2;
        start += side ? gap - c * m : -gap;
        rise += side ? c * m : c * (1 - m);
        doubt += std::abs(gap);
        // The sums have 24 bits, so the variance has an error of about 2^-22.
        const double s = std::sqrt(std::max(profile.squares[1 - side][b] / n - m * m, 0.0) + 0x1p-22);
        const double gained = std::abs(gap) - std::abs(c) * s / 2;
        if (gained > gain) gain = gained, amount = c, mean = m;
    }

    Line<float> line(int side) const {
        if (gain == 0) return {static_cast<float>(start), static_cast<float>(rise), 0, 0};
        const double gap = amount * mean * (1 - mean) / 2, turn = amount * (1 - mean);
        return {static_cast<float>(side ? start - gap : start + gap), static_cast<float>(side ? rise + turn : rise - turn),
                static_cast<float>(side ? -amount : amount), static_cast<float>(mean)};
    }
};

// Returns false, so that an exact plan is used, if the terms have no common grid or an error bound is too large.
inline bool certified_terms(const float* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found,
                            const Term* terms, int n_terms, double scale, float* grad, int threads, int most, double& value) {
    constexpr int most_terms = 16;  // each term has its own tables
    if (n_terms > most_terms) return false;
    double reach = terms[0].shift;
    for (int j = 1; j < n_terms; ++j) reach = std::max(reach, terms[j].shift);
    const double range = found.max_neg - found.min_pos + reach, step = std::min(common_step(terms, n_terms, reach), range);
    // If the reach is far larger than the range, the positions have too few digits.
    if (!(step > 0) || range > most * step || std::abs(reach) > 0x1p24 * range) return false;
    const double width = step / std::ceil(step * most / range);
    const int cells = static_cast<int>(range / width) + 2;
    // Slightly beyond the end of place 0, so that the lowest positive is in place 1.
    const double forward = (1 + 0x1p-40) * width;
    const Axis axis{found.min_pos, {reach + forward, forward}, 0, 1 / width, cells, cells};
    Scratch scratch;
    const Counted& counted = *new (scratch.take<Counted>(1)) Counted(scratch, axis, scores, classes, n, threads, true);
    const std::size_t slots = axis.slots();
    // Profiles of the single terms first; then all terms are added up in each bucket.
    Profile* profiles = scratch.take<Profile>(n_terms);
    Estimate* pairs = scratch.take<Estimate>(n_terms);
    int* moved = scratch.take<int>(n_terms);
    for (int j = 0; j < n_terms; ++j) {
        moved[j] = static_cast<int>(std::lround((reach - terms[j].shift) / width));
        new (profiles + j) Profile(scratch, axis);
    }
    parallel(n < threaded_rows() ? 1 : threads, n_terms, [&](int j) {
        profiles[j].take(axis, counted.profile, moved[j]);
        profiles[j].sweep(axis, {});
        pairs[j] = profiles[j].pair_squares(axis);
    });
    double total = 0, doubt = 0, active[2] = {0, 0};
    value = 0;
    for (int j = 0; j < n_terms; ++j) {
        const double factor = 2 * terms[j].b2 * scale;
        value += factor / 2 * pairs[j].value;
        doubt += std::abs(factor) / 2 * pairs[j].doubt;
        total += factor * profiles[j].total;
        for (int side = 0; side < 2; ++side) active[side] = std::max(active[side], profiles[j].active[side]);
    }
    if (doubt > own_slack * std::abs(value)) return false;
    Line<float>* lines = scratch.take<Line<float>>(slots);
    bool certified[2];
    parallel(n < threaded_rows() ? 1 : threads, 2, [&](int side) {
        double greatest = 0, steepest = 0, worst = 0;
        for (int b = 0; b < axis.buckets + 2; ++b) {
            Sum sum;
            for (int j = 0; j < n_terms; ++j) sum.add(side, profiles[j], side ? b : b - moved[j], 2 * terms[j].b2 * scale);
            lines[2 * b + side] = sum.line(side);
            if (counted.profile.rows[side][b] == 0) continue;
            // The smallest and the largest possible gradient in this bucket.
            const double first = std::abs(sum.start), last = std::abs(sum.start + sum.rise);
            if ((sum.start > 0) == (sum.start + sum.rise > 0)) greatest = std::max(greatest, std::min(first, last));
            steepest = std::max({steepest, first, last});
            worst = std::max(worst, sum.doubt - sum.gain);
        }
        // Lines are rounded to float32, so no line may be much larger than the gradients.
        certified[side] = worst <= slack * std::min(greatest, 16 * std::abs(total) / active[side]) && steepest <= 2 * greatest;
    });
    if (!certified[0] || !certified[1]) return false;
    parallel(threads, counted.slices, [&](int slice) {
        std::int32_t spare_slots[block_rows];
        float spare_fractions[block_rows], spare[block_rows];
        const std::int64_t end = counted.first_row(slice + 1);
        for (std::int64_t i = counted.first_row(slice); i < end; i += block_rows) {
            const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
            const auto [where, fractions] = counted.located(i, count, spare_slots, spare_fractions);
            look_up(lines, where, fractions, count, grad ? grad + i : spare);
        }
    });
    return true;
}

}  // namespace everypair::EVERYPAIR_ISA
