// The rows of one group as a plan gets them.
#pragma once

#include <cstdint>

#include "survey.hpp"
#include "types.hpp"

namespace everypair::EVERYPAIR_ISA {

// All arrays begin with the first row of the group. `weights`, `vector` and results that are not wanted are null.
template <class S>
struct GroupRows {
    GroupRows(const Batch& batch, const Outputs& outputs, const std::uint8_t* all_classes, std::int64_t begin,
              std::int64_t count, const Survey& survey, double factor, int n_threads)
        : n(count), found(survey), scale(factor), threads(n_threads) {
        const auto from = [&](auto* array) { return array ? array + begin : nullptr; };
        scores = static_cast<const S*>(batch.scores) + begin;
        classes = all_classes + begin;
        weights = from(batch.weights);
        vector = from(batch.vector);
        grad = from(static_cast<S*>(outputs.grad));
        hess = from(static_cast<S*>(outputs.hess));
        hvp = from(static_cast<S*>(outputs.hvp));
    }

    const S* scores;
    const std::uint8_t* classes;
    const double *weights, *vector;
    S *grad, *hess, *hvp;
    std::int64_t n;
    const Survey& found;
    double scale;  // the factor of all results
    int threads;
};

}  // namespace everypair::EVERYPAIR_ISA
