// --find-max: the largest micro batch or sequence length with which a plan keeps to its share of
// the memory.
#pragma once

#include <string>

#include "tools/report/report.h"

namespace shardplan {

// `name` is "micro_batch" or "sequence_length". The question becomes that of the largest value that
// keeps the memory rule, or of the smallest value if none does; an invalid plan stays as it is.
Maximum find_max(Question& question, const std::string& name, const MemoryRule& rule);

}  // namespace shardplan
