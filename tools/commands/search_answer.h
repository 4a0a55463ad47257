// What a search says once its plans are found.
#pragma once

#include "data/read/library.h"
#include "search/walk/price_tables.h"
#include "tools/options/options.h"
#include "tools/options/search_question.h"
#include "tools/report/report.h"

namespace shardplan {

// The verdict on the whole space, the plans in the order in which they are recommended, and what
// stands beside the one that is picked.
void complete(SearchReport& report, const SearchQuestion& question, const Options& options,
              const Library& library, PriceTables& prices);

}  // namespace shardplan
