// The loss of smooth average precision and its gradient, as row sums of the positives over each class.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "pool.hpp"
#include "row_sums.hpp"

namespace everypair::EVERYPAIR_ISA {

// One minus the smooth precision of each positive i, times its share: the sum of shares_i b_i / (a_i + b_i),
// where a_i is the smooth rank of i among the positives and b_i the smooth number of negatives above it
// (everypair/ranks/_average_precision.py). Fills the gradient.
template <class S>
double precision_loss(const Batch& batch, const double* shares, const Piece& piece, int threads,
                      double* grad) {
    const auto* positive = static_cast<const std::uint8_t*>(batch.labels);
    // `factors` and `sums` are by positive: the derivative of the loss in the pairs with this class, and
    // value and slope of these pairs.
    struct Class {
        std::int64_t n;
        std::uint32_t* rows;
        double *scores, *w, *factors, *sums[2];
        std::unique_ptr<RowSums> pairs;
    };
    Scratch scratch;
    const auto take = [&](std::int64_t n) { return scratch.take<double>(n); };
    const std::int64_t n = batch.n, n_neg = std::count(positive, positive + n, 0), n_pos = n - n_neg;
    const auto empty = [&](std::int64_t size) -> Class {
        return {0,           scratch.take<std::uint32_t>(size), take(size), take(size),
                take(n_pos), {take(n_pos), take(n_pos)},        {}};
    };
    Class classes[2] = {empty(n_neg), empty(n_pos)}, &pos = classes[1], &neg = classes[0];
    for (std::int64_t i = 0; i < n; ++i) {
        Class& c = classes[positive[i] != 0];
        c.rows[c.n] = static_cast<std::uint32_t>(i);
        c.scores[c.n] = static_cast<double>(static_cast<const S*>(batch.scores)[i]);
        c.w[c.n++] = batch.weights ? batch.weights[i] : 1;
    }
    const int orders[2] = {0, 1};
    for (Class& c : classes) {
        c.pairs.reset(make_row_sums({pos.scores, n_pos, nullptr}, {c.scores, c.n, nullptr}, piece, threads));
        c.pairs->sums(c.w, false, 2, orders, c.sums, threads);
    }
    // The value of the pair of a positive with itself, which does not count: d = 0. Its slopes in both roles
    // cancel.
    double own = 0, loss = 0;
    for (int k = 0; k < piece.n_powers; ++k) own += piece.powers[k];
    for (std::int64_t i = 0; i < n_pos; ++i) {
        const double rank = pos.sums[0][i] + pos.w[i] * (1 - own), above = neg.sums[0][i],
                     total = rank + above;
        loss += shares[i] * above / total;
        pos.factors[i] = -shares[i] * above / (total * total);
        neg.factors[i] = shares[i] * rank / (total * total);
    }
    double* slopes[1] = {take(std::max(n_pos, n_neg))};
    for (const Class& c : classes) {
        c.pairs->sums(c.factors, true, 1, orders + 1, slopes, threads);
        for (std::int64_t k = 0; k < c.n; ++k) grad[c.rows[k]] = c.w[k] * slopes[0][k];
    }
    // As a row, a positive has the negative slopes.
    for (std::int64_t i = 0; i < n_pos; ++i)
        for (const Class& c : classes) grad[pos.rows[i]] -= c.factors[i] * c.sums[1][i];
    return loss;
}

}  // namespace everypair::EVERYPAIR_ISA
