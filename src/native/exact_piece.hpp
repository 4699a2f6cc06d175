// A piece of the exact plan (exact.hpp): a quadratic function of the score, and sums over the queries that it holds.
#pragma once

#include <type_traits>

#include "double_double.hpp"

namespace everypair::EVERYPAIR_ISA {

// Slope and curvature at the point that the piece is relative to, and the sums of weight and weight x distance over its
// queries. If a vector is given, a second element follows, in the same cache line if possible: `curvature` and `mass` times the
// vector. Many queries may share a piece, so the sums of float64 scores keep what rounding takes off.
template <bool keeps_errors>
struct ExactPiece {
    struct Lost {
        float mass = 0, distance = 0;
    };
    struct Nothing {};

    double slope, curvature, mass = 0, distance = 0;
    [[no_unique_address]] std::conditional_t<keeps_errors, Lost, Nothing> lost{};

    void add(double w, double weighted_distance) {
        if constexpr (keeps_errors) {
            const DoubleDouble masses = DoubleDouble::sum(mass, w), distances = DoubleDouble::sum(distance, weighted_distance);
            lost.mass += static_cast<float>(masses.low);
            lost.distance += static_cast<float>(distances.low);
            mass = masses.high;
            distance = distances.high;
        } else {
            mass += w;
            distance += weighted_distance;
        }
    }
    ExactPiece total() const {
        if constexpr (keeps_errors) return {slope, curvature, mass + lost.mass, distance + lost.distance};
        return *this;
    }
};

}  // namespace everypair::EVERYPAIR_ISA
