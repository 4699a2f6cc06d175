// Plan for float32 scores where several pairs of buckets meet each bucket: several truncated terms b2 d^2
// whose knots lie on a common grid, or all pairs of few grades. Two passes over the rows, without a sort,
// with a proven error bound. It is the plan of certified.hpp, for all pairs of a row (the winner) and a row
// of a lower grade (the loser); of two classes, the negatives lose and the positives win.
//
// If the width of the buckets divides the step of the grid, the same buckets serve all terms, and both roles
// of a row of a middle grade: a term moves the losers by `lag` buckets, and a row keeps its fraction f. Pass
// 1 counts the rows of each bucket and grade, with the sums of f and f^2. Running sums over grades and
// buckets give, for each bucket and grade, the sums over the winners of higher grades below it and over the
// losers of lower grades above it. So the gradient of a loser is a line in f, plus, for each term, the sum
// phi of (f - f_w)+ over the c winners in the bucket where it meets them. With their mean m and standard
// deviation s,
//
//     c (f - m)+  <=  phi(f)  <=  c (f - m)+ + c s / 2    and    phi(f)  <=  c (1 - m) f ,
//
// so the first bound plus c s / 4 has an error of at most c s / 4, and the last one minus c m (1 - m) / 2, a
// line, of at most that. The lines of all terms add up, in double, because terms may nearly cancel. In each
// role one term has a kink, the one for which it reduces the error most. Winners are the mirror image. Pass 2
// evaluates the sum for each row. Distances are in units of the width of a bucket. If the errors of all terms
// together exceed the limit of a row, there are more buckets next time, or nothing is written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>

#include "certified.hpp"
#include "moments.hpp"

namespace everypair::EVERYPAIR_ISA {

constexpr int max_grades = 16;

// Writes the rank of the target of each row, from 0, and returns the number of ranks; 0 if there are too
// many.
template <class L>
int code_grades(const L* targets, std::int64_t n, std::uint8_t* grades) {
    using Code = std::conditional_t<sizeof(L) == 1, std::uint8_t,
                                    std::conditional_t<sizeof(L) == 4, std::int32_t, std::int64_t>>;
    L values[max_grades + 1];  // ascending; the last one twice
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
            if (count == max_grades) return 0;
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

// Returns the step of the coarsest grid that contains 0 and all lengths, with at most 64 steps in the
// shortest; 0 if there is none, infinity if all are 0.
inline double common_step(std::span<const double> lengths) {
    double shortest = std::numeric_limits<double>::infinity();
    for (const double length : lengths)
        if (length > 0) shortest = std::min(shortest, length);
    for (int parts = 1; parts <= 64; ++parts) {
        const bool all = std::ranges::all_of(lengths, [&](double length) {
            const double steps = length / shortest * parts;
            return std::abs(steps - std::round(steps)) < 0x1p-40 * (1 + steps);
        });
        if (all) return shortest / parts;
    }
    return 0;
}

// With one role, the classes of the rows are 0, which loses, and 1. With two, they are grades without
// weights, and the shifts must be at least 0.
template <int roles>
class GridPairs {
  public:
    static constexpr std::size_t max_terms = 16;
    double value = 0, pairs = 0;  // the loss and the number of pairs

    // The loss is the sum of scale x b2 d^2 over all pairs with d > 0, or the mean. The lowest score that may
    // win and the highest one that may lose set the range of the buckets.
    GridPairs(const GroupRows<float>& rows, int n_grades, std::span<const Term> terms, double scale,
              bool mean, double lowest, double highest)
        : rows_(rows), n_grades_(n_grades), terms_(terms), scale_(scale), mean_(mean), lowest_(lowest) {
        reach_ = std::ranges::max(terms, {}, &Term::shift).shift;
        range_ = highest - lowest + roles * reach_;
    }

    // Writes the gradients and sets the value, with about so many buckets, or more if that is too few.
    // Returns false, without writing, if the error bound is too large.
    bool run(double n_buckets, double max_buckets) {
        for (int tries = 0; tries < 3 && set_axis(n_buckets); ++tries) {
            Scratch scratch;
            AxisRows on(scratch, rows_, axis_);
            const double excess = solve(scratch, on);
            if (excess <= 1) {
                const auto evaluate = [&](int, std::int64_t, int count, const std::int32_t* slots,
                                          const std::int32_t* fractions, float* out) {
                    return look_up(lines_, slots, fractions, count, out);
                };
                if (rows_.grad) on.write(scratch, slice_count(rows_.n, rows_.threads), evaluate);
                return true;
            }
            // The error bound of evenly spread rows falls with the square of the number of buckets.
            n_buckets *= 1.2 * std::sqrt(excess);
            if (!(n_buckets < max_buckets)) break;
        }
        return false;
    }

  private:
    static constexpr int block = 64;

    // By bucket, or by place, where winners and losers meet: the number of rows, the sum of their fractions,
    // or of their distances, and that of the squares; the mean and the variance of the fractions.
    struct Sums {
        double *n, *f, *q, *mean, *variance;

        Sums from(std::ptrdiff_t k) const { return {n + k, f + k, q + k, mean + k, variance + k}; }
        void measure(int first, int last) const {
#pragma omp simd
            for (int b = first; b <= last; ++b) {
                const double inverse = n[b] > 0x1p-900 ? 1 / n[b] : 0, m = f[b] * inverse;
                const double left = q[b] * inverse - m * m;
                mean[b] = m, variance[b] = left > 0 ? left : 0;
            }
        }
    };

    // Of a class, or of all grades: the sum of the estimates of d^2 over the pairs that their rows lose, the
    // bound of its error, and the sum of d over the pairs of different buckets, each with the factors of the
    // terms; number of rows on the axis; at least the largest gradient, the largest end of a line, and the
    // largest error bound of a gradient, times the largest weight of a row and without it.
    struct Totals {
        double squares = 0, doubt = 0, firsts = 0, active = 0;
        Largest<double> greatest{0}, steepest{0}, worst_weighted{0}, worst{0};
    };

    // The lines of a block of buckets, the bounds of their errors, and by role the kink that reduces the
    // error most: by how much, its size and place, and by how much it raises the start.
    struct LineSums {
        double start[block], rise[block], error[block];
        double gain[roles][block], kink[roles][block], mean[roles][block], lift[roles][block];

        // Adds a term, or begins with it: the rows of the other role inside the buckets, and outside.
        template <bool wins, bool is_first>
        void add(const Sums& inside, const Sums& outside, int count, double factor, double one) {
            constexpr int role = roles == 2 && wins;
#pragma omp simd
            for (int b = 0; b < count; ++b) {
                const double moment = factor * outside.f[b], slope = factor * outside.n[b],
                             c = factor * inside.n[b], m = inside.mean[b], gap = c * m * (1 - m) / 2;
                const double straight = gap < 0 ? -gap : gap, size = c < 0 ? -c : c;
                const bool is_new = is_first && role == 0;
                start[b] = (is_new ? 0 : start[b]) + (wins ? gap - c * m - (moment + slope) : moment - gap);
                rise[b] = (is_new ? 0 : rise[b]) + (slope + (wins ? c * m : c * (1 - m)));
                error[b] = (is_new ? 0 : error[b]) + straight;
                // The sums have 24 bits, so the variance has an error of about 2^-22. One row has none.
                const double deviation = inside.n[b] > one ? std::sqrt(inside.variance[b] + 0x1p-22) : 0;
                const double gained = straight - size * deviation / 4;
                const bool better = gained > (is_first ? 0 : gain[role][b]);
                const auto choose = [&](double* old, double chosen) {
                    old[b] = better ? chosen : is_first ? 0 : old[b];
                };
                choose(gain[role], gained), choose(kink[role], c), choose(mean[role], m);
                choose(lift[role], gap + c * deviation / 4);
            }
        }
    };

    // Sets the axis and the lags. Returns false if the terms have no common grid of about so many buckets, or
    // if the reach is so much larger than the range that positions have too few digits.
    bool set_axis(double n_buckets) {
        double lengths[max_terms + 1] = {roles == 2 ? reach_ : 0};
        if (terms_.size() > max_terms || !(range_ > (roles - 1) * reach_)) return false;
        for (std::size_t j = 0; j < terms_.size(); ++j) lengths[j + 1] = reach_ - terms_[j].shift;
        const double step = std::min(common_step({lengths, terms_.size() + 1}), range_);
        const double width = step / std::ceil(step * n_buckets / range_);
        if (!(step > 0 && range_ < (3 * roles - 2) * 1.01 * n_buckets * width &&
              std::abs(reach_) <= 0x1p24 * range_))
            return false;
        // Slightly beyond the end of place 0, so that the lowest row that may have pairs is in place 1. All
        // fractions are rounded down, so that rows almost one step of the grid above it are in the place
        // before.
        const double forward = (1 - (roles == 1 ? 0x1p-25 : 0) + 0x1p-40) * width,
                     unmoved = roles == 2 ? reach_ : 0;
        const int cells = static_cast<int>(range_ / width) + 2;
        axis_ = {lowest_, reach_, {reach_ + forward, unmoved + forward}, 1 / width, cells, cells};
        axis_.n_grades = roles == 2 ? n_grades_ : 0;
        low_lag_ = high_lag_ = 0;
        for (std::size_t j = 0; j < terms_.size(); ++j) {
            lag_[j] = static_cast<int>(std::lround((terms_[j].shift - reach_ + unmoved) / width));
            low_lag_ = std::min(low_lag_, lag_[j]), high_lag_ = std::max(high_lag_, lag_[j]);
        }
        return true;
    }

    // Computes the lines of all slots and the value. Returns the error bound over the allowed error.
    double solve(Scratch& scratch, AxisRows& on) {
        const int n = axis_.buckets + 2, n_places = n + high_lag_ - low_lag_;
        const auto take = [&](std::size_t size, bool is_empty) -> Sums {
            double* arrays[5];
            for (double*& array : arrays) array = scratch.take<double>(size);
            for (double* array : arrays) std::fill_n(array, is_empty ? size : 0, 0.0);
            return {arrays[0], arrays[1], arrays[2], arrays[3], arrays[4]};
        };
        const std::size_t stride = n;
        all_ = take(stride * n_grades_, false);
        winners_ = take(n_places, true), losers_ = take(n_places, true);
        below_ = take(n_places, roles == 1), above_ = take(n_places, roles == 1);
        heaviest_ = scratch.take<double>(stride * n_grades_);
        lines_ = scratch.take<Line<roles>>(axis_.slots());
        on.with_squares(scratch, [&](const auto* tables, int slices) {
            for (int slice = 0; slice < slices; ++slice)
                for (int g = 0; g < n_grades_; ++g)
                    read_table(axis_, tables + slice * axis_.slots(), g, slice > 0, all_.n + stride * g,
                               all_.f + stride * g, all_.q + stride * g, heaviest_ + stride * g);
        });
        int low = n, high = 0;
        double lower = 0;
        pairs = 0;
        for (int g = 0; g < n_grades_; ++g) {
            const Sums own = all_.from(stride * g);
            low_[g] = 0, high_[g] = n - 1;
            while (own.n[low_[g]] == 0) ++low_[g];
            while (own.n[high_[g]] == 0) --high_[g];
            low = std::min(low, low_[g]), high = std::max(high, high_[g]);
            const double count = std::reduce(own.n + low_[g], own.n + high_[g] + 1);
            pairs += count * lower, lower += count;
            if (g) add(winners_, g, 1, -low_lag_);
        }
        factor_ = 2 * scale_ / (mean_ ? pairs : 1);
        Totals totals[2];
        if (roles == 1) {
            add(losers_, 0, 1, high_lag_);
            winners_.measure(low - low_lag_, high - low_lag_);
            losers_.measure(low + high_lag_, high + high_lag_);
        }
        for (int g = 0; g < n_grades_; ++g) {
            if (roles == 2 && g) add(winners_, g, -1, -low_lag_), add(losers_, g - 1, 1, high_lag_);
            if (roles == 2 || g == 0) {
                const int from = roles == 2 ? low_[g] : low, to = roles == 2 ? high_[g] : high;
                sweep(low - low_lag_, to + high_lag_ - low_lag_, high + high_lag_, from);
            }
            draw(g, totals[roles == 1 ? g : 0]);
        }
        const Totals& lost = totals[0];
        value = factor_ / 2 * axis_.width() * axis_.width() * lost.squares;
        const double unit = std::abs(factor_) * axis_.width();
        double excess = lost.doubt / (own_slack * std::abs(lost.squares));
        for (const Totals& total : std::span(totals, roles == 1 ? 2 : 1)) {
            const double greatest = total.greatest.value(), steepest = total.steepest.value();
            // Lines are rounded to float32, so no line may be much larger than the gradients. Nor may
            // gradients be denormal, or next to the largest number.
            if (!(steepest <= 2 * greatest && unit * greatest > 0x1p-90 && unit * steepest < 0x1p120))
                return std::numeric_limits<double>::infinity();
            excess = std::max({excess, total.worst_weighted.value() / (slack * greatest),
                               total.worst.value() * total.active / (16 * slack * std::abs(lost.firsts))});
        }
        return excess;
    }

    // Adds the rows of a grade, times `sign`, to sums by place.
    void add(const Sums& to, int grade, double sign, int moved) const {
        for (const auto array : {&Sums::n, &Sums::f, &Sums::q}) {
            double* sum = to.*array + moved;
            const double* own = all_.*array + static_cast<std::size_t>(axis_.buckets + 2) * grade;
#pragma omp simd
            for (int b = low_[grade]; b <= high_[grade]; ++b) sum[b] += sign * own[b];
        }
    }

    // Sums over the winners below each place from `first` to `upto`, and over the losers above each one from
    // `last` down to `downto`. Both run in one loop: each is a chain of dependent additions, and the two
    // chains run in parallel.
    void sweep(int first, int upto, int last, int downto) const {
        const Sums w = winners_, l = losers_, below = below_, above = above_;
        Moments met;
        double n = 0, f = 0;
        int b = first, e = last;
        const auto up = [&] {
            below.n[b] = met.count, below.f[b] = met.first, below.q[b] = met.second;
            met.advance(1, {w.n[b], w.n[b] - w.f[b], w.n[b] - 2 * w.f[b] + w.q[b]});
            ++b;
        };
        const auto down = [&] {
            above.n[e] = n, above.f[e] = f;
            f += n + l.f[e];
            n += l.n[e];
            --e;
        };
        while (b <= upto && e >= downto) up(), down();
        while (b <= upto) up();
        while (e >= downto) down();
    }

    // Adds the pairs that rows lose in a term.
    static void add_pairs(const Sums& own, const Sums& winners, const Sums& below, int count, double factor,
                          Totals& totals) {
        double squares = 0, doubt = 0, firsts = 0;
#pragma omp simd reduction(+ : squares, doubt, firsts)
        for (int b = 0; b < count; ++b) {
            const OwnSquares<double> inside(own.n[b], winners.n[b], own.mean[b], winners.mean[b],
                                            own.variance[b], winners.variance[b]);
            squares +=
                own.n[b] * below.q[b] + 2 * own.f[b] * below.f[b] + own.q[b] * below.n[b] + inside.value;
            doubt += inside.doubt;
            firsts += own.n[b] * below.f[b] + own.f[b] * below.n[b];
        }
        totals.squares += factor * squares, totals.doubt += std::abs(factor) * doubt;
        totals.firsts += factor * firsts;
    }

    // Computes the lines of a grade, and adds its rows to the totals.
    void draw(int grade, Totals& totals) const {
        const bool loses = roles == 2 || grade == 0, wins = roles == 2 || grade == 1;
        const double one = rows_.weights ? 0 : 1, scale = factor_ * axis_.width(),
                     signs[2] = {roles == 1 && grade ? -1.0 : 1.0, -1};
        for (int from = low_[grade]; from <= high_[grade]; from += block) {
            const int count = std::min(block, high_[grade] + 1 - from);
            const std::size_t slot = static_cast<std::size_t>(axis_.buckets + 2) * grade + from;
            const Sums own = all_.from(slot);
            const double* heaviest = heaviest_ + slot;
            if (std::all_of(own.n, own.n + count, [](double rows) { return rows == 0; })) continue;
            LineSums sums;
            if (loses) own.measure(0, count - 1);
            for (std::size_t j = 0; j < terms_.size(); ++j) {
                const double factor = terms_[j].b2;
                const Sums inside[2] = {winners_.from(from + lag_[j] - low_lag_),
                                        losers_.from(from + high_lag_ - lag_[j])};
                const Sums outside[2] = {below_.from(from + lag_[j] - low_lag_),
                                         above_.from(from + high_lag_ - lag_[j])};
                const auto add = [&]<bool is_first>(std::bool_constant<is_first>) {
                    if (loses) sums.template add<false, is_first>(inside[0], outside[0], count, factor, one);
                    if (wins) sums.template add<true, is_first>(inside[1], outside[1], count, factor, one);
                };
                for (int role = 0; roles == 2 && role < 2; ++role) inside[role].measure(0, count - 1);
                if (loses) add_pairs(own, inside[0], outside[0], count, factor, totals);
                j == 0 ? add(std::true_type()) : add(std::false_type());
            }
            float table[2 + 2 * roles][block];
            double least_gradients[block], most_gradients[block], weighted_errors[block], errors[block];
#pragma omp simd
            for (int b = 0; b < count; ++b) {
                double start = sums.start[b], rise = sums.rise[b], error = sums.error[b], end = start + rise;
                for (int role = 0; role < roles; ++role) {
                    // A loser has the kink k (f - m)+, a winner -k (f - m)+.
                    const double lift = signs[role] * sums.lift[role][b], m = sums.mean[role][b],
                                 k = signs[role] * sums.kink[role][b];
                    start += lift, end += lift, rise -= k * (1 - m), error -= sums.gain[role][b];
                    table[2 + 2 * role][b] = static_cast<float>(scale * k);
                    table[3 + 2 * role][b] = static_cast<float>(m);
                }
                table[0][b] = static_cast<float>(scale * start);
                table[1][b] = static_cast<float>(scale * rise);
                const double low = start < 0 ? -start : start, high = end < 0 ? -end : end, w = heaviest[b];
                const double least = ((start > 0) == (end > 0) ? (low < high ? low : high) : 0) - error;
                least_gradients[b] = w * least;
                most_gradients[b] = w * (low > high ? low : high);
                weighted_errors[b] = w * error;
                if (roles == 1) errors[b] = w > 0 ? error : 0;
            }
            totals.greatest.add(least_gradients, count), totals.steepest.add(most_gradients, count);
            totals.worst_weighted.add(weighted_errors, count);
            totals.worst.add(roles == 1 ? errors : weighted_errors, count);
            for (int b = 0; b < count; ++b) {
                const bool is_end = from + b == 0 || from + b > axis_.buckets;
                totals.active += is_end ? 0 : own.n[b];
                for (int k = 0; k < 2 + 2 * roles; ++k)
                    lines_[axis_.slot(from + b, grade)].numbers[k] = table[k][b];
            }
        }
    }

    const GroupRows<float>& rows_;
    const int n_grades_;
    const std::span<const Term> terms_;
    const double scale_;
    const bool mean_;
    const double lowest_;   // the lowest score that may win a pair
    double reach_, range_;  // the largest shift; the length of the axis
    double factor_ = 0;     // the gradient per unit of d and of b2
    Axis axis_{};
    int lag_[max_terms] = {};         // by term, how many buckets higher a loser meets the winners
    int low_lag_ = 0, high_lag_ = 0;  // the lowest and the highest one, or 0
    int low_[max_grades] = {},
        high_[max_grades] = {};  // the first and the last bucket with rows of each grade
    Sums all_;                   // by grade and bucket
    Sums winners_, losers_;      // by place: of the higher grades, of the lower grades
    Sums below_, above_;  // of each place: the winners below it, the losers above it, relative to its edge
    double* heaviest_ = nullptr;    // by grade and bucket, the largest weight of a row, 0 if there are none
    Line<roles>* lines_ = nullptr;  // by slot
};

// As `certified_term`, for several terms; scale includes the mean weights. Returns false if an exact plan
// must be used.
inline bool certified_terms(const GroupRows<float>& rows, std::span<const Term> terms, double scale,
                            double n_buckets, double max_buckets, double& value) {
    GridPairs<1> grid(rows, 2, terms, scale, false, rows.survey.min_pos, rows.survey.max_neg);
    const bool done = grid.run(n_buckets, max_buckets);
    value = grid.value;
    return done;
}

// The same for all pairs of grades, whose classes are the numbers of their grades, from 0. Each grade occurs.
inline bool graded_pairs(const GroupRows<float>& rows, int n_grades, const Term& term, bool mean,
                         double& value, double& n_pairs) {
    constexpr float none = -std::numeric_limits<float>::infinity();
    const std::uint8_t top = static_cast<std::uint8_t>(n_grades - 1);
    Largest<float> lowest_negated(none), highest(none);
    by_blocks(rows.n, 1, 1, [&](int, std::int64_t begin, int count) {
        const float* scores = rows.scores + begin;
        const std::uint8_t* grades = rows.classes + begin;
        lowest_negated.add(count, [=](std::int64_t i) { return either(grades[i] > 0, -scores[i], none); });
        highest.add(count, [=](std::int64_t i) { return either(grades[i] < top, scores[i], none); });
    });
    GridPairs<2> grid(rows, n_grades, {&term, 1}, 1, mean, -lowest_negated.value(), highest.value());
    const bool done = grid.run(rows.n < 1 << 14 ? 1536 : 2048,
                               std::min(0x1p15, 2 * static_cast<double>(rows.n) / n_grades));
    value = grid.value, n_pairs = grid.pairs;
    return done;
}

}  // namespace everypair::EVERYPAIR_ISA
