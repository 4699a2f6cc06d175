// Plan for an exponential term, factor exp(rate d) with d = s_neg - s_pos + shift: two passes over the rows, without a sort.
//
// The term is a product of a number of the positive and one of the negative. With M the largest score of the negatives and m
// the smallest of the positives, the sum over all negatives j of a positive i is
//
//     sum of w_j exp(rate (s_j - s_i + shift)) = exp(rate (M - s_i + shift)) x sum of w_j exp(rate (s_j - M)) ,
//
// and the sum over all positives of a negative is the same with m. No number that is added exceeds its weight, so only a result
// that is itself too large overflows.
//
// Error for float64: an exponent is at most 700, and rate times its difference of scores at most 256 more. Three operations
// round it, by 3e-13 in total at worst, which is the relative error of the exponential of a row. The sums err by at
// most 1.1e-16 for each addition in a row, of which there are 520 + n / 4096: 3e-13 for n = 1e7.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

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
          largest_(rate_ * ((rows.found.max_neg - rows.found.min_pos) + shift_)) {}

    // Fills the output arrays and returns the value; NaN if the caller must compute it in another way.
    double run() const {
        const ByClass sums = class_sums(nullptr);
        if (!(largest_ < 700 && std::abs(rate_ * shift_) < 256 && std::min(sums.neg, sums.pos) > 0x1p-900))
            return std::numeric_limits<double>::quiet_NaN();
        const double slope = factor_ * rate_, of_neg = slope * sums.pos, of_pos = slope * sums.neg;
        write(rows_.grad, of_neg, -of_pos, nullptr, {});
        write(rows_.hess, rate_ * of_neg, rate_ * of_pos, nullptr, {});
        if (rows_.hvp) {
            const ByClass along = class_sums(rows_.vector);
            write(rows_.hvp, rate_ * of_neg, rate_ * of_pos, rows_.vector, {along.neg / sums.neg, along.pos / sums.pos});
        }
        return factor_ * sums.neg * sums.pos * vector_exp(largest_) * last_;
    }

  private:
    static constexpr int block_rows = 256, n_lanes = 8;
    struct ByClass {
        double neg = 0, pos = 0;
    };

    // Calls use(first row, count, exponentials, sides) for blocks of rows; a side is 1 for a positive and 0 for a negative. The
    // exponent is that of the pair of a row and the extreme row of the other class or, if `own`, -rate times its distance from
    // the extreme row of its own class. The scores of rows of weight 0 may be outside the range of their class, so exponents
    // are limited. Each loop has values of one or two widths, so that it is vectorised.
    template <bool own, class Use>
    void by_blocks(int task, Use&& use) const {
        const double neg_bound = own ? rows_.found.max_neg : rows_.found.min_pos,
                     pos_bound = own ? rows_.found.min_pos : rows_.found.max_neg;
        const double shift = own ? 0 : shift_, largest = own ? 0 : largest_;
        double e[block_rows], sides[block_rows];
        const double rate = rate_;
        const std::int64_t begin = task * task_rows, end = task_end(rows_.n, begin);
        for (std::int64_t i = begin; i < end; i += block_rows) {
            const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
            for (int k = 0; k < count; ++k) sides[k] = rows_.classes[i + k] & 1;
            for (int k = 0; k < count; ++k) e[k] = static_cast<double>(rows_.scores[i + k]);
#pragma omp simd
            for (int k = 0; k < count; ++k) {
                const double y = rate * ((sides[k] > 0 ? pos_bound - e[k] : e[k] - neg_bound) + shift);
                e[k] = vector_exp<S>(y < largest ? y : largest);
            }
            if (rows_.weights)
                for (int k = 0; k < count; ++k) e[k] *= rows_.weights[i + k];
            use(i, count, e, sides);
        }
    }

    // The sums of weight x exponential, or of weight x exponential x vector, relative to the extreme row of each class.
    // Explicit lanes fix the order of the additions.
    ByClass class_sums(const double* vector) const {
        Scratch scratch;
        const int tasks = task_count(rows_.n);
        ByClass* parts = scratch.take<ByClass>(tasks);
        parallel(rows_.threads, tasks, [&](int t) {
            double neg[n_lanes] = {}, pos[n_lanes] = {};
            by_blocks<true>(t, [&](std::int64_t i, int count, double* e, double* sides) {
                for (int k = 0; vector && k < count; ++k) e[k] *= vector[i + k];
                for (; count % n_lanes; ++count) e[count] = sides[count] = 0;
                for (int k = 0; k < count; k += n_lanes)
#pragma omp simd
                    for (int l = 0; l < n_lanes; ++l) {
                        neg[l] += e[k + l] * (1 - sides[k + l]);
                        pos[l] += e[k + l] * sides[k + l];
                    }
            });
            parts[t] = {};
            for (int l = 0; l < n_lanes; ++l) parts[t].neg += neg[l], parts[t].pos += pos[l];
        });
        ByClass total;
        for (int t = 0; t < tasks; ++t) total.neg += parts[t].neg, total.pos += parts[t].pos;
        return total;
    }

    // Writes weight x exponential x factor of the class, and with a vector also times its difference from the mean of the other
    // class.
    void write(S* out, double of_neg, double of_pos, const double* vector, const ByClass& means) const {
        if (!out) return;
        const double last = last_;
        parallel(rows_.threads, task_count(rows_.n), [&](int t) {
            by_blocks<false>(t, [&](std::int64_t i, int count, double* e, const double* sides) {
                for (int k = 0; vector && k < count; ++k) e[k] *= vector[i + k] - (sides[k] > 0 ? means.neg : means.pos);
                for (int k = 0; k < count; ++k)
                    out[i + k] = static_cast<S>(e[k] * (sides[k] > 0 ? of_pos : of_neg) * last + 0.0);
            });
        });
    }

    const GroupRows<S> rows_;
    const double rate_, shift_;
    const double last_, factor_;  // their product is the factor; a tiny part comes last, so that nothing underflows before it
    const double largest_;        // exponent of a pair
};

}  // namespace everypair::EVERYPAIR_ISA
