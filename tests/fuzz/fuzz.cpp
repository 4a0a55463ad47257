// A libFuzzer program: one door, named by the variable SHARDPLAN_FUZZ_DOOR; see tools/fuzz.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/doors.h"

namespace shardplan {
namespace {

const Door& chosen_door() {
  const char* const name = std::getenv("SHARDPLAN_FUZZ_DOOR");
  const Door* const door = name == nullptr ? nullptr : door_named(name);
  if (door == nullptr) {
    std::fprintf(stderr,
                 "SHARDPLAN_FUZZ_DOOR: found '%s', expected one of:", name == nullptr ? "" : name);
    for (const Door& each : doors()) { std::fprintf(stderr, " %s", each.name.data()); }
    std::fprintf(stderr, "\n");
    std::exit(2);
  }
  enter_temporary_folder();
  return *door;
}

}  // namespace
}  // namespace shardplan

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const shardplan::Door& door = shardplan::chosen_door();
  door.open(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
