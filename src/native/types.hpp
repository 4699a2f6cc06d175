// Arguments and results of the kernels. Nothing here depends on Python or on the instruction set.
//
// The kernels are the fast path. The reliable path is the array implementation for NumPy (everypair/arrays,
// in double-double): it computes the batches that a kernel declines because their terms cancel so far that
// the promised digits would be lost. Correctness rests on it, whether or not a kernel is compiled.
#pragma once

#include <cstdint>

namespace everypair {

// b0 + b1 d + b2 d^2 where d > 0 (everywhere if not truncated); d = s_neg - s_pos + shift.
struct Term {
    double shift, b0, b1, b2;
    bool truncated;
};

enum class Dtype : std::uint8_t { u8, i8, i32, i64, f32, f64 };

// Which rows are pairs: a positive and a negative; rows of different targets, the higher of which wins; or
// rows of different ranks. Always of one group.
enum class Pairs : std::uint8_t { binary, targets, ranked };

// The rows of a request, and which of them are pairs. Arrays that are not needed are null.
struct Batch {
    const void* scores;
    Dtype score_type;
    const void* labels;  // classes or targets; the first pass of the kernel checks classes
    Dtype label_type;
    const double* weights;  // of binary pairs
    const double* vector;
    std::int64_t n;
    const std::int64_t* offsets;  // group g holds the rows offsets[g] .. offsets[g + 1] - 1
    std::int64_t n_groups;
    Pairs pairs = Pairs::binary;
    // Targets: if not null, these are survival times, and here are their events. The earlier time wins if it
    // is an event, also against a censored row of the same time.
    const std::uint8_t* events = nullptr;
    // Ranked rows are sorted by group and rank: `winner`, `loser` and `ranks` are in this order, `scores` and
    // `vector` in that of the caller. The weight of a pair is the product of those of its rows as winner and
    // loser, times 2^exponent.
    const std::int64_t *order = nullptr, *ranks = nullptr;  // the caller's row at each position
    const double *winner = nullptr, *loser = nullptr;       // null: 1
    int exponent = 0;
};

// Calls use(labels) with a pointer of the labels' type, and returns its result.
template <class Use>
auto with_labels(const Batch& batch, Use&& use) {
    switch (batch.label_type) {
        case Dtype::u8: return use(static_cast<const std::uint8_t*>(batch.labels));
        case Dtype::i8: return use(static_cast<const std::int8_t*>(batch.labels));
        case Dtype::i32: return use(static_cast<const std::int32_t*>(batch.labels));
        case Dtype::i64: return use(static_cast<const std::int64_t*>(batch.labels));
        case Dtype::f32: return use(static_cast<const float*>(batch.labels));
        default: return use(static_cast<const double*>(batch.labels));
    }
}

// Calls use(zero) with a zero of the type of the scores, and returns its result.
template <class Use>
auto with_scores(Dtype type, Use&& use) {
    return type == Dtype::f32 ? use(float{}) : use(double{});
}

// Arrays of the type of the scores, or null if a result is not wanted.
struct Outputs {
    void* grad;
    void* hess;
    void* hvp;
};

// By row: the number of pairs in the right order, ties half, and of all pairs, in both roles. Null if not
// wanted.
struct RowCounts {
    double *ordered = nullptr, *pairs = nullptr;
};

// Bad values, or a batch that the caller must compute in another way.
enum Status : int { bad_scores = 1, bad_labels = 2, bad_weights = 4, declined = 8 };

struct Answer {
    int status;
    double value;        // the loss (any number if only a Hessian-vector product is wanted), or the weight of
                         // concordant pairs
    double pair_weight;  // sum over groups of W_pos W_neg; with the weight of concordant pairs, both over one
                         // power of two
};

constexpr int max_powers = 24;
constexpr int bucket_moments = 8;

// A smooth term and the truncated polynomial with the same shift. With d = s_neg - s_pos + shift and x =
// exp(-rate |d|), value, slope and curvature (orders 0, 1, 2) are each the sum over k of (a[side][k - 1][0] +
// a[side][k - 1][1] |d|) x^k, k = 1, 2,
// ..., where side = d > 0; the value has b0 + b1 d + b2 d^2 as well where d > 0.
struct Smooth {
    double shift, rate, b0, b1, b2;
    bool linear;                // some a[..][1] are not zero
    double width;               // of buckets, a power of two; 0 if there are none
    const double* powers[3]{};  // by order
    int n_powers[3]{};
    // If there are buckets: the polynomials of degree 7 in u that replace exp(-k rate width u), and the same
    // times u, by factor, power of u and k = 1 .. n_series; by order, the polynomials in the offsets of the
    // negative and of the positive that replace the function inside a bucket.
    const double *series = nullptr, *inside = nullptr;
    int n_series = 0;

    // The coefficient of |d|^factor x^(k + 1) of this order.
    double power(int order, int side, int k, int factor) const {
        return k < n_powers[order] ? powers[order][2 * (side * n_powers[order] + k) + factor] : 0;
    }
    // The coefficient of d^degree of this order, where d > 0.
    double polynomial(int order, int degree) const {
        const double b[3][3] = {{b0, b1, b2}, {b1, 2 * b2, 0}, {2 * b2, 0, 0}};
        return b[order][degree];
    }
};

// factor exp(rate d), d = s_neg - s_pos + shift.
struct Exponential {
    double shift, rate, factor;
};

// A surrogate of one of three forms, and how to reduce it.
struct Question {
    const Term* terms;
    int n_terms;
    bool mean;
    int threads;
    const Smooth* smooth = nullptr;            // if not null, there are no terms
    const Exponential* exponential = nullptr;  // the same
};

// The scores of rows, or of other rows; group g holds offsets[g] .. offsets[g + 1] - 1. Without offsets, all
// are one group.
struct RowSet {
    const double* scores;
    std::int64_t n;
    const std::int64_t* offsets;
    std::int64_t n_groups = 1;

    std::int64_t begin(std::int64_t group) const { return offsets ? offsets[group] : group * n; }
};

// A function of d = y + shift - x, with its first two derivatives: for each order and side (0: d <= 0, 1: d >
// 0) the coefficients of exp(-k rate |d|), k = 1, 2, ..., n_powers, and of |d|^r, r = 0, 1, 2.
struct Piece {
    double shift, rate;
    const double *powers, *polynomials;
    int n_powers;
};

// Sums of such a function over all pairs of a row and another row (row_sums.hpp). Copies what it needs of the
// scores.
class RowSums {
  public:
    const std::int64_t n_rows, n_others;
    RowSums(std::int64_t rows, std::int64_t others) : n_rows(rows), n_others(others) {}
    virtual ~RowSums() = default;
    // Fills one array for each order: the sums over the others for each row, or with `per_other` the reverse.
    virtual void sums(const double* weights, bool per_other, int n_orders, const int* orders,
                      double* const* out, int threads) const = 0;
};

// The kernels of one instruction set.
struct Kernels {
    Answer (*evaluate)(const Batch&, const Question&, const Outputs&);
    // The weight of concordant pairs, ties half, and of all pairs. Counts are those of targets only.
    Answer (*concordance)(const Batch&, int threads, const RowCounts&);
    RowSums* (*row_sums)(const RowSet& rows, const RowSet& others, const Piece&, int threads);
    // The labels are bytes, and `shares` has one number for each positive.
    double (*smooth_precision)(const Batch&, const double* shares, const Piece&, int threads, double* grad);
};

}  // namespace everypair
