// Plan for terms without a knot: all pairs count, and the moments of the two classes give value and
// derivatives. O(n).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "double_double.hpp"
#include "group_rows.hpp"
#include "pool.hpp"
#include "survey.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

using Two = std::array<double, 2>;  // by class: 0 negatives, 1 positives

// Sums w q over each class, where q(i) is a quantity of row i. Vectors fix the order of the additions.
template <class Quantity>
Two class_sums(const std::uint8_t* classes, const double* weights, std::int64_t n, int threads,
               Quantity&& quantity) {
    constexpr int block = 512, vectors = 8 / lanes;
    const int tasks = task_count(n);
    Scratch scratch;
    Two* parts = scratch.take<Two>(tasks);
    parallel(threads, tasks, [&](int t) {
        Vec neg[vectors] = {}, pos[vectors] = {};
        const std::int64_t end = task_end(n, t * task_rows);
        for (std::int64_t begin = t * task_rows; begin < end; begin += block) {
            const int count = static_cast<int>(std::min<std::int64_t>(block, end - begin));
            double of_all[block + 8], of_pos[block + 8];
            const auto fill = [&](auto&& weight) {
#pragma omp simd
                for (int k = 0; k < count; ++k) {
                    const double w = weight(begin + k), q = w > 0 ? w * quantity(begin + k) : 0,
                                 share = classes[begin + k];
                    of_all[k] = q;
                    of_pos[k] = q * share;
                }
            };
            if (weights)
                fill([&](std::int64_t i) { return weights[i]; });
            else
                fill([](std::int64_t) { return 1.0; });
            for (int k = count; k % 8; ++k) of_all[k] = of_pos[k] = 0;
            for (int k = 0; k < count; k += 8)
                for (int v = 0; v < vectors; ++v) {
                    const Vec q = load(of_all + k + v * lanes), p = load(of_pos + k + v * lanes);
                    neg[v] += q - p;
                    pos[v] += p;
                }
        }
        parts[t] = {};
        for (int v = 0; v < vectors; ++v) parts[t][0] += sum_of(neg[v]), parts[t][1] += sum_of(pos[v]);
    });
    Two total{};
    for (int t = 0; t < tasks; ++t)
        for (int side = 0; side < 2; ++side) total[side] += parts[t][side];
    return total;
}

template <class S>
double everywhere(const GroupRows<S>& rows, const Question& question) {
    // Terms without a knot have the same shift, so their sum is one polynomial in d.
    double b0 = 0, b1 = 0, b2 = 0;
    for (int j = 0; j < question.n_terms; ++j)
        b0 += question.terms[j].b0, b1 += question.terms[j].b1, b2 += question.terms[j].b2;
    const double shift = question.terms[0].shift;

    const S* scores = rows.scores;
    const double *weights = rows.weights, *vector = rows.vector, scale = rows.scale;
    const std::uint8_t* side = rows.classes;
    const std::int64_t n = rows.n;
    const Survey& survey = rows.survey;
    const auto sums = [&](auto&& quantity) {
        return class_sums(side, weights, n, question.threads, quantity);
    };

    // Positives are relative to a typical or a heavy positive. A distant one would cost the others their
    // digits.
    double origin;
    if (weights) {
        Largest<double> largest(0);
        largest.add(n, [=](std::int64_t i) { return either(side[i] == 1, weights[i], 0.0); });
        const double heaviest = largest.value();
        std::int64_t row = 0;
        while (side[row] != 1 || weights[row] != heaviest) ++row;
        origin = static_cast<double>(scores[row]);
    } else {
        constexpr int most = 15;
        double sample[most];
        int count = 0;
        for (int k = 0; k < most; ++k)
            if (const void* found_at = std::memchr(side + k * n / most, 1, n - k * n / most))
                sample[count++] =
                    static_cast<double>(scores[static_cast<const std::uint8_t*>(found_at) - side]);
        std::nth_element(sample, sample + count / 2, sample + count);
        origin = sample[count / 2];
    }
    // Negatives are relative to origin - shift, so that d = x_neg - x_pos + rest: a large shift costs no
    // digits. Products with the class are quicker than a choice; the origin of the positives is rounded for
    // them, and the rest is exact.
    const double below = origin - shift, apart = origin - below;
    const DoubleDouble between = DoubleDouble::sum(below, -(below + apart));
    const double rest = (between.high + shift) + between.low;
    const auto x = [=](std::int64_t i) { return static_cast<double>(scores[i]) - (below + apart * side[i]); };
    const Two first = sums(x);
    const Two mean{first[0] / survey.w_neg, first[1] / survey.w_pos};
    // d = (x_neg - mean_neg) - (x_pos - mean_pos) + centre, and the products of different parts sum to zero
    // over all pairs.
    const double centre = mean[0] - mean[1] + rest;
    double value = survey.w_pos * survey.w_neg * (b0 + b1 * centre + b2 * centre * centre);
    if (b2 != 0) {
        const double of_neg = mean[0], step = mean[1] - mean[0];
        const Two spread = sums([=](std::int64_t i) {
            const double u = x(i) - (of_neg + step * side[i]);
            return u * u;
        });
        value += b2 * (spread[0] * survey.w_pos + spread[1] * survey.w_neg);
    }

    // The gradient of a row is its weight times a linear function of x: for a negative, the sum over the
    // positives of w (b1 + 2 b2 (x - x_pos + rest)). It is computed from sums, because the mean of denormal
    // numbers loses digits. The factor of the reduction comes last: it may be tiny.
    const double d0 = 2 * b2 * survey.w_pos, c0 = (b1 + 2 * b2 * rest) * survey.w_pos - 2 * b2 * first[1];
    const double d1 = 2 * b2 * survey.w_neg, c1 = -(b1 + 2 * b2 * rest) * survey.w_neg - 2 * b2 * first[0];
    Two vector_sums{};
    if (rows.hvp) vector_sums = sums([=](std::int64_t i) { return vector[i]; });
    const double t0 = vector_sums[1] / survey.w_pos, t1 = vector_sums[0] / survey.w_neg;
    const auto write = [&](S* out, auto&& result) {
        if (!out) return;
        parallel(question.threads, task_count(n), [&](int t) {
            const std::int64_t from = t * task_rows, to = task_end(n, from);
            if (weights)
                for (std::int64_t i = from; i < to; ++i)
                    out[i] = static_cast<S>(weights[i] > 0 ? result(i) * weights[i] * scale : 0);
            else
#pragma omp simd
                for (std::int64_t i = from; i < to; ++i) out[i] = static_cast<S>(result(i) * scale);
        });
    };
    write(rows.grad, [=](std::int64_t i) { return (side[i] ? c1 : c0) + (side[i] ? d1 : d0) * x(i); });
    write(rows.hess, [=](std::int64_t i) { return side[i] ? d1 : d0; });
    write(rows.hvp, [=](std::int64_t i) { return (side[i] ? d1 : d0) * (vector[i] - (side[i] ? t1 : t0)); });
    return value * scale;
}

}  // namespace everypair::EVERYPAIR_ISA
