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
// Many switches are divided by position into parts (division.hpp), so that the pieces that queries look up stay in the cache.
// Terms without a knot count for all pairs. They are evaluated relative to the first switch, also for the queries below it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "division.hpp"
#include "double_double.hpp"
#include "group_rows.hpp"
#include "pool.hpp"
#include "sources.hpp"

namespace everypair::EVERYPAIR_ISA {

template <class S, class Acc>
class Exact {
  public:
    Exact(const GroupRows<S>& group, const Question& question)
        : question_(question),
          n_truncated_(std::count_if(question.terms, question.terms + question.n_terms, is_truncated)),
          rows_(scratch_, group.scores, group.classes, group.n, group.found,
                std::find_if(question.terms, question.terms + question.n_terms, is_truncated)->shift, n_truncated_,
                question.threads),
          n_switches_(n_truncated_ * rows_.n_sources),
          parts_(rows_.parts),
          scale_(group.scale),
          weights_(rows_.gather(scratch_, group.weights)),
          vector_(rows_.gather(scratch_, group.vector)),
          to_{group.grad, group.hess, group.hvp} {
        grad_ = to_[0] ? rows_.keys : nullptr;  // a gradient replaces a key that is no longer needed
        hess_ = to_[1] ? scratch_.take<S>(group.n + 1) : nullptr;
        hvp_ = to_[2] ? scratch_.take<S>(group.n + 1) : nullptr;
    }

    double run() { return question_.n_terms == 1 ? run_with<true>() : run_with<false>(); }

  private:
    static constexpr int block = 256;
    // Each part has its own piece 0, and room after its starts for the padding of the look-up.
    static constexpr int spare = 1 + RanksAmong<S>::padding;
    // Sums of float64 scores keep what rounding takes off, because sums of many constant weights would drift.
    static constexpr bool keeps_errors = std::is_same_v<S, double>;
    using RunningSum = std::conditional_t<keeps_errors, std::conditional_t<std::is_same_v<Acc, double>, Compensated, Acc>, Acc>;

    struct Switch {
        S key;  // the start of its piece
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
    static bool is_truncated(const Term& term) { return term.truncated; }
    double weight(std::int64_t place) const { return weights_ ? weights_[place] : 1; }

    template <bool one_term>
    double run_with() {
        sources_ = rows_.sort(scratch_);
        if (!one_term) sort_switches();
        find_starts<one_term>();
        // Each lane has its own pieces, so that lanes run in parallel and a piece does not add up too many numbers. The number
        // of lanes depends only on the sizes, so that sums always have the same order. Parts run in parallel without lanes.
        const std::int64_t n = rows_.n_queries + rows_.n_sources, most_lanes = parts_ > 1 ? 1 : task_count(n);
        const std::int64_t some = n / (8 * n_switches_), most = std::max<std::int64_t>(8, n / (task_rows * n_switches_));
        lanes_ = static_cast<int>(std::clamp<std::int64_t>(some, 1, std::min(most_lanes, most)));
        width_ = hvp_ ? 2 : 1;
        stride_ = (n_switches_ + parts_ * spare) * width_;
        pieces_ = scratch_.take<Piece>(stride_ * lanes_);
        values_ = scratch_.take<double>(n_switches_ + parts_ * spare);
        build<one_term>();
        const int tasks = std::max(lanes_, parts_);
        double* squares = scratch_.take<double>(tasks);
        parallel(question_.threads, lanes_, [&](int lane) {
            if (lane) std::copy(pieces_, pieces_ + stride_, pieces_ + lane * stride_);
        });
        parallel(question_.threads, tasks, [&](int task) {
            const int part = parts_ > 1 ? task : 0, lane = task - part;
            const std::int64_t first = first_piece(part);
            Scratch scratch;
            const RanksAmong<S> ranks(scratch, starts_ + first + 1, firsts_[part + 1] - firsts_[part]);
            Piece* pieces = pieces_ + lane * stride_ + first * width_;
            const std::int64_t end = rows_.first_query(task + 1, tasks);
            squares[task] = 0;
            for (std::int64_t i = rows_.first_query(task, tasks); i < end; i += block) {
                const int count = static_cast<int>(std::min<std::int64_t>(block, end - i));
                squares[task] += weights_ ? evaluate_queries<true>(ranks, starts_ + first, pieces, i, count)
                                          : evaluate_queries<false>(ranks, starts_ + first, pieces, i, count);
            }
        });
        double value = evaluate_sources<one_term>();
        for (int task = 0; task < tasks; ++task) value += 0.5 * squares[task];
        rows_.scatter(grad_, to_[0]);
        rows_.scatter(hess_, to_[1]);
        rows_.scatter(hvp_, to_[2]);
        return value * scale_;
    }

    DoubleDouble switch_at(double key, int term) const { return DoubleDouble::sum(key, -question_.terms[term].shift); }

    // Merges the switches of the terms, each of which are sorted.
    void sort_switches() {
        switches_ = scratch_.take<Switch>(n_switches_);
        Scratch scratch;
        Switch *from = scratch.take<Switch>(n_switches_), *to = switches_;
        int merges = 0;
        for (std::int64_t width = rows_.n_sources; width < n_switches_; width *= 2) ++merges;
        if (merges % 2 == 0) std::swap(from, to);  // so that the last merge ends in switches_
        Switch* next = from;
        for (int j = 0; j < question_.n_terms; ++j)
            for (std::int64_t k = 0; question_.terms[j].truncated && k < rows_.n_sources; ++k)
                *next++ = {least_above<S>(switch_at(sources_[k].key, j)), static_cast<std::uint32_t>(k),
                           static_cast<std::uint32_t>(j)};
        for (std::int64_t width = rows_.n_sources; width < n_switches_; width *= 2) {
            for (std::int64_t begin = 0; begin < n_switches_; begin += 2 * width)
                merge_runs(from + begin, std::min(width, n_switches_ - begin), std::min(2 * width, n_switches_ - begin),
                           to + begin);
            std::swap(from, to);
        }
    }

    // Part p has the switches firsts_[p] .. firsts_[p + 1] - 1, and one piece more: its first piece starts at the last switch
    // below the part. The first piece of all, below all switches, is relative to the first switch.
    std::int64_t first_piece(int part) const { return firsts_[part] + part * spare; }

    template <bool one_term>
    void find_starts() {
        const auto start_of = [&](std::int64_t k) {
            return one_term ? least_above<S>(switch_at(sources_[k].key, 0)) : switches_[k].key;
        };
        firsts_ = scratch_.take<std::int64_t>(parts_ + 1);
        starts_ = scratch_.take<S>(n_switches_ + parts_ * spare);
        firsts_[parts_] = n_switches_;
        parallel(question_.threads, parts_, [&](int part) {
            std::int64_t low = 0, high = part ? n_switches_ : 0;
            while (low < high) {
                const std::int64_t middle = (low + high) / 2;
                if (rows_.part_of(start_of(middle)) < part)
                    low = middle + 1;
                else
                    high = middle;
            }
            firsts_[part] = low;
        });
        parallel(question_.threads, parts_, [&](int part) {
            S* to = starts_ + first_piece(part);
            *to++ = start_of(std::max<std::int64_t>(firsts_[part] - 1, 0));
            for (std::int64_t k = firsts_[part]; k < firsts_[part + 1]; ++k) *to++ = start_of(k);
            std::fill_n(to, RanksAmong<S>::padding, std::numeric_limits<S>::infinity());
        });
    }

    // The distance between the starts of two pieces.
    Acc distance(std::int64_t from, std::int64_t to) const { return Acc(starts_[to]) + Acc(-starts_[from]); }

    // Calls use(source, term, distance of the start from the switch) for switch k with this piece.
    template <bool one_term, class Use>
    void with_switch(std::int64_t k, std::int64_t piece, Use&& use) const {
        const std::int64_t source = one_term ? k : switches_[k].source;
        const int term = one_term ? 0 : static_cast<int>(switches_[k].term);
        const DoubleDouble at = switch_at(sources_[source].key, term);
        // The start is infinite if no score is beyond the switch: then any finite distance will do.
        const double from = std::min(starts_[piece], std::numeric_limits<S>::max());
        use(source, term, (Acc(from) + Acc(-at.high)) + Acc(-at.low));
    }

    // Calls use(source, term, distance of the first start from the knot) for all terms without truncation.
    template <class Use>
    void with_untruncated(Use&& use) const {
        for (int j = 0; j < question_.n_terms; ++j)
            for (std::int64_t k = 0; !question_.terms[j].truncated && k < rows_.n_sources; ++k)
                use(k, j, (Acc(starts_[0]) + Acc(-static_cast<double>(sources_[k].key))) + Acc(question_.terms[j].shift));
    }

    template <bool one_term>
    void build() {
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
            const std::uint32_t place = sources_[source].row;
            const double w = weight(place);
            value += Acc(w) * distance * (Acc(term.b1) + Acc(term.b2) * distance);
            slope += Acc(w) * Acc(2 * term.b2) * distance;
            on[j] += w;
            if (hvp_) vectors[j] += w * vector_[place];
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
        with_untruncated(switch_on);
        for (int part = 0; part < parts_; ++part) {
            std::int64_t piece = first_piece(part);
            write(piece++);
            for (std::int64_t k = firsts_[part]; k < firsts_[part + 1]; ++k, ++piece) {
                const Acc gap = distance(piece - 1, piece), turn = gap * curvature;
                value += gap * ((slope + tilt) + Acc(0.5) * turn);
                slope += turn;
                with_switch<one_term>(k, piece, switch_on);
                write(piece);
            }
        }
    }

    // Computes the derivatives of queries, and returns the sum of weight x curvature x distance^2. Short loops over a block:
    // those that read memory have many loads in flight, the others are vectorised.
    template <bool weighted>
    double evaluate_queries(const RanksAmong<S>& ranks, const S* starts, Piece* pieces, std::int64_t first, int count) const {
        double distances[block], slopes[block], curvatures[block];
        std::int32_t cells[block];
        std::uint32_t found[block];
        const double sign = rows_.sign, scale = scale_;
        const std::size_t width = width_;
        const S* at = rows_.keys + first;
        const double* w = weights_ + (weighted ? first : 0);
#pragma omp simd
        for (int q = 0; q < count; ++q) cells[q] = ranks.cells(at[q]);
        for (int q = 0; q < count; ++q) found[q] = ranks.first(cells[q]);
        for (int q = 0; q < count; ++q) {
            found[q] = ranks.upto(at[q], cells[q], found[q]);
            __builtin_prefetch(pieces + found[q] * width, 1);
        }
        for (int q = 0; q < count; ++q) {
            Piece& piece = pieces[found[q] * width];
            const double distance = static_cast<double>(at[q]) - starts[found[q]];
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
            // The factor of the reduction comes last: scale x weight may underflow where the result does not.
            slopes[q] = scale * (weighted ? w[q] * out : out) + 0.0;  // -0.0 becomes 0.0
        }
        if (grad_)
            for (int q = 0; q < count; ++q) grad_[first + q] = static_cast<S>(slopes[q]);
        if (hess_)
            for (int q = 0; q < count; ++q) hess_[first + q] = static_cast<S>(scale * ((weighted ? w[q] : 1) * curvatures[q]));
        if (hvp_)
            for (int q = 0; q < count; ++q) {
                const double v = vector_[first + q], mass = weighted ? w[q] : 1;
                Piece& piece = pieces[found[q] * width + 1];
                piece.add(mass * v, 0);
                hvp_[first + q] = static_cast<S>(scale * (mass * (curvatures[q] * v - piece.curvature)));
            }
        return total;
    }

    // Sums over the switches downwards, for each over the queries beyond it. Returns the value without the sum of squares.
    template <bool one_term>
    double evaluate_sources() const {
        Scratch scratch;
        const std::int64_t kept = one_term ? 0 : rows_.n_sources;
        Derivatives* sums = scratch.take<Derivatives>(kept);
        std::fill(sums, sums + kept, Derivatives{});
        const auto write = [&](std::int64_t source, const Derivatives& sum) {
            const std::uint32_t place = sources_[source].row;
            const double w = weight(place);
            if (grad_) grad_[place] = static_cast<S>(-rows_.sign * scale_ * (w * static_cast<double>(sum.grad)) + 0.0);
            if (hess_) hess_[place] = static_cast<S>(scale_ * (w * static_cast<double>(sum.hess)));
            if (hvp_) hvp_[place] = static_cast<S>(scale_ * (w * static_cast<double>(sum.hvp)));
        };
        RunningSum mass{}, vector{};
        Acc moment = 0;
        double value = 0;
        std::int64_t above = first_piece(parts_ - 1) + firsts_[parts_] - firsts_[parts_ - 1];  // the last piece
        // Adds the queries of the next lower piece; distances are then relative to its start.
        const auto take = [&](std::int64_t k) {
            // Pieces without queries beyond them may be so far away that their distances are infinite.
            if (static_cast<double>(mass) > 0) moment += Acc(mass) * distance(k, above);
            above = k;
            double here = 0, distance = 0;
            for (int lane = 0; lane < lanes_; ++lane) {
                const Piece* piece = pieces_ + lane * stride_ + k * width_;
                here += piece->total().mass;
                distance += piece->total().distance;
                if (hvp_) vector += piece[1].total().mass;
            }
            mass += here;
            moment += Acc(distance);
            const double added = here * values_[k] + pieces_[k * width_].slope * distance;
            value += here != 0 ? added : 0;
        };
        const auto switch_on = [&](std::int64_t source, int j, Acc distance) {
            const Term& term = question_.terms[j];
            const Acc all(mass), slope(2 * term.b2);
            Derivatives sum{Acc(term.b1) * all + slope * (moment + all * distance), slope * all, 0};
            if (hvp_) sum.hvp = slope * (Acc(vector_[sources_[source].row]) * all + Acc(-1) * Acc(vector));
            if (one_term) return write(source, sum);
            sums[source].grad += sum.grad;
            sums[source].hess += sum.hess;
            sums[source].hvp += sum.hvp;
        };
        for (int part = parts_ - 1; part >= 0; --part) {
            std::int64_t piece = first_piece(part) + firsts_[part + 1] - firsts_[part];
            for (std::int64_t k = firsts_[part + 1] - 1; k >= firsts_[part]; --k, --piece) {
                take(piece);
                with_switch<one_term>(k, piece, switch_on);
            }
            take(piece);
        }
        with_untruncated(switch_on);
        for (std::int64_t k = 0; k < kept; ++k) write(k, sums[k]);
        return value;
    }

    Scratch scratch_;
    const Question& question_;
    const std::int64_t n_truncated_;
    const Division<S> rows_;
    const std::int64_t n_switches_;
    const int parts_;
    const double scale_;
    const double *weights_, *vector_;  // by place, like the next ones; may be null
    S *grad_, *hess_, *hvp_;           // may be null
    S* to_[3];                         // where the caller wants them
    Keyed<S>* sources_;                // in ascending order
    Switch* switches_;                 // in ascending order
    std::int64_t* firsts_;             // by part: the first switch
    S* starts_;                        // by piece, like the next ones
    Piece* pieces_;
    double* values_;
    std::int64_t width_, stride_;  // elements of pieces_ per piece and per lane
    int lanes_;
};

}  // namespace everypair::EVERYPAIR_ISA
