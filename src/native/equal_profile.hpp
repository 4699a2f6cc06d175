// Computes the lines of equal buckets, the sum of squares and the list of heavy buckets from the tallies of
// an axis. Does what several functions of Profile do, but block by block, so that all but tallies and lines
// stays in the first-level cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "profile.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// The profile of an axis with equal buckets, whose number, with the end buckets, is a multiple of `some`.
// Distances are in units of the width. The lines, the error bounds and the sums over pairs of one bucket,
// which are small, are computed in float32.
template <class AnyTally>
class EqualProfile {
  public:
    static constexpr int some = 64;
    Estimate squares;  // the sum of d^2 over all pairs, without the part that `look_up` returns
    double limit[2];   // by class: the error a row may have

    EqualProfile(Scratch& scratch, const Axis& axis, const AnyTally* tallies, double factor,
                 Line<float>* lines)
        : axis_(axis),
          n_buckets_(axis.buckets + 2),
          tallies_(tallies),
          sweeps_(scratch.take<Sweep>(n_buckets_ / some)),
          worst_(scratch.take<Worst>(n_buckets_ / some)) {
        Sweep sweep{};
        for (int b = 0; b < n_buckets_; ++b) sweep.above.add(tallies[2 * b]);
        double path = 0;
#pragma omp simd reduction(+ : path)
        for (int b = 0; b < n_buckets_; ++b) path += b * tallies[2 * b].rows();
        sweep.above_path = static_cast<std::uint64_t>(path);
        const double n_neg = sweep.above.rows();
        for (int from = 0; from < n_buckets_; from += some) {
            sweeps_[from / some] = sweep;
            add_block(sweep, from, factor * axis.width(), lines + 2 * from);
        }
        const auto sum_of_lanes = [](const Floats& of) {
            double sum = 0;
            for (int lane = 0; lane < float_lanes; ++lane) sum += static_cast<double>(of[lane]);
            return sum;
        };
        n_doubts_ = sum_of_lanes(doubtful_);
        const double unit = axis.width();
        squares = {(sum_of(sum_) + sum_of_lanes(own_)) * unit * unit, sum_of_lanes(doubt_) * unit * unit};
        const double rows[2] = {n_neg - tallies[0].rows() - tallies[2 * n_buckets_ - 2].rows(),
                                sweep.below.rows() - tallies[1].rows() - tallies[2 * n_buckets_ - 1].rows()};
        // The moments of a negative at the end of the axis, and of a positive at its start.
        const double outside = tallies[0].rows(), end = tallies[0].fractions();
        const double largest[2] = {last_moment_,
                                   path - (n_neg - outside) + (sweeps_[0].above.fractions() - end)};
        const double total = sum_of(total_);
        for (int side = 0; side < 2; ++side)
            limit[side] = slack * unit * std::min(largest[side], 16 * total / rows[side]);
    }

    // Lists the buckets that are not certified, as Profile's `list_heavy` does.
    int list_heavy(Heavy* heavy) const {
        const double unit = axis_.width(), tolerance = squares.tolerance();
        const double least = squares.doubt > tolerance ? tolerance / (unit * unit * n_doubts_) : 0x1p100;
        const float most[3] = {static_cast<float>(2 * limit[0] / unit),
                               static_cast<float>(2 * limit[1] / unit), static_cast<float>(least)};
        const auto exceeds = [&](const Floats& error0, const Floats& error1, const Floats& doubt) {
            return (error0 > most[0]) | (error1 > most[1]) | (doubt > most[2]);
        };
        int n_heavy = 0;
        for (int from = 0; from < n_buckets_; from += some) {
            const Worst& worst = worst_[from / some];
            if (!any(exceeds(worst.error0, worst.error1, worst.doubt))) continue;
            Sums sums;
            for (int b = 0; b < some; ++b) {
                const AnyTally *neg = tallies_ + 2 * (from + b), *pos = neg + 1;
                sums.set(b, neg->rows(), pos->rows(), neg->fractions(), pos->fractions());
            }
            for (int k = 0; k < some; k += float_lanes) {
                const Inside here(sums, k);
                const auto bad = exceeds(here.error0, here.error1, here.doubt);
                for (int lane = 0; lane < float_lanes; ++lane) {
                    const int b = from + k + lane;
                    if (!bad[lane] || b == 0 || b > axis_.buckets) continue;
                    Sweep sweep = sweeps_[from / some];
                    for (int at = from; at < b; ++at)
                        sweep.enter(tallies_ + 2 * at), sweep.leave(tallies_ + 2 * at);
                    sweep.enter(tallies_ + 2 * b);
                    heavy[n_heavy++] = {b,
                                        {tallies_[2 * b].rows(), tallies_[2 * b + 1].rows()},
                                        axis_.edge(b),
                                        axis_.edge(b) + unit,
                                        {sweep.below.rows(), sweep.above.rows()},
                                        {sweep.moment(0) * unit, sweep.moment(1) * unit},
                                        static_cast<double>(here.own[lane]) * unit * unit};
                }
            }
        }
        return n_heavy;
    }

  private:
    // The rows of `some` buckets and the sums of their fractions.
    struct Sums {
        alignas(64) float n0[some], n1[some], f0[some], f1[some];

        void set(int b, double of_neg, double of_pos, double f_neg, double f_pos) {
            n0[b] = static_cast<float>(of_neg), n1[b] = static_cast<float>(of_pos);
            f0[b] = static_cast<float>(f_neg), f1[b] = static_cast<float>(f_pos);
        }
    };

    // The pairs inside some buckets, as if rows were spread evenly around their mean, with a variance of
    // 1/12. The formulas are those of Profile::Inside, simplified.
    struct Inside {
        Floats n0, n1, f0, f1, mean0, mean1, half0,
            half1;                          // half: the weight of the chord, 0.5 if there are several rows
        Floats own, doubt, error0, error1;  // error: twice the error bound of a row of this class

        Inside(const Sums& sums, int k)
            : n0(load(sums.n0 + k)), n1(load(sums.n1 + k)), f0(load(sums.f0 + k)), f1(load(sums.f1 + k)) {
            const Floats none{}, one = none + 1.0f, half = none + 0.5f;
            mean0 = f0 / (n0 > 1.0f ? n0 : one), half0 = n0 > 1.0f ? half : none;
            mean1 = f1 / (n1 > 1.0f ? n1 : one), half1 = n1 > 1.0f ? half : none;
            const Floats apart = mean0 - mean1, pairs = n0 * n1, known = pairs * apart * apart,
                         several = half0 + half1, spread = pairs * several * (1.0f / 6);
            doubt = several > 0.0f ? 0.5f * (known + spread) : none;
            const Floats q0 = f0 * mean0 + half0 * n0 * (1.0f / 6), q1 = f1 * mean1 + half1 * n1 * (1.0f / 6);
            const Floats slopes = half1 * (n1 - f1) * q0 + (n0 - half0 * (n0 - f0)) * q1;
            own = 0.5f * spread + (apart > 0.0f ? known : none) - slopes;
            error0 = 2 * half1 * (n0 > 0.0f ? mean1 * (n1 - f1) : none);
            error1 = 2 * half0 * (n1 > 0.0f ? mean0 * (n0 - f0) : none);
        }
    };

    // The largest numbers of a block of buckets, by lane.
    struct Worst {
        Floats error0, error1, doubt;
    };

    // The rows outside a bucket, in integers: the positives below and the negatives above; and for each of
    // these two, the sum over the buckets in between of the rows that are still further away.
    struct Sweep {
        AnyTally below, above;
        std::uint64_t below_path, above_path;

        // `tallies` are the two of the next bucket.
        void enter(const AnyTally* tallies) {
            above.subtract(tallies[0]);
            above_path -= above.count();
            below_path += below.count();
        }
        void leave(const AnyTally* tallies) { below.add(tallies[1]); }

        // The sum of distances, as in Profile.
        double moment(int side) const {
            return side ? exact(above_path) + above.fractions() : exact(below_path) - below.fractions();
        }
    };

    // Computes the lines of `some` buckets, and adds their sums to those of the profile.
    void add_block(Sweep& sweep, int from, double scale, Line<float>* lines) {
        typedef float Four __attribute__((vector_size(16)));
        alignas(64) float line[2][4][some];
        alignas(64) AnyTally below[some], above[some];
        alignas(64) std::uint64_t below_path[some], above_path[some];
        const AnyTally* tallies = tallies_ + 2 * from;
        float *c0 = line[0][0], *c1 = line[1][0], *d0 = line[0][1], *d1 = line[1][1];
        Sweep at = sweep;  // in registers
        for (int b = 0; b < some; ++b) {
            at.enter(tallies + 2 * b);
            below[b] = at.below, above[b] = at.above;
            below_path[b] = at.below_path, above_path[b] = at.above_path;
            at.leave(tallies + 2 * b);
        }
        sweep = at;
        last_moment_ = exact(below_path[some - 1]) - below[some - 1].fractions();
        Sums sums;
        alignas(64) double squares_of[some], distances_of[some];
#pragma omp simd
        for (int b = 0; b < some; ++b) {
            const AnyTally &neg = tallies[2 * b], &pos = tallies[2 * b + 1];
            const double n0 = neg.rows(), n1 = pos.rows(), f0 = neg.fractions(), f1 = pos.fractions();
            const double a0 = below[b].rows(), a1 = above[b].rows();
            const double m0 = exact(below_path[b]) - below[b].fractions(),
                         m1 = exact(above_path[b]) + above[b].fractions();
            // The squares of distances grow by this from the left edge of the bucket to the right one, for
            // all negatives above.
            const double step = 2 * m0 + (a0 + n1 - 2 * f1);
            squares_of[b] = 2 * m0 * f0 + step * a1;
            distances_of[b] = n0 * m0 + a0 * f0;
            c0[b] = static_cast<float>(scale * m0);
            c1[b] = static_cast<float>(-scale * (m1 + a1 + f0));
            d0[b] = static_cast<float>(a0);
            d1[b] = static_cast<float>(a1);
            sums.set(b, n0, n1, f0, f1);
        }
        for (int b = 0; b < some; b += lanes) sum_ += load(squares_of + b), total_ += load(distances_of + b);
        const float slope = static_cast<float>(scale);
        Worst worst{};
        for (int b = 0; b < some; b += float_lanes) {
            const Inside here(sums, b);
            const Floats none{};
            own_ += here.own, doubt_ += here.doubt, doubtful_ += here.doubt > 0.0f ? none + 1.0f : none;
            worst.error0 = here.error0 > worst.error0 ? here.error0 : worst.error0;
            worst.error1 = here.error1 > worst.error1 ? here.error1 : worst.error1;
            worst.doubt = here.doubt > worst.doubt ? here.doubt : worst.doubt;
            const Floats rest[2][3] = {{slope * (load(d0 + b) + here.half1 * (here.n1 - here.f1)),
                                        slope * (here.n1 - here.half1 * here.n1), here.mean1},
                                       {slope * (load(d1 + b) + (here.n0 - here.half0 * (here.n0 - here.f0))),
                                        -slope * (here.n0 - here.half0 * here.n0), here.mean0}};
            for (int side = 0; side < 2; ++side)
                for (int j = 0; j < 3; ++j)
                    std::memcpy(line[side][1 + j] + b, rest[side] + j, sizeof(Floats));
        }
        worst_[from / some] = worst;
        for (int side = 0; side < 2; ++side)
            for (int b = 0; b < some; b += 4) {
                Four x[4], made[4];
                for (int j = 0; j < 4; ++j) std::memcpy(x + j, line[side][j] + b, sizeof(Four));
                transpose(x[0], x[1], x[2], x[3], made);
                for (int j = 0; j < 4; ++j) std::memcpy(lines + 2 * (b + j) + side, made + j, sizeof(Four));
            }
    }

    const Axis& axis_;
    int n_buckets_;
    const AnyTally* tallies_;
    Sweep* sweeps_;  // before each block of buckets
    Worst* worst_;   // of each block
    Vec sum_{}, total_{};
    double last_moment_ = 0, n_doubts_;
    Floats own_{}, doubt_{}, doubtful_{};  // sums by lane
};

}  // namespace everypair::EVERYPAIR_ISA
