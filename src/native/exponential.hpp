// Plan for an exponential term, factor exp(rate d) with d = s_neg - s_pos + shift: two passes over the rows,
// without a sort.
//
// The term is a product of a number of the positive and one of the negative. With M the largest score of the
// negatives and m the smallest of the positives, the sum over all negatives j of a positive i is
//
//     sum of w_j exp(rate (s_j - s_i + shift)) = exp(rate (M - s_i + shift)) x sum of w_j exp(rate (s_j - M))
//     ,
//
// and the sum over all positives of a negative is the same with m. No number that is added exceeds its
// weight, so only a result that is itself too large overflows.
//
// Error for float64: an exponent is at most 700, and rate times its difference of scores at most 256 more.
// Three operations round it, by 3e-13 in total at worst, which is the relative error of the exponential of a
// row. The sums err by at most 1.1e-16 for each addition in a row, of which there are 520 + n / 4096: 3e-13
// for n = 1e7.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "group_rows.hpp"
#include "pool.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

template <class S>
class ExponentialSums {
  public:
    ExponentialSums(const GroupRows<S>& rows, const Exponential& term)
        : rows_(rows),
          rate_(term.rate),
          shift_(term.shift),
          last_(std::abs(rows.scale * term.factor) < 0x1p-500 ? 0x1p-500 : 1),
          factor_(rows.scale * term.factor / last_),
          units_{unit(rows, rows.survey.w_neg), unit(rows, rows.survey.w_pos)} {}

    // Fills the output arrays and returns the value; NaN if the caller must compute it in another way.
    double run() const {
        double sums[2], means[2] = {0, 0};  // of negatives, of positives
        fill_sums(nullptr, sums);
        if (!(largest_ < 700 && std::abs(rate_ * shift_) < 256 && std::min(sums[0], sums[1]) > 0x1p-900))
            return std::numeric_limits<double>::quiet_NaN();
        const double slope = factor_ * rate_, of_neg = slope * sums[1] / units_[0],
                     of_pos = slope * sums[0] / units_[1];
        write(rows_.grad, of_neg, -of_pos, nullptr, means);
        write(rows_.hess, rate_ * of_neg, rate_ * of_pos, nullptr, means);
        if (rows_.hvp) {
            fill_sums(rows_.vector, means);
            for (int side = 0; side < 2; ++side) means[side] /= sums[side];
            write(rows_.hvp, rate_ * of_neg, rate_ * of_pos, rows_.vector, means);
        }
        return factor_ * sums[0] * sums[1] * vector_exp(largest_) * last_;
    }

  private:
    // The power of two by which weights of this sum are multiplied, so that none exceeds 2: the exponential
    // of a pair may be as large as 1e304.
    static double unit(const GroupRows<S>& rows, double sum) {
        return rows.weights && sum > 1 ? std::exp2(-std::ilogb(sum)) : 1;
    }

    // Calls use(task, first row, count, weights x exponentials, sides) for blocks of rows; a side is 1 for a
    // positive and 0 for a negative; unless `own`, the weights are those in units_. The exponent is that of
    // the pair of a row and the extreme row of the other class or, if `own`, -rate times its distance from
    // the extreme row of its own class. The scores of rows of weight 0 may be outside the range of their
    // class, so exponents are limited. Each loop has values of one or two widths, so that it is vectorised.
    template <bool own, class Use>
    void by_exponentials(Use&& use) const {
        by_blocks(rows_.n, task_count(rows_.n), rows_.threads, [&](int task, std::int64_t i, int count) {
            const double max_neg = rows_.survey.max_neg, min_pos = rows_.survey.min_pos;
            const double neg_bound = own ? max_neg : min_pos, pos_bound = own ? min_pos : max_neg;
            const double rate = rate_, shift = own ? 0 : shift_, largest = own ? 0 : largest_;
            double e[block_rows], sides[block_rows];
            for (int k = 0; k < count; ++k) sides[k] = rows_.classes[i + k] & 1;
            const S* scores = rows_.scores + i;
#pragma omp simd
            for (int k = 0; k < count; ++k) {
                const double s = static_cast<double>(scores[k]);
                const double y = rate * ((sides[k] > 0 ? pos_bound - s : s - neg_bound) + shift);
                e[k] = vector_exp<S>(y < largest ? y : largest);
            }
            const double neg_unit = own ? 1 : units_[0], pos_unit = own ? 1 : units_[1];
            for (int k = 0; rows_.weights && k < count; ++k)
                e[k] = e[k] * (sides[k] > 0 ? pos_unit : neg_unit) * rows_.weights[i + k];
            use(task, i, count, e, sides);
        });
    }

    // The sums of weight x exponential (x vector) of each class, relative to its extreme row. Explicit lanes
    // give all instruction sets the same order of additions.
    void fill_sums(const double* vector, double sums[2]) const {
        constexpr int n_lanes = 8;
        struct Lanes {
            double neg[n_lanes], pos[n_lanes];
        };
        Scratch scratch;
        const int tasks = task_count(rows_.n);
        Lanes* parts = scratch.take<Lanes>(tasks);
        std::fill_n(parts, tasks, Lanes{});
        by_exponentials<true>([&](int task, std::int64_t i, int count, double* e, double* sides) {
            for (int k = 0; vector && k < count; ++k) e[k] *= vector[i + k];
            for (; count % n_lanes; ++count) e[count] = sides[count] = 0;
            Lanes part = parts[task];
            for (int k = 0; k < count; k += n_lanes)
#pragma omp simd
                for (int l = 0; l < n_lanes; ++l) {
                    part.neg[l] += e[k + l] * (1 - sides[k + l]);
                    part.pos[l] += e[k + l] * sides[k + l];
                }
            parts[task] = part;
        });
        sums[0] = sums[1] = 0;
        for (int t = 0; t < tasks; ++t) {
            sums[0] += std::accumulate(parts[t].neg, parts[t].neg + n_lanes, 0.0);
            sums[1] += std::accumulate(parts[t].pos, parts[t].pos + n_lanes, 0.0);
        }
    }

    // Writes weight x exponential x factor of the class, and with a vector also times its difference from the
    // mean of the other class.
    void write(S* out, double of_neg, double of_pos, const double* vector, const double means[2]) const {
        if (!out) return;
        const double last = last_;
        by_exponentials<false>([&](int, std::int64_t i, int count, double* e, const double* sides) {
            for (int k = 0; vector && k < count; ++k)
                e[k] *= vector[i + k] - (sides[k] > 0 ? means[0] : means[1]);
            if (last == 1)
                for (int k = 0; k < count; ++k)
                    out[i + k] = static_cast<S>(e[k] * (sides[k] > 0 ? of_pos : of_neg) + 0.0);
            else
                for (int k = 0; k < count; ++k) {
                    const double of = sides[k] > 0 ? of_pos : of_neg;
                    out[i + k] =
                        static_cast<S>((std::abs(e[k]) > 1 ? e[k] * last * of : e[k] * of * last) + 0.0);
                }
        });
    }

    const GroupRows<S> rows_;
    const double rate_, shift_;
    const double last_,
        factor_;  // their product is the factor; a tiny part comes last, so that nothing underflows before it
    const double units_[2];  // of negatives, of positives
    const double largest_ =
        rate_ * ((rows_.survey.max_neg - rows_.survey.min_pos) + shift_);  // exponent of a pair
};

}  // namespace everypair::EVERYPAIR_ISA
