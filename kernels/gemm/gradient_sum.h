// Whether a gradient replaces what is in memory or is added to it.
#pragma once

namespace shardplan {

enum class GradientSum { kOverwrite, kAccumulate };

}  // namespace shardplan
