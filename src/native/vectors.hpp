// Vectors of doubles, an exponential that loops can vectorise, and a guard against slow denormal numbers.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace everypair::EVERYPAIR_ISA {

// Vectors as wide as the instruction set has them.
#if defined(__AVX512F__)
constexpr int lanes = 8;
#elif defined(__AVX2__)
constexpr int lanes = 4;
#else
constexpr int lanes = 2;
#endif
typedef double Vec __attribute__((vector_size(8 * lanes)));
// A vector of floats as wide as the registers, and the doubles of its lanes.
constexpr int float_lanes = 2 * lanes;
typedef float Floats __attribute__((vector_size(4 * float_lanes)));
typedef double Doubles __attribute__((vector_size(8 * float_lanes)));

// The sum of the lanes, in double.
template <class V>
double sum_of(V numbers) {
    double sum = 0;
    for (std::size_t lane = 0; lane < sizeof numbers / sizeof numbers[0]; lane += 2)
        sum += static_cast<double>(numbers[lane]) + static_cast<double>(numbers[lane + 1]);
    return sum;
}

// A number, or a vector with this number in all lanes.
template <class V>
[[gnu::always_inline]] inline V same(double number) {
    if constexpr (std::is_floating_point_v<V>)
        return static_cast<V>(number);
    else
        return V{} + static_cast<std::remove_cvref_t<decltype(V{}[0])>>(number);
}

// Whether any lane of the result of a comparison is true.
template <class Mask>
bool any(const Mask& mask) {
    auto lanes_or = mask[0];
    for (std::size_t lane = 1; lane < sizeof mask / sizeof mask[0]; ++lane) lanes_or |= mask[lane];
    return lanes_or;
}

// A polynomial in r by Horner's rule, the highest coefficient first. No loop, because the compiler does not
// vectorise nested ones.
template <class... Rest>
[[gnu::always_inline]] inline double horner(double r, double p, Rest... rest) {
    ((p = p * r + rest), ...);
    return p;
}

// exp(y) for y <= 709, and 0 for y < -708. The relative error is about 2e-16, or 5e-9 if S is float. Without
// branches, so that loops are vectorised.
template <class S = double>
[[gnu::always_inline]] inline double vector_exp(double y) {
    constexpr double magic = 0x1.8p52;  // adding it rounds to an integer
    const double z = y > -708 ? y : -708, shifted = z * 0x1.71547652b82fep0 + magic, n = shifted - magic;
    const double r = (z - n * 0x1.62e42fefa38p-1) - n * 0x1.ef35793c7673p-45;
    double p = 1.0 / 5040;
    if constexpr (std::is_same_v<S, double>)
        p = horner(r, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                   1.0 / 40320, p);
    p = horner(r, p, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0);
    const double power = std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023) << 52);
    return y > -708 ? p * power : 0;
}

// A vector from memory: a Vec of doubles, or Floats.
template <class T>
auto load(const T* from) {
    std::conditional_t<std::is_same_v<T, double>, Vec, Floats> numbers;
    std::memcpy(&numbers, from, sizeof numbers);
    return numbers;
}

inline void store(Vec numbers, double* to) { std::memcpy(to, &numbers, sizeof numbers); }

// A choice that reads both numbers: one that reads the chosen number only is vectorised with masked loads,
// which are slow.
template <class S>
[[gnu::always_inline]] inline S either(bool first, S a, S b) {
    return first ? a : b;
}

// The largest of many numbers, and of `least`.
//
// A maximum must not be the reduction of a simd loop, because GCC 13 compiles "#pragma omp simd reduction(max
// : most)" to wrong code if the loop chooses the numbers by a condition. GCC keeps one copy of `most` for
// each lane in an array on the stack. If the copy is read on some paths through the loop only, the read
// becomes a masked load, and the address of this load moves on by one vector in each turn, until it leaves
// the stack. docs/reliability.md has a short program that shows it. So the numbers are chosen first and
// compared afterwards. Sums may be reductions, because every path reads them.
template <class S>
class Largest {
  public:
    using Lanes = decltype(load(static_cast<const S*>(nullptr)));
    static constexpr int lanes = sizeof(Lanes) / sizeof(S);

    explicit Largest(S least) : most_(Lanes{} + least), rest_(least) {}

    void add(const Lanes& numbers) { most_ = numbers > most_ ? numbers : most_; }
    void add(const S* numbers, std::int64_t n) {
        if (n < lanes) {
            for (std::int64_t i = 0; i < n; ++i) rest_ = numbers[i] > rest_ ? numbers[i] : rest_;
            return;
        }
        Lanes most = most_;
        for (std::int64_t i = 0; i < n; i += lanes) {
            const Lanes next =
                load(numbers + (i + lanes <= n ? i : n - lanes));  // the last numbers may be compared twice
            most = next > most ? next : most;
        }
        most_ = most;
    }
    // Adds choose(i) for i = 0 .. n - 1.
    template <class Choose>
    void add(std::int64_t n, Choose&& choose) {
        constexpr int block = 512;
        S numbers[block];
        for (std::int64_t begin = 0; begin < n; begin += block) {
            const int count = static_cast<int>(n - begin < block ? n - begin : block);
#pragma omp simd
            for (int i = 0; i < count; ++i) numbers[i] = choose(begin + i);
            add(numbers, count);
        }
    }
    S value() const {
        S most = rest_;
        for (int lane = 0; lane < lanes; ++lane) most = most_[lane] > most ? most_[lane] : most;
        return most;
    }

  private:
    Lanes most_;
    S rest_;
};

// Fills first, first x, first x^2, ...
template <int V>
void fill_powers(double x, double first, Vec* out) {
    const double x2 = x * x, x3 = x2 * x, x4 = x2 * x2, powers[] = {1, x, x2, x3, x4, 0, 0, 0, x4 * x4};
    const auto vector = [&]<int... lane>(std::integer_sequence<int, lane...>) {
        if constexpr (lanes < 8) return Vec{powers[lane]...};
        // A product of vectors that have a power of x in the lanes whose number has this bit, which needs few
        // shuffles.
        const auto factor = [](int bit, double power) {
            return decltype(Vec{} < 0){(lane & bit ? -1 : 0)...} ? Vec{} + power : Vec{} + 1;
        };
        return factor(1, x) * factor(2, x2) * factor(4, x4);
    };
    out[0] = vector(std::make_integer_sequence<int, lanes>()) * first;
    for (int v = 1; v < V; ++v) out[v] = out[v - 1] * powers[lanes];
}

// The chosen elements of two vectors; those of b are numbered after those of a.
template <int... elements, class V>
[[gnu::always_inline]] inline V shuffle(V a, V b) {
#if __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, elements...);
#else  // GCC 11
    return __builtin_shuffle(a, b, decltype(a < b){elements...});
#endif
}

// Turns four vectors of four numbers, the rows of a matrix, into its columns.
template <class Quad>
void transpose(Quad a, Quad b, Quad c, Quad d, Quad* to) {
    const Quad ab0 = shuffle<0, 4, 1, 5>(a, b), ab1 = shuffle<2, 6, 3, 7>(a, b);
    const Quad cd0 = shuffle<0, 4, 1, 5>(c, d), cd1 = shuffle<2, 6, 3, 7>(c, d);
    to[0] = shuffle<0, 1, 4, 5>(ab0, cd0), to[1] = shuffle<2, 3, 6, 7>(ab0, cd0);
    to[2] = shuffle<0, 1, 4, 5>(ab1, cd1), to[3] = shuffle<2, 3, 6, 7>(ab1, cd1);
}

// Up to eight coefficients of the function of one bucket.
template <class S>
struct Octet {
    typedef S Quad __attribute__((vector_size(4 * sizeof(S)), may_alias));
    Quad low, high;  // coefficients 0 .. 3 and 4 .. 7

    S& operator[](int j) { return reinterpret_cast<S*>(this)[j]; }
    S operator[](int j) const { return reinterpret_cast<const S*>(this)[j]; }

    // Writes the results of formula(q, x, result) for rows with these slots and offsets x, four rows at a
    // time; q[j] has coefficient j of their lines. After the last row, there are slots and offsets up to a
    // multiple of four.
    template <class Formula>
    static void evaluate(const Octet* lines, const std::int32_t* slots, const S* offsets, int count, S* out,
                         Formula&& formula) {
        for (int i = 0; i < count; i += 4) {
            const Octet &a = lines[slots[i]], &b = lines[slots[i + 1]], &c = lines[slots[i + 2]],
                        &d = lines[slots[i + 3]];
            Quad q[8], x, results;
            transpose(a.low, b.low, c.low, d.low, q);
            transpose(a.high, b.high, c.high, d.high, q + 4);
            std::memcpy(&x, offsets + i, sizeof x);
            formula(q, x, results);
            if (i + 4 <= count)
                std::memcpy(out + i, &results, sizeof results);
            else
                for (int k = i; k < count; ++k) out[k] = results[k - i];
        }
    }
};

// While it exists, numbers below 2^-1022 count as 0 on this thread. Running sums decay to them, and they are
// very slow.
class FlushDenormals {
  public:
#if defined(__SSE2__)
    FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#elif defined(__aarch64__)
    FlushDenormals() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(saved_ | std::uint64_t{1} << 24));
    }
    ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

  private:
    std::uint64_t saved_;
#endif
};

}  // namespace everypair::EVERYPAIR_ISA
