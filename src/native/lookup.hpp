// Exact plan for any terms: sort the smaller class and look up the rows of the larger one.
//
// The rows of the smaller class are the sources, those of the larger one the queries. With z = s for a source and x = s + shift
// for a query (scores negated if the sources are the negatives), a pair counts in a term if z < x, with d = x - z. A query of
// rank r, the number of sources below it, needs
//
//     M0 = sum of w,    M1 = sum of w d = T_r + M0 d_r,    M2 = sum of w d^2 = Q_r + 2 d_r T_r + M0 d_r^2,
//
// where z_r is the last source below x, d_r = x - z_r, and T_r, Q_r are the sums of w (z_r - z) and w (z_r - z)^2. T and Q are
// computed from the gaps between neighbours, and all terms of these sums are positive, so that no digits cancel. The
// derivatives of the sources are sums over the queries: each query adds its slope 2 b2 w and its derivative to the anchor of
// the last source below it, and one downward sweep accumulates them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "double_double.hpp"
#include "pool.hpp"
#include "sources.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// One anchor per source. `first` and `second` are T and Q of the sources up to this one; `slope` and `value` are the sums over
// the queries whose last source below is this one: of their slopes, and of their derivatives at this source. Acc is double, or
// DoubleDouble if several terms nearly cancel far from their knots.
template <class Acc>
struct Anchor {
    Acc first, second, slope, value;
};

template <class S, class Acc>
class Lookup {
  public:
    Lookup(const Batch& batch, const Question& question, const Outputs& outputs, const std::uint8_t* classes,
           std::int64_t begin, std::int64_t n, const Survey& found, double scale)
        : question_(question), n_(n), scale_(scale) {
        const auto from = [&](void* array) { return array ? static_cast<S*>(array) + begin : nullptr; };
        scores_ = static_cast<const S*>(batch.scores) + begin;
        classes_ = classes + begin;
        weights_ = batch.weights ? batch.weights + begin : nullptr;
        vector_ = batch.vector ? batch.vector + begin : nullptr;
        grad_ = from(outputs.grad);
        hess_ = from(outputs.hess);
        hvp_ = from(outputs.hvp);
        source_class_ = 2 * found.n_pos <= n;
        n_sources_ = source_class_ ? found.n_pos : n - found.n_pos;
        sign_ = source_class_ ? 1 : -1;
    }

    double run() {
        Scratch scratch;
        const Sources<S> sources(scratch, scores_, classes_, n_, n_sources_, source_class_, sign_, question_.threads);
        // Each lane has its own anchors. The number of lanes depends only on the sizes, so that sums always have the same
        // order.
        const int tasks = task_count(n_);
        const int lanes = static_cast<int>(std::clamp<std::int64_t>(n_ / (8 * n_sources_), 1, std::min(tasks, 8)));
        stride_ = n_sources_ + 1;  // the first anchor is for queries below all sources
        anchors_ = scratch.take<Anchor<Acc>>(stride_ * lanes);
        masses_ = scratch.take<Acc>(weights_ ? stride_ : 0);
        vector_sums_ = scratch.take<double>(hvp_ ? stride_ : 0);
        query_vector_sums_ = scratch.take<double>(hvp_ ? stride_ * lanes : 0);
        double* values = scratch.take<double>(lanes);
        sum_sources(sources);
        parallel(question_.threads, lanes, [&](int lane) {
            if (lane) std::copy(anchors_, anchors_ + stride_, anchors_ + lane * stride_);
        });
        parallel(question_.threads, lanes, [&](int lane) {
            if (hvp_) std::fill(query_vector_sums_ + lane * stride_, query_vector_sums_ + (lane + 1) * stride_, 0.0);
            values[lane] = 0;
            const auto first_task = [&](int l) { return static_cast<std::int64_t>(tasks) * l / lanes; };
            for (std::int64_t t = first_task(lane); t < first_task(lane + 1); ++t)
                values[lane] += evaluate_queries(sources, t * task_rows, task_end(n_, t * task_rows), lane * stride_);
        });
        double value = 0;
        for (int lane = 0; lane < lanes; ++lane) value += values[lane];
        sum_queries(sources, lanes);
        return value * scale_;
    }

  private:
    static constexpr int block = 256;
    // As many additions as there are rows: without what rounding takes off, constant weights would drift.
    using RunningSum = std::conditional_t<std::is_same_v<Acc, double>, Compensated, Acc>;

    void sum_sources(const Sources<S>& sources) {
        RunningSum mass{};
        Acc first = 0, second = 0;
        double vector_sum = 0, z = 0;
        for (std::int64_t k = 0; k <= n_sources_; ++k) {
            if (k) {
                const double here = sources.key(k - 1);
                const Acc gap = k > 1 ? Acc(here) + Acc(-z) : Acc(0);
                const Acc step = gap * Acc(mass);
                second += gap * (Acc(2) * first + step);
                first += step;
                z = here;
                const std::uint32_t row = sources.rows[k - 1];
                const double w = weights_ ? weights_[row] : 1;
                mass += w;
                if (hvp_) vector_sum += w * vector_[row];
            }
            anchors_[k] = {first, second, Acc(0), Acc(0)};
            if (weights_) masses_[k] = Acc(mass);
            if (hvp_) vector_sums_[k] = vector_sum;
        }
    }

    // Computes the results of the queries among these rows, and returns their part of the value.
    double evaluate_queries(const Sources<S>& sources, std::int64_t begin, std::int64_t end, std::int64_t lane) {
        std::uint32_t rows[block + 1];
        double total = 0;
        for (std::int64_t i = begin; i < end; i += block) {
            int count = 0;
            for (std::int64_t r = i; r < std::min<std::int64_t>(end, i + block); ++r) {
                rows[count] = static_cast<std::uint32_t>(r);
                count += classes_[r] != source_class_;
            }
            if (count)
                total += weights_ ? evaluate_block<true>(sources, rows, count, lane)
                                  : evaluate_block<false>(sources, rows, count, lane);
        }
        return total;
    }

    // Short loops over a block: those that read memory have many loads in flight, the others are vectorised.
    template <bool weighted>
    double evaluate_block(const Sources<S>& sources, const std::uint32_t* rows, int count, std::int64_t lane) {
        double at[block], thresholds[block], w[block], hess[block], hvp[block];
        std::int32_t places[block];
        std::int64_t ranks[block];
        Acc d[block], mass[block], first[block], second[block], value[block], grad[block];
        const double sign = sign_;
        Anchor<Acc>* anchors = anchors_ + lane;
        for (int q = 0; q < count; ++q) at[q] = sign * static_cast<double>(scores_[rows[q]]);
        for (int q = 0; q < count; ++q) w[q] = weighted ? weights_[rows[q]] : 1;
        std::fill(value, value + count, Acc{0});
        std::fill(grad, grad + count, Acc{0});
        if (hess_) std::fill(hess, hess + count, 0.0);
        if (hvp_) std::fill(hvp, hvp + count, 0.0);
        for (int j = 0; j < question_.n_terms; ++j) {
            const Term term = question_.terms[j];
            const double slope = 2 * term.b2;
            if (term.truncated) {
#pragma omp simd
                for (int q = 0; q < count; ++q) {
                    thresholds[q] = threshold(at[q], term.shift);
                    places[q] = sources.bucket(thresholds[q]);
                }
                for (int q = 0; q < count; ++q) ranks[q] = sources.rank(thresholds[q], places[q]);
            } else {
                std::fill(ranks, ranks + count, n_sources_);
            }
            for (int q = 0; q < count; ++q) {
                const std::int64_t last = ranks[q] ? ranks[q] - 1 : 0;
                d[q] = ranks[q] ? sources.template distance<Acc>(last, at[q], term.shift) : Acc(0);
                mass[q] = weighted ? masses_[ranks[q]] : Acc(static_cast<double>(ranks[q]));
                Anchor<Acc>& anchor = anchors[ranks[q]];
                first[q] = anchor.first;
                second[q] = anchor.second;
                anchor.slope += Acc(slope) * Acc(w[q]);
                anchor.value += Acc(w[q]) * (Acc(term.b1) + Acc(slope) * d[q]);
            }
            for (int q = 0; q < count; ++q) {
                const Acc moved = first[q] + mass[q] * d[q];
                value[q] +=
                    Acc(term.b0) * mass[q] + Acc(term.b1) * moved + Acc(term.b2) * (second[q] + d[q] * (first[q] + moved));
                grad[q] += Acc(term.b1) * mass[q] + Acc(slope) * moved;
            }
            if (hess_)
                for (int q = 0; q < count; ++q) hess[q] += slope * static_cast<double>(mass[q]);
            if (hvp_)
                for (int q = 0; q < count; ++q) {
                    hvp[q] += slope * (vector_[rows[q]] * static_cast<double>(mass[q]) - vector_sums_[ranks[q]]);
                    query_vector_sums_[lane + ranks[q]] += slope * w[q] * vector_[rows[q]];
                }
        }
        double total = 0;
        for (int q = 0; q < count; ++q) total += w[q] * static_cast<double>(value[q]);
        const double out = scale_ * sign_;
        if (grad_)
            for (int q = 0; q < count; ++q) grad_[rows[q]] = static_cast<S>(out * w[q] * static_cast<double>(grad[q]) + 0.0);
        if (hess_)
            for (int q = 0; q < count; ++q) hess_[rows[q]] = static_cast<S>(scale_ * w[q] * hess[q]);
        if (hvp_)
            for (int q = 0; q < count; ++q) hvp_[rows[q]] = static_cast<S>(scale_ * w[q] * hvp[q]);
        return total;
    }

    // Sums over the sources downwards, for each over the queries above it.
    void sum_queries(const Sources<S>& sources, int lanes) {
        double vector_sum = 0, z = 0;
        RunningSum slope{};
        Acc value = 0;
        for (std::int64_t k = n_sources_; k > 0; --k) {
            const double here = sources.key(k - 1);
            if (k < n_sources_) value += Acc(slope) * (Acc(z) + Acc(-here));
            z = here;
            for (int lane = 0; lane < lanes; ++lane) {
                const Anchor<Acc>& anchor = anchors_[lane * stride_ + k];
                slope += anchor.slope;
                value += anchor.value;
                if (hvp_) vector_sum += query_vector_sums_[lane * stride_ + k];
            }
            const std::uint32_t row = sources.rows[k - 1];
            const double out = scale_ * (weights_ ? weights_[row] : 1);
            if (grad_) grad_[row] = static_cast<S>(-sign_ * out * static_cast<double>(value) + 0.0);  // -0.0 becomes 0.0
            if (hess_) hess_[row] = static_cast<S>(out * static_cast<double>(slope));
            if (hvp_) hvp_[row] = static_cast<S>(out * (static_cast<double>(slope) * vector_[row] - vector_sum));
        }
    }

    const Question& question_;
    const S* scores_;
    const std::uint8_t* classes_;
    const double *weights_, *vector_;
    S *grad_, *hess_, *hvp_;
    std::int64_t n_, n_sources_, stride_;
    std::uint8_t source_class_;
    double scale_, sign_;
    Anchor<Acc>* anchors_;
    Acc* masses_;
    double *vector_sums_, *query_vector_sums_;
};

// Returns the weight of the pairs in the right order; ties count half.
template <class S>
double concordant_weight(const Batch& batch, const std::uint8_t* classes, std::int64_t begin, std::int64_t n,
                         const Survey& found, int threads) {
    const S* scores = static_cast<const S*>(batch.scores) + begin;
    const double* weights = batch.weights ? batch.weights + begin : nullptr;
    const std::uint8_t* side = classes + begin;
    const bool pos_sources = 2 * found.n_pos <= n;
    const std::int64_t n_sources = pos_sources ? found.n_pos : n - found.n_pos;
    const double sign = pos_sources ? -1 : 1;  // so that the sources below a query are in the right order with it
    Scratch scratch;
    const Sources<S> sources(scratch, scores, side, n, n_sources, pos_sources, sign, threads);
    double* masses = scratch.take<double>(weights ? n_sources + 1 : 0);
    if (weights) {
        Compensated mass;
        masses[0] = 0;
        for (std::int64_t k = 0; k < n_sources; ++k) masses[k + 1] = mass += weights[sources.rows[k]];
    }
    const int tasks = task_count(n);
    double* parts = scratch.take<double>(tasks);
    parallel(threads, tasks, [&](int t) {
        double sum = 0;
        for (std::int64_t i = t * task_rows; i < task_end(n, t * task_rows); ++i) {
            if (side[i] == pos_sources) continue;
            const double x = sign * static_cast<double>(scores[i]);
            const std::int32_t place = sources.bucket(x);
            const std::int64_t below = sources.rank(x, place);
            const bool tied = below < n_sources && sources.key(below) == x;
            const std::int64_t upto = tied ? sources.rank(next_above(x), place) : below;
            const double both = weights ? masses[below] + masses[upto] : static_cast<double>(below + upto);
            sum += 0.5 * both * (weights ? weights[i] : 1);
        }
        parts[t] = sum;
    });
    double sum = 0;
    for (int t = 0; t < tasks; ++t) sum += parts[t];
    return sum;
}

}  // namespace everypair::EVERYPAIR_ISA
