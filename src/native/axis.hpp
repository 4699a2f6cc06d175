// The axis on which the certified plan places rows: equal buckets, or buckets split further where rows crowd.
#pragma once

#include <algorithm>
#include <cstdint>

#include "pool.hpp"

namespace everypair::EVERYPAIR_ISA {

constexpr int block_rows = 256;  // the working arrays of a block stay in the first-level cache

// Positions u of scores: positives at s - origin, negatives at s - origin + shift. Subtracted in this order, an offset of all
// scores costs no digits.
struct Scale {
    double origin, shift;

    double u(float score, int side) const { return (score - origin) + (side ? 0 : shift); }
};

// Equal cells, each split into some parts; the first of them is bucket number `first`.
struct Cells {
    std::int32_t* first;
    float* parts;
};

// place = (s - origin + offset[class]) x scale. Places 1 .. cells + 1 are cells; what lies outside goes to two end cells, 0 and
// cells + 1. Without a list of cells each is one bucket.
struct Axis {
    double origin, offset[2];  // by class: 0 negative, 1 positive
    double start;              // position u of place 1
    double scale;
    int cells;
    int buckets;  // without the end ones
    bool is_split = false;
    Cells split{};

    double width() const { return 1 / scale; }  // of a cell
    double end() const { return start + cells * width(); }
    std::size_t slots() const { return 2 * (static_cast<std::size_t>(buckets) + 2); }
};

inline Axis axis_over(const Scale& positions, double start, double end, int cells) {
    // A hair longer than the range at both ends, so that the lowest positive and the highest negative fall inside.
    const double scale = cells / (end - start) * (1 - 0x1p-38), forward = (1 + 0x1p-40) / scale - start;
    return {positions.origin, {positions.shift + forward, forward}, start, scale, cells, cells};
}

// Widths of the buckets, end ones included.
inline void measure(const Axis& axis, double* widths) {
    if (!axis.is_split) {
        std::fill(widths, widths + axis.buckets + 2, axis.width());
        return;
    }
    for (int c = 0, b = 0; c < axis.cells + 2; ++c)
        for (int part = 0; part < static_cast<int>(axis.split.parts[c]); ++part)
            widths[b++] = axis.width() / axis.split.parts[c];
}

// Slot (2 x bucket + class) and fraction of each row of a block. Where `open`, the fraction of a row outside the axis goes on
// beyond [0, 1): there are lines to follow. Where not, nothing but zeros lie there.
template <bool open>
void locate(const Axis& axis, const float* scores, const std::uint8_t* classes, int count, std::int32_t* slots,
            float* fractions) {
    const double origin = axis.origin, of_neg = axis.offset[0], of_pos = axis.offset[1];
    const double scale = axis.scale, last = axis.cells + 1.5;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        const double p = ((static_cast<double>(scores[i]) - origin) + (classes[i] ? of_pos : of_neg)) * scale;
        double q = p > 0 ? p : 0;
        q = q < last ? q : last;
        const std::int32_t cell = static_cast<std::int32_t>(q);
        slots[i] = cell * 2 + classes[i];
        fractions[i] = static_cast<float>((open ? p : q) - cell);
    }
    if (!axis.is_split) return;
    const std::int32_t* first = axis.split.first;
    const float* parts = axis.split.parts;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        const std::int32_t cell = slots[i] >> 1, side = slots[i] & 1;
        const float at = fractions[i] * parts[cell], most = parts[cell] - 1;
        const std::int32_t part = static_cast<std::int32_t>(at < most ? at : most);
        slots[i] = (first[cell] + part) * 2 + side;
        fractions[i] = at - static_cast<float>(part);
    }
}

// Of the rows of one slot: their number (20 bits) above the sum of their fractions (of 24 bits), and the sum of the squares of
// the fractions (of 40 bits). Integers: their sums do not depend on any order.
struct Tally {
    std::uint64_t packed, packed_squares;

    double rows() const { return static_cast<double>(static_cast<std::int64_t>(packed >> 44)); }
    double fractions() const { return static_cast<double>(static_cast<std::int64_t>(packed << 20 >> 20)) * 0x1p-24; }
    double squares() const { return static_cast<double>(static_cast<std::int64_t>(packed_squares)) * 0x1p-40; }
    void add(const Tally& other) { packed += other.packed, packed_squares += other.packed_squares; }
};
constexpr std::int64_t tally_rows = 1 << 20;  // more would overflow

// The same for any number of rows.
struct WideTally {
    std::uint64_t n, sum;
    unsigned __int128 sum_of_squares;

    double rows() const { return static_cast<double>(n); }
    double fractions() const { return static_cast<double>(sum) * 0x1p-24; }
    double squares() const { return static_cast<double>(sum_of_squares) * 0x1p-40; }
    void add(const WideTally& other) { n += other.n, sum += other.sum, sum_of_squares += other.sum_of_squares; }
};

// The tallies of an axis, by slot.
class Tallies {
  public:
    // Room for at most n rows.
    Tallies(Scratch& scratch, const Axis& axis, std::int64_t n) : slots_(axis.slots()), rows(scratch.take<Tally>(slots_)) {
        if (n >= tally_rows) wide = scratch.take<WideTally>(slots_);
    }

    void clear() {
        std::fill(rows, rows + slots_, Tally{0, 0});
        if (wide) std::fill(wide, wide + slots_, WideTally{0, 0, 0});
        pending_ = 0;
    }

    void add(const std::int32_t* slots, const float* fractions, int count) {
        if (wide && pending_ + count >= tally_rows) spill();
        pending_ += count;
        typedef std::uint64_t Two __attribute__((vector_size(16)));
        alignas(64) std::uint64_t adding[2 * block_rows];
#pragma omp simd
        for (int i = 0; i < count; ++i) {
            const float f = fractions[i] > 0 ? fractions[i] : 0;
            const std::int64_t fixed = static_cast<std::int32_t>((f < 1 ? f : 1 - 0x1p-24f) * 0x1p24f);
            adding[2 * i] = (std::uint64_t{1} << 44) + static_cast<std::uint64_t>(fixed);
            adding[2 * i + 1] = static_cast<std::uint64_t>(fixed * fixed) >> 8;
        }
        Two* table = reinterpret_cast<Two*>(rows);
        for (int i = 0; i < count; ++i) table[slots[i]] += reinterpret_cast<const Two*>(adding)[i];
    }

    // To be called before `wide` is read.
    void spill() {
        for (std::size_t slot = 0; wide && slot < slots_; ++slot) {
            const Tally tally = rows[slot];
            wide[slot].add({tally.packed >> 44, tally.packed << 20 >> 20, tally.packed_squares});
            rows[slot] = {0, 0};
        }
        pending_ = 0;
    }

    std::int64_t count(std::size_t slot) const {
        return static_cast<std::int64_t>(wide ? wide[slot].n : rows[slot].packed >> 44);
    }

  private:
    std::size_t slots_;
    std::int64_t pending_ = 0;

  public:
    Tally* rows;
    WideTally* wide = nullptr;  // if there, holds everything after a spill
};

}  // namespace everypair::EVERYPAIR_ISA
