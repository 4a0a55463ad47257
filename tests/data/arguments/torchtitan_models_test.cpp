// Which model a torchtitan configuration names, and what of its settings that model does not have.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "data/arguments/torchtitan.h"
#include "estimator/answer/why_invalid.h"
#include "estimator/plan/parameters.h"
#include "tests/data/message_of.h"

namespace shardplan {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

RunReading read_pairs(const Pairs& pairs) {
  RunSettings run;
  run.format = RunFormat::kTorchtitan;
  run.file = "t.toml";
  for (const auto& [name, value] : pairs) {
    run.arguments.push_back({.name = name, .values = {value}, .place = "t.toml: " + name + ": "});
  }
  const Library library;
  return read_run(run, library.cluster("1x8-h200"), library);
}

}  // namespace

// As the model that torchtitan builds on the meta device counts them.
TEST_CASE("torchtitan's flavors of GPT-OSS are the published models") {
  const Library library;
  CHECK(count_parameters(torchtitan_model("gpt_oss/20b", library).value()) == 20'914'757'184);
  CHECK(count_parameters(torchtitan_model("gpt_oss/120b", library).value()) == 116'829'156'672);
}

TEST_CASE("torchtitan's own configuration of GPT-OSS is read whole") {
  const RunReading run = read_pairs({{"model.name", "gpt_oss"},
                                     {"model.flavor", "debugmodel"},
                                     {"training.local_batch_size", "8"},
                                     {"training.seq_len", "2048"},
                                     {"parallelism.fsdp_reshard_after_forward", "default"},
                                     {"activation_checkpoint.mode", "none"},
                                     {"compile.enable", "false"}});
  CHECK(run.unsupported.empty());
  CHECK(run.job.model.hidden == 256);
  CHECK(run.job.model.num_layers() == 4);
  CHECK(run.job.model.moe.num_experts == 8);
  CHECK(run.job.model.moe.expert_ffn == 2880);
  CHECK_FALSE(why_invalid(run.job, run.plan).has_value());
}

TEST_CASE("compile reaches the loss of GPT-OSS alone") {
  const RunReading run =
      read_pairs({{"model.name", "gpt_oss"}, {"model.flavor", "20b"}, {"compile.enable", "true"}});
  CHECK(run.job.profile.compile);
  CHECK(run.job.profile.compile_loss);
  CHECK_FALSE(run.job.profile.compile_layers);
  CHECK_FALSE(why_invalid(run.job, run.plan).has_value());
}

TEST_CASE("models that torchtitan has behind its release are refused with where they are") {
  for (const char* name : {"qwen3_5", "kimi_k2_7"}) {
    const std::string message = message_of([&] {
      read_pairs({{"model.name", name}, {"model.flavor", "debugmodel"}});
    });
    CHECK(message == "t.toml: model.name: found \"" + std::string(name) +
                         "\", which torchtitan has on its main branch alone, behind v0.2.2; "
                         "expected a model of v0.2.2");
  }
}

}  // namespace shardplan
