// A piece of the exact plan (exact.hpp): a quadratic function of the score, and sums over the queries that it holds.
#pragma once

#include <type_traits>

namespace everypair::EVERYPAIR_ISA {

// Slope and curvature at the point that the piece is relative to, and the sums of weight and weight x distance over its
// queries. If a vector is given, a second element follows, in the same cache line if possible: `curvature` and the sum of
// weights times the vector.
template <bool keeps_errors>
struct ExactPiece {
    typedef double Two __attribute__((vector_size(16)));
    struct Nothing {};

    Two line, sums{};
    [[no_unique_address]] std::conditional_t<keeps_errors, Two, Nothing> lost{};  // what rounding took off the sums

    void add(Two x) {
        if constexpr (keeps_errors) {
            const Two next = sums + x, part = next - sums;
            lost += (sums - (next - part)) + (x - part);
            sums = next;
        } else {
            sums += x;
        }
    }
    Two total() const {
        if constexpr (keeps_errors) return sums + lost;
        return sums;
    }
};

}  // namespace everypair::EVERYPAIR_ISA
