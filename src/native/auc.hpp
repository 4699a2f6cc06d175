// Concordance of two classes: sort the smaller class and look up the rows of the larger one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "division.hpp"
#include "group_rows.hpp"

namespace everypair::EVERYPAIR_ISA {

// Returns the weight of the pairs in the right order; ties count half.
template <class S>
double concordant_weight(const GroupRows<S>& group) {
    Scratch scratch;
    const Division<S> rows(scratch, group.scores, group.classes, group.n, group.found, 0, 1, group.threads);
    const double* weights = rows.gather(scratch, group.weights);
    const Keyed<S>* sources = rows.sort(scratch);
    // A pair is in the right order if the source is above the query. above[k] is the weight of source k and those above it.
    double* above = scratch.take<double>(rows.n_sources + 1);
    Compensated mass;
    above[rows.n_sources] = 0;
    for (std::int64_t k = rows.n_sources - 1; k >= 0; --k) {
        mass += weights ? weights[sources[k].row] : 1;
        above[k] = mass;
    }
    // Each task makes its own table, so that there are fewer tasks than rows of the table.
    const std::int64_t some = std::clamp<std::int64_t>(rows.n_queries / (8 * rows.n_sources), 1, task_count(group.n));
    const int tasks = rows.parts > 1 ? rows.parts : static_cast<int>(some);
    double* sums = scratch.take<double>(tasks);
    parallel(group.threads, tasks, [&](int task) {
        const int part = rows.parts > 1 ? task : 0;
        const std::int64_t first = rows.first_source(part), count = rows.first_source(part + 1) - first;
        Scratch local;
        S* numbers = local.take<S>(count + RanksAmong<S>::padding);
        for (std::int64_t k = 0; k < count; ++k) numbers[k] = sources[first + k].key;
        std::fill_n(numbers + count, RanksAmong<S>::padding, std::numeric_limits<S>::infinity());
        const RanksAmong<S> ranks(local, numbers, count);
        Compensated sum;
        std::int64_t i = rows.first_query(task, tasks);
        by_cells(rows.keys + i, rows.first_query(task + 1, tasks) - i, ranks.cells, [&](S at, std::uint32_t cell) {
            const std::int64_t upto = ranks.upto(at, cell, ranks.first(cell));
            const bool tied = upto > 0 && numbers[upto - 1] == at;
            const std::int64_t below = tied ? std::lower_bound(numbers, numbers + upto, at) - numbers : upto;
            sum += 0.5 * (above[first + below] + above[first + upto]) * (weights ? weights[i++] : 1);
        });
        sums[task] = sum;
    });
    Compensated sum;
    for (int task = 0; task < tasks; ++task) sum += sums[task];
    return sum;
}

}  // namespace everypair::EVERYPAIR_ISA
