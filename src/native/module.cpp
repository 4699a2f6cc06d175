// The Python module: reads buffers, releases the GIL, calls the kernel and returns status, value and pair weight.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "pool.hpp"
#include "stream.hpp"
#include "types.hpp"

namespace nb = nanobind;

namespace everypair {

// Each instruction set has its own copy of the kernels (kernels.cpp).
namespace baseline {
extern const Kernels kernels;
}
#if defined(EVERYPAIR_X86_DISPATCH)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

namespace {

struct InstructionSet {
    const char* name;
    const Kernels* kernels;
};

// The instruction sets of this machine, the best one last.
std::vector<InstructionSet> available() {
#if defined(__aarch64__)
    std::vector<InstructionSet> here{{"neon", &baseline::kernels}};
#else
    std::vector<InstructionSet> here{{"baseline", &baseline::kernels}};
#endif
#if defined(EVERYPAIR_X86_DISPATCH)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
        here.push_back({"avx2", &avx2::kernels});
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512bw"))
            here.push_back({"avx512", &avx512::kernels});
    }
#endif
    return here;
}

InstructionSet chosen = available().back();

std::vector<Term> terms_of(nb::tuple terms) {
    std::vector<Term> parsed;
    for (nb::handle term : terms)
        parsed.push_back({nb::cast<double>(term[0]), nb::cast<double>(term[1]), nb::cast<double>(term[2]),
                          nb::cast<double>(term[3]), nb::cast<bool>(term[4])});
    if (parsed.empty()) throw std::invalid_argument("terms must not be empty");
    return parsed;
}

Question question_of(const std::vector<Term>& terms, bool mean, int threads) {
    return {terms.data(), static_cast<int>(terms.size()), mean, threads};
}

// Calls a kernel without the GIL.
template <class Call>
auto unlocked(Call&& call) {
    nb::gil_scoped_release released;
    return call();
}

// Status, value and pair weight. For ordered pairs there is no status: the Python code checks the values.
nb::tuple with_status(const Answer& answer) { return nb::make_tuple(answer.status, answer.value, answer.pair_weight); }
nb::tuple without_status(const Answer& answer) { return nb::make_tuple(answer.value, answer.pair_weight); }

// The three forms of a surrogate, each with its kernel.
void parse(Arrays&, nb::tuple terms, std::vector<Term>& form) { form = terms_of(terms); }
void parse(Arrays& arrays, nb::tuple smooth, Smooth& form) { form = arrays.smooth(smooth); }
// `exponential` is an `everypair.surrogates.ExponentialCoefficients`.
void parse(Arrays&, nb::tuple exponential, Exponential& form) {
    form = {nb::cast<double>(exponential[0]), nb::cast<double>(exponential[1]), nb::cast<double>(exponential[2])};
}

Answer call(const Batch& batch, const std::vector<Term>& form, bool mean, int threads, const Outputs& outputs) {
    return chosen.kernels->evaluate(batch, question_of(form, mean, threads), outputs);
}
Answer call(const Batch& batch, const Smooth& form, bool mean, int threads, const Outputs& outputs) {
    return chosen.kernels->evaluate_smooth(batch, form, mean, threads, outputs);
}
Answer call(const Batch& batch, const Exponential& form, bool mean, int threads, const Outputs& outputs) {
    return chosen.kernels->evaluate_exponential(batch, form, mean, threads, outputs);
}

template <class Form>
nb::tuple evaluate(nb::handle scores, nb::handle labels, nb::handle weights, nb::handle offsets, nb::handle vector,
                   nb::tuple surrogate, bool mean, int threads, nb::handle grad, nb::handle hess, nb::handle hvp) {
    Arrays arrays;
    const Batch batch = arrays.batch(scores, labels, weights, vector, offsets);
    const Outputs outputs = arrays.outputs(batch, grad, hess, hvp);
    Form form{};
    parse(arrays, surrogate, form);
    return with_status(unlocked([&] { return call(batch, form, mean, threads, outputs); }));
}

nb::tuple auc(nb::handle scores, nb::handle labels, nb::handle weights, nb::handle offsets, int threads) {
    Arrays arrays;
    const Batch batch = arrays.batch(scores, labels, weights, nb::none(), offsets);
    return with_status(unlocked([&] { return chosen.kernels->concordance(batch, threads); }));
}

nb::tuple evaluate_ordered(nb::handle scores, nb::tuple ranked, nb::handle vector, nb::tuple terms, bool mean, double unit,
                           int threads, nb::handle grad, nb::handle hess, nb::handle hvp) {
    Arrays arrays;
    const Ranked rows = arrays.ranked(scores, ranked, vector);
    const Outputs outputs = arrays.outputs(rows, grad, hess, hvp);
    const std::vector<Term> parsed = terms_of(terms);
    const Question question = question_of(parsed, mean, threads);
    return without_status(unlocked([&] { return chosen.kernels->evaluate_ordered(rows, question, unit, outputs); }));
}

nb::tuple auc_ordered(nb::handle scores, nb::tuple ranked, int threads) {
    Arrays arrays;
    const Ranked rows = arrays.ranked(scores, ranked);
    return without_status(unlocked([&] { return chosen.kernels->concordance_ordered(rows, threads); }));
}

nb::tuple evaluate_graded(nb::handle scores, nb::handle targets, nb::tuple terms, bool mean, int threads, nb::handle grad) {
    Arrays arrays;
    const Batch batch = arrays.batch(scores, targets);
    const Outputs outputs = arrays.outputs(batch, grad);
    const std::vector<Term> parsed = terms_of(terms);
    const Question question = question_of(parsed, mean, threads);
    return without_status(unlocked([&] { return chosen.kernels->evaluate_graded(batch, question, outputs); }));
}

void rank_targets(nb::handle targets, nb::handle events, nb::handle order, nb::handle ranks) {
    Arrays arrays;
    const Array& y = arrays.open(targets);
    const std::int64_t n = check_rows(y.size());
    const Batch batch{nullptr, Dtype::f64, y.data(n, y.dtype()), y.dtype(), nullptr, nullptr, n, nullptr, 1};
    const auto* is_event = arrays.read<std::uint8_t>(events, n);
    auto *rows = arrays.write<std::int64_t>(order, n), *numbers = arrays.write<std::int64_t>(ranks, n);
    unlocked([&] { chosen.kernels->rank_targets(batch, is_event, rows, numbers); });
}

nb::tuple auc_targets(nb::handle scores, nb::handle targets, nb::handle events, nb::handle ordered, nb::handle pairs) {
    Arrays arrays;
    const Batch batch = arrays.batch(scores, targets);
    const auto* is_event = arrays.read<std::uint8_t>(events, batch.n);
    double *in_order = arrays.write<double>(ordered, batch.n), *all = arrays.write<double>(pairs, batch.n);
    if (!in_order != !all) throw std::invalid_argument("both arrays of a row's pairs are needed, or none");
    return without_status(unlocked([&] { return chosen.kernels->concordance_targets(batch, is_event, in_order, all); }));
}

nb::tuple split(nb::handle scores, nb::handle labels, nb::handle pos, nb::handle neg) {
    Arrays arrays;
    const Batch batch = arrays.batch(scores, labels);
    void *to_pos = arrays.open(pos, true).data(batch.n, batch.score_type),
         *to_neg = arrays.open(neg, true).data(batch.n, batch.score_type);
    const auto of_type = [&]<class S>(S) {
        return with_labels(batch, [&](const auto* given) {
            const S* rows = static_cast<const S*>(batch.scores);
            return stream::split(rows, given, batch.n, static_cast<S*>(to_pos), static_cast<S*>(to_neg));
        });
    };
    const auto answer = unlocked([&] { return batch.score_type == Dtype::f32 ? of_type(float{}) : of_type(double{}); });
    return nb::make_tuple(answer.status, answer.n_pos);
}

void count(nb::handle scores, int bits, nb::handle table) {
    Arrays arrays;
    if (bits < 16 || bits > 22) throw std::invalid_argument("bits must be between 16 and 22");
    const Array& s = arrays.open(scores);
    const auto* rows = static_cast<const float*>(s.data(s.size(), Dtype::f32));
    auto* buckets = arrays.write<std::int64_t>(table, std::int64_t{3} << bits);
    unlocked([&] { stream::count(rows, s.size(), bits, buckets); });
}

// A prepared sum, with the sizes of the arrays that it reads and writes.
struct PreparedRowSums {
    std::unique_ptr<RowSums> kernel;
    std::int64_t n_rows, n_others;
};

PreparedRowSums* row_sums(nb::handle rows, nb::handle others, nb::handle row_offsets, nb::handle other_offsets, double shift,
                          double rate, nb::handle powers, nb::handle polynomials, int threads) {
    Arrays arrays;
    std::int64_t n_groups[2];
    const auto row_set = [&](int k, nb::handle scores, nb::handle offsets) {
        const Array& s = arrays.open(scores);
        const std::int64_t n = check_rows(s.size());
        const Arrays::Groups groups = arrays.groups(offsets, n, true);
        n_groups[k] = groups.count;
        return RowSet{static_cast<const double*>(s.data(n, Dtype::f64)), n, groups.offsets};
    };
    const RowSet of_rows = row_set(0, rows, row_offsets), of_others = row_set(1, others, other_offsets);
    if (n_groups[0] != n_groups[1]) throw std::invalid_argument("rows and others must have the same groups");
    const Piece piece = arrays.piece(powers, polynomials, shift, rate);
    std::unique_ptr<RowSums> kernel(
        unlocked([&] { return chosen.kernels->row_sums(of_rows, of_others, piece, n_groups[0], threads); }));
    return new PreparedRowSums{std::move(kernel), of_rows.n, of_others.n};
}

void fill_row_sums(const PreparedRowSums& prepared, nb::handle weights, nb::tuple orders, bool per_other, int threads,
                   nb::tuple outputs) {
    Arrays arrays;
    const int n_orders = static_cast<int>(orders.size());
    if (n_orders > 3 || outputs.size() != orders.size()) throw std::invalid_argument("orders and outputs do not agree");
    int wanted[3];
    double* out[3];
    for (int k = 0; k < n_orders; ++k) {
        wanted[k] = nb::cast<int>(orders[k]);
        if (wanted[k] < 0 || wanted[k] > 2) throw std::invalid_argument("an order must be 0, 1 or 2");
        out[k] = arrays.write<double>(outputs[k], per_other ? prepared.n_others : prepared.n_rows);
    }
    const double* given = arrays.read<double>(weights, per_other ? prepared.n_rows : prepared.n_others);
    unlocked([&] { prepared.kernel->sums(given, per_other, n_orders, wanted, out, threads); });
}

double smooth_precision(nb::handle scores, nb::handle positive, nb::handle weights, nb::handle shares, double rate,
                        nb::handle powers, nb::handle polynomials, int threads, nb::handle grad) {
    Arrays arrays;
    const Batch rows = arrays.batch(scores, positive, weights);
    const std::int64_t n = rows.n;
    const auto* is_pos = arrays.read<std::uint8_t>(positive, n);
    const std::int64_t n_pos = n - std::count(is_pos, is_pos + n, 0);
    if (n_pos == 0 || n_pos == n) throw std::invalid_argument("both classes are needed");
    const double* of_pos = arrays.read<double>(shares, n_pos);
    const PrecisionBatch batch{rows.scores, rows.score_type, is_pos, rows.weights, of_pos, n, arrays.write<double>(grad, n)};
    const Piece piece = arrays.piece(powers, polynomials, 0, rate);
    return unlocked([&] { return chosen.kernels->smooth_precision(batch, piece, threads); });
}

// Binds a function of positional arguments, each of which may be None.
template <class Result, class... Arguments>
void bind(nb::module_& m, const char* name, Result (*function)(Arguments...)) {
    m.def(name, function, (static_cast<void>(sizeof(Arguments)), nb::arg().none())...);
}

}  // namespace
}  // namespace everypair

// The names of the arguments are in everypair/_native.pyi.
NB_MODULE(_native, m) {
    using namespace everypair;
    bind(m, "evaluate", evaluate<std::vector<Term>>);
    bind(m, "evaluate_smooth", evaluate<Smooth>);
    bind(m, "evaluate_exponential", evaluate<Exponential>);
    bind(m, "auc", auc);
    bind(m, "evaluate_ordered", evaluate_ordered);
    bind(m, "auc_ordered", auc_ordered);
    bind(m, "evaluate_graded", evaluate_graded);
    bind(m, "rank_targets", rank_targets);
    bind(m, "auc_targets", auc_targets);
    bind(m, "split", split);
    bind(m, "count", count);
    nb::class_<PreparedRowSums>(m, "RowSums").def("fill", &fill_row_sums);
    bind(m, "row_sums", row_sums);
    bind(m, "smooth_precision", smooth_precision);
    m.def("borrow_team", [](std::uintptr_t fork) { borrow_team(reinterpret_cast<Fork*>(fork)); });
    m.def("isa", [] { return chosen.name; });
    // For tests and benchmarks: all instruction sets that this machine can run.
    m.def("isas", [] {
        nb::list names;
        for (const InstructionSet& set : available()) names.append(set.name);
        return names;
    });
    m.def("use_isa", [](const char* name) {
        for (const InstructionSet& set : available())
            if (std::string(name) == set.name) {
                chosen = set;
                return;
            }
        throw std::invalid_argument(std::string("this machine cannot run ") + name);
    });
}
