// Terms without a knot: every pair counts, and the two classes' moments are all there is to know. O(n).
#pragma once

#include <cstdint>

#include "pool.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {


template <class S>
double everywhere(const Batch& batch, const Question& question, const Outputs& outputs, const std::uint8_t* classes,
                  std::int64_t begin, std::int64_t n, const Survey& found, double scale) {
    // Several knotless terms with one shift are one polynomial of t = d.
    double b0 = 0, b1 = 0, b2 = 0;
    for (int j = 0; j < question.n_terms; ++j)
        b0 += question.terms[j].b0, b1 += question.terms[j].b1, b2 += question.terms[j].b2;
    const double shift = question.terms[0].shift;

    const S* scores = static_cast<const S*>(batch.scores) + begin;
    const double* weights = batch.weights ? batch.weights + begin : nullptr;
    const double* vector = batch.vector ? batch.vector + begin : nullptr;
    const std::uint8_t* side = classes + begin;
    const auto from = [&](void* array) { return array ? static_cast<S*>(array) + begin : nullptr; };
    S *grad = from(outputs.grad), *hess = from(outputs.hess), *hvp = from(outputs.hvp);
    const int tasks = task_count(n);
    Scratch scratch;

    // Sums of each class, of a quantity given by row; [0] negatives, [1] positives.
    struct Two {
        double of[2];
    };
    Two* parts = scratch.take<Two>(tasks);
    const auto class_sums = [&](auto&& quantity) {
        parallel(question.threads, tasks, [&](int t) {
            constexpr int lanes = 8;
            double all[lanes] = {}, pos[lanes] = {};
            const std::int64_t from_row = t * task_rows, to = task_end(n, from_row);
            std::int64_t i = from_row;
            const auto add = [&](std::int64_t row, int k) {
                const double q = (weights ? weights[row] : 1.0) * quantity(row);
                all[k] += side[row] ? 0.0 : q;
                pos[k] += side[row] ? q : 0.0;
            };
            for (; i + lanes <= to; i += lanes)
                for (int k = 0; k < lanes; ++k) add(i + k, k);
            for (; i < to; ++i) add(i, 0);
            parts[t] = {{0, 0}};
            for (int k = 0; k < lanes; ++k) parts[t].of[0] += all[k], parts[t].of[1] += pos[k];
        });
        Two total{{0, 0}};
        for (int t = 0; t < tasks; ++t) total.of[0] += parts[t].of[0], total.of[1] += parts[t].of[1];
        return total;
    };

    const double origin = found.min_pos;
    const auto position = [&](std::int64_t i) { return static_cast<double>(scores[i]) - origin; };
    const Two first = class_sums(position);
    const double mean_neg = first.of[0] / found.w_neg, mean_pos = first.of[1] / found.w_pos;
    // d = (x_neg - mean_neg) - (x_pos - mean_pos) + centre: the three parts are uncorrelated over all pairs.
    const double centre = mean_neg - mean_pos + shift, pairs = found.w_pos * found.w_neg;
    double value = pairs * (b0 + b1 * centre + b2 * centre * centre);
    if (b2 != 0) {
        const Two spread = class_sums([&](std::int64_t i) {
            const double u = position(i) - (side[i] ? mean_pos : mean_neg);
            return u * u;
        });
        value += b2 * (spread.of[0] * found.w_pos + spread.of[1] * found.w_neg);
    }
    Two spin{{0, 0}};
    if (hvp) spin = class_sums([&](std::int64_t i) { return vector[i]; });

    if (grad || hess || hvp)
        parallel(question.threads, tasks, [&](int t) {
            for (std::int64_t i = t * task_rows; i < task_end(n, t * task_rows); ++i) {
                const bool pos = side[i];
                const double others = (pos ? found.w_neg : found.w_pos) * (weights ? weights[i] : 1.0) * scale;
                const double d = pos ? mean_neg + shift - position(i) : position(i) + shift - mean_pos;
                const double slope = b1 + 2 * b2 * d;
                if (grad) grad[i] = static_cast<S>((pos ? -slope : slope) * others);
                if (hess) hess[i] = static_cast<S>(2 * b2 * others);
                if (hvp) hvp[i] = static_cast<S>(2 * b2 * others * (vector[i] - (pos ? spin.of[0] / found.w_neg : spin.of[1] / found.w_pos)));
            }
        });
    return value * scale;
}

}  // namespace everypair::EVERYPAIR_ISA
