// Several truncated terms b2 d^2 over float32 scores, for the price of one: two streaming passes and no sort.
//
// Where all knots lie on one grid, buckets of a width that divides its step serve every term: a negative that a term moves by k
// buckets keeps its fraction. So one pass counts, as in certified.hpp, and the lines of all terms, moved by as much, add up to
// one line in each bucket, in double because the terms may nearly cancel.
//
// The rest, phi(f) of certified.hpp, lies between c (f - m)+ and its chord c (1 - m) f, which differ by c m (1 - m) at most.
// The chord less half of that is a line without a kink, wrong by at most w c m (1 - m) / 2. Where rows are tied, or nearly so,
// the lower bound is the better choice: with deviation s of their fractions it is wrong by at most w c s / 2. It has a kink,
// and a line can have one: the term takes it that gains most. Where the errors, added up over the terms, still exceed what a
// row may be wrong by, nothing is written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>

#include "certified.hpp"

namespace everypair::EVERYPAIR_ISA {

// The step of the widest grid with at most 64 steps between neighbours that all terms are on; 0 if there is none, infinity if
// all have one knot.
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

// The line of a slot, how wrong it may be, and the term that would gain most by a kink.
struct Sum {
    double start = 0, rise = 0, doubt = 0;
    double gain = 0, amount = 0, mean = 0;

    // One more term, whose negatives were moved to bucket b. Seen from a negative phi rises, seen from a positive it falls.
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
        // Sums of 24 bits: the variance is known to about 2^-22.
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

// Returns false, and leaves the work to a plan that is exact, where the terms have no common grid or a line is too doubtful.
inline bool certified_terms(const float* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found,
                            const Term* terms, int n_terms, double scale, float* grad, int threads, int most, double& value) {
    constexpr int most_terms = 16;  // each has tables of its own
    if (n_terms > most_terms) return false;
    double reach = terms[0].shift;
    for (int j = 1; j < n_terms; ++j) reach = std::max(reach, terms[j].shift);
    const double range = found.max_neg - found.min_pos + reach, step = std::min(common_step(terms, n_terms, reach), range);
    // A reach far beyond the range would leave no digits for the places.
    if (!(step > 0) || range > most * step || std::abs(reach) > 0x1p24 * range) return false;
    const double width = step / std::ceil(step * most / range);
    const int cells = static_cast<int>(range / width) + 2;
    // A hair beyond the end of place 0, so that the lowest positive falls into place 1.
    const double forward = (1 + 0x1p-40) * width;
    const Axis axis{found.min_pos, {reach + forward, forward}, 0, 1 / width, cells, cells};
    Scratch scratch;
    const Counted& counted = *new (scratch.take<Counted>(1)) Counted(scratch, axis, scores, classes, n, threads, true);
    const std::size_t slots = axis.slots();
    // Each term by itself, then all of them bucket by bucket.
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
        pairs[j] = profiles[j].pair_squares(axis, true);
    });
    double total = 0, doubt = 0, active[2] = {0, 0};
    value = 0;
    for (int j = 0; j < n_terms; ++j) {
        const double factor = 2 * terms[j].b2 * scale;
        value += factor / 2 * pairs[j].value;
        doubt += std::abs(factor) / 2 * pairs[j].doubt;
        total += factor * profiles[j].total;
        for (int side = 0; side < 2; ++side) active[side] = std::max(active[side], profiles[j].active(axis, side));
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
            // Of the gradients in a bucket, the least and the greatest that there may be.
            const double first = std::abs(sum.start), last = std::abs(sum.start + sum.rise);
            if ((sum.start > 0) == (sum.start + sum.rise > 0)) greatest = std::max(greatest, std::min(first, last));
            steepest = std::max({steepest, first, last});
            worst = std::max(worst, sum.doubt - sum.gain);
        }
        // Lines are rounded to float32, so that none may be much greater than what comes out.
        certified[side] = worst <= slack * std::min(greatest, 16 * std::abs(total) / active[side]) && steepest <= 2 * greatest;
    });
    if (!certified[0] || !certified[1]) return false;
    parallel(threads, counted.teams, [&](int team) {
        std::int32_t where[block_rows];
        float fractions[block_rows], spare[block_rows];
        const std::int64_t end = counted.first_row(team + 1);
        for (std::int64_t i = counted.first_row(team); i < end; i += block_rows) {
            const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
            locate<false>(axis, scores + i, classes + i, count, where, fractions);
            look_up(lines, where, fractions, count, grad ? grad + i : spare);
        }
    });
    return true;
}

}  // namespace everypair::EVERYPAIR_ISA
