// Buckets that were not certified ("heavy" ones): their rows are gathered, and the pairs inside a bucket are
// solved exactly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "group_rows.hpp"
#include "moments.hpp"
#include "profile.hpp"
#include "sources.hpp"

namespace everypair::EVERYPAIR_ISA {

constexpr int most_buckets = 1 << 13;

// The number of buckets into which a heavy one with so many rows of each class is split.
inline int buckets_for(const double rows[2], double range, const double limit[2], int most) {
    // Evenly spread rows have an error of w c / 8, with w = range / B and c = n / B. Rows of heavy buckets
    // are seldom evenly spread, and ten times as many buckets, enough for a hundredfold density, cost less
    // than one more level.
    const double need = 10 * std::sqrt(range / 8 * std::max(rows[1] / limit[0], rows[0] / limit[1]));
    int buckets = 1;
    while (buckets < most && buckets < need) buckets *= 2;
    return buckets;
}

// The rows of heavy buckets. Each slice lists its own rows.
class HeavyRows {
  public:
    HeavyRows(Scratch& scratch, const GroupRows<float>& rows, const Axis& axis, const Heavy* heavy,
              int n_heavy, int slices)
        : rows_(rows),
          axis_(axis),
          heavy_(heavy),
          n_heavy_(n_heavy),
          slices_(slices),
          listed_(scratch.take<Listed>(n_heavy ? rows.n : 0)),
          ends_(scratch.take<std::int64_t>(slices)) {
        for (int slice = 0; slice < slices; ++slice) ends_[slice] = first_row(rows.n, slice, slices);
    }

    // Lists those of the rows from row i on whose gradient is NaN.
    void take(int slice, std::int64_t i, const std::int32_t* slots, int count, float* grad) {
        if (!n_heavy_) return;
        take_unsolved(grad, count, [&](int k) {
            listed_[ends_[slice]++] = {static_cast<std::uint32_t>(i + k), slots[k]};
        });
    }

    // Writes the gradients of the listed rows: factor x weight x sum over the other class. Returns what the
    // pairs inside heavy buckets add to the estimates of their sums of d^2.
    double solve(double factor) const {
        if (!n_heavy_) return 0;
        Scratch scratch;
        // Sorted by class and heavy bucket: the negatives of heavy bucket h end at ends[2 h], its positives
        // at ends[2 h + 1].
        std::int64_t *ends = scratch.take<std::int64_t>(2 * n_heavy_ + 1), total = 0;
        std::fill_n(ends, 2 * n_heavy_ + 1, 0);
        const auto each = [&](auto&& use) {
            for (int slice = 0; slice < slices_; ++slice)
                for (std::int64_t k = first_row(rows_.n, slice, slices_); k < ends_[slice]; ++k)
                    use(listed_[k]);
        };
        std::int32_t* number = scratch.take<std::int32_t>(axis_.buckets + 2);  // of heavy buckets
        for (int h = 0; h < n_heavy_; ++h) number[heavy_[h].bucket] = h;
        each([&](Listed& listed) {
            listed.slot = 2 * number[listed.slot / 2] + listed.slot % 2;
            ++ends[listed.slot + 1], ++total;
        });
        for (int slot = 0; slot < 2 * n_heavy_; ++slot) ends[slot + 1] += ends[slot];
        const Rows rows{scratch.take<std::uint32_t>(total), scratch.take<double>(total),
                        scratch.take<double>(total), scratch.take<double>(total)};
        // In the order of the rows for any number of slices. Afterwards each slot ends where the next one
        // began.
        each([&](const Listed& listed) {
            const std::int64_t k = ends[listed.slot]++;
            rows.row[k] = listed.row;
            rows.at[k] = axis_.u(rows_.scores[listed.row], listed.slot % 2);
            rows.w[k] = rows_.weights ? rows_.weights[listed.row] * rows_.unit(listed.slot % 2) : 1;
        });
        double* parts = scratch.take<double>(n_heavy_);
        parallel(total < task_rows ? 1 : rows_.threads, n_heavy_, [&](int h) {
            const Heavy& here = heavy_[h];
            const std::int64_t begin = h ? ends[2 * h - 1] : 0, middle = ends[2 * h], end = ends[2 * h + 1];
            for (std::int64_t k = begin; k < middle; ++k)
                rows.sums[k] = here.moment[0] + here.others[0] * (rows.at[k] - here.low);
            for (std::int64_t k = middle; k < end; ++k)
                rows.sums[k] = -(here.moment[1] + here.others[1] * (here.high - rows.at[k]));
            const bool few = (middle - begin) * (end - middle) < 32 * (end - begin);
            parts[h] =
                (few ? add_pairs(rows, begin, middle, end) : add_sorted(rows, begin, middle, end)) - here.own;
            for (std::int64_t k = begin; rows_.grad && k < end; ++k)
                rows_.grad[rows.row[k]] =
                    static_cast<float>(factor * rows.w[k] * rows.sums[k] + 0.0);  // -0.0 becomes 0.0
        });
        double rest = 0;
        for (int h = 0; h < n_heavy_; ++h) rest += parts[h];
        return rest;
    }

  private:
    struct Listed {
        std::uint32_t row;
        std::int32_t slot;
    };
    // Rows by slot: their positions, their weights, and the sums of w d over the other class (less than 0 for
    // positives).
    struct Rows {
        std::uint32_t* row;
        double *at, *w, *sums;
    };

    // Adds the pairs of the negatives begin .. middle - 1 and the positives middle .. end - 1 to the sums,
    // one by one. Returns the sum of w d^2.
    static double add_pairs(const Rows& rows, std::int64_t begin, std::int64_t middle, std::int64_t end) {
        const double *at = rows.at, *w = rows.w;
        double *sums = rows.sums, squares = 0;
        for (std::int64_t i = begin; i < middle; ++i) {
            double sum = 0, square = 0;
#pragma omp simd reduction(+ : sum, square)
            for (std::int64_t p = middle; p < end; ++p) {
                const double apart = at[i] - at[p], d = apart > 0 ? apart : 0;
                sum += w[p] * d;
                square += w[p] * d * d;
                sums[p] -= w[i] * d;
            }
            sums[i] += sum;
            squares += w[i] * square;
        }
        return squares;
    }

    // The same by sorting both classes.
    static double add_sorted(const Rows& rows, std::int64_t begin, std::int64_t middle, std::int64_t end) {
        Scratch scratch;
        Keyed<double>*given = scratch.take<Keyed<double>>(end - begin),
        *sorted = scratch.take<Keyed<double>>(end - begin);
        for (std::int64_t k = begin; k < end; ++k)
            given[k - begin] = {rows.at[k], static_cast<std::uint32_t>(k)};
        const std::int64_t n_neg = middle - begin, n_pos = end - middle;
        Keyed<double>*neg = sorted, *pos = sorted + n_neg;
        radix_sort(given, n_neg, neg);
        radix_sort(given + n_neg, n_pos, pos);
        double squares = 0;
        Moments met;
        for (std::int64_t i = 0, j = 0; i < n_neg; ++i) {
            const double u = neg[i].key, w = rows.w[neg[i].row];
            for (; j < n_pos && pos[j].key < u; ++j)
                met.advance(j ? pos[j].key - pos[j - 1].key : 0, {rows.w[pos[j].row]});
            const Moments here = j ? met.shifted(u - pos[j - 1].key) : met;
            squares += w * here.second;
            rows.sums[neg[i].row] += here.first;
        }
        met = {};
        for (std::int64_t i = n_pos - 1, j = n_neg; i >= 0; --i) {
            const double u = pos[i].key;
            for (; j > 0 && neg[j - 1].key > u; --j)
                met.advance(j < n_neg ? neg[j].key - neg[j - 1].key : 0, {rows.w[neg[j - 1].row]});
            rows.sums[pos[i].row] -= j < n_neg ? met.shifted(neg[j].key - u).first : 0;
        }
        return squares;
    }

    const GroupRows<float>& rows_;
    const Axis& axis_;
    const Heavy* heavy_;
    const int n_heavy_, slices_;
    Listed* listed_;      // of each slice, from the place of its first row on
    std::int64_t* ends_;  // by slice
};

}  // namespace everypair::EVERYPAIR_ISA
