// A coverage-guided test of the kernel: the bytes of an input become a batch, which is checked as in
// kernel_test.cpp.
//
// The first bytes choose the type of the scores, the pairs, the surrogate, the results and the weights; each
// row takes five more. With -D EVERYPAIR_FUZZ_MAIN this is a program that checks the inputs in files or
// folders; else it is a target of libFuzzer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "checks.hpp"
#include "smooth_surrogate.hpp"

namespace everypair::test {
namespace {

class Input {
  public:
    Input(const std::uint8_t* data, std::size_t size) : next_(data), end_(data + size) {}

    std::ptrdiff_t left() const { return end_ - next_; }
    int byte() { return next_ < end_ ? *next_++ : 0; }
    int sign() { return static_cast<std::int8_t>(byte()); }
    int below(int end) { return byte() % end; }
    double pick(std::initializer_list<double> from) {
        return from.begin()[below(static_cast<int>(from.size()))];
    }

  private:
    const std::uint8_t *next_, *end_;
};

// Up to five terms with coefficients and shifts whose sums have no rounding error, and a piece between each
// two knots.
Surrogate polynomial(Input& input, double unit) {
    Surrogate made{"input", {}, {}};
    const double margin = unit * input.pick({1, 0, 0.1, 0.7, 1e6});
    for (int left = 1 + input.below(5); left > 0; --left) {
        const double knot = unit * input.pick({0, 1, 0.1, 0.3, -1, 0.25, 7, 64});
        const bool truncated = input.below(4) > 0;
        Term term{truncated ? margin - knot : margin, 0, 0, 0, truncated};
        for (double* b : {&term.b0, &term.b1, &term.b2})
            *b = input.pick({0, 1, -1, 0.5, 0.25, 3, -2, -0.125});
        term.b1 /= unit, term.b2 /= unit * unit;
        made.terms.push_back(term);
    }
    std::vector<double> knots{inf, -inf};
    for (const Term& term : made.terms)
        if (term.truncated) knots.push_back(term.shift);
    std::sort(knots.rbegin(), knots.rend());
    knots.erase(std::unique(knots.begin(), knots.end()), knots.end());
    for (std::size_t k = 0; k + 1 < knots.size(); ++k) {
        Piece piece{knots[k], knots[k + 1], k ? knots[k] : margin, 0, 0, 0};
        for (const Term& term : made.terms) {
            if (term.truncated && term.shift < piece.from) continue;
            const Real lag = static_cast<Real>(term.shift) - piece.shift;
            piece.c0 += term.b0 + lag * (term.b1 + lag * term.b2), piece.c1 += term.b1 + 2 * lag * term.b2;
            piece.c2 += term.b2;
        }
        made.pieces.push_back(piece);
    }
    return made;
}

// Smooth sums may lose what is below this, for a pair of weight 1 (docs/mathematics.md).
constexpr Real smooth_floor = 1e-290L;

// Errors are relative to sums of absolute values over pairs, with what no kernel can avoid: several terms
// that cancel leave rounding errors of the size that they have next to the knots that some pair reaches; the
// parts of one polynomial may cancel; squares of distances may be denormal numbers; and sums of exponentials
// underflow.
void fill_floor(Surrogate& surrogate, Real reach, double tolerance) {
    surrogate.cancels = true;
    surrogate.floor.fill(16 * std::numeric_limits<double>::denorm_min() / static_cast<Real>(tolerance));
    if (surrogate.function) {
        const Real rate = surrogate.smooth ? surrogate.smooth->rate : surrogate.exponential->rate;
        for (const int order : {0, 1, 2})
            surrogate.floor[order] += smooth_floor * std::pow(rate, order) / tolerance;
    }
    const std::vector<Piece>& pieces = surrogate.pieces;
    int n_knots = 0;
    for (std::size_t k = 0; k < pieces.size(); ++k) {
        const Piece& piece = pieces[k];
        if (piece.from == inf || piece.from + reach <= 0) continue;
        ++n_knots;
        for (int order = 0; order < 3 && surrogate.terms.size() > 1; ++order) {
            Real& floor = surrogate.floor[order];
            floor = std::max(floor, std::abs(piece.at(0)[order]));
            if (k > 0)
                floor = std::max(floor,
                                 std::abs(pieces[k - 1].at(Real{pieces[k - 1].shift} - piece.shift)[order]));
        }
    }
    if (n_knots < 2) surrogate.share = 32 * 0x1p-52 / tolerance;
}

const SmoothSurrogate& smooth_surrogate(bool squared, bool is_float, double shift, double rate) {
    static std::map<std::tuple<bool, bool, double, double>, std::unique_ptr<SmoothSurrogate>> made;
    auto& found = made[{squared, is_float, shift, rate}];
    if (!found) found = std::make_unique<SmoothSurrogate>(squared, is_float, shift, rate);
    return *found;
}

enum Pairs { binary, ordered, survival };

void fill_rows(Input& input, Case& batch, Pairs pairs, double unit) {
    Rows& rows = batch.rows;
    const double offset = unit * input.pick({0, 0, 0, 1e3, -1e6}),
                 step = input.pick({1, 0.1, 1.0 / 64, 1e-3}),
                 far = input.pick({1, 4, 1.0 / 3, 1e4, 1e8, 1e30, 1e-8, 1e-30});
    const int weighting = input.below(10), n_targets = 1 + input.below(64),
              repeats = 1 + (input.below(8) == 0 ? 3 : 0);
    const bool grouped = input.below(4) == 0;
    std::vector<double> shifts{0, unit};
    for (const Term& term : batch.surrogate.terms) shifts.push_back(term.shift);
    batch.weights = weighting < 5 ? 0 : 4;
    const auto as_given = [&](double s) {
        const double top = batch.is_float ? std::numeric_limits<float>::max() : 0x1p990;
        s = std::clamp(s, -top, top);
        return batch.is_float ? static_cast<float>(s) : s;
    };
    const auto add = [&](double s, int how, int label, int w, double v) {
        rows.scores.push_back(as_given(s));
        rows.positive.push_back(label & 1);
        rows.vector.push_back(v);
        if (pairs != binary)
            rows.ranks.push_back((label >> 1) % n_targets * 2 + (pairs == survival && label & 1));
        if (pairs == survival) rows.events.push_back(label & 1);
        if (grouped && how >= 0xe0) rows.offsets.push_back(rows.n() - 1);
        const double powers = std::ldexp(1 + w % 8 / 8.0, (label & 1 ? 1 : -1) * (w % 2 ? 300 : 200));
        const double weights[] = {w % 4 / 2.0, 1 + w / 64.0, std::exp2(w - 128),
                                  std::pow(10, (w - 128) / 32.0), powers};
        if (weighting >= 5) rows.weights.push_back(weights[weighting - 5]);
    };
    while (input.left() >= 5 && rows.n() < 256) {
        const int code = input.sign(), how = input.byte(), label = input.byte(), w = input.byte(),
                  v = input.sign();
        double s = unit * step * code + offset;
        if (!rows.scores.empty() && how % 16 > 8) {
            // On the knot of a term with another row, or next to it, or equal to that row.
            const double other = rows.scores[static_cast<std::uint8_t>(code) % rows.scores.size()];
            s = other + (label & 1 ? 1 : -1) * shifts[how / 16 % shifts.size()];
            const double away = how % 16 > 12 ? inf : -inf;
            for (int k = how % 16; k < 14 && k % 4; ++k)
                s = batch.is_float ? std::nextafter(static_cast<float>(s), static_cast<float>(away))
                                   : std::nextafter(s, away);
        } else if (how % 16 == 4) {
            s *= far;
        }
        add(s, how, label, w, v / 8.0);
    }
    const std::int64_t n = rows.n();
    for (std::int64_t i = 0; i < n * (repeats - 1); ++i)
        add(rows.scores[i] + unit * step, 0, rows.positive[i] + 2 * static_cast<int>(i % 64),
            static_cast<int>(i % 256), 1);
    if (!batch.hvp) rows.vector.clear();
    if (!grouped) return;
    if (rows.offsets.empty() || rows.offsets[0] > 0) rows.offsets.insert(rows.offsets.begin(), 0);
    rows.offsets.push_back(rows.n());
}

// Sums of the positives over the negatives, and the reverse, for a smooth surrogate without factors |d|.
void check_row_sums(const Case& batch) {
    const Rows& rows = batch.rows;
    const Smooth& smooth = *batch.surrogate.smooth;
    double polynomials[3][2][3] = {};
    std::vector<double> powers;
    for (int order = 0; order < 3; ++order)
        for (int side = 0; side < 2; ++side) {
            for (int r = 0; r < 3; ++r) polynomials[order][side][r] = side ? smooth.polynomial(order, r) : 0;
            for (int k = 0; k < smooth.n_powers[0]; ++k) powers.push_back(smooth.power(order, side, k, 0));
        }
    const everypair::Piece piece{smooth.shift, smooth.rate, powers.data(), polynomials[0][0],
                                 smooth.n_powers[0]};
    const std::vector<std::int64_t> bounds = rows.bounds();
    const std::int64_t n_groups = std::ssize(bounds) - 1;
    std::vector<double> scores[2], weights[2];  // of positives, of negatives
    std::vector<std::int64_t> offsets[2]{{0}, {0}};
    for (std::int64_t g = 0; g < n_groups; ++g) {
        for (std::int64_t i = bounds[g]; i < bounds[g + 1]; ++i)
            scores[!rows.positive[i]].push_back(rows.scores[i]),
                weights[!rows.positive[i]].push_back(rows.weight(i));
        for (const int side : {0, 1}) offsets[side].push_back(std::ssize(scores[side]));
    }
    const auto set = [&](int side) {
        return RowSet{scores[side].data(), std::ssize(scores[side]), offsets[side].data(), n_groups};
    };
    const std::unique_ptr<RowSums> sums(EVERYPAIR_ISA::kernels.row_sums(set(0), set(1), piece, 1));
    for (const int per_other : {0, 1}) {
        const std::size_t n = scores[per_other].size();
        std::vector<double> found[3]{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
        std::vector<Real> expected[3]{std::vector<Real>(n), std::vector<Real>(n), std::vector<Real>(n)};
        double* const out[] = {found[0].data(), found[1].data(), found[2].data()};
        const int orders[] = {0, 1, 2};
        sums->sums(weights[!per_other].data(), per_other, 3, orders, out, 1);
        for (std::int64_t g = 0; g < n_groups; ++g)
            for (std::int64_t i = offsets[0][g]; i < offsets[0][g + 1]; ++i)
                for (std::int64_t j = offsets[1][g]; j < offsets[1][g + 1]; ++j) {
                    const Derivatives pair =
                        batch.surrogate.function(distance(scores[1][j], smooth.shift, scores[0][i]));
                    for (const int k : orders)
                        expected[k][per_other ? j : i] += weights[!per_other][per_other ? i : j] * pair[k];
                }
        const Real total = std::accumulate(weights[!per_other].begin(), weights[!per_other].end(), Real{0});
        for (const int k : orders)
            compare(batch.text(), "row sum", found[k], expected[k], 1e-12, false,
                    total * smooth_floor * std::pow(Real{smooth.rate}, k) / 1e-12L);
    }
}

void check_input(Input input) {
    const int mode = input.below(8), flags = input.byte();
    if (mode == 7) {  // a larger batch of kernel_test.cpp
        const int number = (flags & 4 ? first_plain : 0) + 4 * input.byte() + input.below(4);
        const bool threaded = input.byte() == 7;
        const int n =
            (threaded ? 33000 : static_cast<int>(input.pick({300, 513, 1000, 3499, 4200, 6000, 9000}))) +
            input.sign() / 8;
        return flags % 4 ? check(number, n) : check_ordered(number, n);
    }
    Case batch{};
    batch.number = -1, batch.scores = 8;
    batch.is_float = flags & 1, batch.mean = flags & 2, batch.grad = flags & 4, batch.hess = flags & 8,
    batch.hvp = flags & 16;
    batch.labels = static_cast<Dtype>(input.below(6));
    batch.minus_one = flags & 32 && batch.labels != Dtype::u8;
    const Pairs pairs = mode == 5 ? ordered : mode == 6 ? survival : binary;
    const bool polynomials = mode != 3 && mode != 4;
    const int kind = input.below(6), exponent = input.sign();
    const double unit = kind ? 1 : std::exp2(polynomials ? exponent / 2 : exponent / 32 * 8),
                 rate = (kind & 2 ? 3 : 1) / unit;
    Exponential term{unit * input.below(3) / 4, rate, 1};
    if (mode == 3) {
        const SmoothSurrogate& made = smooth_surrogate(kind & 1, batch.is_float, term.shift, rate);
        batch.surrogate = {
            kind & 1 ? "squared_softplus" : "logistic", {}, {}, &made.smooth, nullptr, made.function};
    } else if (mode == 4) {
        batch.surrogate = {"exponential", {}, {}, nullptr, &term, [=](Real d) -> Derivatives {
                               return {std::exp(rate * d), rate * std::exp(rate * d),
                                       rate * rate * std::exp(rate * d)};
                           }};
    } else {
        batch.surrogate = kind == 1 ? surrogate(input.below(n_surrogates), input.pick({1, 0, 0.1}))
                                    : polynomial(input, unit);
    }
    fill_rows(input, batch, pairs, unit);
    const Rows& rows = batch.rows;
    if (rows.n() == 0) return;
    double least = inf, most = -inf;  // of the rows that win, and of those that lose
    for (std::int64_t i = 0; i < rows.n(); ++i) {
        if (pairs != binary || rows.positive[i]) least = std::min(least, rows.scores[i]);
        if (pairs != binary || !rows.positive[i]) most = std::max(most, rows.scores[i]);
    }
    fill_floor(batch.surrogate, static_cast<Real>(most) - least, batch.is_float ? 1e-6 : 1e-12);
    if (pairs == binary)
        batch.is_float ? check_as<float>(batch) : check_as<double>(batch);
    else
        batch.is_float ? check_ordered_as<float>(batch) : check_ordered_as<double>(batch);
    if (mode == 3 && !batch.is_float && !batch.surrogate.smooth->linear) check_row_sums(batch);
}

// Most batches must be computed, not declined.
bool mostly_computed() { return reached.declined < 1000 + reached.computed; }

void report() {
    std::printf("%s: %lld batches computed, %lld declined, %d failures\n", instruction_set,
                static_cast<long long>(reached.computed), static_cast<long long>(reached.declined), failures);
}

}  // namespace
}  // namespace everypair::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace everypair::test;
    [[maybe_unused]] static const int registered = std::atexit(report);
    check_input({data, size});
    if (failures || !mostly_computed()) std::fflush(stdout), std::abort();
    return 0;
}

#if defined(EVERYPAIR_FUZZ_MAIN)
int main(int count, char** arguments) {
    using namespace everypair::test;
    if (!runs_here()) return std::printf("%s: this processor cannot run it\n", instruction_set), 77;
    int files = 0;
    for (int k = 1; k < count; ++k)
        for (const auto& entry : std::filesystem::directory_iterator(arguments[k])) {
            std::ifstream file(entry.path(), std::ios::binary);
            const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
            const int before = failures;
            check_input({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
            if (failures > before) std::printf("in %s\n", entry.path().c_str());
            ++files;
        }
    report();
    return failures || !files || reached.declined > reached.computed;
}
#endif
