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

#include "everywhere.hpp"
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
        const auto exponential = exponentials<true>();
        const ByClass sums = class_sums(rows_, exponential);
        if (!(largest_ < 700 && std::abs(rate_ * shift_) < 256 && std::min(sums[0], sums[1]) > 0x1p-900))
            return std::numeric_limits<double>::quiet_NaN();
        const double slope = factor_ * rate_;
        const ByClass slopes{slope * sums[1] / units_[0], slope * sums[0] / units_[1]},
            curvatures{rate_ * slopes[0], rate_ * slopes[1]};
        write(rows_.grad, {slopes[0], -slopes[1]}, nullptr, {});
        write(rows_.hess, curvatures, nullptr, {});
        if (const double* vector = rows_.hvp ? rows_.vector : nullptr) {
            const ByClass along = class_sums(
                rows_, [=](std::int64_t i, double side) { return exponential(i, side) * vector[i]; });
            write(rows_.hvp, curvatures, vector, {along[0] / sums[0], along[1] / sums[1]});
        }
        return factor_ * sums[0] * sums[1] * vector_exp(largest_) * last_;
    }

  private:
    // The power of two by which weights of this sum are multiplied, so that none exceeds 2: the exponential
    // of a pair may be as large as 1e304.
    static double unit(const GroupRows<S>& rows, double sum) {
        return rows.weights && sum > 1 ? std::exp2(-std::ilogb(sum)) : 1;
    }

    // A function of a row, without branches, so that loops are vectorised. Its exponent is that of the pair
    // of the row and the extreme row of the other class or, if `own`, -rate times its distance from the
    // extreme row of its own class. The scores of rows of weight 0 may be outside the range of their class,
    // so exponents are limited.
    template <bool own>
    auto exponentials() const {
        const double neg_bound = own ? rows_.survey.max_neg : rows_.survey.min_pos,
                     pos_bound = own ? rows_.survey.min_pos : rows_.survey.max_neg;
        const double rate = rate_, shift = own ? 0 : shift_, largest = own ? 0 : largest_;
        return [=, scores = rows_.scores](std::int64_t i, double side) {
            const double s = static_cast<double>(scores[i]);
            const double y = rate * ((side > 0 ? pos_bound - s : s - neg_bound) + shift);
            return vector_exp<S>(y < largest ? y : largest);
        };
    }

    // Writes weight x exponential x factor of the class, and with a vector also times its difference from the
    // mean of the other class.
    void write(S* out, ByClass factors, const double* vector, ByClass means) const {
        if (!out) return;
        const auto exponential = exponentials<false>();
        by_blocks(rows_.n, task_count(rows_.n), rows_.threads, [&](int, std::int64_t first, int count) {
            const double last = last_, neg_factor = factors[0], pos_factor = factors[1];
            const double neg_unit = units_[0], pos_unit = units_[1], neg_mean = means[0], pos_mean = means[1];
            double e[block_rows], sides[block_rows];
            fill_sides(rows_.classes + first, count, sides);
#pragma omp simd
            for (int k = 0; k < count; ++k) e[k] = exponential(first + k, sides[k]);
            for (int k = 0; rows_.weights && k < count; ++k)
                e[k] = e[k] * (sides[k] > 0 ? pos_unit : neg_unit) * rows_.weights[first + k];
            for (int k = 0; vector && k < count; ++k)
                e[k] *= vector[first + k] - (sides[k] > 0 ? neg_mean : pos_mean);
            for (int k = 0; last == 1 && k < count; ++k)
                out[first + k] = static_cast<S>(e[k] * (sides[k] > 0 ? pos_factor : neg_factor) + 0.0);
            for (int k = 0; last != 1 && k < count; ++k) {
                const double factor = sides[k] > 0 ? pos_factor : neg_factor;
                out[first + k] =
                    static_cast<S>((std::abs(e[k]) > 1 ? e[k] * last * factor : e[k] * factor * last) + 0.0);
            }
        });
    }

    const GroupRows<S> rows_;
    const double rate_, shift_;
    // Their product is the factor. A tiny part comes last, so that nothing underflows before it.
    const double last_, factor_;
    const ByClass units_;  // of negatives, of positives
    const double largest_ =
        rate_ * ((rows_.survey.max_neg - rows_.survey.min_pos) + shift_);  // exponent of a pair
};

}  // namespace everypair::EVERYPAIR_ISA
