// The tables of validity rules, one for each memory model. validity_rules() chooses among them.
#pragma once

#include <span>

#include "estimator/validity/validity.h"

namespace shardplan {

std::span<const ValidityRule> fujii2024_validity_rules();
std::span<const ValidityRule> megatron_validity_rules();
std::span<const ValidityRule> megatron_local_validity_rules();
std::span<const ValidityRule> native_validity_rules();
std::span<const ValidityRule> torchtitan_validity_rules();
std::span<const ValidityRule> nanotron_validity_rules();
std::span<const ValidityRule> deepspeed_validity_rules();

}  // namespace shardplan
