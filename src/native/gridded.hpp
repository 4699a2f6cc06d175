// Several truncated terms b2 d^2 over float32 scores, for the price of one: two streaming passes and no sort.
//
// Where all knots lie on one grid, buckets of a width that divides its step serve every term: a negative that a term moves by k
// buckets keeps its fraction. So one pass counts, as in certified.hpp, and the lines of all terms, moved by as much, add up to
// one line in each bucket, in double because the terms may nearly cancel.
//
// The rest, phi(f) of certified.hpp, lies between c (f - m)+ and its chord c (1 - m) f, which differ by c m (1 - m) at most.
// The chord less half of that is a line without a kink, wrong by at most w c m (1 - m) / 2. Where these errors, added up over
// the terms, exceed what a row may be wrong by, nothing is written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>

#include "certified.hpp"

namespace everypair::EVERYPAIR_ISA {

// The step of the widest grid with at most 64 steps between neighbours that all terms are on, or 0.
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

// A line in each slot, and how wrong it may be.
struct Chord {
    double start = 0, rise = 0, doubt = 0;
};
struct FloatChord {
    float start, rise;
};

// Adds a term's lines to those of all; its negatives were moved down by `moved` buckets.
inline void add_chords(const Profile& profile, int buckets, int moved, double factor, Chord* chords) {
    const double width = profile.widths[0], doubt = std::abs(factor) * width / 2;
    for (int b = 1; b <= buckets; ++b) {
        const double own = profile.rows[0][b], sum = profile.fractions[0][b], gap = sum * (1 - sum / (own > 0 ? own : 1));
        Chord& chord = chords[2 * b + 1];
        chord.start -= factor * (profile.moment[1][b] + width * (profile.others[1][b] + sum - gap / 2));
        chord.rise += factor * width * (profile.others[1][b] + sum);
        chord.doubt += doubt * gap;
    }
    for (int b = 1; b + moved <= buckets + 1; ++b) {
        const double own = profile.rows[1][b], sum = profile.fractions[1][b], gap = sum * (1 - sum / (own > 0 ? own : 1));
        Chord& chord = chords[2 * (b + moved)];
        chord.start += factor * (profile.moment[0][b] - width * gap / 2);
        chord.rise += factor * width * (profile.others[0][b] + own - sum);
        chord.doubt += doubt * gap;
    }
}

// Returns false, and leaves the work to a plan that is exact, where the terms have no common grid or a line is too doubtful.
inline bool certified_terms(const float* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found,
                            const Term* terms, int n_terms, double scale, float* grad, int threads, int most, double& value) {
    double reach = terms[0].shift;
    for (int j = 1; j < n_terms; ++j) reach = std::max(reach, terms[j].shift);
    const double range = found.max_neg - found.min_pos + reach, step = common_step(terms, n_terms, reach);
    if (!(step > 0) || range > most * step) return false;
    const double width = step / std::ceil(step * most / range);
    const int cells = static_cast<int>(range / width) + 2;
    // A hair beyond the end of place 0, so that the lowest positive falls into place 1.
    const double forward = (1 + 0x1p-40) * width;
    const Axis axis{found.min_pos, {reach + forward, forward}, 0, 1 / width, cells, cells};
    Scratch scratch;
    const Counted& counted = *new (scratch.take<Counted>(1)) Counted(scratch, axis, scores, classes, n, threads);
    const std::size_t slots = axis.slots();
    Chord* chords = scratch.take<Chord>(slots);
    std::fill(chords, chords + slots, Chord{});
    Profile profile(scratch, axis);
    double total = 0, doubt = 0, active[2] = {0, 0};
    value = 0;
    for (int j = 0; j < n_terms; ++j) {
        const int moved = static_cast<int>(std::lround((reach - terms[j].shift) / width));
        profile.take(axis, counted.profile, moved);
        profile.sweep(axis, {});
        profile.guess_squares(axis);
        const Estimate squares = profile.pair_squares(axis, false, true);
        const double factor = 2 * terms[j].b2 * scale;
        value += factor / 2 * squares.value;
        doubt += std::abs(factor) / 2 * squares.doubt;
        total += factor * profile.total;
        for (int side = 0; side < 2; ++side) active[side] = std::max(active[side], profile.active(axis, side));
        add_chords(profile, axis.buckets, moved, factor, chords);
    }
    double limit[2];
    for (int side = 0; side < 2; ++side) {
        const double* rows = counted.profile.rows[side];
        double greatest = 0;
        for (int b = 0; b < axis.buckets + 2; ++b)
            if (rows[b] > 0) greatest = std::max(greatest, std::abs(chords[2 * b + side].start));
        limit[side] = slack * std::min(greatest, 16 * std::abs(total) / active[side]);
        for (int b = 0; b < axis.buckets + 2; ++b)
            if (rows[b] > 0 && !(chords[2 * b + side].doubt <= limit[side])) return false;
    }
    FloatChord* lines = scratch.take<FloatChord>(slots);
    for (std::size_t slot = 0; slot < slots; ++slot)
        lines[slot] = {static_cast<float>(chords[slot].start), static_cast<float>(chords[slot].rise)};
    double* parts = scratch.take<double>(counted.tasks);
    parallel(threads, counted.teams, [&](int team) {
        std::int32_t where[block_rows];
        float fractions[block_rows], starts[block_rows], rises[block_rows];
        for (std::int64_t begin = counted.first_row(team); begin < counted.first_row(team + 1); begin = task_end(n, begin)) {
            const std::int64_t end = task_end(n, begin);
            double sum = 0;
            for (std::int64_t i = begin; i < end; i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
                locate<false>(axis, scores + i, classes + i, count, where, fractions);
                for (int k = 0; k < count; ++k) {
                    starts[k] = lines[where[k]].start;
                    rises[k] = lines[where[k]].rise;
                }
                float squares = 0;
#pragma omp simd reduction(+ : squares)
                for (int k = 0; k < count; ++k) {
                    squares += rises[k] * fractions[k] * fractions[k];
                    starts[k] += rises[k] * fractions[k];
                }
                sum += squares;
                if (grad) std::copy(starts, starts + count, grad + i);
            }
            parts[begin / task_rows] = sum * width / 2;
        }
    });
    for (int t = 0; t < counted.tasks; ++t) value += parts[t];
    return doubt <= own_slack * std::abs(value);
}

}  // namespace everypair::EVERYPAIR_ISA
