// One truncated term b2 d^2 over float32 scores, in two streaming passes and without a sort.
//
// Place every row on an axis of equal buckets: positives at u = s, negatives at u = s + shift (relative to the lowest
// positive). A pair counts where u_neg > u_pos, with d = u_neg - u_pos. The gradient of a negative is 2 b2 M(u), where
// M(u) = sum of (u - u_pos) over the positives below u; the positives mirror this.
//
// Pass 1 counts, per bucket and class, the rows and the sum of their fractions f in [0, 1) of the bucket. Both are integers
// (the fraction has 24 bits), so the order of rows and threads cannot matter. A sweep over the buckets turns them into M at
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
#include <limits>
#include <new>

#include "pool.hpp"
#include "survey.hpp"

namespace everypair::EVERYPAIR_ISA {

constexpr int block_rows = 256;  // the working arrays of a block stay in the first-level cache
constexpr double slack = 0x1p-21;
constexpr int most_buckets = 1 << 13;
constexpr int deepest = 3;
constexpr std::int64_t packed_rows = std::int64_t{1} << 20;  // 20 bits of count above 44 bits of sum

// Positions u of scores: positives at s - origin, negatives at s - origin + shift. Subtracted in this order, an offset of all
// scores costs no digits.
struct Scale {
    double origin, shift;

    double u(float score, int side) const { return (score - origin) + (side ? 0 : shift); }
};

// The axis: place = (s - origin + offset[class]) x scale. Places 1 .. buckets + 1 are buckets; what lies outside goes to the two
// end buckets 0 and buckets + 1.
struct Axis {
    double origin, offset[2];  // by class: 0 negative, 1 positive
    double start;              // position u of place 1
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
template <class T>
struct Line {
    T c, d, k, m;
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

inline Axis axis_over(const Scale& positions, double start, double end, int buckets) {
    // A hair longer than the range, so that the last negative falls into the last bucket.
    const double scale = buckets / (end - start) * (1 - 0x1p-40), forward = 1 / scale - start;
    return {positions.origin, {positions.shift + forward, forward}, start, scale, buckets};
}

// Slot (2 x bucket + class) and fraction of each row of a block. Where `open`, the fraction of a row outside the axis goes on
// beyond [0, 1): there are lines to follow. Where not, nothing but zeros lie there.
template <bool open>
void locate(const Axis& axis, const float* scores, const std::uint8_t* classes, int count, std::int32_t* slots,
            float* fractions) {
    const double origin = axis.origin, of_neg = axis.offset[0], of_pos = axis.offset[1];
    const double scale = axis.scale, last = axis.buckets + 1.5;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        const double p = ((static_cast<double>(scores[i]) - origin) + (classes[i] ? of_pos : of_neg)) * scale;
        double q = p > 0 ? p : 0;
        q = q < last ? q : last;
        const std::int32_t bucket = static_cast<std::int32_t>(q);
        slots[i] = bucket * 2 + classes[i];
        fractions[i] = static_cast<float>((open ? p : q) - bucket);
    }
}

constexpr std::uint64_t one_row = std::uint64_t{1} << 44;

// One 64-bit word a slot: the count above, the sum of 24-bit fractions below.
inline void tally(const std::int32_t* slots, const float* fractions, int count, std::uint64_t* words) {
    std::int32_t fixed[block_rows];
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        const float f = fractions[i] > 0 ? fractions[i] : 0;
        fixed[i] = static_cast<std::int32_t>((f < 1 ? f : 1 - 0x1p-24f) * 0x1p24f);
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

    void read(const Axis& axis, const std::uint64_t* words) {
        for (int b = 0; b < axis.buckets + 2; ++b)
            for (int side = 0; side < 2; ++side) {
                const std::int64_t word = static_cast<std::int64_t>(words[2 * b + side]);
                rows[side][b] = static_cast<double>(word >> 44);
                fractions[side][b] = static_cast<double>(word & (one_row - 1)) * 0x1p-24;
            }
    }

    void read(const Axis& axis, const std::uint64_t* counts, const std::uint64_t* sums) {
        for (int b = 0; b < axis.buckets + 2; ++b)
            for (int side = 0; side < 2; ++side) {
                rows[side][b] = static_cast<double>(counts[2 * b + side]);
                fractions[side][b] = static_cast<double>(sums[2 * b + side]) * 0x1p-24;
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
    template <class T>
    void draw(const Axis& axis, double factor, Line<T>* lines) const {
        const double scale = factor * axis.width();
#pragma omp simd
        for (int b = 0; b < axis.buckets + 2; ++b) {
            const double own = rows[1][b], sum = fractions[1][b];
            const double chord = own > 1 ? 0.5 : 0;  // its share in the average of the two bounds
            lines[2 * b] = {static_cast<T>(scale * moment[0][b]), static_cast<T>(scale * (others[0][b] + chord * (own - sum))),
                            static_cast<T>(scale * (1 - chord) * own), static_cast<T>(sum / (own > 0 ? own : 1))};
        }
#pragma omp simd
        for (int b = 0; b < axis.buckets + 2; ++b) {
            const double own = rows[0][b], sum = fractions[0][b];
            const double chord = own > 1 ? 0.5 : 0;
            // The mirror image, with (m - f)+ = (f - m)+ - f + m.
            lines[2 * b + 1] = {static_cast<T>(-scale * (moment[1][b] + others[1][b] + sum)),
                                static_cast<T>(scale * (others[1][b] + (1 - chord) * own + chord * sum)),
                                static_cast<T>(-scale * (1 - chord) * own), static_cast<T>(sum / (own > 0 ? own : 1))};
        }
    }

    // Does the error of some row in buckets from .. to - 1 exceed the limit (in widths)? It is own m (1 - m) / 2 at most, with
    // own m the sum of fractions; nothing where there is a single other row. Neither divisions nor branches: this vectorises.
    bool exceeds(const double most[2], int from, int to) const {
        int bad = 0;
        for (int side = 0; side < 2; ++side) {
            const double *mine = rows[side], *other = rows[1 - side], *sums = fractions[1 - side], limit = 2 * most[side];
#pragma omp simd reduction(| : bad)
            for (int b = from; b < to; ++b)
                bad |= (mine[b] > 0) & (other[b] > 1) & (sums[b] * (other[b] - sums[b]) > limit * other[b]);
        }
        return bad;
    }

    // Takes the buckets that are not certified out of the lines, leaving NaN there, and lists them.
    int list_heavy(const Axis& axis, const double limit[2], Line<float>* lines, Heavy* heavy) const {
        const double width = axis.width(), most[2] = {limit[0] * axis.scale, limit[1] * axis.scale};
        const float none = std::numeric_limits<float>::quiet_NaN();
        constexpr int few = 32;
        int found = 0;
        for (int b = 1; b <= axis.buckets; ++b) {
            if (b % few == 1 && !exceeds(most, b, std::min(b + few, axis.buckets + 1))) {
                b += few - 1;
                continue;
            }
            if (!exceeds(most, b, b + 1)) continue;
            lines[2 * b] = lines[2 * b + 1] = {none, 0, 0, 0};
            heavy[found++] = {b, static_cast<std::int64_t>(rows[1][b]), static_cast<std::int64_t>(rows[0][b]),
                              {others[0][b], moment[0][b] * width, others[1][b], moment[1][b] * width}};
        }
        return found;
    }
};

// Four rows at a time: a line is one 16-byte load, and a transposition turns four lines into vectors of c, d, k and m.
inline void look_up(const Line<float>* lines, const std::int32_t* slots, const float* fractions, int count, float* grad) {
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

// Gradients of a block; returns the sum of gradient x (position - centre). Rows without a line (they are few) go to `set_aside`.
template <class SetAside>
double evaluate(const Axis& axis, const Target& target, const Line<float>* lines, const std::int32_t* slots,
                const float* fractions, int count, float* grad, SetAside&& set_aside) {
    look_up(lines, slots, fractions, count, grad);
    constexpr int few = 16;
    for (int from = 0; from < count; from += few) {
        const int to = std::min(count, from + few);
        int missing = 0;
#pragma omp simd reduction(| : missing)
        for (int i = from; i < to; ++i) missing |= grad[i] != grad[i];
        if (missing)
            for (int i = from; i < to; ++i)
                if (grad[i] != grad[i]) {
                    set_aside(i);
                    grad[i] = 0;
                }
    }
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
inline double settle(const Scale& positions, Row* pos, std::int64_t n_pos, Row* neg, std::int64_t n_neg, double low,
                     double high, const Outside& outside, const Target& target) {
    const auto before = [](const Row& a, const Row& b) { return a.score < b.score || (a.score == b.score && a.index < b.index); };
    std::sort(pos, pos + n_pos, before);
    std::sort(neg, neg + n_neg, before);
    const auto write = [&](const Row& row, double gradient) {
        if (target.grad) target.grad[row.index] = static_cast<float>(gradient);
    };
    double sum = 0, at = low, count = outside.pos_count, moment = outside.pos_moment;
    for (std::int64_t i = 0, j = 0; i < n_neg; ++i) {
        const double u = positions.u(neg[i].score, 0);
        for (; j < n_pos && positions.u(pos[j].score, 1) < u; ++j) {
            const double v = positions.u(pos[j].score, 1);
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
        const double u = positions.u(pos[i].score, 1);
        for (; j >= 0 && positions.u(neg[j].score, 0) > u; --j) {
            const double v = positions.u(neg[j].score, 0);
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
inline double solve_rows(const Scale& positions, Row* pos, std::int64_t n_pos, Row* neg, std::int64_t n_neg, double low,
                         double high, const Outside& outside, const Target& target, int depth) {
    double first = high, last = low;
    for (std::int64_t i = 0; i < n_pos; ++i) first = std::min(first, positions.u(pos[i].score, 1));
    for (std::int64_t i = 0; i < n_neg; ++i) last = std::max(last, positions.u(neg[i].score, 0));
    const std::int64_t n = n_pos + n_neg;
    // Rows that only touch (ties) need one bucket of any width.
    if (last <= first) last = first + (high - low);
    const int most = static_cast<int>(std::min<std::int64_t>(4 * most_buckets, n / 2));
    const int buckets = buckets_for(static_cast<double>(n_pos), static_cast<double>(n_neg), last - first, target.limit, most);
    if (n < 256 || depth == deepest || (last - first) < (high - low) * 0x1p-30)
        return settle(positions, pos, n_pos, neg, n_neg, low, high, outside, target);

    const Axis axis = axis_over(positions, first, last, buckets);
    const Outside around{outside.pos_count, outside.pos_moment + outside.pos_count * (first - low), outside.neg_count,
                         outside.neg_moment + outside.neg_count * (high - axis.end())};
    Scratch scratch;
    std::uint64_t* words = scratch.take<std::uint64_t>(axis.slots());
    Line<float>* lines = scratch.take<Line<float>>(axis.slots());
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
    std::int64_t* next = scratch.take<std::int64_t>(axis.slots());
    for (int h = 0; h < n_heavy; ++h) {
        next[2 * heavy[h].bucket + 1] = n_rest;
        next[2 * heavy[h].bucket] = n_rest + heavy[h].n_pos;
        n_rest += heavy[h].n_pos + heavy[h].n_neg;
    }
    Row* rest = scratch.take<Row>(static_cast<std::size_t>(n_rest));
    double sum = 0;
    const auto evaluate_rows = [&](const Row* rows, const std::int32_t* slots, const float* fractions, int count) {
        float grad[block_rows];
        sum += evaluate(axis, target, lines, slots, fractions, count, grad, [&](int i) { rest[next[slots[i]]++] = rows[i]; });
        if (target.grad)
            for (int i = 0; i < count; ++i) target.grad[rows[i].index] = grad[i];
    };
    by_blocks(axis, pos, n_pos, 1, evaluate_rows);
    by_blocks(axis, neg, n_neg, 0, evaluate_rows);
    for (int h = 0; h < n_heavy; ++h) {
        const double left = axis.left(heavy[h].bucket);
        sum += solve_rows(positions, rest, heavy[h].n_pos, rest + heavy[h].n_pos, heavy[h].n_neg, left, left + axis.width(),
                          heavy[h].outside, target, depth + 1);
        rest += heavy[h].n_pos + heavy[h].n_neg;
    }
    return sum;
}

// Pass 1 over a whole batch: one axis, its counts and its profile.
class Counted {
public:
    Counted(Scratch& scratch, const float* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found, double shift,
            int buckets, int threads)
        : positions{found.min_pos, shift},
          range(found.max_neg - found.min_pos + shift),
          axis(axis_over(positions, 0, range, buckets)),
          profile(scratch, axis),
          n_(n),
          tasks_(task_count(n)),
          teams(std::max(1, std::min(threads, tasks_))) {
        const std::size_t slots = axis.slots();
        const bool wide = n >= packed_rows;
        words_ = scratch.take<std::uint64_t>(slots * teams);
        counts_ = wide ? scratch.take<std::uint64_t>(slots * teams) : nullptr;
        sums_ = wide ? scratch.take<std::uint64_t>(slots * teams) : nullptr;
        parallel(teams, teams, [&](int team) {
            std::uint64_t* words = words_ + team * slots;
            std::uint64_t* counts = counts_ + team * slots;
            std::uint64_t* sums = sums_ + team * slots;
            std::fill(words, words + slots, 0);
            if (wide) std::fill(counts, counts + slots, 0), std::fill(sums, sums + slots, 0);
            std::int32_t where[block_rows];
            float fractions[block_rows];
            const std::int64_t begin = first_row(team), end = first_row(team + 1), spill = packed_rows / 2;
            for (std::int64_t i = begin; i < end; i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
                locate<false>(axis, scores + i, classes + i, count, where, fractions);
                tally(where, fractions, count, words);
                if (wide && ((i - begin) % spill == spill - block_rows || i + count == end))
                    for (std::size_t slot = 0; slot < slots; ++slot) {
                        counts[slot] += words[slot] >> 44;
                        sums[slot] += words[slot] & (one_row - 1);
                        words[slot] = 0;
                    }
            }
        });
        const auto merged = [&](const std::uint64_t* by_team) {
            if (teams == 1) return by_team;
            std::uint64_t* all = scratch.take<std::uint64_t>(slots);
            for (std::size_t slot = 0; slot < slots; ++slot) {
                all[slot] = 0;
                for (int team = 0; team < teams; ++team) all[slot] += by_team[team * slots + slot];
            }
            return static_cast<const std::uint64_t*>(all);
        };
        if (wide) profile.read(axis, merged(counts_), merged(sums_));
        else profile.read(axis, merged(words_));
        profile.sweep(axis, {});
    }

    // Each team of one thread has counts of its own and a fixed stretch of tasks.
    std::int64_t first_row(int team) const { return std::min(n_, static_cast<std::int64_t>(tasks_) * team / teams * task_rows); }
    std::int64_t rows_of(int team, std::size_t slot) const {
        const std::size_t at = team * axis.slots() + slot;
        return static_cast<std::int64_t>(counts_ ? counts_[at] : words_[at] >> 44);
    }
    // By class: rows that meet any other, and the greatest sum of d that one of them meets.
    double active(int side) const {
        double sum = 0;
        for (int b = 1; b <= axis.buckets; ++b) sum += profile.rows[side][b];
        return sum;
    }
    double greatest(int side) const {
        return (side ? profile.moment[1][0] + profile.others[1][0] : profile.moment[0][axis.buckets + 1]) * axis.width();
    }

    const Scale positions;
    const double range;
    const Axis axis;
    Profile profile;

private:
    std::int64_t n_;
    int tasks_;

public:
    const int teams;

private:
    std::uint64_t *words_, *counts_, *sums_;
};

// One term over a whole batch. Returns the value: b2 x sum of d^2 x the reduction's scale; factor is 2 b2 x that scale.
// Asks for a positive range, an ordinary number, and both classes.
inline double certified_term(const float* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found,
                             double shift, double factor, float* grad, int threads) {
    Scratch scratch;
    const Counted counted(scratch, scores, classes, n, found, shift, n < 30000 ? 2048 : 4096, threads);
    const Axis& axis = counted.axis;
    const std::size_t slots = axis.slots();
    const int teams = counted.teams, tasks = task_count(n);

    Line<float>* lines = scratch.take<Line<float>>(slots);
    counted.profile.draw(axis, factor, lines);
    const auto limit = [&](int side) {
        return slack * std::min(counted.greatest(side), 4 * counted.profile.total / counted.active(side));
    };
    const Target target{factor, counted.range / 2, {limit(0), limit(1)}, grad};
    Heavy* heavy = scratch.take<Heavy>(axis.buckets);
    const int n_heavy = counted.profile.list_heavy(axis, target.limit, lines, heavy);

    // Where each team puts its rows of the heavy buckets: in the order of the rows, whatever the number of teams.
    std::int64_t n_rest = 0;
    std::int64_t* next = scratch.take<std::int64_t>(n_heavy ? slots * teams : 0);
    for (int h = 0; h < n_heavy; ++h)
        for (const int side : {1, 0})
            for (int team = 0; team < teams; ++team) {
                const std::size_t slot = 2 * static_cast<std::size_t>(heavy[h].bucket) + side;
                next[team * slots + slot] = n_rest;
                n_rest += counted.rows_of(team, slot);
            }
    Row* rest = scratch.take<Row>(static_cast<std::size_t>(n_rest));
    double* parts = scratch.take<double>(tasks + n_heavy);
    parallel(teams, teams, [&](int team) {
        std::int32_t where[block_rows];
        float fractions[block_rows], spare[block_rows];
        std::int64_t* my_next = next + team * slots;
        for (std::int64_t begin = counted.first_row(team); begin < counted.first_row(team + 1); begin = task_end(n, begin)) {
            const std::int64_t end = task_end(n, begin);
            double sum = 0;
            for (std::int64_t i = begin; i < end; i += block_rows) {
                const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
                locate<false>(axis, scores + i, classes + i, count, where, fractions);
                sum += evaluate(axis, target, lines, where, fractions, count, grad ? grad + i : spare, [&](int k) {
                    rest[my_next[where[k]]++] = {scores[i + k], static_cast<std::uint32_t>(i + k)};
                });
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
        parts[tasks + h] = solve_rows(counted.positions, rows, heavy[h].n_pos, rows + heavy[h].n_pos, heavy[h].n_neg, left,
                                      left + axis.width(), heavy[h].outside, target, 1);
    });
    double sum = 0;
    for (int t = 0; t < tasks + n_heavy; ++t) sum += parts[t];
    return sum / 2;
}

// Several terms over a whole batch, added up in double because they may nearly cancel. Returns false, and leaves the work
// to a plan that is exact, where a bucket of any axis is not certified.
inline bool certified_terms(const float* scores, const std::uint8_t* classes, std::int64_t n, const Survey& found,
                            const Term* terms, int n_terms, double scale, float* grad, int threads, double& value) {
    constexpr int most_terms = 4;
    // With few rows in a class, some bucket of them is sure to fail.
    if (n_terms > most_terms || std::min(found.n_pos, n - found.n_pos) < 4096) return false;
    Scratch scratch;
    const Counted* axes[most_terms];
    Line<double>* lines[most_terms];
    double total = 0, active[2] = {0, 0}, widest = 0;
    for (int j = 0; j < n_terms; ++j) {
        axes[j] = new (scratch.take<Counted>(1))
            Counted(scratch, scores, classes, n, found, terms[j].shift, most_buckets, threads);
        lines[j] = scratch.take<Line<double>>(axes[j]->axis.slots());
        axes[j]->profile.draw(axes[j]->axis, 2 * terms[j].b2 * scale, lines[j]);
        total += terms[j].b2 * axes[j]->profile.total;
        for (int side = 0; side < 2; ++side) active[side] = std::max(active[side], axes[j]->active(side));
        widest = std::max(widest, std::abs(terms[j].b2));
    }
    const double share = 2 * slack * std::abs(total) / (widest * n_terms), limit[2] = {share / active[0], share / active[1]};
    for (int j = 0; j < n_terms; ++j) {
        const Axis& axis = axes[j]->axis;
        const double most[2] = {limit[0] * axis.scale, limit[1] * axis.scale};
        if (axes[j]->profile.exceeds(most, 1, axis.buckets + 1)) return false;
    }

    const int tasks = task_count(n);
    double* parts = scratch.take<double>(tasks);
    parallel(threads, tasks, [&](int t) {
        std::int32_t where[block_rows];
        float fractions[block_rows];
        double sums[block_rows], part = 0;
        const std::int64_t end = task_end(n, t * task_rows);
        for (std::int64_t i = t * task_rows; i < end; i += block_rows) {
            const int count = static_cast<int>(std::min<std::int64_t>(block_rows, end - i));
            std::fill(sums, sums + count, 0.0);
            for (int j = 0; j < n_terms; ++j) {
                const Axis& axis = axes[j]->axis;
                const double width = axis.width(), origin = axis.buckets / 2 + 1;
                locate<false>(axis, scores + i, classes + i, count, where, fractions);
                for (int k = 0; k < count; ++k) {
                    const Line<double>& line = lines[j][where[k]];
                    const double f = fractions[k], past = f - line.m;
                    const double g = line.c + line.d * f + line.k * (past > 0 ? past : 0);
                    sums[k] += g;
                    part += g * ((where[k] >> 1) - origin + f) * width;
                }
            }
            if (grad)
                for (int k = 0; k < count; ++k) grad[i + k] = static_cast<float>(sums[k]);
        }
        parts[t] = part;
    });
    value = 0;
    for (int t = 0; t < tasks; ++t) value += parts[t] / 2;
    return true;
}

}  // namespace everypair::EVERYPAIR_ISA
