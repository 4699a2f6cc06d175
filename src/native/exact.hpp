// Exact plan for any terms, weights and results: sort the smaller class and look up the rows of the larger
// one.
//
// The rows of the smaller class are the sources, those of the larger one the queries. Let z be the score of a
// source and x that of a query, both negated if the sources are the negatives. Source z switches term j on at
// t = z - shift_j: the pair counts in this term if t < x, with d = x - t. So the sum over all sources and
// terms is one function of x, and it is quadratic between neighbouring switches. The switches are sorted
// once. Piece r lies beyond r switches and holds slope and curvature of the function at its left end,
// computed from gap to gap. A query finds its piece, which gives its derivatives, and adds its weight and its
// distance from the left end to the piece. From these sums one downward sweep over the switches computes the
// derivatives of the sources. The Hessian-vector product is computed in the same way, by an evaluation of its
// own: the entry of the vector replaces the distance, and the slope is the sum over the sources of their
// curvatures times their entries.
//
// The left end of a piece is the least number of the type of the scores beyond the switch t, which is the
// exact difference of two doubles. So it depends on no other row whether a pair counts. For one term all
// numbers added are positive, and distances are relative to the nearest switch, so no digits cancel. Several
// terms may nearly cancel far from their knots: then Acc, the type of the sums from gap to gap, is
// DoubleDouble.
//
// Many switches are divided by position into parts (division.hpp), so that the pieces that queries look up
// stay in the cache. Terms without a knot count for all pairs, also for the queries below the first switch.
// They may be large at the left end of a piece and small at its right end: then the function of the piece is
// relative to its right end.
//
// A piece adds up few numbers as a rule. For float64 scores, sums of many numbers move to compensated sums
// from time to time, because sums of many constant numbers drift.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
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
    // Computes value, gradient and diagonal Hessian. If the rows have a vector, `grad` is the product of the
    // Hessian and the vector instead, and the value has no meaning.
    Exact(const GroupRows<S>& rows, const Question& question)
        : group_(rows),
          question_(question),
          n_truncated_(std::count_if(question.terms, question.terms + question.n_terms, is_truncated)),
          rows_(scratch_, rows,
                std::find_if(question.terms, question.terms + question.n_terms, is_truncated)->shift,
                n_truncated_),
          n_switches_(n_truncated_ * rows_.n_sources),
          parts_(rows_.parts),
          vector_(rows_.gather(scratch_, rows.vector)),
          grad_(rows_.results(scratch_, rows.grad)),
          hess_(rows_.results(scratch_, rows.hess)) {}

    double run() { return question_.n_terms == 1 ? run_with<true>() : run_with<false>(); }

  private:
    static constexpr int block = Division<S>::block;
    // Each part has its own piece 0, and room after its starts for the padding of the look-up.
    static constexpr int spare = 1 + RanksAmong<S>::padding;
    static constexpr bool keeps_errors = std::is_same_v<S, double>;
    using RunningSum = std::conditional_t<keeps_errors && std::is_same_v<Acc, double>, Compensated, Acc>;
    typedef double Two __attribute__((vector_size(16)));

    // Slope and curvature at the point that the piece is relative to, and the sums of weight and weight x
    // distance over its queries.
    struct Piece {
        Two line, sums;
    };
    // Sums that a piece had before, and what rounding took off them.
    struct Spilled {
        Two sums, lost;

        void add(Two x) {
            const Two next = sums + x, part = next - sums;
            lost += (sums - (next - part)) + (x - part);
            sums = next;
        }
    };

    struct Switch {
        S key;  // the start of its piece
        std::uint32_t source, term;
    };

    struct Derivatives {
        Acc grad = 0, hess = 0;
    };
    static bool is_truncated(const Term& term) { return term.truncated; }
    double weight(std::int64_t place) const { return rows_.weights ? rows_.weights[place] : 1; }

    template <bool one_term>
    double run_with() {
        sources_ = rows_.sort(scratch_);
        if (!one_term) sort_switches();
        find_starts<one_term>();
        // Each lane has its own pieces, so that lanes run in parallel and a piece does not add up too many
        // numbers. The number of lanes depends only on the sizes, so that sums always have the same order.
        // Parts run in parallel without lanes.
        const std::int64_t n = group_.n, max_lanes = parts_ > 1 ? 1 : task_count(n);
        const std::int64_t worthwhile = n / (8 * n_switches_),
                           for_rounding = std::max<std::int64_t>(8, n / (task_rows * n_switches_));
        lanes_ = static_cast<int>(std::clamp<std::int64_t>(worthwhile, 1, std::min(max_lanes, for_rounding)));
        stride_ = n_switches_ + parts_ * spare;
        pieces_ = scratch_.take<Piece>(stride_ * lanes_);
        values_ = scratch_.take<double>(stride_);
        build<one_term>();
        const int tasks = std::max(lanes_, parts_);
        double* squares = scratch_.take<double>(tasks);
        spilled_ = scratch_.take<Spilled*>(tasks);
        Spilled* spilled =
            scratch_.take<Spilled>(keeps_errors ? stride_ * lanes_ : 0);  // filled where it is needed
        parallel(group_.threads, lanes_, [&](int lane) {
            if (lane) std::copy(pieces_, pieces_ + stride_, pieces_ + lane * stride_);
        });
        parallel(group_.threads, tasks, [&](int task) {
            const int part = parts_ > 1 ? task : 0, lane = task - part;
            const std::int64_t first = first_piece(part);
            Scratch scratch;
            const RanksAmong<S> ranks(scratch, starts_ + first + 1, firsts_[part + 1] - firsts_[part]);
            const std::int64_t end = rows_.first_query(task + 1, tasks);
            const Table table{ranks, bases_ + first, pieces_ + lane * stride_ + first,
                              spilled + lane * stride_ + first};
            for (std::int64_t k = 0; parts_ > 1 && k <= firsts_[part + 1] - firsts_[part]; k += 2)
                __builtin_prefetch(table.pieces + k, 1);
            squares[task] = 0;
            spilled_[task] = nullptr;
            for (std::int64_t i = rows_.first_query(task, tasks); i < end; i += block) {
                const int count = static_cast<int>(std::min<std::int64_t>(block, end - i));
                squares[task] += evaluate_queries(table, i, count, [&] {
                    if (spilled_[task]) return;
                    spilled_[task] = spilled + lane * stride_;
                    std::fill_n(table.spilled, firsts_[part + 1] - firsts_[part] + 1, Spilled{});
                });
            }
        });
        double value = evaluate_sources<one_term>();
        for (int task = 0; task < tasks; ++task) value += 0.5 * squares[task];
        rows_.scatter(grad_, group_.grad);
        rows_.scatter(hess_, group_.hess);
        return value * group_.scale;
    }

    DoubleDouble switch_at(double key, std::uint32_t term) const {
        return DoubleDouble::sum(key, -question_.terms[term].shift);
    }

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
                merge_runs(from + begin, std::min(width, n_switches_ - begin),
                           std::min(2 * width, n_switches_ - begin), to + begin);
            std::swap(from, to);
        }
    }

    // Part p has the switches firsts_[p] .. firsts_[p + 1] - 1, and one piece more: its first piece starts at
    // the last switch below the part. The first piece of all, below all switches, is relative to the first
    // switch.
    std::int64_t first_piece(int part) const { return firsts_[part] + part * spare; }

    // Finds the first switch of each part, the starts of the pieces, and their distances from the switches.
    template <bool one_term>
    void find_starts() {
        const auto* sources = sources_;
        const double shift = question_.terms[0].shift;
        const auto switch_of = [=, this](std::int64_t k) {
            if constexpr (one_term) return DoubleDouble::sum(sources[k].key, -shift);
            return switch_at(sources[switches_[k].source].key, switches_[k].term);
        };
        firsts_ = scratch_.take<std::int64_t>(parts_ + 1);
        starts_ = scratch_.take<S>(n_switches_ + parts_ * spare);
        offsets_ = scratch_.take<Acc>(n_switches_ + parts_ * spare);
        firsts_[parts_] = n_switches_;
        parallel(group_.threads, parts_, [&](int part) {
            std::int64_t first = 0;
            for (std::int64_t end = part ? n_switches_ : 0; first < end;) {
                const std::int64_t middle = std::midpoint(first, end);
                if (rows_.part_of(least_above<S>(switch_of(middle))) < part)
                    first = middle + 1;
                else
                    end = middle;
            }
            firsts_[part] = first;
        });
        parallel(group_.threads, parts_, [&](int part) {
            const std::int64_t first = firsts_[part], count = firsts_[part + 1] - first;
            S* starts = starts_ + first_piece(part);
            Acc* offsets = offsets_ + first_piece(part);
            *starts++ = least_above<S>(switch_of(std::max<std::int64_t>(first - 1, 0)));
            ++offsets;
            for (std::int64_t k = 0; k < count; ++k) {
                const DoubleDouble at = switch_of(first + k);
                const double start = least_above<S>(at), largest = std::numeric_limits<S>::max();
                starts[k] = static_cast<S>(start);
                // The start is infinite if no score is beyond the switch: then any finite distance will do.
                offsets[k] = (Acc(start < largest ? start : largest) + Acc(-at.high)) + Acc(-at.low);
            }
            std::fill_n(starts + count, RanksAmong<S>::padding, std::numeric_limits<S>::infinity());
        });
        bases_ = starts_;
        if (n_truncated_ == question_.n_terms || vector_) return;
        bases_ = scratch_.take<S>(n_switches_ + parts_ * spare);
        std::copy(starts_, starts_ + n_switches_ + parts_ * spare, bases_);
    }

    // The distance between the starts of two pieces.
    Acc distance(std::int64_t from, std::int64_t to) const { return Acc(starts_[to]) + Acc(-starts_[from]); }

    // Calls use(source, term, distance of the start from the switch) for switch k with this piece.
    template <bool one_term, class Use>
    void with_switch(std::int64_t k, std::int64_t piece, Use&& use) const {
        use(one_term ? k : switches_[k].source, one_term ? 0 : static_cast<int>(switches_[k].term),
            offsets_[piece]);
    }

    // Calls use(source, term, distance of the first start from the knot) for all terms without truncation.
    template <class Use>
    void with_untruncated(Use&& use) const {
        for (int j = 0; j < question_.n_terms; ++j)
            for (std::int64_t k = 0; !question_.terms[j].truncated && k < rows_.n_sources; ++k) {
                const DoubleDouble at = switch_at(sources_[k].key, j);
                use(k, j, (Acc(starts_[0]) + Acc(-at.high)) + Acc(-at.low));
            }
    }

    template <bool one_term>
    void build() {
        Scratch scratch;
        const int n_terms = one_term ? 1 : question_.n_terms;
        // By term: the weight of the sources switched on, and the sum of their weights x vector.
        RunningSum first[2]{};  // the compiler keeps the sums of one term in registers
        RunningSum* masses = one_term ? first : scratch.take<RunningSum>(n_terms);
        RunningSum* vectors = one_term ? first + 1 : scratch.take<RunningSum>(n_terms);
        std::fill(masses, masses + n_terms, RunningSum{});
        std::fill(vectors, vectors + n_terms, RunningSum{});
        Acc value = 0, slope = 0;  // without the constant parts b0 and b1 of the terms
        Acc curvature = 0, tilt = 0, level = 0, gap = 0;
        // Moves on by `gap` and switches a source on. One addition per sum, because the next switch waits for
        // it.
        const auto switch_on = [&](std::int64_t source, int j, Acc distance) {
            const Term& term = question_.terms[j];
            const std::uint32_t place = sources_[source].row;
            const double w = weight(place);
            masses[j] += w;
            if (vector_) {
                vectors[j] += w * vector_[place];
                return;
            }
            const Acc turn = gap * curvature;
            value += gap * ((slope + tilt) + Acc(0.5) * turn) +
                     Acc(w) * distance * (Acc(term.b1) + Acc(term.b2) * distance);
            slope += turn + Acc(w) * Acc(2 * term.b2) * distance;
        };
        const auto write = [&](std::int64_t piece) {
            curvature = tilt = level = 0;
            for (int j = 0; j < n_terms; ++j) {
                const Term& term = question_.terms[j];
                const Acc mass(masses[j]);
                curvature += Acc(2 * term.b2) * mass;
                if (vector_) {
                    tilt += Acc(-2 * term.b2) * Acc(vectors[j]);
                    continue;
                }
                level += Acc(term.b0) * mass;
                tilt += Acc(term.b1) * mass;
            }
            pieces_[piece].line = Two{static_cast<double>(slope + tilt), static_cast<double>(curvature)};
            pieces_[piece].sums = Two{};
            values_[piece] = static_cast<double>(value + level);
        };
        with_untruncated(switch_on);
        for (int part = 0; part < parts_; ++part) {
            std::int64_t piece = first_piece(part);
            write(piece++);
            for (std::int64_t k = firsts_[part]; k < firsts_[part + 1]; ++k, ++piece) {
                gap = distance(piece - 1, piece);
                if (bases_ != starts_) {
                    const Acc turn = gap * curvature;
                    value += gap * ((slope + tilt) + Acc(0.5) * turn);
                    slope += turn;
                    gap = 0;
                    if (std::abs(static_cast<double>(value + level)) < std::abs(values_[piece - 1])) {
                        bases_[piece - 1] = starts_[piece];
                        write(piece - 1);
                    }
                }
                with_switch<one_term>(k, piece, switch_on);
                write(piece);
            }
        }
    }

    // What the queries of a task look up and add to.
    struct Table {
        const RanksAmong<S> ranks;
        const S* bases;
        Piece* pieces;
        Spilled* spilled;
    };

    // Computes the derivatives of queries, and returns the sum of weight x curvature x distance^2. Short
    // loops over a block: those that read memory have many loads in flight, the others are vectorised. Calls
    // `prepare` before sums spill.
    template <class Prepare>
    double evaluate_queries(const Table& table, std::int64_t first, int count, Prepare&& prepare) const {
        S at[block];
        double w[block], distances[block], slopes[block], curvatures[block];
        std::uint32_t piece_of[block];
        const double sign = vector_ ? 1 : rows_.sign, scale = group_.scale;
        Piece* const pieces = table.pieces;
        rows_.queries(first, count, table.bases[0], at, w);
        if (count % 2) at[count] = table.bases[0], w[count] = 0;
        const int even = count + count % 2;
        table.ranks.find(at, even, piece_of);
        if (vector_) {
            std::copy_n(vector_ + first, count, distances);
            if (count % 2) distances[count] = 0;
        } else {
            for (int q = 0; q < even; ++q) {
                __builtin_prefetch(pieces + piece_of[q], 1);
                distances[q] = static_cast<double>(at[q]) - table.bases[piece_of[q]];
            }
        }
        // Two queries at a time, so that transpositions make the vectors to be added and read.
        Two largest{};
        for (int q = 0; q < even; q += 2) {
            Piece &one = pieces[piece_of[q]], &other = pieces[piece_of[q + 1]];
            const Two mass{w[q], w[q + 1]}, moment = mass * Two{distances[q], distances[q + 1]};
            one.sums += shuffle<0, 2>(mass, moment);
            if (keeps_errors) largest = one.sums > largest ? one.sums : largest;
            other.sums += shuffle<1, 3>(mass, moment);
            if (keeps_errors) largest = other.sums > largest ? other.sums : largest;
            const Two slope = shuffle<0, 2>(one.line, other.line),
                      curvature = shuffle<1, 3>(one.line, other.line);
            std::memcpy(slopes + q, &slope, sizeof slope);
            std::memcpy(curvatures + q, &curvature, sizeof curvature);
        }
        // A sum may have so many rows; weights do not tell how many they are.
        const double max_sum = rows_.weights ? 0 : 1 << 12;
        if (keeps_errors && largest[0] > max_sum) {
            prepare();
            for (int q = 0; q < even; ++q)
                if (Piece& piece = pieces[piece_of[q]]; piece.sums[0] > max_sum) {
                    table.spilled[piece_of[q]].add(piece.sums);
                    piece.sums = Two{};
                }
        }
        double total = 0;
#pragma omp simd reduction(+ : total)
        for (int q = 0; q < count; ++q) {
            const double distance = curvatures[q] != 0 ? distances[q] : 0, turn = curvatures[q] * distance;
            total += w[q] * distance * turn;
            // The factor of the reduction comes last: scale x weight may underflow where the result does not.
            slopes[q] = scale * (w[q] * (sign * (slopes[q] + turn))) + 0.0;  // -0.0 becomes 0.0
        }
        if (grad_)
            for (int q = 0; q < count; ++q) grad_[first + q] = static_cast<S>(slopes[q]);
        if (hess_)
            for (int q = 0; q < count; ++q)
                hess_[first + q] = static_cast<S>(scale * (w[q] * curvatures[q]) + 0.0);
        return total;
    }

    // Sums over the switches downwards, for each over the queries beyond it. Returns the value without the
    // sum of squares.
    template <bool one_term>
    double evaluate_sources() const {
        Scratch scratch;
        const std::int64_t kept = one_term ? 0 : rows_.n_sources;
        Derivatives* sums = scratch.take<Derivatives>(kept);
        std::fill(sums, sums + kept, Derivatives{});
        const double scale = group_.scale, signed_scale = vector_ ? scale : -rows_.sign * scale;
        const auto write = [&](std::int64_t source, const Derivatives& sum) {
            const std::uint32_t place = sources_[source].row;
            const double w = weight(place);
            if (grad_)
                grad_[place] = static_cast<S>(signed_scale * (w * static_cast<double>(sum.grad)) + 0.0);
            if (hess_) hess_[place] = static_cast<S>(scale * (w * static_cast<double>(sum.hess)));
        };
        RunningSum mass{}, vector{};
        Acc moment = 0;
        Two value{};
        std::int64_t above =
            first_piece(parts_ - 1) + firsts_[parts_] - firsts_[parts_ - 1];  // the last piece
        // Adds the queries of the next lower piece; distances are then relative to its start.
        const auto take = [&](int part, std::int64_t k) {
            Two here{};
            for (int lane = 0; lane < lanes_; ++lane) {
                here += pieces_[lane * stride_ + k].sums;
                if (const Spilled* spilled = spilled_[part + lane]) here += spilled[k].sums + spilled[k].lost;
            }
            // Pieces without queries beyond them may be so far away that their distances are infinite.
            if (!vector_)
                moment +=
                    (static_cast<double>(mass) > 0 ? Acc(mass) * distance(k, above) : Acc(0)) + Acc(here[1]);
            if (vector_) vector += here[1];
            if (bases_[k] != starts_[k]) moment += Acc(here[0]) * (Acc(bases_[k]) + Acc(-starts_[k]));
            above = k;
            mass += here[0];
            value += here != 0.0 ? here * Two{values_[k], pieces_[k].line[0]} : Two{};
        };
        const auto switch_on = [&](std::int64_t source, int j, Acc distance) {
            const Term& term = question_.terms[j];
            const Acc all(mass), slope(2 * term.b2);
            const Acc grad = vector_
                                 ? slope * (Acc(vector_[sources_[source].row]) * all + Acc(-1) * Acc(vector))
                                 : Acc(term.b1) * all + slope * (moment + all * distance);
            const Derivatives sum{grad, slope * all};
            if (one_term) return write(source, sum);
            sums[source].grad += sum.grad;
            sums[source].hess += sum.hess;
        };
        for (int part = parts_ - 1; part >= 0; --part) {
            std::int64_t piece = first_piece(part) + firsts_[part + 1] - firsts_[part];
            for (std::int64_t k = firsts_[part + 1] - 1; k >= firsts_[part]; --k, --piece) {
                take(part, piece);
                with_switch<one_term>(k, piece, switch_on);
            }
            take(part, piece);
        }
        with_untruncated(switch_on);
        for (std::int64_t k = 0; k < kept; ++k) write(k, sums[k]);
        return value[0] + value[1];
    }

    Scratch scratch_;
    const GroupRows<S> group_;
    const Question& question_;
    const std::int64_t n_truncated_;
    const Division<S> rows_;
    const std::int64_t n_switches_;
    const int parts_;
    const double* vector_;         // by place, like the next ones; may be null
    S *const grad_, *const hess_;  // may be null
    Keyed<S>* sources_;            // in ascending order
    Switch* switches_;             // in ascending order
    std::int64_t* firsts_;         // by part: the first switch
    S *starts_, *bases_;  // by piece, like the next ones: its left end, and the point it is relative to
    Acc* offsets_;        // the distances of the starts from their switches
    Piece* pieces_;
    Spilled** spilled_;  // by task: the sums of the pieces of its lane; null if there are none
    double* values_;
    std::int64_t stride_;  // pieces of a lane
    int lanes_;
};

}  // namespace everypair::EVERYPAIR_ISA
