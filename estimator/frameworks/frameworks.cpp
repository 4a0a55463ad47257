// The frameworks, one row each: the only place that names them all.
#include <array>

#include "estimator/frameworks/deepspeed/notes.h"
#include "estimator/frameworks/deepspeed/rules.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/fujii2024/formula.h"
#include "estimator/frameworks/fujii2024/rules.h"
#include "estimator/frameworks/megatron/notes.h"
#include "estimator/frameworks/megatron/rules.h"
#include "estimator/frameworks/nanotron/notes.h"
#include "estimator/frameworks/nanotron/rules.h"
#include "estimator/frameworks/native/notes.h"
#include "estimator/frameworks/native/rules.h"
#include "estimator/frameworks/torchtitan/notes.h"
#include "estimator/frameworks/torchtitan/rules.h"

namespace shardplan {
namespace {

constexpr Framework kFujii2024 = {.rules = fujii2024_validity_rules, .formula = estimate_fujii2024};

constexpr Framework kMegatron = {.rules = megatron_validity_rules,
                                 .add_assumptions = add_megatron_assumptions,
                                 .not_counted = megatron_not_counted};

constexpr Framework kMegatronLocal = {.rules = megatron_local_validity_rules,
                                      .add_assumptions = add_megatron_assumptions,
                                      .not_counted = megatron_not_counted};

constexpr Framework kNative = {.rules = native_validity_rules, .not_counted = native_not_counted};

constexpr Framework kTorchtitan = {.rules = torchtitan_validity_rules,
                                   .add_assumptions = add_torchtitan_assumptions,
                                   .not_counted = torchtitan_not_counted};

constexpr Framework kNanotron = {.rules = nanotron_validity_rules,
                                 .not_counted = nanotron_not_counted};

constexpr Framework kDeepspeed = {
    .rules = deepspeed_validity_rules,
    .knows_data_ranks = [](const Plan& plan) { return plan.zero < 3; },
    .add_assumptions = add_deepspeed_assumptions,
    .not_counted = deepspeed_not_counted};

// By MemoryModel.
constexpr std::array kFrameworks = {kFujii2024,     kMegatron, kNative,   kTorchtitan,
                                    kMegatronLocal, kNanotron, kDeepspeed};
static_assert(kFrameworks.size() == kMemoryModels.size());

}  // namespace

const Framework& framework_of(const FrameworkProfile& profile) {
  return kFrameworks[static_cast<std::size_t>(profile.memory_model)];
}

}  // namespace shardplan
