// Runs that are refused for their settings, estimated without them.
#include <doctest/doctest.h>

#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

class Script {
 public:
  explicit Script(const std::string& switches) {
    write_file(path(),
               "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 4 "
               "--hidden-size 256 --num-attention-heads 8 --vocab-size 1000 --bf16 "
               "--max-position-embeddings 512 --seq-length 512 --micro-batch-size 1 "
               "--hidden-dropout 0 --attention-dropout 0 " +
                   switches + "\n");
  }
  std::string path() const { return folder_.path() + "/run.sh"; }
  ProgramRun estimate(const Words& more = {}) const {
    Words words = {"estimate", "--cluster", "2x8-h100", "--from", path()};
    words.insert(words.end(), more.begin(), more.end());
    return run_shardplan(words);
  }
  JsonValue answer() const { return json_of(estimate({"--format", "json"})); }

 private:
  TemporaryDirectory folder_;
};

}  // namespace

TEST_CASE("a refused run is estimated without the settings that it is refused for") {
  const JsonValue plain = Script("").answer();
  const JsonValue refused = Script("--perform-rl-step --use-sharp").answer();
  CHECK(find(plain, "without") == nullptr);
  CHECK(at(at(refused, "predicted"), "status").string == "unsupported");
  const JsonValue& without = at(refused, "without");
  REQUIRE(at(without, "settings").items.size() == 2);
  CHECK(at(without, "settings").items[0].string == "--perform-rl-step");
  CHECK(at(without, "settings").items[1].string == "--use-sharp");
  for (const char* name : {"left", "step_time_s"}) {
    CAPTURE(name);
    CHECK(at(at(without, "predicted"), name).real == at(at(plain, "predicted"), name).real);
  }
}

TEST_CASE("the command beside a refused run asks for what it says") {
  const Script script("--perform-rl-step");
  const ProgramRun run = script.estimate();
  CHECK(run.exit_code == 2);
  CHECK(contains(run.out, "without   --perform-rl-step: FITS"));
  CHECK(contains(run.out, "--set perform-rl-step="));
  CHECK(script.estimate({"--set", "perform-rl-step="}).exit_code == 0);
}

TEST_CASE("what cannot be read is not left out") {
  const ProgramRun run = Script("--perform-rl-step --num-experts x").estimate();
  CHECK(run.exit_code == 2);
  CHECK_FALSE(contains(run.out, "without"));
}

}  // namespace shardplan
