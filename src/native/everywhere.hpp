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

using ByClass = std::array<double, 2>;  // by class: 0 negatives, 1 positives

// The classes of rows as numbers: 1 for a positive. By way of integers, because compilers for 128-bit vectors
// convert pairs of bytes to doubles slowly.
inline void fill_sides(const std::uint8_t* classes, int count, double* sides) {
    std::int32_t integers[block_rows];
    for (int k = 0; k < count; ++k) integers[k] = classes[k] & 1;
    for (int k = 0; k < count; ++k) sides[k] = integers[k];
}

// Sums w q over each class, where q(i, side) is a quantity of row i of this class. Vectors fix the order of
// the additions.
template <class S, class Quantity>
ByClass class_sums(const GroupRows<S>& rows, Quantity&& quantity) {
    constexpr int vectors = 8 / lanes;
    const std::uint8_t* classes = rows.classes;
    const std::int64_t n = rows.n;
    const int tasks = task_count(n);
    Scratch scratch;
    ByClass* parts = scratch.take<ByClass>(tasks);
    parallel(rows.threads, tasks, [&](int t) {
        Vec neg[vectors] = {}, pos[vectors] = {};
        const std::int64_t end = task_end(n, t * task_rows);
        for (std::int64_t begin = t * task_rows; begin < end; begin += block_rows) {
            const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - begin));
            double sides[block_rows], of_all[block_rows + 8], of_pos[block_rows + 8];
            fill_sides(classes + begin, count, sides);
            const auto fill = [&](auto&& weight) {
#pragma omp simd
                for (int k = 0; k < count; ++k) {
                    const double w = weight(begin + k),
                                 q = either(w > 0, w * quantity(begin + k, sides[k]), 0.0);
                    of_all[k] = q;
                    of_pos[k] = q * sides[k];
                }
            };
            if (const double* weights = rows.weights)
                fill([=](std::int64_t i) { return weights[i]; });
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
    ByClass total{};
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
        constexpr int size = 15;
        double sample[size];
        int count = 0;
        for (int k = 0; k < size; ++k)
            if (const void* positive = std::memchr(side + k * n / size, 1, n - k * n / size))
                sample[count++] =
                    static_cast<double>(scores[static_cast<const std::uint8_t*>(positive) - side]);
        std::nth_element(sample, sample + count / 2, sample + count);
        origin = sample[count / 2];
    }
    // Negatives are relative to origin - shift, so that d = x_neg - x_pos + rest: a large shift costs no
    // digits. Products with the class are quicker than a choice; the origin of the positives is rounded for
    // them, and the rest is exact.
    const double below = origin - shift, apart = origin - below;
    const DoubleDouble between = DoubleDouble::sum(below, -(below + apart));
    const double rest = (between.high + shift) + between.low;
    const auto x = [=](std::int64_t i, double of_class) {
        return static_cast<double>(scores[i]) - (below + apart * of_class);
    };
    const ByClass first = class_sums(rows, x);
    const ByClass mean{first[0] / survey.w_neg, first[1] / survey.w_pos};
    // d = (x_neg - mean_neg) - (x_pos - mean_pos) + centre, and the products of different parts sum to zero
    // over all pairs.
    const double centre = mean[0] - mean[1] + rest;
    double value = survey.w_pos * survey.w_neg * (b0 + b1 * centre + b2 * centre * centre);
    if (b2 != 0) {
        const double of_neg = mean[0], step = mean[1] - mean[0];
        const ByClass spread = class_sums(rows, [=](std::int64_t i, double of_class) {
            const double u = x(i, of_class) - (of_neg + step * of_class);
            return u * u;
        });
        value += b2 * (spread[0] * survey.w_pos + spread[1] * survey.w_neg);
    }

    // The gradient of a row is its weight times a linear function of x: for a negative, the sum over the
    // positives of w (b1 + 2 b2 (x - x_pos + rest)). It is computed from sums, because the mean of denormal
    // numbers loses digits. The factor of the reduction comes last: it may be tiny.
    const double d0 = 2 * b2 * survey.w_pos, c0 = (b1 + 2 * b2 * rest) * survey.w_pos - 2 * b2 * first[1];
    const double d1 = 2 * b2 * survey.w_neg, c1 = -(b1 + 2 * b2 * rest) * survey.w_neg - 2 * b2 * first[0];
    ByClass vector_sums{};
    if (rows.hvp) vector_sums = class_sums(rows, [=](std::int64_t i, double) { return vector[i]; });
    const double t0 = vector_sums[1] / survey.w_pos, t1 = vector_sums[0] / survey.w_neg;
    const auto write = [&](S* out, auto&& result) {
        if (!out) return;
        by_blocks(n, task_count(n), rows.threads, [&](int, std::int64_t begin, int count) {
            double sides[block_rows];
            fill_sides(side + begin, count, sides);
            if (weights)
                for (int k = 0; k < count; ++k) {
                    const double w = weights[begin + k];
                    out[begin + k] = static_cast<S>(w > 0 ? result(begin + k, sides[k]) * w * scale : 0);
                }
            else
#pragma omp simd
                for (int k = 0; k < count; ++k)
                    out[begin + k] = static_cast<S>(result(begin + k, sides[k]) * scale);
        });
    };
    write(rows.grad, [=](std::int64_t i, double of_class) {
        return either(of_class > 0, c1, c0) + either(of_class > 0, d1, d0) * x(i, of_class);
    });
    write(rows.hess, [=](std::int64_t, double of_class) { return either(of_class > 0, d1, d0); });
    write(rows.hvp, [=](std::int64_t i, double of_class) {
        return either(of_class > 0, d1, d0) * (vector[i] - either(of_class > 0, t1, t0));
    });
    return value * scale;
}

}  // namespace everypair::EVERYPAIR_ISA
