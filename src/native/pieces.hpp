// Exact plan for truncated terms with few sources: one look-up per query for all terms together.
//
// Sources and queries are those of lookup.hpp. Source z switches term j on at t = z - shift_j, so the sum over all sources and
// terms is one function of the position x of a query, and it is quadratic between neighbouring switches. The switches are
// sorted once. Piece r lies beyond r switches and holds slope and curvature of the function at its left end, computed from gap
// to gap. A table of cells finds the piece of a query, which gives its gradient and Hessian. Each piece also counts its queries
// and sums their distances; from these sums one downward sweep computes the gradients and Hessians of the sources.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "double_double.hpp"
#include "pool.hpp"
#include "sources.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

// Acc is double, or DoubleDouble if several terms nearly cancel far from their knots.
template <class S, class Acc>
class Pieces {
  public:
    Pieces(const S* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found, const Question& question,
           double scale, S* grad, S* hess)
        : scores_(scores), classes_(classes), n_(n), question_(question), scale_(scale), grad_(grad), hess_(hess) {
        source_class_ = 2 * found.n_pos <= n;
        n_sources_ = source_class_ ? found.n_pos : n - found.n_pos;
        n_switches_ = n_sources_ * question.n_terms;
        sign_ = source_class_ ? 1 : -1;
    }

    double run() {
        Scratch scratch;
        const Sources<S> sources(scratch, scores_, classes_, n_, n_sources_, source_class_, sign_, question_.threads);
        switches_ = scratch.take<Switch>(n_switches_);
        merge_switches(sources);
        const int tasks = task_count(n_);
        const int lanes = static_cast<int>(std::clamp<std::int64_t>(n_ / (4 * n_switches_), 1, std::min(tasks, 4)));
        // One more piece for the sources, which are not queries, and `few` more that a search may read past the end.
        stride_ = n_switches_ + 1 + 1 + few;
        pieces_ = scratch.take<Piece>(stride_ * lanes);
        values_ = scratch.take<double>(n_switches_ + 1);
        slopes_ = scratch.take<double>(n_switches_ + 1);
        set_cells(scratch);
        build();
        double* squares = scratch.take<double>(lanes);
        parallel(question_.threads, lanes, [&](int lane) {
            if (lane) std::copy(pieces_, pieces_ + stride_, pieces_ + lane * stride_);
        });
        parallel(question_.threads, lanes, [&](int lane) {
            const auto first_row = [&](int l) {
                return std::min(n_, static_cast<std::int64_t>(tasks) * l / lanes * task_rows);
            };
            squares[lane] = evaluate_queries(first_row(lane), first_row(lane + 1), pieces_ + lane * stride_);
        });
        double value = 0;
        for (int lane = 0; lane < lanes; ++lane) value += 0.5 * squares[lane];
        return (value + sum_queries(scratch, sources, lanes)) * scale_;
    }

  private:
    static constexpr int block = 256, few = 4;

    // A switch at position `at` + `low`, where `low` is the rounding error of `at`.
    struct Switch {
        double at, low;
        std::uint32_t source, term;

        bool operator<(const Switch& other) const { return at < other.at || (at == other.at && low < other.low); }
    };

    // The function beyond a switch, and the sums over the queries of this piece.
    struct Piece {
        double start, low, slope, curvature;
        double sum;  // of the distances of the queries from the start
        std::uint32_t count;

        bool is_below(double x) const { return (start < x) | ((start == x) & (low < 0)); }
    };

    // Merges the switches of all terms; those of one term are sorted already.
    void merge_switches(const Sources<S>& sources) {
        Scratch scratch;
        Switch *from = scratch.take<Switch>(n_switches_), *to = switches_;
        int merges = 0;
        for (int width = 1; width < question_.n_terms; width *= 2) ++merges;
        if (merges % 2 == 0) std::swap(from, to);  // so that the last merge ends in switches_
        for (int j = 0; j < question_.n_terms; ++j)
            for (std::int64_t k = 0; k < n_sources_; ++k) {
                const DoubleDouble at = DoubleDouble::sum(sources.key(k), -question_.terms[j].shift);
                from[j * n_sources_ + k] = {at.high, at.low, static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(j)};
            }
        for (std::int64_t width = n_sources_; width < n_switches_; width *= 2) {
            for (std::int64_t begin = 0; begin < n_switches_; begin += 2 * width) {
                const std::int64_t half = std::min(begin + width, n_switches_), end = std::min(begin + 2 * width, n_switches_);
                std::merge(from + begin, from + half, from + half, from + end, to + begin);
            }
            std::swap(from, to);
        }
    }

    // Builds the table of cells: cell c holds the switches cells_[c] .. cells_[c + 1] - 1.
    void set_cells(Scratch& scratch) {
        const double range = switches_[n_switches_ - 1].at - switches_[0].at;
        n_cells_ = 1;
        while (n_cells_ < 2 * n_switches_) n_cells_ *= 2;
        per_cell_ = static_cast<double>(n_cells_) / range;
        if (!(range > 0x1p-900 && range < 0x1p900)) n_cells_ = 1, per_cell_ = 0;
        cells_ = scratch.take<std::uint32_t>(n_cells_ + 1);
        std::int64_t next = 0;
        for (std::int64_t k = 0; k < n_switches_; ++k)
            for (const std::int32_t cell = cell_of(switches_[k].at); next <= cell; ++next)
                cells_[next] = static_cast<std::uint32_t>(k);
        for (; next <= n_cells_; ++next) cells_[next] = static_cast<std::uint32_t>(n_switches_);
    }

    std::int32_t cell_of(double x) const {
        const double p = (x - switches_[0].at) * per_cell_, q = p > 0 ? p : 0, last = static_cast<double>(n_cells_ - 1);
        return static_cast<std::int32_t>(q < last ? q : last);
    }

    void build() {
        Scratch scratch;
        // Number of sources switched on, by term: integers, which have no rounding errors.
        double* on = scratch.take<double>(question_.n_terms);
        std::fill(on, on + question_.n_terms, 0.0);
        double curvature = 0;
        Acc value = 0, slope = 0;
        const auto piece = [&](double at, double low) {
            return Piece{at, low, sign_ * scale_ * static_cast<double>(slope), scale_ * curvature, 0, 0};
        };
        pieces_[0] = piece(switches_[0].at, switches_[0].low);
        values_[0] = slopes_[0] = 0;
        for (std::int64_t k = 0; k < n_switches_; ++k) {
            const Term& term = question_.terms[switches_[k].term];
            const Acc gap = k ? gap_before(k) : Acc(0);
            value += gap * (slope + Acc(0.5 * curvature) * gap) + Acc(term.b0);
            slope += gap * Acc(curvature) + Acc(term.b1);
            on[switches_[k].term] += 1;
            curvature = 0;
            for (int j = 0; j < question_.n_terms; ++j) curvature += 2 * question_.terms[j].b2 * on[j];
            pieces_[k + 1] = piece(switches_[k].at, switches_[k].low);
            values_[k + 1] = static_cast<double>(value);
            slopes_[k + 1] = static_cast<double>(slope);
        }
        slope = curvature = 0;
        for (int k = 0; k <= few; ++k) pieces_[n_switches_ + 1 + k] = piece(std::numeric_limits<double>::infinity(), 0);
    }

    Acc gap_before(std::int64_t k) const {
        const Switch &a = switches_[k - 1], &b = switches_[k];
        return (Acc(b.at) + Acc(-a.at)) + (Acc(b.low) + Acc(-a.low));
    }

    // Computes gradients and Hessians of the queries among these rows, and returns the sum of curvature x distance^2.
    double evaluate_queries(std::int64_t begin, std::int64_t end, Piece* pieces) const {
        double at[block], distances[block], slopes[block], curvatures[block];
        std::int32_t cells[block];
        std::uint32_t firsts[block];
        const double sign = sign_;
        double total = 0;
        for (std::int64_t i = begin; i < end; i += block) {
            const int count = static_cast<int>(std::min<std::int64_t>(block, end - i));
            const S* scores = scores_ + i;
            const std::uint8_t* classes = classes_ + i;
#pragma omp simd
            for (int k = 0; k < count; ++k) {
                at[k] = sign * static_cast<double>(scores[k]);
                cells[k] = cell_of(at[k]);
            }
            for (int k = 0; k < count; ++k) {
                firsts[k] = cells_[cells[k]];
                __builtin_prefetch(pieces + firsts[k] + 1);
            }
            for (int k = 0; k < count; ++k) {
                // The piece after a switch starts at that switch, so pieces[from + 1] is tried first.
                const std::int64_t from = firsts[k];
                int below = 0;
                for (int s = 1; s <= few; ++s) below += pieces[from + s].is_below(at[k]);
                const std::int64_t found = below < few ? from + below : search(pieces, at[k], cells[k], from);
                Piece& piece = pieces[classes[k] == source_class_ ? n_switches_ + 1 : found];
                const double distance = (at[k] - piece.start) - piece.low;
                piece.sum += distance;
                ++piece.count;
                slopes[k] = piece.slope;
                curvatures[k] = piece.curvature;
                distances[k] = piece.curvature != 0 ? distance : 0;
            }
            double sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int k = 0; k < count; ++k) sum += curvatures[k] * distances[k] * distances[k];
            total += sum;
            if (grad_)
#pragma omp simd
                for (int k = 0; k < count; ++k)
                    grad_[i + k] = static_cast<S>(slopes[k] + sign * curvatures[k] * distances[k] + 0.0);
            if (hess_)
#pragma omp simd
                for (int k = 0; k < count; ++k) hess_[i + k] = static_cast<S>(curvatures[k]);
        }
        return total / scale_;
    }

    std::int64_t search(const Piece* pieces, double x, std::int32_t cell, std::int64_t from) const {
        std::int64_t low = from, high = cells_[cell + 1];
        while (low < high) {
            const std::int64_t middle = (low + high) / 2;
            if (pieces[middle + 1].is_below(x))
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    // Sums over the switches downwards, for each over the queries beyond it. Returns the value without the sum of squares.
    double sum_queries(Scratch& scratch, const Sources<S>& sources, int lanes) {
        Acc* grad = scratch.take<Acc>(n_sources_);
        double* hess = scratch.take<double>(n_sources_);
        std::fill(grad, grad + n_sources_, Acc(0));
        std::fill(hess, hess + n_sources_, 0.0);
        Acc moment = 0;
        double count = 0, value = 0;
        for (std::int64_t k = n_switches_ - 1; k >= 0; --k) {
            // Switches without queries beyond them may be so far away that their values are infinite.
            if (count > 0) moment += Acc(count) * gap_before(k + 1);
            double here = 0, sum = 0;
            for (int lane = 0; lane < lanes; ++lane) {
                const Piece& piece = pieces_[lane * stride_ + k + 1];
                here += piece.count;
                sum += piece.sum;
            }
            count += here;
            moment += Acc(sum);
            if (here > 0) value += here * values_[k + 1] + slopes_[k + 1] * sum;
            const Term& term = question_.terms[switches_[k].term];
            grad[switches_[k].source] += Acc(term.b1) * Acc(count) + Acc(2 * term.b2) * moment;
            hess[switches_[k].source] += 2 * term.b2 * count;
        }
        for (std::int64_t k = 0; k < n_sources_; ++k) {
            const double out = -sign_ * scale_ * static_cast<double>(grad[k]);
            if (grad_) grad_[sources.rows[k]] = static_cast<S>(out + 0.0);  // -0.0 becomes 0.0
            if (hess_) hess_[sources.rows[k]] = static_cast<S>(scale_ * hess[k]);
        }
        return value;
    }

    const S* scores_;
    const std::uint8_t* classes_;
    std::int64_t n_;
    const Question& question_;
    double scale_;
    S *grad_, *hess_;
    std::int64_t n_sources_, n_switches_, n_cells_, stride_;
    std::uint8_t source_class_;
    double sign_, per_cell_;
    Switch* switches_;
    Piece* pieces_;
    std::uint32_t* cells_;
    double *values_, *slopes_;
};

}  // namespace everypair::EVERYPAIR_ISA
