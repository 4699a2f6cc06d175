// The axis of the certified plan: equal buckets, which may be split further where there are many rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "pool.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// Positions u of scores: positives at s - origin, negatives at s - origin + shift. With this order of operations a common
// offset of the scores costs no digits.
struct Scale {
    double origin, shift;

    double u(float score, int side) const { return (score - origin) + (side ? 0 : shift); }
};

// Equal cells, each split into `parts` buckets, the first of which has number `first`.
struct Cells {
    std::int32_t* first;
    float* parts;
};

// place = (s - origin + offset[class]) x scale. Places from 1 to cells + 1 lie in the cells; rows outside are in the two end
// cells, 0 and cells + 1. If the axis is not split, each cell is one bucket.
struct Axis {
    double origin, offset[2];  // by class: 0 negative, 1 positive
    double start;              // position u of place 1
    double scale;
    int cells;
    int buckets;  // without the two end buckets
    bool is_split = false;
    Cells split{};

    double width() const { return 1 / scale; }  // of a cell
    double end() const { return start + cells * width(); }
    std::size_t slots() const { return 2 * (static_cast<std::size_t>(buckets) + 2); }
};

inline Axis axis_over(const Scale& positions, double start, double end, int cells) {
    // Slightly longer than the range at both ends, so that the lowest positive and the highest negative are inside, also after
    // places are rounded to multiples of 2^-24. There are at least eight cells.
    const double scale = cells / (end - start) * (1 - 0x1p-26), forward = (1 + 0x1p-40) / scale - start;
    return {positions.origin, {positions.shift + forward, forward}, start, scale, cells, cells};
}

// Fills the widths of all buckets, including the two end buckets.
inline void measure(const Axis& axis, double* widths) {
    if (!axis.is_split) {
        std::fill(widths, widths + axis.buckets + 2, axis.width());
        return;
    }
    for (int c = 0, b = 0; c < axis.cells + 2; ++c)
        for (int part = 0; part < static_cast<int>(axis.split.parts[c]); ++part)
            widths[b++] = axis.width() / axis.split.parts[c];
}

// Computes slot (2 x bucket + class) and fraction of each row of a block; fractions are in units of 2^-24. Rows outside the
// axis are moved to the end cells, because gradients there are zero.
inline void locate(const Axis& axis, const float* scores, const std::uint8_t* classes, int count, std::int32_t* slots,
                   std::int32_t* fractions) {
    const double origin = axis.origin, of_neg = axis.offset[0], of_pos = axis.offset[1];
    const double scale = axis.scale, last = axis.cells + 1.5;
    const auto place = [=](float score, std::uint8_t side) {
        const double p = ((static_cast<double>(score) - origin) + (side ? of_pos : of_neg)) * scale, q = p > 0 ? p : 0;
        return q < last ? q : last;
    };
    if (!axis.is_split) {
        // Adding 2^28 leaves the cell and a fraction of 24 bits in the mantissa, without conversions.
#pragma omp simd
        for (int i = 0; i < count; ++i) {
            const std::uint64_t bits = std::bit_cast<std::uint64_t>(place(scores[i], classes[i]) + 0x1p28);
            slots[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits >> 23) & 0x1ffffffe) + classes[i];
            fractions[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits) & 0xffffff);
        }
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
inline double exact(std::uint64_t number) { return std::bit_cast<double>(number | 0x4330000000000000) - 0x1p52; }

// Number of rows of one slot (upper 20 bits) and sum of their 24-bit fractions (lower 44 bits). Sums of integers do not depend
// on the order.
struct Tally {
    std::uint64_t packed;

    std::uint64_t count() const { return packed >> 44; }
    double rows() const { return exact(count()); }
    double fractions() const { return exact(packed << 20 >> 20) * 0x1p-24; }
    void add(const Tally& other) { packed += other.packed; }
    void subtract(const Tally& other) { packed -= other.packed; }
};
constexpr std::int64_t tally_rows = 1 << 20;  // more would overflow

// The same for any number of rows.
struct WideTally {
    std::uint64_t n, sum;

    std::uint64_t count() const { return n; }
    double rows() const { return static_cast<double>(n); }
    double fractions() const { return static_cast<double>(sum) * 0x1p-24; }
    void add(const WideTally& other) { n += other.n, sum += other.sum; }
    void subtract(const WideTally& other) { n -= other.n, sum -= other.sum; }
};

// The sum of the squares of the fractions, if it is needed.
struct Squares {
    std::uint64_t sum;

    double squares() const { return static_cast<double>(sum) * 0x1p-24; }
    void add(const Squares& other) { sum += other.sum; }
};

// Sums over the weighted rows of one slot: weights, weights x fraction, weights x fraction^2; and the largest weight.
struct WeightSums {
    double weights() const { return w; }
    double fractions() const { return wf; }
    double squares() const { return wff; }
    double heaviest() const { return most; }
    void add(const WeightSums& more) {
        w += more.w, wf += more.wf, wff += more.wff;
        most = most > more.most ? most : more.most;
    }

    double w = 0, wf = 0, wff = 0, most = 0;
};

// Adds rows to these sums, by slot.
inline void add_weights(WeightSums* sums, const std::int32_t* slots, const std::int32_t* fractions, const double* weights,
                        int count) {
    for (int i = 0; i < count; ++i) {
        const double w = weights[i], f = fractions[i] * 0x1p-24;
        sums[slots[i]].add({w, w * f, w * f * f, w});
    }
}

// The tallies of an axis, by slot.
class Tallies {
  public:
    // For at most n rows.
    Tallies(Scratch& scratch, const Axis& axis, std::int64_t n) : slots_(axis.slots()), rows(scratch.take<Tally>(slots_)) {
        if (n >= tally_rows) wide = scratch.take<WideTally>(slots_);
    }

    void clear() {
        std::fill(rows, rows + slots_, Tally{0});
        if (wide) std::fill(wide, wide + slots_, WideTally{0, 0});
        pending_ = 0;
    }

    // Calls use(i, number of rows that its slot had before) for each row.
    template <class Use = decltype([](int, std::int32_t) {})>
    void add(const std::int32_t* slots, const std::int32_t* fractions, int count, Use&& use = {}) {
        if (wide && pending_ + count >= tally_rows) spill();
        pending_ += count;
        for (int i = 0; i < count; ++i) {
            std::uint64_t& packed = rows[slots[i]].packed;
            use(i, static_cast<std::int32_t>(packed >> 44));
            packed += (std::uint64_t{1} << 44) + static_cast<std::uint32_t>(fractions[i]);
        }
    }

    // Moves the packed tallies to `wide`; must be called before `wide` is read.
    void spill() {
        for (std::size_t slot = 0; wide && slot < slots_; ++slot) {
            wide[slot].add({rows[slot].packed >> 44, rows[slot].packed << 20 >> 20});
            rows[slot] = {0};
        }
        pending_ = 0;
    }

    void add_squares(const std::int32_t* slots, const std::int32_t* fractions, int count) {
        for (int i = 0; i < count; ++i) {
            const auto f = static_cast<std::uint64_t>(fractions[i]);
            squares[slots[i]].sum += f * f >> 24;
        }
    }

    void take_squares(Scratch& scratch) { squares = scratch.take<Squares>(slots_); }
    void clear_squares() { std::fill(squares, squares + slots_, Squares{0}); }

    std::int64_t count(std::size_t slot) const {
        return static_cast<std::int64_t>(wide ? wide[slot].n : rows[slot].packed >> 44);
    }

  private:
    std::size_t slots_;
    std::int64_t pending_ = 0;

  public:
    Tally* rows;
    WideTally* wide = nullptr;   // if not null, holds all tallies after a spill
    Squares* squares = nullptr;  // if taken
};

}  // namespace everypair::EVERYPAIR_ISA
