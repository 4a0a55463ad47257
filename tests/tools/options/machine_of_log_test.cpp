// The GPU and the ranks that a log shows, and what of them options overrule.
#include "tools/options/machine_of_log.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

#include "data/read/json_reader.h"
#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

struct Taken {
  Options options;
  std::vector<std::string> notes;

  std::string of(const char* name) const { return text_or(options, name, ""); }
};

Taken taken_from(const std::string& text, const Options& options = {}) {
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  write_file(log, text);
  Taken taken;
  taken.options = with_machine_of_log(options, log, Library(), taken.notes);
  return taken;
}

std::string text_of_lines(const JsonValue& lines) {
  std::string text;
  for (const JsonValue& line : lines.items) { text += line.string + "\n"; }
  return text;
}

std::string word_of(const JsonValue& value, const char* key) {
  const JsonValue* const found = find(value, key);
  return found == nullptr ? "" : found->string;
}

std::int64_t number_of(const JsonValue& value, const char* key) {
  const JsonValue* const found = find(value, key);
  return found == nullptr ? 0 : found->integer;
}

Options with(std::map<std::string, std::vector<std::string>> values) {
  Options options;
  options.command = "why-oom";
  options.values = std::move(values);
  return options;
}

constexpr const char* kMeshOfEight =
    "Building 1-D device mesh with ['dp_shard'], [8]\n"
    "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory\n";

}  // namespace

// Lines as torchtitan, Megatron-LM, DeepSpeed's launcher, transformers' Trainer, torchrun and
// nvidia-smi print them (tools/from/log_machine.cpp names the sources); numbers are ours.
TEST_CASE("every kind of log gives the GPU and the ranks that it shows, and says where") {
  const std::string folder = std::string(SHARDPLAN_SOURCE_DIR) + "/tests/data/fixtures/deaths";
  std::istringstream lines(read_file(folder + "/machines.jsonl"));
  std::int64_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    const JsonValue row = parse_json(line, "machines.jsonl");
    CAPTURE(at(row, "id").string);
    const Taken taken = taken_from(text_of_lines(at(row, "log")));
    CHECK(taken.of("cluster") == word_of(row, "cluster"));
    CHECK(taken.of("gpu") == word_of(row, "gpu"));
    CHECK(taken.of("num-gpus") == "");
    const std::int64_t ranks = number_of(row, "ranks");
    const Taken of_file = taken_from(text_of_lines(at(row, "log")), with({{"from", {"run.sh"}}}));
    CHECK(of_file.of("num-gpus") == (ranks > 0 ? std::to_string(ranks) : ""));
    CHECK(taken.options.least_ranks == number_of(row, "least"));
    REQUIRE(taken.notes.size() == 1);
    CHECK_MESSAGE(contains(taken.notes.front(), at(row, "said").string), taken.notes.front());
    CHECK(taken.notes.front().starts_with("from the log: "));
    ++count;
  }
  CHECK(count == 17);
}

TEST_CASE("options go before what the log shows") {
  CHECK(taken_from(kMeshOfEight, with({{"cluster", {"2x8-h200"}}})).notes.empty());
  CHECK(taken_from(kMeshOfEight, with({{"gpu", {"h200"}}, {"num-gpus", {"4"}}})).notes.empty());
  const Taken gpu = taken_from(kMeshOfEight, with({{"gpu", {"h200"}}}));
  CHECK(gpu.of("gpu") == "h200");
  CHECK(gpu.of("num-gpus") == "8");
  CHECK(gpu.of("cluster") == "");
  const Taken ranks = taken_from(kMeshOfEight, with({{"num-gpus", {"16"}}}));
  CHECK(ranks.of("gpu") == "h100");
  CHECK(ranks.of("num-gpus") == "16");
  CHECK(ranks.of("cluster") == "");
}

TEST_CASE("a lower bound of ranks holds the sizes of the plan that are asked for") {
  const Taken taken = taken_from("[rank2]: NVIDIA H100 80GB HBM3\n", with({{"tp", {"4"}}}));
  CHECK(taken.options.least_ranks == 4);
  const Taken none = taken_from("NVIDIA H100 80GB HBM3\n", with({{"tp", {"4"}}}));
  CHECK(none.options.least_ranks == 0);
}

TEST_CASE("a log without a GPU changes nothing, one of a GPU without data says so") {
  const Taken taken = taken_from("step: 4 loss: 3.5\n[rank3]: RuntimeError: no GPU here\n");
  CHECK(taken.notes.empty());
  CHECK(taken.options.values.empty());
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  write_file(log, "x\nGPU 0: NVIDIA V100-SXM2-32GB (UUID: GPU-0)\n");
  const ProgramRun run = run_in_full({"why-oom", log, "--model", "llama3-8b", "--sequence-length",
                                      "8192", "--global-batch", "64"});
  check_refused(run, 2);
  CHECK(contains(run.err, "run.log:2: found NVIDIA V100-SXM2-32GB, which is not covered"));
}

TEST_CASE("a log that names its run, GPU and ranks needs nothing beside it") {
  const std::string printed = read_file(std::string(SHARDPLAN_SOURCE_DIR) +
                                        "/tests/tools/from/logs/megatron_core_v0.16.1.log");
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  write_file(log, printed +
                      "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
                      "1004.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 940.12 MiB is "
                      "free.\n");
  const ProgramRun bare = run_in_full({"why-oom", log});
  CHECK_MESSAGE(bare.exit_code == 0, bare.err);
  CHECK(contains(bare.err, "from the log: H100-SXM-80GB (the total capacity 79.10 GiB"));
  CHECK(contains(bare.out, "gradients.dense, a weight of 64,256 x 4,096"));
  CHECK(bare.out == run_in_full({"why-oom", log, "--cluster", "1x8-h100"}).out);
}

TEST_CASE("a run of a file takes the ranks of its launcher before a lower bound of the log") {
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  write_file(log,
             "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU "
             "1 has a total capacity of 79.10 GiB of which 940.12 MiB is free.\n");
  const std::string script =
      std::string(SHARDPLAN_SOURCE_DIR) + "/data/examples/megatron_llama3_8b.sh";
  const auto json = [&](const Words& more) {
    Words words = {"why-oom", log, "--from", script, "--format", "json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(words).out;
  };
  CHECK(json({}) == json({"--cluster", "1x8-h100"}));
}

TEST_CASE("the command that a shell prints before it runs it is the run") {
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  const std::string toml =
      std::string(SHARDPLAN_SOURCE_DIR) + "/data/examples/torchtitan_llama3_8b.toml";
  write_file(directory.path() + "/llama3_8b.toml", read_file(toml));
  write_file(
      log,
      "+ NGPU=8\n++ date\n+ pip install deepspeed\n"
      "+ PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
      "+ torchrun --nproc_per_node=8 --role rank --tee 3 -m torchtitan.train "
      "--job.config_file ./train_configs/llama3_8b.toml\n"
      "[rank7]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 11.74 GiB. GPU "
      "7 has a total capacity of 79.10 GiB of which 940.12 MiB is free.\n");
  const ProgramRun bare = run_in_full({"why-oom", log, "--format", "json"});
  CHECK_MESSAGE(bare.exit_code <= 1, bare.err);
  CHECK(contains(bare.err, "from the log: H100-SXM-80GB"));
  CHECK(contains(bare.err, "8 ranks (command in line 5)"));
  const ProgramRun whole =
      run_in_full({"why-oom", log, "--from", directory.path() + "/llama3_8b.toml", "--cluster",
                   "1x8-h100", "--format", "json"});
  for (const char* const number : {"capacity", "changes_tried"}) {
    CHECK(at(json_of(bare), number).integer == at(json_of(whole), number).integer);
  }
  // A command that names a file which is not there says which.
  write_file(log,
             "+ torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file gone.toml\n");
  const ProgramRun gone = run_in_full({"why-oom", log, "--cluster", "1x8-h100"});
  check_refused(gone, 2);
  CHECK(contains(gone.err, "gone.toml"));
}

}  // namespace shardplan
