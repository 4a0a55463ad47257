// Pieces of exported files: words of shells, a config.json written again, folders.
#include "tools/export/script.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "data/read/input_error.h"
#include "tests/tools/commands/answer.h"
#include "tools/export/config_file.h"
#include "tools/export/config_numbers.h"
#include "tools/export/folder.h"
#include "tools/options/command_words.h"

namespace shardplan {

TEST_CASE("a word of a script is quoted where the shell would divide or replace it") {
  CHECK(shell_word("--num-layers") == "--num-layers");
  CHECK(shell_word("([0]*1+[1]*3)") == "'([0]*1+[1]*3)'");
  CHECK(shell_word("it's") == "'it'\\''s'");
  CHECK(shell_word("") == "''");
}

TEST_CASE("arguments stand in an array, one a line, with their comments") {
  const ArgumentGroup group = {
      .title = "MODEL",
      .arguments = {{.name = "--bf16"},
                    {.name = "--modules", .values = {"core_attn", "mlp"}, .comment = "assumed"},
                    {.name = "--targets", .values = {"q_proj,v_proj"}},
                    {.name = "--save", .values = {"\"$CHECKPOINT_PATH\""}}}};
  CHECK(array_text(group) ==
        "MODEL_ARGS=(\n  --bf16\n  --modules core_attn mlp  # assumed\n"
        "  --targets \"q_proj,v_proj\"\n  --save \"$CHECKPOINT_PATH\"\n)\n");
}

TEST_CASE("a config.json is written again with what it says") {
  const std::string text =
      R"({"model_type": "llama", "rope_theta": 500000.0, "tie": false, "none": null,)"
      R"( "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}, "sizes": [1, 2], "name": "a\"b"})";
  const std::string written = config_text(parse_json(text, "config.json"));
  CHECK(config_text(parse_json(written, "config.json")) == written);
  CHECK(contains(written, "\"name\": \"a\\\"b\""));
  CHECK(contains(written, "\"sizes\": [1, 2]"));
  CHECK(contains(written, "\"rope_theta\": 5e+05"));
  CHECK(contains(written, "\"factor\": 8.0"));
}

TEST_CASE("numbers of a config.json are found where either transformers writes them") {
  const ConfigNumbers old = config_numbers(parse_json(
      R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8}, "rms_norm_eps": 1e-5})",
      "config.json"));
  CHECK(old.rope_theta == 500000);
  CHECK(old.rope_scaling_factor == 8);
  CHECK(old.norm_epsilon == 1e-5);
  const ConfigNumbers current = config_numbers(parse_json(
      R"({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})", "config.json"));
  CHECK(current.rope_theta == 1000000);
  CHECK_FALSE(current.rope_scaling_factor.has_value());
  CHECK_FALSE(config_numbers({}).rope_theta.has_value());
}

TEST_CASE("a folder appears with all its files or not at all") {
  const TemporaryDirectory place;
  const std::string path = place.path() + "/out";
  const auto num_entries = [&place] {
    return std::distance(std::filesystem::directory_iterator(place.path()),
                         std::filesystem::directory_iterator());
  };
  {
    StagedFolder left(path);
    left.write({.name = "a/b.json", .text = "{}"});
    CHECK_FALSE(std::filesystem::exists(path));
  }
  CHECK(num_entries() == 0);
  StagedFolder folder(path + "/");
  folder.write({.name = "a/b.json", .text = "{}"});
  folder.commit();
  CHECK(read_file(path + "/a/b.json") == "{}");
  CHECK(num_entries() == 1);
  CHECK_THROWS_AS(StagedFolder{path}, InputError);  // it holds files now
}

}  // namespace shardplan
