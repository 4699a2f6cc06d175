// Sums over all pairs of a row x_i and another row y_j, for each row or for each other row:
//
//     r_i = sum over j of w_j f(d_ij)    or    q_j = sum over i of v_i f(d_ij),    d_ij = y_j + shift - x_i
//
// where f is one polynomial in |d| and in exp(-rate |d|) for d > 0, and another one for d <= 0 (`Piece`).
// This is the algorithm of everypair/ranks/_sweep.py. The fewer rows are sorted; they are the knots, and the
// others are the points. A table finds the interval between two knots to which a point belongs, and points
// are arranged by interval, in any order inside it. The sums
//
//     M_k = sum of w |d|^k, k = 0, 1, 2,     and     A_k = sum of w exp(-k rate |d|), k = 1, 2, ...
//
// run along the knots, upwards and downwards. To sum over the points for every knot, the points of an
// interval add their powers to the sums of the next knot. To sum over the knots for every point, all points
// of an interval evaluate the same polynomials, whose coefficients are the sums at the knot before it. So
// both loops over points are vectorised over points.
//
// Error: for weights of one sign all numbers added have one sign, and all factors of A_k are at most one. The
// A_k are kept in two parts, the knots of the current run and those before it, so that rounding errors grow
// with the number of runs and with the length of a run. The M_k are double-doubles. Whether d > 0 is decided
// exactly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "double_double.hpp"
#include "pool.hpp"
#include "sources.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// K: at least the number of powers.
template <int K>
class PieceSums final : public RowSums {
  public:
    PieceSums(const RowSet& rows, const RowSet& others, const Piece& piece, int threads)
        : RowSums(rows.n, others.n),
          rows_are_knots_(rows.n <= others.n),
          rate_(piece.rate),
          n_groups_(rows.n_groups),
          n_knots_(rows_are_knots_ ? rows.n : others.n),
          n_points_(rows_are_knots_ ? others.n : rows.n) {
        for (int order = 0; order < 3; ++order)
            for (int side = 0; side < 2; ++side) {
                Side& here = sides_[order][side];
                for (int k = 0; k < V * lanes; ++k)
                    here.c[k / lanes][k % lanes] =
                        k < piece.n_powers ? piece.powers[(order * 2 + side) * piece.n_powers + k] : 0;
                for (int r = 0; r < 3; ++r) {
                    here.p[r] = piece.polynomials[(order * 2 + side) * 3 + r];
                    if (here.p[r] != 0) here.moments = r + 1;
                }
                far_ |= here.moments > 1;
            }
        const std::size_t n = n_knots_, m = n_points_;
        knot_rows_ = std::make_unique_for_overwrite<std::uint32_t[]>(n);
        point_rows_ = std::make_unique_for_overwrite<std::uint32_t[]>(m);
        groups_ = std::make_unique_for_overwrite<Group[]>(n_groups_);
        gaps_ = std::make_unique_for_overwrite<double[]>(n + 1);
        firsts_ = std::make_unique_for_overwrite<std::int64_t[]>(n + 2 * n_groups_);
        if constexpr (K > 0) factors_ = std::make_unique_for_overwrite<double[]>(n + 1);
        for (int side = 0; side < 2; ++side) {
            if constexpr (K > 0) since_[side] = std::make_unique_for_overwrite<double[]>(n);
            if constexpr (K > 0) x_[side] = std::make_unique_for_overwrite<double[]>(m);
            if (far_ || K == 0) distances_[side] = std::make_unique_for_overwrite<double[]>(m);
        }
        const RowSet &of_knots = rows_are_knots_ ? rows : others,
                     &of_points = rows_are_knots_ ? others : rows;
        for (std::int64_t g = 0; g < n_groups_; ++g)
            groups_[g] = {of_knots.begin(g), of_knots.begin(g + 1), of_points.begin(g),
                          of_points.begin(g + 1), g};
        each_part(threads, 1, [&](const Group& group, int) {
            arrange(group, of_knots.scores, of_points.scores, piece.shift);
        });
    }

    void sums(const double* weights, bool per_other, int n_orders, const int* orders, double* const* out,
              int threads) const override {
        Scratch scratch;
        const bool to_points = per_other == rows_are_knots_;
        const std::int64_t n_sources = to_points ? n_knots_ : n_points_,
                           n_targets = to_points ? n_points_ : n_knots_;
        const std::uint32_t *sources = (to_points ? knot_rows_ : point_rows_).get(),
                            *targets = (to_points ? point_rows_ : knot_rows_).get();
        double* w = scratch.take<double>(n_sources);
        for (std::int64_t i = 0; i < n_sources; ++i) w[i] = weights[sources[i]];
        double* parts[2][3];
        for (auto& of_direction : parts)
            for (int k = 0; k < n_orders; ++k) of_direction[k] = scratch.take<double>(n_targets);
        each_part(threads, 2, [&](const Group& group, int up) {
            if (to_points)
                up ? sweep<true, true>(group, w, n_orders, orders, parts[1])
                   : sweep<false, true>(group, w, n_orders, orders, parts[0]);
            else
                up ? sweep<true, false>(group, w, n_orders, orders, parts[1])
                   : sweep<false, false>(group, w, n_orders, orders, parts[0]);
        });
        for (int k = 0; k < n_orders; ++k)
            for (std::int64_t i = 0; i < n_targets; ++i) out[k][targets[i]] = parts[0][k][i] + parts[1][k][i];
    }

  private:
    static constexpr int V = (K + lanes - 1) / lanes, room = V > 0 ? V : 1;
    static constexpr int run_knots = 64;

    // One function of d on one side of 0.
    struct Side {
        Vec c[room] = {};
        double p[3];
        int moments = 0;  // one more than the degree of p
    };

    struct Group {
        std::int64_t knot, knot_end, point, point_end, number;
    };

    // Calls body(group, direction) for all groups and directions.
    template <class Body>
    void each_part(int threads, int directions, Body&& body) const {
        if (n_knots_ + n_points_ < threaded_rows()) threads = 1;
        parallel_ranges(threads, n_groups_ * directions, [&](std::int64_t i) {
            body(groups_[i / directions], static_cast<int>(i % directions));
        });
    }

    // For another row at a position, which includes the shift: d > 0 if and only if the row is not larger.
    static double bound(DoubleDouble at) { return -next_above(-at.high, at.low <= 0); }

    // The distance from a position up to another one.
    static double distance(DoubleDouble from, DoubleDouble to) {
        constexpr double largest = std::numeric_limits<double>::max();
        const double difference = (to.high - from.high) + (to.low - from.low),
                     d = difference > 0 ? difference : 0;
        return d < largest ? d : largest;
    }

    // Sorts the knots of a group, and arranges its points by interval. Scores that are not finite have no
    // meaning here; the caller has to look for them.
    void arrange(const Group& group, const double* knot_scores, const double* point_scores, double shift) {
        Scratch scratch;
        const std::int64_t n = group.knot_end - group.knot, m = group.point_end - group.point;
        const double knot_shift = rows_are_knots_ ? 0 : shift, point_shift = rows_are_knots_ ? shift : 0;
        DoubleDouble *at = scratch.take<DoubleDouble>(n), *points = scratch.take<DoubleDouble>(m);
#pragma omp simd
        for (std::int64_t j = 0; j < m; ++j)
            points[j] = DoubleDouble::sum(point_scores[group.point + j], point_shift);
        Keyed<double>*unsorted = scratch.take<Keyed<double>>(n), *sorted = scratch.take<Keyed<double>>(n);
        for (std::int64_t i = 0; i < n; ++i) {
            const double s = knot_scores[group.knot + i];
            unsorted[i] = {rows_are_knots_ ? s : bound(DoubleDouble::sum(s, shift)),
                           static_cast<std::uint32_t>(group.knot + i)};
        }
        radix_sort(unsorted, n, sorted);
        double* keys = scratch.take<double>(n + Ranks::padding);
        std::fill_n(keys + n, Ranks::padding, std::numeric_limits<double>::infinity());
        for (std::int64_t i = 0; i < n; ++i) {
            keys[i] = sorted[i].key;
            knot_rows_[group.knot + i] = sorted[i].row;
            at[i] = DoubleDouble::sum(knot_scores[sorted[i].row], knot_shift);
            gaps_[group.knot + i] = i ? distance(at[i - 1], at[i]) : 0;
        }
        place_runs(group);
        find_intervals(group, Ranks(scratch, keys, n), points);
        const std::int64_t* first = firsts(group);
        const std::uint32_t* rows = point_rows_.get();
        double *from_below = distances(0), *from_above = distances(1);
        for (std::int64_t i = 0; i <= n; ++i) {
            const DoubleDouble none, below = i > 0 ? at[i - 1] : none, above = i < n ? at[i] : none;
            const double exists[2] = {i > 0 ? 1.0 : 0.0, i < n ? 1.0 : 0.0};
            const std::int64_t end = first[i + 1];
#pragma omp simd
            for (std::int64_t j = first[i]; j < end; ++j) {
                const DoubleDouble point = points[rows[j] - group.point];
                from_below[j] = exists[0] * distance(below, point);
                from_above[j] = exists[1] * distance(point, above);
            }
        }
        if constexpr (K > 0)
            for (int above = 0; above < 2; ++above) {
                const double *lengths = distances(above) + group.point, rate = rate_;
                double* x = x_[above].get() + group.point;
#pragma omp simd
                for (std::int64_t j = 0; j < m; ++j) x[j] = vector_exp(-rate * lengths[j]);
            }
    }

    // The distances of the points from the knot below (0) or above (1). If only their exponentials are
    // needed, those replace them.
    double* distances(int above) const { return (distances_[above] ? distances_ : x_)[above].get(); }

    // Fills the factors by which the running sums move on.
    void place_runs(const Group& group) {
        if constexpr (K > 0) {
            const std::int64_t n = group.knot_end - group.knot;
            const double *gaps = gaps_.get() + group.knot, rate = rate_;
            double* factors = factors_.get() + group.knot;
            for (std::int64_t i = 0; i < n; ++i) factors[i] = vector_exp(-rate * gaps[i]);
            for (const bool up : {true, false}) {
                // The distance from the first knot of the run; for the first knot of a run, from that of the
                // run before.
                double* since = since_[up].get() + group.knot;
                double moved = 0;
                for (std::int64_t t = 0; t < n; ++t) {
                    const std::int64_t i = up ? t : n - 1 - t;
                    if (t % run_knots == 1) moved = 0;
                    if (t) moved += gaps[up ? i : i + 1];
                    since[i] = vector_exp(-rate * moved);
                }
            }
        }
    }

    // Fills the ends of the intervals, and the rows of the points by place.
    void find_intervals(const Group& group, const Ranks& ranks, const DoubleDouble* points) const {
        constexpr int block = 256;
        Scratch scratch;
        const std::int64_t n = group.knot_end - group.knot;
        std::uint32_t* intervals = scratch.take<std::uint32_t>(group.point_end - group.point);
        std::int64_t *first = firsts(group), *ends = first + 1, begin = *first = group.point;
        std::fill(ends, ends + n + 1, 0);
        for (std::int64_t j = group.point; j < group.point_end; j += block) {
            const int count = static_cast<int>(std::min<std::int64_t>(block, group.point_end - j));
            double keys[block];
            std::uint32_t places[block];
            // The knots below a point are rows up to its bound, or others whose bound is below it.
#pragma omp simd
            for (int k = 0; k < count; ++k) keys[k] = bound(points[j - group.point + k]);
            ranks.find(keys, count, places);
            for (int k = 0; k < count; ++k) ++ends[intervals[j - group.point + k] = places[k]];
        }
        for (std::int64_t i = 0; i <= n; ++i) begin += std::exchange(ends[i], begin);
        // Each point that is placed moves the end of its interval on, from the first place of the interval.
        for (std::int64_t j = group.point; j < group.point_end; ++j)
            point_rows_[ends[intervals[j - group.point]]++] = static_cast<std::uint32_t>(j);
    }

    // By interval, the place of its first point; the next interval begins where it ends.
    std::int64_t* firsts(const Group& group) const { return firsts_.get() + group.knot + 2 * group.number; }

    // The running sums at one knot.
    struct State {
        Vec run[room] = {}, before[room] = {};
        DoubleDouble moments[3];
    };

    // Fills for each target the sums over the sources below it (up) or above it. If to_points, the targets
    // are the points.
    template <bool up, bool to_points>
    void sweep(const Group& group, const double* w, int n_orders, const int* orders,
               double* const* out) const {
        const std::int64_t n = group.knot_end - group.knot, *places = firsts(group);
        // Where rows are below others, d > 0.
        const int side = to_points == (up == rows_are_knots_);
        const Side* sides[3];
        int moments = 0;
        for (int k = 0; k < n_orders; ++k) {
            sides[k] = &sides_[orders[k]][side];
            moments = std::max(moments, sides[k]->moments);
        }
        if (to_points) {
            // The points before the first knot.
            const std::int64_t* place = places + (up ? 0 : n);
            for (int k = 0; k < n_orders; ++k) std::fill(out[k] + place[0], out[k] + place[1], 0.0);
        }
        State state;
        for (std::int64_t t = 0; t < n; ++t) {
            const std::int64_t i = up ? t : n - 1 - t, knot = group.knot + i;
            const std::int64_t interval = up == to_points ? i + 1 : i, first = places[interval],
                               last = places[interval + 1];
            const double gap = t ? gaps_[up ? knot : knot + 1] : 0;
            if (moments > 1) {
                DoubleDouble* m = state.moments;
                if (moments > 2) m[2] += DoubleDouble(gap) * (m[1] + m[1] + DoubleDouble(gap) * m[0]);
                m[1] += DoubleDouble(gap) * m[0];
            }
            Vec sums[room] = {}, since[room];
            const bool starts = t % run_knots == 0;
            if constexpr (K > 0) {
                Vec factor[room];
                const double moved = t ? factors_[up ? knot : knot + 1] : 1;
                fill_powers<V>(moved, moved, factor);
                fill_powers<V>(since_[up][knot], since_[up][knot], since);
                for (int v = 0; v < V; ++v) {
                    state.run[v] *= factor[v];
                    if (starts) {
                        state.before[v] = state.before[v] * since[v] + state.run[v];
                        state.run[v] = Vec{};
                    }
                }
            }
            if constexpr (to_points) {
                for (int v = 0; v < V; ++v) state.run[v] += w[knot];
                if (moments > 0) state.moments[0] += w[knot];
            } else {
                add_points<up>(first, last, w, moments, state);
            }
            if constexpr (K > 0)
                for (int v = 0; v < V; ++v)
                    sums[v] = state.run[v] + (starts ? state.before[v] : state.before[v] * since[v]);
            for (int k = 0; k < n_orders; ++k) {
                const Side& f = *sides[k];
                if constexpr (to_points) {
                    if (first < last) evaluate<!up>(first, last, f, sums, state.moments, out[k]);
                } else {
                    Vec total{};
                    for (int v = 0; v < V; ++v) total += f.c[v] * sums[v];
                    double sum = V > 0 ? sum_of(total) : 0;
                    for (int r = 0; r < f.moments; ++r) sum += f.p[r] * static_cast<double>(state.moments[r]);
                    out[k][knot] = sum;
                }
            }
        }
    }

    // Calls use(place, count, of_points) for the points first .. last - 1, up to `lanes` at a time;
    // of_points(array) returns their numbers, and zeros after the last one.
    template <class Use>
    static void by_vectors(std::int64_t first, std::int64_t last, Use&& use) {
        std::int64_t j = first;
        for (; j + lanes <= last; j += lanes)
            use(j, lanes, [&](const double* array) { return load(array + j); });
        if (j == last) return;
        const int count = static_cast<int>(last - j);
        use(j, count, [&](const double* array) {
            Vec numbers{};
            for (int k = 0; k < count; ++k) numbers[k] = array[j + k];
            return numbers;
        });
    }

    // Adds the powers of the points first .. last - 1 to the sums of the knot above them, or of the knot
    // below them.
    template <bool above>
    void add_points(std::int64_t first, std::int64_t last, const double* w, int moments, State& state) const {
        if constexpr (K > 0) {
            const double* x = x_[above].get();
            if (last - first < 2 * lanes) {
                Vec powers[room];
                for (std::int64_t j = first; j < last; ++j) {
                    fill_powers<V>(x[j], x[j], powers);
                    for (int v = 0; v < V; ++v) state.run[v] += w[j] * powers[v];
                }
            } else {
                Vec totals[K] = {};
                by_vectors(first, last, [&](std::int64_t, int, auto&& of_points) {
                    const Vec at = of_points(x);
                    Vec power = of_points(w);
                    for (int k = 0; k < K; ++k) totals[k] += power *= at;
                });
                for (int k = 0; k < K; ++k) state.run[k / lanes][k % lanes] += sum_of(totals[k]);
            }
        }
        if (moments == 0) return;
        Vec totals[3] = {};
        by_vectors(first, last, [&](std::int64_t, int, auto&& of_points) {
            Vec power = of_points(w);
            totals[0] += power;
            if (moments == 1) return;
            const Vec d = of_points(distances_[above].get());
            totals[1] += power *= d;
            totals[2] += power *= d;
        });
        for (int r = 0; r < moments; ++r) state.moments[r] += sum_of(totals[r]);
    }

    // Evaluates a function for the points first .. last - 1 from the sums of the knot above them, or of the
    // knot below them.
    template <bool above>
    void evaluate(std::int64_t first, std::int64_t last, const Side& f, const Vec* sums,
                  const DoubleDouble* moments, double* out) const {
        double powers[K + 1], p[3] = {};
        for (int k = 0; k < K; ++k) powers[k] = f.c[k / lanes][k % lanes] * sums[k / lanes][k % lanes];
        for (int r = 0; r < f.moments; ++r) {
            // |d|^r is the sum over s of comb(r, s) (distance of the point)^s (distance of the knot)^(r - s).
            const double m[3] = {f.p[r] * static_cast<double>(moments[0]),
                                 r > 0 ? f.p[r] * static_cast<double>(moments[1]) : 0,
                                 r > 1 ? f.p[r] * static_cast<double>(moments[2]) : 0};
            p[0] += m[r];
            if (r > 0) p[1] += r * m[r - 1];
            if (r > 1) p[2] += m[0];
        }
        const bool far = f.moments > 1;
        by_vectors(first, last, [&](std::int64_t j, int count, auto&& of_points) {
            Vec total{};
            if constexpr (K > 0) {
                const Vec x = of_points(x_[above].get());
                total += powers[K - 1];
                for (int k = K - 2; k >= 0; --k) total = total * x + powers[k];
                total *= x;
            }
            total += p[0];
            if (far) {
                const Vec d = of_points(distances_[above].get());
                total += d * (p[1] + d * p[2]);
            }
            if (count == lanes)
                std::memcpy(out + j, &total, sizeof total);
            else
                for (int k = 0; k < count; ++k) out[j + k] = total[k];
        });
    }

    const bool rows_are_knots_;
    const double rate_;
    const std::int64_t n_groups_, n_knots_, n_points_;
    bool far_ = false;  // distances are needed, not only their exponentials
    Side sides_[3][2];
    std::unique_ptr<std::uint32_t[]> knot_rows_,
        point_rows_;  // the number of each row of the caller, by place
    std::unique_ptr<Group[]> groups_;
    std::unique_ptr<double[]> gaps_, factors_;  // from each knot to the one below it
    std::unique_ptr<double[]> since_[2];        // by direction: downwards, upwards
    std::unique_ptr<std::int64_t[]> firsts_;
    std::unique_ptr<double[]> x_[2],
        distances_[2];  // of the points, from the knot below and from the knot above
};

inline RowSums* make_row_sums(const RowSet& rows, const RowSet& others, const Piece& piece, int threads) {
    if (piece.n_powers == 0) return new PieceSums<0>(rows, others, piece, threads);
    if (piece.n_powers <= 12) return new PieceSums<12>(rows, others, piece, threads);
    if (piece.n_powers <= 16) return new PieceSums<16>(rows, others, piece, threads);
    return new PieceSums<max_powers>(rows, others, piece, threads);
}

}  // namespace everypair::EVERYPAIR_ISA
