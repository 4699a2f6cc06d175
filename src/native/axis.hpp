// The axis of the certified plan: equal buckets, which may be split further where there are many rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "pool.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// Equal cells, each split into `parts` buckets, the first of which has number `first`.
struct Cells {
    std::int32_t* first;
    float* parts;
};

// place = (s - origin + offset[class]) x scale. Places from 1 to cells + 1 lie in the cells; rows outside are
// in the two end cells, 0 and cells + 1. If the axis is not split, each cell is one bucket.
struct Axis {
    double origin, shift;
    double offset[2];  // by class: 0 negative, 1 positive
    double scale;
    int cells;
    int buckets;       // without the two end buckets
    int n_grades = 0;  // if not 0, each grade has a table of its own; else two classes are side by side
    bool is_split = false;
    Cells split{};

    // The position of a row, relative to place 1. With this order of operations a common offset of the scores
    // costs no digits.
    double u(float score, int side) const { return (score - origin) + (side ? 0 : shift); }
    double width() const { return 1 / scale; }  // of a cell
    std::size_t slots() const { return (n_grades ? n_grades : 2) * (static_cast<std::size_t>(buckets) + 2); }
    std::size_t slot(int bucket, int side) const {
        return n_grades ? side * (static_cast<std::size_t>(buckets) + 2) + bucket
                        : 2 * static_cast<std::size_t>(bucket) + side;
    }

    // The position of the left edge of a bucket.
    double edge(int bucket) const {
        if (!is_split) return (bucket - 1) * width();
        const std::int64_t cell =
            std::upper_bound(split.first, split.first + cells + 2, bucket) - split.first - 1;
        const double part = bucket - split.first[cell];
        return (static_cast<double>(cell - 1) + part / split.parts[cell]) * width();
    }
};

// The axis from the lowest positive to the highest negative, which the shift moves up.
inline Axis axis_over(const Survey& survey, double shift, int cells) {
    // Slightly longer than the range at both ends, so that the lowest positive and the highest negative are
    // inside, also after places are rounded to multiples of 2^-24. There are at least eight cells.
    const double range = survey.max_neg - survey.min_pos + shift, scale = cells / range * (1 - 0x1p-26);
    const double forward = (1 + 0x1p-40) / scale;
    return {survey.min_pos, shift, {shift + forward, forward}, scale, cells, cells};
}

// Fills the widths of all buckets, including the two end buckets, in cells.
inline void measure(const Axis& axis, double* widths) {
    std::fill(widths, widths + axis.buckets + 2, 1.0);
    for (int c = 0; axis.is_split && c < axis.cells + 2; ++c)
        std::fill_n(widths + axis.split.first[c], static_cast<int>(axis.split.parts[c]),
                    1 / axis.split.parts[c]);
}

// Computes the place of a row. Rows outside the axis are moved to the end cells, because gradients there are
// zero.
inline auto placing(const Axis& axis) {
    return [origin = axis.origin, of_neg = axis.offset[0], of_pos = axis.offset[1], scale = axis.scale,
            last = axis.cells + 1.5](float score, std::uint8_t side) {
        const double p = ((static_cast<double>(score) - origin) + (side ? of_pos : of_neg)) * scale,
                     q = p > 0 ? p : 0;
        return q < last ? q : last;
    };
}

// Writes bucket and fraction of a place.
inline void divide(double place, std::uint8_t side, std::int32_t& slot, std::int32_t& fraction) {
    // Adding 2^28 leaves the bucket and a fraction of 24 bits in the mantissa, without conversions.
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(place + 0x1p28);
    slot = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits >> 23) & 0x1ffffffe) + side;
    fraction = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits) & 0xffffff);
}

// Computes slot (2 x bucket + class) and fraction of each row of a block; fractions are in units of 2^-24.
inline void locate(const Axis& axis, const float* scores, const std::uint8_t* classes, int count,
                   std::int32_t* slots, std::int32_t* fractions) {
    const auto place = placing(axis);
    if (axis.n_grades) {
        const std::int32_t stride = axis.buckets + 2;
#pragma omp simd
        for (int i = 0; i < count; ++i) {
            const double at = place(scores[i], classes[i]);
            const std::int32_t bucket = static_cast<std::int32_t>(at);
            slots[i] = classes[i] * stride + bucket;
            fractions[i] = static_cast<std::int32_t>((at - bucket) * 0x1p24);
        }
        return;
    }
    if (!axis.is_split) {
#pragma omp simd
        for (int i = 0; i < count; ++i)
            divide(place(scores[i], classes[i]), classes[i], slots[i], fractions[i]);
        return;
    }
    const std::int32_t* first = axis.split.first;
    const float* parts = axis.split.parts;
    double places[block_rows];
#pragma omp simd
    for (int i = 0; i < count; ++i) places[i] = place(scores[i], classes[i]);
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        const std::int32_t cell = static_cast<std::int32_t>(places[i]);
        const double at = (places[i] - cell) * parts[cell], most = parts[cell] - 1;
        const std::int32_t part = static_cast<std::int32_t>(at < most ? at : most);
        const double fixed = (at - part) * 0x1p24, largest = 0x1p24 - 1;
        slots[i] = (first[cell] + part) * 2 + classes[i];
        fractions[i] = static_cast<std::int32_t>(fixed < largest ? fixed : largest);
    }
}

// Converts a number below 2^52: AVX2 has no instruction for it.
inline double exact(std::uint64_t number) {
    return std::bit_cast<double>(number | 0x4330000000000000) - 0x1p52;
}

// Number of rows of one slot (upper 20 bits) and sum of their 24-bit fractions (lower 44 bits). Sums of
// integers do not depend on the order.
struct Tally {
    static constexpr bool is_weighted = false;
    std::uint64_t packed;

    std::uint64_t count() const { return packed >> 44; }
    std::uint64_t sum() const { return packed << 20 >> 20; }
    double rows() const { return exact(count()); }
    double fractions() const { return exact(sum()) * 0x1p-24; }
    void add(std::int32_t fraction) {
        packed += (std::uint64_t{1} << 44) + static_cast<std::uint32_t>(fraction);
    }
    void add(const Tally& other) { packed += other.packed; }
    void subtract(const Tally& other) { packed -= other.packed; }
};
constexpr std::int64_t tally_rows = 1 << 20;  // more would overflow

// The least number of slices for which no tally of a slice overflows.
inline int tally_slices(std::int64_t n) {
    return static_cast<int>(task_count(n) / (tally_rows / task_rows - 1)) + 1;
}

// The same for any number of rows.
struct WideTally {
    std::uint64_t n, total;

    std::uint64_t count() const { return n; }
    std::uint64_t sum() const { return total; }
    double rows() const { return static_cast<double>(n); }
    double fractions() const { return static_cast<double>(total) * 0x1p-24; }
    void add(const auto& other) { n += other.count(), total += other.sum(); }
    void subtract(const WideTally& other) { n -= other.n, total -= other.total; }
};

// What pass 1 adds up over the rows of a slot, if a profile needs the squares of the fractions: numbers of
// rows, or weights.
struct SquaredTally {
    static constexpr bool is_weighted = false;
    static constexpr double variance_error =
        0x1p-22;  // of the variance of the fractions: the sums have 24 bits

    double rows() const { return tally.rows(); }
    double fractions() const { return tally.fractions(); }
    double squares() const { return exact(sum_of_squares) * 0x1p-24; }
    double heaviest() const { return tally.packed > 0; }
    void add(std::int32_t fraction) {
        const auto f = static_cast<std::uint64_t>(fraction);
        tally.add(fraction);
        sum_of_squares += f * f >> 24;
    }

    Tally tally;
    std::uint64_t sum_of_squares;
};

// The sums of weights, weights x fraction, weights x fraction^2; and the largest weight.
struct WeightSums {
    static constexpr bool is_weighted = true;
    static constexpr double variance_error = 0x1p-50;

    double rows() const { return w; }
    double fractions() const { return wf; }
    double squares() const { return wff; }
    double heaviest() const { return most; }
    void add(std::int32_t fraction, double weight) {
        const double f = fraction * 0x1p-24;
        w += weight, wf += weight * f, wff += weight * f * f;
        most = most > weight ? most : weight;
    }

    double w, wf, wff, most;
};

// Adds rows to a table of integers.
template <class Slot>
[[gnu::noinline]] void add_rows(Slot* table, const std::int32_t* slots, const std::int32_t* fractions,
                                int count) {
    for (int k = 0; k < count; ++k) table[slots[k]].add(fractions[k]);
}

// Reads the slots of a class into arrays by bucket, or adds them.
template <class Slot>
void read_table(const Axis& axis, const Slot* table, int grade, bool adds, double* rows, double* fractions,
                double* squares, double* heaviest) {
    const int step = axis.n_grades ? 1 : 2;
    table += axis.slot(0, grade);
#pragma omp simd
    for (std::int64_t k = 0; k < axis.buckets + 2; ++k) {
        const Slot& here = table[step * k];
        rows[k] = (adds ? rows[k] : 0) + here.rows();
        fractions[k] = (adds ? fractions[k] : 0) + here.fractions();
        squares[k] = (adds ? squares[k] : 0) + here.squares();
        const double before = adds ? heaviest[k] : 0, weight = here.heaviest();
        heaviest[k] = weight > before ? weight : before;
    }
}

}  // namespace everypair::EVERYPAIR_ISA
