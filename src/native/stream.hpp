// Rows of a stream: division into classes, and counts in buckets of scores. Compiled once, with the
// instructions that every processor has: both are limited by memory.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "types.hpp"

namespace everypair::stream {

struct Split {
    int status;
    std::int64_t n_pos;
};

// Check scores and labels, and copy the scores of each class, in their order. `pos` and `neg` have room for n
// scores each.
template <class S, class L>
Split split(const S* scores, const L* labels, std::int64_t n, S* pos, S* neg) {
    std::int64_t p = 0, q = 0;
    bool finite = true, known = true, zero = false, minus = false;
    for (std::int64_t i = 0; i < n; ++i) {
        const S s = scores[i];
        const L y = labels[i];
        const bool is_pos = y == L{1}, is_zero = y == L{0};
        bool is_minus = false;
        if constexpr (std::is_signed_v<L>) is_minus = y == L{-1};
        finite &= s >= -std::numeric_limits<S>::max() && s <= std::numeric_limits<S>::max();
        known &= is_pos | is_zero | is_minus;
        zero |= is_zero;
        minus |= is_minus;
        // Both are written, and one of the two is overwritten next time, so that there is no branch to
        // predict.
        pos[p] = s;
        neg[q] = s;
        p += is_pos;
        q += !is_pos;
    }
    return {(finite ? 0 : bad_scores) | (known && !(zero && minus) ? 0 : bad_labels), p};
}

// Add finite scores to a table of 2^bits buckets of (rows, sum of k, sum of k^2). The first bits of the place
// of a score in the order of all float32 numbers choose the bucket; k is the rest of the place.
inline void count(const float* scores, std::int64_t n, int bits, std::int64_t* table) {
    const int shift = 32 - bits;
    const std::uint32_t rest = (std::uint32_t{1} << shift) - 1;
    for (std::int64_t i = 0; i < n; ++i) {
        const std::uint32_t pattern = std::bit_cast<std::uint32_t>(scores[i] + 0.0f);  // -0.0 becomes 0.0
        const std::uint32_t negative = -(pattern >> 31);
        const std::uint32_t place = pattern ^ (negative | 0x80000000u);
        const std::int64_t k = place & rest;
        std::int64_t* const bucket = table + 3 * static_cast<std::int64_t>(place >> shift);
        bucket[0] += 1;
        bucket[1] += k;
        bucket[2] += k * k;
    }
}

}  // namespace everypair::stream
