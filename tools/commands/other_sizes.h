// What a search finds with another number of GPUs, another batch or the optimizer's state in host
// memory, where its own has no plan or one that keeps most of its GPUs waiting.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/options/search_question.h"
#include "tools/report/report.h"

namespace shardplan {

// At most two answers, each of a search of its own:
// no plan is valid: the next larger batch, and fewer GPUs for this one; none fits: offload, where
// it is enough, and the first doubling of the GPUs on which one does; the first plan computes for
// less than half of its step: the fewest GPUs, halved up to three times, that keep at least 80 % of
// its speed. None with
// --axes, whose searches are long, and with --range, which may leave nothing of another size's
// axis.
std::vector<OtherSize> other_sizes(const Options& options, const SearchQuestion& question,
                                   const SearchOptions& search, const SearchResult& result,
                                   const Library& library);

}  // namespace shardplan
