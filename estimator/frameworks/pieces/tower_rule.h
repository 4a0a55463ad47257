// A tower for pictures or sound is loaded where its sizes are known.
#pragma once

#include <string>

#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan {

inline constexpr ValidityRule kTowerOfKnownSizes = {
    .name = "unsupported: vision_tower",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.vision_tower != TowerUse::kAbsent &&
                 job.model.tower.kind == TowerKind::kNone;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return not_modelled(job, "vision_tower",
                              std::string(name_of(job.profile.vision_tower)) + " with " +
                                  job.model.name + ", the sizes of whose tower are not known",
                              name_of(TowerUse::kAbsent));
        }};

}  // namespace shardplan
