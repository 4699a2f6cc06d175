// The rows of one group as a plan gets them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "survey.hpp"
#include "types.hpp"

namespace everypair::EVERYPAIR_ISA {

// All arrays begin with the first row of the group. `weights`, `vector` and results that are not wanted are
// null. The weights are those of the caller, times a power of two for each class if they are very large or
// very small.
template <class S>
struct GroupRows {
    const S* scores;
    const std::uint8_t* classes;
    const double *weights, *vector;
    S *grad, *hess, *hvp;
    std::int64_t n;
    int threads;
    Survey survey{};
    int exponent = 0;  // the weights of the pairs are over 2^exponent
    double scale = 1;  // the factor of all results
    double value = 0;  // the result of the group

    // The factor that makes weights relative to the mean weight of their class.
    double unit(int side) const {
        return static_cast<double>(side ? survey.n_pos : survey.n_neg) / (side ? survey.w_pos : survey.w_neg);
    }

    bool has_pairs() const { return survey.w_pos > 0 && survey.w_neg > 0; }

    void clear() const {
        for (S* out : {grad, hess, hvp})
            if (out) std::fill_n(out, n, S{0});
    }
};

}  // namespace everypair::EVERYPAIR_ISA
