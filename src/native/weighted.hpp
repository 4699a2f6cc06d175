// The plan of certified.hpp for rows with weights.
//
// A bucket holds the sums of w, w f and w f^2 of each class, in double, instead of counts; the bounds of certified.hpp hold for
// weighted sums as well. Slices do not depend on the number of threads, so the sums always have the same order. Weights are
// relative to the mean weight of their class. The limits of errors are for the largest weight of a class: slack times the
// largest gradient, over that weight.
//
// With the squares of the fractions, their standard deviation s is known, and the lower bound c (f - m)+ alone is wrong by at
// most w c s / 2. A bucket uses it if that is less than the bound of the average, as for ties and for one dominating weight.
// In buckets that are not certified, all pairs of rows are evaluated one by one. If these are too many, the exact plan is used.
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
                profile.draw<true>(axis, factor, lines);
                mark_unsolved(lines, heavy, n_heavy, factor);
                double rest = 0;
                if ((grad || n_heavy) && !evaluate(axis, lines, profile, heavy, n_heavy, factor, grad, rest)) return false;
                value = factor / 2 * (all.value + rest);
                return true;
            }
            if (last) return false;
            axis = split_axis(scratch, axis, heavy, n_heavy, limit);
        }
    }

    // As `certified_terms`; scale includes the mean weights of both classes.
    bool several_terms(const Term* terms, int n_terms, double scale, float* grad, int most, double& value) const {
        constexpr int most_terms = 16;
        const double reach = positions_.shift, step = std::min(common_step(terms, n_terms, reach), range_);
        if (n_terms > most_terms || !(step > 0) || range_ > most * step || std::abs(reach) > 0x1p24 * range_) return false;
        const double width = step / std::ceil(step * most / range_), forward = (1 + 0x1p-40) * width;
        const int cells = static_cast<int>(range_ / width) + 2;
        const Axis axis{positions_.origin, {reach + forward, forward}, 0, 1 / width, cells, cells};
        Scratch scratch;
        const Profile profile = counted(scratch, axis);
        Profile* profiles = scratch.take<Profile>(n_terms);
        int* moved = scratch.take<int>(n_terms);
        double total = 0, doubt = 0, active[2] = {0, 0};
        value = 0;
        for (int j = 0; j < n_terms; ++j) {
            moved[j] = static_cast<int>(std::lround((reach - terms[j].shift) / width));
            Profile& of_term = *new (profiles + j) Profile(scratch, axis);
            of_term.take(axis, profile, moved[j]);
            of_term.sweep(axis, {});
            const Estimate pairs = of_term.pair_squares(axis);
            const double factor = 2 * terms[j].b2 * scale;
            value += factor / 2 * pairs.value;
            doubt += std::abs(factor) / 2 * pairs.doubt;
            total += factor * of_term.total;
            for (int side = 0; side < 2; ++side) active[side] = std::max(active[side], of_term.active[side]);
        }
        if (doubt > own_slack * std::abs(value)) return false;
        Line<float>* lines = scratch.take<Line<float>>(axis.slots());
        for (int side = 0; side < 2; ++side) {
            double greatest = 0, steepest = 0, worst = 0, worst_by_weight = 0;
            for (int b = 0; b < axis.buckets + 2; ++b) {
                Sum sum;
                for (int j = 0; j < n_terms; ++j) sum.add(side, profiles[j], side ? b : b - moved[j], 2 * terms[j].b2 * scale);
                lines[2 * b + side] = sum.line(side);
                const double w = profile.heaviest[side][b], first = std::abs(sum.start), last = std::abs(sum.start + sum.rise);
                if (w == 0) continue;
                if ((sum.start > 0) == (sum.start + sum.rise > 0)) greatest = std::max(greatest, w * std::min(first, last));
                steepest = std::max(steepest, w * std::max(first, last));
                worst = std::max(worst, sum.doubt - sum.gain);
                worst_by_weight = std::max(worst_by_weight, w * (sum.doubt - sum.gain));
            }
            if (worst_by_weight > slack * greatest || worst > 16 * slack * std::abs(total) / active[side] ||
                steepest > 2 * greatest || !(greatest > 0x1p-90))
                return false;
        }
        double none = 0;
        return !grad || evaluate(axis, lines, profile, nullptr, 0, 0, grad, none);
    }

  private:
    struct Block {
        std::int32_t slots[block_rows];
        float fractions[block_rows];
        double weights[block_rows];
    };
    struct Unsolved {
        std::uint32_t row;
        std::int32_t slot;
    };

    void read(const Axis& axis, std::int64_t i, int count, Block& block) const {
        std::uint8_t sides[block_rows];
        const double of_neg = unit_[0], of_pos = unit_[1];
        for (int k = 0; k < count; ++k) sides[k] = classes_[i + k] & 1;
        locate<false>(axis, scores_ + i, sides, count, block.slots, block.fractions);
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
        profile.sweep(axis, {});
        return profile;
    }

    // Writes the gradients. `rest` is what the pairs of uncertified buckets add to their estimates.
    bool evaluate(const Axis& axis, const Line<float>* lines, const Profile& profile, const Heavy* heavy, int n_heavy,
                  double factor, float* grad, double& rest) const {
        Scratch scratch;
        const int slices = slice_count(n_, threads_);
        Unsolved* listed = scratch.take<Unsolved>(n_heavy ? n_ : 0);
        std::int64_t* n_listed = scratch.take<std::int64_t>(slices);
        std::fill_n(n_listed, slices, 0);
        by_slices(axis, slices, [&](int slice, std::int64_t i, int count, const Block& block) {
            float out[block_rows];
            look_up(lines, block.slots, block.fractions, count, out);
            if (n_heavy)
                take_unsolved(out, count, [&](int k) {
                    if (block.weights[k] > 0)
                        listed[first_row(slice, slices) + n_listed[slice]++] = {static_cast<std::uint32_t>(i + k),
                                                                                block.slots[k]};
                });
#pragma omp simd
            for (int k = 0; k < (grad ? count : 0); ++k)
                grad[i + k] = static_cast<float>(block.weights[k] * out[k] + 0.0);  // -0.0 becomes 0.0
        });
        if (!n_heavy) return true;

        // Sorts the listed rows by slot. They are in the order of the rows, for any number of slices.
        std::int64_t *ends = scratch.take<std::int64_t>(axis.slots() + 1), total = 0, pairs = 0;
        std::fill_n(ends, axis.slots() + 1, 0);
        const auto each = [&](auto&& use) {
            for (int slice = 0; slice < slices; ++slice)
                for (std::int64_t k = 0; k < n_listed[slice]; ++k) use(listed[first_row(slice, slices) + k]);
        };
        each([&](const Unsolved& row) { ++ends[row.slot + 1], ++total; });
        for (int h = 0; h < n_heavy; ++h) pairs += ends[2 * heavy[h].bucket + 1] * ends[2 * heavy[h].bucket + 2];
        if (pairs > 8 * n_) return false;
        for (std::size_t slot = 0; slot < axis.slots(); ++slot) ends[slot + 1] += ends[slot];
        double *at = scratch.take<double>(total), *w = scratch.take<double>(total), *sums = scratch.take<double>(total);
        std::uint32_t* rows = scratch.take<std::uint32_t>(total);
        each([&](const Unsolved& found) {
            const std::int64_t k = ends[found.slot]++;
            const int side = found.slot % 2;
            rows[k] = found.row;
            at[k] = positions_.u(scores_[found.row], side);
            w[k] = weights_[found.row] * unit_[side];
        });
        // Each slot now ends where the next one began.
        double* parts = scratch.take<double>(n_heavy);
        parallel(total < task_rows ? 1 : threads_, n_heavy, [&](int h) {
            const Heavy& here = heavy[h];
            const std::int64_t slot = 2 * here.bucket, middle = ends[slot], end = ends[slot + 1];
            for (std::int64_t p = middle; p < end; ++p)
                sums[p] = -(here.outside.neg_moment + here.outside.neg_count * (here.high - at[p]));
            double squares = 0;
            for (std::int64_t i = ends[slot - 1]; i < middle; ++i) {
                double sum = here.outside.pos_moment + here.outside.pos_count * (at[i] - here.low), square = 0;
#pragma omp simd reduction(+ : sum, square)
                for (std::int64_t p = middle; p < end; ++p) {
                    const double apart = at[i] - at[p], d = apart > 0 ? apart : 0;
                    sum += w[p] * d;
                    square += w[p] * d * d;
                    sums[p] -= w[i] * d;
                }
                sums[i] = sum;
                squares += w[i] * square;
            }
            for (std::int64_t k = ends[slot - 1]; grad && k < end; ++k)
                grad[rows[k]] = static_cast<float>(factor * w[k] * sums[k] + 0.0);
            parts[h] = squares - profile.inside(here.bucket).squares().value;
        });
        for (int h = 0; h < n_heavy; ++h) rest += parts[h];
        return true;
    }

    const float* scores_;
    const std::uint8_t* classes_;
    const double* weights_;
    const std::int64_t n_;
    const int threads_;
    const Scale positions_;
    const double range_, unit_[2];
};

}  // namespace everypair::EVERYPAIR_ISA
