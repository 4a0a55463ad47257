// A user's own files with only what changes.
#include <doctest/doctest.h>

#include "tests/tools/commands/answer.h"
#include "tools/export/own_configuration.h"
#include "tools/export/own_script.h"
#include "tools/export/text_difference.h"

namespace shardplan {
namespace {

std::string edited(const std::string& text, const ArgumentChange& change) {
  return edited_script(text, {change});
}

}  // namespace

TEST_CASE("a value that stands in a script is changed where it stands") {
  const ArgumentChange tp = {.name = "--tensor-model-parallel-size", .values = {"4"}};
  CHECK(edited("torchrun x.py --tensor-model-parallel-size 2 --bf16\n", tp) ==
        "torchrun x.py --tensor-model-parallel-size 4 --bf16\n");
  CHECK(edited("ARGS=(\n  --tensor-model-parallel-size=2  # why\n)\n", tp) ==
        "ARGS=(\n  --tensor-model-parallel-size=4  # why\n)\n");
  CHECK(edited("A=\"\n --tensor-model-parallel-size 2 \\\n --bf16\"\n", tp) ==
        "A=\"\n --tensor-model-parallel-size 4 \\\n --bf16\"\n");
  CHECK(edited("A=\"--bf16 --tensor-model-parallel-size 2\"\n", tp) ==
        "A=\"--bf16 --tensor-model-parallel-size 4\"\n");
}

TEST_CASE("a value that a variable has is changed where the script sets it") {
  const ArgumentChange tp = {.name = "--tensor-model-parallel-size", .values = {"4"}};
  CHECK(edited("TP=2\nx.py --tensor-model-parallel-size $TP\n", tp) ==
        "TP=4\nx.py --tensor-model-parallel-size $TP\n");
  CHECK(
      edited("export TP=${TP:-2} # of a node\nx.py --tensor-model-parallel-size \"${TP}\"\n", tp) ==
      "export TP=${TP:-4} # of a node\nx.py --tensor-model-parallel-size \"${TP}\"\n");
  CHECK(edited("TP=2   \nx.py --tensor-model-parallel-size $TP  # always with TP=1\n", tp) ==
        "TP=4   \nx.py --tensor-model-parallel-size $TP  # always with TP=1\n");
  // Set twice, or by a program: the argument itself.
  CHECK(edited("TP=2\nTP=1\nx.py --tensor-model-parallel-size $TP --bf16\n", tp) ==
        "TP=2\nTP=1\nx.py --tensor-model-parallel-size 4 --bf16\n");
  CHECK(edited("TP=$(nproc)\nx.py --tensor-model-parallel-size ${TP}\n", tp) ==
        "TP=$(nproc)\nx.py --tensor-model-parallel-size 4\n");
}

TEST_CASE("switches come and go, and comments stay as they are") {
  const std::string script =
      "ARGS=(\n  # --sequence-parallel\n  --micro-batch-size 1\n  --bf16\n  --use-flash-attn\n)\n";
  CHECK(edited(script, {.name = "--sequence-parallel"}) ==
        "ARGS=(\n  # --sequence-parallel\n  --micro-batch-size 1 --sequence-parallel\n  --bf16\n"
        "  --use-flash-attn\n)\n");
  CHECK(edited(script, {.name = "--bf16", .is_removed = true}) ==
        "ARGS=(\n  # --sequence-parallel\n  --micro-batch-size 1\n  --use-flash-attn\n)\n");
  // Of two arguments that say the same the older goes.
  CHECK(edited(script, {.name = "--attention-backend", .values = {"flash"}}) ==
        "ARGS=(\n  # --sequence-parallel\n  --micro-batch-size 1 --attention-backend flash\n"
        "  --bf16\n)\n");
}

TEST_CASE("a configuration keeps its order and its comments") {
  const std::string text =
      "[training]\nlocal_batch_size = 2  # a GPU\nsteps = 10\n\n[parallelism]\n"
      "tensor_parallel_degree = 1\n";
  const std::vector<ArgumentGroup> before = {
      {.title = "training", .arguments = {{.name = "local_batch_size", .values = {"2"}}}},
      {.title = "parallelism", .arguments = {{.name = "tensor_parallel_degree", .values = {"1"}}}}};
  const std::vector<ArgumentGroup> after = {
      {.title = "training", .arguments = {{.name = "local_batch_size", .values = {"4"}}}},
      {.title = "parallelism",
       .arguments = {{.name = "tensor_parallel_degree", .values = {"1"}},
                     {.name = "context_parallel_degree", .values = {"2"}}}},
      {.title = "compile", .arguments = {{.name = "enable", .values = {"true"}}}}};
  CHECK(edited_configuration(text, before, after) ==
        "[training]\nlocal_batch_size = 4  # a GPU\nsteps = 10\n\n[parallelism]\n"
        "context_parallel_degree = 2\ntensor_parallel_degree = 1\n\n[compile]\nenable = true\n");
}

TEST_CASE("a difference shows changed lines with three around them") {
  CHECK(text_difference("a\n", "a\n", "old", "new").empty());
  CHECK(text_difference("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\n5\nsix\n7\n8\n9\n", "old",
                        "new") ==
        "--- old\n+++ new\n@@ -3,7 +3,7 @@\n 3\n 4\n 5\n-6\n+six\n 7\n 8\n 9\n");
  CHECK(text_difference("", "1\n", "old", "new") == "--- old\n+++ new\n@@ -0,0 +1,1 @@\n+1\n");
}

TEST_CASE("beside --from only what changes is written, into the user's own file") {
  const TemporaryDirectory place;
  const std::string script = place.path() + "/pretrain.sh";
  write_file(script,
             "#!/bin/bash\nTP=2\ntorchrun --nproc_per_node 8 pretrain_gpt.py \\\n"
             "  --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 \\\n"
             "  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 32 \\\n"
             "  --tensor-model-parallel-size $TP --bf16 --mock-data --vocab-size 32000\n");
  const std::string folder = place.path() + "/out";
  const Words words = {"estimate", "--from", script, "--cluster", "1x8-h100"};
  const ProgramRun run =
      run_shardplan(with_options(words, "--tp 4 --micro-batch 2 --export " + folder));
  CHECK_MESSAGE(run.exit_code == 0, run.err);
  const std::string changed = read_file(folder + "/pretrain.sh");
  CHECK(contains(changed, "\nTP=4\n"));
  CHECK(contains(changed, "--micro-batch-size 2 "));
  CHECK(contains(changed, "--tensor-model-parallel-size $TP "));
  const std::string difference = read_file(folder + "/changes.diff");
  CHECK(contains(difference, "--- a/pretrain.sh\n+++ b/pretrain.sh\n"));
  CHECK(contains(difference, "\n-TP=2\n+TP=4\n"));
  const Words again = {"estimate", "--from", folder + "/pretrain.sh", "--cluster", "1x8-h100",
                       "--format", "json"};
  const JsonValue read = json_of(run_shardplan(again));
  const JsonValue asked =
      json_of(run_shardplan(with_options(words, "--tp 4 --micro-batch 2 --format json")));
  CHECK(at(at(read, "predicted"), "step_time_s").real ==
        at(at(asked, "predicted"), "step_time_s").real);
}

}  // namespace shardplan
