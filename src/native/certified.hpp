// One truncated term b2 d^2 over float32 scores, in two streaming passes and without a sort.
//
// Place every row on an axis of equal buckets: positives at u = s, negatives at u = s + shift (relative to the lowest
// positive). A pair counts where u_neg > u_pos, with d = u_neg - u_pos. The gradient of a negative is 2 b2 M(u), where
// M(u) = sum of (u - u_pos) over the positives below u; the positives mirror this.
//
// Pass 1 counts, per bucket and class, the rows and the sum of their fractions f in [0, 1) of the bucket. Both are integers
// (the fraction has 16 bits), so the order of rows and threads cannot matter. A sweep over the buckets turns them into M at
// each bucket's left edge and the number A of positives below: the positives of *other* buckets add exactly M + A w f.
// Pass 2 looks this line up and writes the gradient where the row stands.
//
// The rest, phi(f) = sum of (f - f_pos)+ over the c positives of the row's own bucket with mean fraction m, is convex with
// phi(0) = 0, phi(1) = c (1 - m). Jensen's inequality bounds it from below and its chord from above:
//
//     c (f - m)+  <=  phi(f)  <=  c (1 - m) f .
//
// The bounds differ most at f = m, by c m (1 - m). Their average, a line with one kink, is therefore wrong by at most
// w c m (1 - m) / 2; with c = 1 the lower bound is phi itself. A bucket whose bound exceeds `slack` times the largest M of the
// class, or four times its mean, is not certified: its rows are gathered and solved as a problem of their own, in finer buckets over the range
// they really occupy, and in the end by a sort. The mirror image (positives against negatives) has the same bound.
//
// The loss needs no pass of its own: sum of gradient x u over all rows is 2 b2 sum of d (u_neg - u_pos) = 2 x loss.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "pool.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

constexpr int block_rows = 256;  // the working arrays of a block stay in the first-level cache
constexpr double slack = 0x1p-21;
constexpr int most_buckets = 1 << 13;
constexpr int deepest = 3;
constexpr std::int64_t packed_rows = std::int64_t{1} << 24;  // 24 bits of count above 40 bits of sum

// The axis: place = (s - zero[class]) x scale. Places 1 .. buckets + 1 are buckets; what lies outside goes to the two end
// buckets 0 and buckets + 1.
struct Axis {
    double zero[2];  // by class: 0 negative, 1 positive
    double start;    // position u of place 1
    double scale;
    int buckets;

    double width() const { return 1 / scale; }
    double end() const { return start + buckets * width(); }
    double left(int bucket) const { return start + (bucket - 1) * width(); }
    std::size_t slots() const { return 2 * (static_cast<std::size_t>(buckets) + 2); }
};

// What lies outside an axis: positives below its start, negatives above its end.
struct Outside {
    double pos_count = 0, pos_moment = 0;  // moment: sum of (start - u_pos)
    double neg_count = 0, neg_moment = 0;  // moment: sum of (u_neg - end), where end is the last bucket's right edge
};

// Gradient in a bucket: c + d f + k (f - m)+.
struct Line {
    float c, d, k, m;
};

struct Row {
    float score;
    std::uint32_t index;
};

// A bucket that was not certified, with what surrounds it.
struct Heavy {
    int bucket;
    std::int64_t n_pos, n_neg;
    Outside outside;
};

// What all levels of one problem share.
struct Target {
    double factor;    // 2 b2 x the reduction's scale
    double centre;    // of the positions, to keep the products of the loss small
    double limit[2];  // by class: the error a row may have
    float* grad;      // may be null
};

inline Axis axis_over(const double base[2], double start, double end, int buckets) {
    // A hair longer than the range, so that the last negative falls into the last bucket.
    const double scale = buckets / (end - start) * (1 - 0x1p-40), back = start - 1 / scale;
    return {{base[0] + back, base[1] + back}, start, scale, buckets};
}

// Slot (2 x bucket + class) and fraction of each row of a block. Where `open`, the fraction of a row outside the axis goes on
// beyond [0, 1): there are lines to follow. Where not, nothing but zeros lie there.
template <bool open>
void locate(const Axis& axis, const float* scores, const std::uint8_t* classes, int count, std::int32_t* slots,
            float* fractions) {
    const double zero_neg = axis.zero[0], zero_pos = axis.zero[1], scale = axis.scale, last = axis.buckets + 1.5;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        const double p = (static_cast<double>(scores[i]) - (classes[i] ? zero_pos : zero_neg)) * scale;
        double q = p > 0 ? p : 0;
        q = q < last ? q : last;
        const std::int32_t bucket = static_cast<std::int32_t>(q);
        slots[i] = bucket * 2 + classes[i];
        fractions[i] = static_cast<float>((open ? p : q) - bucket);
    }
}

constexpr std::uint64_t one_row = std::uint64_t{1} << 40;

// One 64-bit word a slot: the count above, the sum of 16-bit fractions below.
inline void tally(const std::int32_t* slots, const float* fractions, int count, std::uint64_t* words) {
    std::int32_t fixed[block_rows];
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        const float f = fractions[i] > 0 ? fractions[i] : 0;
        fixed[i] = static_cast<std::int32_t>((f < 1 ? f : 1 - 0x1p-16f) * 65536);
    }
    for (int i = 0; i < count; ++i) words[slots[i]] += one_row + static_cast<std::uint32_t>(fixed[i]);
}

// What is known of each bucket, by class of its rows; lengths in bucket widths.
struct Profile {
    double *rows[2], *fractions[2];  // number of rows, sum of their fractions
    double *others[2], *moment[2];   // of the opposite class, beyond the bucket: below its left edge (class 0), above its right (1)
    double total;                    // sum of d over the pairs of different buckets

    Profile(Scratch& scratch, const Axis& axis) {
        for (double** array : {rows, fractions, others, moment})
            for (int side = 0; side < 2; ++side) array[side] = scratch.take<double>(axis.buckets + 2);
    }

    // The fraction was cut to 16 bits: half a unit back for each row.
    void read(const Axis& axis, const std::uint64_t* words) {
        for (int b = 0; b < axis.buckets + 2; ++b)
            for (int side = 0; side < 2; ++side) {
                const std::int64_t word = static_cast<std::int64_t>(words[2 * b + side]);
                rows[side][b] = static_cast<double>(word >> 40);
                fractions[side][b] = (static_cast<double>(word & (one_row - 1)) + 0.5 * rows[side][b]) * 0x1p-16;
            }
    }

    void read(const Axis& axis, const std::uint64_t* counts, const std::uint64_t* sums) {
        for (int b = 0; b < axis.buckets + 2; ++b)
            for (int side = 0; side < 2; ++side) {
                rows[side][b] = static_cast<double>(counts[2 * b + side]);
                fractions[side][b] = (static_cast<double>(sums[2 * b + side]) + 0.5 * rows[side][b]) * 0x1p-16;
            }
    }

    // Both sweeps in one loop: each is a chain of additions, and two chains run side by side.
    void sweep(const Axis& axis, const Outside& outside) {
        const int n = axis.buckets + 2;
        double below = outside.pos_count, below_moment = outside.pos_moment * axis.scale - below;
        double above = outside.neg_count, above_moment = outside.neg_moment * axis.scale - above;
        for (int b = 0, e = n - 1; b < n; ++b, --e) {
            others[0][b] = below;
            moment[0][b] = below_moment;
            below_moment += below + (rows[1][b] - fractions[1][b]);
            below += rows[1][b];
            others[1][e] = above;
            moment[1][e] = above_moment;
            above_moment += above + fractions[0][e];
            above += rows[0][e];
        }
        double sum = 0;
        for (int b = 0; b < n; ++b) sum += rows[0][b] * moment[0][b] + others[0][b] * fractions[0][b];
        total = sum * axis.width();
    }

    // The lines of all buckets; `factor` is the gradient's per unit of d.
    void draw(const Axis& axis, double factor, Line* lines) const {
        const double scale = factor * axis.width();
        for (int b = 0; b < axis.buckets + 2; ++b) {
            const double own = rows[1][b], sum = fractions[1][b];
            const double chord = own > 1 ? 0.5 : 0;  // its share in the average of the two bounds
            lines[2 * b] = {static_cast<float>(scale * moment[0][b]), static_cast<float>(scale * (others[0][b] + chord * (own - sum))),
                            static_cast<float>(scale * (1 - chord) * own), static_cast<float>(sum / (own > 0 ? own : 1))};
        }
        for (int b = 0; b < axis.buckets + 2; ++b) {
            const double own = rows[0][b], sum = fractions[0][b];
            const double chord = own > 1 ? 0.5 : 0;
            // The mirror image, with (m - f)+ = (f - m)+ - f + m.
            lines[2 * b + 1] = {static_cast<float>(-scale * (moment[1][b] + others[1][b] + sum)),
                                static_cast<float>(scale * (others[1][b] + (1 - chord) * own + chord * sum)),
                                static_cast<float>(-scale * (1 - chord) * own), static_cast<float>(sum / (own > 0 ? own : 1))};
        }
    }

    // The bound on the error of rows of class `side` in a bucket: own m (1 - m) / 2 widths, nothing for a single other row.
    double bound(int side, int b) const {
        const double own = rows[1 - side][b], sum = fractions[1 - side][b];
        return (rows[side][b] > 0) & (own > 1) ? 0.5 * sum * (own - sum) / own : 0;
    }

    // Takes the buckets that are not certified out of the lines and lists them.
    int list_heavy(const Axis& axis, const double limit[2], Line* lines, Heavy* heavy) const {
        const double width = axis.width(), most[2] = {limit[0] * axis.scale, limit[1] * axis.scale};
        int found = 0;
        for (int b = 1; b <= axis.buckets; ++b) {
            if (bound(0, b) <= most[0] && bound(1, b) <= most[1]) continue;
            lines[2 * b] = lines[2 * b + 1] = {0, 0, 0, 0};
            heavy[found++] = {b, static_cast<std::int64_t>(rows[1][b]), static_cast<std::int64_t>(rows[0][b]),
                              {others[0][b], moment[0][b] * width, others[1][b], moment[1][b] * width}};
        }
        return found;
    }
};

#if defined(__GNUC__)
// Four rows at a time: a line is one 16-byte load, and a transposition turns four lines into vectors of c, d, k and m.
inline void look_up(const Line* lines, const std::int32_t* slots, const float* fractions, int count, float* grad) {
    typedef float Four __attribute__((vector_size(16)));
    const Four* table = reinterpret_cast<const Four*>(lines);
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        const Four w = table[slots[i]], x = table[slots[i + 1]], y = table[slots[i + 2]], z = table[slots[i + 3]];
        const Four cd0 = __builtin_shufflevector(w, x, 0, 4, 1, 5), km0 = __builtin_shufflevector(w, x, 2, 6, 3, 7);
        const Four cd1 = __builtin_shufflevector(y, z, 0, 4, 1, 5), km1 = __builtin_shufflevector(y, z, 2, 6, 3, 7);
        const Four c = __builtin_shufflevector(cd0, cd1, 0, 1, 4, 5), d = __builtin_shufflevector(cd0, cd1, 2, 3, 6, 7);
        const Four k = __builtin_shufflevector(km0, km1, 0, 1, 4, 5), m = __builtin_shufflevector(km0, km1, 2, 3, 6, 7);
        Four f;
        std::memcpy(&f, fractions + i, sizeof f);
        const Four past = f - m;
        const Four result = c + d * f + k * (past > 0.0f ? past : past - past);
        std::memcpy(grad + i, &result, sizeof result);
    }
    for (; i < count; ++i) {
        const float past = fractions[i] - lines[slots[i]].m;
        grad[i] = lines[slots[i]].c + lines[slots[i]].d * fractions[i] + lines[slots[i]].k * (past > 0 ? past : 0);
    }
}
#else
inline void look_up(const Line* lines, const std::int32_t* slots, const float* fractions, int count, float* grad) {
    for (int i = 0; i < count; ++i) {
        const Line line = lines[slots[i]];
        const float past = fractions[i] - line.m;
        grad[i] = line.c + line.d * fractions[i] + line.k * (past > 0 ? past : 0);
    }
}
#endif

// Gradients of a block; returns the sum of gradient x (position - centre).
inline double evaluate(const Axis& axis, const Target& target, const Line* lines, const std::int32_t* slots,
                       const float* fractions, int count, float* grad) {
    look_up(lines, slots, fractions, count, grad);
    constexpr int lanes = 8;
    double sums[lanes] = {};
    const double origin = (target.centre - axis.start) * axis.scale + 1;
    const auto product = [&](int i) { return static_cast<double>(grad[i]) * ((slots[i] >> 1) - origin + fractions[i]); };
    int i = 0;
    for (; i + lanes <= count; i += lanes)
        for (int k = 0; k < lanes; ++k) sums[k] += product(i + k);
    for (; i < count; ++i) sums[0] += product(i);
    double sum = 0;
    for (int k = 0; k < lanes; ++k) sum += sums[k];
    return sum * axis.width();
}

// Blocks of a list of rows of one class.
template <class Use>
void by_blocks(const Axis& axis, const Row* rows, std::int64_t n, std::uint8_t positive, Use&& use) {
    float scores[block_rows];
    std::uint8_t classes[block_rows];
    std::int32_t slots[block_rows];
    float fractions[block_rows];
    std::fill(classes, classes + block_rows, positive);
    for (std::int64_t i = 0; i < n; i += block_rows) {
        const int count = static_cast<int>(std::min<std::int64_t>(block_rows, n - i));
        for (int k = 0; k < count; ++k) scores[k] = rows[i + k].score;
        locate<true>(axis, scores, classes, count, slots, fractions);
        use(rows + i, slots, fractions, count);
    }
}

// Exact, by sorting both lists: the last resort, and the quickest way for a handful of rows.
inline double settle(const double base[2], Row* pos, std::int64_t n_pos, Row* neg, std::int64_t n_neg, double low,
                     double high, const Outside& outside, const Target& target) {
    const auto before = [](const Row& a, const Row& b) { return a.score < b.score || (a.score == b.score && a.index < b.index); };
    std::sort(pos, pos + n_pos, before);
    std::sort(neg, neg + n_neg, before);
    const auto write = [&](const Row& row, double gradient) {
        if (target.grad) target.grad[row.index] = static_cast<float>(gradient);
    };
    double sum = 0, at = low, count = outside.pos_count, moment = outside.pos_moment;
    for (std::int64_t i = 0, j = 0; i < n_neg; ++i) {
        const double u = neg[i].score - base[0];
        for (; j < n_pos && pos[j].score - base[1] < u; ++j) {
            const double v = pos[j].score - base[1];
            moment += count * (v - at);
            at = v;
            count += 1;
        }
        moment += count * (u - at);
        at = u;
        write(neg[i], target.factor * moment);
        sum += target.factor * moment * (u - target.centre);
    }
    at = high, count = outside.neg_count, moment = outside.neg_moment;
    for (std::int64_t i = n_pos - 1, j = n_neg - 1; i >= 0; --i) {
        const double u = pos[i].score - base[1];
        for (; j >= 0 && neg[j].score - base[0] > u; --j) {
            const double v = neg[j].score - base[0];
            moment += count * (at - v);
            at = v;
            count += 1;
        }
        moment += count * (at - u);
        at = u;
        write(pos[i], -target.factor * moment);
        sum -= target.factor * moment * (u - target.centre);
    }
    return sum;
}

inline int buckets_for(double n_pos, double n_neg, double range, const double limit[2], int most) {
    // Rows spread evenly leave w c / 8 with w = range / B, c = n / B; twice that for what is not even.
    const double need = std::sqrt(range / 4 * std::max(n_pos / limit[0], n_neg / limit[1]));
    int buckets = 1;
    while (buckets < most && buckets < need) buckets *= 2;
    return buckets;
}

// The rows of one heavy bucket between `low` and `high`; returns their sum of gradient x (position - centre).
inline double solve_rows(const double base[2], Row* pos, std::int64_t n_pos, Row* neg, std::int64_t n_neg, double low,
                         double high, const Outside& outside, const Target& target, int depth) {
    double first = high, last = low;
    for (std::int64_t i = 0; i < n_pos; ++i) first = std::min(first, pos[i].score - base[1]);
    for (std::int64_t i = 0; i < n_neg; ++i) last = std::max(last, neg[i].score - base[0]);
    const std::int64_t n = n_pos + n_neg;
    // Rows that only touch (ties) need one bucket of any width.
    if (last <= first) last = first + (high - low);
    const int most = static_cast<int>(std::min<std::int64_t>(most_buckets, n));
    const int buckets = buckets_for(static_cast<double>(n_pos), static_cast<double>(n_neg), last - first, target.limit, most);
    if (n < 256 || depth == deepest || (last - first) < (high - low) * 0x1p-30)
        return settle(base, pos, n_pos, neg, n_neg, low, high, outside, target);

    const Axis axis = axis_over(base, first, last, buckets);
    const Outside around{outside.pos_count, outside.pos_moment + outside.pos_count * (first - low), outside.neg_count,
                         outside.neg_moment + outside.neg_count * (high - axis.end())};
    Scratch scratch;
    std::uint64_t* words = scratch.take<std::uint64_t>(axis.slots());
    Line* lines = scratch.take<Line>(axis.slots());
    Heavy* heavy = scratch.take<Heavy>(buckets);
    std::fill(words, words + axis.slots(), 0);
    const auto count_rows = [&](const Row*, const std::int32_t* slots, const float* fractions, int count) {
        tally(slots, fractions, count, words);
    };
    by_blocks(axis, pos, n_pos, 1, count_rows);
    by_blocks(axis, neg, n_neg, 0, count_rows);
    Profile profile(scratch, axis);
    profile.read(axis, words);
    profile.sweep(axis, around);
    profile.draw(axis, target.factor, lines);
    const int n_heavy = profile.list_heavy(axis, target.limit, lines, heavy);

    std::int64_t n_rest = 0;
    std::int64_t* next = scratch.take<std::int64_t>(n_heavy ? axis.slots() : 0);
    if (n_heavy) {
        std::fill(next, next + axis.slots(), -1);
        for (int h = 0; h < n_heavy; ++h) {
            next[2 * heavy[h].bucket + 1] = n_rest;
            next[2 * heavy[h].bucket] = n_rest + heavy[h].n_pos;
            n_rest += heavy[h].n_pos + heavy[h].n_neg;
        }
    }
    Row* rest = scratch.take<Row>(static_cast<std::size_t>(n_rest));
    double sum = 0;
    const auto evaluate_rows = [&](const Row* rows, const std::int32_t* slots, const float* fractions, int count) {
        float grad[block_rows];
        sum += evaluate(axis, target, lines, slots, fractions, count, grad);
        if (target.grad)
            for (int i = 0; i < count; ++i) target.grad[rows[i].index] = grad[i];
        if (n_heavy)
            for (int i = 0; i < count; ++i)
                if (next[slots[i]] >= 0) rest[next[slots[i]]++] = rows[i];
    };
    by_blocks(axis, pos, n_pos, 1, evaluate_rows);
    by_blocks(axis, neg, n_neg, 0, evaluate_rows);
    for (int h = 0; h < n_heavy; ++h) {
        const double left = axis.left(heavy[h].bucket);
        sum += solve_rows(base, rest, heavy[h].n_pos, rest + heavy[h].n_pos, heavy[h].n_neg, left, left + axis.width(),
                          heavy[h].outside, target, depth + 1);
        rest += heavy[h].n_pos + heavy[h].n_neg;
    }
    return sum;
}

// The whole batch, rows begin .. begin + n - 1. Returns the value: b2 x sum of d^2 x the reduction's scale.
// Asks for min_pos < max_neg + shift, both classes, and a range that is an ordinary number.
inline double certified_term(const float* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found,
                             double shift, double factor, float* grad, int threads) {
    const double base[2] = {found.min_pos - shift, found.min_pos};
    const double range = found.max_neg - base[0];
    const Axis axis = axis_over(base, 0, range, n < 30000 ? 2048 : 4096);
    const std::size_t slots = axis.slots();
    const int tasks = task_count(n);
    const int teams = std::max(1, std::min(threads, tasks));  // each team has its own counts and a fixed stretch of tasks
    const auto first_row = [&](int team) { return std::min(n, (static_cast<std::int64_t>(tasks) * team / teams) * task_rows); };

    Scratch scratch;
    std::uint64_t* words = scratch.take<std::uint64_t>(slots * teams);
    const bool wide = n >= packed_rows;
    std::uint64_t* counts = scratch.take<std::uint64_t>(wide ? slots * teams : 0);
    std::uint64_t* sums = scratch.take<std::uint64_t>(wide ? slots * teams : 0);
    parallel(teams, teams, [&](int team) {
        std::uint64_t* mine = words + team * slots;
        std::uint64_t* my_counts = counts + team * slots;
        std::uint64_t* my_sums = sums + team * slots;
        std::fill(mine, mine + slots, 0);
        if (wide) std::fill(my_counts, my_counts + slots, 0), std::fill(my_sums, my_sums + slots, 0);
        std::int32_t where[block_rows];
        float fractions[block_rows];
        const std::int64_t begin = first_row(team), end = first_row(team + 1);
        const std::int64_t spill = packed_rows / 2;
        for (std::int64_t i = begin; i < end; i += block_rows) {
            const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
            locate<false>(axis, scores + i, classes + i, count, where, fractions);
            tally(where, fractions, count, mine);
            if (wide && ((i - begin) % spill == spill - block_rows || i + count == end)) {
                for (std::size_t slot = 0; slot < slots; ++slot) {
                    my_counts[slot] += mine[slot] >> 40;
                    my_sums[slot] += mine[slot] & (one_row - 1);
                    mine[slot] = 0;
                }
            }
        }
    });
    // From here on the first team's counts are everybody's; the others keep the number of rows before them, for gathering.
    const auto team_count = [&](int team, std::size_t slot) {
        return static_cast<std::int64_t>(wide ? counts[team * slots + slot] : words[team * slots + slot] >> 40);
    };
    std::uint64_t* merged = scratch.take<std::uint64_t>(slots);
    std::uint64_t* merged_sums = scratch.take<std::uint64_t>(wide ? slots : 0);
    for (std::size_t slot = 0; slot < slots; ++slot) {
        merged[slot] = 0;
        for (int team = 0; team < teams; ++team) merged[slot] += (wide ? counts : words)[team * slots + slot];
    }
    if (wide)
        for (std::size_t slot = 0; slot < slots; ++slot) {
            merged_sums[slot] = 0;
            for (int team = 0; team < teams; ++team) merged_sums[slot] += sums[team * slots + slot];
        }
    Profile profile(scratch, axis);
    if (wide) profile.read(axis, merged, merged_sums);
    else profile.read(axis, merged);
    profile.sweep(axis, {});
    Line* lines = scratch.take<Line>(slots);
    profile.draw(axis, factor, lines);
    const int top = axis.buckets + 1;
    const auto limit = [&](double active, double greatest) {
        return slack * std::min(greatest, 4 * profile.total / active);
    };
    const Target target{factor, range / 2,
                        {limit(static_cast<double>(n - found.n_pos) - profile.rows[0][0], profile.moment[0][top] * axis.width()),
                         limit(static_cast<double>(found.n_pos) - profile.rows[1][top],
                               (profile.moment[1][0] + profile.others[1][0]) * axis.width())},
                        grad};
    Heavy* heavy = scratch.take<Heavy>(axis.buckets);
    const int n_heavy = profile.list_heavy(axis, target.limit, lines, heavy);

    // Where each team puts its rows of the heavy buckets: in the order of the rows, whatever the number of teams.
    std::int64_t n_rest = 0;
    std::int64_t* next = scratch.take<std::int64_t>(n_heavy ? slots * teams : 0);
    if (n_heavy) {
        std::fill(next, next + slots * teams, -1);
        for (int h = 0; h < n_heavy; ++h)
            for (const int side : {1, 0})
                for (int team = 0; team < teams; ++team) {
                    const std::size_t slot = 2 * static_cast<std::size_t>(heavy[h].bucket) + side;
                    next[team * slots + slot] = n_rest;
                    n_rest += team_count(team, slot);
                }
    }
    Row* rest = scratch.take<Row>(static_cast<std::size_t>(n_rest));
    double* parts = scratch.take<double>(tasks + n_heavy);
    parallel(teams, teams, [&](int team) {
        std::int32_t where[block_rows];
        float fractions[block_rows], spare[block_rows];
        std::int64_t* my_next = next + team * slots;
        for (std::int64_t begin = first_row(team); begin < first_row(team + 1); begin = task_end(n, begin)) {
            const std::int64_t end = task_end(n, begin);
            double sum = 0;
            for (std::int64_t i = begin; i < end; i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
                locate<false>(axis, scores + i, classes + i, count, where, fractions);
                sum += evaluate(axis, target, lines, where, fractions, count, grad ? grad + i : spare);
                if (n_heavy)
                    for (int k = 0; k < count; ++k)
                        if (my_next[where[k]] >= 0)
                            rest[my_next[where[k]]++] = {scores[i + k], static_cast<std::uint32_t>(i + k)};
            }
            parts[begin / task_rows] = sum;
        }
    });
    std::int64_t* begins = scratch.take<std::int64_t>(n_heavy);
    std::int64_t begin = 0;
    for (int h = 0; h < n_heavy; ++h) begins[h] = begin, begin += heavy[h].n_pos + heavy[h].n_neg;
    parallel(n_rest < task_rows ? 1 : threads, n_heavy, [&](int h) {
        Row* rows = rest + begins[h];
        const double left = axis.left(heavy[h].bucket);
        parts[tasks + h] = solve_rows(base, rows, heavy[h].n_pos, rows + heavy[h].n_pos, heavy[h].n_neg, left,
                                      left + axis.width(), heavy[h].outside, target, 1);
    });
    double sum = 0;
    for (int t = 0; t < tasks + n_heavy; ++t) sum += parts[t];
    return sum / 2;
}

}  // namespace everypair::EVERYPAIR_ISA
