// Which plans are accepted with the local layer spec: the rules in the order in which they are
// tried.
#pragma once

#include <span>

#include "estimator/validity/validity.h"

namespace shardplan::megatron {

std::span<const ValidityRule> local_validity_rules();

}  // namespace shardplan::megatron
