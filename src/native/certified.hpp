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

#include "heavy.hpp"
#include "pool.hpp"
#include "profile.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// Allowed relative errors: of a gradient, and of the loss due to pairs of one bucket.
constexpr double slack = 0x1.8p-21, own_slack = 0x1p-22;

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
            kept_fractions_ = scratch.take<float>(n);
        }
        tallies_ = scratch.take<Tallies>(slices);
        for (int slice = 0; slice < slices; ++slice) new (tallies_ + slice) Tallies(scratch, axis, n);
        count_rows(scratch, squares);
        if (n < tally_rows)
            packed_ = merged(scratch, &Tallies::rows);
        else
            wide_ = merged(scratch, &Tallies::wide);
        if (!squares) return;  // the profile is not needed unless a bucket is heavy
        profile.read_squares(axis, merged(scratch, &Tallies::squares));
        fill_profile();
    }

    // Calls use(tallies of all slices).
    template <class Use>
    void with_tallies(Use&& use) const {
        packed_ ? use(packed_) : use(wide_);
    }

    void fill_profile() {
        with_tallies([&](const auto* tallies) { profile.read(axis, tallies); });
        profile.sweep(axis);
    }

    // Each slice has its own counts and a fixed range of tasks.
    std::int64_t first_row(int slice) const {
        return std::min(n_, static_cast<std::int64_t>(tasks) * slice / slices * task_rows);
    }
    // Slots and fractions of the `count` rows from row i on, a block. Small batches keep those of pass 1.
    struct Located {
        const std::int32_t* slots;
        const float* fractions;
    };
    Located located(std::int64_t i, int count, std::int32_t* slots, float* fractions) const {
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
            std::int32_t spare_slots[block_rows];
            float spare_fractions[block_rows];
            const std::int64_t end = first_row(slice + 1);
            for (std::int64_t i = first_row(slice); i < end; i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
                std::int32_t* where = kept_slots_ ? kept_slots_ + i : spare_slots;
                float* fractions = kept_slots_ ? kept_fractions_ + i : spare_fractions;
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
    std::int32_t* kept_slots_ = nullptr;
    float* kept_fractions_ = nullptr;
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

// Computes the lines and the sum of squares of an axis with equal buckets from its tallies, block by block, so that all but the
// tallies stays in the first-level cache: what Profile's `read`, `sweep`, `guess_squares`, `pair_squares` and `draw` compute.
struct EqualTables {
    Estimate squares;
    double limit[2];
    bool certain;  // the errors of all rows are within the limits

    template <class AnyTally>
    EqualTables(Scratch& scratch, const Axis& axis, const AnyTally* tallies, double factor, Line<float>* lines) {
        typedef float Four __attribute__((vector_size(16)));
        constexpr int some = 64;
        const int n_buckets = axis.buckets + 2;
        const double scale = factor * axis.width();
        // Of the negatives above the right edge of each bucket. All distances are in units of the width.
        double *count_above = scratch.take<double>(n_buckets + some), *moment_above = scratch.take<double>(n_buckets + some);
        double above = 0, above_moment = 0;
        for (int b = n_buckets - 1; b >= 0; --b) {
            count_above[b] = above;
            moment_above[b] = above_moment;
            above_moment += above + tallies[2 * b].fractions();
            above += tallies[2 * b].rows();
        }
        double below = 0, below_moment = 0, last_moment = 0, below_squares = 0;  // of the positives below the left edge
        double total = 0, sum = 0, own = 0, doubt = 0, errors[2] = {0, 0};
        for (int from = 0; from < n_buckets; from += some) {
            const int count = std::min(some, n_buckets - from);
            const double *a1 = count_above + from, *m1 = moment_above + from;
            double n0[some], n1[some], f0[some], f1[some], a0[some], m0[some], steps[some];
            alignas(16) float lines0[4][some], lines1[4][some];
#pragma omp simd
            for (int b = 0; b < count; ++b) {
                const AnyTally &neg = tallies[2 * (from + b)], &pos = tallies[2 * (from + b) + 1];
                n0[b] = neg.rows(), f0[b] = neg.fractions();
                n1[b] = pos.rows(), f1[b] = pos.fractions();
            }
            for (int b = 0; b < count; ++b) {
                a0[b] = below;
                m0[b] = last_moment = below_moment;
                below_moment += below + (n1[b] - f1[b]);
                below += n1[b];
            }
            double most0 = errors[0], most1 = errors[1];
#pragma omp simd reduction(+ : total, sum, own, doubt) reduction(max : most0, most1)
            for (int b = 0; b < count; ++b) {
                const double i0 = n0[b] > 0 ? 1 / n0[b] : 0, i1 = n1[b] > 0 ? 1 / n1[b] : 0;
                const double mean0 = f0[b] * i0, mean1 = f1[b] * i1;
                const double q0 = f0[b] * mean0 + (n0[b] > 1 ? n0[b] * (1.0 / 12) : 0);
                const double q1 = f1[b] * mean1 + (n1[b] > 1 ? n1[b] * (1.0 / 12) : 0);
                const Profile::Inside here{{n0[b], n1[b]}, {f0[b], f1[b]}, {q0, q1}, {i0, i1}, 1.0};
                own += here.squares().value - here.slopes();
                doubt += here.squares().doubt;
                steps[b] = 2 * m0[b] + (a0[b] + n1[b] - 2 * f1[b]);
                total += n0[b] * m0[b] + a0[b] * f0[b];
                sum += 2 * m0[b] * f0[b];
                const double error0 = (n0[b] > 0) & (n1[b] > 1) ? mean1 * (n1[b] - f1[b]) : 0;
                const double error1 = (n1[b] > 0) & (n0[b] > 1) ? mean0 * (n0[b] - f0[b]) : 0;
                most0 = error0 > most0 ? error0 : most0;
                most1 = error1 > most1 ? error1 : most1;
                const double chord0 = n1[b] > 1 ? 0.5 : 0, chord1 = n0[b] > 1 ? 0.5 : 0;
                lines0[0][b] = static_cast<float>(scale * m0[b]);
                lines0[1][b] = static_cast<float>(scale * (a0[b] + chord0 * (n1[b] - f1[b])));
                lines0[2][b] = static_cast<float>(scale * (1 - chord0) * n1[b]);
                lines0[3][b] = static_cast<float>(mean1);
                lines1[0][b] = static_cast<float>(-scale * (m1[b] + a1[b] + f0[b]));
                lines1[1][b] = static_cast<float>(scale * (a1[b] + (1 - chord1) * n0[b] + chord1 * f0[b]));
                lines1[2][b] = static_cast<float>(-scale * (1 - chord1) * n0[b]);
                lines1[3][b] = static_cast<float>(mean0);
            }
            errors[0] = most0, errors[1] = most1;
            for (int b = 0; b < count; ++b) {
                sum += n0[b] * below_squares;
                below_squares += steps[b];
            }
            for (int side = 0; side < 2; ++side)
                for (int b = 0; b < count; b += 4) {
                    Four x[4];
                    for (int j = 0; j < 4; ++j) std::memcpy(x + j, (side ? lines1 : lines0)[j] + b, sizeof(Four));
                    const Four cd0 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5),
                               cd1 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
                    const Four km0 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5),
                               km1 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
                    const Four made[4] = {
                        __builtin_shufflevector(cd0, km0, 0, 1, 4, 5), __builtin_shufflevector(cd0, km0, 2, 3, 6, 7),
                        __builtin_shufflevector(cd1, km1, 0, 1, 4, 5), __builtin_shufflevector(cd1, km1, 2, 3, 6, 7)};
                    for (int j = 0; j < 4; ++j) std::memcpy(lines + 2 * (from + b + j) + side, made + j, sizeof(Four));
                }
        }
        const double unit = axis.width(), ends[2] = {tallies[0].rows() + tallies[2 * n_buckets - 2].rows(),
                                                     tallies[1].rows() + tallies[2 * n_buckets - 1].rows()};
        squares = {(sum + own) * unit * unit, doubt * unit * unit};
        limit[0] = slack * unit * std::min(last_moment, 16 * total / (above - ends[0]));
        limit[1] = slack * unit * std::min(moment_above[0] + count_above[0], 16 * total / (below - ends[1]));
        certain = errors[0] * unit <= 2 * limit[0] && errors[1] * unit <= 2 * limit[1];
    }
};

// Evaluates one term over a whole batch. The value is b2 x sum of d^2 x the scale of the reduction; factor is 2 b2 x that
// scale. The range must be positive and neither denormal nor infinite, and both classes must have rows. Returns false if many
// rows are not certified: then the exact plan is quicker, for a small batch even before another count.
inline bool certified_term(const float* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found, double shift,
                           double factor, float* grad, int threads, double& value) {
    Scratch scratch;
    const double range = found.max_neg - found.min_pos + shift;
    const Scale positions{found.min_pos, shift};
    // Fewer buckets take less time, unless many of them become heavy: with few rows of one class, two of them in a bucket do.
    const std::int64_t sources = std::min(found.n_pos, found.n_neg);
    const bool even = 4 * sources > n, few = 32 * sources < n;
    const int buckets = n >= 1 << 17 ? 4096 : n >= 1 << 14 ? (few ? 3072 : 2048) : even || few ? 1536 : 2048;
    Counted* counted =
        new (scratch.take<Counted>(1)) Counted(scratch, axis_over(positions, 0, range, buckets), scores, classes, n, threads);
    Line<float>* lines = scratch.take<Line<float>>(counted->axis.slots() + 8);
    Heavy* heavy = scratch.take<Heavy>(counted->axis.buckets);
    Estimate all;
    double limit[2];
    std::int64_t n_rows = 0;
    int n_heavy = 0;
    const auto list_heavy = [&] {
        n_heavy = counted->profile.list_heavy(counted->axis, limit, all, own_slack * all.least(), heavy);
        n_rows = 0;
        for (int h = 0; h < n_heavy; ++h) n_rows += heavy[h].n_pos + heavy[h].n_neg;
    };
    counted->with_tallies([&](const auto* tallies) {
        const EqualTables tables(scratch, counted->axis, tallies, factor, lines);
        all = tables.squares;
        std::copy(tables.limit, tables.limit + 2, limit);
        if (tables.certain && all.doubt <= own_slack * all.least()) return;
        counted->fill_profile();
        counted->profile.guess_squares(counted->axis);
        list_heavy();
    });
    if (n_rows > n / 8) {
        if (n < 1 << 15) return false;
        const Axis finer = split_axis(scratch, counted->axis, heavy, n_heavy, limit);
        counted = new (scratch.take<Counted>(1)) Counted(scratch, finer, scores, classes, n, threads);
        lines = scratch.take<Line<float>>(finer.slots());
        heavy = scratch.take<Heavy>(finer.buckets);
        counted->profile.draw(finer, factor, lines);
        all = counted->profile.pair_squares(finer);
        list_heavy();
        if (n_rows > n / 8) return false;
    }
    const Axis& axis = counted->axis;
    mark_unsolved(lines, heavy, n_heavy, factor);
    HeavyRows rest(scratch, heavy, n_heavy, n, counted->slices);
    double* parts = scratch.take<double>(counted->tasks);
    parallel(threads, counted->slices, [&](int slice) {
        std::int32_t spare_slots[block_rows];
        float spare_fractions[block_rows], spare[block_rows];
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
    const auto known = [&](int bucket) {
        const Profile::Inside inside = counted->profile.inside(bucket);
        return inside.squares().value - (axis.is_split ? 0 : inside.slopes());
    };
    double squares = all.value;
    for (int t = 0; t < counted->tasks; ++t) squares += parts[t];
    squares += rest.solve(axis, positions, scores, [](std::uint32_t, int) { return 1.0; }, known, factor, grad, threads);
    value = factor / 2 * squares;
    return true;
}

}  // namespace everypair::EVERYPAIR_ISA
