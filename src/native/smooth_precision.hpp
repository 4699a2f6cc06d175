// The loss of smooth average precision and its gradient, as row sums of the positives over each class.
#pragma once

#include <cstdint>
#include <memory>

#include "pool.hpp"
#include "row_sums.hpp"

namespace everypair::EVERYPAIR_ISA {

// One minus the smooth precision of each positive i, times its share: the sum of shares_i b_i / (a_i + b_i), where a_i is the
// smooth rank of i among the positives and b_i the smooth number of negatives above it (everypair/ranks/_average_precision.py).
// Fills the gradient.
template <class S>
double precision_loss(const PrecisionBatch& batch, const Piece& piece, int threads) {
    Scratch scratch;
    const S* scores = static_cast<const S*>(batch.scores);
    std::uint32_t* rows[2];
    double *of_class[2], *w[2], *sums[2][2];
    std::int64_t sizes[2] = {0, 0};
    for (int c = 0; c < 2; ++c) {
        rows[c] = scratch.take<std::uint32_t>(batch.n + 1);
        for (std::int64_t i = 0; i < batch.n; ++i) {
            rows[c][sizes[c]] = static_cast<std::uint32_t>(i);
            sizes[c] += (batch.positive[i] != 0) == (c == 0);
        }
        of_class[c] = scratch.take<double>(sizes[c]);
        w[c] = scratch.take<double>(sizes[c]);
        for (std::int64_t k = 0; k < sizes[c]; ++k) {
            of_class[c][k] = static_cast<double>(scores[rows[c][k]]);
            w[c][k] = batch.weights ? batch.weights[rows[c][k]] : 1;
        }
    }
    const std::int64_t n_pos = sizes[0];
    std::unique_ptr<RowSums> pairs[2];
    const int value_and_slope[2] = {0, 1}, slope[1] = {1};
    for (int c = 0; c < 2; ++c) {
        const RowSet pos{of_class[0], n_pos, nullptr}, others{of_class[c], sizes[c], nullptr};
        pairs[c].reset(make_row_sums(pos, others, piece, 1, threads));
        for (double*& of_order : sums[c]) of_order = scratch.take<double>(n_pos);
        pairs[c]->sums(w[c], false, 2, value_and_slope, sums[c], threads);
    }
    // The pair of a positive with itself, which does not count: d = 0.
    double own[2] = {0, 0};
    for (int order = 0; order < 2; ++order)
        for (int k = 0; k < piece.n_powers; ++k) own[order] += piece.powers[order * 2 * piece.n_powers + k];
    double *factors[2] = {scratch.take<double>(n_pos), scratch.take<double>(n_pos)}, loss = 0;
    for (std::int64_t i = 0; i < n_pos; ++i) {
        const double rank = sums[0][0][i] + w[0][i] * (1 - own[0]), above = sums[1][0][i], total = rank + above;
        loss += batch.shares[i] * above / total;
        // Derivatives of the loss in `rank` and in `above`.
        factors[0][i] = -batch.shares[i] * above / (total * total);
        factors[1][i] = batch.shares[i] * rank / (total * total);
    }
    for (int c = 0; c < 2; ++c) {
        double* found[1] = {scratch.take<double>(sizes[c])};
        pairs[c]->sums(factors[c], true, 1, slope, found, threads);
        for (std::int64_t k = 0; k < sizes[c]; ++k) {
            double sum = w[c][k] * found[0][k];
            // As a row, a positive has the negative slopes. Those of the pair with itself cancel.
            if (c == 0) sum -= factors[0][k] * sums[0][1][k] + factors[1][k] * sums[1][1][k];
            batch.grad[rows[c][k]] = sum;
        }
    }
    return loss;
}

}  // namespace everypair::EVERYPAIR_ISA
