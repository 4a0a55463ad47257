// Files of arguments that another script reads.
#include "tools/from/argument_file.h"
#include "tests/data/message_of.h"
#include "tools/from/shell.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace shardplan {
namespace {

constexpr const char* kFile = R"sh(T=$(cat iters.txt)
# --hidden-size of the small one
ALL_PARAMS=( --num-layers-per-virtual-pipeline-stage 1 --num-layers 8
    --hidden-size 1024
    --train-iters ${T} --data-path "a b" )
)sh";

RunSettings read(const std::string& text, std::vector<std::string>& notes) {
  return settings_from_shell(text, "params.sh", notes);
}

const Setting& named(const RunSettings& settings, const std::string& name) {
  const auto found = std::ranges::find(settings.arguments, name, &Setting::name);
  REQUIRE_MESSAGE(found != settings.arguments.end(), name);
  return *found;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("the arguments of a file without a training are words of the shell, in their lines") {
  std::vector<std::string> notes;
  const RunSettings settings = read(kFile, notes);
  CHECK(settings.arguments.size() == 5);
  CHECK(named(settings, "--train-iters").values == Words{"$(cat iters.txt)"});
  CHECK(named(settings, "--train-iters").place == "params.sh:5: --train-iters: ");
  CHECK(named(settings, "--num-layers").place == "params.sh:3: --num-layers: ");
  CHECK(named(settings, "--hidden-size").place == "params.sh:4: --hidden-size: ");
  REQUIRE(notes.size() == 1);
  CHECK(
      notes[0].starts_with("params.sh: no command starts a .py file: the arguments in ALL_PARAMS"));
}

TEST_CASE("what a file of arguments leaves open is asked for as in a launch script") {
  std::vector<std::string> notes;
  CHECK(
      message_of([&] {
        read("if [ -f big ]; then N=8; else N=4; fi\nARGS=\"--num-layers $N --bf16\"\n", notes);
      })
          .starts_with("params.sh:1: '[ -f big ]': found a condition that cannot be decided here, "
                       "and --num-layers depends on it; expected --set "));
}

TEST_CASE("the place of an argument is the last line that has it, and the file where none has") {
  CHECK(place_of_argument("--a", "--a 1\n--a=2 --ab --a_b --a-b\n--ab", "x.sh") == "x.sh:2");
  CHECK(place_of_argument("--a", "--ab", "x.sh") == "x.sh");
  CHECK(place_of_argument("--a", "x\n--a", "x.sh") == "x.sh:2");
}

}  // namespace shardplan
