// Double-double arithmetic: a number is the sum of two doubles, with about 31 digits. For sums in which most
// digits cancel.
#pragma once

namespace everypair::EVERYPAIR_ISA {

struct DoubleDouble {
    double high = 0, low = 0;

    DoubleDouble() = default;
    DoubleDouble(double value) : high(value) {}
    explicit operator double() const { return high + low; }

    // a + b, exactly (Knuth).
    static DoubleDouble sum(double a, double b) {
        const double s = a + b, part = s - a;
        return {s, (a - (s - part)) + (b - part)};
    }

    // a b, exactly, by splitting each factor into halves (Dekker). Needs no fused multiply-add.
    static DoubleDouble product(double a, double b) {
        const double p = a * b;
        if (!(p < 0x1p970 && p > -0x1p970)) return {p, 0};
        const double a1 = upper_half(a), a2 = a - a1, b1 = upper_half(b), b2 = b - b1;
        return {p, a2 * b2 - (((p - a1 * b1) - a2 * b1) - a1 * b2)};
    }

    friend DoubleDouble operator+(DoubleDouble a, DoubleDouble b) {
        const DoubleDouble s = sum(a.high, b.high), t = sum(a.low, b.low);
        const DoubleDouble u = sum(s.high, s.low + t.high);
        return sum(u.high, u.low + t.low);
    }
    friend DoubleDouble operator*(DoubleDouble a, DoubleDouble b) {
        const DoubleDouble p = product(a.high, b.high);
        return sum(p.high, p.low + (a.high * b.low + a.low * b.high));
    }
    DoubleDouble& operator+=(DoubleDouble other) { return *this = *this + other; }

  private:
    DoubleDouble(double high_part, double low_part) : high(high_part), low(low_part) {}

    static double upper_half(double a) {
        const double scaled = a * 0x1p-28;  // so that the product below does not overflow
        const double c = (0x1p27 + 1) * scaled;
        return (c - (c - scaled)) * 0x1p28;
    }
};

// A running sum of doubles that keeps what rounding took off. Much quicker than a sum of DoubleDoubles,
// because the two chains of additions do not wait for each other.
struct Compensated {
    double sum = 0, lost = 0;

    Compensated& operator+=(double x) {
        const DoubleDouble next = DoubleDouble::sum(sum, x);
        lost += next.low;
        sum = next.high;
        return *this;
    }
    operator double() const { return sum + lost; }
};

// Several such sums side by side, so that the additions are vectorised.
struct CompensatedLanes {
    static constexpr int count = 8;
    double sum[count] = {}, lost[count] = {};

    void add(int k, double x) {
        const DoubleDouble next = DoubleDouble::sum(sum[k], x);
        lost[k] += next.low;
        sum[k] = next.high;
    }
    Compensated total() const {
        Compensated all;
        for (int k = 0; k < count; ++k) all += sum[k], all += lost[k];
        return all;
    }
};

}  // namespace everypair::EVERYPAIR_ISA
