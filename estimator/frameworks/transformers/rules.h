// Which plans are accepted: the rules in the order in which they are tried.
#pragma once

#include <span>

#include "estimator/validity/validity.h"

namespace shardplan::transformers {

std::span<const ValidityRule> validity_rules();

}  // namespace shardplan::transformers
