#include "tests/tools/accuracy/bounds.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <sstream>

#include "tests/tools/run_program.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

Figures recorded_bounds(const std::string& file, char mark) {
  Figures bounds;
  std::istringstream text(read_file(file));
  for (std::string line; std::getline(text, line);) {
    const std::size_t at = line.rfind(mark);
    bounds[line.substr(0, at)] = std::stod(line.substr(at + 1));
  }
  return bounds;
}

}  // namespace

void check_against_bounds(const Figures& figures, const std::string& file, char mark) {
  if (std::getenv("SHARDPLAN_UPDATE_BOUNDS") != nullptr) {
    std::string text;
    for (const auto& [name, value] : figures) { text += name + mark + fixed(value, 3) + "\n"; }
    write_file(file, text);
  }
  const Figures bounds = recorded_bounds(file, mark);
  CHECK(bounds.size() == figures.size());
  for (const auto& figure : figures) {
    const std::string& name = figure.first;
    const double value = figure.second;
    const auto bound = bounds.find(name);
    const bool is_recorded = bound != bounds.end();
    CHECK_MESSAGE(is_recorded, name << " is " << value << " and has no bound yet");
    if (is_recorded) {
      CHECK_MESSAGE(value <= bound->second + 1e-9,
                    name << " is " << value << ", the bound is " << bound->second);
    }
  }
  for (const auto& bound : bounds) {
    const std::string& name = bound.first;
    CHECK_MESSAGE(figures.contains(name), name << " has a bound and is not there any more");
  }
}

}  // namespace shardplan
