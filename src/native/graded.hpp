// Plan for one truncated term b2 d^2 over float32 scores and few grades: two passes over the rows, without a
// sort, with a proven error bound. It is the plan of certified.hpp, for all pairs of a row (the winner) and a
// row of a lower grade (the loser).
//
// A winner has the position s and a loser s + shift; a pair counts where the loser's position is higher. The
// width of the buckets divides the shift, so a row has the same fraction f of its bucket in both roles, and
// its bucket as a loser is `moved` buckets higher. Pass 1 counts the rows of each bucket and grade, with the
// sums of f and f^2. Running sums over grades and buckets give, for each bucket and grade, the sums over the
// winners of higher grades below it and over the losers of lower grades above it. So the gradient of a row as
// a loser is a line in f, plus the sum phi of (f - f_pos)+ over the c winners in the same bucket. With their
// mean m and standard deviation s,
//
//     c (f - m)+  <=  phi(f)  <=  c (f - m)+ + c s / 2    and    phi(f)  <=  c (1 - m) f ,
//
// so the first bound plus c s / 4 has an error of at most c s / 4, and the last one minus c m (1 - m) / 2 of
// at most that. The better of the two is used, and mirrored for winners. Pass 2 evaluates the sum of both
// roles for each row: a line with two kinks. Distances are in units of the width of a bucket.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "certified.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

constexpr int most_grades = 16;

// Writes the rank of the target of each row, from 0, and returns the number of ranks; 0 if there are too
// many.
template <class L>
int code_grades(const L* targets, std::int64_t n, std::uint8_t* grades) {
    using Code = std::conditional_t<sizeof(L) == 1, std::uint8_t,
                                    std::conditional_t<sizeof(L) == 4, std::int32_t, std::int64_t>>;
    L values[most_grades + 1];  // ascending; the last one twice
    int count = 1;
    values[0] = values[1] = targets[0];
    for (std::int64_t begin = 0; begin < n;) {
        const int rows = static_cast<int>(std::min<std::int64_t>(block_rows, n - begin));
        const L* y = targets + begin;
        Code codes[block_rows] = {};
        for (int k = 0; k < count; ++k) {
            const L value = values[k];
#pragma omp simd
            for (int i = 0; i < rows; ++i) codes[i] += y[i] > value;
        }
        int known = 0;
        while (known < rows && values[codes[known]] == y[known]) ++known;
        if (known < rows) {  // a new grade: all rows before it are coded again
            if (count == most_grades) return 0;
            for (int k = count; k > codes[known]; --k) values[k] = values[k - 1];
            values[codes[known]] = y[known];
            ++count;
            values[count] = values[count - 1];
            begin = 0;
            continue;
        }
        for (int i = 0; i < rows; ++i) grades[begin + i] = static_cast<std::uint8_t>(codes[i]);
        begin += rows;
    }
    return count;
}

inline int code_grades(const Batch& batch, std::uint8_t* grades) {
    return with_labels(batch, [&](const auto* targets) { return code_grades(targets, batch.n, grades); });
}

// Rows with a finite score and a grade below n_grades, at least two of which occur.
struct GradedRows {
    const float* scores;
    const std::uint8_t* grades;
    std::int64_t n;
    int n_grades;
    int threads;
};

class GradedPairs {
  public:
    // The loss is the sum of b2 d^2 over all pairs with d > 0, or the mean. The shift must be at least 0.
    GradedPairs(const GradedRows& rows, double shift, double b2, bool mean)
        : rows_(rows), shift_(shift), b2_(b2), mean_(mean) {
        constexpr float none = -std::numeric_limits<float>::infinity();
        const std::uint8_t top = static_cast<std::uint8_t>(rows.n_grades - 1);
        Largest<float> least_negated(none), most(none);
        by_blocks(rows.n, 1, 1, [&](int, std::int64_t begin, int count) {
            const float* scores = rows.scores + begin;
            const std::uint8_t* grades = rows.grades + begin;
            least_negated.add(count, [=](std::int64_t i) { return either(grades[i] > 0, -scores[i], none); });
            most.add(count, [=](std::int64_t i) { return either(grades[i] < top, scores[i], none); });
        });
        lowest_ = -least_negated.value(), reach_ = most.value() - lowest_ + shift;
    }

    // Writes the gradients and sets the value and the number of pairs. Returns false, without writing, if the
    // error bound is too large.
    bool run(float* grad, double& value, double& pairs) {
        if (!(reach_ > 0)) return false;
        double wanted = rows_.n < 1 << 14 ? 1536 : 2048;
        for (int tries = 0; tries < 3; ++tries) {
            Scratch scratch;
            Places<float> places(scratch, rows_.n, 1 << 15);
            const double excess = solve(scratch, places, static_cast<int>(wanted), value, pairs);
            if (excess <= 1) {
                if (grad) write(places, grad);
                return true;
            }
            // The error bound of evenly spread rows falls with the square of the number of buckets.
            wanted *= 1.2 * std::sqrt(excess);
            if (!(wanted < 1 << 15) || wanted * rows_.n_grades > 2 * static_cast<double>(rows_.n)) break;
        }
        return false;
    }

  private:
    // By bucket, or by place: the number of rows, the sum of their fractions, or of their distances, and that
    // of the squares.
    struct Sums3 {
        double *n, *f, *q;

        Sums3 from(std::size_t bucket) const { return {n + bucket, f + bucket, q + bucket}; }
    };
    // Over all grades: the sum of d^2 over the pairs and the bound of its error; the sum of d over the pairs
    // of different buckets; at least the largest gradient, the largest end of a line, and the largest error
    // bound of a gradient.
    struct Totals {
        double squares = 0, doubt = 0, firsts = 0, greatest = 0, steepest = 0, worst = 0;
    };
    // Calls use(slice, first row, count, slots, fractions) for blocks of rows.
    template <class Use>
    void by_located_blocks(Places<float>& places, int slices, Use&& use) const {
        const double origin = lowest_, offset = offset_, scale = 1 / width_, last = n_buckets_ - 0.5;
        const std::int32_t stride = n_buckets_;
        const auto locate = [&](std::int64_t from, int count, std::int32_t* slots, float* fractions) {
            const float* scores = rows_.scores + from;
            const std::uint8_t* grades = rows_.grades + from;
#pragma omp simd
            for (int i = 0; i < count; ++i) {
                const double p = ((static_cast<double>(scores[i]) - origin) + offset) * scale;
                double q = p > 0 ? p : 0;
                q = q < last ? q : last;
                const std::int32_t bucket = static_cast<std::int32_t>(q);
                const float f = static_cast<float>(q - bucket);
                slots[i] = grades[i] * stride + bucket;
                fractions[i] = f < 1 ? f : 1 - 0x1p-24f;
            }
            for (int i = count; i % 4; ++i) slots[i] = slots[0], fractions[i] = 0;
        };
        places.by_blocks(slices, rows_.threads, locate, use);
    }

    // Pass 1. The sums are integers, so they do not depend on the order of rows or on threads.
    void count_rows(Scratch& scratch, Places<float>& places) const {
        const std::size_t n_slots = static_cast<std::size_t>(n_buckets_) * rows_.n_grades;
        const int some = 1 + static_cast<int>(rows_.n / n_slots);
        const int slices =
            std::max(tally_slices(rows_.n), std::min(slice_count(rows_.n, rows_.threads), some));
        SquaredTally* tallies = scratch.take<SquaredTally>(n_slots * slices);
        std::fill_n(tallies, n_slots * slices, SquaredTally{});
        const auto use = [&](int slice, std::int64_t, int count, const std::int32_t* slots,
                             const float* fractions) {
            std::int32_t fixed[block_rows];
#pragma omp simd
            for (int i = 0; i < count; ++i) fixed[i] = static_cast<std::int32_t>(fractions[i] * 0x1p24f);
            add_rows(tallies + n_slots * slice, slots, fixed, count);
        };
        by_located_blocks(places, slices, use);
        for (int slice = 0; slice < slices; ++slice)
            read_table(tallies + n_slots * slice, 1, n_slots, slice > 0, all_.n, all_.f, all_.q);
    }

    // Computes the lines of all slots and the value. Returns the error bound over the allowed error.
    double solve(Scratch& scratch, Places<float>& places, int wanted, double& value, double& pairs) {
        constexpr double unreliable = std::numeric_limits<double>::infinity();
        const double range = reach_ + shift_, parts = std::ceil(shift_ * wanted / range);
        width_ = parts > 0 ? shift_ / parts : range / wanted;
        if (!(range / width_ < 4.0 * wanted)) return unreliable;
        moved_ = static_cast<int>(parts);
        // The lowest row that may have pairs is at the start of bucket 1; rows outside the buckets have no
        // pairs.
        offset_ = shift_ + (1 + 0x1p-40) * width_;
        n_buckets_ = static_cast<int>(range / width_) + 4;
        const std::size_t n = n_buckets_, n_slots = n * rows_.n_grades, n_places = n + moved_;
        const auto take = [&](std::size_t size) -> Sums3 {
            return {scratch.take<double>(size), scratch.take<double>(size), scratch.take<double>(size)};
        };
        all_ = take(n_slots), winners_ = take(n_places), losers_ = take(n_places), below_ = take(n_places),
        above_ = take(n_places);
        for (const Sums3& sums : {winners_, losers_})
            for (double* array : {sums.n, sums.f, sums.q}) std::fill_n(array, n_places, 0.0);
        lines_ = scratch.take<Octet<float>>(n_slots);
        count_rows(scratch, places);
        const auto add = [&](const Sums3& to, int grade, double sign, int moved) {
            for (const auto array : {&Sums3::n, &Sums3::f, &Sums3::q}) {
                double* sum = to.*array + moved;
                const double* own = all_.*array + n * grade;
#pragma omp simd
                for (int b = low_[grade]; b <= high_[grade]; ++b) sum[b] += sign * own[b];
            }
        };
        int first = n_buckets_, last = 0;
        double lower = 0;
        pairs = 0;
        for (int g = 0; g < rows_.n_grades; ++g) {
            const double* own = all_.n + n * g;
            low_[g] = 0, high_[g] = n_buckets_ - 1;
            while (own[low_[g]] == 0) ++low_[g];
            while (own[high_[g]] == 0) --high_[g];
            first = std::min(first, low_[g]), last = std::max(last, high_[g] + moved_);
            const double count = std::reduce(own + low_[g], own + high_[g] + 1);
            pairs += count * lower;
            lower += count;
            add(winners_, g, 1, 0);
        }
        factor_ = mean_ ? 2 * b2_ / pairs : 2 * b2_;
        // Gradients must stay well below the largest float32.
        if (!(std::abs(factor_) * static_cast<double>(rows_.n) * range < 0x1p120)) return unreliable;
        Totals totals;
        for (int g = 0; g < rows_.n_grades; ++g) {
            add(winners_, g, -1, 0);
            if (g) add(losers_, g - 1, 1, moved_);
            sweep(first, last, std::max(high_[g] + moved_ - first, last - low_[g]) + 1);
            draw(g, totals);
        }
        value = factor_ / 2 * width_ * width_ * totals.squares;
        const double limit =
            slack * std::min(totals.greatest, 16 * totals.firsts / static_cast<double>(rows_.n));
        // Lines are rounded to float32, so no line may be much larger than the gradients.
        if (!(totals.steepest <= 2 * totals.greatest)) return unreliable;
        return std::max(totals.worst / limit, totals.doubt / (own_slack * totals.squares));
    }

    // Sums over so many places, upwards from `first` and downwards from `last`. Both directions run in one
    // loop: each is a chain of dependent additions, and the two chains run in parallel.
    void sweep(int first, int last, int count) const {
        const Sums3 w = winners_, l = losers_, below = below_, above = above_;
        Moments met;
        double n = 0, f = 0;
        for (int b = first, e = last; b < first + count; ++b, --e) {
            below.n[b] = met.count, below.f[b] = met.first, below.q[b] = met.second;
            met.advance(1, {w.n[b], w.n[b] - w.f[b], w.n[b] - 2 * w.f[b] + w.q[b]});
            above.n[e] = n, above.f[e] = f;
            f += n + l.f[e];
            n += l.n[e];
        }
    }

    // Estimates of the sum over c rows of one bucket: c (f - m)+ + lift, or the line rise f + lift.
    struct Estimated {
        double variance, kink, mean, rise, lift, error;
    };
    static Estimated estimate(double c, double sum, double squares) {
        const double inverse = 1 / (c > 0 ? c : 1), m = sum * inverse, left = squares * inverse - m * m,
                     variance = left > 0 ? left : 0;
        // The sums have 24 bits, so the variance has an error of about 2^-22. One row has none.
        const double s = c > 1 ? std::sqrt(variance + 0x1p-22) : 0;
        const double kinked = c * s / 4, straight = c * m * (1 - m) / 2;
        const bool is_straight = straight < kinked;
        return {variance,
                is_straight ? 0 : c,
                m,
                is_straight ? c * (1 - m) : 0,
                is_straight ? -straight : kinked,
                is_straight ? straight : kinked};
    }

    // Computes the lines of a grade, and adds the pairs that its rows lose to the totals.
    void draw(int grade, Totals& totals) const {
        constexpr int some = 64;
        float table[6][some];
        double least_gradients[some], most_gradients[some], errors[some];
        Largest<double> greatest(totals.greatest), steepest(totals.steepest), worst(totals.worst);
        const double scale = factor_ * width_;
        double squares = 0, doubt = 0, firsts = 0;
        for (int from = low_[grade]; from <= high_[grade]; from += some) {
            const int count = std::min(some, high_[grade] + 1 - from);
            const std::size_t slot = static_cast<std::size_t>(n_buckets_) * grade + from;
            const Sums3 own = all_.from(slot), w = winners_.from(moved_ + from), l = losers_.from(from),
                        below = below_.from(moved_ + from), above = above_.from(from);
            if (std::all_of(own.n, own.n + count, [](double rows) { return rows == 0; })) continue;
#pragma omp simd reduction(+ : squares, doubt, firsts)
            for (int b = 0; b < count; ++b) {
                const double n = own.n[b], f = own.f[b], q = own.q[b], inverse = 1 / (n > 0 ? n : 1);
                const Estimated lost = estimate(w.n[b], w.f[b], w.q[b]);
                // The sum of (f_neg - f)+ is that of (f - f_neg)+, less the sum of f - f_neg.
                const Estimated won = estimate(l.n[b], l.f[b], l.q[b]);
                const double v0 = q * inverse - f * inverse * f * inverse;
                const OwnSquares<double> inside(n, w.n[b], f * inverse, lost.mean, v0 > 0 ? v0 : 0,
                                                lost.variance);
                squares += n * below.q[b] + 2 * f * below.f[b] + q * below.n[b] + inside.value;
                doubt += inside.doubt;
                firsts += n * below.f[b] + f * below.n[b];
                const double c = below.f[b] + lost.lift - (above.f[b] + above.n[b] + l.f[b] + won.lift);
                const double d = below.n[b] + lost.rise + above.n[b] + l.n[b] - won.rise;
                const double last = c + d + lost.kink * (1 - lost.mean) - won.kink * (1 - won.mean);
                const double error = lost.error + won.error, low = c < 0 ? -c : c,
                             high = last < 0 ? -last : last;
                const double least = ((c > 0) == (last > 0) ? (low < high ? low : high) : 0) - error;
                least_gradients[b] = n > 0 ? least : 0;
                most_gradients[b] = n > 0 ? (low > high ? low : high) : 0;
                errors[b] = n > 0 ? error : 0;
                const double line[6] = {scale * c, scale * d,         scale * lost.kink,
                                        lost.mean, -scale * won.kink, won.mean};
                for (int k = 0; k < 6; ++k) table[k][b] = static_cast<float>(line[k]);
            }
            greatest.add(least_gradients, count), steepest.add(most_gradients, count),
                worst.add(errors, count);
            for (int b = 0; b < count; ++b)
                for (int k = 0; k < 6; ++k) lines_[slot + b][k] = table[k][b];
        }
        totals.squares += squares, totals.doubt += doubt, totals.firsts += firsts;
        totals.greatest = greatest.value(), totals.steepest = steepest.value(), totals.worst = worst.value();
    }

    // Pass 2.
    void write(Places<float>& places, float* grad) const {
        const auto line = [](const auto* q, const auto& f, auto& sum) {
            const auto past0 = f - q[3], past1 = f - q[5], zero = f - f;
            sum =
                q[0] + q[1] * f + q[2] * (past0 > 0.0f ? past0 : zero) + q[4] * (past1 > 0.0f ? past1 : zero);
        };
        const auto use = [&](int, std::int64_t i, int count, const std::int32_t* slots,
                             const float* fractions) {
            Octet<float>::evaluate(lines_, slots, fractions, count, grad + i, line);
        };
        by_located_blocks(places, task_count(rows_.n), use);
    }

    const GradedRows& rows_;
    const double shift_, b2_;
    const bool mean_;
    double lowest_, reach_;  // the lowest score that may win a pair, and the largest difference d of a pair
    double width_ = 0, offset_ = 0;
    double factor_ = 0;  // the gradient per unit of d
    int moved_ = 0, n_buckets_ = 0;
    int low_[most_grades] = {},
        high_[most_grades] = {};  // the first and the last bucket with rows of each grade
    Sums3 all_, winners_,
        losers_;  // by grade and bucket; by place: of the higher grades and of the lower grades
    Sums3 below_,
        above_;  // of each place: the winners below it and the losers above it, relative to its edge
    Octet<float>* lines_ = nullptr;  // by slot: c, d, k0, m0, k1, m1 of c + d f + k0 (f - m0)+ + k1 (f - m1)+
};

}  // namespace everypair::EVERYPAIR_ISA
