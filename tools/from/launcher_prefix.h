// What launchers put in front of every line that a rank writes, one perhaps behind another:
// [rank3]: (torch.distributed), [default3]: (torchrun --tee), [1,3]<stderr>: (mpirun --tag-output),
// "3: " (srun --label).
#pragma once

#include <array>
#include <string_view>

namespace shardplan {

// Before the rank.
inline constexpr std::array<std::string_view, 3> kRankTags = {"[rank", "[default", "[1,"};

std::string_view launcher_prefix(std::string_view line);

}  // namespace shardplan
