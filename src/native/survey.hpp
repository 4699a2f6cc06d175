// The first pass: check all values, convert labels to class bytes, and find the range of scores that counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "double_double.hpp"
#include "pool.hpp"
#include "types.hpp"
#include "vectors.hpp"

namespace everypair::EVERYPAIR_ISA {

// The number of rows of a task. It does not depend on the number of threads, so sums always have the same
// order.
constexpr std::int64_t task_rows = 1 << 12;

// A slice is a range of consecutive tasks with its own tables. Large batches have more slices than threads,
// so that a slow thread does not delay the others.
inline int slice_count(std::int64_t n, int threads) {
    const std::int64_t tasks = (n + task_rows - 1) / task_rows,
                       wanted = threads > 1 && n >= 1 << 19 ? 4 * threads : threads;
    return static_cast<int>(wanted < 1 ? 1 : wanted < tasks ? wanted : tasks);
}

inline int task_count(std::int64_t n) { return static_cast<int>((n + task_rows - 1) / task_rows); }
inline std::int64_t task_end(std::int64_t n, std::int64_t begin) {
    return n - begin < task_rows ? n : begin + task_rows;
}

constexpr int block_rows = 512;  // the working arrays of a block stay in the first-level cache

// Slices are ranges of whole tasks.
inline std::int64_t first_row(std::int64_t n, int slice, int slices) {
    return std::min(n, static_cast<std::int64_t>(task_count(n)) * slice / slices * task_rows);
}

// Calls use(slice, first row, number of rows) for blocks of rows. The slices run in parallel.
template <class Use>
void by_blocks(std::int64_t n, int slices, int threads, Use&& use) {
    parallel(threads, slices, [&](int slice) {
        for (std::int64_t i = first_row(n, slice, slices), end = first_row(n, slice + 1, slices); i < end;
             i += block_rows)
            use(slice, i, static_cast<int>(std::min<std::int64_t>(block_rows, end - i)));
    });
}

// The places of all rows on an axis: the slot and an offset of each row. Small batches keep them for the next
// pass.
template <class Offset>
class Places {
  public:
    Places(Scratch& scratch, std::int64_t n, std::int64_t most_kept)
        : n_(n),
          slots_(n <= most_kept ? scratch.take<std::int32_t>(n + room) : nullptr),
          offsets_(n <= most_kept ? scratch.take<Offset>(n + room) : nullptr) {}

    // Calls use(slice, first row, count, slots, offsets) for blocks of rows, after locate(first row, count,
    // slots, offsets) if their places are not known. Both may write up to a multiple of four.
    template <class Locate, class Use>
    void by_blocks(int slices, int threads, Locate&& locate, Use&& use) {
        EVERYPAIR_ISA::by_blocks(n_, slices, threads, [&](int slice, std::int64_t i, int count) {
            std::int32_t spare_slots[block_rows], *slots = slots_ ? slots_ + i : spare_slots;
            Offset spare_offsets[block_rows], *offsets = slots_ ? offsets_ + i : spare_offsets;
            if (!known_) locate(i, count, slots, offsets);
            use(slice, i, count, slots, offsets);
        });
        known_ = slots_;
    }

  private:
    static constexpr int room = 4;
    std::int64_t n_;
    std::int32_t* slots_;  // null if places are not kept
    Offset* offsets_;
    bool known_ = false;
};

// Class bytes: 0 negatives, 1 positives; rows of weight 0 have this bit as well. They take no part in
// anything, so that scores of any size do no harm there.
constexpr std::uint8_t weightless = 2;

struct Survey {
    int status = 0;
    bool saw_zero = false, saw_minus = false;
    std::int64_t n_pos = 0, n_neg = 0;  // without the rows of weight 0
    Compensated w_pos, w_neg;
    // Only pairs with s_neg + shift > s_pos count, so positives above max_neg + shift, and negatives below
    // min_pos - shift, have no pairs.
    double min_pos = std::numeric_limits<double>::infinity();
    double max_neg = -std::numeric_limits<double>::infinity();

    void add(const Survey& other) {
        status |= other.status;
        saw_zero |= other.saw_zero;
        saw_minus |= other.saw_minus;
        n_pos += other.n_pos;
        n_neg += other.n_neg;
        w_pos += other.w_pos;
        w_neg += other.w_neg;
        if (other.min_pos < min_pos) min_pos = other.min_pos;
        if (other.max_neg > max_neg) max_neg = other.max_neg;
    }
};

template <class L>
bool is_label(L y) {
    // The operators & and | evaluate both sides, so that the loop has no branches.
    if constexpr (std::is_signed_v<L>) return (y == L{0}) | (y == L{1}) | (y == L{-1});
    return y <= L{1};
}

// Short loops over blocks, each with values of one width, so that all of them are vectorised.
template <class S, class L>
Survey survey_rows(const S* scores, const L* labels, const double* weights, std::uint8_t* classes,
                   std::int64_t n) {
    constexpr int block = 512;
    using Flags = std::conditional_t<sizeof(L) == 1, std::uint8_t,
                                     std::conditional_t<sizeof(L) == 4, std::uint32_t, std::uint64_t>>;
    using Lanes = typename Largest<S>::Lanes;
    constexpr int width = Largest<S>::lanes;
    using Counters = decltype(Lanes{} < 0);  // integers as wide as a score
    using Counter = std::remove_cvref_t<decltype(Counters{}[0])>;
    constexpr S inf = std::numeric_limits<S>::infinity();
    const Lanes none = Lanes{} - inf;
    Lanes zeros{};
    Largest<S> min_pos_negated(-inf), max_neg(-inf);
    Flags odd = 0, zero = 0, minus = 0;
    CompensatedLanes w_pos, w_neg;
    Survey survey;

    for (std::int64_t begin = 0; begin < n; begin += block) {
        const int count = static_cast<int>(n - begin < block ? n - begin : block);
        const S* s = scores + begin;
        const L* y = labels + begin;
        std::uint8_t* c = classes + begin;
#pragma omp simd reduction(| : odd, zero, minus)
        for (int i = 0; i < count; ++i) {
            odd |= static_cast<Flags>(!is_label(y[i]));
            zero |= static_cast<Flags>(y[i] == L{0});
            minus |= static_cast<Flags>(y[i] < L{0});
        }
        for (int i = 0; i < count; ++i) c[i] = y[i] > L{0};
        if (weights) {
            const double* w = weights + begin;
            // Products instead of branches, which would be mispredicted. Four weights are added up first,
            // because a compensated addition costs six.
            constexpr int chains = CompensatedLanes::count;
            double p[block], q[block];
#pragma omp simd
            for (int i = 0; i < count; ++i) {
                p[i] = w[i] * c[i];
                q[i] = w[i] - p[i];
            }
            for (int i = count; i % (4 * chains); ++i) p[i] = q[i] = 0;
            for (int i = 0; i < count; i += 4 * chains)
#pragma omp simd
                for (int k = 0; k < chains; ++k) {
                    const int a = i + k, b = a + chains, d = b + chains, e = d + chains;
                    w_pos.add(k, (p[a] + p[b]) + (p[d] + p[e]));
                    w_neg.add(k, (q[a] + q[b]) + (q[d] + q[e]));
                }
            // p + q is the weight, or NaN if that is infinite.
            decltype(Vec{} < 0) bad{}, zero_weight{};
            for (int i = 0; i < count; i += lanes) {
                const Vec weight = load(p + i) + load(q + i);
                bad |= ~(weight >= 0);
                zero_weight |= ~(weight > 0);
            }
            if (any(bad)) survey.status |= bad_weights;
            for (int i = 0; any(zero_weight) && i < count; ++i) c[i] |= w[i] > 0 ? 0 : weightless;
        }
        Counter sides[block];
        for (int i = 0; i < count; ++i) sides[i] = c[i];
        for (int i = count; i % width; ++i) sides[i] = weightless;
        Counters positives{}, negatives{};
        const auto add_scores = [&](int i, Lanes x) {
            Counters side;
            std::memcpy(&side, sides + i, sizeof side);
            const Counters is_pos = side == 1, is_neg = side == 0;  // a true comparison is -1
            positives -= is_pos;
            negatives -= is_neg;
            min_pos_negated.add(is_pos ? -x : none);
            max_neg.add(is_neg ? x : none);
            zeros += x * S{0};  // becomes NaN if any score is NaN or infinite
        };
        int i = 0;
        for (; i + width <= count; i += width) add_scores(i, load(s + i));
        if (i < count) {
            S last[width] = {};
            std::copy(s + i, s + count, last);
            add_scores(i, load(last));
        }
        for (int k = 0; k < width; ++k) survey.n_pos += positives[k], survey.n_neg += negatives[k];
    }
    survey.saw_zero = zero;
    survey.saw_minus = minus;
    if (odd) survey.status |= bad_labels;
    for (int k = 0; k < width; ++k)
        if (!(zeros[k] == S{0})) survey.status |= bad_scores;
    survey.min_pos = -min_pos_negated.value();
    survey.max_neg = max_neg.value();
    survey.w_pos += weights ? w_pos.total() : static_cast<double>(survey.n_pos);
    survey.w_neg += weights ? w_neg.total() : static_cast<double>(survey.n_neg);
    return survey;
}

template <class S>
Survey survey_chunk(const Batch& batch, std::uint8_t* classes, std::int64_t begin, std::int64_t end) {
    const S* scores = static_cast<const S*>(batch.scores) + begin;
    const double* weights = batch.weights ? batch.weights + begin : nullptr;
    return with_labels(batch, [&](const auto* labels) {
        return survey_rows(scores, labels + begin, weights, classes + begin, end - begin);
    });
}

// Surveys the rows begin .. end - 1 in parallel tasks.
template <class S>
Survey survey(const Batch& batch, std::uint8_t* classes, std::int64_t begin, std::int64_t end, int threads) {
    const std::int64_t n = end - begin;
    const int tasks = task_count(n);
    if (tasks <= 1) return survey_chunk<S>(batch, classes, begin, end);
    Scratch scratch;
    Survey* surveys = scratch.take<Survey>(tasks);
    parallel(threads, tasks, [&](int t) {
        const std::int64_t from = t * task_rows;
        surveys[t] = survey_chunk<S>(batch, classes, begin + from, begin + task_end(n, from));
    });
    Survey total;
    for (int t = 0; t < tasks; ++t) total.add(surveys[t]);
    return total;
}

}  // namespace everypair::EVERYPAIR_ISA
