// Any terms, exactly: sort the smaller class, look the larger one up.
//
// The rows of the smaller class are the sources, those of the larger one the queries. With z = s - origin for a source and
// x = s - origin + shift for a query (both negated when the sources are the negatives), a pair counts in a term where z < x,
// with d = x - z. A query of rank r, the number of sources below it, needs
//
//     M0 = sum of w,    M1 = sum of w d = T_r + M0 (x - z_r),    M2 = sum of w d^2 = Q_r + 2 (x - z_r) T_r + M0 (x - z_r)^2,
//
// where z_r is the last source below x and T_r, Q_r are the sums of w (z_r - z) and w (z_r - z)^2. T and Q are built from the
// gaps between neighbours, every addend positive: no offset and no spread can cancel digits. The sources' own derivatives come
// from the queries: each leaves its slope 2 b2 w and its value at the last source below it, and one sweep downwards adds them up.
//
// Ranks come from the table of buckets that sorted the sources: O(1) for ordinary scores, a binary search inside a crowded
// bucket, so O(n log n) whatever comes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "pool.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

struct Keyed {
    double z;
    std::uint32_t row;
};

inline bool operator<(const Keyed& a, const Keyed& b) { return a.z < b.z || (a.z == b.z && a.row < b.row); }

// The sources in order, with the table that finds a place among them.
struct Sources {
    std::int64_t n;
    double* z;  // ascending, then four infinities so that a search may read past the end
    std::uint32_t* rows;
    std::uint32_t* starts;  // first source of each bucket
    std::int64_t buckets;
    double least, scale;

    std::int64_t bucket(double x) const {
        const double p = (x - least) * scale;
        return p < static_cast<double>(buckets) ? static_cast<std::int64_t>(p) : buckets - 1;
    }

    // The number of sources strictly below x.
    std::int64_t rank(double x) const {
        if (!(x > least)) return 0;
        const std::int64_t b = bucket(x), from = starts[b];
        const int below = (z[from] < x) + (z[from + 1] < x) + (z[from + 2] < x) + (z[from + 3] < x);
        if (below < 4) return from + below;
        return std::lower_bound(z + from + 4, z + starts[b + 1] + 4, x) - z;
    }
};

inline void sort_bucket(Keyed* first, Keyed* last) {
    if (last - first > 24) return std::sort(first, last);
    for (Keyed* i = first + 1; i < last; ++i) {
        const Keyed moved = *i;
        Keyed* j = i;
        for (; j > first && moved < j[-1]; --j) *j = j[-1];
        *j = moved;
    }
}

// Rows of class `side`, as z = sign x (s - origin).
template <class S>
Sources sort_sources(Scratch& keep, const S* scores, const std::uint8_t* classes, std::int64_t n, std::int64_t n_sources,
                     std::uint8_t side, double sign, double origin, int threads) {
    Sources sources;
    sources.n = n_sources;
    sources.z = keep.take<double>(n_sources + 4);
    sources.rows = keep.take<std::uint32_t>(n_sources);
    sources.buckets = std::max<std::int64_t>(1, std::min<std::int64_t>(n_sources / 2, 1 << 20));
    sources.starts = keep.take<std::uint32_t>(sources.buckets + 2);

    Scratch scratch;
    Keyed* gathered = scratch.take<Keyed>(n_sources + 1);
    Keyed* sorted = scratch.take<Keyed>(n_sources);
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (std::int64_t i = 0, k = 0; i < n; ++i) {
        gathered[k] = {sign * (static_cast<double>(scores[i]) - origin), static_cast<std::uint32_t>(i)};
        k += classes[i] == side;
    }
    for (std::int64_t k = 0; k < n_sources; ++k) {
        least = std::min(least, gathered[k].z);
        most = std::max(most, gathered[k].z);
    }
    sources.least = least;
    sources.scale = static_cast<double>(sources.buckets) / (most - least);
    // Equal scores, or a range that has no ordinary reciprocal: one bucket, and comparisons alone.
    if (!(most - least > 0x1p-900 && most - least < 0x1p1000)) sources.buckets = 1, sources.scale = 0;

    std::uint32_t* starts = sources.starts;
    std::fill(starts, starts + sources.buckets + 2, 0);
    for (std::int64_t k = 0; k < n_sources; ++k) ++starts[sources.bucket(gathered[k].z) + 2];
    for (std::int64_t b = 2; b < sources.buckets + 2; ++b) starts[b] += starts[b - 1];
    // Filling bucket b moves starts[b + 1] from its first place to its last, which is where bucket b + 1 starts.
    for (std::int64_t k = 0; k < n_sources; ++k) sorted[starts[sources.bucket(gathered[k].z) + 1]++] = gathered[k];

    const int tasks = task_count(sources.buckets);
    parallel(n_sources < task_rows ? 1 : threads, tasks, [&](int t) {
        const std::int64_t from = t * task_rows, to = task_end(sources.buckets, from);
        for (std::int64_t b = from; b < to; ++b) sort_bucket(sorted + starts[b], sorted + starts[b + 1]);
        for (std::int64_t k = starts[from]; k < starts[to]; ++k) {
            sources.z[k] = sorted[k].z;
            sources.rows[k] = sorted[k].row;
        }
    });
    for (int k = 0; k < 4; ++k) sources.z[n_sources + k] = std::numeric_limits<double>::infinity();
    return sources;
}

// T and Q at each source; Acc is wider than double where several terms nearly cancel far from their knots.
template <class Acc>
struct Moments {
    Acc first, second;
};

// What queries leave at the last source below them.
struct Trace {
    double slope, value;
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
        origin_ = found.min_pos;
        source_class_ = 2 * found.n_pos <= n;
        n_sources_ = source_class_ ? found.n_pos : n - found.n_pos;
        sign_ = source_class_ ? 1 : -1;
    }

    double run() {
        Scratch scratch;
        sources_ = sort_sources(scratch, scores_, classes_, n_, n_sources_, source_class_, sign_, origin_, question_.threads);
        moments_ = scratch.take<Moments<Acc>>(n_sources_);
        masses_ = scratch.take<double>(weights_ ? n_sources_ : 0);
        spins_ = scratch.take<double>(hvp_ ? n_sources_ + 1 : 0);
        sum_sources();

        // Each lane has traces of its own. Their number depends on the sizes alone, so that sums have one order.
        const int tasks = task_count(n_);
        const int lanes = static_cast<int>(std::clamp<std::int64_t>(n_ / (8 * n_sources_), 1, std::min(tasks, 8)));
        const std::int64_t stride = n_sources_;
        traces_ = scratch.take<Trace>(stride * lanes);
        spin_traces_ = scratch.take<double>(hvp_ ? stride * lanes : 0);
        double* values = scratch.take<double>(lanes);
        parallel(question_.threads, lanes, [&](int lane) {
            std::fill(traces_ + lane * stride, traces_ + (lane + 1) * stride, Trace{0, 0});
            if (hvp_) std::fill(spin_traces_ + lane * stride, spin_traces_ + (lane + 1) * stride, 0.0);
            values[lane] = 0;
            const auto first_task = [&](int l) { return static_cast<std::int64_t>(tasks) * l / lanes; };
            for (std::int64_t t = first_task(lane); t < first_task(lane + 1); ++t)
                values[lane] += look_up(t * task_rows, task_end(n_, t * task_rows), lane * stride);
        });
        double value = 0;
        for (int lane = 0; lane < lanes; ++lane) value += values[lane];
        sum_traces(lanes);
        return value * scale_;
    }

private:
    void sum_sources() {
        Acc mass = 0, first = 0, second = 0;
        double spin = 0;
        if (hvp_) spins_[0] = 0;
        for (std::int64_t k = 0; k < n_sources_; ++k) {
            const Acc gap = k ? static_cast<Acc>(sources_.z[k]) - sources_.z[k - 1] : 0;
            second += gap * (2 * first + gap * mass);
            first += gap * mass;
            moments_[k] = {first, second};
            const double w = weights_ ? weights_[sources_.rows[k]] : 1;
            mass += w;
            if (weights_) masses_[k] = static_cast<double>(mass);
            if (hvp_) spins_[k + 1] = spin += w * vector_[sources_.rows[k]];
        }
    }

    // Results of the queries among the rows; returns their part of the value.
    double look_up(std::int64_t begin, std::int64_t end, std::int64_t lane) {
        constexpr int block = 256;
        std::uint32_t queries[block + 1];
        double value = 0;
        for (std::int64_t i = begin; i < end; i += block) {
            int count = 0;
            for (std::int64_t r = i; r < std::min<std::int64_t>(end, i + block); ++r) {
                queries[count] = static_cast<std::uint32_t>(r);
                count += classes_[r] != source_class_;
            }
            for (int q = 0; q < count; ++q) value += static_cast<double>(answer(queries[q], lane));
        }
        return value;
    }

    Acc answer(std::uint32_t row, std::int64_t lane) {
        const double at = sign_ * (static_cast<double>(scores_[row]) - origin_), w = weights_ ? weights_[row] : 1;
        Acc value = 0, grad = 0;
        double hess = 0, hvp = 0;
        for (int j = 0; j < question_.n_terms; ++j) {
            const Term& term = question_.terms[j];
            const double x = at + term.shift;
            const std::int64_t rank = term.truncated ? sources_.rank(x) : n_sources_;
            if (rank == 0) continue;
            const std::int64_t last = rank - 1;
            const double d = x - sources_.z[last], mass = weights_ ? masses_[last] : static_cast<double>(rank);
            const Acc first = moments_[last].first + static_cast<Acc>(mass) * d;
            value += term.b0 * mass + term.b1 * first +
                     term.b2 * (moments_[last].second + d * (moments_[last].first + first));
            grad += term.b1 * mass + 2 * term.b2 * first;
            Trace& trace = traces_[lane + last];
            trace.slope += 2 * term.b2 * w;
            trace.value += w * (term.b1 + 2 * term.b2 * d);
            if (hess_) hess += 2 * term.b2 * mass;
            if (hvp_) {
                hvp += 2 * term.b2 * (vector_[row] * mass - spins_[rank]);
                spin_traces_[lane + last] += 2 * term.b2 * w * vector_[row];
            }
        }
        const double out = w * scale_;
        if (grad_) grad_[row] = static_cast<S>(sign_ * out * static_cast<double>(grad));
        if (hess_) hess_[row] = static_cast<S>(out * hess);
        if (hvp_) hvp_[row] = static_cast<S>(out * hvp);
        return w * value;
    }

    void sum_traces(int lanes) {
        double slope = 0, value = 0, spin = 0;
        for (std::int64_t k = n_sources_ - 1; k >= 0; --k) {
            if (k + 1 < n_sources_) value += slope * (sources_.z[k + 1] - sources_.z[k]);
            for (int lane = 0; lane < lanes; ++lane) {
                const Trace& trace = traces_[lane * n_sources_ + k];
                slope += trace.slope;
                value += trace.value;
                if (hvp_) spin += spin_traces_[lane * n_sources_ + k];
            }
            const std::uint32_t row = sources_.rows[k];
            const double out = scale_ * (weights_ ? weights_[row] : 1);
            if (grad_) grad_[row] = static_cast<S>(-sign_ * out * value);
            if (hess_) hess_[row] = static_cast<S>(out * slope);
            if (hvp_) hvp_[row] = static_cast<S>(out * (slope * vector_[row] - spin));
        }
    }

    const Question& question_;
    const S* scores_;
    const std::uint8_t* classes_;
    const double *weights_, *vector_;
    S *grad_, *hess_, *hvp_;
    std::int64_t n_, n_sources_;
    std::uint8_t source_class_;
    double scale_, origin_, sign_;
    Sources sources_;
    Moments<Acc>* moments_;
    double *masses_, *spins_, *spin_traces_;
    Trace* traces_;
};

// Weight of the pairs in the right order, ties counting half. Raw scores are compared: nothing is subtracted from them.
template <class S>
double concordant_weight(const Batch& batch, const std::uint8_t* classes, std::int64_t begin, std::int64_t n,
                         const Survey& found, int threads) {
    const S* scores = static_cast<const S*>(batch.scores) + begin;
    const double* weights = batch.weights ? batch.weights + begin : nullptr;
    const std::uint8_t* side = classes + begin;
    const bool pos_sources = 2 * found.n_pos <= n;
    const std::int64_t n_sources = pos_sources ? found.n_pos : n - found.n_pos;
    const double sign = pos_sources ? -1 : 1;  // the sources below a query are then those in the right order with it
    Scratch scratch;
    const Sources sources = sort_sources(scratch, scores, side, n, n_sources, pos_sources, sign, 0.0, threads);
    double* masses = scratch.take<double>(weights ? n_sources + 1 : 0);
    if (weights) {
        masses[0] = 0;
        for (std::int64_t k = 0; k < n_sources; ++k) masses[k + 1] = masses[k] + weights[sources.rows[k]];
    }
    const int tasks = task_count(n);
    double* parts = scratch.take<double>(tasks);
    parallel(threads, tasks, [&](int t) {
        double sum = 0;
        for (std::int64_t i = t * task_rows; i < task_end(n, t * task_rows); ++i) {
            if (side[i] == pos_sources) continue;
            const double x = sign * static_cast<double>(scores[i]);
            const std::int64_t below = sources.rank(x);
            const std::int64_t upto = sources.z[below] == x ? sources.rank(std::nextafter(x, INFINITY)) : below;
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
