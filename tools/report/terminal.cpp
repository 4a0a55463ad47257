#include "tools/report/terminal.h"

#include <cstdlib>

namespace shardplan {
namespace {

std::string environment_word(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string_view code_of(Colour colour) {
  switch (colour) {
    case Colour::kPlain: return "";
    case Colour::kGreen: return "\x1b[1;32m";
    case Colour::kYellow: return "\x1b[1;33m";
    case Colour::kRed: return "\x1b[1;31m";
    case Colour::kBold: return "\x1b[1m";
  }
  return "";
}

}  // namespace

std::string Paint::operator()(Colour colour, std::string_view text) const {
  if (!enabled || colour == Colour::kPlain) {
    return std::string(text);
  }
  return std::string(code_of(colour)) + std::string(text) + "\x1b[0m";
}

Paint paint_for(const Options& options, const Output& output) {
  const std::string choice = text_or(options, "color", "auto");
  if (choice != "auto") {
    return {.enabled = choice == "always"};
  }
  const bool is_refused =
      !environment_word("NO_COLOR").empty() || environment_word("TERM") == "dumb";
  return {.enabled = output.is_terminal() && !is_refused};
}

}  // namespace shardplan
