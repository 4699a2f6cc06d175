// The arrays that Python passes, and the arguments of kernels that are made of them.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "types.hpp"

namespace everypair {

namespace nb = nanobind;

// A contiguous array; the data of None are null.
struct Array {
    void* data = nullptr;
    Dtype type = Dtype::f64;
    std::int64_t size = 0;

    // The data, or null. The Python code has validated the input; this check only prevents reading beyond the
    // buffer after a programming error.
    void* checked(std::int64_t n, Dtype expected) const {
        if (data && (size != n || type != expected))
            throw std::invalid_argument("a buffer has the wrong length or type");
        return data;
    }
};

// The type of elements with a format as in `struct`.
inline Dtype dtype_from(const char* format, std::int64_t itemsize) {
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
        case 'q': return itemsize == 4 ? Dtype::i32 : Dtype::i64;
        default: throw std::invalid_argument(std::string("unexpected buffer format ") + format);
    }
}

template <class T>
constexpr Dtype dtype_of = std::is_same_v<T, double>         ? Dtype::f64
                           : std::is_same_v<T, std::int64_t> ? Dtype::i64
                           : std::is_same_v<T, std::uint8_t> ? Dtype::u8
                                                             : Dtype::f32;

inline std::int64_t check_rows(std::int64_t n) {
    if (n < 1 || n >= std::int64_t{1} << 32)
        throw std::invalid_argument("arrays must have between 1 and 2^32 - 1 rows");
    return n;
}

// The arrays of one call, which stay open until it ends, and the arguments of kernels that are made of them.
class Arrays {
  public:
    Arrays() = default;
    Arrays(const Arrays&) = delete;
    Arrays& operator=(const Arrays&) = delete;
    ~Arrays() {
        while (used_ > 0) PyBuffer_Release(&views_[--used_]);
    }

    // Opens a buffer or None.
    Array open(nb::handle object, bool writable = false) {
        if (object.is_none()) return {};
        if (used_ == std::size(views_)) throw std::logic_error("too many arrays");
        Py_buffer& view = views_[used_];
        if (PyObject_GetBuffer(object.ptr(), &view,
                               PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) != 0)
            throw nb::python_error();
        ++used_;
        return {view.buf, dtype_from(view.format ? view.format : "B", view.itemsize),
                view.len / view.itemsize};
    }

    // n numbers of type T; null if the array is None.
    template <class T>
    const T* read(nb::handle object, std::int64_t n) {
        return static_cast<const T*>(open(object).checked(n, dtype_of<T>));
    }
    template <class T>
    T* write(nb::handle object, std::int64_t n) {
        return static_cast<T*>(open(object, true).checked(n, dtype_of<T>));
    }
    // All numbers of an array; none if it is None.
    template <class T>
    std::span<const T> read(nb::handle object) {
        const Array array = open(object);
        return {static_cast<const T*>(array.checked(array.size, dtype_of<T>)),
                static_cast<std::size_t>(array.size)};
    }

    // `pairs` is None for binary pairs, or has the arrays of ordered pairs: the events of targets; or order,
    // ranks, winner, loser and exponent of ranked rows.
    Batch batch(const Array& scores, const Array& labels, nb::handle weights = nb::none(),
                nb::handle vector = nb::none(), nb::handle offsets = nb::none(),
                nb::handle pairs = nb::none()) {
        const std::int64_t n = check_rows(scores.size);
        if (scores.type != Dtype::f32 && scores.type != Dtype::f64)
            throw std::invalid_argument("scores must be float32 or float64");
        const double *w = read<double>(weights, n), *v = read<double>(vector, n);
        const auto [starts, n_groups] = groups(offsets, n);
        Batch batch{scores.data, scores.type, labels.checked(n, labels.type), labels.type, w, v, n,
                    starts,      n_groups};
        if (pairs.is_none()) return batch;
        const nb::tuple arrays = nb::cast<nb::tuple>(pairs);
        if (arrays.size() == 1) {
            batch.pairs = Pairs::targets, batch.events = read<std::uint8_t>(arrays[0], n);
            return batch;
        }
        if (!starts) throw std::invalid_argument("ranked rows need offsets");
        batch.pairs = Pairs::ranked, batch.exponent = nb::cast<int>(arrays[4]);
        batch.order = read<std::int64_t>(arrays[0], n), batch.ranks = read<std::int64_t>(arrays[1], n);
        batch.winner = read<double>(arrays[2], n), batch.loser = read<double>(arrays[3], n);
        return batch;
    }

    RowSet row_set(nb::handle scores, nb::handle offsets) {
        const std::span<const double> s = read<double>(scores);
        const std::int64_t n = check_rows(std::ssize(s));
        const auto [starts, n_groups] = groups(offsets, n, true);
        return {s.data(), n, starts, n_groups};
    }

    Outputs outputs(const Batch& rows, nb::handle grad, nb::handle hess = nb::none(),
                    nb::handle hvp = nb::none()) {
        const auto result = [&](nb::handle array) {
            return open(array, true).checked(rows.n, rows.score_type);
        };
        if (!hvp.is_none() && !rows.vector)
            throw std::invalid_argument("a Hessian-vector product needs a vector");
        return {result(grad), result(hess), result(hvp)};
    }

    // `surrogate` is an `everypair.kernel.native.NativeForm`: terms, smooth form and exponential term, two of
    // which are None.
    Question question(const nb::tuple& surrogate, bool mean, int threads) {
        Question question{nullptr, 0, mean, threads};
        if (const nb::object smooth = surrogate[1]; !smooth.is_none()) {
            smooth_ = read_smooth(nb::cast<nb::tuple>(smooth));
            question.smooth = &smooth_;
        } else if (const nb::object exponential = surrogate[2]; !exponential.is_none()) {
            const nb::tuple term = nb::cast<nb::tuple>(exponential);
            exponential_ = {number(term, 0), number(term, 1), number(term, 2)};
            question.exponential = &exponential_;
        } else {
            for (nb::handle item : nb::cast<nb::tuple>(surrogate[0])) {
                const nb::tuple term = nb::cast<nb::tuple>(item);
                terms_.push_back({number(term, 0), number(term, 1), number(term, 2), number(term, 3),
                                  nb::cast<bool>(term[4])});
            }
            if (terms_.empty()) throw std::invalid_argument("terms must not be empty");
            question.terms = terms_.data();
            question.n_terms = static_cast<int>(terms_.size());
        }
        return question;
    }

    // `piece` has the shift, rate, powers and polynomials of an `everypair.row_sums._pieces.Piece`.
    Piece piece(const nb::tuple& piece) {
        const std::span<const double> powers = read<double>(piece[2]);
        if (powers.size() % 6 || powers.size() > 6 * max_powers)
            throw std::invalid_argument("wrong number of powers");
        return {number(piece, 0), number(piece, 1), powers.data(), read<double>(piece[3], 18),
                static_cast<int>(powers.size() / 6)};
    }

  private:
    static double number(const nb::tuple& numbers, int k) { return nb::cast<double>(numbers[k]); }

    // Offsets of groups of n rows, and their number; without offsets there is one group. A group may be empty
    // if `may_be_empty`.
    std::pair<const std::int64_t*, std::int64_t> groups(nb::handle object, std::int64_t n,
                                                        bool may_be_empty = false) {
        if (object.is_none()) return {nullptr, 1};
        const std::span<const std::int64_t> offsets = read<std::int64_t>(object);
        const bool is_valid = offsets.size() > 1 && offsets.front() == 0 && offsets.back() == n &&
                              std::ranges::adjacent_find(offsets, [&](std::int64_t begin, std::int64_t end) {
                                  return begin + !may_be_empty > end;
                              }) == offsets.end();
        if (!is_valid) throw std::invalid_argument("offsets must rise from 0 to the number of rows");
        return {offsets.data(), std::ssize(offsets) - 1};
    }

    // `form` is an `everypair.kernel.bucket_series.SmoothForm`: the term, value, slope, curvature, series and
    // inside.
    Smooth read_smooth(const nb::tuple& form) {
        const nb::tuple term = nb::cast<nb::tuple>(form[0]);
        Smooth smooth{number(term, 0), number(term, 1),         number(term, 2), number(term, 3),
                      number(term, 4), nb::cast<bool>(term[5]), number(term, 6)};
        for (int order = 0; order < 3; ++order) {
            const std::span<const double> powers = read<double>(form[1 + order]);
            if (powers.empty() || powers.size() % 4 || powers.size() > 4 * max_powers)
                throw std::invalid_argument("wrong number of powers");
            smooth.powers[order] = powers.data();
            smooth.n_powers[order] = static_cast<int>(powers.size() / 4);
        }
        const std::span<const double> series = read<double>(form[4]);
        smooth.series = series.data();
        smooth.n_series = static_cast<int>(series.size() / (2 * bucket_moments));
        smooth.inside = read<double>(form[5], 3 * bucket_moments * bucket_moments);
        if (smooth.width > 0 && (!smooth.inside || smooth.n_series < 1 || smooth.n_series > max_powers))
            throw std::invalid_argument("buckets need the polynomials that replace the function");
        return smooth;
    }

    Py_buffer views_[14];
    std::size_t used_ = 0;
    std::vector<Term> terms_;
    Smooth smooth_;
    Exponential exponential_;
};

}  // namespace everypair
