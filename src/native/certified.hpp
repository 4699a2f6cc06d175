// Plan for one truncated term b2 d^2 over float32 scores: two passes over the rows, without a sort, with a
// proven error bound.
//
// Place every row on an axis of equal buckets: positives at u = s, negatives at u = s + shift (relative to
// the lowest positive). A pair counts where u_neg > u_pos, with d = u_neg - u_pos. The gradient of a negative
// is 2 b2 M(u), where M(u) = sum of (u - u_pos) over the positives below u; the positives mirror this.
//
// Pass 1 counts, per bucket and class, the rows and the sum of their fractions f in [0, 1) of the bucket.
// Both are integers (the fraction has 24 bits), so the result does not depend on the order of rows or on
// threads. A sweep over the buckets computes M at the left edge of each bucket and the number A of positives
// below: the positives of other buckets contribute exactly M + A w f, where w is the width of the bucket.
// Pass 2 evaluates this line for each row and writes the gradient.
//
// The positives of the row's own bucket contribute w phi(f), where phi(f) = sum of (f - f_pos)+ over these c
// positives with mean fraction m. It is convex with phi(0) = 0, phi(1) = c (1 - m). Jensen's inequality
// bounds it from below and its chord from above:
//
//     c (f - m)+  <=  phi(f)  <=  c (1 - m) f .
//
// The bounds differ most at f = m, by c m (1 - m). Their average, a line with one kink, is therefore wrong by
// at most w c m (1 - m) / 2; with c = 1 the lower bound is phi itself. A bucket whose error bound exceeds
// `slack` times the largest M of the class, or sixteen times the mean M, is not certified: its rows are
// gathered, and the pairs inside it are solved exactly (heavy.hpp). If that would be many rows, the buckets
// with many rows are split and all rows are counted again first, with the squares of the fractions; then the
// lower bound alone is used where their standard deviation s is small: its error is at most w c s / 2. The
// mirror image (positives against negatives) has the same bound.
//
// The loss is computed from the counts: exactly for pairs of different buckets, as a sum of positive numbers,
// and by an estimate with an error bound for pairs of one bucket, which are of second order. It also needs
// the squares of the fractions: pass 2 adds them up, or pass 1 counts them if cells are split.
//
// For rows with weights, pass 1 adds up w, w f and w f^2 in double instead; the bounds hold for weighted sums
// as well. Weights are relative to the mean weight of their class. The limits of errors are for the largest
// weight of a class: slack times the largest gradient, over that weight.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "group_rows.hpp"
#include "heavy.hpp"
#include "pool.hpp"
#include "profile.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// Both passes over the rows of a batch on an axis.
class AxisRows {
  public:
    AxisRows(Scratch& scratch, const GroupRows<float>& rows, const Axis& over)
        : axis(over),
          rows_(&rows),
          places_(scratch, rows.n, 1 << 16) {}  // so that places stay in the second-level cache

    // Pass 1 without weights. Calls use(sums of all rows).
    template <class Use>
    void with_tally_sums(Scratch& scratch, Use&& use) {
        const std::size_t slots = axis.slots();
        const Counted<Tally> counted = count<Tally>(scratch);
        const auto add_up = [&](auto* sums, int first) {
            for (int slice = first; slice < counted.slices; ++slice)
                for (std::size_t slot = 0; slot < slots; ++slot)
                    sums[slot].add(counted.tables[slice * slots + slot]);
            use(TallySums(scratch, axis, sums));
        };
        if (rows_->n < tally_rows) return add_up(counted.tables, 1);
        WideTally* wide = scratch.take<WideTally>(slots);
        std::fill_n(wide, slots, WideTally{});
        add_up(wide, 0);
    }

    // Pass 1 if the squares of the fractions are needed. Calls use(tables of all slices, number of slices).
    template <class Use>
    auto with_squares(Scratch& scratch, Use&& use) {
        const auto read = [&](const auto& counted) { return use(counted.tables, counted.slices); };
        return rows_->weights ? read(count<WeightSums>(scratch)) : read(count<SquaredTally>(scratch));
    }
    BucketSums bucket_sums(Scratch& scratch) {
        return with_squares(scratch, [&](const auto* tables, int slices) {
            return BucketSums(scratch, axis, tables, slices);
        });
    }

    // Pass 2: writes the gradients that evaluate(slice, first row, count, slots, fractions, gradients)
    // computes for rows of weight 1. Returns the sum of its results.
    template <class Evaluate>
    double write(Scratch& scratch, int slices, Evaluate&& evaluate) {
        const double *weights = rows_->weights, units[2] = {rows_->unit(0), rows_->unit(1)};
        float* grad = rows_->grad;
        const std::int64_t n_blocks = (rows_->n + block_rows - 1) / block_rows;
        double* sums = scratch.take<double>(n_blocks);
        by_blocks(slices, [&](int slice, std::int64_t i, int count, const std::int32_t* slots,
                              const std::int32_t* fractions) {
            float spare[block_rows], *out = grad && !weights ? grad + i : spare;
            sums[i / block_rows] = evaluate(slice, i, count, slots, fractions, out);
            if (!grad || !weights) return;
            const double of_neg = units[0], of_pos = units[1];
#pragma omp simd
            for (int k = 0; k < count; ++k)  // -0.0 becomes 0.0
                grad[i + k] =
                    static_cast<float>(weights[i + k] * (slots[k] & 1 ? of_pos : of_neg) * out[k] + 0.0);
        });
        return std::accumulate(sums, sums + n_blocks, 0.0);
    }

    Axis axis;

  private:
    // The sums of each slice, by slot.
    template <class Slot>
    struct Counted {
        Slot* tables;
        int slices;
    };
    template <class Slot>
    Counted<Slot> count(Scratch& scratch) {
        const std::size_t slots = axis.slots();
        // The tables of a slice should not be larger than its rows. Sums of integers do not depend on the
        // slices. Other sums are rounded, so their slices do not depend on the number of threads.
        const std::int64_t n = rows_->n,
                           some = n / static_cast<std::int64_t>(slots * (Slot::is_weighted ? 8 : 1));
        const int fewest = Slot::is_weighted ? 1 : tally_slices(n),
                  most = Slot::is_weighted ? 32 : slice_count(n, rows_->threads);
        const int slices = std::max(fewest, static_cast<int>(std::min<std::int64_t>(some, most)));
        Slot* tables = scratch.take<Slot>(slots * slices);
        parallel(rows_->threads, slices,
                 [&](int slice) { std::fill_n(tables + slice * slots, slots, Slot{}); });
        const double* weights = rows_->weights;
        const double units[2] = {rows_->unit(0), rows_->unit(1)};
        const auto add = [&](int slice, std::int64_t i, int count, const std::int32_t* where,
                             const std::int32_t* fractions) {
            if constexpr (Slot::is_weighted) {
                WeightSums* table = tables + slice * slots;
                for (int k = 0; k < count; ++k)
                    table[where[k]].add(fractions[k], weights[i + k] * units[where[k] & 1]);
            } else {
                add_rows(tables + slice * slots, where, fractions, count);
            }
        };
        by_blocks(slices, add);
        return {tables, slices};
    }

    template <class Use>
    void by_blocks(int slices, Use&& use) {
        const auto locate = [&](std::int64_t i, int count, std::int32_t* slots, std::int32_t* fractions) {
            std::uint8_t sides[block_rows];  // of rows of weight 0 as well
            for (int k = 0; rows_->weights && k < count; ++k) sides[k] = rows_->classes[i + k] & 1;
            const std::uint8_t* classes = rows_->weights ? sides : rows_->classes + i;
            EVERYPAIR_ISA::locate(axis, rows_->scores + i, classes, count, slots, fractions);
        };
        places_.by_blocks(slices, rows_->threads, locate, use);
    }

    const GroupRows<float>* rows_;
    Places<std::int32_t> places_;
};

constexpr std::int64_t split_rows =
    1 << 15;  // with fewer rows the tables of split cells take longer than other plans

// Returns the same axis with its heavy cells split, into as many parts as `buckets_for` gives.
inline Axis split_axis(Scratch& scratch, const Axis& axis, const Heavy* heavy, int n_heavy,
                       const double limit[2]) {
    const int n_cells = axis.cells + 2;
    const Cells cells{scratch.take<std::int32_t>(n_cells), scratch.take<float>(n_cells)};
    std::fill(cells.parts, cells.parts + n_cells, 1.0f);
    int most = 1 << 14;
    for (int total = 0; most > 1; most /= 2) {
        total = 0;
        for (int h = 0; h < n_heavy; ++h) {
            const int parts = buckets_for(heavy[h].rows, axis.width(), limit, most);
            cells.parts[heavy[h].bucket] = static_cast<float>(parts);
            total += parts;
        }
        if (total <= 4 * most_buckets) break;
    }
    int first = 0;
    for (int c = 0; c < n_cells; ++c) cells.first[c] = first, first += static_cast<int>(cells.parts[c]);
    // The number of buckets becomes a multiple of that of a block.
    const int missing = (block_buckets - first % block_buckets) % block_buckets;
    cells.parts[n_cells - 2] += static_cast<float>(missing);
    cells.first[n_cells - 1] += missing;
    first += missing;
    Axis finer = axis;
    finer.buckets = first - 2;
    finer.is_split = true;
    finer.split = cells;
    return finer;
}

// Evaluates one term b2 d^2 over a whole batch; factor is 2 b2 x the scale of the reduction x the mean
// weights. The range must be positive and neither denormal nor infinite, and both classes must have rows.
// Returns false if many rows are not certified: then the exact plan is quicker, for a small batch even before
// another count.
inline bool certified_term(const GroupRows<float>& rows, double shift, double factor, double& value) {
    Scratch scratch;
    const std::int64_t n = rows.n;
    // Fewer buckets take less time, unless many of them become heavy: with few rows of one class, two of them
    // in a bucket do.
    const bool few = 32 * std::min(rows.survey.n_pos, rows.survey.n_neg) < n;
    const int buckets = n >= 1 << 17 ? 4094 : n < 1 << 14 ? 1790 : few ? 3070 : 2046;
    AxisRows on(scratch, rows, axis_over(rows.survey, shift, buckets));
    if (!(std::abs(factor * on.axis.width()) > 0x1p-120)) return false;  // the lines are float32
    Line<1>* lines = scratch.take<Line<1>>(on.axis.slots());
    Heavy* heavy = scratch.take<Heavy>(on.axis.buckets);
    int n_heavy = 0;
    Estimate all;
    double limit[2], unit = 0;  // unit: the factor of the sum that `write` returns
    const auto use_sums = [&](const auto& sums) {
        const Profile profile(scratch, on.axis, sums, factor, lines);
        all = profile.squares;
        std::copy(profile.limit, profile.limit + 2, limit);
        n_heavy = profile.list_heavy(heavy);
    };
    const auto has_many = [&] {
        double mass = 0;
        for (int h = 0; h < n_heavy; ++h) mass += heavy[h].rows[0] + heavy[h].rows[1];
        return mass > static_cast<double>(n) / 8;
    };
    if (rows.weights) {
        use_sums(on.bucket_sums(scratch));
        // Lines are float32, and must not be denormal where the gradient of a heavy row is not.
        if (!(std::abs(factor) * std::min(limit[0], limit[1]) > 0x1p-110)) return false;
    } else {
        on.with_tally_sums(scratch, use_sums);
        unit = on.axis.width() / factor;
    }
    if (has_many()) {
        if (n < split_rows) return false;
        on = AxisRows(scratch, rows, split_axis(scratch, on.axis, heavy, n_heavy, limit));
        lines = scratch.take<Line<1>>(on.axis.slots());
        heavy = scratch.take<Heavy>(on.axis.buckets);
        use_sums(on.bucket_sums(scratch));
        unit = 0;
        if (has_many()) return false;
    }
    mark_unsolved(lines, heavy, n_heavy, factor);
    const int slices = slice_count(n, rows.threads);
    HeavyRows rest(scratch, rows, on.axis, heavy, n_heavy, slices);
    const auto evaluate = [&](int slice, std::int64_t i, int count, const std::int32_t* slots,
                              const std::int32_t* fractions, float* out) {
        const float sum = look_up(lines, slots, fractions, count, out);
        rest.take(slice, i, slots, count, out);
        return sum;
    };
    const double squares = rows.grad || n_heavy || unit != 0 ? on.write(scratch, slices, evaluate) : 0;
    value = factor / 2 * (all.value + (unit != 0 ? unit * squares : 0) + rest.solve(factor));
    return true;
}

}  // namespace everypair::EVERYPAIR_ISA
