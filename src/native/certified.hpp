// Plan for one truncated term b2 d^2 over float32 scores: two passes over the rows, without a sort, with a proven error bound.
//
// Place every row on an axis of equal buckets: positives at u = s, negatives at u = s + shift (relative to the lowest
// positive). A pair counts where u_neg > u_pos, with d = u_neg - u_pos. The gradient of a negative is 2 b2 M(u), where
// M(u) = sum of (u - u_pos) over the positives below u; the positives mirror this.
//
// Pass 1 counts, per bucket and class, the rows and the sum of their fractions f in [0, 1) of the bucket. Both are integers
// (the fraction has 24 bits), so the result does not depend on the order of rows or on threads. A sweep over the buckets
// computes M at the left edge of each bucket and the number A of positives below: the positives of other buckets contribute
// exactly M + A w f, where w is the width of the bucket. Pass 2 evaluates this line for each row and writes the gradient.
//
// The positives of the row's own bucket contribute w phi(f), where phi(f) = sum of (f - f_pos)+ over these c positives with
// mean fraction m. It is convex with phi(0) = 0, phi(1) = c (1 - m). Jensen's inequality bounds it from below and its chord
// from above:
//
//     c (f - m)+  <=  phi(f)  <=  c (1 - m) f .
//
// The bounds differ most at f = m, by c m (1 - m). Their average, a line with one kink, is therefore wrong by at most
// w c m (1 - m) / 2; with c = 1 the lower bound is phi itself. A bucket whose error bound exceeds `slack` times the largest M
// of the class, or sixteen times the mean M, is not certified: its rows are gathered, and the pairs inside it are solved
// exactly (heavy.hpp). If that would be many rows, the buckets with many rows are split and all rows are counted again first,
// with the squares of the fractions; then the lower bound alone is used where their standard deviation s is small: its error is
// at most w c s / 2. The mirror image (positives against negatives) has the same bound.
//
// The loss is computed from the counts: exactly for pairs of different buckets, as a sum of positive numbers, and by an
// estimate with an error bound for pairs of one bucket, which are of second order. It also needs the squares of the fractions:
// pass 2 adds them up, or pass 1 counts them if cells are split.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>

#include "equal_profile.hpp"
#include "heavy.hpp"
#include "pool.hpp"
#include "profile.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// Pass 1 over a whole batch: counts the rows of an axis and computes its profile.
class Counted {
  public:
    // With unequal widths `look_up` cannot compute the squares of the fractions, so they are counted here.
    Counted(Scratch& scratch, const Axis& over, const float* scores, const std::uint8_t* classes, std::int64_t n, int threads)
        : Counted(scratch, over, scores, classes, n, threads, over.is_split) {}
    Counted(Scratch& scratch, const Axis& over, const float* scores, const std::uint8_t* classes, std::int64_t n, int threads,
            bool squares)
        : axis(over),
          profile(scratch, axis),
          tasks(task_count(n)),
          // The tables of a slice should not be larger than its rows.
          slices(static_cast<int>(
              std::clamp<std::int64_t>(n / static_cast<std::int64_t>(over.slots()), 1, slice_count(n, threads)))),
          scores_(scores),
          classes_(classes),
          n_(n),
          threads_(threads) {
        if (n <= kept_rows) {
            kept_slots_ = scratch.take<std::int32_t>(n);
            kept_fractions_ = scratch.take<std::int32_t>(n);
        }
        tallies_ = scratch.take<Tallies>(slices);
        for (int slice = 0; slice < slices; ++slice) new (tallies_ + slice) Tallies(scratch, axis, n);
        count_rows(scratch, squares);
        if (n < tally_rows)
            packed_ = merged(scratch, &Tallies::rows);
        else
            wide_ = merged(scratch, &Tallies::wide);
        if (!squares) return;  // then the profile is not needed
        profile.read_squares(axis, merged(scratch, &Tallies::squares));
        packed_ ? profile.read(axis, packed_) : profile.read(axis, wide_);
        profile.sweep(axis);
    }

    // Calls use(tallies of all slices).
    template <class Use>
    void with_tallies(Use&& use) const {
        packed_ ? use(packed_) : use(wide_);
    }

    // Each slice has its own counts and a fixed range of tasks.
    std::int64_t first_row(int slice) const {
        return std::min(n_, static_cast<std::int64_t>(tasks) * slice / slices * task_rows);
    }
    // Slots and fractions of the `count` rows from row i on, a block. Small batches keep those of pass 1.
    struct Located {
        const std::int32_t *slots, *fractions;
    };
    Located located(std::int64_t i, int count, std::int32_t* slots, std::int32_t* fractions) const {
        if (kept_slots_) return {kept_slots_ + i, kept_fractions_ + i};
        locate(axis, scores_ + i, classes_ + i, count, slots, fractions);
        return {slots, fractions};
    }

    const Axis axis;
    Profile profile;
    const int tasks, slices;

  private:
    void count_rows(Scratch& scratch, bool squares) {
        for (int slice = 0; squares && slice < slices; ++slice) tallies_[slice].take_squares(scratch);
        parallel(threads_, slices, [&](int slice) {
            Tallies& mine = tallies_[slice];
            mine.clear();
            if (squares) mine.clear_squares();
            std::int32_t spare_slots[block_rows], spare_fractions[block_rows];
            const std::int64_t end = first_row(slice + 1);
            for (std::int64_t i = first_row(slice); i < end; i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
                std::int32_t* where = kept_slots_ ? kept_slots_ + i : spare_slots;
                std::int32_t* fractions = kept_slots_ ? kept_fractions_ + i : spare_fractions;
                locate(axis, scores_ + i, classes_ + i, count, where, fractions);
                mine.add(where, fractions, count);
                if (squares) mine.add_squares(where, fractions, count);
            }
            mine.spill();
        });
    }

    // Returns the sum of the tables of all slices.
    template <class T>
    const T* merged(Scratch& scratch, T* Tallies::* table) const {
        if (slices == 1) return tallies_[0].*table;
        T* all = scratch.take<T>(axis.slots());
        std::copy(tallies_[0].*table, tallies_[0].*table + axis.slots(), all);
        for (int slice = 1; slice < slices; ++slice)
            for (std::size_t slot = 0; slot < axis.slots(); ++slot) all[slot].add((tallies_[slice].*table)[slot]);
        return all;
    }

    const float* scores_;
    const std::uint8_t* classes_;
    std::int64_t n_;
    int threads_;
    Tallies* tallies_;
    const Tally* packed_ = nullptr;
    const WideTally* wide_ = nullptr;
    static constexpr std::int64_t kept_rows = 1 << 16;  // so that they stay in the second-level cache
    std::int32_t *kept_slots_ = nullptr, *kept_fractions_ = nullptr;
};

// Returns the same axis with its heavy cells split, into as many parts as `buckets_for` gives.
inline Axis split_axis(Scratch& scratch, const Axis& axis, const Heavy* heavy, int n_heavy, const double limit[2]) {
    const int n_cells = axis.cells + 2;
    const Cells cells{scratch.take<std::int32_t>(n_cells), scratch.take<float>(n_cells)};
    std::fill(cells.parts, cells.parts + n_cells, 1.0f);
    int most = 1 << 14;
    for (int total = 0; most > 1; most /= 2) {
        total = 0;
        for (int h = 0; h < n_heavy; ++h) {
            const int parts = buckets_for(static_cast<double>(heavy[h].n_pos), static_cast<double>(heavy[h].n_neg),
                                          axis.width(), limit, most);
            cells.parts[heavy[h].bucket] = static_cast<float>(parts);
            total += parts;
        }
        if (total <= 4 * most_buckets) break;
    }
    int first = 0;
    for (int c = 0; c < n_cells; ++c) cells.first[c] = first, first += static_cast<int>(cells.parts[c]);
    Axis finer = axis;
    finer.buckets = first - 2;
    finer.is_split = true;
    finer.split = cells;
    return finer;
}

// Evaluates one term over a whole batch. The value is b2 x sum of d^2 x the scale of the reduction; factor is 2 b2 x that
// scale. The range must be positive and neither denormal nor infinite, and both classes must have rows. Returns false if many
// rows are not certified: then the exact plan is quicker, for a small batch even before another count.
inline bool certified_term(const float* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found, double shift,
                           double factor, float* grad, int threads, double& value) {
    Scratch scratch;
    const double range = found.max_neg - found.min_pos + shift;
    const Scale positions{found.min_pos, shift};
    // Fewer buckets take less time, unless many of them become heavy: with few rows of one class, two of them in a bucket do.
    const bool few = 32 * std::min(found.n_pos, found.n_neg) < n;
    const int buckets = n >= 1 << 17 ? 4094 : n < 1 << 14 ? 1790 : few ? 3070 : 2046;
    const Axis equal = axis_over(positions, 0, range, buckets);
    if (!(std::abs(factor * equal.width()) > 0x1p-120)) return false;  // the lines are float32
    Counted* counted = new (scratch.take<Counted>(1)) Counted(scratch, equal, scores, classes, n, threads);
    Line<float>* lines = scratch.take<Line<float>>(counted->axis.slots());
    Heavy* heavy = scratch.take<Heavy>(counted->axis.buckets);
    double* own = scratch.take<double>(counted->axis.buckets);
    Estimate all;
    double limit[2];
    int n_heavy = 0;
    counted->with_tallies([&](const auto* tallies) {
        const EqualProfile profile(scratch, counted->axis, tallies, factor, lines);
        all = profile.squares;
        std::copy(profile.limit, profile.limit + 2, limit);
        n_heavy = profile.list_heavy(own_slack * all.least(), heavy, own);
    });
    const auto has_many = [&] {
        std::int64_t n_rows = 0;
        for (int h = 0; h < n_heavy; ++h) n_rows += heavy[h].n_pos + heavy[h].n_neg;
        return n_rows > n / 8;
    };
    if (has_many()) {
        if (n < 1 << 15) return false;
        const Axis finer = split_axis(scratch, counted->axis, heavy, n_heavy, limit);
        counted = new (scratch.take<Counted>(1)) Counted(scratch, finer, scores, classes, n, threads);
        lines = scratch.take<Line<float>>(finer.slots());
        heavy = scratch.take<Heavy>(finer.buckets);
        counted->profile.draw(finer, factor, lines);
        all = counted->profile.pair_squares(finer);
        n_heavy = counted->profile.list_heavy(finer, limit, all, own_slack * all.least(), heavy);
        own = scratch.take<double>(n_heavy);
        for (int h = 0; h < n_heavy; ++h) own[h] = counted->profile.inside(heavy[h].bucket).squares().value;
        if (has_many()) return false;
    }
    const Axis& axis = counted->axis;
    mark_unsolved(lines, heavy, n_heavy, factor);
    HeavyRows rest(scratch, heavy, n_heavy, n, counted->slices);
    double* parts = scratch.take<double>(counted->tasks);
    parallel(threads, counted->slices, [&](int slice) {
        std::int32_t spare_slots[block_rows], spare_fractions[block_rows];
        float spare[block_rows];
        rest.start(slice, counted->first_row(slice));
        for (std::int64_t begin = counted->first_row(slice); begin < counted->first_row(slice + 1);
             begin = task_end(n, begin)) {
            const std::int64_t end = task_end(n, begin);
            double sum = 0;
            for (std::int64_t i = begin; i < end; i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
                float* out = grad ? grad + i : spare;
                const auto [where, fractions] = counted->located(i, count, spare_slots, spare_fractions);
                sum += look_up(lines, where, fractions, count, out);
                rest.take(slice, i, where, count, out);
            }
            parts[begin / task_rows] = axis.is_split ? 0 : sum * axis.width() / factor;
        }
    });
    double squares = all.value;
    for (int t = 0; t < counted->tasks; ++t) squares += parts[t];
    squares += rest.solve(
        positions, scores, [](std::uint32_t, int) { return 1.0; }, [&](int h) { return own[h]; }, factor, grad, threads);
    value = factor / 2 * squares;
    return true;
}

}  // namespace everypair::EVERYPAIR_ISA
