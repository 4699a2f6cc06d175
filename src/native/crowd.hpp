// Rows of one class on one side of an edge, seen from that edge.
#pragma once

namespace everypair::EVERYPAIR_ISA {

// Their number, the sum of their distances and of the squares.
struct Crowd {
    double count = 0, first = 0, second = 0;

    // Seen from an edge further away by `step`.
    Crowd seen_from(double step) const { return {count, first + step * count, second + step * (2 * first + step * count)}; }

    // The edge moves away by `step`, and the rows between, measured from the new edge, join.
    void move(double step, const Crowd& joining) {
        second += step * (2 * first + step * count) + joining.second;
        first += step * count + joining.first;
        count += joining.count;
    }

    void meet(double distance) {
        count += 1;
        first += distance;
        second += distance * distance;
    }
};

}  // namespace everypair::EVERYPAIR_ISA
