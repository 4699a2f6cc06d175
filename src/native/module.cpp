// The Python module: reads buffers, releases the GIL, calls the kernel and returns status, value and pair
// weight.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "pool.hpp"
#include "stream.hpp"
#include "tensors.hpp"
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
    std::string name;
    const Kernels* kernels;
};

// The instruction sets of this machine, the best one last.
std::vector<InstructionSet> available() {
#if defined(__aarch64__)
    std::vector<InstructionSet> sets{{"neon", &baseline::kernels}};
#else
    std::vector<InstructionSet> sets{{"baseline", &baseline::kernels}};
#endif
#if defined(EVERYPAIR_X86_DISPATCH)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
        sets.push_back({"avx2", &avx2::kernels});
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
            sets.push_back({"avx512", &avx512::kernels});
    }
#endif
    return sets;
}

InstructionSet chosen = available().back();

// Calls a kernel without the GIL.
template <class Call>
auto unlocked(Call&& call) {
    nb::gil_scoped_release released;
    return call();
}

// The same for a kernel that returns status, value and pair weight.
template <class Call>
nb::tuple answer(Call&& call) {
    const Answer result = unlocked(call);
    return nb::make_tuple(result.status, result.value, result.pair_weight);
}

nb::tuple evaluate(nb::handle scores, nb::handle labels, nb::handle weights, nb::handle offsets,
                   nb::handle pairs, nb::handle vector, nb::tuple surrogate, bool mean, int threads,
                   nb::handle grad, nb::handle hess, nb::handle hvp) {
    Arrays arrays;
    const Batch batch =
        arrays.batch(arrays.open(scores), arrays.open(labels), weights, vector, offsets, pairs);
    const Outputs outputs = arrays.outputs(batch, grad, hess, hvp);
    const Question question = arrays.question(surrogate, mean, threads);
    return answer([&] { return chosen.kernels->evaluate(batch, question, outputs); });
}

// Value, pair weight and gradient as new tensors and a number; None if the kernel cannot read the tensors as
// they are, if a value is bad, or if the loss or the gradient may be too large for the scores' type.
nb::object evaluate_tensors(nb::handle scores, nb::handle labels, nb::handle weights, nb::tuple surrogate,
                            bool mean, int threads) {
    constexpr double ordinary_loss = 1e30;
    const Column s(scores), y(labels);
    const std::int64_t n = s.array.size;
    if (n == 0 || y.array.size != n || (s.array.type != Dtype::f32 && s.array.type != Dtype::f64))
        return nb::none();
    Arrays arrays;
    const Batch batch = arrays.batch(s.array, y.array, weights);
    const Question question = arrays.question(surrogate, mean, threads);
    NewTensor grad(batch.score_type, s.n_dims, n), value(batch.score_type, 0, 1);
    const Answer result =
        unlocked([&] { return chosen.kernels->evaluate(batch, question, {grad.data(), nullptr, nullptr}); });
    if (result.status || !(std::abs(result.value) < ordinary_loss)) return nb::none();
    with_scores(batch.score_type,
                [&]<class S>(S) { *static_cast<S*>(value.data()) = static_cast<S>(result.value); });
    return nb::make_tuple(value.release(), result.pair_weight, grad.release());
}

nb::tuple concordance(nb::handle scores, nb::handle labels, nb::handle weights, nb::handle offsets,
                      nb::handle pairs, int threads, nb::handle ordered, nb::handle counts) {
    Arrays arrays;
    const Batch batch =
        arrays.batch(arrays.open(scores), arrays.open(labels), weights, nb::none(), offsets, pairs);
    const RowCounts of_rows{arrays.write<double>(ordered, batch.n), arrays.write<double>(counts, batch.n)};
    return answer([&] { return chosen.kernels->concordance(batch, threads, of_rows); });
}

nb::tuple split(nb::handle scores, nb::handle labels, nb::handle pos, nb::handle neg) {
    Arrays arrays;
    const Batch batch = arrays.batch(arrays.open(scores), arrays.open(labels));
    void *to_pos = arrays.open(pos, true).checked(batch.n, batch.score_type),
         *to_neg = arrays.open(neg, true).checked(batch.n, batch.score_type);
    const auto result = unlocked([&] {
        return with_scores(batch.score_type, [&]<class S>(S) {
            return with_labels(batch, [&](const auto* classes) {
                return stream::split(static_cast<const S*>(batch.scores), classes, batch.n,
                                     static_cast<S*>(to_pos), static_cast<S*>(to_neg));
            });
        });
    });
    return nb::make_tuple(result.status, result.n_pos);
}

void count(nb::handle scores, int bits, nb::handle table) {
    Arrays arrays;
    if (bits < 16 || bits > 22) throw std::invalid_argument("bits must be between 16 and 22");
    const std::span<const float> rows = arrays.read<float>(scores);
    auto* buckets = arrays.write<std::int64_t>(table, std::int64_t{3} << bits);
    unlocked([&] { stream::count(rows.data(), std::ssize(rows), bits, buckets); });
}

// What Python holds. nanobind frees an object with the alignment of the class that it knows, but plans have
// that of their vectors.
struct PreparedSums {
    std::unique_ptr<RowSums> plan;
};

PreparedSums row_sums(nb::handle rows, nb::handle others, nb::handle row_offsets, nb::handle other_offsets,
                      nb::tuple piece, int threads) {
    Arrays arrays;
    const RowSet of_rows = arrays.row_set(rows, row_offsets),
                 of_others = arrays.row_set(others, other_offsets);
    if (of_rows.n_groups != of_others.n_groups)
        throw std::invalid_argument("rows and others must have the same groups");
    const Piece function = arrays.piece(piece);
    PreparedSums prepared{unlocked([&] {
        return std::unique_ptr<RowSums>(chosen.kernels->row_sums(of_rows, of_others, function, threads));
    })};
    return prepared;
}

// `outputs` has an array or None for each order.
void fill_row_sums(const PreparedSums& prepared, nb::handle weights, bool per_other, int threads,
                   nb::tuple outputs) {
    Arrays arrays;
    const RowSums& plan = *prepared.plan;
    const double* of_sources = arrays.read<double>(weights, per_other ? plan.n_rows : plan.n_others);
    int n_orders = 0, orders[3];
    double* sums[3];
    for (int order = 0; order < 3; ++order)
        if (double* to = arrays.write<double>(outputs[order], per_other ? plan.n_others : plan.n_rows))
            orders[n_orders] = order, sums[n_orders++] = to;
    unlocked([&] { plan.sums(of_sources, per_other, n_orders, orders, sums, threads); });
}

double smooth_precision(nb::handle scores, nb::handle positive, nb::handle weights, nb::handle shares,
                        nb::tuple piece, int threads, nb::handle grad) {
    Arrays arrays;
    const Batch batch = arrays.batch(arrays.open(scores), arrays.open(positive), weights);
    const auto is_pos = arrays.read<std::uint8_t>(positive);
    const std::int64_t n_pos = batch.n - std::ranges::count(is_pos, 0);
    if (n_pos == 0 || n_pos == batch.n) throw std::invalid_argument("both classes are needed");
    const double* of_pos = arrays.read<double>(shares, n_pos);
    double* out = arrays.write<double>(grad, batch.n);
    const Piece function = arrays.piece(piece);
    return unlocked([&] { return chosen.kernels->smooth_precision(batch, of_pos, function, threads, out); });
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
    bind(m, "evaluate", evaluate);
    bind(m, "evaluate_tensors", evaluate_tensors);
    bind(m, "concordance", concordance);
    bind(m, "split", split);
    bind(m, "count", count);
    nb::class_<PreparedSums>(m, "RowSums").def("fill", &fill_row_sums);
    bind(m, "row_sums", row_sums);
    bind(m, "smooth_precision", smooth_precision);
    m.def("borrow_team", [](std::uintptr_t fork) { borrow_team(reinterpret_cast<Fork*>(fork)); });
    m.def("read_tensors", set_exchange);
    m.def("isa", [] { return chosen.name.c_str(); });
    // For tests and benchmarks: all instruction sets that this machine can run.
    m.def("isas", [] {
        nb::list names;
        for (const InstructionSet& set : available()) names.append(set.name.c_str());
        return names;
    });
    m.def("use_isa", [](const char* name) {
        for (const InstructionSet& set : available())
            if (set.name == name) return void(chosen = set);
        throw std::invalid_argument(std::string("this machine cannot run ") + name);
    });
}
