// --export of the commands.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

namespace fs = std::filesystem;

// Where an export may go: within a directory that goes with the test.
class Folder {
 public:
  std::string path() const { return directory_.path() + "/run"; }
  std::string text(const std::string& file) const { return read_file(path() + "/" + file); }

 private:
  TemporaryDirectory directory_;
};

// "parallel" arguments of a launch script: whether it has this line, whatever its comment.
bool has_line(const std::string& text, const std::string& line) {
  const std::size_t at = text.find("\n  " + line);
  return at != std::string::npos &&
         (text[at + 3 + line.size()] == '\n' || text.compare(at + 3 + line.size(), 3, "  #") == 0);
}

}  // namespace

TEST_CASE("an exported plan of Megatron-LM is launched as it was estimated") {
  const Folder folder;
  const ProgramRun run = run_shardplan({"estimate", "--model", "llama3-8b", "--cluster", "2x8-h100",
                                        "--sequence-length", "8k", "--global-batch", "64", "--tp",
                                        "2", "--pp", "2", "--export", folder.path()});
  CHECK(run.exit_code == 0);
  const std::string script = folder.text("launch.sh");
  for (const char* const line :
       {"--num-layers 32", "--ffn-hidden-size 14336", "--num-query-groups 8", "--kv-channels 128",
        "--tensor-model-parallel-size 2", "--sequence-parallel", "--pipeline-model-parallel-size 2",
        "--use-distributed-optimizer", "--micro-batch-size 1", "--global-batch-size 64",
        "--untie-embeddings-and-output-weights", "--vocab-size 128255", "--hidden-dropout 0",
        "--no-create-attention-mask-in-dataloader", "--cross-entropy-fusion-impl te",
        "--rotary-base 500000"}) {
    CHECK_MESSAGE(has_line(script, line), line);
  }
  CHECK(contains(script, "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"));
  CHECK(contains(script, "NNODES=2\nGPUS_PER_NODE=8\n"));
  CHECK(contains(folder.text("slurm.sbatch"), "#SBATCH --nodes=2\n"));
}

TEST_CASE(
    "that neither Transformer Engine nor APEX is there is said beside the script, not in it") {
  const Folder folder;
  const ProgramRun run = run_shardplan({"estimate",
                                        "--model",
                                        "llama3.2-1b",
                                        "--cluster",
                                        "1x8-h100",
                                        "--sequence-length",
                                        "4k",
                                        "--global-batch",
                                        "8",
                                        "--set",
                                        "attention_backend=local",
                                        "--set",
                                        "gradient_accumulation_fusion=false",
                                        "--set",
                                        "cross_entropy=native_fused",
                                        "--set",
                                        "rope_fusion=false",
                                        "--set",
                                        "masked_softmax_fusion=false",
                                        "--set",
                                        "fused_optimizer=false",
                                        "--export",
                                        folder.path()});
  CHECK(run.exit_code == 0);
  CHECK(contains(run.err, " --framework-option fused_optimizer=false"));
  const std::string script = folder.text("launch.sh");
  for (const char* const line :
       {"--transformer-impl local", "--no-persist-layer-norm", "--no-gradient-accumulation-fusion",
        "--no-rope-fusion", "--no-masked-softmax-fusion"}) {
    CHECK_MESSAGE(has_line(script, line), line);
  }
  const ProgramRun refused = run_shardplan(
      {"estimate", "--model", "llama3.2-1b", "--cluster", "1x8-h100", "--sequence-length", "4k",
       "--global-batch", "8", "--set", "attention_backend=local", "--set", "fused_optimizer=false",
       "--set", "cross_entropy=native_fused", "--export", folder.path() + "/other"});
  check_refused(refused, 2);
  CHECK(contains(refused.err, "--set rope_fusion=false, masked_softmax_fusion=false"));
  CHECK(contains(refused.err, "nothing is written"));
}

TEST_CASE("a switch that nobody asked for says what it saves") {
  const Folder folder;
  run_shardplan({"estimate", "--model", "llama3-8b", "--cluster", "1x8-h100", "--sequence-length",
                 "8k", "--global-batch", "64", "--tp", "2", "--zero", "1", "--export",
                 folder.path()});
  const std::string script = folder.text("launch.sh");
  CHECK(contains(script, "--sequence-parallel  # assumed; without: +"));
  CHECK(contains(script, "--use-distributed-optimizer  # without: +"));  // asked for by --zero
  // The mask of [1, 1, 8192, 8192] bytes is 64 MiB.
  CHECK(contains(script, "--no-create-attention-mask-in-dataloader  # assumed; without: +0.0"));
}

TEST_CASE("hybrid models and gpt-oss come back from the arguments that Megatron-LM has for them") {
  for (const auto& [model, argument] :
       {std::pair{"qwen3-next-80b-a3b", "--linear-attention-freq '([1]*3+[0]*1"},
        std::pair{"qwen3.5-0.8b", "--attention-output-gate"},
        std::pair{"nemotron-3-super-120b-a12b", "--moe-latent-size 1024"},
        std::pair{"gpt-oss-20b", "--softmax-type learnable"}}) {
    const Folder folder;
    const ProgramRun run =
        run_shardplan({"estimate", "--model", model, "--cluster", "2x8-h200", "--sequence-length",
                       "4k", "--global-batch", "64", "--export", folder.path()});
    CHECK_MESSAGE(run.exit_code <= 1, run.err);
    CHECK_MESSAGE(contains(run.err, "wrote launch.sh"), run.err);
    CHECK(contains(folder.text("launch.sh"), argument));
  }
}

TEST_CASE("where Megatron-LM or transformers would stop no file is written") {
  const Folder folder;
  const Words asked = {"estimate",          "--model", "llama3-8b",      "--cluster", "1x8-h100",
                       "--sequence-length", "8k",      "--global-batch", "64",        "--set",
                       "cuda_graphs=router"};
  const ProgramRun run = run_shardplan(with_options(asked, "--export " + folder.path()));
  CHECK(run.exit_code == 1);
  CHECK(contains(run.out, "router_graphs_need_experts"));
  const ProgramRun delayed = run_shardplan(with_options(
      asked,
      "--set cuda_graphs=none --precision fp8 --recompute selective --recompute-modules "
      "layernorm --framework-option fp8_recipe=delayed --export " +
          folder.path()));
  CHECK(delayed.exit_code == 1);
  CHECK(contains(delayed.out, "delayed_scaling_recomputes_neither_moe_act_nor_layernorm"));
  const ProgramRun kimi =
      run_shardplan({"estimate", "--model", "kimi-k2", "--cluster", "128x8-h200", "--framework",
                     "transformers", "--zero", "3", "--sequence-length", "4k", "--num-microbatches",
                     "1", "--export", folder.path()});
  check_refused(kimi, 2);
  CHECK(contains(kimi.err, "no AutoModelForCausalLM of model_type kimi_k2"));
  // A model without windows, whose class divides by the number of layers between them.
  const ProgramRun exaone =
      run_shardplan({"estimate", "--model", "exaone-4.0-1.2b", "--cluster", "1x8-h100",
                     "--framework", "transformers", "--sequence-length", "8k", "--global-batch",
                     "64", "--export", folder.path()});
  CHECK_MESSAGE(exaone.exit_code <= 1, exaone.err);
  CHECK(contains(folder.text("model/config.json"), "\"layer_types\": [\"full_attention\", "));
}

TEST_CASE("nothing is written for a plan that is not valid or that has no words") {
  const Folder folder;
  const Words llama = {"estimate",          "--model", "llama3-8b",      "--cluster", "1x8-h100",
                       "--sequence-length", "8k",      "--global-batch", "64"};
  SUBCASE("invalid") {
    const ProgramRun run = run_shardplan(with_options(llama, "--tp 3 --export " + folder.path()));
    CHECK(run.exit_code == 1);
    CHECK(contains(run.err, "nothing is written"));
  }
  SUBCASE("a framework without files") {
    check_refused(
        run_shardplan(with_options(llama, "--framework native --export " + folder.path())), 2);
  }
  SUBCASE("a moment in bf16 beside main parameters in fp32, which FusedAdam does not hold") {
    const ProgramRun run =
        run_shardplan(with_options(llama, "--exp-avg-dtype bf16 --export " + folder.path()));
    check_refused(run, 2);
    CHECK(contains(run.err, "master_dtype bf16 -> fp32"));
  }
  SUBCASE("what the framework would not start with") {
    const ProgramRun run = run_shardplan(with_options(
        llama, "--framework torchtitan --sequence-length 8191 --export " + folder.path()));
    check_refused(run, 2);
    CHECK(contains(run.err, "torchtitan v0.2.2 cannot express this plan: train.toml"));
  }
  CHECK_FALSE(fs::exists(folder.path()));
}

TEST_CASE("a search of several clusters has no first plan to export") {
  const Folder folder;
  check_refused(
      run_shardplan({"search", "--model", "llama3-8b", "--gpu", "h100,h200", "--num-gpus", "8",
                     "--sequence-length", "8k", "--global-batch", "64", "--export", folder.path()}),
      2);
  CHECK_FALSE(fs::exists(folder.path()));
}

TEST_CASE("an export replaces nobody's files") {
  const Folder folder;
  fs::create_directories(folder.path());
  write_file(folder.path() + "/launch.sh", "mine\n");
  const ProgramRun run =
      run_shardplan({"estimate", "--model", "llama3-8b", "--cluster", "1x8-h100",
                     "--sequence-length", "8k", "--global-batch", "64", "--export", folder.path()});
  check_refused(run, 2);
  CHECK(folder.text("launch.sh") == "mine\n");
}

TEST_CASE("a search exports its first plan, or the one of --pick") {
  const Words question = {"search",    "--model",        "llama3-8b",
                          "--cluster", "1x8-h100",       "--sequence-length",
                          "8k",        "--global-batch", "64"};
  for (const std::size_t rank : {std::size_t{1}, std::size_t{3}}) {
    CAPTURE(rank);
    const Folder folder;
    const JsonValue search = json_of(run_shardplan(with_options(
        question,
        "--top 3 --format json --pick " + std::to_string(rank) + " --export " + folder.path())));
    const JsonValue& plan = at(search, "top").items.at(rank - 1);
    const JsonValue estimate =
        json_of(run_shardplan({"estimate", "--from", folder.path() + "/launch.sh", "--cluster",
                               "1x8-h100", "--format", "json"}));
    CHECK(at(at(estimate, "predicted"), "step_time_s").real == at(plan, "step_time_s").real);
  }
}

}  // namespace shardplan
