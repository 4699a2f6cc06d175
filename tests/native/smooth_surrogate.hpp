// Logistic loss and squared softplus for the tests of the kernel: the coefficients that the kernel reads,
// fitted here, and the textbook formulas.
#pragma once

#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include "oracle.hpp"

namespace everypair::test {

using Polynomial = std::vector<Real>;  // the coefficient of the lowest power first

// The polynomial in x that equals the function at n Chebyshev nodes of [low, low + 1].
inline Polynomial interpolate(const std::function<Real(Real)>& function, Real low, int n) {
    Polynomial found(n), before(n),
        here(n);  // `here` is the Chebyshev polynomial of degree j in 2 (x - low) - 1
    std::vector<Real> angles(n), values(n);
    for (int k = 0; k < n; ++k) {
        angles[k] = std::numbers::pi_v<Real> * (k + 0.5L) / n;
        values[k] = function(low + (1 + std::cos(angles[k])) / 2);
    }
    here[0] = 1;
    for (int j = 0; j < n; ++j) {
        Real share = 0;
        for (int k = 0; k < n; ++k) share += values[k] * std::cos(j * angles[k]) * (j ? 2 : 1) / n;
        for (int k = 0; k < n; ++k) found[k] += share * here[k];
        Polynomial next(n);
        for (int k = 0; k < n; ++k)
            next[k] =
                (j ? 2 : 1) * ((k ? 2 * here[k - 1] : 0) - (2 * low + 1) * here[k]) - (j ? before[k] : 0);
        before = here, here = next;
    }
    return found;
}

struct SmoothSurrogate {
    // With u = rate d and x = exp(-|u|), value, slope and curvature are the polynomial b plus c(x) + e(x) |u|
    // for d > 0, and c(x) for d <= 0; c and e vanish at x = 0.
    SmoothSurrogate(bool squared, bool is_float, double shift, double rate) {
        const int n_powers = is_float ? 12 : 20;
        const auto part = [=](int order, bool above, bool of_distance, Real x) -> Real {
            const Real l = std::log1p(x), g = 1 / (1 + x);
            if (!squared)
                return of_distance ? 0 : order == 0 ? l : order == 1 ? (above ? -x * g : x * g) : x * g * g;
            if (of_distance) return !above ? 0 : order == 0 ? 2 * l : order == 1 ? -2 * x * g : 2 * x * g * g;
            if (order == 0) return l * l;
            return order == 1 ? 2 * l * (above ? g : x * g)
                              : 2 * (above ? g * g - 1 : x * x * g * g) + 2 * l * x * g * g;
        };
        smooth = {shift, rate, 0, squared ? 0 : rate, squared ? rate * rate : 0, squared, 0};
        smooth.width = std::exp2(std::floor(std::log2((is_float ? 0.25 : 0.0625) / rate)));
        function = [=](Real d) -> Derivatives {
            const Real u = rate * d, x = std::exp(-std::abs(u)), s = std::max(u, Real{0}) + std::log1p(x);
            const Real p = (u > 0 ? 1 : x) / (1 + x), q = x / ((1 + x) * (1 + x));
            if (!squared) return {s, rate * p, rate * rate * q};
            return {s * s, rate * 2 * s * p, rate * rate * 2 * (p * p + s * q)};
        };
        for (int order = 0; order < 3; ++order) {
            for (const bool above : {false, true}) {
                // The squared softplus is of the order of x^2 for d <= 0.
                const int least = squared && !above;
                Polynomial of[2];
                for (const bool distance : {false, true}) {
                    const auto ratio = [&](Real x) {
                        return part(order, above, distance, x) / (least ? x * x : x);
                    };
                    of[distance] = interpolate(ratio, 0, n_powers - least);
                    of[distance].insert(of[distance].begin(), least, 0);
                }
                for (int k = 0; k < n_powers; ++k)
                    for (const int distance : {0, 1})
                        powers[order].push_back(
                            static_cast<double>(of[distance][k] * std::pow(rate, order + distance)));
            }
            smooth.powers[order] = powers[order].data();
            smooth.n_powers[order] = n_powers;
            const Real width = smooth.width;
            for (int i = 0; i < bucket_moments; ++i)
                for (const Real c : interpolate(
                         [&](Real b) {
                             const auto of_neg = [&](Real a) { return function(width * (a - b))[order]; };
                             return interpolate(of_neg, -0.5L, bucket_moments)[i];
                         },
                         -0.5L, bucket_moments))
                    inside.push_back(static_cast<double>(c));
        }
        for (const bool distance : {false, true}) {
            std::vector<Polynomial> of;
            for (int k = 1; k <= n_powers; ++k)
                of.push_back(interpolate(
                    [&](Real u) { return (distance ? u : 1) * std::exp(-k * rate * Real{smooth.width} * u); },
                    -0.5L, bucket_moments));
            for (int j = 0; j < bucket_moments; ++j)
                for (const Polynomial& column : of) series.push_back(static_cast<double>(column[j]));
        }
        smooth.series = series.data(), smooth.inside = inside.data(), smooth.n_series = n_powers;
    }
    SmoothSurrogate(const SmoothSurrogate&) = delete;

    Smooth smooth;
    std::function<Derivatives(Real)> function;

  private:
    std::vector<double> powers[3], series, inside;
};

}  // namespace everypair::test
