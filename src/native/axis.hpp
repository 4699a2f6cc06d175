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
    // A hair longer than the range, so that the last negative falls into the last cell.
    const double scale = cells / (end - start) * (1 - 0x1p-40), forward = 1 / scale - start;
    return {positions.origin, {positions.shift + forward, forward}, start, scale, cells, cells};
}

// Widths of the buckets, end ones included.
inline void measure(const Axis& axis, double* widths) {
    if (!axis.is_split) {
        std::fill(widths, widths + axis.buckets + 2, axis.width());
        return;
    }
    for (int c = 0, b = 0; c < axis.cells + 2; ++c)
        for (int part = 0; part < static_cast<int>(axis.split.parts[c]); ++part) widths[b++] = axis.width() / axis.split.parts[c];
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

constexpr std::uint64_t one_row = std::uint64_t{1} << 44;

// One 64-bit word a slot: the count above, the sum of 24-bit fractions below.
inline void tally(const std::int32_t* slots, const float* fractions, int count, std::uint64_t* words) {
    std::int32_t fixed[block_rows];
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        const float f = fractions[i] > 0 ? fractions[i] : 0;
        fixed[i] = static_cast<std::int32_t>((f < 1 ? f : 1 - 0x1p-24f) * 0x1p24f);
    }
    for (int i = 0; i < count; ++i) words[slots[i]] += one_row + static_cast<std::uint32_t>(fixed[i]);
}

}  // namespace everypair::EVERYPAIR_ISA
