// The Python module: reads buffers, releases the GIL, calls the kernel and returns status, value and pair weight.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "pool.hpp"
#include "stream.hpp"
#include "types.hpp"

namespace nb = nanobind;

namespace everypair {

#define EVERYPAIR_DECLARE(isa)                                                                                     \
    namespace isa {                                                                                                \
    Answer evaluate(const Batch&, const Question&, const Outputs&);                                                \
    Answer evaluate_smooth(const Batch&, const Smooth&, bool mean, int threads, const Outputs&);                   \
    Answer concordance(const Batch&, int threads);                                                                 \
    RowSums* row_sums(const RowSet& rows, const RowSet& others, const Piece&, std::int64_t n_groups, int threads); \
    double smooth_precision(const PrecisionBatch&, const Piece&, int threads);                                     \
    Answer evaluate_ordered(const Ranked&, const Question&, double unit, const Outputs&);                          \
    Answer concordance_ordered(const Ranked&, int threads);                                                        \
    Answer evaluate_graded(const Batch&, const Question&, const Outputs&);                                         \
    void rank_targets(const Batch&, const std::uint8_t* events, std::int64_t* order, std::int64_t* ranks);         \
    Answer concordance_targets(const Batch&, const std::uint8_t* events, double* ordered, double* pairs);          \
    }
EVERYPAIR_DECLARE(baseline)
#if defined(EVERYPAIR_X86_DISPATCH)
EVERYPAIR_DECLARE(avx2)
EVERYPAIR_DECLARE(avx512)
#endif

namespace {

struct Kernels {
    const char* name;
    Evaluate evaluate;
    EvaluateSmooth evaluate_smooth;
    Concordance concordance;
    EvaluateOrdered evaluate_ordered;
    ConcordanceOrdered concordance_ordered;
    EvaluateGraded evaluate_graded;
    RankTargets rank_targets;
    ConcordanceTargets concordance_targets;
    MakeRowSums row_sums;
    SmoothPrecision smooth_precision;
};

#define EVERYPAIR_KERNELS(name, isa) \
    {name,                           \
     isa::evaluate,                  \
     isa::evaluate_smooth,           \
     isa::concordance,               \
     isa::evaluate_ordered,          \
     isa::concordance_ordered,       \
     isa::evaluate_graded,           \
     isa::rank_targets,              \
     isa::concordance_targets,       \
     isa::row_sums,                  \
     isa::smooth_precision}

// The name of the instruction set that every processor of this architecture has.
#if defined(__aarch64__)
constexpr const char* baseline_name = "neon";
#else
constexpr const char* baseline_name = "baseline";
#endif

std::vector<Kernels> available() {
    std::vector<Kernels> here{EVERYPAIR_KERNELS(baseline_name, baseline)};
#if defined(EVERYPAIR_X86_DISPATCH)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
        here.push_back(EVERYPAIR_KERNELS("avx2", avx2));
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512bw"))
            here.push_back(EVERYPAIR_KERNELS("avx512", avx512));
    }
#endif
    return here;
}

Kernels chosen = available().back();

// A contiguous array: a buffer, the memory of a tensor as a tuple (address, format, size), or None. Tensors are no buffers, and
// making one of a tensor takes longer than a small batch.
class Array {
  public:
    Array(nb::handle object, bool writable) {
        if (object.is_none()) return;
        if (PyTuple_CheckExact(object.ptr())) {
            data_ = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(object[0]));
            format_ = nb::cast<const char*>(object[1]);
            size_ = nb::cast<std::int64_t>(object[2]);
            itemsize_ = format_[0] == 'q' ? 8 : 4;
            if (!data_) throw std::invalid_argument("a tensor has no memory");
            return;
        }
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) != 0)
            throw nb::python_error();
        data_ = view_.buf;
        format_ = view_.format ? view_.format : "B";
        size_ = view_.len / view_.itemsize;
        itemsize_ = view_.itemsize;
    }
    ~Array() {
        if (view_.obj) PyBuffer_Release(&view_);
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    void* data() const { return data_; }
    std::int64_t size() const { return size_; }

    Dtype dtype() const {
        const char* format = format_;
        // Arrays made from C types name their byte order even if it is the native one.
        if (format[0] == '<' || format[0] == '=' || format[0] == '@') ++format;
        switch (format[0]) {
            case '?':
            case 'B': return Dtype::u8;
            case 'b': return Dtype::i8;
            case 'f': return Dtype::f32;
            case 'd': return Dtype::f64;
            case 'i':
            case 'l':
            case 'q': return itemsize_ == 4 ? Dtype::i32 : Dtype::i64;
            default: throw std::invalid_argument(std::string("unexpected buffer format ") + format);
        }
    }

    // The Python code has validated the input; this check only prevents reading beyond the buffer after a programming error.
    const Array& require(std::int64_t n, Dtype type) const {
        if (format_ && (size() != n || dtype() != type)) throw std::invalid_argument("a buffer has the wrong length or type");
        return *this;
    }

  private:
    Py_buffer view_{};
    void* data_ = nullptr;
    const char* format_ = nullptr;
    std::int64_t size_ = 0, itemsize_ = 0;
};

std::int64_t rows_of(const Array& scores) {
    const std::int64_t n = scores.size();
    if (n < 1 || n >= std::int64_t{1} << 32) throw std::invalid_argument("scores must have between 1 and 2^32 - 1 rows");
    if (scores.dtype() != Dtype::f32 && scores.dtype() != Dtype::f64)
        throw std::invalid_argument("scores must be float32 or float64");
    return n;
}

void check_offsets(const std::int64_t* offsets, std::int64_t n_groups, std::int64_t n) {
    bool good = n_groups >= 1 && offsets[0] == 0 && offsets[n_groups] == n;
    for (std::int64_t g = 0; good && g < n_groups; ++g) good = offsets[g] < offsets[g + 1];
    if (!good) throw std::invalid_argument("offsets must rise from 0 to the number of rows");
}

std::vector<Term> terms_of(nb::tuple terms) {
    std::vector<Term> parsed;
    for (nb::handle term : terms)
        parsed.push_back({nb::cast<double>(term[0]), nb::cast<double>(term[1]), nb::cast<double>(term[2]),
                          nb::cast<double>(term[3]), nb::cast<bool>(term[4])});
    if (parsed.empty()) throw std::invalid_argument("terms must not be empty");
    return parsed;
}

Batch batch_of(const Array& scores, const Array& labels, const Array& weights, const Array& vector, const Array& offsets) {
    const std::int64_t n = rows_of(scores);
    const Batch batch{scores.data(),
                      scores.dtype(),
                      labels.require(n, labels.dtype()).data(),
                      labels.dtype(),
                      static_cast<const double*>(weights.require(n, Dtype::f64).data()),
                      static_cast<const double*>(vector.require(n, Dtype::f64).data()),
                      n,
                      static_cast<const std::int64_t*>(offsets.require(offsets.size(), Dtype::i64).data()),
                      offsets.size() - 1};
    if (batch.offsets) check_offsets(batch.offsets, batch.n_groups, n);
    return batch;
}

nb::tuple as_tuple(const Answer& answer) { return nb::make_tuple(answer.status, answer.value, answer.pair_weight); }

nb::tuple evaluate(nb::handle scores, nb::handle labels, nb::handle weights, nb::handle offsets, nb::handle vector,
                   nb::tuple terms, bool mean, int threads, nb::handle grad, nb::handle hess, nb::handle hvp) {
    const Array s(scores, false), y(labels, false), w(weights, false), o(offsets, false), v(vector, false);
    const Array g(grad, true), h(hess, true), p(hvp, true);
    const Batch batch = batch_of(s, y, w, v, o);
    for (const Array* out : {&g, &h, &p}) out->require(batch.n, batch.score_type);
    if (p.data() && !v.data()) throw std::invalid_argument("a Hessian-vector product needs a vector");
    const std::vector<Term> parsed = terms_of(terms);
    const Question question{parsed.data(), static_cast<int>(parsed.size()), mean, threads};
    const Outputs outputs{g.data(), h.data(), p.data()};
    Answer answer;
    {
        nb::gil_scoped_release released;
        answer = chosen.evaluate(batch, question, outputs);
    }
    return as_tuple(answer);
}

nb::tuple evaluate_smooth(nb::handle scores, nb::handle labels, nb::handle weights, nb::handle offsets, nb::handle vector,
                          nb::tuple term, nb::handle value, nb::handle slope, nb::handle curvature, nb::handle series,
                          nb::handle inside, bool mean, int threads, nb::handle grad, nb::handle hess, nb::handle hvp) {
    const Array s(scores, false), y(labels, false), w(weights, false), o(offsets, false), v(vector, false);
    const Array g(grad, true), h(hess, true), p(hvp, true);
    const Array orders[3] = {{value, false}, {slope, false}, {curvature, false}}, far(series, false), near(inside, false);
    const Batch batch = batch_of(s, y, w, v, o);
    for (const Array* out : {&g, &h, &p}) out->require(batch.n, batch.score_type);
    if (p.data() && !v.data()) throw std::invalid_argument("a Hessian-vector product needs a vector");
    Smooth smooth{nb::cast<double>(term[0]),
                  nb::cast<double>(term[1]),
                  nb::cast<double>(term[2]),
                  nb::cast<double>(term[3]),
                  nb::cast<double>(term[4]),
                  {},
                  {},
                  nb::cast<bool>(term[5]),
                  nb::cast<double>(term[6]),
                  static_cast<int>(far.size() / (2 * bucket_moments)),
                  static_cast<const double*>(far.require(far.size(), Dtype::f64).data()),
                  static_cast<const double*>(near.require(3 * bucket_moments * bucket_moments, Dtype::f64).data())};
    if (smooth.width > 0 && (!near.data() || smooth.n_series < 1 || smooth.n_series > most_powers))
        throw std::invalid_argument("buckets need the polynomials that replace the function");
    for (int order = 0; order < 3; ++order) {
        const std::int64_t size = orders[order].size();
        if (size < 4 || size % 4 || size > 4 * most_powers) throw std::invalid_argument("wrong number of powers");
        smooth.powers[order] = static_cast<const double*>(orders[order].require(size, Dtype::f64).data());
        smooth.n_powers[order] = static_cast<int>(size / 4);
    }
    Answer answer;
    {
        nb::gil_scoped_release released;
        answer = chosen.evaluate_smooth(batch, smooth, mean, threads, {g.data(), h.data(), p.data()});
    }
    return as_tuple(answer);
}

nb::tuple auc(nb::handle scores, nb::handle labels, nb::handle weights, nb::handle offsets, int threads) {
    const Array s(scores, false), y(labels, false), w(weights, false), o(offsets, false), none(nb::none(), false);
    const Batch batch = batch_of(s, y, w, none, o);
    Answer answer;
    {
        nb::gil_scoped_release released;
        answer = chosen.concordance(batch, threads);
    }
    return as_tuple(answer);
}

// The arrays of `everypair.targets.ranked.RankedRows`: order, ranks, offsets, winner, loser.
class RankedArrays {
  public:
    explicit RankedArrays(nb::tuple given)
        : arrays_{{given[0], false}, {given[1], false}, {given[2], false}, {given[3], false}, {given[4], false}} {}

    Ranked with(const Array& scores, const Array& vector) const {
        const std::int64_t n = rows_of(scores), n_groups = arrays_[2].size() - 1;
        const auto indices = [&](int k, std::int64_t size) {
            return static_cast<const std::int64_t*>(arrays_[k].require(size, Dtype::i64).data());
        };
        const auto reals = [&](const Array& array) { return static_cast<const double*>(array.require(n, Dtype::f64).data()); };
        const Ranked rows{scores.data(),
                          scores.dtype(),
                          indices(0, n),
                          indices(1, n),
                          reals(arrays_[3]),
                          reals(arrays_[4]),
                          reals(vector),
                          n,
                          indices(2, n_groups + 1),
                          n_groups};
        check_offsets(rows.offsets, n_groups, n);
        return rows;
    }

  private:
    Array arrays_[5];
};

nb::tuple evaluate_ordered(nb::handle scores, nb::tuple ranked, nb::handle vector, nb::tuple terms, bool mean, double unit,
                           int threads, nb::handle grad, nb::handle hess, nb::handle hvp) {
    const Array s(scores, false), v(vector, false), g(grad, true), h(hess, true), p(hvp, true);
    const RankedArrays arrays(ranked);
    const Ranked rows = arrays.with(s, v);
    for (const Array* out : {&g, &h, &p}) out->require(rows.n, rows.score_type);
    if (p.data() && !v.data()) throw std::invalid_argument("a Hessian-vector product needs a vector");
    const std::vector<Term> parsed = terms_of(terms);
    const Question question{parsed.data(), static_cast<int>(parsed.size()), mean, threads};
    Answer answer;
    {
        nb::gil_scoped_release released;
        answer = chosen.evaluate_ordered(rows, question, unit, {g.data(), h.data(), p.data()});
    }
    return nb::make_tuple(answer.value, answer.pair_weight);
}

nb::tuple auc_ordered(nb::handle scores, nb::tuple ranked, int threads) {
    const Array s(scores, false), none(nb::none(), false);
    const RankedArrays arrays(ranked);
    const Ranked rows = arrays.with(s, none);
    Answer answer;
    {
        nb::gil_scoped_release released;
        answer = chosen.concordance_ordered(rows, threads);
    }
    return nb::make_tuple(answer.value, answer.pair_weight);
}

nb::tuple evaluate_graded(nb::handle scores, nb::handle targets, nb::tuple terms, bool mean, int threads, nb::handle grad) {
    const Array s(scores, false), y(targets, false), none(nb::none(), false), g(grad, true);
    const Batch batch = batch_of(s, y, none, none, none);
    g.require(batch.n, batch.score_type);
    const std::vector<Term> parsed = terms_of(terms);
    const Question question{parsed.data(), static_cast<int>(parsed.size()), mean, threads};
    Answer answer;
    {
        nb::gil_scoped_release released;
        answer = chosen.evaluate_graded(batch, question, {g.data(), nullptr, nullptr});
    }
    return nb::make_tuple(answer.value, answer.pair_weight);
}

void rank_targets(nb::handle targets, nb::handle events, nb::handle order, nb::handle ranks) {
    const Array y(targets, false), e(events, false), o(order, true), r(ranks, true);
    const std::int64_t n = y.size();
    if (n < 1 || n >= std::int64_t{1} << 32) throw std::invalid_argument("targets must have between 1 and 2^32 - 1 rows");
    const Batch batch{nullptr, Dtype::f64, y.data(), y.dtype(), nullptr, nullptr, n, nullptr, 0};
    auto* rows = static_cast<std::int64_t*>(o.require(n, Dtype::i64).data());
    auto* numbers = static_cast<std::int64_t*>(r.require(n, Dtype::i64).data());
    const auto* is_event = static_cast<const std::uint8_t*>(e.require(n, Dtype::u8).data());
    nb::gil_scoped_release released;
    chosen.rank_targets(batch, is_event, rows, numbers);
}

nb::tuple auc_targets(nb::handle scores, nb::handle targets, nb::handle events, nb::handle ordered, nb::handle pairs) {
    const Array s(scores, false), y(targets, false), e(events, false), none(nb::none(), false), o(ordered, true),
        p(pairs, true);
    const Batch batch = batch_of(s, y, none, none, none);
    for (const Array* out : {&o, &p}) out->require(batch.n, Dtype::f64);
    if (!o.data() != !p.data()) throw std::invalid_argument("both arrays of a row's pairs are needed, or none");
    const auto* is_event = static_cast<const std::uint8_t*>(e.require(batch.n, Dtype::u8).data());
    Answer answer;
    {
        nb::gil_scoped_release released;
        answer = chosen.concordance_targets(batch, is_event, static_cast<double*>(o.data()), static_cast<double*>(p.data()));
    }
    return nb::make_tuple(answer.value, answer.pair_weight);
}

template <class S>
stream::Split split_labels(const Array& scores, const Array& labels, void* pos, void* neg) {
    const auto with = [&](auto type) {
        using L = decltype(type);
        return stream::split(static_cast<const S*>(scores.data()), static_cast<const L*>(labels.data()), scores.size(),
                             static_cast<S*>(pos), static_cast<S*>(neg));
    };
    switch (labels.dtype()) {
        case Dtype::u8: return with(std::uint8_t{});
        case Dtype::i8: return with(std::int8_t{});
        case Dtype::i32: return with(std::int32_t{});
        case Dtype::i64: return with(std::int64_t{});
        case Dtype::f32: return with(float{});
        default: return with(double{});
    }
}

nb::tuple split(nb::handle scores, nb::handle labels, nb::handle pos, nb::handle neg) {
    const Array s(scores, false), y(labels, false), p(pos, true), n(neg, true);
    y.require(s.size(), y.dtype());
    for (const Array* out : {&p, &n}) out->require(s.size(), s.dtype());
    const bool is_float = s.dtype() == Dtype::f32;
    if (!is_float && s.dtype() != Dtype::f64) throw std::invalid_argument("scores must be float32 or float64");
    stream::Split answer;
    {
        nb::gil_scoped_release released;
        answer = is_float ? split_labels<float>(s, y, p.data(), n.data()) : split_labels<double>(s, y, p.data(), n.data());
    }
    return nb::make_tuple(answer.status, answer.n_pos);
}

void count(nb::handle scores, int bits, nb::handle table) {
    const Array s(scores, false), t(table, true);
    if (bits < 16 || bits > 22) throw std::invalid_argument("bits must be between 16 and 22");
    s.require(s.size(), Dtype::f32);
    t.require(std::int64_t{3} << bits, Dtype::i64);
    nb::gil_scoped_release released;
    stream::count(static_cast<const float*>(s.data()), s.size(), bits, static_cast<std::int64_t*>(t.data()));
}

RowSet row_set_of(const Array& scores, const Array& offsets) {
    const std::int64_t n = scores.size(), *bounds = static_cast<const std::int64_t*>(offsets.data());
    if (n < 1 || n >= std::int64_t{1} << 32) throw std::invalid_argument("scores must have between 1 and 2^32 - 1 rows");
    bool good = !bounds || (offsets.size() > 1 && bounds[0] == 0 && bounds[offsets.size() - 1] == n);
    for (std::int64_t g = 1; bounds && good && g < offsets.size(); ++g) good = bounds[g - 1] <= bounds[g];
    if (!good) throw std::invalid_argument("offsets must not fall from 0 to the number of rows");
    return {static_cast<const double*>(scores.require(n, Dtype::f64).data()), n, bounds};
}

Piece piece_of(const Array& powers, const Array& polynomials, double shift, double rate) {
    const std::int64_t n_powers = powers.size() / 6;
    if (n_powers > most_powers) throw std::invalid_argument("too many powers");
    return {shift, rate, static_cast<const double*>(powers.require(6 * n_powers, Dtype::f64).data()),
            static_cast<const double*>(polynomials.require(18, Dtype::f64).data()), static_cast<int>(n_powers)};
}

// A prepared sum, with the sizes of the arrays that it reads and writes.
struct PreparedRowSums {
    std::unique_ptr<RowSums> kernel;
    std::int64_t n_rows, n_others;
};

PreparedRowSums* row_sums(nb::handle rows, nb::handle others, nb::handle row_offsets, nb::handle other_offsets, double shift,
                          double rate, nb::handle powers, nb::handle polynomials, int threads) {
    const Array x(rows, false), y(others, false), c(powers, false), p(polynomials, false);
    const Array of_rows(row_offsets, false), of_others(other_offsets, false);
    for (const Array* offsets : {&of_rows, &of_others}) offsets->require(of_rows.size(), Dtype::i64);
    const RowSet row_set = row_set_of(x, of_rows), other_set = row_set_of(y, of_others);
    const Piece piece = piece_of(c, p, shift, rate);
    nb::gil_scoped_release released;
    const std::int64_t n_groups = row_set.offsets ? of_rows.size() - 1 : 1;
    std::unique_ptr<RowSums> kernel(chosen.row_sums(row_set, other_set, piece, n_groups, threads));
    return new PreparedRowSums{std::move(kernel), row_set.n, other_set.n};
}

void fill_row_sums(const PreparedRowSums& prepared, nb::handle weights, nb::tuple orders, bool per_other, int threads,
                   nb::tuple outputs) {
    const std::int64_t n_sources = per_other ? prepared.n_rows : prepared.n_others;
    const std::int64_t n_targets = per_other ? prepared.n_others : prepared.n_rows;
    const Array w(weights, false);
    const int n_orders = static_cast<int>(orders.size());
    if (n_orders > 3 || outputs.size() != orders.size()) throw std::invalid_argument("orders and outputs do not agree");
    int wanted[3];
    double* out[3];
    for (int k = 0; k < n_orders; ++k) {
        wanted[k] = nb::cast<int>(orders[k]);
        if (wanted[k] < 0 || wanted[k] > 2) throw std::invalid_argument("an order must be 0, 1 or 2");
        // The caller's tuple keeps the array, so the pointer outlives this buffer.
        const Array array(outputs[k], true);
        out[k] = static_cast<double*>(array.require(n_targets, Dtype::f64).data());
    }
    const double* given = static_cast<const double*>(w.require(n_sources, Dtype::f64).data());
    nb::gil_scoped_release released;
    prepared.kernel->sums(given, per_other, n_orders, wanted, out, threads);
}

double smooth_precision(nb::handle scores, nb::handle positive, nb::handle weights, nb::handle shares, double rate,
                        nb::handle powers, nb::handle polynomials, int threads, nb::handle grad) {
    const Array s(scores, false), y(positive, false), w(weights, false), shared(shares, false), g(grad, true);
    const Array c(powers, false), p(polynomials, false);
    const std::int64_t n = s.size();
    if (n >= std::int64_t{1} << 32) throw std::invalid_argument("scores must have at most 2^32 - 1 rows");
    const PrecisionBatch batch{s.data(),
                               s.dtype(),
                               static_cast<const std::uint8_t*>(y.require(n, Dtype::u8).data()),
                               static_cast<const double*>(w.require(n, Dtype::f64).data()),
                               static_cast<const double*>(shared.require(shared.size(), Dtype::f64).data()),
                               n,
                               static_cast<double*>(g.require(n, Dtype::f64).data())};
    const std::int64_t n_pos = n - std::count(batch.positive, batch.positive + n, 0);
    if (n_pos == 0 || n_pos == n || shared.size() != n_pos)
        throw std::invalid_argument("shares must be those of the positives");
    const Piece piece = piece_of(c, p, 0, rate);
    nb::gil_scoped_release released;
    return chosen.smooth_precision(batch, piece, threads);
}

}  // namespace
}  // namespace everypair

NB_MODULE(_native, m) {
    using namespace everypair;
    m.def("evaluate", &evaluate, nb::arg("scores"), nb::arg("labels"), nb::arg("weights").none(), nb::arg("offsets").none(),
          nb::arg("vector").none(), nb::arg("terms"), nb::arg("mean"), nb::arg("threads"), nb::arg("grad").none(),
          nb::arg("hess").none(), nb::arg("hvp").none());
    m.def("evaluate_smooth", &evaluate_smooth, nb::arg("scores"), nb::arg("labels"), nb::arg("weights").none(),
          nb::arg("offsets").none(), nb::arg("vector").none(), nb::arg("term"), nb::arg("value"), nb::arg("slope"),
          nb::arg("curvature"), nb::arg("series").none(), nb::arg("inside").none(), nb::arg("mean"), nb::arg("threads"),
          nb::arg("grad").none(), nb::arg("hess").none(), nb::arg("hvp").none());
    m.def("auc", &auc, nb::arg("scores"), nb::arg("labels"), nb::arg("weights").none(), nb::arg("offsets").none(),
          nb::arg("threads"));
    m.def("evaluate_ordered", &evaluate_ordered, nb::arg("scores"), nb::arg("ranked"), nb::arg("vector").none(),
          nb::arg("terms"), nb::arg("mean"), nb::arg("unit"), nb::arg("threads"), nb::arg("grad").none(),
          nb::arg("hess").none(), nb::arg("hvp").none());
    m.def("auc_ordered", &auc_ordered, nb::arg("scores"), nb::arg("ranked"), nb::arg("threads"));
    m.def("evaluate_graded", &evaluate_graded, nb::arg("scores"), nb::arg("targets"), nb::arg("terms"), nb::arg("mean"),
          nb::arg("threads"), nb::arg("grad").none());
    m.def("rank_targets", &rank_targets, nb::arg("targets"), nb::arg("events").none(), nb::arg("order"), nb::arg("ranks"));
    m.def("auc_targets", &auc_targets, nb::arg("scores"), nb::arg("targets"), nb::arg("events").none(),
          nb::arg("ordered").none(), nb::arg("pairs").none());
    m.def("split", &split, nb::arg("scores"), nb::arg("labels"), nb::arg("pos"), nb::arg("neg"));
    m.def("count", &count, nb::arg("scores"), nb::arg("bits"), nb::arg("table"));
    nb::class_<PreparedRowSums>(m, "RowSums")
        .def("fill", &fill_row_sums, nb::arg("weights"), nb::arg("orders"), nb::arg("per_other"), nb::arg("threads"),
             nb::arg("outputs"));
    m.def("row_sums", &row_sums, nb::rv_policy::take_ownership, nb::arg("rows"), nb::arg("others"),
          nb::arg("row_offsets").none(), nb::arg("other_offsets").none(), nb::arg("shift"), nb::arg("rate"), nb::arg("powers"),
          nb::arg("polynomials"), nb::arg("threads"));
    m.def("smooth_precision", &smooth_precision, nb::arg("scores"), nb::arg("positive"), nb::arg("weights").none(),
          nb::arg("shares"), nb::arg("rate"), nb::arg("powers"), nb::arg("polynomials"), nb::arg("threads"), nb::arg("grad"));
    m.def("borrow_team", [](std::uintptr_t fork) { borrow_team(reinterpret_cast<Fork*>(fork)); }, nb::arg("fork"));
    m.def("isa", [] { return std::string_view(chosen.name).data(); });
    // For tests and benchmarks: all instruction sets that this machine can run.
    m.def("isas", [] {
        nb::list names;
        for (const Kernels& kernels : available()) names.append(kernels.name);
        return names;
    });
    m.def("use_isa", [](const char* name) {
        for (const Kernels& kernels : available())
            if (std::string(name) == kernels.name) {
                chosen = kernels;
                return;
            }
        throw std::invalid_argument(std::string("this machine cannot run ") + name);
    });
}
