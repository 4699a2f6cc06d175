// Exact plan for any terms, weights and results: sort the smaller class and look up the rows of the larger one.
//
// The rows of the smaller class are the sources, those of the larger one the queries. Let z be the score of a source and x that
// of a query, both negated if the sources are the negatives. Source z switches term j on at t = z - shift_j: the pair counts in
// this term if t < x, with d = x - t. So the sum over all sources and terms is one function of x, and it is quadratic between
// neighbouring switches. The switches are sorted once. Piece r lies beyond r switches and holds slope and curvature of the
// function at its left end, computed from gap to gap. A query finds its piece, which gives its derivatives, and adds its weight
// and its distance from the left end to the piece. From these sums one downward sweep over the switches computes the
// derivatives of the sources.
//
// The left end of a piece is the least number of the type of the scores beyond the switch t, which is the exact difference of
// two doubles. So it depends on no other row whether a pair counts. For one term all numbers added are positive, and distances
// are relative to the nearest switch, so no digits cancel. Several terms may nearly cancel far from their knots: then Acc, the
// type of the sums from gap to gap, is DoubleDouble.
//
// Terms without a knot count for all pairs. They are evaluated relative to the first switch, also for the queries below it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "double_double.hpp"
#include "pool.hpp"
#include "sources.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

template <class S, class Acc>
class Exact {
  public:
    Exact(const Batch& batch, const Question& question, const Outputs& outputs, const std::uint8_t* classes, std::int64_t begin,
          std::int64_t n, const Survey& found, double scale)
        : question_(question), n_(n), scale_(scale) {
        const auto from = [&](void* array) { return array ? static_cast<S*>(array) + begin : nullptr; };
        scores_ = static_cast<const S*>(batch.scores) + begin;
        classes_ = classes + begin;
        weights_ = batch.weights ? batch.weights + begin : nullptr;
        vector_ = batch.vector ? batch.vector + begin : nullptr;
        grad_ = from(outputs.grad);
        hess_ = from(outputs.hess);
        hvp_ = from(outputs.hvp);
        source_class_ = found.n_pos <= found.n_neg;
        n_sources_ = source_class_ ? found.n_pos : found.n_neg;
        sign_ = source_class_ ? 1 : -1;
        n_switches_ = 0;
        for (int j = 0; j < question.n_terms; ++j) n_switches_ += question.terms[j].truncated ? n_sources_ : 0;
    }

    double run() {
        Scratch scratch;
        const Sources<S> sources(scratch, scores_, classes_, n_, n_sources_, source_class_, sign_, question_.threads);
        const bool one_term = question_.n_terms == 1;
        // starts_[r] is the left end of piece r. Piece 0, below all switches, is relative to the first switch as well.
        starts_ = scratch.take<S>(1 + n_switches_ + RanksAmong<S>::few);
        switches_ = scratch.take<Switch>(one_term ? 0 : n_switches_);
        if (one_term)
            for (std::int64_t k = 0; k < n_switches_; ++k) starts_[k + 1] = start(switch_at(sources.key(k), 0));
        else
            sort_switches(sources);
        starts_[0] = starts_[1];
        const RanksAmong<S> ranks(scratch, starts_ + 1, n_switches_);

        // Each lane has its own pieces, so that lanes run in parallel and a piece does not add up too many numbers. The number
        // of lanes depends only on the sizes, so that sums always have the same order.
        const int tasks = task_count(n_);
        const std::int64_t some = n_ / (8 * n_switches_), most = std::max<std::int64_t>(8, n_ / (task_rows * n_switches_));
        const int lanes = static_cast<int>(std::clamp<std::int64_t>(some, 1, std::min<std::int64_t>(tasks, most)));
        width_ = hvp_ ? 2 : 1;
        stride_ = (n_switches_ + 1) * width_;
        pieces_ = scratch.take<Piece>(stride_ * lanes);
        values_ = scratch.take<double>(n_switches_ + 1);
        one_term ? build<true>(sources) : build<false>(sources);
        double* squares = scratch.take<double>(lanes);
        parallel(question_.threads, lanes, [&](int lane) {
            if (lane) std::copy(pieces_, pieces_ + stride_, pieces_ + lane * stride_);
        });
        parallel(question_.threads, lanes, [&](int lane) {
            const auto first_row = [&](int l) {
                return std::min(n_, static_cast<std::int64_t>(tasks) * l / lanes * task_rows);
            };
            squares[lane] = evaluate_queries(ranks, first_row(lane), first_row(lane + 1), lane * stride_);
        });
        double value = 0;
        for (int lane = 0; lane < lanes; ++lane) value += 0.5 * squares[lane];
        value += one_term ? evaluate_sources<true>(sources, lanes) : evaluate_sources<false>(sources, lanes);
        return value * scale_;
    }

  private:
    static constexpr int block = 256;
    static constexpr int ahead = 24;  // sources between the request of their rows and their use
    // There are as many additions as rows: without what rounding takes off, sums of constant weights would drift. For float32
    // scores, a double has digits enough for that.
    static constexpr bool keeps_errors = std::is_same_v<S, double>;
    using RunningSum = std::conditional_t<keeps_errors, std::conditional_t<std::is_same_v<Acc, double>, Compensated, Acc>, Acc>;

    struct Switch {
        S start;
        std::uint32_t source, term;
    };

    // What rounding took off the sums of a piece, which many queries may share.
    struct Lost {
        float mass = 0, distance = 0;
    };
    struct Nothing {};

    // The function at the left end of a piece, and the sums of weight and weight x distance over its queries. If a vector is
    // given, a second element follows, in the same cache line if possible: `curvature` and `mass` times the vector.
    struct Piece {
        double slope, curvature, mass = 0, distance = 0;
        [[no_unique_address]] std::conditional_t<keeps_errors, Lost, Nothing> lost{};

        void add(double w, double weighted_distance) {
            if constexpr (keeps_errors) {
                const DoubleDouble masses = DoubleDouble::sum(mass, w),
                                   distances = DoubleDouble::sum(distance, weighted_distance);
                lost.mass += static_cast<float>(masses.low);
                lost.distance += static_cast<float>(distances.low);
                mass = masses.high;
                distance = distances.high;
            } else {
                mass += w;
                distance += weighted_distance;
            }
        }
        Piece total() const {
            if constexpr (keeps_errors) return {slope, curvature, mass + lost.mass, distance + lost.distance};
            return *this;
        }
    };

    struct Derivatives {
        Acc grad = 0, hess = 0, hvp = 0;
    };

    double weight(std::int64_t row) const { return weights_ ? weights_[row] : 1; }

    DoubleDouble switch_at(double key, int term) const { return DoubleDouble::sum(key, -question_.terms[term].shift); }

    // The least score beyond a switch.
    static S start(const DoubleDouble& at) {
        const double least = at.low < 0 ? at.high : next_above(at.high);
        const S rounded = static_cast<S>(least);
        return rounded < least ? next_above(rounded) : rounded;
    }

    // Merges the switches of all terms; those of one term are sorted already.
    void sort_switches(const Sources<S>& sources) {
        Scratch scratch;
        Switch *from = scratch.take<Switch>(n_switches_), *to = switches_;
        int merges = 0;
        for (std::int64_t width = n_sources_; width < n_switches_; width *= 2) ++merges;
        if (merges % 2 == 0) std::swap(from, to);  // so that the last merge ends in switches_
        Switch* next = from;
        for (int j = 0; j < question_.n_terms; ++j)
            for (std::int64_t k = 0; question_.terms[j].truncated && k < n_sources_; ++k)
                *next++ = {start(switch_at(sources.key(k), j)), static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(j)};
        for (std::int64_t width = n_sources_; width < n_switches_; width *= 2) {
            for (std::int64_t begin = 0; begin < n_switches_; begin += 2 * width)
                merge(from, begin, std::min(begin + width, n_switches_), std::min(begin + 2 * width, n_switches_), to);
            std::swap(from, to);
        }
        for (std::int64_t k = 0; k < n_switches_; ++k) starts_[k + 1] = switches_[k].start;
    }

    // Merges two sorted runs, without branches that the processor would mispredict.
    static void merge(const Switch* from, std::int64_t begin, std::int64_t half, std::int64_t end, Switch* to) {
        std::int64_t i = begin, j = half, k = begin;
        while (i < half && j < end) {
            const bool second = from[j].start < from[i].start;
            to[k++] = from[second ? j : i];
            j += second;
            i += !second;
        }
        std::copy(from + i, from + half, to + k);
        std::copy(from + j, from + end, to + k + (half - i));
    }

    Acc gap_before(std::int64_t k) const { return Acc(starts_[k + 1]) + Acc(-starts_[k]); }

    // Calls use(source, term, distance of the start from the switch) for switch k.
    template <bool one_term, class Use>
    void with_switch(const Sources<S>& sources, std::int64_t k, Use&& use) const {
        const std::int64_t source = one_term ? k : switches_[k].source;
        const int term = one_term ? 0 : static_cast<int>(switches_[k].term);
        const DoubleDouble at = switch_at(sources.key(source), term);
        // The start is infinite if no score is beyond the switch: then any finite distance will do.
        const double from = std::min(starts_[k + 1], std::numeric_limits<S>::max());
        use(source, term, (Acc(from) + Acc(-at.high)) + Acc(-at.low));
    }

    // The distance of the first start from the knot of a term without truncation and a source.
    Acc first_distance(double key, double shift) const { return (Acc(starts_[0]) + Acc(-key)) + Acc(shift); }

    // Requests the inputs and outputs of a source that will soon be needed: its row is anywhere.
    void prefetch(const Sources<S>& sources, std::int64_t k) const {
        if (k < 0 || k >= n_sources_) return;
        const std::uint32_t row = sources.row(k);
        if (weights_) __builtin_prefetch(weights_ + row);
        if (vector_) __builtin_prefetch(vector_ + row);
        for (S* out : {grad_, hess_, hvp_})
            if (out) __builtin_prefetch(out + row, 1);
    }

    template <bool one_term>
    void build(const Sources<S>& sources) {
        Scratch scratch;
        const int n_terms = one_term ? 1 : question_.n_terms;
        // By term: the weight of the sources switched on, and the sum of their weights x vector.
        RunningSum first[2]{};  // the compiler keeps the sums of one term in registers
        RunningSum* on = one_term ? first : scratch.take<RunningSum>(n_terms);
        RunningSum* vectors = one_term ? first + 1 : scratch.take<RunningSum>(n_terms);
        std::fill(on, on + n_terms, RunningSum{});
        std::fill(vectors, vectors + n_terms, RunningSum{});
        Acc value = 0, slope = 0;  // without the constant parts b0 and b1 of the terms
        const auto switch_on = [&](std::int64_t source, int j, Acc distance) {
            const Term& term = question_.terms[j];
            const std::uint32_t row = sources.row(source);
            const double w = weight(row);
            value += Acc(w) * distance * (Acc(term.b1) + Acc(term.b2) * distance);
            slope += Acc(w) * Acc(2 * term.b2) * distance;
            on[j] += w;
            if (hvp_) vectors[j] += w * vector_[row];
        };
        Acc curvature = 0, tilt = 0;
        const auto write = [&](std::int64_t piece) {
            Acc level = 0, vector_curvature = 0;
            curvature = tilt = 0;
            for (int j = 0; j < n_terms; ++j) {
                const Term& term = question_.terms[j];
                const Acc mass(on[j]);
                level += Acc(term.b0) * mass;
                tilt += Acc(term.b1) * mass;
                curvature += Acc(2 * term.b2) * mass;
                if (hvp_) vector_curvature += Acc(2 * term.b2) * Acc(vectors[j]);
            }
            pieces_[piece * width_] = {static_cast<double>(slope + tilt), static_cast<double>(curvature)};
            values_[piece] = static_cast<double>(value + level);
            if (hvp_) pieces_[piece * 2 + 1] = {0, static_cast<double>(vector_curvature)};
        };
        for (int j = 0; j < n_terms; ++j)
            for (std::int64_t k = 0; !question_.terms[j].truncated && k < n_sources_; ++k)
                switch_on(k, j, first_distance(sources.key(k), question_.terms[j].shift));
        write(0);
        for (std::int64_t k = 0; k < n_switches_; ++k) {
            if (weights_ && one_term) __builtin_prefetch(weights_ + sources.row(std::min(k + ahead, n_sources_ - 1)));
            if (k) {
                const Acc gap = gap_before(k), turn = gap * curvature;
                value += gap * ((slope + tilt) + Acc(0.5) * turn);
                slope += turn;
            }
            with_switch<one_term>(sources, k, switch_on);
            write(k + 1);
        }
    }

    // Computes the derivatives of the queries among these rows, and returns the sum of weight x curvature x distance^2.
    double evaluate_queries(const RanksAmong<S>& ranks, std::int64_t begin, std::int64_t end, std::int64_t lane) const {
        std::uint32_t rows[block + 1];
        double total = 0;
        for (std::int64_t i = begin; i < end; i += block) {
            int count = 0;
            for (std::int64_t r = i; r < std::min<std::int64_t>(end, i + block); ++r) {
                rows[count] = static_cast<std::uint32_t>(r);
                count += classes_[r] == 1 - source_class_;
            }
            total +=
                weights_ ? evaluate_block<true>(ranks, rows, count, lane) : evaluate_block<false>(ranks, rows, count, lane);
        }
        return total;
    }

    // Short loops over a block: those that read memory have many loads in flight, the others are vectorised.
    template <bool weighted>
    double evaluate_block(const RanksAmong<S>& ranks, const std::uint32_t* rows, int count, std::int64_t lane) const {
        double at[block], w[block], distances[block], slopes[block], curvatures[block];
        std::int32_t cells[block];
        std::uint32_t found[block];
        const double sign = sign_;
        Piece* pieces = pieces_ + lane;
        const std::size_t width = width_;
        for (int q = 0; q < count; ++q) at[q] = sign * static_cast<double>(scores_[rows[q]]);
#pragma omp simd
        for (int q = 0; q < count; ++q) cells[q] = ranks.cells(at[q]);
        for (int q = 0; q < count; ++q) {
            found[q] = ranks.first(cells[q]);
            ranks.prefetch(found[q]);
        }
        for (int q = 0; q < count; ++q) {
            found[q] = ranks.upto(static_cast<S>(at[q]), cells[q], found[q]);
            __builtin_prefetch(pieces + found[q] * width, 1);
        }
        for (int q = 0; weighted && q < count; ++q) w[q] = weights_[rows[q]];
        for (int q = 0; q < count; ++q) {
            Piece& piece = pieces[found[q] * width];
            const double distance = at[q] - starts_[found[q]];
            piece.add(weighted ? w[q] : 1, weighted ? w[q] * distance : distance);
            slopes[q] = piece.slope;
            curvatures[q] = piece.curvature;
            distances[q] = piece.curvature != 0 ? distance : 0;
        }
        double total = 0;
#pragma omp simd reduction(+ : total)
        for (int q = 0; q < count; ++q) {
            const double turn = curvatures[q] * distances[q], out = sign * (slopes[q] + turn);
            total += weighted ? w[q] * distances[q] * turn : distances[q] * turn;
            // The factor of the reduction comes last: scale_ x weight may underflow where the result does not.
            slopes[q] = scale_ * (weighted ? w[q] * out : out) + 0.0;  // -0.0 becomes 0.0
        }
        if (grad_)
            for (int q = 0; q < count; ++q) grad_[rows[q]] = static_cast<S>(slopes[q]);
        if (hess_)
            for (int q = 0; q < count; ++q) hess_[rows[q]] = static_cast<S>(scale_ * ((weighted ? w[q] : 1) * curvatures[q]));
        if (hvp_)
            for (int q = 0; q < count; ++q) {
                const double v = vector_[rows[q]], mass = weighted ? w[q] : 1;
                Piece& piece = pieces[found[q] * width + 1];
                piece.add(mass * v, 0);
                hvp_[rows[q]] = static_cast<S>(scale_ * (mass * (curvatures[q] * v - piece.curvature)));
            }
        return total;
    }

    // Sums over the switches downwards, for each over the queries beyond it. Returns the value without the sum of squares.
    template <bool one_term>
    double evaluate_sources(const Sources<S>& sources, int lanes) const {
        Scratch scratch;
        Derivatives* sums = scratch.take<Derivatives>(one_term ? 0 : n_sources_);
        std::fill(sums, sums + (one_term ? 0 : n_sources_), Derivatives{});
        const auto write = [&](std::int64_t source, const Derivatives& sum) {
            const std::uint32_t row = sources.row(source);
            const double w = weight(row);
            if (grad_) grad_[row] = static_cast<S>(-sign_ * scale_ * (w * static_cast<double>(sum.grad)) + 0.0);
            if (hess_) hess_[row] = static_cast<S>(scale_ * (w * static_cast<double>(sum.hess)));
            if (hvp_) hvp_[row] = static_cast<S>(scale_ * (w * static_cast<double>(sum.hvp)));
        };
        RunningSum mass{}, vector{};
        Acc moment = 0;
        double value = 0;
        const auto take = [&](std::int64_t k) {
            double here = 0, distance = 0;
            for (int lane = 0; lane < lanes; ++lane) {
                const Piece* piece = pieces_ + lane * stride_ + k * width_;
                here += piece->total().mass;
                distance += piece->total().distance;
                if (hvp_) vector += piece[1].total().mass;
            }
            mass += here;
            moment += Acc(distance);
            if (here != 0) value += here * values_[k] + pieces_[k * width_].slope * distance;
        };
        const auto switch_on = [&](std::int64_t source, int j, Acc distance) {
            const Term& term = question_.terms[j];
            const Acc all(mass), slope(2 * term.b2);
            Derivatives sum{Acc(term.b1) * all + slope * (moment + all * distance), slope * all, 0};
            if (hvp_) sum.hvp = slope * (Acc(vector_[sources.row(source)]) * all + Acc(-1) * Acc(vector));
            if (one_term) return write(source, sum);
            sums[source].grad += sum.grad;
            sums[source].hess += sum.hess;
            sums[source].hvp += sum.hvp;
        };
        for (std::int64_t k = n_switches_ - 1; k >= 0; --k) {
            // Switches without queries beyond them may be so far away that their distances are infinite.
            if (k + 1 < n_switches_ && static_cast<double>(mass) > 0) moment += Acc(mass) * gap_before(k + 1);
            take(k + 1);
            if (one_term) prefetch(sources, k - ahead);
            with_switch<one_term>(sources, k, switch_on);
        }
        take(0);
        for (int j = 0; j < question_.n_terms; ++j)
            for (std::int64_t k = 0; !question_.terms[j].truncated && k < n_sources_; ++k)
                switch_on(k, j, first_distance(sources.key(k), question_.terms[j].shift));
        for (std::int64_t k = 0; !one_term && k < n_sources_; ++k) {
            prefetch(sources, k + ahead);
            write(k, sums[k]);
        }
        return value;
    }

    const Question& question_;
    const S* scores_;
    const std::uint8_t* classes_;
    const double *weights_, *vector_;
    S *grad_, *hess_, *hvp_;
    std::int64_t n_, n_sources_, n_switches_, stride_;
    std::int64_t width_;  // elements of pieces_ per piece
    std::uint8_t source_class_;
    double scale_, sign_;
    Switch* switches_;
    Piece* pieces_;
    S* starts_;       // by piece
    double* values_;  // by piece
};

// Returns the weight of the pairs in the right order; ties count half.
template <class S>
double concordant_weight(const Batch& batch, const std::uint8_t* classes, std::int64_t begin, std::int64_t n,
                         const Survey& found, int threads) {
    const S* scores = static_cast<const S*>(batch.scores) + begin;
    const double* weights = batch.weights ? batch.weights + begin : nullptr;
    const std::uint8_t* side = classes + begin;
    const bool pos_sources = found.n_pos <= found.n_neg;
    const std::int64_t n_sources = pos_sources ? found.n_pos : found.n_neg;
    const double sign = pos_sources ? -1 : 1;  // so that the sources below a query are in the right order with it
    Scratch scratch;
    const Sources<S> sources(scratch, scores, side, n, n_sources, pos_sources, sign, threads);
    S* keys = scratch.take<S>(n_sources + RanksAmong<S>::few);
    double* masses = scratch.take<double>(n_sources + 1);
    Compensated mass;
    for (std::int64_t k = 0; k <= n_sources; ++k) {
        masses[k] = mass;
        if (k == n_sources) break;
        keys[k] = static_cast<S>(sources.key(k));
        mass += weights ? weights[sources.row(k)] : 1;
    }
    const RanksAmong<S> ranks(scratch, keys, n_sources);
    const int tasks = task_count(n);
    double* parts = scratch.take<double>(tasks);
    parallel(threads, tasks, [&](int t) {
        const std::int64_t from = t * task_rows;
        std::uint32_t rows[task_rows + 1];
        S at[task_rows];
        std::int32_t cells[task_rows];
        int count = 0;
        for (std::int64_t i = from; i < task_end(n, from); ++i) {
            rows[count] = static_cast<std::uint32_t>(i);
            count += side[i] == !pos_sources;
        }
        for (int q = 0; q < count; ++q) at[q] = static_cast<S>(sign) * scores[rows[q]];
#pragma omp simd
        for (int q = 0; q < count; ++q) cells[q] = ranks.cells(at[q]);
        Compensated sum;
        for (int q = 0; q < count; ++q) {
            const std::int64_t upto = ranks.upto(at[q], cells[q], ranks.first(cells[q]));
            const bool tied = upto > 0 && keys[upto - 1] == at[q];
            const std::int64_t below = tied ? std::lower_bound(keys, keys + upto, at[q]) - keys : upto;
            sum += 0.5 * (masses[below] + masses[upto]) * (weights ? weights[rows[q]] : 1);
        }
        parts[t] = sum;
    });
    Compensated sum;
    for (int t = 0; t < tasks; ++t) sum += parts[t];
    return sum;
}

}  // namespace everypair::EVERYPAIR_ISA
