// The axes of a search as words: which are searched, with which values.
#pragma once

#include <optional>
#include <string>

#include "search/walk/search.h"
#include "tools/options/options.h"
#include "tools/options/question.h"
#include "tools/report/table.h"

namespace shardplan {

// The default axes with those that --axes opens: "all", "default", "+rank_order,+grad_dtype". What
// the default leaves at one value (precision, dtypes, offload, rank order) is the run's own, and
// its sizes and its recomputation are among the values, so that its plan is one of the space.
SearchSpace open_axes(const Options& options, const Job& job, const std::optional<GivenRun>& run);

// One row per axis: whether it is searched by default, the values it then takes, and the values
// that it takes when opened. Of long lists the first `most` values and their number.
Table axes_table(const Job& job, const std::optional<GivenRun>& run, std::size_t most);

// What the search options of the command line say beside the memory rule.
void read_search_options(const Options& options, SearchOptions& search);

}  // namespace shardplan
