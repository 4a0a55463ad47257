// --find-max: the largest micro batch or sequence length with which a plan still fits.
#pragma once

#include <string>

#include "tools/report.h"

namespace shardplan {

// `name` is "micro_batch" or "sequence_length". The question becomes that of the largest value that
// fits, or of the smallest valid one if none does; a question without any valid value stays as it
// is.
//
// A fixed global batch allows the micro batches that divide a rank's share of it; all of them are
// tried. Otherwise values are multiples of a step and memory grows with each: bisection.
Maximum find_max(Question& question, const std::string& name, const MemoryRule& rule);

}  // namespace shardplan
