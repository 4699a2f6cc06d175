// Random batches and questions for the tests of the kernel. A case is known by its number and its size.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "oracle.hpp"

namespace everypair::test {

// The formulas of the textbook as pieces. With the shortfall t = margin - (s_pos - s_neg), a knot at t = k
// has the shift margin
// - k.
inline Surrogate surrogate(int number, double margin) {
    const double m = margin;
    switch (number) {
        case 0: return {"squared_hinge", {{m, 0, 0, 1, true}}, {{m, -inf, m, 0, 0, 1}}};
        case 1: return {"linear_hinge", {{m, 0, 1, 0, true}}, {{m, -inf, m, 0, 1, 0}}};
        case 2: return {"jump", {{m, 1, 0, 0, true}}, {{m, -inf, m, 1, 0, 0}}};
        case 3:
            return {"huber_hinge",
                    {{m, 0, 0, 0.5, true}, {m - 1, 0, 0, -0.5, true}},
                    {{m, m - 1, m, 0, 0, 0.5}, {m - 1, -inf, m - 1, 0.5, 1, 0}}};
        case 4:
            return {"capped_hinge",
                    {{m, 0, 1, 0, true}, {m - 2, 0, -1, 0, true}},
                    {{m, m - 2, m, 0, 1, 0}, {m - 2, -inf, m - 2, 2, 0, 0}}};
        case 5: return {"square", {{m, 0, 0, 1, false}}, {{inf, -inf, m, 0, 0, 1}}};
        default:  // 0.5 + 0.5 t^2 everywhere, t more where t > -0.5, and 0.25 t^2 less where t > 1
            return {"three_terms",
                    {{m, 0.5, 0, 0.5, false}, {m + 0.5, -0.5, 1, 0, true}, {m - 1, -0.25, -0.5, -0.25, true}},
                    {{inf, m + 0.5, m, 0.5, 0, 0.5},
                     {m + 0.5, m - 1, m, 0.5, 1, 0.5},
                     {m - 1, -inf, m, 0.5, 1, 0.25}}};
    }
}
constexpr int n_surrogates = 7, huber_hinge = 3;

constexpr const char* score_kinds[] = {"normal",      "rounded",  "grid",      "offset", "outliers",
                                       "heavy_tails", "constant", "separated", "input"};
constexpr const char* weight_kinds[] = {"none", "uniform", "zeros", "decades", "input"};
constexpr const char* label_types[] = {"uint8", "int8", "int32", "int64", "float32", "float64"};

struct Case {
    int number;
    bool is_float;
    Surrogate surrogate;
    double margin;
    int scores, weights;
    Dtype labels;
    bool minus_one;  // negatives are coded -1
    bool mean, grad, hess, hvp;
    Rows rows;

    std::string text() const {
        char line[256];
        std::snprintf(line, sizeof line,
                      "case %d %lld: %s, %s, margin %g, scores %s, labels %s, weights %s, groups %zu, %s",
                      number, static_cast<long long>(rows.n()), is_float ? "float32" : "float64",
                      surrogate.name, margin, score_kinds[scores], label_types[static_cast<int>(labels)],
                      weight_kinds[weights], rows.bounds().size() - 1, mean ? "mean" : "sum");
        return line;
    }
};

// Cases from this number on ask for what training asks for, which has plans of its own: the gradient of
// float32 scores, without weights and groups, for the squared hinge (even numbers) or the Huber hinge (odd
// numbers).
constexpr int first_plain = 1000;

inline Case draw(int number, std::int64_t n) {
    std::mt19937_64 bits(static_cast<std::uint64_t>(number) * 1'000'003 + static_cast<std::uint64_t>(n));
    const auto below = [&](int end) { return static_cast<int>(bits() % static_cast<std::uint64_t>(end)); };
    const auto uniform = [&] { return static_cast<double>(bits() >> 11) * 0x1p-53; };
    std::normal_distribution<double> normal;
    const auto pick = [&](std::initializer_list<double> from) {
        return from.begin()[below(static_cast<int>(from.size()))];
    };

    Case drawn;
    const bool plain = number >= first_plain;
    drawn.number = number;
    // Consecutive numbers have all surrogates and types.
    drawn.is_float = plain || number / n_surrogates % 2 == 0;
    drawn.margin = pick({1.0, 1.0, 0.5, 0.1, 0.0});
    drawn.surrogate = surrogate(plain ? number % 2 * huber_hinge : number % n_surrogates, drawn.margin);
    drawn.scores = below(8);
    drawn.weights = plain || below(2) ? 0 : below(4);
    drawn.labels = static_cast<Dtype>(below(6));
    drawn.minus_one = drawn.labels != Dtype::u8 && below(2);
    drawn.mean = below(2);
    drawn.grad = plain || below(8) > 0;
    drawn.hess = !plain && below(3) == 0;
    drawn.hvp = !plain && below(3) == 0;

    const auto as_given = [&](double x) { return drawn.is_float ? static_cast<float>(x) : x; };
    const std::string kind = score_kinds[drawn.scores];
    const double share = below(12) ? pick({0.5, 0.5, 0.1, 0.01}) : pick({0.0, 1.0});
    const double spread = pick({1.0, 1.0, 0.05, 20.0}), far = drawn.is_float || n < 300 ? 1e8 : 1e5;
    const double unit = pick({0.1, 0.01});
    Rows& rows = drawn.rows;
    for (std::int64_t i = 0; i < n; ++i) {
        const bool positive = uniform() < share;
        double s = spread * normal(bits) + positive;
        if (kind == "rounded") s = std::round(s / unit) * unit;
        if (kind == "grid") s = std::round(s * 16) / 16;
        if (kind == "offset") s += 1e6;
        if (kind == "outliers" && below(20) == 0) s *= far;
        if (kind == "heavy_tails") s = positive + 0.1 * std::tan(3.1 * (uniform() - 0.5));
        if (kind == "constant") s = 0.3;
        if (kind == "separated") s = uniform() + 3 * positive;
        rows.scores.push_back(as_given(s));
        rows.positive.push_back(positive);
    }
    const std::string weighting = weight_kinds[drawn.weights];
    for (std::int64_t i = 0; i < n && drawn.weights > 0; ++i) {
        double w = (1 + below(128)) / 64.0;  // sums of these have no rounding error
        if (weighting == "zeros" && below(3) == 0) w = 0;
        if (weighting == "decades") w = std::pow(10, (n < 300 ? 12 : 3) * (2 * uniform() - 1));
        rows.weights.push_back(w);
    }
    for (std::int64_t i = 0; i < n && drawn.hvp; ++i) rows.vector.push_back(normal(bits));
    if (!plain && below(4) == 0) {
        const std::int64_t most = pick({2.0, 30.0, 3000.0}) + 1;
        rows.offsets.push_back(0);
        while (rows.offsets.back() < n)
            rows.offsets.push_back(std::min(n, rows.offsets.back() + 1 + below(static_cast<int>(most))));
    }
    return drawn;
}

}  // namespace everypair::test
