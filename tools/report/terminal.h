// Colour on a terminal: whether, and how.
#pragma once

#include <string>
#include <string_view>

#include "tools/options/options.h"
#include "tools/report/output.h"

namespace shardplan {

enum class Colour { kPlain, kGreen, kYellow, kRed, kBold };

// Paints words, or leaves them alone.
struct Paint {
  bool enabled = false;
  std::string operator()(Colour colour, std::string_view text) const;
};

// --color; when auto: a terminal, no NO_COLOR in the environment (https://no-color.org), TERM not
// "dumb".
Paint paint_for(const Options& options, const Output& output);

}  // namespace shardplan
