// The plan of certified.hpp for rows with weights.
//
// A bucket holds the sums of w, w f and w f^2 of each class, in double, instead of counts; the bounds of certified.hpp hold for
// weighted sums as well. Slices do not depend on the number of threads, so the sums always have the same order. Weights are
// relative to the mean weight of their class. The limits of errors are for the largest weight of a class: slack times the
// largest gradient, over that weight.
//
// With the squares of the fractions, their standard deviation s is known, and the lower bound c (f - m)+ alone is wrong by at
// most w c s / 2. A bucket uses it if that is less than the bound of the average, as for ties and for one dominating weight.
// If many rows are in buckets that are not certified, the exact plan is used.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>

#include "certified.hpp"
#include "gridded.hpp"

namespace everypair::EVERYPAIR_ISA {

class WeightedBuckets {
  public:
    // `shift` is the largest one of all terms.
    WeightedBuckets(const float* scores, const std::uint8_t* classes, const double* weights, std::int64_t n,
                    const Survey& found, double shift, int threads)
        : scores_(scores),
          classes_(classes),
          weights_(weights),
          n_(n),
          threads_(threads),
          found_(found),
          positions_{found.min_pos, shift},
          range_(found.max_neg - found.min_pos + shift),
          unit_{static_cast<double>(found.n_neg) / found.w_neg, static_cast<double>(found.n_pos) / found.w_pos} {}

    // As `certified_term`; factor includes the mean weights of both classes. Returns false if the exact plan must be used.
    bool one_term(double factor, float* grad, double& value) const {
        Scratch scratch;
        Axis axis = axis_over(positions_, 0, range_, n_ < 1 << 14 ? 1536 : n_ < 1 << 17 ? 2048 : 4096);
        for (bool last = n_ < 1 << 15;; last = true) {
            const Profile profile = counted(scratch, axis);
            double limit[2];
            for (int side = 0; side < 2; ++side)
                limit[side] =
                    slack * std::min(profile.greatest_by_weight(axis, side), 16 * profile.total / profile.active[side]);
            // Lines are float32, and must not be denormal where the gradient of a heavy row is not.
            if (!(std::abs(factor) * std::min(limit[0], limit[1]) > 0x1p-110)) return false;
            const Estimate all = profile.pair_squares(axis);
            Heavy* heavy = scratch.take<Heavy>(axis.buckets);
            const int n_heavy = profile.list_heavy(axis, limit, all, own_slack * all.least(), heavy);
            double mass = 0;
            for (int h = 0; h < n_heavy; ++h) mass += profile.rows[0][heavy[h].bucket] + profile.rows[1][heavy[h].bucket];
            if (mass <= static_cast<double>(n_) / 8) {
                Line<float>* lines = scratch.take<Line<float>>(axis.slots());
                profile.draw(axis, factor, lines);
                mark_unsolved(lines, heavy, n_heavy, factor);
                value = all.value;
                if (grad || n_heavy) value += evaluate(axis, lines, profile, heavy, n_heavy, factor, grad);
                value *= factor / 2;
                return true;
            }
            if (last) return false;
            axis = split_axis(scratch, axis, heavy, n_heavy, limit);
        }
    }

    // As `certified_terms`; scale includes the mean weights of both classes.
    bool several_terms(const Term* terms, int n_terms, double scale, float* grad, int most, double& value) const {
        const Grid grid(terms, n_terms, found_, most);
        if (!grid.exists) return false;
        Scratch scratch;
        const Profile profile = counted(scratch, grid.axis);
        Line<float>* lines = scratch.take<Line<float>>(grid.axis.slots());
        if (!grid.draw(profile, terms, n_terms, scale, lines, value)) return false;
        if (grad) evaluate(grid.axis, lines, profile, nullptr, 0, 0, grad);
        return true;
    }

  private:
    struct Block {
        std::int32_t slots[block_rows], fractions[block_rows];
        double weights[block_rows];
    };

    void read(const Axis& axis, std::int64_t i, int count, Block& block) const {
        std::uint8_t sides[block_rows];
        const double of_neg = unit_[0], of_pos = unit_[1];
        for (int k = 0; k < count; ++k) sides[k] = classes_[i + k] & 1;
        locate(axis, scores_ + i, sides, count, block.slots, block.fractions);
#pragma omp simd
        for (int k = 0; k < count; ++k) block.weights[k] = weights_[i + k] * (sides[k] ? of_pos : of_neg);
    }

    // Calls use(first row, number of rows, block) for the blocks of each slice, in parallel.
    template <class Use>
    void by_slices(const Axis& axis, int slices, Use&& use) const {
        parallel(threads_, slices, [&](int slice) {
            Block block;
            const std::int64_t end = first_row(slice + 1, slices);
            for (std::int64_t i = first_row(slice, slices); i < end; i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
                read(axis, i, count, block);
                use(slice, i, count, block);
            }
        });
    }
    std::int64_t first_row(int slice, int slices) const {
        return std::min(n_, static_cast<std::int64_t>(task_count(n_)) * slice / slices * task_rows);
    }

    Profile counted(Scratch& scratch, const Axis& axis) const {
        const std::size_t slots = axis.slots();
        const int slices = static_cast<int>(std::clamp<std::int64_t>(n_ / static_cast<std::int64_t>(8 * slots), 1, 32));
        WeightSums* sums = scratch.take<WeightSums>(slots * slices);
        parallel(threads_, slices, [&](int slice) { std::fill_n(sums + slice * slots, slots, WeightSums{}); });
        by_slices(axis, slices, [&](int slice, std::int64_t, int count, const Block& block) {
            add_weights(sums + slice * slots, block.slots, block.fractions, block.weights, count);
        });
        for (int slice = 1; slice < slices; ++slice)
            for (std::size_t slot = 0; slot < slots; ++slot) sums[slot].add(sums[slice * slots + slot]);
        Profile profile(scratch, axis);
        profile.read(scratch, axis, sums);
        profile.sweep(axis);
        return profile;
    }

    // Writes the gradients. Returns what the pairs of uncertified buckets add to their estimates.
    double evaluate(const Axis& axis, const Line<float>* lines, const Profile& profile, const Heavy* heavy, int n_heavy,
                    double factor, float* grad) const {
        Scratch scratch;
        const int slices = slice_count(n_, threads_);
        HeavyRows rest(scratch, heavy, n_heavy, n_, slices);
        for (int slice = 0; slice < slices; ++slice) rest.start(slice, first_row(slice, slices));
        by_slices(axis, slices, [&](int slice, std::int64_t i, int count, const Block& block) {
            float out[block_rows];
            look_up(lines, block.slots, block.fractions, count, out);
            rest.take(slice, i, block.slots, count, out);
#pragma omp simd
            for (int k = 0; k < (grad ? count : 0); ++k)
                grad[i + k] = static_cast<float>(block.weights[k] * out[k] + 0.0);  // -0.0 becomes 0.0
        });
        const auto weight_of = [&](std::uint32_t row, int side) { return weights_[row] * unit_[side]; };
        const auto known = [&](int h) { return profile.inside(heavy[h].bucket).squares().value; };
        return rest.solve(positions_, scores_, weight_of, known, factor, grad, threads_);
    }

    const float* scores_;
    const std::uint8_t* classes_;
    const double* weights_;
    const std::int64_t n_;
    const int threads_;
    const Survey& found_;
    const Scale positions_;
    const double range_, unit_[2];
};

}  // namespace everypair::EVERYPAIR_ISA
