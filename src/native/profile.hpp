// Computes from the sums of the buckets of an axis: the line that gives the gradient in each bucket, the sum
// of squares, and the buckets whose error bound is too large. Evaluates the lines for the rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>

#include "axis.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// Allowed relative errors: of a gradient, and of the loss due to pairs of one bucket.
constexpr double slack = 0x1.8p-21, own_slack = 0x1p-22;

// The gradient in a bucket as a function of the fraction f: c + d f + k (f - m)+, where k and m may repeat.
template <int kinks>
struct alignas(16 * kinks) Line {
    float numbers[2 + 2 * kinks];  // c, d, k, m, ...
};

// A bucket that was not certified.
struct Heavy {
    int bucket;
    double rows[2];               // their number or weight, by class
    double low, high;             // its edges
    double others[2], moment[2];  // as in BucketSums
    double own;                   // the estimate of the sum of d^2 over the pairs inside it
};

// A number and a bound of its error.
struct Estimate {
    double value, doubt;

    // The error bound of pairs of one bucket that the loss may have.
    double tolerance() const { return value > doubt ? own_slack * (value - doubt) : 0; }
};

// Estimates the sum of d^2 over the pairs of n0 negatives and n1 positives inside a bucket of width 1, from
// the means and the variances of their fractions: half of the sum of their squared differences, corrected by
// the difference of the means. The error is at most half of that sum. For two single rows, or two clusters of
// ties, the result is exact up to rounding. V is a number or a vector of numbers.
template <class V>
struct OwnSquares {
    V value, doubt;

    OwnSquares(V n0, V n1, V mean0, V mean1, V variance0, V variance1) {
        const V none{}, apart = mean0 - mean1, pairs = n0 * n1, known = pairs * apart * apart,
                        spread = pairs * (variance0 + variance1), all = known + spread;
        value = same<V>(0.5) * spread + (apart > none ? known : none);
        doubt = spread > same<V>(0x1p-20) * all ? same<V>(0.5) * all : none;
    }
};

constexpr int block_buckets = 64;

// Sums of equal buckets, whose number, with the end buckets, is a multiple of `block_buckets`. Distances are
// in units of their width. Sums of other buckets are integers.
template <class AnyTally>
class TallySums {
  public:
    using Number = float;  // for the pairs of one bucket and error bounds, which are small
    static constexpr bool has_squares = false;
    static constexpr float one = 1, variance_error = 0;

    TallySums(Scratch& scratch, const Axis& axis, const AnyTally* tallies)
        : n_buckets(axis.buckets + 2),
          tallies_(tallies),
          edges_(scratch.take<Edge>(n_buckets / block_buckets + 1)) {
        Edge edge{};
        for (int b = 0; b < n_buckets; ++b) edge.above.add(tallies[2 * b]);
        double path = 0;
#pragma omp simd reduction(+ : path)
        for (int b = 0; b < n_buckets; ++b) path += b * tallies[2 * b].rows();
        edge.above_path = static_cast<std::uint64_t>(path);
        edges_[0] = edge;
    }

    // The buckets from, from + 1, ...; see BucketSums. The block before it must have been made once.
    class Block {
      public:
        Block(const TallySums& sums, int from) : tallies_(sums.tallies_ + 2 * from) {
            Edge edge = sums.edges_[from / block_buckets];
            for (int b = 0; b < block_buckets; ++b) {
                edge.above.subtract(tallies_[2 * b]);
                edge.above_path -= edge.above.count();
                edge.below_path += edge.below.count();
                below_[b] = edge.below, above_[b] = edge.above;
                below_path_[b] = edge.below_path, above_path_[b] = edge.above_path;
                edge.below.add(tallies_[2 * b + 1]);
            }
            sums.edges_[from / block_buckets + 1] = edge;
        }
        double rows(int side, int b) const { return tallies_[2 * b + side].rows(); }
        double fractions(int side, int b) const { return tallies_[2 * b + side].fractions(); }
        double squares(int, int) const { return 0; }
        double width(int) const { return 1; }
        double others(int side, int b) const { return (side ? above_ : below_)[b].rows(); }
        double moment(int side, int b) const {
            return side ? exact(above_path_[b]) + above_[b].fractions()
                        : exact(below_path_[b]) - below_[b].fractions();
        }

      private:
        const AnyTally* tallies_;
        alignas(64) AnyTally below_[block_buckets], above_[block_buckets];
        alignas(64) std::uint64_t below_path_[block_buckets], above_path_[block_buckets];
    };

    // That of a negative at the end of the axis, or of a positive at its start.
    double largest(int side) const {
        const int last = n_buckets - block_buckets;
        return side ? Block(*this, 0).moment(1, 0) : Block(*this, last).moment(0, block_buckets - 1);
    }
    double active(int side) const {
        const Edge& edge = edges_[side ? n_buckets / block_buckets : 0];
        return (side ? edge.below : edge.above).rows() - tallies_[side].rows() -
               tallies_[2 * n_buckets - 2 + side].rows();
    }

    const int n_buckets;

  private:
    // Before a bucket: the positives below and the negatives above; and for each of these two, the sum over
    // the buckets in between of the rows that are still further away.
    struct Edge {
        AnyTally below, above;
        std::uint64_t below_path, above_path;
    };
    const AnyTally* tallies_;
    Edge* edges_;  // by block
};

// Sums by bucket and class with the squares of fractions, perhaps with weights or for buckets of different
// widths. Distances are in units of the width of a cell.
class BucketSums {
  public:
    using Number = double;
    static constexpr bool has_squares = true;

    // `tables` has the sums of each slice, by slot.
    template <class Slot>
    BucketSums(Scratch& scratch, const Axis& axis, const Slot* tables, int slices)
        : n_buckets(axis.buckets + 2),
          widths(scratch.take<double>(n_buckets)),
          one(!Slot::is_weighted),
          variance_error(Slot::variance_error) {
        measure(axis, widths);
        for (double** array : {rows, fractions, squares, heaviest, others, moment})
            for (int side = 0; side < 2; ++side) array[side] = scratch.take<double>(n_buckets);
        for (int slice = 0; slice < slices; ++slice)
            for (int side = 0; side < 2; ++side)
                read_table(axis, tables + slice * axis.slots(), side, slice > 0, rows[side], fractions[side],
                           squares[side], heaviest[side]);
        // Both sweeps run in one loop: each is a chain of dependent additions, and the two chains run in
        // parallel.
        double below = 0, below_moment = 0, above = 0, above_moment = 0;
        for (int b = 0, e = n_buckets - 1; b < n_buckets; ++b, --e) {
            others[0][b] = below, moment[0][b] = below_moment;
            below_moment += (below + (rows[1][b] - fractions[1][b])) * widths[b];
            below += rows[1][b];
            others[1][e] = above, moment[1][e] = above_moment;
            above_moment += (above + fractions[0][e]) * widths[e];
            above += rows[0][e];
        }
    }

    // The buckets from, from + 1, ...
    class Block {
      public:
        Block(const BucketSums& sums, int from) : sums_(sums), from_(from) {}
        double rows(int side, int b) const { return sums_.rows[side][from_ + b]; }
        double fractions(int side, int b) const { return sums_.fractions[side][from_ + b]; }
        double squares(int side, int b) const { return sums_.squares[side][from_ + b]; }
        double width(int b) const { return sums_.widths[from_ + b]; }
        double others(int side, int b) const { return sums_.others[side][from_ + b]; }
        double moment(int side, int b) const { return sums_.moment[side][from_ + b]; }

      private:
        const BucketSums& sums_;
        const int from_;
    };

    // The largest gradient of a class over its largest weight, or less: 0 if lines, which are rounded to
    // float32, may be much larger than the largest gradient.
    double largest(int side) const {
        const double *weight = heaviest[side], *start = moment[side], *met = others[side],
                     *own = rows[1 - side], *wide = widths;
        Largest<double> least(0), greatest(0), top(0);
        // Without the first and the last bucket.
        least.add(n_buckets - 2, [=](std::int64_t b) { return weight[b + 1] * start[b + 1]; });
        greatest.add(n_buckets - 2, [=](std::int64_t b) {
            return weight[b + 1] * (start[b + 1] + wide[b + 1] * (met[b + 1] + own[b + 1]));
        });
        top.add(weight + 1, n_buckets - 2);
        const bool is_even = greatest.value() <= 2 * least.value() && top.value() > 0;
        return is_even ? least.value() / top.value() : 0;
    }

    // The number of rows that may have pairs: those on the axis.
    double active(int side) const { return std::reduce(rows[side] + 1, rows[side] + n_buckets - 1); }

    int n_buckets;
    double* widths;
    double *rows[2], *fractions[2], *squares[2];  // number or weight of rows, sums of fractions and squares
    double* heaviest[2];    // the largest weight of a row; 1 without weights, 0 if there are none
    double one;             // so many rows of the other class cause no error; 0 with weights
    double variance_error;  // of the variances of fractions
    // Number and sum of distances of the rows of the other class: below the left edge of the bucket for class
    // 0, above its right edge for class 1.
    double *others[2], *moment[2];
};

// Computes the lines of all buckets, block by block, so that all but sums and lines stays in the first-level
// cache; `factor` is the gradient per unit of d.
template <class Sums>
class Profile {
  public:
    // The sum of d^2 over all pairs, exact for pairs of different buckets, as a sum of positive numbers. If
    // the sums have no squares, without the part that `look_up` returns.
    Estimate squares;
    // The error that a row of weight 1 of a class may have: `slack` times the largest gradient of a row of
    // the class, or less, over the largest weight, or sixteen times the mean.
    double limit[2];

    Profile(Scratch& scratch, const Axis& axis, const Sums& sums, double factor, Line<1>* lines)
        : axis_(axis), sums_(sums), worst_(scratch.take<Worst>(sums.n_buckets / block_buckets)) {
        for (int from = 0; from < sums.n_buckets; from += block_buckets)
            draw(from, factor * axis.width(), lines + 2 * from);
        const double unit = axis.width();
        squares = {(sum_of(sum_) + sum_of(own_)) * unit * unit, sum_of(doubt_) * unit * unit};
        for (int side = 0; side < 2; ++side)
            limit[side] =
                slack * unit * std::min(sums.largest(side), 16 * sum_of(total_) / sums.active(side));
    }

    // Lists the buckets that are not certified: those with rows whose error may exceed the limit of their
    // class, and, if the total error bound of the loss exceeds the tolerance, those with the largest error
    // bounds.
    int list_heavy(Heavy* heavy) const {
        const double unit = axis_.width(), tolerance = squares.tolerance();
        const double doubt =
            squares.doubt > tolerance ? tolerance / (unit * unit * sum_of(doubtful_)) : 0x1p100;
        const Number max_doubt = static_cast<Number>(doubt);
        Number max_error[2];
        for (int side = 0; side < 2; ++side)
            max_error[side] = static_cast<Number>(4 * (limit[side] / unit) * (limit[side] / unit));
        const auto exceeds = [&](const Worst& worst) {
            return (worst.error[0] > max_error[0]) | (worst.error[1] > max_error[1]) |
                   (worst.doubt > max_doubt);
        };
        int n_heavy = 0;
        for (int from = 0; from < sums_.n_buckets; from += block_buckets) {
            if (!any(exceeds(worst_[from / block_buckets]))) continue;
            const Block block(sums_, from);
            Numbers numbers;
            for (int b = 0; b < block_buckets; ++b) numbers.set(block, b);
            Inside here(sums_, numbers, 0);
            auto bad = exceeds(here.worst);
            for (int b = 0; b < block_buckets; ++b) {
                if (b % width == 0) here = Inside(sums_, numbers, b), bad = exceeds(here.worst);
                if (!bad[b % width] || from + b == 0 || from + b > axis_.buckets) continue;
                const double low = axis_.edge(from + b);
                heavy[n_heavy++] = {from + b,
                                    {block.rows(0, b), block.rows(1, b)},
                                    low,
                                    low + block.width(b) * unit,
                                    {block.others(0, b), block.others(1, b)},
                                    {block.moment(0, b) * unit, block.moment(1, b) * unit},
                                    static_cast<double>(here.own[b % width]) * unit * unit};
            }
        }
        return n_heavy;
    }

  private:
    using Block = typename Sums::Block;
    using Number = typename Sums::Number;
    using V = decltype(load(static_cast<const Number*>(nullptr)));
    static constexpr int width = sizeof(V) / sizeof(Number);

    // The largest numbers of some buckets, by lane: the squares of twice the error bound of a row, by class,
    // and the error bound of the sum of squares.
    struct Worst {
        V error[2], doubt;
    };

    // The sums of a block.
    struct Numbers {
        alignas(64) Number n[2][block_buckets], f[2][block_buckets], q[2][block_buckets], wide[block_buckets];

        void set(const Block& block, int b) {
            wide[b] = static_cast<Number>(block.width(b));
            for (int side = 0; side < 2; ++side) {
                n[side][b] = static_cast<Number>(block.rows(side, b));
                f[side][b] = static_cast<Number>(block.fractions(side, b));
                if (Sums::has_squares) q[side][b] = static_cast<Number>(block.squares(side, b));
            }
        }
    };

    // The pairs inside some buckets, from bucket k of a block on. Without squares, as if rows were spread
    // evenly around their mean, with a variance of 1/12.
    //
    // A row of the other class has an error of at most c m (1 - m) / 2 widths, where c m is the sum of
    // fractions, and of at most c s / 2, where s is the standard deviation; 0 if c = 1. The chord has a
    // weight of 0 in the average of the two bounds if the lower bound alone has a smaller error.
    struct Inside {
        V wide, n[2], f[2], mean[2], chord[2], own;
        Worst worst;

        Inside(const Sums& sums, const Numbers& numbers, int k) : wide(load(numbers.wide + k)) {
            const V none{}, half = same<V>(0.5);
            V variance[2];
            for (int side = 0; side < 2; ++side) {
                n[side] = load(numbers.n[side] + k), f[side] = load(numbers.f[side] + k);
                const V count = n[side] > same<V>(0x1p-900) ? n[side] : same<V>(1);
                mean[side] = f[side] / count;
                const auto has_several = n[side] > same<V>(sums.one);
                const V shape = mean[side] * (same<V>(1) - mean[side]), size = wide * n[side];
                V error = shape * shape;
                variance[side] = has_several ? same<V>(1.0 / 12) : none;
                chord[side] = has_several ? half : none;
                if constexpr (Sums::has_squares) {
                    const V left = load(numbers.q[side] + k) / count - mean[side] * mean[side];
                    variance[side] = left > none ? left : none;
                    const V spread = variance[side] + same<V>(sums.variance_error);
                    chord[side] = spread > error ? chord[side] : none;
                    error = spread > error ? error : spread;
                }
                worst.error[1 - side] = has_several ? size * size * error : none;
            }
            for (int side = 0; side < 2; ++side)
                worst.error[side] = n[side] > none ? worst.error[side] : none;
            const OwnSquares<V> squares(n[0], n[1], mean[0], mean[1], variance[0], variance[1]);
            own = wide * wide * squares.value, worst.doubt = wide * wide * squares.doubt;
            if constexpr (Sums::has_squares) return;
            const V q0 = n[0] * (mean[0] * mean[0] + variance[0]),
                    q1 = n[1] * (mean[1] * mean[1] + variance[1]);
            own -= slope(0) * q0 + slope(1) * q1;
        }

        // What the rows of the other class add to the slope of the line.
        V slope(int side) const { return side ? n[0] - chord[0] * (n[0] - f[0]) : chord[1] * (n[1] - f[1]); }
    };

    // Computes the lines of a block, and adds its sums to those of the profile.
    void draw(int from, double scale, Line<1>* lines) {
        typedef float Four __attribute__((vector_size(16)));
        typedef float Singles __attribute__((vector_size(4 * width)));
        alignas(64) float line[2][4][block_buckets];
        alignas(64) double squares_of[block_buckets], distances_of[block_buckets];
        alignas(64) Number others[2][block_buckets];
        const Block block(sums_, from);
        Numbers numbers;
#pragma omp simd
        for (int b = 0; b < block_buckets; ++b) {
            const double w = block.width(b), n0 = block.rows(0, b), f0 = block.fractions(0, b),
                         a0 = block.others(0, b), a1 = block.others(1, b), m0 = block.moment(0, b);
            // The squares of distances grow by this from the left edge of the bucket to the right one, for
            // all negatives above.
            const double step =
                2 * m0 + w * (a0 + block.rows(1, b) - 2 * block.fractions(1, b) + block.squares(1, b));
            squares_of[b] = w * (2 * m0 * f0 + w * a0 * block.squares(0, b) + step * a1);
            distances_of[b] = n0 * m0 + w * a0 * f0;
            line[0][0][b] = static_cast<float>(scale * m0);
            line[1][0][b] = static_cast<float>(-scale * (block.moment(1, b) + w * (a1 + f0)));
            others[0][b] = static_cast<Number>(a0), others[1][b] = static_cast<Number>(a1);
            numbers.set(block, b);
        }
        for (int b = 0; b < block_buckets; b += lanes)
            sum_ += load(squares_of + b), total_ += load(distances_of + b);
        Worst worst{};
        for (int b = 0; b < block_buckets; b += width) {
            const Inside here(sums_, numbers, b);
            const V none{}, unit = same<V>(scale) * here.wide;
            own_ += here.own, doubt_ += here.worst.doubt;
            doubtful_ += here.worst.doubt > none ? same<V>(1) : none;
            worst.doubt = here.worst.doubt > worst.doubt ? here.worst.doubt : worst.doubt;
            for (int side = 0; side < 2; ++side) {
                const V error = here.worst.error[side], other = here.n[1 - side];
                worst.error[side] = error > worst.error[side] ? error : worst.error[side];
                const V turn = unit * (other - here.chord[1 - side] * other);
                const V rest[3] = {unit * (load(others[side] + b) + here.slope(side)), side ? -turn : turn,
                                   here.mean[1 - side]};
                for (int j = 0; j < 3; ++j) {
                    const Singles single = __builtin_convertvector(rest[j], Singles);
                    std::memcpy(line[side][1 + j] + b, &single, sizeof single);
                }
            }
        }
        worst_[from / block_buckets] = worst;
        for (int side = 0; side < 2; ++side)
            for (int b = 0; b < block_buckets; b += 4) {
                Four x[4], turned[4];
                for (int j = 0; j < 4; ++j) std::memcpy(x + j, line[side][j] + b, sizeof(Four));
                transpose(x[0], x[1], x[2], x[3], turned);
                for (int j = 0; j < 4; ++j) std::memcpy(lines + 2 * (b + j) + side, turned + j, sizeof(Four));
            }
    }

    const Axis& axis_;
    const Sums& sums_;
    Worst* worst_;  // of each block
    Vec sum_{}, total_{};
    V own_{}, doubt_{}, doubtful_{};  // sums by lane
};

// Sets the lines of heavy buckets to NaN, but keeps the slope that comes from pairs of different buckets.
inline void mark_unsolved(Line<1>* lines, const Heavy* heavy, int n_heavy, double factor) {
    const float none = std::numeric_limits<float>::quiet_NaN();
    for (int h = 0; h < n_heavy; ++h) {
        const double scale = factor * (heavy[h].high - heavy[h].low);
        lines[2 * heavy[h].bucket] = {{none, static_cast<float>(scale * heavy[h].others[0])}};
        lines[2 * heavy[h].bucket + 1] = {{none, static_cast<float>(scale * heavy[h].others[1])}};
    }
}

// Computes the gradients of a block, four rows at a time: a transposition turns four lines into vectors of
// their numbers. Returns the sum of d f^2, which the loss needs for the squares of the fractions.
template <int kinks>
float look_up(const Line<kinks>* lines, const std::int32_t* slots, const std::int32_t* fractions, int count,
              float* grad) {
    typedef float Four __attribute__((vector_size(16), may_alias));
    typedef std::int32_t FourInts __attribute__((vector_size(16)));
    Four squares{};
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        Four q[4 * kinks];
        for (int k = 0; k < kinks; ++k) {
            const auto part = [&](int row) {
                return reinterpret_cast<const Four*>(lines + slots[i + row])[k];
            };
            transpose(part(0), part(1), part(2), part(3), q + 4 * k);
        }
        FourInts fixed;
        std::memcpy(&fixed, fractions + i, sizeof fixed);
        const Four f = __builtin_convertvector(fixed, Four) * 0x1p-24f;
        if (kinks == 1) squares += q[1] * f * f;
        Four result = q[0] + q[1] * f;
        for (int k = 2; k < 2 + 2 * kinks; k += 2) {
            const Four past = f - q[k + 1];
            result += q[k] * (past > 0.0f ? past : past - past);
        }
        std::memcpy(grad + i, &result, sizeof result);
    }
    for (; i < count; ++i) {
        const float* line = lines[slots[i]].numbers;
        const float f = static_cast<float>(fractions[i]) * 0x1p-24f;
        squares[0] += line[1] * f * f;
        grad[i] = line[0] + line[1] * f;
        for (int k = 2; k < 2 + 2 * kinks; k += 2)
            grad[i] += line[k] * (f > line[k + 1] ? f - line[k + 1] : 0);
    }
    return (squares[0] + squares[1]) + (squares[2] + squares[3]);
}

// Calls `use` for each row of a block whose gradient is NaN, and sets that gradient to 0. One byte for each
// row, eight of which are tested at once.
template <class Use>
void take_unsolved(float* grad, int count, Use&& use) {
    std::uint8_t unsolved[block_rows + 8];
    for (int i = 0; i < count; ++i) unsolved[i] = grad[i] != grad[i];
    std::memset(unsolved + count, 0, 8);
    for (int from = 0; from < count; from += 8) {
        std::uint64_t eight;
        std::memcpy(&eight, unsolved + from, sizeof eight);
        for (; eight; eight &= eight - 1) {
            const int i = from + std::countr_zero(eight) / 8;
            grad[i] = 0;
            use(i);
        }
    }
}

}  // namespace everypair::EVERYPAIR_ISA
