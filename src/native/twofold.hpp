// A number as the sum of two doubles, some 31 digits: for sums that cancel down to their last digits.
#pragma once

namespace everypair::EVERYPAIR_ISA {

struct Twofold {
    double high = 0, low = 0;

    Twofold() = default;
    Twofold(double value) : high(value) {}
    explicit operator double() const { return high + low; }

    // a + b without rounding.
    static Twofold sum(double a, double b) {
        const double s = a + b, part = s - a;
        return {s, (a - (s - part)) + (b - part)};
    }

    // a b without rounding, by splitting each factor into halves (Dekker); no fused multiply-add is needed.
    static Twofold product(double a, double b) {
        const double p = a * b;
        if (!(p < 0x1p970 && p > -0x1p970)) return {p, 0};
        const double a1 = upper_half(a), a2 = a - a1, b1 = upper_half(b), b2 = b - b1;
        return {p, a2 * b2 - (((p - a1 * b1) - a2 * b1) - a1 * b2)};
    }

    friend Twofold operator+(Twofold a, Twofold b) {
        const Twofold s = sum(a.high, b.high), t = sum(a.low, b.low);
        const Twofold u = sum(s.high, s.low + t.high);
        return sum(u.high, u.low + t.low);
    }
    friend Twofold operator*(Twofold a, Twofold b) {
        const Twofold p = product(a.high, b.high);
        return sum(p.high, p.low + (a.high * b.low + a.low * b.high));
    }
    Twofold& operator+=(Twofold other) { return *this = *this + other; }

  private:
    Twofold(double high_part, double low_part) : high(high_part), low(low_part) {}

    static double upper_half(double a) {
        const double scaled = a * 0x1p-28;  // before the splitting product, which would overflow
        const double c = (0x1p27 + 1) * scaled;
        return (c - (c - scaled)) * 0x1p28;
    }
};

}  // namespace everypair::EVERYPAIR_ISA
