// Concordance of two classes: sort the smaller class and look up the rows of the larger one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "division.hpp"

namespace everypair::EVERYPAIR_ISA {

// Returns the weight of the pairs in the right order; ties count half.
template <class S>
double concordant_weight(const GroupRows<S>& given) {
    constexpr int block = Division<S>::block, padding = RanksAmong<S>::padding;
    constexpr S infinity = std::numeric_limits<S>::infinity();
    Scratch scratch;
    const Division<S> rows(scratch, given, 0, 1);
    const Keyed<S>* sources = rows.sort(scratch);
    // A pair is in the right order if the source is above the query. above[k] is the weight of source k and
    // those above it.
    double* above = scratch.take<double>(rows.n_sources + 1);
    Compensated mass;
    above[rows.n_sources] = 0;
    for (std::int64_t k = rows.n_sources - 1; k >= 0; --k) {
        mass += rows.weights ? rows.weights[sources[k].row] : 1;
        above[k] = mass;
    }
    // Each task makes its own table, so that there are fewer tasks than rows of the table.
    const std::int64_t some =
        std::clamp<std::int64_t>(given.n / (8 * rows.n_sources), 1, task_count(given.n));
    const int tasks = rows.parts > 1 ? rows.parts : static_cast<int>(some);
    const bool many = rows.parts == 1 &&
                      4 * rows.n_sources > given.n;  // many rows to look up are no queries: leave them out
    double* sums = scratch.take<double>(tasks);
    parallel(given.threads, tasks, [&](int task) {
        const int part = rows.parts > 1 ? task : 0;
        const std::int64_t first = rows.first_source(part), count = rows.first_source(part + 1) - first;
        Scratch local;
        S* numbers = local.take<S>(count + padding);
        for (std::int64_t k = 0; k < count; ++k) numbers[k] = sources[first + k].key;
        std::fill_n(numbers + count, padding, infinity);
        const RanksAmong<S> ranks(local, numbers, count);
        Compensated sum;
        const std::int64_t end = rows.first_query(task + 1, tasks);
        for (std::int64_t i = rows.first_query(task, tasks); i < end; i += block) {
            int size = static_cast<int>(std::min<std::int64_t>(block, end - i));
            S at[block];
            double w[block];
            std::uint32_t positions[block];
            rows.queries(i, size, -infinity, at, w);
            if (many) {
                const int all = std::exchange(size, 0);
                for (int q = 0; q < all; ++q) {
                    at[size] = at[q];
                    w[size] = w[q];
                    size += w[q] > 0;
                }
            }
            ranks.find(at, size, positions);
            const auto pair_weight = [&](int q) {
                const std::int64_t upto = positions[q];
                const bool tied = upto > 0 && numbers[upto - 1] == at[q];
                const std::int64_t below =
                    tied ? std::lower_bound(numbers, numbers + upto, at[q]) - numbers : upto;
                return 0.5 * (above[first + below] + above[first + upto]) * w[q];
            };
            if (rows.weights) {
                for (int q = 0; q < size; ++q) sum += pair_weight(q);
            } else {  // halves of integers: the sum of a block is exact
                double halves = 0;
                for (int q = 0; q < size; ++q) halves += pair_weight(q);
                sum += halves;
            }
        }
        sums[task] = sum;
    });
    Compensated sum;
    for (int task = 0; task < tasks; ++task) sum += sums[task];
    return sum;
}

}  // namespace everypair::EVERYPAIR_ISA
