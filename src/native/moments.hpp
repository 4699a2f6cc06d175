// Moments of the rows of one class on one side of an edge, relative to that edge.
#pragma once

namespace everypair::EVERYPAIR_ISA {

// The number or the weight of rows, the sum of their distances from the edge, and the sum of the squared
// distances.
struct Moments {
    double count = 0, first = 0, second = 0;

    // The moments relative to an edge that is further away by `step`.
    Moments shifted(double step) const {
        return {count, first + step * count, second + step * (2 * first + step * count)};
    }

    // Moves the edge away by `step` and adds the rows in between, whose moments are relative to the new edge.
    void advance(double step, const Moments& joining) {
        second += step * (2 * first + step * count) + joining.second;
        first += step * count + joining.first;
        count += joining.count;
    }
};

}  // namespace everypair::EVERYPAIR_ISA
