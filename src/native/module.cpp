// The Python module: reads buffers, releases the GIL, calls the kernel and returns status, value and pair weight.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "pool.hpp"
#include "types.hpp"

namespace nb = nanobind;

namespace everypair {

#define EVERYPAIR_DECLARE(isa)                                                                   \
    namespace isa {                                                                              \
    Answer evaluate(const Batch&, const Question&, const Outputs&);                              \
    Answer evaluate_smooth(const Batch&, const Smooth&, bool mean, int threads, const Outputs&); \
    Answer concordance(const Batch&, int threads);                                               \
    Answer evaluate_ordered(const Ranked&, const Question&, double unit, const Outputs&);        \
    Answer concordance_ordered(const Ranked&, int threads);                                      \
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
};

#define EVERYPAIR_KERNELS(name, isa) \
    {name, isa::evaluate, isa::evaluate_smooth, isa::concordance, isa::evaluate_ordered, isa::concordance_ordered}

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

// A C-contiguous one-dimensional buffer, or None.
class Array {
  public:
    Array(nb::handle object, bool writable) {
        if (object.is_none()) return;
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) != 0)
            throw nb::python_error();
        held_ = true;
    }
    ~Array() {
        if (held_) PyBuffer_Release(&view_);
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    void* data() const { return held_ ? view_.buf : nullptr; }
    std::int64_t size() const { return held_ ? view_.len / view_.itemsize : 0; }

    Dtype dtype() const {
        const char* format = view_.format ? view_.format : "B";
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
            case 'q': return view_.itemsize == 4 ? Dtype::i32 : Dtype::i64;
            default: throw std::invalid_argument(std::string("unexpected buffer format ") + format);
        }
    }

    // The Python code has validated the input; this check only prevents reading beyond the buffer after a programming error.
    const Array& require(std::int64_t n, Dtype type) const {
        if (held_ && (size() != n || dtype() != type)) throw std::invalid_argument("a buffer has the wrong length or type");
        return *this;
    }

  private:
    Py_buffer view_{};
    bool held_ = false;
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
                          nb::tuple term, nb::handle value, nb::handle slope, nb::handle curvature, nb::handle inside,
                          bool mean, int threads, nb::handle grad, nb::handle hess, nb::handle hvp) {
    const Array s(scores, false), y(labels, false), w(weights, false), o(offsets, false), v(vector, false);
    const Array g(grad, true), h(hess, true), p(hvp, true);
    const Array orders[3] = {{value, false}, {slope, false}, {curvature, false}}, cubics(inside, false);
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
                  static_cast<const double*>(cubics.require(12, Dtype::f64).data())};
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

}  // namespace
}  // namespace everypair

NB_MODULE(_native, m) {
    using namespace everypair;
    m.def("evaluate", &evaluate, nb::arg("scores"), nb::arg("labels"), nb::arg("weights").none(), nb::arg("offsets").none(),
          nb::arg("vector").none(), nb::arg("terms"), nb::arg("mean"), nb::arg("threads"), nb::arg("grad").none(),
          nb::arg("hess").none(), nb::arg("hvp").none());
    m.def("evaluate_smooth", &evaluate_smooth, nb::arg("scores"), nb::arg("labels"), nb::arg("weights").none(),
          nb::arg("offsets").none(), nb::arg("vector").none(), nb::arg("term"), nb::arg("value"), nb::arg("slope"),
          nb::arg("curvature"), nb::arg("inside").none(), nb::arg("mean"), nb::arg("threads"), nb::arg("grad").none(),
          nb::arg("hess").none(), nb::arg("hvp").none());
    m.def("auc", &auc, nb::arg("scores"), nb::arg("labels"), nb::arg("weights").none(), nb::arg("offsets").none(),
          nb::arg("threads"));
    m.def("evaluate_ordered", &evaluate_ordered, nb::arg("scores"), nb::arg("ranked"), nb::arg("vector").none(),
          nb::arg("terms"), nb::arg("mean"), nb::arg("unit"), nb::arg("threads"), nb::arg("grad").none(),
          nb::arg("hess").none(), nb::arg("hvp").none());
    m.def("auc_ordered", &auc_ordered, nb::arg("scores"), nb::arg("ranked"), nb::arg("threads"));
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
